//! NUMA nodes (Documentation/ABI/stable/sysfs-devices-node).

use crate::{IndexSet, NumaNode, Tree, limits};

const NODES: &str = "sys/devices/system/node";
/// To oneself, and to others of whom nothing is said, as ACPI has them.
const DISTANCES: [u8; 2] = [10, 20];

/// At least one.
pub(super) fn nodes(tree: &Tree, online: &IndexSet) -> Vec<NumaNode> {
    let ids = ids(tree);
    if ids.is_empty() {
        // A kernel without NUMA has one memory.
        let memory_bytes = tree.text("proc/meminfo").and_then(|text| total(&text));
        return vec![NumaNode { id: 0, memory_bytes, cpus: online.clone(), distances: vec![DISTANCES[0]] }];
    }
    let mut left = online.clone();
    let node = |(index, id): (usize, &u32)| {
        let folder = format!("{NODES}/node{id}");
        let listed = tree.text(&format!("{folder}/cpulist")).and_then(|list| list.parse::<IndexSet>().ok());
        let cpus = listed.unwrap_or_default().intersection(&left);
        left = left.without(&cpus);
        let distances: Vec<u8> = tree
            .words(&format!("{folder}/distance"))
            .iter()
            .filter_map(|word| word.parse::<u32>().ok())
            .map(|distance| u8::try_from(distance).unwrap_or(u8::MAX))
            .collect();
        let is_complete = distances.len() == ids.len();
        let unknown = (0..ids.len()).map(|other| DISTANCES[usize::from(other != index)]);
        NumaNode {
            id: *id,
            memory_bytes: tree.text(&format!("{folder}/meminfo")).and_then(|text| total(&text)),
            cpus,
            distances: if is_complete { distances } else { unknown.collect() },
        }
    };
    ids.iter().enumerate().map(node).collect()
}

fn ids(tree: &Tree) -> Vec<u32> {
    let number = |name: String| name.strip_prefix("node")?.parse::<u32>().ok();
    let mut ids: Vec<u32> = tree.names(NODES).into_iter().filter_map(number).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(limits::NUMA_NODES);
    ids
}

/// Lines read `Node 0 MemTotal:       24684092 kB`, or the same without the node.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_once("MemTotal:")?.1.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}
