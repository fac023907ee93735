//! Which blocks go between two nodes when nothing is combined.
//!
//! Two nodes exchange pieces in slots; a slot has at most one piece each way, both nodes come to its two pieces in
//! the same order, and its number is the tag of messages.

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

/// How often this node meets another one, itself included.
pub(super) fn rounds(frame: &Frame<'_>) -> u32 {
    match frame.view.call.operation {
        O::Gather | O::GatherV | O::Scatter | O::ScatterV if !frame.is_root_node() => 1,
        _ => frame.nodes(),
    }
}

/// The node that is met in a round. Two nodes meet each other in the same round, so that both directions of a pair
/// are under way together. `None` when there is none.
pub(super) fn partner(frame: &Frame<'_>, round: u32) -> Option<u32> {
    let node = match frame.view.call.operation {
        O::Gather | O::GatherV | O::Scatter | O::ScatterV if !frame.is_root_node() => frame.root_node(),
        O::Gather | O::GatherV | O::Scatter | O::ScatterV => frame.node_after(round),
        _ => return met(frame.nodes(), frame.me(), round),
    };
    (node != frame.me() && round < rounds(frame)).then_some(node)
}

/// Who meets whom in a round of a tournament of all nodes: of an odd number of them those whose numbers add up to the
/// round, so that one is left out; of an even number the last one meets who would be left out among the others, and
/// there is nobody left for the last round.
fn met(nodes: u32, me: u32, round: u32) -> Option<u32> {
    let odd = u64::from(if nodes.is_multiple_of(2) { nodes - 1 } else { nodes });
    let (me, round) = (u64::from(me), u64::from(round));
    if round >= odd || me >= u64::from(nodes) {
        return None;
    }
    // Twice this is the round's number, or as much more as goes once around.
    let left_out = round * odd.div_ceil(2) % odd;
    let node = match (me == left_out, me == odd) {
        (true, _) => odd,
        (_, true) => left_out,
        _ => (round + odd - me) % odd,
    };
    u32::try_from(node).ok().filter(|node| *node < nodes)
}

/// Slots of each round.
pub(super) fn width(frame: &Frame<'_>) -> u32 {
    match frame.view.call.operation {
        O::AllToAll | O::AllToAllV => times(frame.locals(), frame.most_local()),
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

/// Slots go through the pairs of local ranks in the order of the lower node's rank, then the higher one's.
fn pair(frame: &Frame<'_>, node: u32, slot: u32) -> Option<Pair> {
    let (locals, most) = (frame.locals().max(1), frame.most_local().max(1));
    let (own, other, tag) = if frame.me() < node {
        let (own, other) = (slot / most, slot % most);
        (own, other, times(own, most).saturating_add(other))
    } else {
        let (other, own) = (slot / locals, slot % locals);
        (own, other, times(other, most).saturating_add(own))
    };
    (own < locals && other < frame.locals_on(node)).then_some(Pair { own, other, tag })
}
