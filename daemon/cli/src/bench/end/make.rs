//! The devices that an end can have in its own process.

use std::{net::IpAddr, sync::Arc};

use ringway_mem::Mapping;
use ringway_roce::{Link, RoceConfig, RoceDevice, UdpConfig, UdpLink, XdpConfig, XdpLink};
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_tcp::{TcpConfig, TcpDevice, TcpDriver};
use ringway_verbs::Device;

use super::door::Door;

/// A device of any kind.
pub(super) type AnyDevice = Box<dyn Device<Region = Arc<Mapping>>>;

/// A device, and the door that brings its connections where it has one.
pub(super) struct Made {
    pub(super) device: AnyDevice,
    pub(super) door: Option<Door>,
}

/// Makes the device of this name at this address.
pub(super) fn device(name: &str, address: IpAddr) -> Result<Made, String> {
    let alone = |device: AnyDevice| Ok(Made { device, door: None });
    match name {
        "shm" => alone(Box::new(ShmDevice::new(ShmConfig::default()).map_err(|e| e.to_string())?)),
        "roce-udp" => alone(roce(
            "roce-udp",
            Box::new(UdpLink::new(UdpConfig::new(address)).map_err(|e| e.to_string())?),
        )?),
        "roce-xdp" => alone(roce(
            "roce-xdp",
            Box::new(XdpLink::new(XdpConfig::new(address)).map_err(|e| e.to_string())?),
        )?),
        "tcp" | "tcp-epoll" => {
            let (mut door, advertised) = Door::open(address)?;
            let mut config = TcpConfig::new(advertised);
            config.source = Some(address);
            config.driver = if name == "tcp" { TcpDriver::IoUring } else { TcpDriver::Epoll };
            let (device, acceptor) = TcpDevice::new(config).map_err(|e| e.to_string())?;
            door.leads_to(acceptor);
            Ok(Made { device: Box::new(device), door: Some(door) })
        }
        _ => Err(format!("there is no device `{name}`")),
    }
}

fn roce(name: &'static str, link: Box<dyn Link>) -> Result<AnyDevice, String> {
    Ok(Box::new(RoceDevice::new(link, RoceConfig::new(name)).map_err(|e| e.to_string())?))
}
