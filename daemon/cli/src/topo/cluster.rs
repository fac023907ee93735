//! A cluster: its network as a tree of groups, then each sort of host.

use ringway_topology::{Cluster, Group};

use super::{
    shown_host,
    text::{Branch, Kind, Paint, bits, counted, tree},
    tree::summary,
};

/// The most of groups and of sorts of hosts that are shown.
const SHOWN_MAX: usize = 256;
/// The most sorts of hosts of which everything is shown.
const WHOLE_MAX: usize = 4;

pub(super) fn shown(cluster: &Cluster, paint: Paint) -> String {
    let head = format!("{}  {}", paint.text(Kind::Strong, &cluster.name), counted(cluster.nodes(), "node"));
    let mut branches = hosts(cluster);
    branches.extend(groups(cluster));
    let mut lines = vec![head];
    lines.extend(tree(&branches, paint));
    for host in cluster.hosts.iter().filter_map(|hosts| hosts.topology.as_ref()).take(WHOLE_MAX) {
        lines.push(String::new());
        lines.push(shown_host(host, paint));
    }
    lines.join("\n")
}

fn hosts(cluster: &Cluster) -> Vec<Branch> {
    let mut first = 0_u64;
    let mut branches = Vec::new();
    for hosts in &cluster.hosts {
        let last = first + u64::from(hosts.count) - 1;
        let numbers = if first == last { format!("node {first}") } else { format!("nodes {first}-{last}") };
        let has = hosts.topology.as_ref().map_or_else(String::new, |host| format!(": {}", summary(host)));
        if branches.len() == SHOWN_MAX {
            branches.push(Branch::new(
                Kind::Faint,
                format!("and {} more", cluster.hosts.len() - SHOWN_MAX),
                "",
            ));
            break;
        }
        branches.push(Branch::new(Kind::Nic, numbers, format!("{}{has}", hosts.name)));
        first = last + 1;
    }
    branches
}

/// Groups within groups, the widest outside.
fn groups(cluster: &Cluster) -> Vec<Branch> {
    let mut order: Vec<&Group> = cluster.groups.iter().take(SHOWN_MAX).collect();
    order.sort_by_key(|group| (std::cmp::Reverse(group.nodes.len()), group.nodes.first()));
    let mut branches = nested(&order);
    let more = cluster.groups.len().saturating_sub(SHOWN_MAX);
    branches.extend((more > 0).then(|| Branch::new(Kind::Faint, format!("and {more} more groups"), "")));
    branches
}

fn nested(order: &[&Group]) -> Vec<Branch> {
    let mut branches = Vec::new();
    let mut left = order.to_vec();
    while let Some((group, rest)) = left.split_first() {
        let (inside, outside): (Vec<&Group>, Vec<&Group>) =
            rest.iter().partition(|inner| inner.nodes.is_within(&group.nodes));
        let up = group.uplink_mbps.map_or_else(String::new, |mbps| format!(", {} to the rest", bits(mbps)));
        let about = format!("nodes {}{up}", group.nodes);
        branches.push(Branch::new(Kind::Memory, group.name.clone(), about).with(nested(&inside)));
        left = outside;
    }
    branches
}
