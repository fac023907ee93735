//! A cluster: many hosts, and which of them are near each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    IndexSet, Topology,
    check::{Invalid, bounded, name},
};

/// The most nodes that a cluster may have.
pub const NODES_MAX: u32 = 1 << 20;
/// The most entries of either list.
const ENTRIES_MAX: usize = 1 << 16;
/// How deep groups may lie in each other: host, rack, row, pod, hall and some more.
const LEVELS_MAX: u8 = 16;

/// Hosts and what connects them. Nodes are numbered from 0 in the order in which hosts are listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What it is called.
    pub name: String,
    /// The hosts, alike ones together.
    pub hosts: Vec<Hosts>,
    /// Nodes that are near each other, as those at one leaf switch are. A group may have others within; two groups that share
    /// nodes without that cannot be. What is in no common group meets at the top of the network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
}

/// Hosts that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// What they are called, or what sort they are.
    pub name: String,
    /// How many there are.
    #[serde(default = "one")]
    pub count: u32,
    /// What each of them has, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
}

const fn one() -> u32 {
    1
}

/// Nodes that are near each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What it is called: `leaf 3`, `pod A`.
    pub name: String,
    /// Its nodes, by their numbers.
    pub nodes: IndexSet,
    /// Bits per second, in millions, that all links from here to the rest of the network carry together, each way; where it is
    /// not given, the network above is as fast as all nodes are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_mbps: Option<u64>,
}

impl Cluster {
    /// So many hosts, all alike, in groups of so many, the last of which may be smaller. One group that has all is none.
    #[must_use]
    pub fn uniform(host: Topology, count: u32, group: u32) -> Self {
        let firsts = (0..count).step_by(usize::try_from(group.max(1)).unwrap_or(usize::MAX));
        let leaf = |(index, first): (usize, u32)| Group {
            name: format!("leaf {index}"),
            nodes: (first..first.saturating_add(group.max(1)).min(count)).collect(),
            uplink_mbps: None,
        };
        let groups: Vec<Group> =
            if group < count { firsts.enumerate().map(leaf).collect() } else { Vec::new() };
        let hosts = Hosts { name: host.name.clone(), count, topology: Some(host) };
        Self { name: format!("{count} x {}", hosts.name), hosts: vec![hosts], groups }
    }

    /// How many nodes there are.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        self.hosts.iter().map(|hosts| u64::from(hosts.count)).sum()
    }

    /// The sort of host that a node is; `None` if there is no such node.
    #[must_use]
    pub fn host(&self, node: u32) -> Option<&Hosts> {
        let mut first = 0_u64;
        self.hosts.iter().find(|hosts| {
            first += u64::from(hosts.count);
            u64::from(node) < first
        })
    }

    /// The smallest group that has both nodes, by its index; `None` if they meet at the top of the network.
    #[must_use]
    pub fn nearest_group(&self, a: u32, b: u32) -> Option<usize> {
        let both = |(_, group): &(usize, &Group)| group.nodes.contains(a) && group.nodes.contains(b);
        let groups = self.groups.iter().enumerate().filter(both);
        groups.min_by_key(|(_, group)| group.nodes.len()).map(|(index, _)| index)
    }

    /// How many consecutive nodes the smallest groups have, as those at one leaf switch, where all nodes are in one and each has
    /// as many; `None` where not.
    #[must_use]
    pub fn group_nodes(&self) -> Option<u32> {
        let size = self.groups.iter().map(|group| group.nodes.len()).min().filter(|size| *size > 0)?;
        let mut smallest: Vec<&Group> = self.groups.iter().filter(|it| it.nodes.len() == size).collect();
        smallest.sort_by_key(|group| group.nodes.first());
        let has_its_nodes = |(place, group): (u64, &&Group)| {
            let ends = group.nodes.first().zip(group.nodes.last());
            ends.is_some_and(|(first, last)| {
                (u64::from(first), u64::from(last)) == (place * size, place * size + size - 1)
            })
        };
        let all = smallest.len() as u64 * size == self.nodes();
        (all && (0..).zip(&smallest).all(has_its_nodes)).then(|| u32::try_from(size).ok())?
    }

    /// Whether what it says fits together.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), Invalid> {
        name("name", &self.name)?;
        bounded("hosts", self.hosts.len(), ENTRIES_MAX)?;
        bounded("groups", self.groups.len(), ENTRIES_MAX)?;
        for (h, hosts) in self.hosts.iter().enumerate() {
            let place = format!("hosts[{h}]");
            name(&format!("{place}.name"), &hosts.name)?;
            if hosts.count == 0 {
                return Err(Invalid::new(format!("{place}.count"), "0 hosts, but there is at least one"));
            }
            if let Some(topology) = &hosts.topology {
                topology.check().map_err(|error| error.within(&format!("{place}.topology")))?;
            }
        }
        match u32::try_from(self.nodes()) {
            Ok(0) => Err(Invalid::new("hosts", "it is empty, but a cluster has at least one")),
            Ok(nodes) if nodes <= NODES_MAX => self.check_groups(nodes),
            _ => Err(Invalid::new(
                "hosts",
                format!("{} nodes, but there can be {NODES_MAX} at most", self.nodes()),
            )),
        }
    }

    fn check_groups(&self, nodes: u32) -> Result<(), Invalid> {
        for (g, group) in self.groups.iter().enumerate() {
            let place = format!("groups[{g}]");
            name(&format!("{place}.name"), &group.name)?;
            let place = format!("{place}.nodes");
            match group.nodes.last() {
                None => return Err(Invalid::new(place, "it is empty, but a group has at least one node")),
                Some(last) if last >= nodes => {
                    let reason = format!("there is no node {last}, only 0-{}", nodes - 1);
                    return Err(Invalid::new(place, reason));
                }
                Some(_) => {}
            }
        }
        self.check_nesting(nodes)
    }

    /// Small groups first, so that each finds those within it whole.
    fn check_nesting(&self, nodes: u32) -> Result<(), Invalid> {
        let mut order: Vec<(usize, &Group)> = self.groups.iter().enumerate().collect();
        order.sort_by_key(|(_, group)| group.nodes.len());
        // Of each node the largest group so far that has it, and that group's depth.
        let mut outer: Vec<Option<(usize, u8)>> = vec![None; nodes as usize];
        for (g, group) in order {
            let place = || format!("groups[{g}].nodes");
            let mut within: BTreeMap<usize, u64> = BTreeMap::new();
            let mut level = 0;
            for node in group.nodes.iter() {
                if let Some((inner, depth)) = outer.get(node as usize).copied().flatten() {
                    *within.entry(inner).or_default() += 1;
                    level = level.max(depth + 1);
                }
            }
            for (inner, shared) in within {
                let size = self.groups.get(inner).map_or(0, |inner| inner.nodes.len());
                if shared != size {
                    let reason =
                        format!("it shares nodes with groups[{inner}], but neither is within the other");
                    return Err(Invalid::new(place(), reason));
                }
                if size == group.nodes.len() {
                    return Err(Invalid::new(place(), format!("groups[{inner}] has the same nodes")));
                }
            }
            if level >= LEVELS_MAX {
                let reason =
                    format!("it is level {} of groups in each other, of {LEVELS_MAX} at most", level + 1);
                return Err(Invalid::new(place(), reason));
            }
            for node in group.nodes.iter() {
                if let Some(slot) = outer.get_mut(node as usize) {
                    *slot = Some((g, level));
                }
            }
        }
        Ok(())
    }
}
