//! The path over RDMA hardware, which only some binaries and some machines have.

use std::net::IpAddr;

use ringway_ibverbs::{Choice, LinkLayer, NOT_BUILT_IN, Own, Port, Selector, ports};

use super::result::Path;

pub(super) const NAME: &str = "verbs";

/// The port that the end at this address is at, or why there is none.
pub(super) fn choice(own: Option<IpAddr>) -> Result<Choice, String> {
    if !cfg!(feature = "verbs") {
        return Err(NOT_BUILT_IN.to_owned());
    }
    let ports = ports().map_err(|error| format!("the list of RDMA ports cannot be read: {error}"))?;
    Choice::best(&ports, &Selector::default(), own.map(Own::from).as_ref()).map_err(|why| why.to_string())
}

/// Whether a server connects with an end at this port, whose client it has at `local`: RoCE's packets would go elsewhere. That
/// InfiniBand's do not cannot be told.
pub(super) fn reaches(choice: &Choice, local: IpAddr) -> Result<(), String> {
    let Choice { port, gid } = choice;
    if port.link_layer == LinkLayer::InfiniBand || gid.address() == local {
        return Ok(());
    }
    Err(format!(
        "port {} of `{}` has the address {}, and the server is reached from {local}: give --client the server's address in \
         the network of its RDMA port",
        port.number,
        port.device,
        gid.address()
    ))
}

/// Says of a path which port it is at, and what the kernel has to do with it. Of a server's port nothing is known.
pub(super) fn describe(path: &mut Path, port: &Port, is_far: bool) {
    if port.is_software {
        // The kernel makes packets of what is sent, and takes what is received from packets.
        (path.through_kernel, path.kernel_copies) = (true, 2.0);
        path.description = "an RDMA device that the kernel is in software, with the card's verbs".to_owned();
    }
    let ends = if is_far { "at this end" } else { "for both ends" };
    path.description += &format!(": port {} of {} {ends}", port.number, port.device);
}

#[cfg(test)]
mod tests {
    use ringway_ibverbs::{Gid, GidKind, Transport};

    use super::*;

    fn choice(link_layer: LinkLayer, is_software: bool) -> Choice {
        let raw = "::ffff:10.0.0.1".parse().expect("an address");
        let gid = Gid { index: 0, kind: GidKind::RoceV2, raw, interface: None };
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
            is_software,
        };
        Choice { port, gid }
    }

    #[test]
    fn a_roce_port_is_at_the_address_that_the_server_knows() {
        let (own, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 9]));
        let roce = choice(LinkLayer::Ethernet, false);
        assert_eq!(reaches(&roce, own), Ok(()));
        let why = reaches(&roce, other).expect_err("another address");
        assert!(why.contains("10.0.0.1") && why.contains("10.0.0.9") && why.contains("--client"), "{why}");
        assert_eq!(reaches(&choice(LinkLayer::InfiniBand, false), other), Ok(()));
    }

    #[test]
    fn software_copies_and_hardware_does_not() {
        let described = |is_software, is_far| {
            let mut path = Path { description: "a card".to_owned(), ..Path::default() };
            describe(&mut path, &choice(LinkLayer::Ethernet, is_software).port, is_far);
            (path.description, path.through_kernel, path.kernel_copies)
        };
        let (text, through_kernel, copies) = described(false, false);
        assert_eq!((text.as_str(), through_kernel), ("a card: port 1 of mlx5_0 for both ends", false));
        assert!(copies < 0.5);
        let (text, through_kernel, copies) = described(true, true);
        assert!(text.contains("software") && text.ends_with("port 1 of mlx5_0 at this end"), "{text}");
        assert!(through_kernel && copies > 1.5);
    }
}
