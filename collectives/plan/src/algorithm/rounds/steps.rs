//! Rounds as steps. A reduce-scatter: combine local inputs, block by block; then for every round a send, a receive into
//! room of its own, and a combination with what is there; then the combinations that finish. An all-gather: for every
//! round a send, a receive, and a step that is done when that round and those before it are; then copies out, in the order of the
//! rounds.
//!
//! The blocks of an allreduce that are a piece of the vector where they lie are gathered in the first output, from which
//! they are copied to the others, a round's together; else in scratch memory, from which they are copied to all.

use core::ops::Range;

use ringway_types::Operation as O;

use super::blocks::Blocks;
use super::{Exchange, Slots, is_vector};
use crate::algorithm::{
    Frame, Size, inputs, into_scratch, local, nothing, one, outputs, partials, reduce_into_scratch, scratch,
    times,
};
use crate::{Action, OutputSet, Place, Span, Step, Targets};

/// A chunk of a plan, and the numbers of the steps at which its parts end.
struct Parts<'a> {
    frame: &'a Frame<'a>,
    blocks: Blocks<'a>,
    rounds: u32,
    lanes: u32,
    /// Whether blocks are gathered in the first output.
    natural: bool,
    /// The local part of an all_gather.
    local: u32,
    /// Local inputs combined, or this node's own blocks of an all_gather put into scratch memory.
    prepared: u32,
    scattered: u32,
    finished: u32,
    gathered: u32,
    end: u32,
}

impl<'a> Parts<'a> {
    fn new(frame: &'a Frame<'a>) -> Self {
        let blocks = Blocks::new(frame);
        let (rounds, lanes) = (blocks.schedule.rounds(), blocks.schedule.lanes());
        let (all, pieces) = (blocks.schedule.blocks(), blocks.pieces());
        let (scatters, gathers) = match frame.view.call.operation {
            O::Allreduce => (true, true),
            O::ReduceScatter | O::ReduceScatterV => (true, false),
            _ => (false, true),
        };
        let natural = is_vector(frame) && blocks.schedule.is_natural();
        let when = |wanted: bool, steps: u32| if wanted { steps } else { 0 };
        let local = when(!scatters, frame.locals());
        let prepared = match (scatters, natural) {
            (true, true) => 1,
            (true, false) => times(all, pieces),
            (false, _) => times(lanes, pieces),
        };
        let prepared = local.saturating_add(prepared);
        let scattered = prepared.saturating_add(when(scatters, times(rounds, 3)));
        let finished = scattered.saturating_add(when(scatters, times(lanes, pieces)));
        let gathered = finished.saturating_add(when(gathers, times(rounds, 3)));
        let copies = gathers && !(natural && frame.locals() == 1);
        let copied = if natural { rounds } else { times(all, pieces) };
        let end = gathered.saturating_add(when(copies, copied));
        Self { frame, blocks, rounds, lanes, natural, local, prepared, scattered, finished, gathered, end }
    }

    /// Whether partial results are scattered before blocks are gathered.
    const fn scatters(&self) -> bool {
        self.scattered > self.prepared
    }

    /// A step of a round of the reduce-scatter: its send, its receive, its combination.
    fn scatter(&self, round: u32, phase: u32) -> u32 {
        self.prepared + times(self.rounds - 1 - round, 3) + phase
    }

    /// A step of a round of the all-gather: its send, its receive, its end.
    fn gather(&self, round: u32, phase: u32) -> u32 {
        self.finished + times(round, 3) + phase
    }

    /// What the combination in a round needs of others before it.
    fn combined(&self, before: Option<u32>) -> Range<u32> {
        before.map_or(0..self.prepared, |round| one(self.scatter(round, 2)))
    }

    /// The combination before that of a round, in its lane.
    fn combined_before(&self, round: u32) -> Range<u32> {
        let before = round.saturating_add(self.lanes);
        self.combined((before < self.rounds).then_some(before))
    }

    /// What is there when a round of the all-gather is over, or this node's own block.
    fn held(&self, round: Option<u32>, lane: u32) -> Range<u32> {
        let Some(round) = round else {
            let pieces = self.blocks.pieces();
            let own = if self.scatters() { self.scattered } else { self.local };
            let first = own.saturating_add(times(lane, pieces));
            return first..first.saturating_add(pieces);
        };
        one(self.gather(round, 2))
    }

    /// Where blocks are gathered.
    fn gathering(&self, slots: Slots) -> Span {
        let (start, length) = self.blocks.span(slots);
        if self.natural {
            let offset = self.frame.range().0.saturating_add(start);
            Span { place: Place::Output(0), offset, length }
        } else {
            scratch(start, length)
        }
    }

    /// Where what comes in a round of the reduce-scatter is put.
    fn buffer(&self, round: u32, exchange: &Exchange) -> u64 {
        let schedule = &self.blocks.schedule;
        let slot = schedule.blocks().saturating_add(schedule.buffer(round, exchange));
        self.blocks.stride().saturating_mul(u64::from(slot))
    }
}

pub(in crate::algorithm) fn size(frame: &Frame<'_>) -> Size {
    let parts = Parts::new(frame);
    let schedule = &parts.blocks.schedule;
    let buffers = if parts.scatters() { schedule.blocks().saturating_add(schedule.extra()) } else { 0 };
    let slots = u64::from(schedule.blocks()).saturating_add(u64::from(buffers));
    let extent = if is_vector(frame) { frame.vector() } else { frame.longest_block() };
    Size { extent, steps: parts.end, scratch: parts.blocks.stride().saturating_mul(slots) }
}

pub(in crate::algorithm) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let parts = Parts::new(frame);
    let pieces = parts.blocks.pieces();
    if index < parts.local {
        local::step(frame, index)
    } else if index < parts.prepared {
        let at = index - parts.local;
        prepare(&parts, at / pieces, at % pieces).map_or_else(nothing, Step::free)
    } else if index < parts.scattered {
        let at = index - parts.prepared;
        scatter(&parts, parts.rounds - 1 - at / 3, at % 3)
    } else if index < parts.finished {
        let at = index - parts.scattered;
        finish(&parts, at / pieces, at % pieces)
    } else if index < parts.gathered {
        let at = index - parts.finished;
        gather(&parts, at / 3, at % 3)
    } else if index < parts.end {
        let at = index - parts.gathered;
        copy_out(&parts, at / pieces, at % pieces)
    } else {
        nothing()
    }
}

/// Combines the local inputs of a block, or copies this node's own one, into scratch memory.
fn prepare(parts: &Parts<'_>, number: u32, local: u32) -> Option<Action> {
    let (frame, blocks) = (parts.frame, &parts.blocks);
    if parts.natural {
        let (offset, length) = frame.range();
        return Some(reduce_into_scratch(inputs(offset), length, 0));
    }
    if parts.scatters() {
        let piece = blocks.piece(number, local)?;
        let into = blocks.place(number).saturating_add(piece.within);
        return Some(reduce_into_scratch(inputs(piece.all), piece.length, into));
    }
    let own = blocks.schedule.own(number)?;
    let piece = blocks.piece(own, local)?;
    let from = Span { place: Place::Input(local), offset: piece.alone, length: piece.length };
    let into = blocks.place(own).saturating_add(piece.within);
    Some(Action::Copy { from, into: into_scratch(into) })
}

/// A step of the reduce-scatter: a round of the all-gather backwards in time.
fn scatter(parts: &Parts<'_>, round: u32, phase: u32) -> Step {
    let (blocks, schedule) = (&parts.blocks, &parts.blocks.schedule);
    let exchange = schedule.exchange(round);
    let (peer, slots) =
        if phase == 0 { (exchange.from, exchange.receive) } else { (exchange.to, exchange.send) };
    let (start, length) = blocks.span(slots);
    let before = parts.combined_before(round);
    // Whoever waits for this combination waits for those before it as well.
    let idle =
        Step { action: Action::Nothing, after: [if phase == 2 { before.clone() } else { 0..0 }, 0..0] };
    let Some(peer) = peer.filter(|_| length > 0) else { return idle };
    match phase {
        0 => Step {
            action: Action::Send { peer, tag: round, from: scratch(start, length) },
            after: [parts.combined(schedule.needed_to_scatter(round)), 0..0],
        },
        1 => {
            let into = scratch(parts.buffer(round, &exchange), length);
            Step::free(Action::Receive { peer, tag: round, into })
        }
        // The last one of each lane finishes.
        _ if round < parts.lanes && schedule.own(round).is_some() => idle,
        _ => {
            let sources = partials(start, parts.buffer(round, &exchange).saturating_sub(start), 2);
            Step {
                action: reduce_into_scratch(sources, length, start),
                after: [one(parts.scatter(round, 1)), before],
            }
        }
    }
}

/// Combines what this node finishes with what came last.
fn finish(parts: &Parts<'_>, lane: u32, local: u32) -> Step {
    let (blocks, schedule) = (&parts.blocks, &parts.blocks.schedule);
    let Some(own) = schedule.own(lane) else { return nothing() };
    let Some(piece) = blocks.piece(own, local) else { return nothing() };
    let start = blocks.place(own).saturating_add(piece.within);
    let buffer = parts.buffer(lane, &schedule.exchange(lane)).saturating_add(piece.within);
    let into = if is_vector(parts.frame) {
        let scratch = (!parts.natural).then_some(start);
        Targets { outputs: OutputSet::All, offset: piece.all, scratch }
    } else {
        outputs(OutputSet::One(local), piece.alone)
    };
    let sources = partials(start, buffer.saturating_sub(start), 2);
    Step {
        action: Action::Reduce { sources, into, length: piece.length, finish: true },
        after: [one(parts.scatter(lane, 1)), parts.combined_before(lane)],
    }
}

/// A step of the all-gather.
fn gather(parts: &Parts<'_>, round: u32, phase: u32) -> Step {
    let schedule = &parts.blocks.schedule;
    let lane = round % parts.lanes.max(1);
    if phase == 2 {
        let before = parts.held(round.checked_sub(parts.lanes), lane);
        return Step { action: Action::Nothing, after: [one(parts.gather(round, 1)), before] };
    }
    let exchange = schedule.exchange(round);
    let (peer, slots) =
        if phase == 0 { (exchange.to, exchange.send) } else { (exchange.from, exchange.receive) };
    let span = parts.gathering(slots);
    let Some(peer) = peer.filter(|_| span.length > 0) else { return nothing() };
    let tag = parts.rounds.saturating_add(round);
    if phase == 0 {
        let held = parts.held(schedule.needed_to_gather(round), lane);
        return Step { action: Action::Send { peer, tag, from: span }, after: [held, 0..0] };
    }
    // In scratch memory this overwrites partial results: they must have been sent. In place it overwrites inputs: they were
    // read before partial results of them were sent, without which these blocks would not come.
    let sent = if parts.scatters() && !parts.natural { one(parts.scatter(round, 0)) } else { 0..0 };
    Step { action: Action::Receive { peer, tag, into: span }, after: [sent, 0..0] }
}

/// Copies what was received to the outputs that do not have it, in the order in which it comes: a round's blocks together where
/// they are a piece of the vector, else each block's piece of a rank on its own.
fn copy_out(parts: &Parts<'_>, number: u32, local: u32) -> Step {
    let (blocks, schedule) = (&parts.blocks, &parts.blocks.schedule);
    if parts.natural {
        let exchange = schedule.exchange(number);
        let from = parts.gathering(exchange.receive);
        if exchange.from.is_none() || from.length == 0 {
            return nothing();
        }
        let action = Action::Copy { from, into: outputs(OutputSet::AllBut(0), from.offset) };
        return super::super::after(action, parts.gather(number, 1));
    }
    let Some((round, slot)) = schedule.received(number) else { return nothing() };
    let Some(piece) = blocks.piece(schedule.block(slot), local) else { return nothing() };
    let from = scratch(blocks.start(slot).saturating_add(piece.within), piece.length);
    let action = Action::Copy { from, into: outputs(OutputSet::All, piece.all) };
    super::super::after(action, parts.gather(round, 1))
}
