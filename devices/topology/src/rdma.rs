//! What Linux says about the RDMA devices of this host, without any library: `/sys/class/infiniband`
//! (Documentation/ABI/stable/sysfs-class-infiniband).

use std::{
    fs, io,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Where the kernel lists RDMA devices.
const ROOT: &str = "/sys/class/infiniband";

/// What a port's packets travel over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// Addressed by LID.
    InfiniBand,
    /// Addressed by GID: RoCE, or iWARP.
    Ethernet,
}

/// What requests of a device look like on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand's, RoCE included.
    InfiniBand,
    /// iWARP's (RFC 5040).
    Iwarp,
    /// One that has no reliable connections: usNIC and others.
    Other,
}

/// How a GID is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// On InfiniBand, and by RoCE directly over Ethernet.
    IbOrRoceV1,
    /// RoCE over UDP.
    RoceV2,
}

/// One entry of a port's table of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u8,
    /// How it is used.
    pub kind: GidKind,
    /// The address; an IPv4 one is mapped (`::ffff:a.b.c.d`).
    pub raw: Ipv6Addr,
    /// The network interface that has it, on Ethernet.
    pub interface: Option<String>,
}

impl Gid {
    /// The IP address, of RoCE v2.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.raw.to_ipv4_mapped().map_or(IpAddr::V6(self.raw), IpAddr::V4)
    }
}

/// One port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// What the device speaks.
    pub transport: Transport,
    /// From 1.
    pub number: u8,
    /// `ACTIVE`, `DOWN`, `INIT`, `ARMED`, ...
    pub state: String,
    /// `LinkUp`, `Disabled`, `Polling`, ...
    pub physical_state: String,
    /// As the kernel words it: `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// What its packets travel over.
    pub link_layer: LinkLayer,
    /// InfiniBand's local address; zero while no subnet manager has given one, and on Ethernet.
    pub lid: u16,
    /// The addresses in use.
    pub gids: Vec<Gid>,
    /// The NUMA node that the device is attached to, if the system says.
    pub numa_node: Option<u32>,
    /// The network interfaces of the port: of its hardware (on InfiniBand, those of IP over it), or that it is made of.
    pub interfaces: Vec<String>,
    /// The kernel is the device, behind an ordinary network interface (`rdma_rxe`): it copies what is sent and received.
    pub is_software: bool,
}

impl Port {
    /// Whether packets can go through it.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// All ports of all RDMA devices of this host, by name and number. None where the kernel has no RDMA.
///
/// # Errors
/// When the kernel's list is there and cannot be read.
pub fn ports() -> io::Result<Vec<Port>> {
    ports_in(Path::new(ROOT))
}

/// The same, from a folder like `/sys/class/infiniband`.
///
/// # Errors
/// As [`ports`].
pub fn ports_in(root: &Path) -> io::Result<Vec<Port>> {
    let mut all = Vec::new();
    for device in entries(root)? {
        for folder in entries(&device.join("ports"))? {
            all.extend(port(&device, &folder));
        }
    }
    Ok(all)
}

/// What is in a folder, sorted; nothing when there is no such folder.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let list = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list?,
    };
    let mut paths = list.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

fn text(path: PathBuf) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// States read `4: ACTIVE`.
fn state(path: PathBuf) -> Option<String> {
    let text = text(path)?;
    Some(text.split_once(": ").map_or(text.as_str(), |(_, word)| word).to_owned())
}

/// `None` for a port that is gone meanwhile.
fn port(device: &Path, folder: &Path) -> Option<Port> {
    let link_layer = match text(folder.join("link_layer"))?.as_str() {
        "InfiniBand" => LinkLayer::InfiniBand,
        _ => LinkLayer::Ethernet,
    };
    let transport = match text(device.join("node_type")).unwrap_or_default().split(':').next() {
        Some("1") => Transport::InfiniBand,
        Some("4") => Transport::Iwarp,
        _ => Transport::Other,
    };
    let lid =
        text(folder.join("lid")).and_then(|lid| u16::from_str_radix(lid.trim_start_matches("0x"), 16).ok());
    let number = name(folder)?.parse().ok()?;
    Some(Port {
        device: name(device)?,
        transport,
        number,
        state: state(folder.join("state"))?,
        physical_state: state(folder.join("phys_state")).unwrap_or_default(),
        rate: text(folder.join("rate")).unwrap_or_default(),
        link_layer,
        lid: lid.unwrap_or(0),
        gids: gids(folder),
        numa_node: text(device.join("device/numa_node")).and_then(|node| node.parse().ok()),
        interfaces: interfaces(device, number),
        // Only such devices have one: the interface's name.
        is_software: device.join("parent").exists(),
    })
}

/// The interfaces of the same hardware, which count its ports from 0; of a device in software, the one that it is made of.
fn interfaces(device: &Path, number: u8) -> Vec<String> {
    let is_of_port = |interface: &PathBuf| {
        let port = text(interface.join("dev_port")).and_then(|port| port.parse::<u32>().ok());
        port.unwrap_or(0).saturating_add(1) == u32::from(number)
    };
    let all = entries(&device.join("device/net")).unwrap_or_default();
    let of_port =
        all.iter().filter(|interface| is_of_port(interface)).filter_map(|interface| name(interface));
    of_port.chain(text(device.join("parent"))).collect()
}

/// The entries that are in use; reading others' types fails, or they are all zeros.
fn gids(port: &Path) -> Vec<Gid> {
    let indices = entries(&port.join("gids")).unwrap_or_default();
    let mut gids: Vec<Gid> = indices.iter().filter_map(|path| gid(port, path)).collect();
    gids.sort_by_key(|gid| gid.index);
    gids
}

fn gid(port: &Path, path: &Path) -> Option<Gid> {
    let (index, raw) = (name(path)?, text(path.to_owned())?.parse().ok()?);
    let attribute = |kind: &str| text(port.join("gid_attrs").join(kind).join(&index));
    let kind = match attribute("types")?.as_str() {
        "RoCE v2" => GidKind::RoceV2,
        _ => GidKind::IbOrRoceV1,
    };
    if raw == Ipv6Addr::UNSPECIFIED {
        return None;
    }
    Some(Gid { index: index.parse().ok()?, kind, raw, interface: attribute("ndevs") })
}

#[cfg(test)]
#[path = "rdma_tests.rs"]
mod tests;
