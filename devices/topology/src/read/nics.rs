//! Network interfaces (Documentation/ABI/testing/sysfs-class-net) and RDMA ports.

use super::{last_if_none, named, pci::Bus};
use crate::{
    LinkState, Nic, RdmaPort, Tree, limits,
    rdma::{LinkLayer, Port, ports_in},
};

const INTERFACES: &str = "sys/class/net";
const RDMA: &str = "sys/class/infiniband";

pub(super) fn nics(tree: &Tree, bus: &mut Bus<'_>) -> Vec<Nic> {
    let mut ports = ports_in(&tree.path(RDMA)).unwrap_or_default();
    ports.retain(|port| named(port.device.clone()).as_ref() == Some(&port.device));
    // Not all that is there is an interface: `bonding_masters` is a file.
    let mut nics: Vec<Nic> = tree
        .names(INTERFACES)
        .into_iter()
        .filter(|name| tree.exists(&format!("{INTERFACES}/{name}/flags")))
        .filter_map(|name| interface(tree, bus, &ports, name))
        .collect();
    let is_known = |port: &&Port| nics.iter().any(|nic| nic.rdma.as_ref() == Some(&place(port)));
    let alone: Vec<Nic> =
        ports.iter().filter(|port| !is_known(port)).map(|port| without_interface(tree, bus, port)).collect();
    nics.extend(alone);
    nics.sort_by_cached_key(|nic| {
        let address = nic.pci.as_ref().map(|pci| pci.address);
        (nic.is_software, last_if_none(address), nic.rdma.clone(), nic.interface.clone())
    });
    nics.truncate(limits::NICS);
    nics
}

fn place(port: &Port) -> RdmaPort {
    RdmaPort { device: port.device.clone(), port: port.number }
}

fn interface(tree: &Tree, bus: &mut Bus<'_>, ports: &[Port], name: String) -> Option<Nic> {
    let folder = format!("{INTERFACES}/{name}");
    let number = |file: &str| tree.number(&format!("{folder}/{file}"));
    let port = port_of(tree, &folder, &name, ports);
    let is_software = !tree.exists(&format!("{folder}/device"));
    let seat = bus.seat(&format!("{folder}/device"));
    // Types of hardware as of ARP: 1 is Ethernet, 32 is InfiniBand.
    let by_type = match number("type") {
        Some(1) => Some(LinkLayer::Ethernet),
        Some(32) => Some(LinkLayer::InfiniBand),
        _ => None,
    };
    Some(Nic {
        rdma: port.map(place),
        driver: tree.link(&format!("{folder}/device/driver")).and_then(named),
        // Of what has none it is -1, or cannot be read.
        speed_mbps: number("speed").filter(|speed| *speed > 0).or_else(|| rate_mbps(&port?.rate)),
        state: state(tree, &folder),
        mtu_bytes: number("mtu").and_then(|mtu| u32::try_from(mtu).ok()),
        link_layer: port.filter(|_| !is_software).map(|port| port.link_layer).or(by_type),
        numa_node: seat.numa_node,
        pci: seat.pci,
        is_software,
        interface: Some(named(name)?),
    })
}

fn state(tree: &Tree, folder: &str) -> LinkState {
    match tree.text(&format!("{folder}/operstate")).as_deref() {
        Some("up") => LinkState::Up,
        Some("unknown") | None => LinkState::Unknown,
        Some(_) => LinkState::Down,
    }
}

/// The RDMA port of an interface: one of a device that is the same hardware, or one that is made of it.
fn port_of<'a>(tree: &Tree, folder: &str, name: &str, ports: &'a [Port]) -> Option<&'a Port> {
    let devices = tree.names(&format!("{folder}/device/infiniband"));
    let mut own = ports.iter().filter(|port| devices.contains(&port.device));
    // Interfaces count the ports of their hardware from 0, devices from 1.
    let number = tree.number(&format!("{folder}/dev_port")).unwrap_or(0) + 1;
    let by_number = own.clone().find(|port| u64::from(port.number) == number);
    let parent = |port: &&Port| tree.text(&format!("{RDMA}/{}/parent", port.device)).as_deref() == Some(name);
    let of_gid = |port: &&Port| port.gids.iter().any(|gid| gid.interface.as_deref() == Some(name));
    by_number
        .or_else(|| own.next())
        .or_else(|| ports.iter().filter(|port| port.is_software).find(|port| parent(port) || of_gid(port)))
}

/// InfiniBand's ports need no interface.
fn without_interface(tree: &Tree, bus: &mut Bus<'_>, port: &Port) -> Nic {
    let folder = format!("{RDMA}/{}/device", port.device);
    let seat = bus.seat(&folder);
    Nic {
        interface: None,
        rdma: Some(place(port)),
        driver: tree.link(&format!("{folder}/driver")).and_then(named),
        speed_mbps: rate_mbps(&port.rate),
        state: if port.is_active() { LinkState::Up } else { LinkState::Down },
        mtu_bytes: None,
        link_layer: Some(port.link_layer),
        numa_node: seat.numa_node,
        pci: seat.pci,
        is_software: port.is_software,
    }
}

/// Rates read `400 Gb/sec (4X NDR)`, or `2.5 Gb/sec (1X SDR)`.
fn rate_mbps(text: &str) -> Option<u64> {
    let (whole, tenths) = {
        let number = text.split_once(" Gb/sec")?.0;
        number.split_once('.').unwrap_or((number, "0"))
    };
    let tenths: u64 = tenths.parse().ok().filter(|tenths| *tenths < 10)?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(tenths * 100)
}
