//! Two levels, of any two algorithms that have a reduce-scatter and an all-gather. An allreduce is a reduce-scatter among the
//! nodes of each group, an allreduce of what is left of a node among those with the same place in their groups, which is
//! what rails connect, and an all-gather within the groups. A reduce_scatter is the first half of that, an all_gather the
//! second one: what goes between groups goes there once for each of their nodes. Chunks behind one another overlap the stages.

use ringway_types::Operation;

use super::rounds::{part, stage_rule};
use crate::{Cost, Pair, Terms};

/// What a chunk costs: all of it within the groups, and a node's part of it among them.
pub(super) fn cost(pair: Pair, operation: Operation, terms: &Terms) -> Option<Cost> {
    let group = super::group(terms.nodes, terms.group_nodes)?;
    let (inside, outside) = (stage_rule(pair.inner), stage_rule(pair.outer));
    let inner = inside.cost(&Terms { nodes: group, ..*terms });
    let bytes = terms.bytes / f64::from(inside.blocks(group));
    let outer = outside.cost(&Terms { nodes: terms.nodes / group, bytes, ..*terms });
    let whole = Cost {
        rounds: inner.rounds + outer.rounds,
        link_bytes: inner.link_bytes + outer.link_bytes,
        port_bytes: inner.port_bytes + outer.port_bytes,
        path_reduced: inner.path_reduced + outer.path_reduced,
        messages: inner.messages + outer.messages,
        sent: inner.sent + outer.sent,
        reduced: inner.reduced + outer.reduced,
    };
    Some(part(operation, whole))
}
