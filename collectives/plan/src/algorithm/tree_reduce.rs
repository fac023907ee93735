//! Reduce along trees: every node combines its ranks' inputs with what comes from below, one child after the other in a
//! fixed order, and sends the partial result up. Along the binomial tree in `ceil(log2 N) (a + n b + n g)`; along a
//! binary tree chunk behind chunk; along two binary trees half of each chunk, so that no node sends or combines more
//! than `n` bytes.

use super::tree::{Kind, Tree, turns, widest};
use super::{
    Frame, Size, after, align, inputs, into_scratch, nothing, outputs, partial_and_inputs, partials, scratch,
    times, tree_broadcast,
};
use crate::{Action, Cost, OutputSet, Step, Targets, Terms};

/// What a chunk costs along the binomial tree: a broadcast's backwards, as with the others.
pub(super) fn binomial_cost(terms: &Terms) -> Cost {
    let reduced = terms.log2_up() * terms.bytes;
    Cost { path_reduced: reduced, sent: terms.bytes, reduced, ..tree_broadcast::binomial_cost(terms) }
}

/// What a chunk costs along a binary tree. What several children send comes in by one port.
pub(super) fn binary_cost(terms: &Terms) -> Cost {
    let labels = terms.nodes.saturating_sub(1);
    Cost {
        path_reduced: (1.0 + turns(labels)) * terms.bytes,
        sent: terms.bytes,
        reduced: widest(labels).max(1.0) * terms.bytes,
        ..tree_broadcast::binary_cost(terms)
    }
}

/// What a chunk costs along two binary trees.
pub(super) fn double_cost(terms: &Terms) -> Cost {
    let labels = terms.nodes.saturating_sub(1);
    Cost {
        path_reduced: (1.0 + turns(labels)) * terms.bytes / 2.0,
        reduced: terms.bytes,
        ..tree_broadcast::double_cost(terms)
    }
}

pub(super) fn size(frame: &Frame<'_>, kind: Kind) -> Size {
    let trees = || (0..kind.trees()).map(|number| Tree::rooted(frame, kind, number));
    Size {
        extent: frame.vector(),
        steps: trees().map(|tree| steps(&tree)).fold(0, u32::saturating_add),
        scratch: scratch_bytes(frame, kind, trees()),
    }
}

/// For each tree the steps of [`up`].
pub(super) fn step(frame: &Frame<'_>, kind: Kind, index: u32) -> Step {
    let (mut first, mut slots) = (0, 0);
    for number in 0..kind.trees() {
        let tree = Tree::rooted(frame, kind, number);
        if index - first < steps(&tree) {
            let leg = Leg {
                part: frame.share(number, kind.trees()),
                tag: number,
                first,
                memory: slot(frame, kind).saturating_mul(slots),
                stride: slot(frame, kind),
                result: OutputSet::One(frame.root_local()),
            };
            return up(&tree, &leg, index - first);
        }
        first += steps(&tree);
        slots += slots_of(&tree);
    }
    nothing()
}

/// What goes up a tree.
pub(super) struct Leg {
    /// Its first byte and its length.
    pub(super) part: (u64, u64),
    pub(super) tag: u32,
    /// The first step.
    pub(super) first: u32,
    /// The first partial result in scratch, and from one to the next.
    pub(super) memory: u64,
    pub(super) stride: u64,
    /// Where the top puts the result.
    pub(super) result: OutputSet,
}

/// Bytes of a partial result in scratch.
pub(super) fn slot(frame: &Frame<'_>, kind: Kind) -> u64 {
    align(frame.share_bytes(frame.vector().min(frame.unit), kind.trees()))
}

/// Partial results that a node keeps of a tree: one from each child, or its own.
pub(super) fn slots_of(tree: &Tree) -> u64 {
    u64::from(tree.children().max(1))
}

pub(super) fn scratch_bytes(frame: &Frame<'_>, kind: Kind, trees: impl Iterator<Item = Tree>) -> u64 {
    let slots = trees.map(|tree| slots_of(&tree)).fold(0, u64::saturating_add);
    slot(frame, kind).saturating_mul(slots)
}

/// Steps of [`up`].
pub(super) fn steps(tree: &Tree) -> u32 {
    times(tree.children().max(1), 2) + 1
}

/// For every child a receive, and its combination with what there is; last: send to the parent, but at the top. A leaf
/// combines its inputs alone.
pub(super) fn up(tree: &Tree, leg: &Leg, at: u32) -> Step {
    let (offset, length) = leg.part;
    if length == 0 {
        return nothing();
    }
    let (children, index) = (tree.children(), leg.first + at);
    let (number, last) = (at / 2, times(children.max(1), 2));
    let memory = |number: u32| leg.memory.saturating_add(leg.stride.saturating_mul(u64::from(number)));
    if at == last {
        return tree.parent().map_or(nothing(), |peer| {
            after(Action::Send { peer, tag: leg.tag, from: scratch(memory(0), length) }, index - 1)
        });
    }
    if at.is_multiple_of(2) {
        return tree.child(number).map_or(nothing(), |peer| {
            let into = scratch(memory(number), length);
            Step::free(Action::Receive { peer, tag: leg.tag, into })
        });
    }
    let top = tree.parent().is_none() && number + 1 == children;
    let into: Targets = if top { outputs(leg.result, offset) } else { into_scratch(memory(0)) };
    let sources = match number {
        _ if children == 0 => inputs(offset),
        0 => partial_and_inputs(memory(0), offset),
        _ => partials(memory(0), leg.stride.saturating_mul(u64::from(number)), 2),
    };
    let waits = match number {
        _ if children == 0 => 0..0,
        0 => index - 1..index,
        _ => index - 2..index,
    };
    Step { action: Action::Reduce { sources, into, length, finish: top }, after: [waits, 0..0] }
}
