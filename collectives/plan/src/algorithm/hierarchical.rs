//! Two levels, of any two algorithms that have a reduce-scatter and an all-gather. An allreduce is a reduce-scatter among the
//! nodes of each group, an allreduce of what is left of a node among those with the same place in their groups, which is
//! what rails connect, and an all-gather within the groups. A reduce_scatter is the first half of that, an all_gather the
//! second one: what goes between groups goes there once for each of their nodes. Chunks behind one another overlap the stages.
//!
//! A broadcast is one along a tree among the nodes with the root's place in their groups, and along one of each group below
//! them, where a chain is a tree as well; a reduce is that upwards (`tree`). The vector goes to each group once.

use ringway_types::Operation;

use super::rounds::{part, stage_rule};
use super::tree::{Kind, height, turns, widest};
use crate::{Cost, Pair, Terms};

/// What a chunk costs: all of it within the groups, and a node's part of it among them.
pub(super) fn cost(pair: Pair, operation: Operation, terms: &Terms) -> Option<Cost> {
    let group = super::group(terms.nodes, terms.group_nodes)?;
    if matches!(operation, Operation::Broadcast | Operation::Reduce) {
        return Some(tree_cost(pair, operation, group, terms));
    }
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

/// What is counted of a tree of one level: numbers of the vector.
struct Counts {
    /// From the top to the lowest leaf.
    hops: f64,
    /// Messages that leave by one port one behind the other until every node has one.
    turns: f64,
    /// Nodes right below the top, and right below any node.
    top: f64,
    children: f64,
    /// Messages of the busiest node.
    messages: f64,
}

impl Counts {
    fn new(kind: Kind, nodes: u32) -> Self {
        let others = nodes.saturating_sub(1);
        let log2 = Terms { nodes, most_local: 1, bytes: 0.0, group_nodes: 0 }.log2_up();
        match kind {
            Kind::Chain => {
                let hops = f64::from(others);
                Self { hops, turns: hops, top: 1.0, children: 1.0, messages: f64::from(others.min(2)) }
            }
            Kind::Binary => Self {
                hops: 1.0 + height(others),
                turns: 1.0 + turns(others),
                top: 1.0,
                children: widest(others).max(1.0),
                messages: 1.0 + widest(others),
            },
            _ => Self { hops: log2, turns: log2, top: log2, children: log2, messages: log2 },
        }
    }
}

/// The busiest node is one that others of its group are below, or one that other groups are below as well.
fn tree_cost(pair: Pair, operation: Operation, group: u32, terms: &Terms) -> Cost {
    let inner = Counts::new(Kind::of(pair.inner), group);
    let outer = Counts::new(Kind::of(pair.outer), terms.nodes / group);
    let (hops, turns) = (inner.hops + outer.hops, inner.turns + outer.turns);
    let children = inner.children.max(inner.top + outer.children);
    let cost = Cost {
        rounds: hops,
        link_bytes: hops * terms.bytes,
        messages: inner.messages.max(inner.top + outer.messages),
        ..Cost::default()
    };
    if operation == Operation::Broadcast {
        return Cost { port_bytes: turns * terms.bytes, sent: children * terms.bytes, ..cost };
    }
    Cost {
        port_bytes: hops * terms.bytes,
        path_reduced: turns * terms.bytes,
        sent: terms.bytes,
        reduced: children * terms.bytes,
        ..cost
    }
}
