//! The device between nodes: which kind, and what it is made of.

use std::net::IpAddr;

use ringway_roce::{Link, RoceConfig, RoceDevice, UdpConfig, UdpLink, XdpConfig, XdpLink};
use ringway_tcp::{TcpConfig, TcpDevice};
use ringway_wrap::{Capture, Faulty};

use crate::{
    Config, DeviceChoice, DeviceKind, NetworkConfig, ServiceError,
    door::TcpDoor,
    engine_thread::{NoDevice, NodeDevice},
    peers::DataDoor,
};

/// What `auto` tries, the best first.
const PREFERENCE: [DeviceKind; 1] = [DeviceKind::Tcp];

/// A device and what belongs to it.
pub(crate) struct Made {
    pub(crate) device: NodeDevice,
    /// Takes its connections from the daemons' port, where it has some.
    pub(crate) door: Option<Box<dyn DataDoor>>,
    pub(crate) name: &'static str,
}

/// Makes the device that was asked for, or the best that works here; one line in the log says why it is this one.
pub(crate) fn make(config: &Config) -> Result<Made, ServiceError> {
    let Some(network) = &config.network else {
        if let DeviceChoice::Only(kind) = config.device {
            tracing::info!(
                "device `{}` is not used: without cluster_key_file this daemon serves one node only",
                kind.name()
            );
        }
        return Ok(Made { device: Box::new(NoDevice::default()), door: None, name: "none" });
    };
    match config.device {
        DeviceChoice::Only(kind) => make_kind(kind, network, config)
            .map_err(|reason| ServiceError::Device { device: kind.name(), reason }),
        DeviceChoice::Auto => make_best(network, config),
    }
}

fn make_best(network: &NetworkConfig, config: &Config) -> Result<Made, ServiceError> {
    let packets = config.fault.is_some() || config.pcap.is_some();
    let mut refused = Vec::new();
    let kinds = if packets { DeviceKind::ALL.as_slice() } else { &PREFERENCE };
    for kind in kinds.iter().filter(|kind| !packets || kind.has_packets()) {
        match make_kind(*kind, network, config) {
            Ok(made) => {
                let why = if refused.is_empty() { "it is preferred".to_owned() } else { refused.join("; ") };
                tracing::info!("device `{}` is used: {why}", made.name);
                return Ok(made);
            }
            Err(reason) => refused.push(format!("`{}` does not work here: {reason}", kind.name())),
        }
    }
    Err(ServiceError::Device { device: "auto", reason: refused.join("; ") })
}

fn make_kind(kind: DeviceKind, network: &NetworkConfig, config: &Config) -> Result<Made, String> {
    match kind {
        DeviceKind::Tcp => {
            let mut tcp = TcpConfig::new(network.advertise);
            tcp.source = Some(network.listen.ip()).filter(|ip| !ip.is_unspecified());
            tcp.max_regions = u32::from(u16::MAX);
            let (device, acceptor) = TcpDevice::new(tcp).map_err(|error| error.to_string())?;
            Ok(Made { device: Box::new(device), door: Some(Box::new(TcpDoor(acceptor))), name: kind.name() })
        }
        DeviceKind::RoceXdp => {
            let link = XdpLink::new(XdpConfig::new(address(network))).map_err(|error| error.to_string())?;
            tracing::info!("{}", link.describe());
            roce(kind, Box::new(link), config)
        }
        DeviceKind::RoceUdp => {
            let link = UdpLink::new(UdpConfig::new(address(network))).map_err(|error| error.to_string())?;
            roce(kind, Box::new(link), config)
        }
    }
}

/// The address of this node that packets come from and go to.
fn address(network: &NetworkConfig) -> IpAddr {
    let listen = network.listen.ip();
    if listen.is_unspecified() { network.advertise.ip() } else { listen }
}

/// A RoCE device over a link, with what the settings put around it: a capture has what came over the wire, before faults
/// are done to it.
fn roce(kind: DeviceKind, mut link: Box<dyn Link>, config: &Config) -> Result<Made, String> {
    if let Some(file) = &config.pcap {
        link = Box::new(
            Capture::create(link, file)
                .map_err(|error| format!("cannot write the capture `{}`: {error}", file.display()))?,
        );
    }
    if let Some(spec) = config.fault {
        tracing::warn!("packets that come in are lost, spoiled or delayed on purpose: {spec}");
        link = Box::new(Faulty::new(link, spec));
    }
    let roce = RoceConfig { max_regions: u32::from(u16::MAX), ..RoceConfig::new(kind.name()) };
    let device = RoceDevice::new(link, roce).map_err(|error| error.to_string())?;
    Ok(Made { device: Box::new(device), door: None, name: kind.name() })
}
