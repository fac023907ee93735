//! The device over RDMA hardware, which only some binaries and some hosts have.

#[cfg(any(test, feature = "verbs"))]
use std::net::IpAddr;

use super::One;
#[cfg(feature = "verbs")]
use super::address;
use crate::{Config, DeviceChoice, NetworkConfig};

/// Where RoCE hardware sends packets.
#[cfg(any(test, feature = "verbs"))]
const UDP_PORT: u16 = 4791;

/// The device of the port that was asked for.
///
/// # Errors
/// Why there is none, as a sentence.
pub(super) fn make(network: &NetworkConfig, config: &Config) -> Result<One, String> {
    let is_absent = || ringway_ibverbs::ports().is_ok_and(|ports| ports.is_empty());
    // Most hosts have none, and nobody asked for it: that is not worth a long line in each log.
    if config.device == DeviceChoice::Auto && is_absent() {
        return Err("this host has no RDMA device".to_owned());
    }
    open(network, config)
}

#[cfg(feature = "verbs")]
fn open(network: &NetworkConfig, config: &Config) -> Result<One, String> {
    use ringway_ibverbs::{IbverbsConfig, IbverbsDevice};

    let own = address(network);
    let wanted = IbverbsConfig {
        max_regions: u32::from(u16::MAX),
        ..IbverbsConfig::new(config.verbs.clone(), Some(own))
    };
    let device = IbverbsDevice::open(wanted).map_err(|error| error.to_string())?;
    let choice = device.choice();
    let (protocol, place) = spoken(choice, network.roce_port)?;
    if config.device == DeviceChoice::Auto {
        is_reached(choice, own)?;
    }
    tracing::info!("{}", device.describe());
    Ok(One { protocol: Some(protocol), place, ..One::new(Box::new(device)) })
}

#[cfg(not(feature = "verbs"))]
fn open(_: &NetworkConfig, _: &Config) -> Result<One, String> {
    Err("this binary was built without it: build with `--features verbs` (needs libibverbs-dev, librdmacm-dev and \
         libclang-dev)"
        .to_owned())
}

/// What queue pairs at this port speak, and where those are that they reach: of InfiniBand the subnet, by the prefix of its
/// addresses.
#[cfg(any(test, feature = "verbs"))]
fn spoken(
    choice: &ringway_ibverbs::Choice,
    roce_port: u16,
) -> Result<(&'static str, Option<String>), String> {
    use ringway_ibverbs::{GidKind, LinkLayer};

    match (choice.port.link_layer, choice.gid.kind) {
        (LinkLayer::InfiniBand, _) => {
            let prefix = choice.gid.raw.to_bits() >> 64;
            Ok(("infiniband", Some(format!("{prefix:016x}"))))
        }
        (LinkLayer::Ethernet, _) if roce_port != UDP_PORT => Err(format!(
            "`roce_port` is {roce_port}, and RDMA hardware sends RoCE packets to UDP port {UDP_PORT} alone"
        )),
        (LinkLayer::Ethernet, GidKind::RoceV2) => Ok(("roce", None)),
        // The same, but not over UDP, which others would not understand.
        (LinkLayer::Ethernet, GidKind::IbOrRoceV1) => Ok(("roce-v1", None)),
    }
}

/// Whether nodes that reach this one at its address reach the port as well. Those without RDMA hardware speak RoCE too.
#[cfg(any(test, feature = "verbs"))]
fn is_reached(choice: &ringway_ibverbs::Choice, own: IpAddr) -> Result<(), String> {
    let address = choice.gid.address();
    if choice.port.link_layer == ringway_ibverbs::LinkLayer::InfiniBand || address == own {
        return Ok(());
    }
    let (device, port) = (&choice.port.device, choice.port.number);
    Err(format!(
        "port {port} of RDMA device `{device}` has the address {address}, and this node is {own} to others; if all reach it \
         there, name `verbs:{device}:{port}`"
    ))
}

#[cfg(test)]
mod tests {
    use ringway_ibverbs::{Choice, Gid, GidKind, LinkLayer, Port, Transport};

    use super::*;

    fn choice(link_layer: LinkLayer, kind: GidKind, raw: &str) -> Choice {
        let gid = Gid { index: 0, kind, raw: raw.parse().expect("an address"), interface: None };
        let port = Port {
            device: "mlx5_0".to_owned(),
            transport: Transport::InfiniBand,
            number: 1,
            state: "ACTIVE".to_owned(),
            physical_state: "LinkUp".to_owned(),
            rate: String::new(),
            link_layer,
            lid: 1,
            gids: vec![gid.clone()],
            numa_node: None,
        };
        Choice { port, gid }
    }

    fn protocol(choice: &Choice) -> String {
        let (protocol, place) = spoken(choice, UDP_PORT).expect("understood");
        place.map_or(protocol.to_owned(), |place| format!("{protocol}:{place}"))
    }

    #[test]
    fn roce_ports_speak_what_roce_devices_do() {
        let roce = choice(LinkLayer::Ethernet, GidKind::RoceV2, "::ffff:10.0.0.1");
        assert_eq!(Some(protocol(&roce).as_str()), crate::DeviceKind::RoceUdp.protocol());
        let old = choice(LinkLayer::Ethernet, GidKind::IbOrRoceV1, "fe80::1");
        assert_ne!(protocol(&old), protocol(&roce));
        let reason = spoken(&roce, 4792).expect_err("another port");
        assert!(reason.contains("4792") && reason.contains("4791"), "{reason}");
    }

    #[test]
    fn infiniband_ports_are_understood_within_their_subnet() {
        let port = |raw| choice(LinkLayer::InfiniBand, GidKind::IbOrRoceV1, raw);
        let here = protocol(&port("fe80::2:c903:0:1"));
        assert_eq!(here, "infiniband:fe80000000000000");
        assert!(here.len() <= 32, "a protocol's name has 32 characters");
        assert_eq!(here, protocol(&port("fe80::2:c903:0:2")));
        assert_ne!(here, protocol(&port("fec0:0:0:2::1")));
        // RoCE's port is nothing to it.
        assert!(spoken(&port("fe80::1"), 4792).is_ok());
    }

    #[test]
    fn of_ports_that_nobody_asked_for_one_at_the_nodes_address_is_used() {
        let own = "10.0.0.1".parse().expect("an address");
        let roce = |raw| choice(LinkLayer::Ethernet, GidKind::RoceV2, raw);
        assert_eq!(is_reached(&roce("::ffff:10.0.0.1"), own), Ok(()));
        assert_eq!(is_reached(&choice(LinkLayer::InfiniBand, GidKind::IbOrRoceV1, "fe80::1"), own), Ok(()));
        let reason = is_reached(&roce("::ffff:192.168.0.1"), own).expect_err("elsewhere");
        for said in ["192.168.0.1", "10.0.0.1", "verbs:mlx5_0:1"] {
            assert!(reason.contains(said), "{reason}");
        }
    }
}
