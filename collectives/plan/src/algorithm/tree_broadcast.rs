//! Broadcast along trees: every node sends a chunk on to those below it, deeper side first. Along the binomial tree in
//! `ceil(log2 N) (a + n b)`; along a binary tree chunk behind chunk, as no node sends to more than two; along two
//! binary trees half of each chunk, so that all nodes but leaves of both send as much as they receive:
//! about `(ceil(log2 N) + 2 c) (a + n / 2c b)` for `c` chunks.

use core::ops::Range;

use super::tree::{Kind, Tree, height, turns, widest};
use super::{Frame, Size, nothing, one, outputs};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};

/// What a chunk costs along the binomial tree.
pub(super) fn binomial_cost(terms: &Terms) -> Cost {
    let rounds = terms.log2_up();
    Cost {
        rounds,
        link_bytes: rounds * terms.bytes,
        port_bytes: rounds * terms.bytes,
        messages: rounds,
        sent: rounds * terms.bytes,
        ..Cost::default()
    }
}

/// What a chunk costs along a binary tree.
pub(super) fn binary_cost(terms: &Terms) -> Cost {
    let labels = terms.nodes.saturating_sub(1);
    let hops = 1.0 + height(labels);
    Cost {
        rounds: hops,
        link_bytes: hops * terms.bytes,
        port_bytes: (1.0 + turns(labels)) * terms.bytes,
        messages: 1.0 + widest(labels),
        sent: widest(labels).max(1.0) * terms.bytes,
        ..Cost::default()
    }
}

/// What a chunk costs along two binary trees. The root's node sends one half behind the other.
pub(super) fn double_cost(terms: &Terms) -> Cost {
    let labels = terms.nodes.saturating_sub(1);
    let (hops, half) = (1.0 + height(labels), terms.bytes / 2.0);
    Cost {
        rounds: hops,
        link_bytes: hops * half,
        port_bytes: (2.0 + turns(labels)) * half,
        messages: 2.0 + widest(labels),
        sent: terms.bytes,
        ..Cost::default()
    }
}

pub(super) fn size(frame: &Frame<'_>, kind: Kind) -> Size {
    let steps = (0..kind.trees()).map(|number| steps(&Tree::rooted(frame, kind, number)));
    Size { extent: frame.vector(), steps: steps.fold(0, u32::saturating_add), scratch: 0 }
}

/// For each tree the steps of [`down`].
pub(super) fn step(frame: &Frame<'_>, kind: Kind, index: u32) -> Step {
    let mut first = 0;
    for number in 0..kind.trees() {
        let tree = Tree::rooted(frame, kind, number);
        if index - first < steps(&tree) {
            let root = Place::Input(frame.root_local());
            let from = if tree.parent().is_none() { root } else { Place::Output(0) };
            let leg = Leg { part: frame.share(number, kind.trees()), tag: number, first, from, ready: 0..0 };
            return down(frame, &tree, &leg, index - first);
        }
        first += steps(&tree);
    }
    nothing()
}

/// What comes down a tree.
pub(super) struct Leg {
    /// Its first byte and its length.
    pub(super) part: (u64, u64),
    pub(super) tag: u32,
    /// The first step.
    pub(super) first: u32,
    /// What is sent and copied on this node.
    pub(super) from: Place,
    /// What the top waits for.
    pub(super) ready: Range<u32>,
}

/// Steps of [`down`].
pub(super) fn steps(tree: &Tree) -> u32 {
    tree.children() + 2
}

/// 0: receive, but at the top; then for every child a send; last: copy.
pub(super) fn down(frame: &Frame<'_>, tree: &Tree, leg: &Leg, at: u32) -> Step {
    let (offset, length) = leg.part;
    if length == 0 {
        return nothing();
    }
    let span = Span { place: leg.from, offset, length };
    let children = tree.children();
    let parent = tree.parent();
    let ready = if parent.is_some() { one(leg.first) } else { leg.ready.clone() };
    if at == 0 {
        return parent
            .map_or(nothing(), |peer| Step::free(Action::Receive { peer, tag: leg.tag, into: span }));
    }
    if let Some(peer) = tree.child(children.wrapping_sub(at)) {
        return Step { action: Action::Send { peer, tag: leg.tag, from: span }, after: [ready, 0..0] };
    }
    let into = match leg.from {
        Place::Input(_) => OutputSet::All,
        // A result is in all of the top's outputs already.
        _ if parent.is_none() || frame.locals() == 1 => return nothing(),
        _ => OutputSet::AllBut(0),
    };
    Step { action: Action::Copy { from: span, into: outputs(into, offset) }, after: [ready, 0..0] }
}
