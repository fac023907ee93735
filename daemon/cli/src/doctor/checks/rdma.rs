//! RDMA devices: their ports, who may use them, their addresses, the size of their packets.

use std::net::IpAddr;

use ringway_ibverbs::{Gid, GidKind, LinkLayer, Port, Transport};

use super::network::packet_bytes;
use crate::doctor::{
    facts::{Access, Facts, Interface},
    finding::{Finding, Status},
};

/// Network drivers, and the module that makes RDMA devices of the same cards.
const MODULES: [(&str, &str); 7] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("qede", "qedr"),
    ("hns3", "hns_roce_hw_v2"),
];

/// A port by the name that `--device` and tools have for it.
fn name(port: &Port) -> String {
    format!("{}:{}", port.device, port.number)
}

pub(super) fn ports(facts: &Facts) -> Finding {
    let check = "rdma_ports";
    let ports = match &facts.ports {
        Err(error) => {
            return Finding::new(
                check,
                Status::Warn,
                format!("/sys/class/infiniband cannot be read: {error}"),
            );
        }
        Ok(ports) if ports.is_empty() => return none(facts),
        Ok(ports) => ports,
    };
    let all: Vec<String> = ports.iter().map(|port| described(facts, port)).collect();
    let down: Vec<&Port> = ports.iter().filter(|port| !port.is_active()).collect();
    let finding = Finding::ok(check, all.join("; "));
    if down.is_empty() {
        return finding;
    }
    let status = if down.len() == ports.len() { Status::Warn } else { Status::Note };
    let names: Vec<String> = down.iter().map(|port| name(port)).collect();
    let is_up = |port: &&&Port| facts.interface_of(port).is_some_and(|interface| interface.is_up);
    let reason =
        match (down.iter().find(|port| port.link_layer == LinkLayer::InfiniBand), down.iter().find(is_up)) {
            (Some(_), _) => ": look at the cable, and whether the subnet has a manager",
            (None, Some(_)) => ": the interface is up, so look at the cable and the switch",
            (None, None) => "",
        };
    let why = format!("nothing goes through {}{reason}", names.join(", "));
    down.iter()
        .filter_map(|port| wake(facts, port))
        .fold(Finding { status, ..finding }.why(why), Finding::mend)
}

fn none(facts: &Facts) -> Finding {
    let check = "rdma_ports";
    let of = |interface: &Interface| {
        let driver = interface.driver.as_deref()?;
        let (_, module) = MODULES.iter().find(|(network, _)| *network == driver)?;
        (!facts.has_module(module)).then(|| (interface.name.clone(), *module))
    };
    match facts.interfaces.iter().find_map(of) {
        None => Finding::absent(check, "no RDMA device"),
        Some((interface, module)) => Finding::new(
            check,
            Status::Warn,
            format!("no RDMA device, but {interface} may be one: {module} is not loaded"),
        )
        .why("its packets go through the kernel")
        .mend(facts.as_root(&format!("modprobe {module}"))),
    }
}

fn described(facts: &Facts, port: &Port) -> String {
    let layer = match (port.link_layer, port.transport) {
        (LinkLayer::InfiniBand, _) => "InfiniBand",
        (_, Transport::InfiniBand) => "RoCE",
        (_, Transport::Iwarp) => "iWARP",
        (_, Transport::Other) => "no reliable connections",
    };
    let place =
        facts.interface_of(port).map_or_else(String::new, |interface| format!(" on {}", interface.name));
    // What software says of its rate means nothing.
    let rate = if port.is_software { "in software (rdma_rxe)" } else { rate(port) };
    format!("{} {}, {layer}{place}, {rate}", name(port), port.state)
}

/// Without the lanes: `400 Gb/sec (4X NDR)`.
fn rate(port: &Port) -> &str {
    port.rate.split(" (").next().filter(|rate| !rate.is_empty()).unwrap_or("rate unknown")
}

/// The command that may make a port active.
fn wake(facts: &Facts, port: &Port) -> Option<String> {
    if port.link_layer == LinkLayer::InfiniBand {
        let command = || facts.as_root("systemctl start opensm   # on one node of the subnet");
        return (port.physical_state == "LinkUp").then(command);
    }
    let interface = facts.interface_of(port)?;
    (!interface.is_up).then(|| facts.as_root(&format!("ip link set dev {} up", interface.name)))
}

pub(super) fn access(facts: &Facts) -> Finding {
    let check = "rdma_access";
    let mut devices: Vec<&str> = facts.ports().iter().map(|port| port.device.as_str()).collect();
    devices.dedup();
    if devices.is_empty() {
        return Finding::absent(check, "no RDMA device");
    }
    let of = |device: &str| facts.nodes.iter().find(|node| node.device == device);
    let why = "a process reaches RDMA devices through these files alone";
    if let Some(device) = devices.iter().find(|device| of(device).is_none()) {
        return Finding::new(
            check,
            Status::Warn,
            format!("{device} has no uverbs device: ib_uverbs is not loaded"),
        )
        .why(why)
        .mend(facts.as_root("modprobe ib_uverbs"));
    }
    let nodes = || devices.iter().filter_map(|device| of(device));
    if let Some(node) = nodes().find(|node| node.access == Access::Missing) {
        return Finding::new(
            check,
            Status::Warn,
            format!("{} is not there, though {} is", node.file, node.device),
        )
        .why(format!("{why}; a container must be given them"))
        .mend("docker run --device /dev/infiniband --ulimit memlock=-1 ...");
    }
    let refused: Vec<&str> =
        nodes().filter(|node| node.access == Access::Refused).map(|node| node.file.as_str()).collect();
    if !refused.is_empty() {
        return Finding::new(check, Status::Warn, format!("this user may not use {}", refused.join(", ")))
            .why(why)
            .mend(facts.as_root(&format!("chmod a+rw {}", refused.join(" "))));
    }
    let files: Vec<&str> = nodes().map(|node| node.file.as_str()).collect();
    Finding::ok(check, format!("{} may be used", files.join(", ")))
}

/// Ports that speak RoCE.
fn roce(facts: &Facts) -> impl Iterator<Item = &Port> {
    let is_roce =
        |port: &&Port| port.link_layer == LinkLayer::Ethernet && port.transport == Transport::InfiniBand;
    facts.ports().iter().filter(is_roce)
}

pub(super) fn gids(facts: &Facts) -> Finding {
    let check = "rdma_gids";
    let mut good = Vec::new();
    let mut poor: Vec<(&Port, &str)> = Vec::new();
    for port in roce(facts) {
        match routable(port) {
            Some(gid) => good.push(format!("{} has {} at index {}", name(port), gid.address(), gid.index)),
            None if port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2) => {
                poor.push((port, "link-local addresses of RoCE v2 only"));
            }
            None if port.gids.is_empty() => poor.push((port, "no address")),
            None => poor.push((port, "no address of RoCE v2")),
        }
    }
    let lids = facts.ports().iter().filter(|port| port.link_layer == LinkLayer::InfiniBand);
    good.extend(lids.map(|port| format!("{} has LID {}", name(port), port.lid)));
    if poor.is_empty() {
        return match good.is_empty() {
            true if facts.ports().is_empty() => Finding::absent(check, "no RDMA device"),
            true => Finding::absent(check, "no port of RoCE or InfiniBand"),
            false => Finding::ok(check, good.join("; ")),
        };
    }
    let worse = poor.iter().map(|(port, what)| format!("{} has {what}", name(port)));
    let found: Vec<String> = worse.chain(good).collect();
    let finding = Finding::new(check, Status::Warn, found.join("; "))
        .why("packets of RoCE v2 travel between IP addresses: the interface needs one, of IPv4 best");
    let interfaces = poor.iter().filter_map(|(port, _)| facts.interface_of(port));
    let give =
        |interface: &Interface| facts.as_root(&format!("ip addr add ADDRESS/24 dev {}", interface.name));
    interfaces.map(give).fold(finding, Finding::mend)
}

/// An address that other networks can reach as well, of IPv4 best.
fn routable(port: &Port) -> Option<&Gid> {
    let of_v2 = || port.gids.iter().filter(|gid| gid.kind == GidKind::RoceV2);
    let is_global =
        |gid: &&Gid| matches!(gid.address(), IpAddr::V6(address) if !address.is_unicast_link_local());
    of_v2().find(|gid| gid.address().is_ipv4()).or_else(|| of_v2().find(is_global))
}

pub(super) fn mtu(facts: &Facts) -> Finding {
    let check = "rdma_mtu";
    let all: Vec<(&Port, &Interface)> =
        roce(facts).filter_map(|port| Some((port, facts.interface_of(port)?))).collect();
    if all.is_empty() {
        let elsewhere: Vec<String> = roce(facts).map(name).collect();
        return match elsewhere.is_empty() {
            true if facts.ports().is_empty() => Finding::absent(check, "no RDMA device"),
            true => Finding::absent(check, "no port of RoCE"),
            false => Finding::new(
                check,
                Status::Note,
                format!("the interface of {} is not here", elsewhere.join(", ")),
            )
            .why("it is in another network namespace, from which alone connections can be made"),
        };
    }
    let carried = |(_, interface): &(&Port, &Interface)| packet_bytes(interface.mtu_bytes);
    let most = all.iter().map(carried).max().unwrap_or(0);
    let least = all.iter().map(carried).min().unwrap_or(0);
    let described: Vec<String> = all
        .iter()
        .map(|one| {
            format!(
                "{} on {}: MTU {}, packets carry {} bytes",
                name(one.0),
                one.1.name,
                one.1.mtu_bytes,
                carried(one)
            )
        })
        .collect();
    let finding = Finding::ok(check, described.join("; "));
    if least >= 4096 {
        return finding;
    }
    let why = match least == most {
        true => {
            "RDMA packets could carry 4096 bytes, which takes fewer of them; every node and switch must have the larger MTU"
        }
        false => {
            "these ports do not fit each other: connections use the smaller packets, or lose the larger; give all one MTU"
        }
    };
    let small = all.iter().filter(|one| carried(one) < 4096);
    let widen =
        |one: &(&Port, &Interface)| facts.as_root(&format!("ip link set dev {} mtu 9000", one.1.name));
    small.map(widen).fold(Finding { status: Status::Warn, ..finding }.why(why), Finding::mend)
}
