//! Whether what somebody else wrote can be a host.

use std::collections::{BTreeMap, BTreeSet};

use crate::{IndexSet, NvLinkEnd, PciAddress, PciDevice, PciParent, Topology};

/// The most of each that a host may have; Linux has at most 8192 CPUs and 1024 NUMA nodes.
pub mod limits {
    /// CPUs, and with them packages, cores and caches of one kind.
    pub const CPUS: usize = 8192;
    /// NUMA nodes.
    pub const NUMA_NODES: usize = 1024;
    /// Kinds of caches.
    pub const CACHE_KINDS: usize = 64;
    /// NICs.
    pub const NICS: usize = 4096;
    /// Bridges.
    pub const BRIDGES: usize = 2048;
    /// Bridges between a device and its host bridge.
    pub const BRIDGE_LEVELS: usize = 32;
    /// GPUs.
    pub const GPUS: usize = 1024;
    /// Bytes of a name.
    pub const NAME_BYTES: usize = 256;
    /// Notes.
    pub const NOTES: usize = 64;
}

/// What makes no sense in a file that could be read: the place in it, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct Invalid {
    /// Such as `gpus[3].numa_node`.
    pub place: String,
    /// What is there and what was expected.
    pub reason: String,
}

impl Invalid {
    pub(crate) fn new(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { place: place.into(), reason: reason.into() }
    }

    /// The same, of what is part of something.
    pub(crate) fn within(self, outer: &str) -> Self {
        Self { place: format!("{outer}.{}", self.place), ..self }
    }
}

type Checked = Result<(), Invalid>;

pub(crate) fn bounded(place: &str, count: usize, most: usize) -> Checked {
    match count <= most {
        true => Ok(()),
        false => Err(Invalid::new(place, format!("{count} of them, but there can be {most} at most"))),
    }
}

/// Names are shown on terminals, which control characters would steer.
pub(crate) fn name(place: &str, text: &str) -> Checked {
    let reason = if text.is_empty() {
        "it is empty, but must be a name".to_owned()
    } else if text.len() > limits::NAME_BYTES {
        format!("it has {} bytes, but a name has {} at most", text.len(), limits::NAME_BYTES)
    } else if text.chars().any(char::is_control) {
        "it has control characters, which no name may have".to_owned()
    } else {
        return Ok(());
    };
    Err(Invalid::new(place, reason))
}

fn names<'a>(names: impl IntoIterator<Item = (String, Option<&'a String>)>) -> Checked {
    names.into_iter().try_for_each(|(place, text)| text.map_or(Ok(()), |text| name(&place, text)))
}

impl Topology {
    /// Whether what it says fits together, so that everything here can be asked without surprises.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), Invalid> {
        name("name", &self.name)?;
        bounded("packages", self.packages.len(), limits::CPUS)?;
        bounded("numa", self.numa.len(), limits::NUMA_NODES)?;
        bounded("caches", self.caches.len(), limits::CACHE_KINDS)?;
        bounded("bridges", self.bridges.len(), limits::BRIDGES)?;
        bounded("nics", self.nics.len(), limits::NICS)?;
        bounded("gpus", self.gpus.len(), limits::GPUS)?;
        bounded("notes", self.notes.len(), limits::NOTES)?;
        names(self.notes.iter().enumerate().map(|(n, note)| (format!("notes[{n}]"), Some(note))))?;
        let cpus = self.check_packages()?;
        self.check_numa(&cpus)?;
        self.check_caches(&cpus)?;
        let bridges = self.check_bridges()?;
        self.check_nics(&bridges)?;
        self.check_gpus(&bridges)
    }

    /// All CPUs.
    fn check_packages(&self) -> Result<Cpus, Invalid> {
        let mut all = Cpus::new();
        let mut ids = BTreeSet::new();
        for (p, package) in self.packages.iter().enumerate() {
            let place = format!("packages[{p}]");
            names([(format!("{place}.model"), package.model.as_ref())])?;
            if !ids.insert(package.id) {
                return Err(Invalid::new(
                    format!("{place}.id"),
                    format!("package {} is there twice", package.id),
                ));
            }
            bounded(&format!("{place}.cores"), package.cores.len(), limits::CPUS)?;
            for (c, core) in package.cores.iter().enumerate() {
                all.take(&format!("{place}.cores[{c}]"), core)?;
            }
        }
        Ok(all)
    }

    fn check_numa(&self, cpus: &Cpus) -> Checked {
        if self.numa.is_empty() {
            return Err(Invalid::new("numa", "it is empty, but a host has at least one NUMA node"));
        }
        let (mut ids, mut taken) = (BTreeSet::new(), Cpus::new());
        for (n, node) in self.numa.iter().enumerate() {
            let place = format!("numa[{n}]");
            if !ids.insert(node.id) {
                return Err(Invalid::new(format!("{place}.id"), format!("node {} is there twice", node.id)));
            }
            if node.distances.len() != self.numa.len() {
                let (count, nodes) = (node.distances.len(), self.numa.len());
                let reason = format!("{count} distances, but there are {nodes} NUMA nodes, with one to each");
                return Err(Invalid::new(format!("{place}.distances"), reason));
            }
            cpus.have(&format!("{place}.cpus"), &node.cpus)?;
            if !node.cpus.is_empty() {
                taken.take(&format!("{place}.cpus"), &node.cpus)?;
            }
        }
        Ok(())
    }

    fn check_caches(&self, cpus: &Cpus) -> Checked {
        for (c, caches) in self.caches.iter().enumerate() {
            let place = format!("caches[{c}].each");
            bounded(&place, caches.each.len(), limits::CPUS)?;
            let mut taken = Cpus::new();
            for (e, one) in caches.each.iter().enumerate() {
                let place = format!("{place}[{e}]");
                cpus.have(&place, one)?;
                taken.take(&place, one)?;
            }
        }
        Ok(())
    }

    /// How deep each bridge lies.
    fn check_bridges(&self) -> Result<Bridges, Invalid> {
        let mut before = Bridges::new();
        for (b, bridge) in self.bridges.iter().enumerate() {
            let place = format!("bridges[{b}]");
            // That parents come first leaves no circles.
            let level = 1 + parent(&place, bridge, &before)?;
            if level > limits::BRIDGE_LEVELS {
                let reason = format!(
                    "it has {} bridges above it, of {} at most",
                    level - 1,
                    limits::BRIDGE_LEVELS - 1
                );
                return Err(Invalid::new(format!("{place}.parent"), reason));
            }
            if before.insert(bridge.address, level).is_some() {
                let reason = format!("{} is there twice", bridge.address);
                return Err(Invalid::new(format!("{place}.address"), reason));
            }
        }
        Ok(before)
    }

    fn check_nics(&self, bridges: &Bridges) -> Checked {
        for (n, nic) in self.nics.iter().enumerate() {
            let place = format!("nics[{n}]");
            names([
                (format!("{place}.interface"), nic.interface.as_ref()),
                (format!("{place}.rdma.device"), nic.rdma.as_ref().map(|rdma| &rdma.device)),
                (format!("{place}.driver"), nic.driver.as_ref()),
            ])?;
            if nic.interface.is_none() && nic.rdma.is_none() {
                let reason = "it has neither an interface nor an RDMA port, but must have one of them";
                return Err(Invalid::new(place, reason));
            }
            self.check_node(&place, nic.numa_node)?;
            if let Some(pci) = &nic.pci {
                parent(&format!("{place}.pci"), pci, bridges)?;
            }
        }
        Ok(())
    }

    fn check_gpus(&self, bridges: &Bridges) -> Checked {
        let mut all = BTreeSet::new();
        for (g, gpu) in self.gpus.iter().enumerate() {
            let place = format!("gpus[{g}]");
            names([
                (format!("{place}.name"), gpu.name.as_ref()),
                (format!("{place}.uuid"), gpu.uuid.as_ref()),
                (format!("{place}.driver"), gpu.driver.as_ref()),
            ])?;
            self.check_node(&place, gpu.numa_node)?;
            parent(&format!("{place}.pci"), &gpu.pci, bridges)?;
            if !all.insert(gpu.pci.address) {
                let reason = format!("{} is there twice", gpu.pci.address);
                return Err(Invalid::new(format!("{place}.pci.address"), reason));
            }
        }
        for (g, gpu) in self.gpus.iter().enumerate() {
            let other = |place: String, address: PciAddress| match address {
                own if own == gpu.pci.address => {
                    Err(Invalid::new(place, format!("{address} is the GPU itself")))
                }
                _ if !all.contains(&address) => {
                    Err(Invalid::new(place, format!("there is no GPU at {address}")))
                }
                _ => Ok(()),
            };
            let ends = gpu.nvlinks.as_deref().unwrap_or_default();
            bounded(&format!("gpus[{g}].nvlinks"), ends.len(), limits::GPUS)?;
            for (l, end) in ends.iter().enumerate() {
                if let NvLinkEnd::Gpu(address) = end.to {
                    other(format!("gpus[{g}].nvlinks[{l}].to"), address)?;
                }
            }
            let peers = gpu.peers.as_deref().unwrap_or_default();
            bounded(&format!("gpus[{g}].peers"), peers.len(), limits::GPUS)?;
            for (p, peer) in peers.iter().enumerate() {
                other(format!("gpus[{g}].peers[{p}]"), *peer)?;
            }
        }
        Ok(())
    }

    fn check_node(&self, place: &str, node: Option<u32>) -> Checked {
        match node {
            Some(node) if self.numa.iter().all(|other| other.id != node) => {
                let all: IndexSet = self.numa.iter().map(|node| node.id).collect();
                let reason = format!("there is no NUMA node {node}, only {all}");
                Err(Invalid::new(format!("{place}.numa_node"), reason))
            }
            _ => Ok(()),
        }
    }
}

/// CPUs, to be looked up quickly.
struct Cpus(Vec<bool>);

impl Cpus {
    fn new() -> Self {
        Self(vec![false; limits::CPUS])
    }

    /// Every CPU belongs to one only.
    fn take(&mut self, place: &str, cpus: &IndexSet) -> Checked {
        if cpus.is_empty() {
            return Err(Invalid::new(place, "it is empty, but has at least one CPU"));
        }
        if cpus.last().is_some_and(|last| last as usize >= limits::CPUS) {
            return Err(Invalid::new(place, format!("CPUs have numbers below {}", limits::CPUS)));
        }
        for cpu in cpus.iter() {
            match self.0.get_mut(cpu as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => return Err(Invalid::new(place, format!("CPU {cpu} belongs to one before"))),
            }
        }
        Ok(())
    }

    /// Every CPU is one of these.
    fn have(&self, place: &str, cpus: &IndexSet) -> Checked {
        match cpus.iter().find(|cpu| !self.0.get(*cpu as usize).is_some_and(|known| *known)) {
            None => Ok(()),
            Some(cpu) => Err(Invalid::new(place, format!("no core has CPU {cpu}"))),
        }
    }
}

/// The bridges so far, with how deep each lies, from 1.
type Bridges = BTreeMap<PciAddress, usize>;

/// How deep the parent lies.
fn parent(place: &str, device: &PciDevice, bridges: &Bridges) -> Result<usize, Invalid> {
    let PciParent::Bridge(address) = device.parent else { return Ok(0) };
    let missing =
        || Invalid::new(format!("{place}.parent"), format!("there is no bridge {address} before it"));
    bridges.get(&address).copied().ok_or_else(missing)
}
