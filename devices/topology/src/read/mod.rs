//! A host from the files in which Linux shows it.

pub(crate) mod gpus;
mod memory;
mod nics;
mod pci;
mod processors;

use std::{cmp::Reverse, path::Path};

use self::pci::Bus;
use crate::{Nvml, Topology, Tree, limits};

impl Topology {
    /// What this host has, as far as this process may see it: a container has its own network interfaces only. Where there
    /// are GPUs of NVIDIA's, their management library is asked as well.
    #[must_use]
    pub fn of_this_host() -> Self {
        Self::read_and_ask(Path::new("/"), &Nvml::default())
    }

    /// What the files below a folder show ([`Self::read`]), with what this management library says of NVIDIA's GPUs among it.
    /// Where there are none it is not loaded.
    #[must_use]
    pub fn read_and_ask(root: &Path, nvml: &Nvml) -> Self {
        let mut host = Self::read(root);
        nvml.add_to(&mut host, &Tree::new(root));
        host
    }

    /// What the files show alone, below this folder: `sys/devices/system`, `sys/bus/pci`, `sys/class/net`,
    /// `sys/class/infiniband`, `proc/cpuinfo`, `proc/meminfo`, `proc/driver/nvidia` and `proc/sys/kernel/hostname`. Any of them may
    /// be missing, or say what makes no sense, and is then left out.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let tree = Tree::new(root);
        let online = processors::online(&tree);
        let numa = memory::nodes(&tree, &online);
        let mut bus = Bus::new(&tree, &numa);
        let gpus = gpus::gpus(&tree, &mut bus);
        let nics = nics::nics(&tree, &mut bus);
        Self {
            name: tree
                .text("proc/sys/kernel/hostname")
                .and_then(named)
                .unwrap_or_else(|| "localhost".to_owned()),
            packages: processors::packages(&tree, &online),
            caches: processors::caches(&tree, &online),
            bridges: bus.into_bridges(),
            numa,
            nics,
            gpus,
            notes: Vec::new(),
        }
    }
}

/// A name as [`Topology::check`] wants it; `None` if nothing is left.
pub(crate) fn named(text: String) -> Option<String> {
    let mut name: String = text.chars().filter(|c| !c.is_control()).collect();
    while name.len() > limits::NAME_BYTES {
        name.pop();
    }
    let name = name.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// Sorted so that what has no key comes last.
fn last_if_none<T: Ord>(key: Option<T>) -> (Reverse<bool>, Option<T>) {
    (Reverse(key.is_some()), key)
}
