//! What a host has, as data.

use serde::{Deserialize, Serialize};

use crate::{IndexSet, PciAddress, PciDevice, rdma::LinkLayer};

/// A host. Places of other things ([`crate::Place`]) are indices into these lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// What it is called.
    pub name: String,
    /// Processors as they are put into sockets.
    pub packages: Vec<Package>,
    /// At least one: where the kernel knows none, one that has everything.
    pub numa: Vec<NumaNode>,
    /// From the first level up.
    pub caches: Vec<Caches>,
    /// Root ports and switches between the processors and what is listed below; a parent comes before its children.
    pub bridges: Vec<PciDevice>,
    /// Hardware first, by PCI address; then what is only software.
    pub nics: Vec<Nic>,
    /// By PCI address, which is the order of NVIDIA's management library as well.
    pub gpus: Vec<Gpu>,
    /// What could not be found out when it was read, and why: a line each, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// The kernel's number of it.
    pub id: u32,
    /// Its name, where the kernel knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Of each core the CPUs that are its hardware threads.
    pub cores: Vec<IndexSet>,
}

/// Memory that is equally far from some CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// The kernel's number of it.
    pub id: u32,
    /// How much it is, where that is known; some nodes have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The CPUs that are near; none of memory that is a device's.
    pub cpus: IndexSet,
    /// To every node, in their order, in tenths of what the own memory takes (ACPI's SLIT): 10 is itself.
    pub distances: Vec<u8>,
}

/// All caches of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caches {
    /// 1 is nearest to a core.
    pub level: u8,
    /// What it keeps.
    pub kind: CacheKind,
    /// The size of one.
    pub bytes: u64,
    /// Of each one the CPUs that share it.
    pub each: Vec<IndexSet>,
}

/// What a cache keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// What programs read and write.
    Data,
    /// What they are.
    Instruction,
    /// Both.
    Unified,
}

/// A network interface, an RDMA port, or what is both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// The network interface; a port of InfiniBand may have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The RDMA port that is the same hardware, or is made of this interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaPort>,
    /// The kernel's driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Bits per second, in millions; virtual ones say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u64>,
    /// Whether packets can go.
    pub state: LinkState,
    /// The largest packet, without the header of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<u32>,
    /// What its packets travel over, where that is a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkLayer>,
    /// The node it is attached to, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Where it is on PCI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciDevice>,
    /// There is no device behind it, not even a virtual machine's: loopback, bridges, tunnels, bonds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_software: bool,
}

impl Nic {
    /// The interface's name, or else the RDMA device's.
    #[must_use]
    pub fn name(&self) -> &str {
        let rdma = || self.rdma.as_ref().map(|rdma| rdma.device.as_str());
        self.interface.as_deref().or_else(rdma).unwrap_or("?")
    }
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaPort {
    /// The device's name.
    pub device: String,
    /// From 1.
    pub port: u8,
}

/// Whether packets can go through a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// They can.
    Up,
    /// They cannot: it is switched off, or nothing is at the other end.
    Down,
    /// The driver does not say, as software's often do not.
    Unknown,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// What it is sold as, where its driver says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is called wherever it is, such as `GPU-0b1c...`, which `CUDA_VISIBLE_DEVICES` takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// How much memory it has in all, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The kernel's driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The node it is attached to, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Where it is on PCI.
    pub pci: PciDevice,
    /// Its links that are in use, by where they go; `None` where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlinks: Option<Vec<NvLinks>>,
    /// The GPUs of this host whose memory it can read and write itself, over whatever is between; `None` where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<PciAddress>>,
}

/// NVLinks that go to one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLinks {
    /// The other end.
    pub to: NvLinkEnd,
    /// How many there are.
    pub links: u8,
}

/// Where NVLinks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NvLinkEnd {
    /// A GPU of this host.
    Gpu(PciAddress),
    /// The switches, through which all GPUs reach each other that have links to them.
    Switch,
    /// A processor.
    Cpu,
    /// What this host does not show, such as a GPU of another virtual machine.
    Unknown,
}
