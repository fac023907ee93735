//! Gather, scatter, all_gather and all_to_all by direct exchange. Between two nodes small blocks are copied together
//! into one message; larger ones go from buffer to buffer without a copy. Which of the two depends on the length of
//! the block alone, which both of its ends know. Blocks and messages of no bytes do not exist.
//!
//! Steps: the local part; copies of small blocks into messages; for every round the message each way and larger
//! blocks, one slot behind the other; copies of small blocks out of messages. A round has one partner and both of its
//! nodes go through the slots in one order, each slot's receive and send side by side, so no circle of nodes can wait.

use super::{Frame, Size, align, local, nothing, one, outputs, pattern, scratch, times};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};
use pattern::Piece;
use ringway_types::Operation as O;

/// In-place blocks that may be waiting in scratch for their own place to be sent.
const STAGES: u32 = 8;

/// A tag no slot has.
const PACKED: u32 = u16::MAX as u32;

/// Where the parts of the plan start and how wide they are.
struct Parts {
    width: u32,
    /// Whether there are packed messages, and blocks that go on their own.
    packed: bool,
    single: bool,
    packs: u32,
    messages: u32,
    unpacks: u32,
    end: u32,
    /// Bytes from one packed message in scratch to the next.
    stride: u64,
    incoming: u64,
    stages: u64,
    scratch: u64,
}

fn parts(frame: &Frame<'_>) -> Parts {
    let (rounds, width) = (pattern::rounds(frame), pattern::width(frame));
    let longest = pattern::longest(frame);
    let packed = frame.pack > 0 && (!frame.is_uniform() || longest <= frame.pack);
    let single = !frame.is_uniform() || longest > frame.pack;
    let (out, into) = (packed && pattern::sends(frame), packed && pattern::receives(frame));
    let packs = local::steps(frame);
    let messages = packs.saturating_add(if out { times(rounds, width) } else { 0 });
    let each = message_steps(packed, single, width);
    let unpacks = messages.saturating_add(times(rounds, each));
    let end = unpacks.saturating_add(if into { times(rounds, width) } else { 0 });
    let stride = align(longest.min(frame.pack).saturating_mul(u64::from(width)));
    let area = |used: bool| if used { stride.saturating_mul(u64::from(rounds)) } else { 0 };
    let stages = if single && stages_needed(frame) { u64::from(STAGES) } else { 0 };
    let incoming = area(out);
    let staged = incoming.saturating_add(area(into));
    let scratch = staged.saturating_add(frame.slot(longest).saturating_mul(stages));
    Parts { width, packed, single, packs, messages, unpacks, end, stride, incoming, stages: staged, scratch }
}

const fn message_steps(packed: bool, single: bool, width: u32) -> u32 {
    let message = if packed { 2 } else { 0 };
    if single { times(width, 3).saturating_add(message) } else { message }
}

/// Whether a block may arrive where another one is still to be sent from.
fn stages_needed(frame: &Frame<'_>) -> bool {
    matches!(frame.view.call.operation, O::AllToAll | O::AllToAllV) && frame.view.in_place.contains(&true)
}

/// All_gather: `a + (N - 1) n / N b`.
pub(super) fn all_gather_cost(terms: &Terms) -> Cost {
    let (others, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    Cost {
        rounds: 1.0,
        link_bytes: part,
        port_bytes: others * part,
        messages: 2.0 * others,
        sent: others * part,
        ..Cost::default()
    }
}

/// Of `n` bytes that a node gives away, or that a root has for all, one part is for each node.
pub(super) fn cost(terms: &Terms) -> Cost {
    all_gather_cost(terms)
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let parts = parts(frame);
    Size { extent: pattern::longest(frame), steps: parts.end, scratch: parts.scratch }
}

pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let parts = parts(frame);
    let width = parts.width.max(1);
    if index < parts.packs {
        local::step(frame, index)
    } else if index < parts.messages {
        let at = index - parts.packs;
        pack(frame, &parts, at / width, at % width)
    } else if index < parts.unpacks {
        let each = message_steps(parts.packed, parts.single, parts.width).max(1);
        let at = index - parts.messages;
        let (round, at) = (at / each, at % each);
        if !parts.packed {
            return single(frame, &parts, round, at, index);
        }
        if at < 2 {
            message(frame, &parts, round, at == 1)
        } else {
            single(frame, &parts, round, at - 2, index)
        }
    } else if index < parts.end {
        let at = index - parts.unpacks;
        unpack(frame, &parts, at / width, at % width)
    } else {
        nothing()
    }
}

/// The messages of the two rounds before that of a message: in one of them this node may have met nobody.
pub(super) fn rounds_before(frame: &Frame<'_>, index: u32) -> core::ops::Range<u32> {
    let parts = parts(frame);
    let each = message_steps(parts.packed, parts.single, parts.width).max(1);
    let round = index.saturating_sub(parts.messages) / each;
    let start = |round| parts.messages.saturating_add(times(round, each));
    start(round.saturating_sub(2))..start(round)
}

/// The bytes of the small blocks before a slot in the packed message to or from a node.
fn packed_before(
    frame: &Frame<'_>,
    slot: u32,
    node: u32,
    block: fn(&Frame<'_>, u32, u32) -> Option<Piece>,
) -> u64 {
    let small = |slot| block(frame, node, slot).map_or(0, |piece| small_length(frame, &piece));
    if frame.is_uniform() {
        if frame.chunk > 0 {
            return 0;
        }
        let before = (0..slot).filter(|slot| block(frame, node, *slot).is_some()).count() as u64;
        return before.saturating_mul(frame.view.block(0).1);
    }
    (0..slot).map(small).fold(0, u64::saturating_add)
}

/// The bytes a block has in the packed message of this chunk: all of them, in the first chunk, if it is small.
fn small_length(frame: &Frame<'_>, piece: &Piece) -> u64 {
    if frame.chunk == 0 && piece.length <= frame.pack { piece.length } else { 0 }
}

fn pack(frame: &Frame<'_>, parts: &Parts, round: u32, slot: u32) -> Step {
    let Some(node) = pattern::partner(frame, round) else { return nothing() };
    let Some(piece) = pattern::outgoing(frame, node, slot) else { return nothing() };
    let length = small_length(frame, &piece);
    if length == 0 {
        return nothing();
    }
    let at = parts.stride.saturating_mul(u64::from(round));
    let offset = at.saturating_add(packed_before(frame, slot, node, pattern::outgoing));
    Step::free(Action::Copy {
        from: Span { place: piece.place, offset: piece.start, length },
        into: super::into_scratch(offset),
    })
}

fn message(frame: &Frame<'_>, parts: &Parts, round: u32, send: bool) -> Step {
    let Some(peer) = pattern::partner(frame, round) else { return nothing() };
    let at = parts.stride.saturating_mul(u64::from(round));
    let block = if send { pattern::outgoing } else { pattern::incoming };
    let length = packed_before(frame, parts.width, peer, block);
    if frame.chunk > 0 || length == 0 {
        return nothing();
    }
    if !send {
        let into = scratch(parts.incoming.saturating_add(at), length);
        return Step::free(Action::Receive { peer, tag: PACKED, into });
    }
    let first = parts.packs.saturating_add(times(round, parts.width));
    Step {
        action: Action::Send { peer, tag: PACKED, from: scratch(at, length) },
        after: [first..first.saturating_add(parts.width), 0..0],
    }
}

fn unpack(frame: &Frame<'_>, parts: &Parts, round: u32, slot: u32) -> Step {
    let Some(node) = pattern::partner(frame, round) else { return nothing() };
    let Some(piece) = pattern::incoming(frame, node, slot) else { return nothing() };
    let length = small_length(frame, &piece);
    if length == 0 {
        return nothing();
    }
    let at = parts.incoming.saturating_add(parts.stride.saturating_mul(u64::from(round)));
    let offset = at.saturating_add(packed_before(frame, slot, node, pattern::incoming));
    let each = message_steps(parts.packed, parts.single, parts.width);
    let received = parts.messages.saturating_add(times(round, each));
    // In place this overwrites the block that goes the other way: it must have been copied.
    let copied = if needs_stage(frame, &piece) {
        one(parts.packs.saturating_add(times(round, parts.width)).saturating_add(slot))
    } else {
        0..0
    };
    let set = match piece.place {
        _ if is_all_gather(frame) => OutputSet::All,
        Place::Output(local) => OutputSet::One(local),
        _ => OutputSet::None,
    };
    Step {
        action: Action::Copy { from: scratch(offset, length), into: outputs(set, piece.start) },
        after: [one(received), copied],
    }
}

/// A block that goes on its own: receive, send, and what is to be done with what was received.
fn single(frame: &Frame<'_>, parts: &Parts, round: u32, at: u32, index: u32) -> Step {
    let (slot, phase) = (at / 3, at % 3);
    let number = times(round, parts.width).saturating_add(slot);
    // The slot that used the same stage before. Slots that use none hand it on.
    let before = number.checked_sub(STAGES).filter(|_| stages_needed(frame));
    let stage_free = before.map_or(0..0, |before| one(unstaged(parts, before)));
    let unused = || match phase {
        2 => Step { action: Action::Nothing, after: [stage_free.clone(), 0..0] },
        _ => nothing(),
    };
    let Some(peer) = pattern::partner(frame, round) else { return unused() };
    let block = if phase == 1 { pattern::outgoing } else { pattern::incoming };
    let Some(piece) = block(frame, peer, slot) else { return unused() };
    let (start, length) = frame.cut(piece.length);
    if length == 0 || piece.length <= frame.pack {
        return unused();
    }
    let offset = piece.start.saturating_add(start);
    let span = Span { place: piece.place, offset, length };
    let stage = frame.slot(pattern::longest(frame)).saturating_mul(u64::from(number % STAGES));
    let stage = scratch(parts.stages.saturating_add(stage), length);
    let tag = piece.tag;
    match (phase, needs_stage(frame, &piece)) {
        (1, _) => Step::free(Action::Send { peer, tag, from: span }),
        (0, false) => Step::free(Action::Receive { peer, tag, into: span }),
        (0, true) => Step { action: Action::Receive { peer, tag, into: stage }, after: [stage_free, 0..0] },
        (_, true) => {
            let Place::Output(local) = piece.place else { return unused() };
            let into = outputs(OutputSet::One(local), offset);
            Step { action: Action::Copy { from: stage, into }, after: [index - 2..index, 0..0] }
        }
        (_, false) if is_all_gather(frame) && frame.locals() > 1 => {
            let into = outputs(OutputSet::AllBut(0), offset);
            super::after(Action::Copy { from: span, into }, index - 2)
        }
        _ => unused(),
    }
}

/// The step that copies the block with this number out of its stage.
fn unstaged(parts: &Parts, number: u32) -> u32 {
    let each = message_steps(parts.packed, parts.single, parts.width);
    let width = parts.width.max(1);
    let message = if parts.packed { 2 } else { 0 };
    let in_round = times(number % width, 3) + message + 2;
    parts.messages.saturating_add(times(number / width, each)).saturating_add(in_round)
}

/// Whether a received block's place is also where one is sent from.
fn needs_stage(frame: &Frame<'_>, piece: &Piece) -> bool {
    matches!((stages_needed(frame), piece.place), (true, Place::Output(local)) if frame.in_place(local))
}

const fn is_all_gather(frame: &Frame<'_>) -> bool {
    matches!(frame.view.call.operation, O::AllGather | O::AllGatherV)
}
