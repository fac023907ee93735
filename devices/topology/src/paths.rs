//! What lies between two things of a host, and which NIC is nearest.

use std::{
    cmp::{Ordering, Reverse},
    fmt,
};

use crate::{LinkState, NvLinkEnd, PciAddress, PciDevice, PciParent, Topology};

/// What is between two things of a host, in the words of `nvidia-smi topo -m`. What is nearer is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathClass {
    /// `X`: they are the same.
    Same,
    /// `NV#`: so many NVLinks, directly or through their switches.
    NvLink(u8),
    /// `PIX`: at most one PCIe switch.
    Switch,
    /// `PXB`: several PCIe switches.
    Switches,
    /// `PHB`: one host bridge, which is the processor; so also memory and what is attached to its node.
    HostBridge,
    /// `NODE`: the host bridges of one NUMA node.
    NumaNode,
    /// `SYS`: what connects NUMA nodes, or nobody knows.
    System,
}

impl PathClass {
    /// Less is nearer; of NVLinks more are.
    fn rank(self) -> (u8, Reverse<u8>) {
        match self {
            Self::Same => (0, Reverse(0)),
            Self::NvLink(links) => (1, Reverse(links)),
            Self::Switch => (2, Reverse(0)),
            Self::Switches => (3, Reverse(0)),
            Self::HostBridge => (4, Reverse(0)),
            Self::NumaNode => (5, Reverse(0)),
            Self::System => (6, Reverse(0)),
        }
    }
}

impl Ord for PathClass {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for PathClass {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.pad("X"),
            Self::NvLink(links) => f.pad(&format!("NV{links}")),
            Self::Switch => f.pad("PIX"),
            Self::Switches => f.pad("PXB"),
            Self::HostBridge => f.pad("PHB"),
            Self::NumaNode => f.pad("NODE"),
            Self::System => f.pad("SYS"),
        }
    }
}

/// A thing of a host, by its place in the list of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In [`Topology::gpus`].
    Gpu(usize),
    /// In [`Topology::nics`].
    Nic(usize),
    /// In [`Topology::numa`]; not the kernel's number.
    Numa(usize),
}

impl Topology {
    /// What is between two things; `None` if the host has not both.
    ///
    /// Where the system does not say to which NUMA node a device is attached, it counts as far from all of them.
    #[must_use]
    pub fn path(&self, from: Place, to: Place) -> Option<PathClass> {
        let (a, b) = (self.seat(from)?, self.seat(to)?);
        if from == to {
            return Some(PathClass::Same);
        }
        if let (Place::Gpu(a), Place::Gpu(b)) = (from, to)
            && let Some(links) = self.nvlinks(a, b)
        {
            return Some(PathClass::NvLink(links));
        }
        if let (Some(a), Some(b)) = (a.pci, b.pci)
            && let Some(class) = self.pci_path(a, b)
        {
            return Some(class);
        }
        let is_memory = matches!(from, Place::Numa(_)) || matches!(to, Place::Numa(_));
        Some(match a.numa.is_some() && a.numa == b.numa {
            true if is_memory => PathClass::HostBridge,
            true => PathClass::NumaNode,
            false => PathClass::System,
        })
    }

    /// The NICs that have hardware, the nearest first: those that are down last, then by what is between, by the distance of
    /// NUMA nodes, by speed, and as they are listed.
    ///
    /// It is nearness that counts: a card at one's own switch comes before a faster one elsewhere.
    #[must_use]
    pub fn nearest_nics(&self, to: Place) -> Vec<usize> {
        let mut all: Vec<_> = self.ranked_nics(to);
        all.sort_unstable();
        all.into_iter().map(|(_, nic)| nic).collect()
    }

    /// The NIC to use for what is there; `None` if there is no hardware.
    ///
    /// Of NICs that are equally near each GPU, of those to which they are, gets another: with two of each at a switch, the second
    /// GPU has the second NIC. NUMA nodes all get the first.
    #[must_use]
    pub fn nearest_nic(&self, to: Place) -> Option<usize> {
        let equal = self.equally_near(to);
        let before = match to {
            Place::Gpu(gpu) => {
                (0..gpu).filter(|other| self.equally_near(Place::Gpu(*other)) == equal).count()
            }
            _ => 0,
        };
        equal.get(before.checked_rem(equal.len())?).copied()
    }

    /// Of all NICs the nearest ones, among which there is nothing to choose.
    fn equally_near(&self, to: Place) -> Vec<usize> {
        let all = self.ranked_nics(to);
        let least = all.iter().map(|(rank, _)| *rank).min();
        all.into_iter().filter(|(rank, _)| Some(*rank) == least).map(|(_, nic)| nic).collect()
    }

    fn ranked_nics(&self, to: Place) -> Vec<(impl Ord + Copy + use<>, usize)> {
        let rank = |(index, nic): (usize, &crate::Nic)| {
            let class = self.path(to, Place::Nic(index))?;
            let distance = self.distance(to, Place::Nic(index));
            let speed = Reverse(nic.speed_mbps.unwrap_or(0));
            (!nic.is_software).then_some(((nic.state == LinkState::Down, class, distance, speed), index))
        };
        self.nics.iter().enumerate().filter_map(rank).collect()
    }

    /// Of the NUMA nodes of two things; the greatest if somebody does not know.
    fn distance(&self, from: Place, to: Place) -> u8 {
        let index = |place| {
            let id = self.seat(place)?.numa?;
            self.numa.iter().position(|node| node.id == id)
        };
        let between = || self.numa.get(index(from)?)?.distances.get(index(to)?).copied();
        between().unwrap_or(u8::MAX)
    }

    fn seat(&self, place: Place) -> Option<Seat<'_>> {
        Some(match place {
            Place::Gpu(gpu) => {
                self.gpus.get(gpu).map(|gpu| Seat { pci: Some(&gpu.pci), numa: gpu.numa_node })?
            }
            Place::Nic(nic) => {
                self.nics.get(nic).map(|nic| Seat { pci: nic.pci.as_ref(), numa: nic.numa_node })?
            }
            Place::Numa(node) => self.numa.get(node).map(|node| Seat { pci: None, numa: Some(node.id) })?,
        })
    }

    /// What is between two devices, if it is PCI alone.
    fn pci_path(&self, a: &PciDevice, b: &PciDevice) -> Option<PathClass> {
        let (left, right) = (self.above(a), self.above(b));
        let (up, over) = left
            .iter()
            .enumerate()
            .find_map(|(up, parent)| Some((up, right.iter().position(|other| other == parent)?)))?;
        Some(match left.get(up)? {
            PciParent::Root(..) => PathClass::HostBridge,
            // Where they meet is a switch's upstream port, and below it each passes that switch's downstream port.
            PciParent::Bridge(_) if up <= 1 && over <= 1 => PathClass::Switch,
            PciParent::Bridge(_) => PathClass::Switches,
        })
    }

    /// What a device hangs on, what that hangs on, and so on.
    pub fn above(&self, device: &PciDevice) -> Vec<PciParent> {
        let mut parents = vec![device.parent];
        // As long as the list is, as others might have made a circle.
        for _ in &self.bridges {
            let Some(PciParent::Bridge(address)) = parents.last() else { break };
            let Some(bridge) = self.bridge(*address) else { break };
            parents.push(bridge.parent);
        }
        parents
    }

    fn bridge(&self, address: PciAddress) -> Option<&PciDevice> {
        self.bridges.iter().find(|bridge| bridge.address == address)
    }

    /// The NVLinks between two GPUs; through switches as many as both have.
    fn nvlinks(&self, a: usize, b: usize) -> Option<u8> {
        let (a, b) = (self.gpus.get(a)?, self.gpus.get(b)?);
        let links = |gpu: &crate::Gpu, to| {
            let ends = gpu.nvlinks.iter().flatten().filter(|end| end.to == to);
            ends.fold(0_u8, |sum, end| sum.saturating_add(end.links))
        };
        let direct = links(a, NvLinkEnd::Gpu(b.pci.address));
        let switched = links(a, NvLinkEnd::Switch).min(links(b, NvLinkEnd::Switch));
        Some(direct.saturating_add(switched)).filter(|links| *links > 0)
    }
}

/// Where something is attached.
struct Seat<'a> {
    pci: Option<&'a PciDevice>,
    numa: Option<u32>,
}
