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
        interfaces: Vec::new(),
        is_software: false,
    }
}

/// `10.0.0.1`, or `10.0.0.1@ib0` where the interface is known.
fn own_of(text: &str) -> Own {
    let (address, interface) =
        text.split_once('@').map_or((text, None), |(address, name)| (address, Some(name)));
    Own { address: address.parse().expect("an address"), interface: interface.map(str::to_owned) }
}

fn infiniband(device: &str, number: u8, interface: &str) -> Port {
    let mut port = ethernet(device, "10.0.0.1");
    (port.link_layer, port.lid, port.number) = (LinkLayer::InfiniBand, 7, number);
    port.gids = vec![gid(0, GidKind::IbOrRoceV1, "fe80::2:c903:0:1")];
    port.interfaces = vec![interface.to_owned()];
    port
}

fn of_rails(ports: &[Port], selectors: &[&str], rails: &[&str]) -> Result<Vec<String>, String> {
    let selectors: Vec<Selector> =
        selectors.iter().map(|selector| selector.parse().expect("a selector")).collect();
    let rails: Vec<Own> = rails.iter().map(|own| own_of(own)).collect();
    let choices = Choice::of_rails(ports, &selectors, &rails).map_err(|error| error.to_string())?;
    let short =
        |choice: &Choice| format!("{}:{}:{}", choice.port.device, choice.port.number, choice.gid.index);
    Ok(choices.iter().map(short).collect())
}

fn best(ports: &[Port], selector: &str, own: Option<&str>) -> Result<(String, u8, u8), String> {
    let selector =
        if selector.is_empty() { Selector::default() } else { selector.parse().expect("a selector") };
    let own = own.map(own_of);
    let choice = Choice::best(ports, &selector, own.as_ref()).map_err(|error| error.to_string())?;
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
    let mut port = infiniband("mlx5_0", 1, "ib0");
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

/// On InfiniBand no GID is the node's address: the interface that has it tells the port.
#[test]
fn infiniband_is_found_by_the_interface_of_the_address() {
    let ports = [infiniband("mlx5_0", 1, "ib0"), infiniband("mlx5_0", 2, "ib1")];
    assert_eq!(best(&ports, "", Some("10.1.0.1@ib1")), Ok(("mlx5_0".to_owned(), 2, 0)));
    assert_eq!(best(&ports, "", Some("10.1.0.1@eth0")), Ok(("mlx5_0".to_owned(), 1, 0)));
}

#[test]
fn each_rail_has_the_port_at_its_address() {
    let ports = [
        ethernet("a", "10.0.0.1"),
        ethernet("b", "10.1.0.1"),
        infiniband("c", 1, "ib0"),
        infiniband("c", 2, "ib1"),
    ];
    assert_eq!(
        of_rails(&ports, &[], &["10.1.0.1", "10.0.0.1"]),
        Ok(vec!["b:1:3".to_owned(), "a:1:3".to_owned()])
    );
    let both = ["10.2.0.1@ib1", "10.3.0.1@ib0"];
    assert_eq!(of_rails(&ports, &[], &both), Ok(vec!["c:2:0".to_owned(), "c:1:0".to_owned()]));
    assert_eq!(of_rails(&ports, &["c"], &both), Ok(vec!["c:2:0".to_owned(), "c:1:0".to_owned()]));

    // Nothing takes the place of a port that is not there: neither another address of IPv4 nor the first HCA.
    for (rails, missing) in
        [(["10.0.0.1", "10.9.0.1"], "10.9.0.1"), (["10.2.0.1@ib0", "10.3.0.1@eth0"], "10.3.0.1")]
    {
        let reason = of_rails(&ports, &[], &rails).expect_err("a rail without a port");
        for said in [missing, "b:1 (fe80::1 2001:db8::1 10.1.0.1)", "c:2 (ib1)"] {
            assert!(reason.contains(said), "{said}: {reason}");
        }
    }
    // The port is there, but not on the device that was named, or down.
    let reason = of_rails(&ports, &["a"], &["10.0.0.1", "10.1.0.1"]).expect_err("b is not a");
    assert!(reason.contains("10.1.0.1"), "{reason}");
    let mut down = ports.clone();
    down[1].state = "DOWN".to_owned();
    let reason = of_rails(&down, &[], &["10.0.0.1", "10.1.0.1"]).expect_err("b is down");
    assert!(reason.contains("`b` is down"), "{reason}");
    assert!(of_rails(&[], &[], &["10.0.0.1", "10.1.0.1"]).expect_err("none").contains("no RDMA device"));
}

#[test]
fn no_port_is_two_rails() {
    let mut twice = ethernet("a", "10.0.0.1");
    twice.gids.push(gid(4, GidKind::RoceV2, "::ffff:10.1.0.1"));
    let ports = [twice, ethernet("b", "10.2.0.1")];
    let rails = ["10.2.0.1", "10.0.0.1", "10.1.0.1"];
    let reason = of_rails(&ports, &[], &rails).expect_err("both on a");
    assert!(reason.contains("port 1 of RDMA device `a` would be rail 1 and rail 2"), "{reason}");
    let reason = of_rails(&ports, &["b:1", "a", "b"], &rails).expect_err("b twice");
    assert!(reason.contains("`b` would be rail 0 and rail 2"), "{reason}");
}

/// Whoever names a port for each rail knows that it reaches those of others, whatever its address is.
#[test]
fn a_port_is_named_for_each_rail_or_for_none() {
    let ports = [ethernet("a", "10.0.0.1"), infiniband("c", 1, "ib0")];
    let rails = ["192.168.0.1", "192.168.1.1"];
    assert_eq!(of_rails(&ports, &["c:1", "a:1:2"], &rails), Ok(vec!["c:1:0".to_owned(), "a:1:2".to_owned()]));
    let reason = of_rails(&ports, &["c:1", "a", "a"], &rails).expect_err("one too many");
    assert!(reason.contains("3 RDMA ports are named for 2 rail(s)"), "{reason}");
}
