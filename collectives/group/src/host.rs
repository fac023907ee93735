//! What a node says of where it runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most bytes of a host's name.
pub const HOST_BYTES_MAX: usize = 64;

/// Where a node runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Host {
    /// What it is known by, as long as it is the same one, so that what is learnt of its links is found again: its address.
    /// At most [`HOST_BYTES_MAX`] printable characters.
    pub name: String,
    /// Tells the set of processors that it may use from others. Nodes with the same set share it.
    pub processors: u64,
    /// How many these are; 0 where that is not known.
    pub processor_count: u32,
}

impl Host {
    /// Whether a node may say this.
    pub(crate) fn is_sound(&self) -> bool {
        self.name.len() <= HOST_BYTES_MAX && self.name.bytes().all(|b| b.is_ascii_graphic())
    }
}

/// How many nodes there are for each processor where there are most of them; 1 where each has one of its own.
pub(crate) fn sharing<'a>(hosts: impl Iterator<Item = &'a Host>) -> f64 {
    let mut sets: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    for host in hosts.filter(|host| host.processor_count > 0) {
        *sets.entry((host.processors, host.processor_count)).or_default() += 1;
    }
    sets.into_iter().map(|((_, count), nodes)| f64::from(nodes) / f64::from(count)).fold(1.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(processors: u64, processor_count: u32) -> Host {
        Host { name: String::new(), processors, processor_count }
    }

    #[test]
    fn what_is_shared_most_counts() {
        let of = |hosts: &[Host]| sharing(hosts.iter());
        assert_eq!(of(&[]), 1.0);
        assert_eq!(of(&[host(1, 2), host(2, 2)]), 1.0);
        assert_eq!(of(&[host(1, 2), host(1, 2), host(1, 2), host(2, 1)]), 1.5);
        assert_eq!(of(&[host(1, 0), host(1, 0), host(1, 0)]), 1.0, "nothing is known");
    }
}
