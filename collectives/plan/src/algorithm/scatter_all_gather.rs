//! Broadcast of long messages (Barnett and others 1994; van de Geijn): the root's node scatters a block for each node along
//! a binomial tree, then the blocks go around a ring: `(ceil(log2 N) + N - 1) a + 2 n (N - 1) / N b`. A node that
//! has passed on other nodes' blocks has them, and does not get them again.

use super::tree::{Kind, Tree};
use super::{Frame, Size, nothing, one, outputs, times};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms, View};

/// A node's block in a chunk is a quarter of the usual chunk, as in the ring's allreduce: there are as many messages
/// behind one another as nodes.
pub(super) fn unit(view: &View<'_>, chunk_bytes: u64) -> u64 {
    (chunk_bytes / 4).max(1).saturating_mul(u64::from(view.layout.nodes()))
}

/// What a chunk costs. The root's node sends most, as it scatters; the one two places on has most messages: its block
/// and a child's, all but these two from the one before it, all but its own to the one behind.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (others, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    let path = 2.0 * others * part;
    Cost {
        rounds: terms.log2_up() + others,
        link_bytes: path,
        port_bytes: path,
        messages: 2.0 * others + 1.0,
        sent: path,
        ..Cost::default()
    }
}

/// This node's place in the tree and on the ring.
struct Spot {
    tree: Tree,
    /// Nodes after the root's.
    distance: u32,
    /// Blocks that it is given by the scatter, its own first.
    given: u32,
}

impl Spot {
    fn new(frame: &Frame<'_>) -> Self {
        let distance = frame.distance_from(frame.root_node());
        let given = given(frame.nodes(), distance);
        Self { tree: Tree::rooted(frame, Kind::Binomial, 0), distance, given }
    }

    /// Whether the scatter gives it the block of the node `distance` places after the root's.
    const fn has(&self, distance: u32) -> bool {
        distance >= self.distance && distance - self.distance < self.given
    }

    fn ring(&self) -> u32 {
        self.tree.children() + 2
    }
}

/// Blocks that the scatter gives to the node so many places after the root's: those of its subtree.
fn given(nodes: u32, distance: u32) -> u32 {
    let subtree = if distance == 0 { u32::MAX } else { distance & distance.wrapping_neg() };
    subtree.min(nodes - distance)
}

/// Messages that all nodes together send and receive.
pub(super) fn messages(nodes: u32) -> f64 {
    let around = |distance| f64::from(nodes - given(nodes, distance));
    2.0 * (1..nodes).map(|distance| 1.0 + around(distance)).sum::<f64>()
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let steps = Spot::new(frame).ring().saturating_add(times(frame.nodes() - 1, 3));
    Size { extent: frame.vector(), steps, scratch: 0 }
}

/// 0: receive the blocks of the subtree; then for every child, the one with most below it first, a send; copy the
/// blocks; then N - 1 rounds of send, receive, copy. Round `s` sends the block of the node `s` places back.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let spot = Spot::new(frame);
    if index < spot.ring() {
        return scatter(frame, &spot, index);
    }
    let (round, phase) = ((index - spot.ring()) / 3, (index - spot.ring()) % 3);
    if round >= frame.nodes() - 1 {
        return nothing();
    }
    let back = if phase == 0 { round } else { round + 1 };
    let distance = (spot.distance + (frame.nodes() - back)) % frame.nodes();
    let (offset, length) = frame.share(distance, frame.nodes());
    if length == 0 {
        return nothing();
    }
    let span = Span { place: place(frame), offset, length };
    if phase == 0 {
        let next = (spot.distance + 1) % frame.nodes();
        let next = Spot { tree: spot.tree, distance: next, given: given(frame.nodes(), next) };
        if next.has(distance) {
            return nothing();
        }
        let ready = match (frame.is_root_node(), spot.has(distance)) {
            (true, _) => 0..0,
            (_, true) => one(0),
            // What was received in the round before this one.
            (_, false) => one(index - 2),
        };
        let action = Action::Send { peer: frame.node_after(1), tag: round, from: span };
        return Step { action, after: [ready, 0..0] };
    }
    if spot.has(distance) {
        nothing()
    } else if phase == 1 {
        Step::free(Action::Receive { peer: frame.node_before(1), tag: round, into: span })
    } else {
        copy(frame, span, one(index - 1))
    }
}

fn scatter(frame: &Frame<'_>, spot: &Spot, index: u32) -> Step {
    let tag = frame.nodes();
    let ready = if frame.is_root_node() { 0..0 } else { one(0) };
    let span = |first: u32, count: u32| {
        let (start, last) =
            (frame.share(first, frame.nodes()), frame.share(first + (count - 1), frame.nodes()));
        let end = last.0.saturating_add(last.1);
        Span { place: place(frame), offset: start.0, length: end.saturating_sub(start.0) }
    };
    if index == 0 {
        let own = span(spot.distance, spot.given);
        let Some(peer) = spot.tree.parent().filter(|_| own.length > 0) else { return nothing() };
        return Step::free(Action::Receive { peer, tag, into: own });
    }
    let number = spot.tree.children().wrapping_sub(index);
    let Some(peer) = spot.tree.child(number) else {
        return copy(frame, span(spot.distance, spot.given), ready);
    };
    let first = spot.distance + (1 << number);
    let from = span(first, given(frame.nodes(), first));
    if from.length == 0 {
        return nothing();
    }
    Step { action: Action::Send { peer, tag, from }, after: [ready, 0..0] }
}

/// Where the vector is on this node.
fn place(frame: &Frame<'_>) -> Place {
    if frame.is_root_node() { Place::Input(frame.root_local()) } else { Place::Output(0) }
}

fn copy(frame: &Frame<'_>, from: Span, ready: core::ops::Range<u32>) -> Step {
    let set = if frame.is_root_node() { OutputSet::All } else { OutputSet::AllBut(0) };
    if from.length == 0 || (!frame.is_root_node() && frame.locals() == 1) {
        return nothing();
    }
    Step { action: Action::Copy { from, into: outputs(set, from.offset) }, after: [ready, 0..0] }
}
