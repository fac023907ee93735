//! Gather and scatter along the binomial tree (MPICH's for short blocks): a node sends the blocks of all below it in one
//! message, or gets them so: `ceil(log2 N) a + n (N - 1) / N b` between powers of two of nodes, where the root's node has
//! `N - 1` messages by the direct exchange.
//!
//! Blocks of the nodes below one another lie in scratch memory in the order of their distance from the root's node, in which
//! every subtree's are neighbours. All blocks have one length: of gather_v and scatter_v a node on the way does not know how
//! long others' are.

use core::ops::Range;

use super::tree::{Kind, Tree};
use super::{Frame, Size, align, into_scratch, local, nothing, one, outputs, scratch, times};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};

/// What a chunk of a gather costs. The root's node has most messages, a child of it sends most.
pub(super) fn gather_cost(terms: &Terms) -> Cost {
    let nodes = terms.nodes.max(1);
    let part = terms.bytes / terms.n();
    let largest = (0..u32::BITS).map_while(|bit| 1_u32.checked_shl(bit).filter(|first| *first < nodes));
    let largest = largest.map(|first| below(nodes, first)).max().unwrap_or(0);
    Cost {
        rounds: terms.log2_up(),
        link_bytes: f64::from(longest_path(nodes)) * part,
        port_bytes: (terms.n() - 1.0) * part,
        messages: terms.log2_up(),
        sent: f64::from(largest) * part,
        ..Cost::default()
    }
}

/// What a chunk of a scatter costs: the same the other way, so that the root's node sends most.
pub(super) fn scatter_cost(terms: &Terms) -> Cost {
    let gather = gather_cost(terms);
    Cost { sent: gather.port_bytes, ..gather }
}

/// The most nodes' blocks one behind the other on the way from a leaf to the root.
fn longest_path(nodes: u32) -> u32 {
    let (mut left, mut before, mut longest) = (nodes, 0_u32, 0);
    while left > 1 {
        let first = (left - 1).ilog2();
        // By way of the next smaller subtree, which is whole, or of the largest one.
        longest = longest.max(before.saturating_add((1 << first) - 1));
        left -= 1 << first;
        before = before.saturating_add(left);
    }
    longest.max(before)
}

/// Blocks of one node that all nodes together send: each goes over as many links as its distance has bits.
pub(super) fn hops(nodes: u32) -> f64 {
    (1..nodes).map(|distance| f64::from(distance.count_ones())).sum()
}

/// Nodes of the subtree of the node so many places after the root's, itself included.
fn below(nodes: u32, distance: u32) -> u32 {
    let subtree = if distance == 0 { u32::MAX } else { distance & distance.wrapping_neg() };
    subtree.min(nodes - distance)
}

/// This node's place in the tree, and what lies in its scratch memory.
struct Spot {
    tree: Tree,
    /// Places after the root's node, and nodes of the subtree.
    distance: u32,
    nodes: u32,
}

impl Spot {
    fn new(frame: &Frame<'_>) -> Self {
        let distance = frame.distance_from(frame.root_node());
        let tree = Tree::rooted(frame, Kind::Binomial, 0);
        Self { tree, distance, nodes: below(frame.nodes(), distance) }
    }

    /// The distances of the nodes whose blocks lie in scratch memory: what is the root's own goes there directly.
    fn held(&self) -> Range<u32> {
        self.distance.max(u32::from(self.distance == 0))..self.distance.saturating_add(self.nodes)
    }

    /// The distances of the nodes below a child, and with it.
    fn below(&self, frame: &Frame<'_>, child: u32) -> Range<u32> {
        let first = self.distance.saturating_add(1 << child);
        first..first.saturating_add(below(frame.nodes(), first))
    }

    /// Where the blocks of nodes at some distances lie.
    fn span(&self, frame: &Frame<'_>, distances: Range<u32>) -> Span {
        let start = bytes(frame, self.held().start..distances.start);
        scratch(start, bytes(frame, distances))
    }

    /// Where the block of a node's local rank lies, if there is such a rank.
    fn block(&self, frame: &Frame<'_>, distance: u32, local: u32) -> Option<Span> {
        let (start, length) = (self.span(frame, distance..distance).offset, frame.cut(block(frame)).1);
        (local < frame.locals_on(node(frame, distance)))
            .then(|| scratch(start.saturating_add(length.saturating_mul(u64::from(local))), length))
    }
}

/// Bytes of this chunk's pieces of the ranks of nodes at these distances.
fn bytes(frame: &Frame<'_>, distances: Range<u32>) -> u64 {
    let (nodes, most) = (frame.nodes(), frame.most_local());
    let ranks = if times(nodes, most) == frame.view.layout.ranks() {
        u64::from(most).saturating_mul(distances.len() as u64)
    } else {
        distances.map(|distance| u64::from(frame.locals_on(node(frame, distance)))).sum()
    };
    ranks.saturating_mul(frame.cut(block(frame)).1)
}

/// Bytes of every block.
fn block(frame: &Frame<'_>) -> u64 {
    frame.view.block(0).1
}

/// The node so many places after the root's.
fn node(frame: &Frame<'_>, distance: u32) -> u32 {
    let place = (u64::from(frame.root_node()) + u64::from(distance)) % u64::from(frame.nodes());
    u32::try_from(place).unwrap_or(0)
}

/// The same for both: on the root's node the local part, a copy for each rank elsewhere, a message with each child; on
/// others a copy for each local rank, a message with each child and one with the parent.
pub(super) fn size(frame: &Frame<'_>) -> Size {
    let spot = Spot::new(frame);
    let others = if frame.is_root_node() { times(frame.nodes() - 1, frame.most_local()) } else { 1 };
    let steps = frame.locals().saturating_add(others).saturating_add(spot.tree.children());
    let first = Frame { chunk: 0, ..*frame };
    let scratch = align(spot.span(&first, spot.held()).length);
    Size { extent: block(frame), steps, scratch }
}

/// On the root's node the local part, receives, copies out; elsewhere copies of what is this node's own, receives, a send.
pub(super) fn gather_step(frame: &Frame<'_>, index: u32) -> Step {
    let spot = Spot::new(frame);
    let (children, messages) = (spot.tree.children(), frame.locals());
    let after = messages.saturating_add(children);
    let step = if frame.cut(block(frame)).1 == 0 {
        None
    } else if index >= messages && index < after {
        let child = index - messages;
        let into = spot.span(frame, spot.below(frame, child));
        spot.tree.child(child).map(|peer| Step::free(Action::Receive { peer, tag: 0, into }))
    } else if !frame.is_root_node() {
        gather_own(frame, &spot, index)
    } else if index < messages {
        Some(local::step(frame, index))
    } else {
        let at = index - after;
        let (distance, slot) = (at / frame.most_local().max(1) + 1, at % frame.most_local().max(1));
        gather_out(frame, &spot, distance, slot)
    };
    step.unwrap_or(nothing())
}

/// What a node but the root's does besides receiving: copies its own blocks, and sends all.
fn gather_own(frame: &Frame<'_>, spot: &Spot, index: u32) -> Option<Step> {
    let (start, length) = frame.cut(block(frame));
    let own = |local| Span { place: Place::Input(local), offset: start, length };
    // One block alone goes from where it is.
    let alone = spot.nodes == 1 && frame.locals() == 1;
    if index < frame.locals() {
        let into = into_scratch(spot.block(frame, spot.distance, index)?.offset);
        return (!alone).then(|| Step::free(Action::Copy { from: own(index), into }));
    }
    let last = frame.locals().saturating_add(spot.tree.children());
    let peer = spot.tree.parent().filter(|_| index == last)?;
    let from = if alone { own(0) } else { spot.span(frame, spot.held()) };
    Some(Step {
        action: Action::Send { peer, tag: 0, from },
        after: [if alone { 0..0 } else { 0..last }, 0..0],
    })
}

/// Copies a block from scratch memory to the root's output.
fn gather_out(frame: &Frame<'_>, spot: &Spot, distance: u32, slot: u32) -> Option<Step> {
    let rank = frame.rank(node(frame, distance), slot).filter(|_| distance < frame.nodes())?;
    let from = spot.block(frame, distance, slot)?;
    let offset = frame.view.block(rank).0.saturating_add(frame.cut(block(frame)).0);
    let into = outputs(OutputSet::One(frame.root_local()), offset);
    let received = one(frame.locals().saturating_add(distance.ilog2()));
    Some(Step { action: Action::Copy { from, into }, after: [received, 0..0] })
}

/// On the root's node the local part, copies of blocks that go together, those of the largest subtree first, and sends;
/// elsewhere a receive, sends, copies out.
pub(super) fn scatter_step(frame: &Frame<'_>, index: u32) -> Step {
    let spot = Spot::new(frame);
    if frame.cut(block(frame)).1 == 0 {
        return nothing();
    }
    if !frame.is_root_node() {
        return scatter_on(frame, &spot, index).unwrap_or(nothing());
    }
    let (locals, most) = (frame.locals(), frame.most_local().max(1));
    let packs = times(frame.nodes() - 1, most);
    if index < locals {
        return local::step(frame, index);
    }
    let at = index - locals;
    if at < packs {
        return scatter_in(frame, &spot, frame.nodes() - 1 - at / most, at % most).unwrap_or(nothing());
    }
    let pack = |distance: u32| locals.saturating_add(times(frame.nodes() - distance, most));
    let packed = |below: &Range<u32>| pack(below.end)..pack(below.start);
    scatter_send(frame, &spot, at - packs, packed).unwrap_or(nothing())
}

/// Copies a block from the root's input to scratch memory.
fn scatter_in(frame: &Frame<'_>, spot: &Spot, distance: u32, slot: u32) -> Option<Step> {
    let rank = frame.rank(node(frame, distance), slot)?;
    let (start, length) = frame.cut(block(frame));
    let place = Place::Input(frame.root_local());
    let from = Span { place, offset: frame.view.block(rank).0.saturating_add(start), length };
    let into = into_scratch(spot.block(frame, distance, slot)?.offset);
    Some(Step::free(Action::Copy { from, into }))
}

/// The `number`-th send to a child, the one with most below it first, after what it needs.
fn scatter_send(
    frame: &Frame<'_>,
    spot: &Spot,
    number: u32,
    needs: impl Fn(&Range<u32>) -> Range<u32>,
) -> Option<Step> {
    let child = spot.tree.children().checked_sub(number.saturating_add(1))?;
    let below = spot.below(frame, child);
    let action =
        Action::Send { peer: spot.tree.child(child)?, tag: 0, from: spot.span(frame, below.clone()) };
    Some(Step { action, after: [needs(&below), 0..0] })
}

/// What a node but the root's does in a scatter.
fn scatter_on(frame: &Frame<'_>, spot: &Spot, index: u32) -> Option<Step> {
    let (start, length) = frame.cut(block(frame));
    let alone = spot.nodes == 1 && frame.locals() == 1;
    let Some(at) = index.checked_sub(1) else {
        let own = Span { place: Place::Output(0), offset: start, length };
        let into = if alone { own } else { spot.span(frame, spot.held()) };
        return Some(Step::free(Action::Receive { peer: spot.tree.parent()?, tag: 0, into }));
    };
    let Some(local) = at.checked_sub(spot.tree.children()) else {
        return scatter_send(frame, spot, at, |_| one(0));
    };
    let from = spot.block(frame, spot.distance, local).filter(|_| !alone)?;
    let into = outputs(OutputSet::One(local), start);
    Some(Step { action: Action::Copy { from, into }, after: [one(0), 0..0] })
}
