//! From what the library said to what is known of the host's GPUs; nothing here calls it.

use std::collections::{BTreeMap, BTreeSet};

use super::note;
use crate::{IndexSet, NvLinkEnd, NvLinks, PciAddress, Topology, limits, read::named};

/// What the library said.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    /// Of the GPUs that it tells about. One that is there twice is the first of them.
    pub(super) gpus: Vec<SaidGpu>,
    /// Why it does not tell about others, if there are any.
    pub(super) failure: Option<String>,
}

/// What it said of one GPU.
#[derive(Debug, Clone)]
pub(super) struct SaidGpu {
    pub(super) address: PciAddress,
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) memory_bytes: Option<u64>,
    /// Of each NVLink in use the address of its other end; `None` of what is no address. Or why it does not say.
    pub(super) links: Result<Vec<Option<PciAddress>>, String>,
    /// `None` where it does not say of all.
    pub(super) peers: Option<Peers>,
}

/// Which other GPUs a GPU reaches.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    /// Those whose memory it can read and write.
    pub(super) memory: BTreeSet<PciAddress>,
    /// Those that it reaches over NVLink.
    pub(super) nvlink: BTreeSet<PciAddress>,
}

/// What devices are that are at the ends of NVLinks, by the kernel's classes (NCCL's `graph/topo.cc` knows the same two).
const CLASS_SWITCH: u32 = 0x06_80_00;
const CLASS_CPU: u32 = 0x06_80_01;

impl Said {
    /// Where links go.
    pub(super) fn ends(&self) -> BTreeSet<PciAddress> {
        self.gpus.iter().flat_map(|gpu| gpu.links.iter().flatten().flatten()).copied().collect()
    }

    /// Adds it to the GPUs that are NVIDIA's, which have these places among the host's; `classes` are those of the devices on
    /// PCI at the ends of links.
    ///
    /// Whatever was said, the host fits together as it did before.
    pub(super) fn add_to(
        &self,
        host: &mut Topology,
        nvidia: &BTreeMap<PciAddress, u32>,
        classes: &BTreeMap<PciAddress, u32>,
    ) {
        let mut missing = IndexSet::default();
        let mut unknown: BTreeMap<&str, IndexSet> = BTreeMap::new();
        for gpu in &mut host.gpus {
            let Some(number) = nvidia.get(&gpu.pci.address).map(|number| [*number].into_iter().collect())
            else {
                continue;
            };
            let Some(said) = self.gpus.iter().find(|said| said.address == gpu.pci.address) else {
                missing = missing.union(&number);
                continue;
            };
            gpu.name = said.name.clone().and_then(named).or(gpu.name.take());
            gpu.uuid = said.uuid.clone().and_then(named).or(gpu.uuid.take());
            gpu.memory_bytes = said.memory_bytes.filter(|bytes| *bytes > 0);
            let known = |peer: &&PciAddress| **peer != said.address && nvidia.contains_key(peer);
            gpu.peers = said.peers.as_ref().map(|peers| peers.memory.iter().filter(known).copied().collect());
            match &said.links {
                Ok(links) => gpu.nvlinks = Some(self.nvlinks(said, links, nvidia, classes)),
                Err(reason) => {
                    let gpus = unknown.entry(reason).or_default();
                    *gpus = gpus.union(&number);
                }
            }
        }
        if !missing.is_empty() {
            let reason = self.failure.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
            note(host, &missing, &format!("not shown by NVIDIA's management library{reason}"));
        }
        for (reason, gpus) in unknown {
            note(host, &gpus, &format!("NVLinks are not known: {reason}"));
        }
    }

    /// Links together that go to the same place.
    fn nvlinks(
        &self,
        own: &SaidGpu,
        links: &[Option<PciAddress>],
        nvidia: &BTreeMap<PciAddress, u32>,
        classes: &BTreeMap<PciAddress, u32>,
    ) -> Vec<NvLinks> {
        let hidden = if self.reaches_all(own) { NvLinkEnd::Switch } else { NvLinkEnd::Unknown };
        let end = |link: &Option<PciAddress>| match link {
            Some(address) if *address == own.address => NvLinkEnd::Unknown,
            Some(address) if nvidia.contains_key(address) => NvLinkEnd::Gpu(*address),
            Some(address) => match classes.get(address) {
                Some(&CLASS_SWITCH) => NvLinkEnd::Switch,
                Some(&CLASS_CPU) => NvLinkEnd::Cpu,
                Some(_) => NvLinkEnd::Unknown,
                None => hidden,
            },
            None => hidden,
        };
        let mut counts: BTreeMap<NvLinkEnd, u8> = BTreeMap::new();
        for link in links {
            let count = counts.entry(end(link)).or_default();
            *count = count.saturating_add(1);
        }
        counts.into_iter().map(|(to, links)| NvLinks { to, links }).take(limits::GPUS).collect()
    }

    /// Whether a GPU reaches all others over NVLink, and there are others.
    ///
    /// Virtual machines are given GPUs without the switches between them. NCCL takes every end that is not shown for a switch,
    /// which may be wrong where a GPU's direct neighbour is another machine's; then not all are reached.
    fn reaches_all(&self, own: &SaidGpu) -> bool {
        let mut others = self.gpus.iter().filter(|gpu| gpu.address != own.address).peekable();
        let Some(peers) = &own.peers else { return false };
        others.peek().is_some() && others.all(|gpu| peers.nvlink.contains(&gpu.address))
    }
}
