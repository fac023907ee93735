use super::*;

fn gid(index: u8, kind: GidKind, raw: &str) -> Gid {
    Gid { index, kind, raw: raw.parse().expect("an address"), interface: None }
}

/// As rxe has it: a link-local address and one of IPv4, both of RoCE v2.
fn ethernet(device: &str, address: &str) -> Port {
    Port {
        device: device.to_owned(),
        transport: Transport::InfiniBand,
        number: 1,
        state: "ACTIVE".to_owned(),
        physical_state: "LinkUp".to_owned(),
        rate: "2.5 Gb/sec (1X SDR)".to_owned(),
        link_layer: LinkLayer::Ethernet,
        lid: 0,
        gids: vec![
            gid(0, GidKind::IbOrRoceV1, "fe80::1"),
            gid(1, GidKind::RoceV2, "fe80::1"),
            gid(2, GidKind::RoceV2, "2001:db8::1"),
            gid(3, GidKind::RoceV2, &format!("::ffff:{address}")),
        ],
        numa_node: None,
        in_software: false,
    }
}

fn best(ports: &[Port], selector: &str, own: Option<&str>) -> Result<(String, u8, u8), String> {
    let selector =
        if selector.is_empty() { Selector::default() } else { selector.parse().expect("a selector") };
    let own = own.map(|own| own.parse().expect("an address"));
    let choice = Choice::best(ports, &selector, own).map_err(|error| error.to_string())?;
    Ok((choice.port.device, choice.port.number, choice.gid.index))
}

#[test]
fn an_address_of_ipv4_and_before_it_the_nodes_own_are_preferred() {
    let ports = [ethernet("a", "10.0.0.1"), ethernet("b", "10.0.0.2")];
    assert_eq!(best(&ports, "", None), Ok(("a".to_owned(), 1, 3)));
    assert_eq!(best(&ports, "", Some("10.0.0.2")), Ok(("b".to_owned(), 1, 3)));
    assert_eq!(best(&ports, "", Some("2001:db8::1")), Ok(("a".to_owned(), 1, 2)));
    assert_eq!(best(&ports, "", Some("10.0.0.3")), Ok(("a".to_owned(), 1, 3)));
    assert_eq!(best(&ports, "b", Some("10.0.0.1")), Ok(("b".to_owned(), 1, 3)));
    assert_eq!(best(&ports, "b:1:1", None), Ok(("b".to_owned(), 1, 1)));
    let mut without = ethernet("c", "10.0.0.3");
    without.gids.truncate(3);
    assert_eq!(best(&[without.clone()], "", None), Ok(("c".to_owned(), 1, 2)));
    without.gids.truncate(2);
    assert_eq!(best(&[without], "", None), Ok(("c".to_owned(), 1, 1)));
}

#[test]
fn infiniband_is_addressed_by_lid() {
    let mut port = ethernet("mlx5_0", "10.0.0.1");
    (port.link_layer, port.lid) = (LinkLayer::InfiniBand, 7);
    port.gids = vec![gid(0, GidKind::IbOrRoceV1, "fe80::2:c903:0:1")];
    assert_eq!(best(&[port.clone()], "", None), Ok(("mlx5_0".to_owned(), 1, 0)));
    port.lid = 0;
    assert!(best(&[port], "", None).expect_err("no LID").contains("subnet manager"));
}

#[test]
fn each_port_that_cannot_be_used_is_named_with_its_reason() {
    let mut down = ethernet("down0", "10.0.0.1");
    down.state = "DOWN".to_owned();
    let mut old = ethernet("old0", "10.0.0.2");
    old.gids.truncate(1);
    let mut iwarp = ethernet("iw0", "10.0.0.3");
    iwarp.transport = Transport::Iwarp;
    let reason = best(&[down.clone(), old, iwarp], "", None).expect_err("none can be used");
    for said in ["`down0` is down", "`old0` has no address of RoCE v2", "`iw0` speaks iWARP"] {
        assert!(reason.contains(said), "{said}: {reason}");
    }
    // One that can be used is enough.
    assert_eq!(best(&[down, ethernet("up0", "10.0.0.4")], "", None), Ok(("up0".to_owned(), 1, 3)));
}

#[test]
fn names_that_nothing_has_are_said_with_those_that_there_are() {
    let ports = [ethernet("a", "10.0.0.1")];
    assert!(best(&[], "", None).expect_err("none").contains("no RDMA device"));
    assert!(best(&ports, "b", None).expect_err("no b").contains("there are: a"));
    assert!(best(&ports, "a:2", None).expect_err("no port").contains("no port 2"));
    assert!(best(&ports, "a:1:9", None).expect_err("no gid").contains("3 (10.0.0.1)"));
}
