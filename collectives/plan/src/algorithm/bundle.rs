//! All that the ranks of one node have for those of another one in all_to_all, as one range of bytes: what algorithms
//! pass on that send blocks by way of other nodes. All blocks have one length, as no node knows others' counts.
//!
//! In a bundle the blocks of the source's first rank come first, one for each rank of the destination.

use super::{Frame, into_scratch, outputs, scratch, times};
use crate::{Action, OutputSet, Place, Span};

/// Pieces that a bundle of this node may have: places of steps.
pub(super) fn width(frame: &Frame<'_>) -> u32 {
    times(frame.locals(), frame.most_local())
}

/// Bytes of this chunk's piece of every block.
fn piece(frame: &Frame<'_>) -> u64 {
    frame.cut(frame.view.block(0).1).1
}

/// Bytes of the bundle from one node to another in this chunk.
pub(super) fn length(frame: &Frame<'_>, from: u32, to: u32) -> u64 {
    let blocks = u64::from(frame.locals_on(from)).saturating_mul(u64::from(frame.locals_on(to)));
    blocks.saturating_mul(piece(frame))
}

/// The most bytes of a bundle in any chunk.
pub(super) fn longest(frame: &Frame<'_>) -> u64 {
    let most = u64::from(frame.most_local());
    frame.view.block(0).1.min(frame.unit).saturating_mul(most.saturating_mul(most))
}

/// The place of a piece among the steps of a bundle, and its two ranks: this node's and the other's.
fn pair(frame: &Frame<'_>, node: u32, slot: u32) -> Option<(u32, u32)> {
    let most = frame.most_local().max(1);
    let (own, other) = (slot / most, slot % most);
    (own < frame.locals() && other < frame.locals_on(node)).then_some((own, other))
}

/// Copies one piece of the bundle to a node into it, which is in scratch at `at`.
pub(super) fn pack(frame: &Frame<'_>, node: u32, slot: u32, at: u64) -> Option<Action> {
    let (own, other) = pair(frame, node, slot)?;
    let before = times(own, frame.locals_on(node)).saturating_add(other);
    let (from, into) = (frame.view.sends(own, frame.rank(node, other)?), at);
    let (start, length) = frame.cut(from.1);
    let into = into.saturating_add(length.saturating_mul(u64::from(before)));
    let from = Span { place: Place::Input(own), offset: from.0.saturating_add(start), length };
    (length > 0).then_some(Action::Copy { from, into: into_scratch(into) })
}

/// Copies one piece of the bundle from a node, which is in scratch at `at`, to the output it is for, and says whether
/// that is where a block was sent from.
pub(super) fn unpack(frame: &Frame<'_>, node: u32, slot: u32, at: u64) -> Option<(Action, bool)> {
    let (own, other) = pair(frame, node, slot)?;
    let before = times(other, frame.locals()).saturating_add(own);
    let into = frame.view.receives(own, frame.rank(node, other)?);
    let (start, length) = frame.cut(into.1);
    let from = scratch(at.saturating_add(length.saturating_mul(u64::from(before))), length);
    let into = outputs(OutputSet::One(own), into.0.saturating_add(start));
    (length > 0).then_some((Action::Copy { from, into }, frame.in_place(own)))
}
