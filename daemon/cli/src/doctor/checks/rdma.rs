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

/// Bytes that drivers take off an interface's MTU for headers that our packets do not have (`iboe_get_mtu` of the kernel).
const HEADERS_SPARE: usize = 64;

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

/// What a port speaks.
const fn spoken(port: &Port) -> &'static str {
    match (port.link_layer, port.transport) {
        (_, Transport::Iwarp) => "iWARP",
        (_, Transport::Other) => "no reliable connections",
        (LinkLayer::InfiniBand, _) => "InfiniBand",
        (LinkLayer::Ethernet, _) => "RoCE",
    }
}

/// Whether Ringway can use what ports speak: queue pairs that it connects itself.
pub(super) fn transport(facts: &Facts) -> Finding {
    let check = "rdma_transport";
    let ports = facts.ports();
    if ports.is_empty() {
        return Finding::absent(check, "no RDMA device");
    }
    let all: Vec<String> =
        ports.iter().map(|port| format!("{} speaks {}", name(port), spoken(port))).collect();
    let finding = Finding::ok(check, all.join("; "));
    let of = |transport| ports.iter().filter(move |port| port.transport == transport);
    let (iwarp, other) = (of(Transport::Iwarp).count(), of(Transport::Other).count());
    let supported = "InfiniBand and RoCE v2 are supported";
    let why = match (iwarp, other) {
        (0, 0) => return finding,
        (0, _) => format!("{supported}; devices without reliable connections are passed over"),
        _ => format!(
            "{supported}; iWARP is not: its connections are the kernel's (rdma_cm) to make, so such ports are passed over and their \
             interfaces used by tcp"
        ),
    };
    let status = if iwarp + other == ports.len() { Status::Warn } else { Status::Note };
    let choosers =
        of(Transport::Iwarp).filter_map(|port| facts.interface_of(port)).filter(|one| chooses(one));
    let to_roce = choosers.flat_map(|interface| to_roce(facts, interface));
    to_roce.fold(Finding { status, ..finding }.why(why), Finding::mend)
}

/// Whether cards with this driver speak either iWARP or RoCE, as they are told.
fn chooses(interface: &Interface) -> bool {
    interface.driver.as_deref() == Some("ice")
}

/// The commands that have such a card speak RoCE: it refuses the second while the first has not been done.
fn to_roce(facts: &Facts, interface: &Interface) -> [String; 2] {
    let card = format!("pci/$(basename $(readlink /sys/class/net/{}/device))", interface.name);
    [("enable_iwarp", false), ("enable_roce", true)].map(|(name, value)| {
        facts.as_root(&format!("devlink dev param set {card} name {name} value {value} cmode runtime"))
    })
}

fn described(facts: &Facts, port: &Port) -> String {
    let layer = spoken(port);
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

/// A port of RoCE, its interface, and how much packets carry.
struct Carrier<'a> {
    port: &'a Port,
    interface: &'a Interface,
    /// By the interface's MTU.
    possible: usize,
    /// By the port's own word, if it could be asked, else the same.
    active: usize,
}

impl<'a> Carrier<'a> {
    fn of(facts: &'a Facts, port: &'a Port) -> Option<Self> {
        let interface = facts.interface_of(port)?;
        let possible = packet_bytes(interface.mtu_bytes);
        let mut asked = facts.tried.rdma_packets.iter();
        let active = asked.find(|(device, number, _)| *device == port.device && *number == port.number);
        Some(Self { port, interface, possible, active: active.map_or(possible, |(_, _, bytes)| *bytes) })
    }

    fn described(&self) -> String {
        let Self { port, interface, active, .. } = self;
        format!(
            "{} on {}: MTU {}, packets carry {active} bytes",
            name(port),
            interface.name,
            interface.mtu_bytes
        )
    }

    /// The port has not followed its interface's MTU: packets are smaller than need be, or too large to pass.
    fn is_behind(&self) -> bool {
        let least = packet_bytes(self.interface.mtu_bytes.saturating_sub(HEADERS_SPARE));
        self.active < least || self.active > self.possible
    }
}

pub(super) fn mtu(facts: &Facts) -> Finding {
    let check = "rdma_mtu";
    let all: Vec<Carrier<'_>> = roce(facts).filter_map(|port| Carrier::of(facts, port)).collect();
    if all.is_empty() {
        return without_interfaces(facts);
    }
    let described: Vec<String> = all.iter().map(Carrier::described).collect();
    let finding = Finding::ok(check, described.join("; "));
    let ip = |one: &Carrier<'_>, what: &str| {
        facts.as_root(&format!("ip link set dev {} {what}", one.interface.name))
    };
    if let Some(behind) = all.iter().find(|one| one.is_behind()) {
        let (port, wide) = (name(behind.port), behind.possible);
        let why = match behind.active > wide {
            true => format!(
                "the packets of {port} do not pass its interface, which carries {wide} bytes: they are lost"
            ),
            false => format!(
                "{port} has not followed its interface, which carries {wide} bytes: it must be set up anew"
            ),
        };
        let again = ["down", "up"].map(|what| ip(behind, what));
        return again.into_iter().fold(Finding { status: Status::Warn, ..finding }.why(why), Finding::mend);
    }
    let carried = || all.iter().map(|one| one.active);
    if carried().all(|bytes| bytes >= 4096) {
        return finding;
    }
    let why = match carried().min() == carried().max() {
        true => {
            "RDMA packets could carry 4096 bytes, which takes fewer of them; every node and switch must have the larger MTU"
        }
        false => {
            "these ports do not fit each other: connections use the smaller packets, or lose the larger; give all one MTU"
        }
    };
    let small = all.iter().filter(|one| one.active < 4096).map(|one| ip(one, "mtu 9000"));
    small.fold(Finding { status: Status::Warn, ..finding }.why(why), Finding::mend)
}

/// No port of RoCE has its interface here.
fn without_interfaces(facts: &Facts) -> Finding {
    let check = "rdma_mtu";
    let elsewhere: Vec<String> = roce(facts).map(name).collect();
    match elsewhere.is_empty() {
        true if facts.ports().is_empty() => Finding::absent(check, "no RDMA device"),
        true => Finding::absent(check, "no port of RoCE"),
        false => Finding::new(
            check,
            Status::Note,
            format!("the interface of {} is not here", elsewhere.join(", ")),
        )
        .why("it is in another network namespace, from which alone connections can be made"),
    }
}
