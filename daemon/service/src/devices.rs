//! The devices between nodes: which kinds, and what they are made of.

pub(crate) mod place;
pub(crate) mod verbs;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use ringway_group::Width;
use ringway_ibverbs::Choice;
use ringway_roce::{
    Link, RoceConfig, RoceDevice, UdpConfig, UdpLink, XdpConfig, XdpLink, ZeroCopy, interface_of,
};
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_tcp::{TcpAcceptor, TcpConfig, TcpDevice, TcpDriver};
use ringway_wrap::{Capture, Delayed, Faulty};

use crate::{
    Config, DeviceChoice, DeviceKind, NetworkConfig, ServiceError,
    door::TcpDoor,
    engine_thread::{LOST, NoDevice, NodeDevice, NodeDevices, Placed},
    peers::DataDoor,
    status::DeviceStatus,
};

/// With smaller packets TCP, which is cut in the kernel, takes less time than RoCE over UDP.
const UDP_PACKET_BYTES_MIN: usize = 4096;

/// Open devices of one kind: one, or one for each rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Open {
    /// What they speak. Nodes that speak the same can use them together, though their devices be of different kinds.
    pub(crate) protocol: String,
    /// Over how many rails, and with how many queue pairs, it can be used.
    pub(crate) width: Width,
    /// Its kind's name.
    pub(crate) name: &'static str,
    /// It broke, or was removed.
    pub(crate) is_lost: bool,
}

impl Open {
    /// Why nodes do not have it in common.
    pub(crate) fn why_not_common(&self) -> &'static str {
        if self.is_lost {
            LOST
        } else if self.name == DeviceKind::Shm.name() {
            "it needs all nodes to be on this host and in this network namespace, and to have it open"
        } else {
            "not every node has it"
        }
    }
}

/// The devices and what belongs to them.
pub(crate) struct Made {
    pub(crate) devices: NodeDevices,
    /// The same as others know them, the best first: at least one.
    pub(crate) open: Vec<Open>,
    /// What was tried and is not used here, and why.
    pub(crate) refused: Vec<DeviceStatus>,
    /// Takes data connections from the daemons' port, where a device has some.
    pub(crate) door: Option<Box<dyn DataDoor>>,
}

/// One device.
struct One {
    device: NodeDevice,
    /// Where it takes connections that came to the daemons' port.
    door: Option<TcpAcceptor>,
    /// The address of its rail, where its kind is one for each rail.
    rail: Option<IpAddr>,
    /// The NUMA node of its network card, where it is known.
    numa_node: Option<u32>,
    /// What it speaks, where its kind does not say.
    protocol: Option<&'static str>,
    /// Where its peers must be, when they cannot be anywhere.
    place: Option<String>,
}

impl One {
    fn new(device: NodeDevice) -> Self {
        Self { device, door: None, rail: None, numa_node: None, protocol: None, place: None }
    }

    /// The same, where all that arrives takes so much longer.
    fn delayed(self, delay: Duration) -> Self {
        if delay.is_zero() {
            return self;
        }
        Self { device: Box::new(Delayed::new(self.device, delay).in_real_time()), ..self }
    }
}

/// Makes the devices that were asked for, as far as they work here: of each protocol the best. Lines in the log say why it
/// is these.
pub(crate) fn make(config: &Config) -> Result<Made, ServiceError> {
    let Some(network) = &config.network else {
        if let DeviceChoice::Listed(kinds) = &config.device {
            tracing::info!(
                "device `{}` is not used: without cluster_key_file this daemon serves one node only",
                names(kinds)
            );
        }
        let none = Open { protocol: "none".to_owned(), width: Width::ONE, name: "none", is_lost: false };
        let device: NodeDevice = Box::<NoDevice>::default();
        let devices = NodeDevices::new([(none.protocol.clone(), device)]);
        return Ok(Made { devices, open: vec![none], refused: Vec::new(), door: None });
    };
    let kinds = wanted(config);
    if !config.delay.is_zero() {
        tracing::warn!("all that arrives is delayed by {:?} on purpose", config.delay);
    }
    make_first(&kinds, network.channels_per_rail, |kind| make_rails(kind, network, config))
}

/// Makes a device of this kind for each rail: all work or none is used.
fn make_rails(kind: DeviceKind, network: &NetworkConfig, config: &Config) -> Result<Vec<One>, String> {
    let rails = match kind {
        // Memory has no network cards.
        DeviceKind::Shm => vec![network.clone()],
        _ => network.of_rails(),
    };
    let ports = match kind {
        DeviceKind::Verbs => verbs::choose(&rails, config)?,
        _ => Vec::new(),
    };
    let make = |(number, rail): (usize, &NetworkConfig)| {
        let place = |text: String| match rails.len() {
            1 => text,
            _ => format!("on rail {number}, {}: {text}", rail.listen.ip()),
        };
        let mut one =
            make_one(kind, (number, rail), ports.get(number), config).map_err(place)?.delayed(config.delay);
        if rails.len() > 1 {
            one.rail = Some(rail.listen.ip());
            one.numa_node = match ports.get(number) {
                Some(choice) => choice.port.numa_node,
                None => numa_node(rail.listen.ip()),
            };
        }
        Ok(one)
    };
    let mut made = rails.iter().enumerate().map(make).collect::<Result<Vec<One>, String>>()?;
    let spoken = made.first().and_then(|first| first.protocol);
    if let Some(other) = made.iter().position(|one| one.protocol != spoken) {
        return Err(format!("rail {other} speaks another protocol than rail 0"));
    }
    let place = of_all(made.iter().map(|one| one.place.as_deref()));
    made.iter_mut().for_each(|one| one.place.clone_from(&place));
    Ok(made)
}

/// The NUMA node of the network card that has an address; `None` where there is no card, or the system does not say.
fn numa_node(address: IpAddr) -> Option<u32> {
    let interface = interface_of(address).ok()?;
    // Of a card that is on none it is -1.
    fs::read_to_string(format!("/sys/class/net/{interface}/device/numa_node")).ok()?.trim().parse().ok()
}

/// Where the peers of several rails must be: in the place of each, as each reaches the same rail of others. Places that differ,
/// as InfiniBand's subnets may, are told by a number that nodes have in common if they have the places in common.
fn of_all<'a>(places: impl Iterator<Item = Option<&'a str>> + Clone) -> Option<String> {
    let first = places.clone().next()?;
    if places.clone().all(|place| place == first) {
        return first.map(str::to_owned);
    }
    // FNV-1a, with a byte after each that is in none.
    let bytes = places.flat_map(|place| place.unwrap_or_default().bytes().chain([0xff]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Some(format!("{hash:016x}"))
}

/// The kinds to try, the best first.
fn wanted(config: &Config) -> Vec<DeviceKind> {
    let kinds = match &config.device {
        DeviceChoice::Auto => DeviceKind::ALL.as_slice(),
        DeviceChoice::Listed(kinds) => kinds,
    };
    kinds.iter().copied().filter(|kind| !wants_packets(config) || kind.has_packets()).collect()
}

/// Whether only a device that handles packets can do what was asked for.
const fn wants_packets(config: &Config) -> bool {
    config.fault.is_some() || config.pcap.is_some()
}

/// Makes the first of each protocol that works.
fn make_first(
    kinds: &[DeviceKind],
    channels_per_rail: u8,
    mut make: impl FnMut(DeviceKind) -> Result<Vec<One>, String>,
) -> Result<Made, ServiceError> {
    let (mut devices, mut door, mut spoken): (Vec<Placed>, _, _) = (Vec::new(), None, Vec::new());
    let (mut open, mut refused): (Vec<Open>, Vec<DeviceStatus>) = (Vec::new(), Vec::new());
    for kind in kinds {
        let name = kind.name();
        let is_spoken = |protocol: &'static str, spoken: &[&str]| {
            let is_spoken = spoken.contains(&protocol);
            if is_spoken {
                tracing::debug!("device `{name}` is not used: a better one speaks `{protocol}` as well");
            }
            is_spoken
        };
        if kind.protocol().is_some_and(|protocol| is_spoken(protocol, &spoken)) {
            continue;
        }
        match make(*kind) {
            Ok(ones) => {
                let Some(one) = ones.first() else { continue };
                let protocol = kind.protocol().or(one.protocol).unwrap_or(name);
                // In a place of its own it does not speak for those elsewhere.
                if one.place.is_none() {
                    if is_spoken(protocol, &spoken) {
                        continue;
                    }
                    spoken.push(protocol);
                }
                let protocol = match &one.place {
                    Some(place) => format!("{protocol}:{place}"),
                    None => protocol.to_owned(),
                };
                let rails = u8::try_from(ones.len()).unwrap_or(u8::MAX);
                let width = Width { rails, channels: rails.saturating_mul(channels_per_rail) };
                open.push(Open { protocol: protocol.clone(), width, name, is_lost: false });
                door = door.or(place(ones, &protocol, &mut devices));
            }
            Err(reason) => {
                refused.push(DeviceStatus {
                    name: name.to_owned(),
                    refused: reason,
                    ..DeviceStatus::default()
                });
            }
        }
    }
    let Some(best) = open.first() else {
        let reason = match refused.as_slice() {
            [only] => only.refused.clone(),
            several => reasons(several),
        };
        return Err(ServiceError::Device { device: names(kinds), reason });
    };
    if refused.is_empty() {
        tracing::info!("device `{}` is used: it is preferred", best.name);
    } else {
        tracing::info!("{}; using `{}`", reasons(&refused), best.name);
    }
    for other in open.iter().skip(1) {
        tracing::info!("device `{}` is open too, for nodes that lack `{}`", other.name, best.name);
    }
    let door = door.map(|door| -> Box<dyn DataDoor> { Box::new(door) });
    Ok(Made { devices: NodeDevices::new(devices), open, refused, door })
}

/// Puts the devices of one kind with the others, and gives the door to them, where they have one.
fn place(ones: Vec<One>, protocol: &str, devices: &mut Vec<Placed>) -> Option<TcpDoor> {
    let mut doors = Vec::new();
    for one in ones {
        let rail = one.rail.map_or_else(String::new, |rail| rail.to_string());
        devices.push(Placed {
            protocol: protocol.to_owned(),
            rail,
            numa_node: one.numa_node,
            device: one.device,
        });
        doors.extend(one.door.map(|door| (one.rail.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), door)));
    }
    TcpDoor::new(doors)
}

fn names(kinds: &[DeviceKind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    names.join(",")
}

fn reasons(refused: &[DeviceStatus]) -> String {
    let all = refused.iter().map(|one| format!("device `{}` is not used: {}", one.name, one.refused));
    all.collect::<Vec<_>>().join("; ")
}

fn make_one(
    kind: DeviceKind,
    (rail, network): (usize, &NetworkConfig),
    port: Option<&Choice>,
    config: &Config,
) -> Result<One, String> {
    let is_choice = config.device == DeviceChoice::Auto && !wants_packets(config);
    match kind {
        DeviceKind::Shm => {
            let place = place::place()?;
            let mut shm = ShmConfig::default();
            shm.max_regions = u32::from(u16::MAX);
            let device = ShmDevice::new(shm).map_err(|error| error.to_string())?;
            Ok(One { place: Some(place), ..One::new(Box::new(device)) })
        }
        DeviceKind::Verbs => {
            let port = port.ok_or_else(|| "there is no RDMA port".to_owned())?;
            verbs::make(network, port.clone(), config)
        }
        DeviceKind::Tcp => tcp(TcpDriver::IoUring, network, config),
        DeviceKind::TcpEpoll => tcp(TcpDriver::Epoll, network, config),
        DeviceKind::RoceXdp => {
            let zero_copy = if is_choice { ZeroCopy::Required } else { ZeroCopy::Wanted };
            let (port, interface) = (network.roce_port, network.roce_interface.clone());
            let xdp = XdpConfig { zero_copy, port, interface, ..XdpConfig::new(address(network)) };
            let link = XdpLink::new(xdp).map_err(|error| error.to_string())?;
            tracing::info!("{}", link.describe());
            roce(kind, Box::new(link), rail, config)
        }
        DeviceKind::RoceUdp => {
            let (port, interface) = (network.roce_port, network.roce_interface.clone());
            let udp = UdpConfig { port, interface, ..UdpConfig::new(address(network)) };
            let link = UdpLink::new(udp).map_err(|error| error.to_string())?;
            if is_choice {
                udp_is_worth_it(link.local_address(), link.mtu().bytes())?;
            }
            roce(kind, Box::new(link), rail, config)
        }
    }
}

/// Whether RoCE over UDP sockets at this address, with packets that carry so many bytes, can be expected to be no slower than TCP.
///
/// # Errors
/// Why not, as a sentence.
pub fn udp_is_worth_it(address: IpAddr, packet_bytes: usize) -> Result<(), String> {
    if address.is_loopback() {
        return Err("over loopback TCP, which is not cut into packets there, takes less time".to_owned());
    }
    if packet_bytes < UDP_PACKET_BYTES_MIN {
        return Err(format!(
            "packets carry {packet_bytes} bytes here, and with less than {UDP_PACKET_BYTES_MIN} TCP takes less time; give the \
             network an MTU of 4200 or more (9000 is usual), or name `roce-udp`"
        ));
    }
    Ok(())
}

/// A TCP device with this driver, and where its connections come in.
fn tcp(driver: TcpDriver, network: &NetworkConfig, config: &Config) -> Result<One, String> {
    let mut tcp = TcpConfig::new(network.advertise);
    tcp.source = Some(network.listen.ip()).filter(|ip| !ip.is_unspecified());
    tcp.driver = driver;
    tcp.busy_poll_us = config.tcp_busy_poll_us;
    tcp.zero_copy = config.tcp_zero_copy;
    tcp.connections = config.tcp_connections;
    tcp.congestion = config.tcp_congestion;
    tcp.max_regions = u32::from(u16::MAX);
    let (device, acceptor) = TcpDevice::new(tcp).map_err(|error| error.to_string())?;
    Ok(One { door: Some(acceptor), ..One::new(Box::new(device)) })
}

/// The address of this node that packets come from and go to.
fn address(network: &NetworkConfig) -> IpAddr {
    let listen = network.listen.ip();
    if listen.is_unspecified() { network.advertise.ip() } else { listen }
}

/// A RoCE device over a link, with what the settings put around it: a capture has what came over the wire, before faults
/// are done to it.
fn roce(kind: DeviceKind, mut link: Box<dyn Link>, rail: usize, config: &Config) -> Result<One, String> {
    if let Some(file) = &config.pcap {
        // Each further rail has a file of its own.
        let file = if rail > 0 { file.with_extension(format!("rail{rail}.pcap")) } else { file.clone() };
        link = Box::new(
            Capture::create(link, &file)
                .map_err(|error| format!("cannot write the capture `{}`: {error}", file.display()))?,
        );
    }
    if let Some(spec) = config.fault {
        tracing::warn!("packets that come in are lost, spoiled or delayed on purpose: {spec}");
        link = Box::new(Faulty::new(link, spec));
    }
    let roce = RoceConfig {
        max_regions: u32::from(u16::MAX),
        // Toward hardware, which is as patient with this end; Ringway's own ends say more of themselves.
        timeout: config.verbs.timeout,
        retry_count: config.verbs.retries,
        ..RoceConfig::at(kind.name(), link.local_address())
    };
    let device = RoceDevice::new(link, roce).map_err(|error| error.to_string())?;
    Ok(One::new(Box::new(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of this kind, which has this protocol and place if it is of RDMA hardware.
    fn working_one(kind: DeviceKind, protocol: &'static str, place: Option<&str>) -> One {
        let one = One::new(Box::<NoDevice>::default());
        match kind {
            DeviceKind::Verbs => One { protocol: Some(protocol), place: place.map(str::to_owned), ..one },
            _ => one,
        }
    }

    /// What is made where only these work.
    fn made(kinds: &[DeviceKind], working: &[DeviceKind]) -> Result<Made, ServiceError> {
        make_first(kinds, 1, |kind| match working.contains(&kind) {
            true => Ok(vec![working_one(kind, "roce", None)]),
            false => Err(format!("no {} today", kind.name())),
        })
    }

    fn open(made: &Made) -> Vec<&str> {
        made.open.iter().map(|open| open.name).collect()
    }

    #[test]
    fn the_first_of_each_protocol_that_works_is_opened() {
        let [shm, verbs, xdp, udp, tcp, epoll] = DeviceKind::ALL;
        for (working, expected, refused) in [
            (&[shm, verbs, xdp, udp, tcp, epoll][..], &["shm", "verbs", "tcp"][..], &[][..]),
            (&[shm, xdp, udp, tcp, epoll], &["shm", "roce-xdp", "tcp"], &["verbs"]),
            (&[shm, udp, tcp, epoll], &["shm", "roce-udp", "tcp"], &["verbs", "roce-xdp"]),
            (&[udp, epoll], &["roce-udp", "tcp-epoll"], &["shm", "verbs", "roce-xdp", "tcp"]),
            (&[tcp, epoll], &["tcp"], &["shm", "verbs", "roce-xdp", "roce-udp"]),
            (&[epoll], &["tcp-epoll"], &["shm", "verbs", "roce-xdp", "roce-udp", "tcp"]),
            (&[udp], &["roce-udp"], &["shm", "verbs", "roce-xdp", "tcp", "tcp-epoll"]),
        ] {
            let made = made(&DeviceKind::ALL, working).expect("one works");
            assert_eq!(open(&made), expected);
            let named: Vec<_> = made.refused.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(named, refused);
            assert!(made.refused.iter().all(|one| one.refused.ends_with("today")));
            assert_eq!(made.devices.status().len(), expected.len());
        }
    }

    /// Two daemons use it together where they name the same place.
    #[test]
    fn a_device_that_works_in_one_place_only_says_where() {
        let here = make_first(&[DeviceKind::Shm, DeviceKind::Tcp], 1, |kind| {
            let place = (kind == DeviceKind::Shm).then(|| "here".to_owned());
            Ok(vec![One { place, ..One::new(Box::<NoDevice>::default()) }])
        });
        let mut made = here.expect("both work");
        let protocols: Vec<_> = made.open.iter().map(|open| open.protocol.as_str()).collect();
        assert_eq!(protocols, ["shm:here", "tcp"]);
        assert_eq!(made.devices.choose("shm:there"), None);
        assert!(made.devices.choose("shm:here").is_some());
    }

    /// One device for each rail, but one for memory, which has none.
    #[test]
    fn a_kind_is_as_wide_as_it_has_rails() {
        let of =
            |address: [u8; 4]| One { rail: Some(address.into()), ..One::new(Box::<NoDevice>::default()) };
        let made = make_first(&[DeviceKind::Shm, DeviceKind::Tcp], 2, |kind| match kind {
            DeviceKind::Shm => Ok(vec![One::new(Box::<NoDevice>::default())]),
            _ => Ok(vec![of([10, 0, 0, 1]), of([10, 1, 0, 1]), of([10, 2, 0, 1])]),
        });
        let made = made.expect("both work");
        let widths: Vec<_> = made.open.iter().map(|open| (open.width.rails, open.width.channels)).collect();
        assert_eq!(widths, [(1, 2), (3, 6)]);
        let rails: Vec<_> = made.devices.status().into_iter().map(|device| device.rail).collect();
        assert_eq!(rails, ["", "10.0.0.1", "10.1.0.1", "10.2.0.1"]);
    }

    /// Nodes whose rails are in the same subnets, in the same order, have the protocol in common.
    #[test]
    fn rails_may_be_in_places_of_their_own() {
        let of = |places: &[Option<&str>]| of_all(places.iter().copied());
        let (a, b) = (Some("fe80000000000000"), Some("fec0000000000002"));
        assert_eq!(of(&[a, a]).as_deref(), a);
        assert_eq!((of(&[None, None]), of(&[])), (None, None));
        let both = of(&[a, b]).expect("a place");
        assert_eq!(both.len(), 16, "a protocol's name has 32 characters");
        assert_eq!(of(&[a, b]).as_ref(), Some(&both));
        for other in [&[b, a][..], &[a, b, b], &[a, None], &[Some("fe80000000000000fec0000000000002"), None]]
        {
            assert_ne!(of(other).as_ref(), Some(&both), "{other:?}");
        }
    }

    /// What it speaks is known only when it is open.
    #[test]
    fn rdma_hardware_takes_the_place_of_what_speaks_the_same() {
        let [_, verbs, xdp, udp, tcp, _] = DeviceKind::ALL;
        let opened = |kinds: &[DeviceKind], protocol, place| {
            let made = make_first(kinds, 1, |kind| Ok(vec![working_one(kind, protocol, place)]));
            let made = made.expect("all work");
            assert!(made.refused.is_empty(), "what is not needed is not refused");
            made.open.iter().map(|open| format!("{} by {}", open.protocol, open.name)).collect::<Vec<_>>()
        };
        assert_eq!(opened(&[verbs, xdp, udp, tcp], "roce", None), ["roce by verbs", "tcp by tcp"]);
        assert_eq!(opened(&[verbs, udp], "roce", None), ["roce by verbs"]);
        assert_eq!(opened(&[udp, verbs], "roce", None), ["roce by roce-udp"]);
        let infiniband = ["infiniband:fe80000000000000 by verbs", "roce by roce-udp"];
        assert_eq!(opened(&[verbs, udp], "infiniband", Some("fe80000000000000")), infiniband);
        let all = opened(&DeviceKind::ALL, "infiniband", Some("fe80000000000000"));
        assert_eq!(all.len(), 4, "no more are told apart: {all:?}");
    }

    #[test]
    fn where_none_works_every_reason_is_said() {
        let [_, _, xdp, udp, tcp, _] = DeviceKind::ALL;
        let text = |kinds: &[DeviceKind]| made(kinds, &[]).err().expect("none works").to_string();
        assert_eq!(text(&[udp]), "device `roce-udp` does not work here: no roce-udp today");
        let all = text(&[xdp, udp, tcp]);
        assert!(
            all.contains("roce-xdp,roce-udp,tcp") && all.contains("no roce-xdp") && all.contains("no tcp"),
            "{all}"
        );
    }
}
