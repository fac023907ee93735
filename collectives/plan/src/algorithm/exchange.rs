//! Gather, scatter, all_gather and all_to_all by direct exchange. Between two nodes small blocks are copied together
//! into one message; larger ones go from buffer to buffer without a copy. Which of the two depends on the length of
//! the block alone, which both of its ends know. Blocks and messages of no bytes do not exist.
//!
//! Steps: the local part; copies of small blocks into messages; for every two rounds their messages and larger blocks, one slot
//! behind the other; copies of small blocks out of messages. All nodes go through rounds and slots in one order, with a slot's
//! receives and sends side by side, so no circle of nodes can wait: what the one that is least far waits for, another one
//! can do. Two rounds are together because what comes in the one may overwrite what goes in the other.

use super::{Frame, Size, align, local, nothing, one, outputs, pattern, scratch, times};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};
use pattern::Piece;
use ringway_types::Operation as O;

/// In-place blocks that may be waiting in scratch for their own place to be sent.
const STAGES: u32 = 8;

/// Packed messages of two rounds: a receive and a send of either.
const PACKED_STEPS: u32 = 4;

/// A tag no slot has.
const PACKED: u32 = u16::MAX as u32;

/// Where the parts of the plan start and how wide they are.
struct Parts {
    width: u32,
    /// Steps of a slot in two rounds.
    slot: u32,
    /// Steps of two rounds.
    each: u32,
    /// Whether there are packed messages.
    packed: bool,
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
    let slot = if stages_needed(frame) || copies_on(frame) { 6 } else { 4 };
    let packs = local::steps(frame);
    let messages = packs.saturating_add(if out { times(rounds, width) } else { 0 });
    let each =
        (if packed { PACKED_STEPS } else { 0 }).saturating_add(if single { times(width, slot) } else { 0 });
    let unpacks = messages.saturating_add(times(rounds.div_ceil(2), each));
    let end = unpacks.saturating_add(if into { times(rounds, width) } else { 0 });
    let stride = align(longest.min(frame.pack).saturating_mul(u64::from(width)));
    let area = |used: bool| if used { stride.saturating_mul(u64::from(rounds)) } else { 0 };
    let stages = if single && stages_needed(frame) { u64::from(STAGES) } else { 0 };
    let incoming = area(out);
    let staged = incoming.saturating_add(area(into));
    let scratch = staged.saturating_add(frame.slot(longest).saturating_mul(stages));
    Parts {
        width,
        slot,
        each,
        packed,
        packs,
        messages,
        unpacks,
        end,
        stride,
        incoming,
        stages: staged,
        scratch,
    }
}

/// Whether what comes is copied on to other ranks.
fn copies_on(frame: &Frame<'_>) -> bool {
    is_all_gather(frame) && frame.locals() > 1
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
        let at = index - parts.messages;
        let (double, at) = (at / parts.each.max(1), at % parts.each.max(1));
        match at.checked_sub(if parts.packed { PACKED_STEPS } else { 0 }) {
            None => message(frame, &parts, 2 * double + at / 2, at % 2 == 1),
            Some(at) => single(frame, &parts, double, at),
        }
    } else if index < parts.end {
        let at = index - parts.unpacks;
        unpack(frame, &parts, at / width, at % width)
    } else {
        nothing()
    }
}

/// What a message of one of two rounds waits for where a node does one round behind the other: the first of them for the two
/// rounds before, the second one for what is in its place in the first.
pub(super) fn round_before(frame: &Frame<'_>, index: u32) -> core::ops::Range<u32> {
    let parts = parts(frame);
    let at = index.saturating_sub(parts.messages);
    let (double, at) = (at / parts.each.max(1), at % parts.each.max(1));
    let phase = at.checked_sub(if parts.packed { PACKED_STEPS } else { 0 }).map_or(at, |at| at % parts.slot);
    if phase >= 2 {
        return index - phase..index - phase + 2;
    }
    let start = |double| parts.messages.saturating_add(times(double, parts.each));
    start(double.saturating_sub(1))..start(double)
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
    let Some(node) = pattern::to(frame, round) else { return nothing() };
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
    let peer = if send { pattern::to(frame, round) } else { pattern::from(frame, round) };
    let Some(peer) = peer else { return nothing() };
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
    let Some(node) = pattern::from(frame, round) else { return nothing() };
    let Some(piece) = pattern::incoming(frame, node, slot) else { return nothing() };
    let length = small_length(frame, &piece);
    if length == 0 {
        return nothing();
    }
    let at = parts.incoming.saturating_add(parts.stride.saturating_mul(u64::from(round)));
    let offset = at.saturating_add(packed_before(frame, slot, node, pattern::incoming));
    let received = parts.messages.saturating_add(times(round / 2, parts.each)).saturating_add(round % 2 * 2);
    // In place this overwrites the block that goes the other way: it must have been copied.
    let copied = if needs_stage(frame, &piece) {
        let back = pattern::returning(frame, round);
        one(parts.packs.saturating_add(times(back, parts.width)).saturating_add(slot))
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

/// Blocks that go on their own, in one slot of two rounds: receive and send of either round, then what is to be done with what
/// was received in either.
fn single(frame: &Frame<'_>, parts: &Parts, double: u32, at: u32) -> Step {
    let (slot, phase) = (at / parts.slot, at % parts.slot);
    let (second, part) = if phase < 4 { (phase / 2, phase % 2) } else { (phase - 4, 2) };
    let first = step_of(parts, times(double, parts.width).saturating_add(slot));
    // Stages are used by turns; slots that use none hand theirs on.
    let number = times(times(double, parts.width).saturating_add(slot), 2).saturating_add(second);
    let before = number.checked_sub(STAGES).filter(|_| stages_needed(frame));
    let stage_free =
        before.map_or(0..0, |before| one(step_of(parts, before / 2).saturating_add(4 + before % 2)));
    let unused = || match part {
        2 => Step { action: Action::Nothing, after: [stage_free.clone(), 0..0] },
        _ => nothing(),
    };
    let (round, send) = (2 * double + second, part == 1);
    let peer = if send { pattern::to(frame, round) } else { pattern::from(frame, round) };
    let Some(peer) = peer else { return unused() };
    let block = if send { pattern::outgoing } else { pattern::incoming };
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
    match (part, needs_stage(frame, &piece)) {
        (1, _) => Step::free(Action::Send { peer, tag, from: span }),
        (0, false) => Step::free(Action::Receive { peer, tag, into: span }),
        (0, true) => Step { action: Action::Receive { peer, tag, into: stage }, after: [stage_free, 0..0] },
        (_, true) => {
            let Place::Output(local) = piece.place else { return unused() };
            let into = outputs(OutputSet::One(local), offset);
            // What it overwrites goes in one of these two rounds as well.
            Step { action: Action::Copy { from: stage, into }, after: [first..first + 4, 0..0] }
        }
        (_, false) if copies_on(frame) => {
            let into = outputs(OutputSet::AllBut(0), offset);
            super::after(Action::Copy { from: span, into }, first + 2 * second)
        }
        _ => unused(),
    }
}

/// The first step of a slot, of all slots of all double rounds counted through.
fn step_of(parts: &Parts, number: u32) -> u32 {
    let width = parts.width.max(1);
    let packed = if parts.packed { PACKED_STEPS } else { 0 };
    let in_double = times(number % width, parts.slot).saturating_add(packed);
    parts.messages.saturating_add(times(number / width, parts.each)).saturating_add(in_double)
}

/// Whether a received block's place is also where one is sent from.
fn needs_stage(frame: &Frame<'_>, piece: &Piece) -> bool {
    matches!((stages_needed(frame), piece.place), (true, Place::Output(local)) if frame.in_place(local))
}

const fn is_all_gather(frame: &Frame<'_>) -> bool {
    matches!(frame.view.call.operation, O::AllGather | O::AllGatherV)
}
