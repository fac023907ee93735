//! The device over RDMA hardware, which only some binaries and some hosts have.

use std::net::IpAddr;

use super::One;
#[cfg(feature = "verbs")]
use super::address;
use crate::{Config, DeviceChoice, NetworkConfig};

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
    let own = address(network);
    let mut wanted = config.verbs.clone();
    wanted.own_address = Some(own);
    wanted.max_regions = u32::from(u16::MAX);
    let device = ringway_ibverbs::IbverbsDevice::open(wanted).map_err(|error| error.to_string())?;
    let choice = device.choice();
    let (protocol, place) = spoken(choice, own, network.roce_port)?;
    if config.device == DeviceChoice::Auto {
        verbs_is_worth_it(choice, own)?;
    }
    // Without that the daemon could not begin: the memory that data passes through is every device's.
    let workspace_bytes = usize::try_from(config.workspace_bytes).unwrap_or(usize::MAX);
    device.try_memory(workspace_bytes).map_err(|error| error.to_string())?;
    tracing::info!("RDMA device {}", device.describe());
    Ok(One { protocol: Some(protocol), place, ..One::new(Box::new(device)) })
}

/// Whether a port that nobody asked for can be expected to reach the other nodes, and sooner than what comes after it.
///
/// # Errors
/// Why not, as a sentence.
pub fn verbs_is_worth_it(choice: &ringway_ibverbs::Choice, own: IpAddr) -> Result<(), String> {
    let (device, number) = (&choice.port.device, choice.port.number);
    if choice.port.is_software {
        return Err(format!(
            "`{device}` is RDMA in software, over which everything takes longer than over TCP; name `verbs` to use it"
        ));
    }
    let address = choice.gid.address();
    if choice.port.link_layer == ringway_ibverbs::LinkLayer::InfiniBand || address == own {
        return Ok(());
    }
    Err(format!(
        "port {number} of RDMA device `{device}` has the address {address}, and this node is {own} to others; if all nodes have \
         such a port in the same network, name `verbs:{device}:{number}`"
    ))
}

#[cfg(not(feature = "verbs"))]
fn open(_: &NetworkConfig, _: &Config) -> Result<One, String> {
    Err(ringway_ibverbs::NOT_BUILT_IN.to_owned())
}

/// What queue pairs at this port speak, and which of those that speak it they reach. On InfiniBand these are in the subnet, by the
/// prefix of its addresses. Nodes without RDMA hardware speak RoCE at the address that they have for others: with them they are
/// if their port is at this node's, and otherwise in the network of such hardware, which they share with their like only.
#[cfg(any(test, feature = "verbs"))]
fn spoken(
    choice: &ringway_ibverbs::Choice,
    own: IpAddr,
    roce_port: u16,
) -> Result<(&'static str, Option<String>), String> {
    use ringway_ibverbs::{GidKind, LinkLayer};
    use ringway_roce::ROCE_PORT;

    match (choice.port.link_layer, choice.gid.kind) {
        (LinkLayer::InfiniBand, _) => {
            let prefix = choice.gid.raw.to_bits() >> 64;
            Ok(("infiniband", Some(format!("{prefix:016x}"))))
        }
        // The same, but not over UDP, which others would not understand.
        (LinkLayer::Ethernet, GidKind::IbOrRoceV1) => Ok(("roce-v1", None)),
        (LinkLayer::Ethernet, GidKind::RoceV2) if choice.gid.address() != own => {
            Ok(("roce", Some("hardware".to_owned())))
        }
        (LinkLayer::Ethernet, GidKind::RoceV2) if roce_port != ROCE_PORT => Err(format!(
            "`roce_port` is {roce_port}, and RDMA hardware sends RoCE packets to UDP port {ROCE_PORT} alone"
        )),
        (LinkLayer::Ethernet, GidKind::RoceV2) => Ok(("roce", None)),
    }
}

#[cfg(test)]
mod tests {
    use ringway_ibverbs::{Choice, Gid, GidKind, LinkLayer, Port, Transport};
    use ringway_roce::ROCE_PORT;

    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

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
            is_software: false,
        };
        Choice { port, gid }
    }

    fn protocol(choice: &Choice) -> String {
        let (protocol, place) = spoken(choice, OWN, ROCE_PORT).expect("understood");
        place.map_or(protocol.to_owned(), |place| format!("{protocol}:{place}"))
    }

    #[test]
    fn roce_ports_speak_what_roce_devices_do() {
        let roce = choice(LinkLayer::Ethernet, GidKind::RoceV2, "::ffff:10.0.0.1");
        assert_eq!(Some(protocol(&roce).as_str()), crate::DeviceKind::RoceUdp.protocol());
        let old = choice(LinkLayer::Ethernet, GidKind::IbOrRoceV1, "fe80::1");
        assert_ne!(protocol(&old), protocol(&roce));
        let reason = spoken(&roce, OWN, 4792).expect_err("another port");
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
        assert!(spoken(&port("fe80::1"), OWN, 4792).is_ok());
    }

    /// Nodes that speak RoCE at their own addresses may not reach it there.
    #[test]
    fn ports_in_a_network_of_their_own_are_understood_by_their_like() {
        let port = |raw| choice(LinkLayer::Ethernet, GidKind::RoceV2, raw);
        let apart = spoken(&port("::ffff:192.168.0.1"), OWN, 4792);
        assert_eq!(apart, Ok(("roce", Some("hardware".to_owned()))));
        assert_eq!(spoken(&port("::ffff:192.168.0.2"), OWN, ROCE_PORT), apart);
    }

    #[test]
    fn of_ports_that_nobody_asked_for_hardware_at_the_nodes_address_is_used() {
        let roce = |raw| choice(LinkLayer::Ethernet, GidKind::RoceV2, raw);
        assert_eq!(verbs_is_worth_it(&roce("::ffff:10.0.0.1"), OWN), Ok(()));
        let infiniband = choice(LinkLayer::InfiniBand, GidKind::IbOrRoceV1, "fe80::1");
        assert_eq!(verbs_is_worth_it(&infiniband, OWN), Ok(()));
        let reason = verbs_is_worth_it(&roce("::ffff:192.168.0.1"), OWN).expect_err("elsewhere");
        for said in ["192.168.0.1", "10.0.0.1", "verbs:mlx5_0:1"] {
            assert!(reason.contains(said), "{reason}");
        }
        let mut software = roce("::ffff:10.0.0.1");
        software.port.is_software = true;
        let reason = verbs_is_worth_it(&software, OWN).expect_err("in software");
        assert!(reason.contains("software"), "{reason}");
    }
}
