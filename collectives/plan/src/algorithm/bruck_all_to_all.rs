//! All_to_all of short blocks by way of other nodes (Bruck and others 1997): a bundle for the node `i` places on goes in
//! round `k` where bit `k` of `i` is set, `2^k` places on, together with all others of which that is so. So there are
//! `ceil(log2 N)` rounds of one message each way, and between powers of two of nodes `log2 N (a + n / 2 b)`.
//!
//! A message is put together from where its bundles are: the inputs, or the messages they came in. So a bundle is
//! copied once for each message it is in, and once more at the end.

use core::ops::Range;

use super::{Frame, Size, align, bundle, into_scratch, local, nothing, one, scratch, times};
use crate::{Action, Cost, Step, Terms, View};

/// A message has a piece of a block for each pair of ranks of half of all pairs of this node and another one.
pub(super) fn unit(view: &View<'_>, chunk_bytes: u64) -> u64 {
    let most = u64::from(view.layout.most_local());
    let pieces = most.saturating_mul(most).saturating_mul(u64::from(view.layout.nodes() / 2));
    chunk_bytes / pieces.max(1)
}

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let bundles: u32 = (0..rounds(terms.nodes.max(1))).map(|round| carried(terms.nodes, round)).sum();
    let bytes = f64::from(bundles) * terms.bytes / terms.n();
    Cost {
        rounds: terms.log2_up(),
        link_bytes: bytes,
        port_bytes: bytes,
        messages: 2.0 * terms.log2_up(),
        sent: bytes,
        ..Cost::default()
    }
}

fn rounds(nodes: u32) -> u32 {
    u32::BITS - (nodes - 1).leading_zeros()
}

/// Bundles in the message of a round: how many distances below `nodes` have its bit.
const fn carried(nodes: u32, round: u32) -> u32 {
    let (half, over) = (1 << round, nodes as u64 % (2 << round));
    let whole = nodes as u64 / (2 << round) * half;
    (whole + over.saturating_sub(half)) as u32
}

/// The distance of the `place`-th bundle in the message of a round.
const fn distance(round: u32, place: u32) -> u32 {
    ((place >> round) << (round + 1)) | (1 << round) | (place & ((1 << round) - 1))
}

/// The place in the message of a round of the bundle for a distance that has its bit.
const fn place(round: u32, distance: u32) -> u32 {
    ((distance >> (round + 1)) << round) | (distance & ((1 << round) - 1))
}

/// Where the parts of the plan start.
struct Parts {
    rounds: u32,
    width: u32,
    packs: u32,
    passes: u32,
    /// Steps of a round: as many copies as a message may have bundles, a send, a receive. Those two stand beside each other, as a
    /// receive that others' sends must wait for may not keep these out of the window of steps under way.
    each: u32,
    unpacks: u32,
    end: u32,
    /// Bytes of a message in scratch.
    stride: u64,
}

fn parts(frame: &Frame<'_>) -> Parts {
    let (nodes, width, packs) = (frame.nodes(), bundle::width(frame), local::steps(frame));
    let rounds = rounds(nodes);
    let most = (0..rounds).map(|round| carried(nodes, round)).max().unwrap_or(0);
    let passes = packs.saturating_add(times(nodes - 1, width));
    let each = most.saturating_add(2);
    let unpacks = passes.saturating_add(times(rounds, each));
    let end = unpacks.saturating_add(times(nodes - 1, width));
    let stride = align(bundle::longest(frame).saturating_mul(u64::from(most)));
    Parts { rounds, width, packs, passes, each, unpacks, end, stride }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let parts = parts(frame);
    let messages = 2 * u64::from(parts.rounds);
    Size { extent: frame.view.block(0).1, steps: parts.end, scratch: parts.stride.saturating_mul(messages) }
}

/// The local part; copies from inputs into the first message of each bundle, messages of earlier rounds first; for
/// every round copies of bundles that came before, a send, a receive; copies to outputs.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let parts = parts(frame);
    let width = parts.width.max(1);
    if index < parts.packs {
        return local::step(frame, index);
    }
    let action = if index < parts.passes {
        let at = index - parts.packs;
        let (round, distance) = first_of(frame.nodes(), at / width);
        let into = sent(frame, &parts, round, distance);
        bundle::pack(frame, frame.node_after(distance), at % width, into).map(Step::free)
    } else if index < parts.unpacks {
        let at = index - parts.passes;
        message(frame, &parts, at / parts.each, at % parts.each)
    } else if index < parts.end {
        let at = index - parts.unpacks;
        unpack(frame, &parts, at / width + 1, at % width)
    } else {
        None
    };
    action.unwrap_or(nothing())
}

/// Bundles that go in a later round first: distances that are multiples of `2^(round + 1)`.
const fn later(nodes: u32, round: u32) -> u32 {
    ((nodes as u64 - 1) >> (round + 1)) as u32
}

/// The number of the first bundle that goes in a round first, where they are counted round by round.
const fn first_in(nodes: u32, round: u32) -> u32 {
    match round.checked_sub(1) {
        Some(before) => nodes - 1 - later(nodes, before),
        None => 0,
    }
}

/// The round in which a bundle goes first, and its distance, of its number.
fn first_of(nodes: u32, number: u32) -> (u32, u32) {
    let round = (0..rounds(nodes)).take_while(|round| first_in(nodes, *round) <= number).last().unwrap_or(0);
    let odd = 2 * u64::from(number - first_in(nodes, round)) + 1;
    (round, u32::try_from(odd << round).unwrap_or(0) % nodes)
}

/// The number of a bundle among those that go first in some round.
const fn number(nodes: u32, distance: u32) -> u32 {
    let round = distance.trailing_zeros();
    first_in(nodes, round) + (distance as u64 >> (round + 1)) as u32
}

/// Where a bundle starts in the message that goes `back` places back of this node in a round.
fn offset(frame: &Frame<'_>, back: u32, round: u32, at: u32) -> u64 {
    let length = |place: u32| {
        let distance = distance(round, place);
        let source = frame.node_before(back + (distance & ((1 << round) - 1)));
        let destination = u64::from(source) + u64::from(distance);
        let destination = u32::try_from(destination % u64::from(frame.nodes())).unwrap_or(0);
        bundle::length(frame, source, destination)
    };
    if frame.view.layout.ranks() == times(frame.nodes(), frame.most_local()) {
        return length(0).saturating_mul(u64::from(at));
    }
    (0..at).map(length).fold(0, u64::saturating_add)
}

/// Where in scratch a bundle is in the message that this node sends in a round.
fn sent(frame: &Frame<'_>, parts: &Parts, round: u32, distance: u32) -> u64 {
    let at = offset(frame, 0, round, place(round, distance));
    parts.stride.saturating_mul(u64::from(round)).saturating_add(at)
}

/// Where it is in the message that this node receives.
fn received(frame: &Frame<'_>, parts: &Parts, round: u32, distance: u32) -> u64 {
    let at = offset(frame, 1 << round, round, place(round, distance));
    parts.stride.saturating_mul(u64::from(parts.rounds + round)).saturating_add(at)
}

const fn receive_step(parts: &Parts, round: u32) -> Range<u32> {
    one(parts.passes.saturating_add(times(round + 1, parts.each)).saturating_sub(1))
}

fn message(frame: &Frame<'_>, parts: &Parts, round: u32, at: u32) -> Option<Step> {
    let (nodes, count) = (frame.nodes(), carried(frame.nodes(), round));
    if at + 1 == parts.each {
        let (peer, length) = (frame.node_before(1 << round), offset(frame, 1 << round, round, count));
        let into = scratch(received(frame, parts, round, 1 << round), length);
        return Some(Step::free(Action::Receive { peer, tag: round, into }));
    }
    if at + 2 == parts.each {
        let (peer, length) = (frame.node_after(1 << round), offset(frame, 0, round, count));
        let from = scratch(sent(frame, parts, round, 1 << round), length);
        let step = |number: u32| parts.packs.saturating_add(times(number, parts.width));
        let packed = step(first_in(nodes, round))..step(first_in(nodes, round + 1));
        let first = parts.passes.saturating_add(times(round, parts.each));
        let action = Action::Send { peer, tag: round, from };
        return Some(Step { action, after: [packed, first..first.saturating_add(at)] });
    }
    let distance = distance(round, at);
    let before = distance & ((1 << round) - 1);
    if at >= count || before == 0 {
        return None;
    }
    // It came in the last round before this one in which it went.
    let earlier = before.ilog2();
    let source = frame.node_before(before);
    let destination = frame.node_after(distance - before);
    let length = bundle::length(frame, source, destination);
    let from = scratch(received(frame, parts, earlier, distance), length);
    let into = into_scratch(sent(frame, parts, round, distance));
    Some(Step { action: Action::Copy { from, into }, after: [receive_step(parts, earlier), 0..0] })
}

fn unpack(frame: &Frame<'_>, parts: &Parts, distance: u32, slot: u32) -> Option<Step> {
    let (round, source) = (distance.ilog2(), frame.node_before(distance));
    let (action, in_place) = bundle::unpack(frame, source, slot, received(frame, parts, round, distance))?;
    // In place this overwrites the block that goes the other way: it must have been copied.
    let back = number(frame.nodes(), frame.nodes() - distance);
    let copied = parts.packs.saturating_add(times(back, parts.width)).saturating_add(slot);
    let copied = if in_place { one(copied) } else { 0..0 };
    Some(Step { action, after: [receive_step(parts, round), copied] })
}
