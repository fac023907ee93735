//! The device over RDMA hardware, which only some binaries and some hosts have.

use std::net::IpAddr;

use ringway_ibverbs::{Choice, Own};

use super::{One, address};
use crate::{Config, DeviceChoice, NetworkConfig};

/// The ports of the rails, in their order: the best one where there is one rail only.
///
/// # Errors
/// Why there are none, as a sentence.
pub(super) fn choose(rails: &[NetworkConfig], config: &Config) -> Result<Vec<Choice>, String> {
    let ports = ringway_ibverbs::ports().map_err(|error| format!("RDMA ports cannot be listed: {error}"))?;
    // Most hosts have none, and nobody asked for it: that is not worth a long line in each log.
    if config.device == DeviceChoice::Auto && ports.is_empty() {
        return Err("this host has no RDMA device".to_owned());
    }
    if !cfg!(feature = "verbs") {
        return Err(ringway_ibverbs::NOT_BUILT_IN.to_owned());
    }
    let owns: Vec<Own> = rails.iter().map(own).collect();
    let choices = match (owns.as_slice(), config.verbs_ports.as_slice()) {
        ([own], [] | [_]) => Choice::best(&ports, &config.verbs.selector, Some(own)).map(|one| vec![one]),
        (owns, selectors) => Choice::of_rails(&ports, selectors, owns),
    };
    choices.map_err(|error| error.to_string())
}

/// Where a rail is to others.
fn own(network: &NetworkConfig) -> Own {
    let address = address(network);
    Own { address, interface: ringway_roce::interface_of(address).ok() }
}

/// The device at a port that was chosen.
///
/// # Errors
/// Why there is none, as a sentence.
#[cfg(feature = "verbs")]
pub(super) fn make(network: &NetworkConfig, choice: Choice, config: &Config) -> Result<One, String> {
    let own = address(network);
    let mut wanted = config.verbs.clone();
    wanted.max_regions = u32::from(u16::MAX);
    let (protocol, place) = spoken(&choice, own, network.roce_port)?;
    if config.device == DeviceChoice::Auto {
        verbs_is_worth_it(&choice, own)?;
    }
    let device =
        ringway_ibverbs::IbverbsDevice::open_at(wanted, choice).map_err(|error| error.to_string())?;
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
pub fn verbs_is_worth_it(choice: &Choice, own: IpAddr) -> Result<(), String> {
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
pub(super) fn make(_: &NetworkConfig, _: Choice, _: &Config) -> Result<One, String> {
    Err(ringway_ibverbs::NOT_BUILT_IN.to_owned())
}

/// What queue pairs at this port speak, and which of those that speak it they reach. On InfiniBand these are in the subnet, by the
/// prefix of its addresses. Nodes without RDMA hardware speak RoCE at the address that they have for others: with them they are
/// if their port is at this node's, and otherwise in the network of such hardware, which they share with their like only.
#[cfg(any(test, feature = "verbs"))]
fn spoken(choice: &Choice, own: IpAddr, roce_port: u16) -> Result<(&'static str, Option<String>), String> {
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
    use ringway_ibverbs::{Gid, GidKind, LinkLayer, Port, Transport};
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
            interfaces: Vec::new(),
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
