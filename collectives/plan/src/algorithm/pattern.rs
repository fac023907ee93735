//! Which blocks go between two nodes when nothing is combined.
//!
//! In each round every node sends to the node some places on and gets something from the one as many places back: `N - 1` rounds
//! for any number of nodes. A round has slots; a slot of two nodes has at most one piece each way, and its number is the tag
//! of messages. All nodes come to the same slots in the same order.

use ringway_types::Operation as O;

use super::{Frame, times};
use crate::Place;

/// A block that is sent or received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) place: Place,
    /// The block's first byte there.
    pub(super) start: u64,
    /// The block's bytes.
    pub(super) length: u64,
    pub(super) tag: u32,
}

/// What one slot of a pair of nodes stands for: a local rank here, one there, and the tag of both directions.
struct Pair {
    own: u32,
    other: u32,
    tag: u32,
}

/// Rounds in which this node sends something to another node and gets something from one.
pub(super) fn rounds(frame: &Frame<'_>) -> u32 {
    if meets_root_only(frame) { 1 } else { frame.nodes() - 1 }
}

const fn has_root(operation: O) -> bool {
    matches!(operation, O::Gather | O::GatherV | O::Scatter | O::ScatterV)
}

fn meets_root_only(frame: &Frame<'_>) -> bool {
    has_root(frame.view.call.operation) && !frame.is_root_node()
}

/// How many places on the node is that gets something in a round. Rounds `2 q` and `2 q + 1` go as far on as back, so that a
/// node exchanges all that it has to with the same two nodes.
fn distance(frame: &Frame<'_>, round: u32) -> u32 {
    let far = round / 2 + 1;
    if round.is_multiple_of(2) { far } else { frame.nodes() - far }
}

/// The node that this one sends to in a round. `None` when there is none.
pub(super) fn to(frame: &Frame<'_>, round: u32) -> Option<u32> {
    let node = |round| {
        if meets_root_only(frame) { frame.root_node() } else { frame.node_after(distance(frame, round)) }
    };
    (round < rounds(frame)).then(|| node(round))
}

/// The node that this one gets something from in a round, for which it is the same round. `None` when there is none.
pub(super) fn from(frame: &Frame<'_>, round: u32) -> Option<u32> {
    let node = |round| {
        if meets_root_only(frame) { frame.root_node() } else { frame.node_before(distance(frame, round)) }
    };
    (round < rounds(frame)).then(|| node(round))
}

/// The round in which this node sends to the one that it gets something from in a round.
pub(super) fn returning(frame: &Frame<'_>, round: u32) -> u32 {
    let other = round ^ 1;
    if other < rounds(frame) { other } else { round }
}

/// Slots of each round.
pub(super) fn width(frame: &Frame<'_>) -> u32 {
    match frame.view.call.operation {
        O::AllToAll | O::AllToAllV => times(frame.most_local(), frame.most_local()),
        O::Gather | O::GatherV | O::Scatter | O::ScatterV if !frame.is_root_node() => frame.locals(),
        _ => frame.most_local(),
    }
}

/// Whether this node sends anything.
pub(super) fn sends(frame: &Frame<'_>) -> bool {
    match frame.view.call.operation {
        O::Gather | O::GatherV => !frame.is_root_node(),
        O::Scatter | O::ScatterV => frame.is_root_node(),
        _ => true,
    }
}

/// Whether this node receives anything.
pub(super) fn receives(frame: &Frame<'_>) -> bool {
    match frame.view.call.operation {
        O::Gather | O::GatherV => frame.is_root_node(),
        O::Scatter | O::ScatterV => !frame.is_root_node(),
        _ => true,
    }
}

/// The block sent to a node in a slot.
pub(super) fn outgoing(frame: &Frame<'_>, node: u32, slot: u32) -> Option<Piece> {
    match frame.view.call.operation {
        O::AllToAll | O::AllToAllV => {
            let Pair { own, other, tag } = pair(frame, node, slot)?;
            let (start, length) = frame.view.sends(own, frame.rank(node, other)?);
            Some(Piece { place: Place::Input(own), start, length, tag })
        }
        O::Scatter | O::ScatterV => {
            let (start, length) = frame.view.block(frame.rank(node, slot)?);
            frame.is_root_node().then_some(Piece {
                place: Place::Input(frame.root_local()),
                start,
                length,
                tag: slot,
            })
        }
        operation => {
            let (_, length) = frame.view.block(frame.rank(frame.me(), slot)?);
            let goes = matches!(operation, O::AllGather | O::AllGatherV) || node == frame.root_node();
            goes.then_some(Piece { place: Place::Input(slot), start: 0, length, tag: slot })
        }
    }
}

/// The block received from a node in a slot.
pub(super) fn incoming(frame: &Frame<'_>, node: u32, slot: u32) -> Option<Piece> {
    match frame.view.call.operation {
        O::AllToAll | O::AllToAllV => {
            let Pair { own, other, tag } = pair(frame, node, slot)?;
            let (start, length) = frame.view.receives(own, frame.rank(node, other)?);
            Some(Piece { place: Place::Output(own), start, length, tag })
        }
        O::Scatter | O::ScatterV => {
            let (_, length) = frame.view.block(frame.rank(frame.me(), slot)?);
            let comes = node == frame.root_node();
            comes.then_some(Piece { place: Place::Output(slot), start: 0, length, tag: slot })
        }
        O::AllGather | O::AllGatherV => {
            let (start, length) = frame.view.block(frame.rank(node, slot)?);
            Some(Piece { place: Place::Output(0), start, length, tag: slot })
        }
        _ => {
            let (start, length) = frame.view.block(frame.rank(node, slot)?);
            let place = Place::Output(frame.root_local());
            frame.is_root_node().then_some(Piece { place, start, length, tag: slot })
        }
    }
}

/// The longest block that this node sends or receives, in bytes.
pub(super) fn longest(frame: &Frame<'_>) -> u64 {
    match frame.view.call.operation {
        O::AllToAll | O::AllToAllV => longest_pair(frame),
        O::Gather | O::GatherV | O::Scatter | O::ScatterV if !frame.is_root_node() => {
            frame.longest_block_on(frame.me())
        }
        _ => frame.longest_block(),
    }
}

/// The longest block of any pair of ranks of which one is on this node, in bytes.
pub(super) fn longest_pair(frame: &Frame<'_>) -> u64 {
    if frame.is_uniform() {
        return frame.view.block(0).1;
    }
    let ranks = || 0..frame.view.layout.ranks();
    let row = |local| {
        ranks().map(move |rank| frame.view.sends(local, rank).1.max(frame.view.receives(local, rank).1))
    };
    (0..frame.locals()).flat_map(row).max().unwrap_or(0)
}

/// Slots go through the pairs of local ranks in the order of the lower node's rank, then the higher one's: the same on both.
fn pair(frame: &Frame<'_>, node: u32, slot: u32) -> Option<Pair> {
    let most = frame.most_local().max(1);
    let (lower, higher) = (slot / most, slot % most);
    let (own, other) = if frame.me() < node { (lower, higher) } else { (higher, lower) };
    (own < frame.locals() && other < frame.locals_on(node)).then_some(Pair { own, other, tag: slot })
}
