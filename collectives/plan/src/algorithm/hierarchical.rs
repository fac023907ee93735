//! An allreduce in two levels, of any two algorithms that have a reduce-scatter and an all-gather: a reduce-scatter among
//! the nodes of each group, an allreduce of what is left of a node among those with the same place in their groups, which is
//! what rails connect, and an all-gather within the groups. Chunks behind one another overlap the stages.

use super::rounds::stage_rule;
use crate::{Cost, Pair, Terms};

/// Nodes of each group where `wanted` is asked for, 0 for the largest number up to the square root, which is the divisor
/// nearest to it. `None` where there cannot be two groups of two nodes or more, all equal.
pub(crate) fn group(nodes: u32, wanted: u32) -> Option<u32> {
    let divides = |group: &u32| *group >= 2 && nodes.is_multiple_of(*group) && nodes / *group >= 2;
    if wanted == 0 { (2..=nodes.isqrt()).rev().find(divides) } else { Some(wanted).filter(divides) }
}

/// What a chunk costs: all of it within the groups, and a node's part of it among them.
pub(super) fn cost(pair: Pair, terms: &Terms) -> Option<Cost> {
    let group = group(terms.nodes, terms.group)?;
    let (inside, outside) = (stage_rule(pair.inner), stage_rule(pair.outer));
    let inner = inside.cost(&Terms { nodes: group, ..*terms });
    let bytes = terms.bytes / f64::from(inside.blocks(group));
    let outer = outside.cost(&Terms { nodes: terms.nodes / group, bytes, ..*terms });
    Some(Cost {
        rounds: inner.rounds + outer.rounds,
        link_bytes: inner.link_bytes + outer.link_bytes,
        port_bytes: inner.port_bytes + outer.port_bytes,
        path_reduced: inner.path_reduced + outer.path_reduced,
        messages: inner.messages + outer.messages,
        sent: inner.sent + outer.sent,
        reduced: inner.reduced + outer.reduced,
    })
}
