//! Runs the plan of one collective on this node, chunk by chunk.

use ringway_plan::{Action, Choice, LOOKAHEAD, Layout, Plan, PlanSettings, Shape, Source, View};
use ringway_verbs::Device;

use super::handing::{Active, PIECES, WORKS};
use super::local::{Ground, Work};
use super::queue::{LocalCall, Queue};
use super::staging::Staged;
use crate::link::Link;
use crate::turn::{Shared, Turn};
use crate::{BufferRef, CommunicatorId, EngineConfig, Failure, RegionId, Signature};

/// The most chunks under way at once. A power of two that fits the three bits it has in an immediate.
pub(crate) const MAX_DEPTH: u32 = 8;
/// Steps that may be under way in a chunk: the first unfinished one and those it may look ahead to.
const WINDOW: u32 = LOOKAHEAD + 1;
/// The most early messages a correct peer can cause: grants and announcements for every step of one collective, and
/// what its credits allow beside them.
pub(crate) const MAX_EARLY: usize = 2 * (MAX_DEPTH * WINDOW) as usize + 1024;
/// Bytes of local work after which another communicator has its turn.
const QUANTUM: u64 = 64 << 10;

/// A receive whose message has not come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActiveReceive {
    pub(crate) step: u32,
    pub(crate) link: usize,
    pub(crate) tag: u32,
    pub(crate) into: BufferRef,
    pub(crate) granted: bool,
}

/// A long send whose grant has not come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActiveSend {
    pub(crate) step: u32,
    pub(crate) link: usize,
    pub(crate) tag: u32,
    pub(crate) from: BufferRef,
}

/// A chunk under way. Bit `i` of the sets stands for step `base + i`.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) chunk: u64,
    pub(crate) live: bool,
    pub(super) dirty: bool,
    pub(super) wants_work: bool,
    base: u32,
    started: u128,
    done: u128,
    pub(crate) receives: Vec<ActiveReceive>,
    pub(crate) sends: Vec<ActiveSend>,
}

/// Scratch memory that a communicator has to itself, for instance because its ranks can reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scratch {
    pub(crate) region: RegionId,
    pub(crate) length: u64,
}

/// The collective that runs.
#[derive(Debug)]
pub(crate) struct Run {
    pub(super) id: CommunicatorId,
    /// What was called; `None` while nothing runs.
    pub(crate) signature: Option<Signature>,
    pub(crate) sequence: u64,
    plan: Option<Plan>,
    shape: Shape,
    depth: u32,
    /// Over so many channels chunks go by turns.
    pub(super) channels: u64,
    finished: u64,
    /// Taken from the workspace.
    pub(super) scratch: Option<(u64, u64)>,
    /// Where scratch memory is, and bytes of it for each chunk under way.
    scratch_at: (RegionId, u64),
    slot_bytes: u64,
    pub(crate) chunks: Vec<Chunk>,
    pub(super) works: [Option<Active>; WORKS],
    /// The pieces that others have, by their tickets' numbers.
    pub(super) away: Vec<u32>,
    /// Counts pieces, and steps begun.
    pub(super) serial: u32,
    /// A send found no room: look again when something was sent.
    pub(super) blocked: bool,
    pub(crate) eager_max: u64,
    /// Longer messages up to this are written eagerly, in this collective.
    pub(crate) eager_write_max: u64,
    /// Some rank's memory is an accelerator's.
    pub(super) accelerated: bool,
    /// Steps whose bytes go through the workspace.
    pub(super) staged: Vec<Staged>,
    /// There is something to do for them.
    pub(super) wants_staging: bool,
}

/// Links to the peer nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) links: Vec<Link>,
    /// The link to each node; `u32::MAX` for this one.
    pub(crate) of: Vec<u32>,
}

impl Peers {
    pub(crate) fn link_to(&self, node: u32) -> Option<usize> {
        let index = self.of.get(node as usize).copied()? as usize;
        (index < self.links.len()).then_some(index)
    }
}

/// What the running collective needs besides itself.
pub(crate) struct Scene<'a> {
    pub(crate) queue: &'a Queue,
    pub(crate) layout: &'a Layout,
    pub(crate) rank: u32,
    pub(crate) peers: &'a mut Peers,
}

/// Whether a collective could be started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Started,
    /// Other communicators hold the scratch memory it needs.
    Starved,
}

/// What an advance led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is more to do; that many bytes were touched.
    Worked(u64),
    /// It waits for peers.
    Waiting(u64),
    /// It has ended.
    Done(u64),
}

impl Chunk {
    fn new() -> Self {
        Self {
            chunk: 0,
            live: false,
            dirty: false,
            wants_work: false,
            base: 0,
            started: 0,
            done: 0,
            receives: Vec::with_capacity(WINDOW as usize),
            sends: Vec::with_capacity(WINDOW as usize),
        }
    }

    fn begin(&mut self, chunk: u64) {
        self.chunk = chunk;
        (self.live, self.dirty, self.wants_work) = (true, true, false);
        (self.base, self.started, self.done) = (0, 0, 0);
        self.receives.clear();
        self.sends.clear();
    }

    fn bit(&self, step: u32) -> u128 {
        step.checked_sub(self.base).and_then(|i| 1_u128.checked_shl(i)).unwrap_or(0)
    }

    fn is_done(&self, step: u32) -> bool {
        step < self.base || self.done & self.bit(step) != 0
    }

    fn allows(&self, after: &[core::ops::Range<u32>; 2]) -> bool {
        after.iter().all(|range| (range.start.max(self.base)..range.end).all(|step| self.is_done(step)))
    }
}

impl Run {
    pub(crate) fn new(id: CommunicatorId, eager_max: u64) -> Self {
        Self {
            id,
            signature: None,
            sequence: 0,
            plan: None,
            shape: Shape { chunks: 0, depth: 1, steps: 0, scratch: 0 },
            depth: 1,
            channels: 1,
            finished: 0,
            scratch: None,
            scratch_at: (RegionId(0), 0),
            slot_bytes: 0,
            chunks: (0..MAX_DEPTH).map(|_| Chunk::new()).collect(),
            works: [None; WORKS],
            away: Vec::with_capacity(PIECES),
            serial: 0,
            blocked: false,
            eager_max,
            eager_write_max: 0,
            accelerated: false,
            staged: Vec::new(),
            wants_staging: false,
        }
    }

    /// Starts the oldest collective of the queue, which every local rank has called.
    pub(crate) fn start(
        &mut self,
        queue: &Queue,
        layout: &Layout,
        (settings, channels, own): (&PlanSettings, u32, Option<Scratch>),
        shared: &mut Shared,
    ) -> Result<Start, Failure> {
        let sequence = queue.head;
        let Some(signature) = queue.signature(sequence) else { return Ok(Start::Starved) };
        let view = queue.view(layout, sequence, &signature);
        let buffers = queue.calls(sequence).iter().flat_map(|call| [call.input, call.output]);
        let accelerated = buffers.flatten().any(|buffer| shared.is_on_accelerator(buffer.region));
        let (mut plan, channels) = plan(settings, &view, channels, &shared.config);
        if accelerated && layout.nodes() == 1 {
            // An accelerator's pieces are longer than chunks.
            plan = plan.in_one_chunk(&view);
        }
        // Waiting ranks, for whom that is, do not reach an accelerator's memory.
        let own = own.filter(|_| !accelerated);
        self.accelerated = accelerated;
        let shape = plan.shape(&view);
        let each = shape.scratch.checked_next_multiple_of(64).unwrap_or(u64::MAX);
        let wanted = shape.depth.clamp(1, MAX_DEPTH);
        let depth = match own.filter(|own| each > 0 && own.length >= each) {
            Some(own) => {
                self.scratch_at = (own.region, 0);
                u32::try_from(own.length / each).unwrap_or(u32::MAX).min(wanted)
            }
            None => match shared.take_scratch(self.id.0 & 0xffff, each, wanted)? {
                Some((depth, scratch)) => {
                    self.scratch = scratch;
                    self.scratch_at = (shared.workspace.region(), scratch.map_or(0, |(start, _)| start));
                    depth
                }
                None => return Ok(Start::Starved),
            },
        };
        (self.signature, self.sequence) = (Some(signature), sequence);
        (self.plan, self.shape, self.depth, self.slot_bytes) = (Some(plan), shape, depth, each);
        self.channels = u64::from(channels.max(1));
        (self.finished, self.works, self.blocked) = (0, [None; WORKS], false);
        // Of several messages over a link the grants are said ahead.
        let passes_around =
            matches!(self.source(), Some(Source::Algorithm(algorithm)) if algorithm.passes_around());
        let is_short = shape.chunks <= 1 && !passes_around && !self.announces();
        self.eager_write_max = if is_short { settings.tuning().eager_write_max_bytes } else { 0 };
        if shape.steps == 0 {
            self.shape.chunks = 0;
        }
        for (number, chunk) in (0..u64::from(depth)).zip(&mut self.chunks) {
            chunk.begin(number);
            chunk.live = number < self.shape.chunks;
        }
        Ok(Start::Started)
    }

    /// Forgets the collective and gives its scratch memory back.
    pub(crate) fn stop(&mut self, shared: &mut Shared) {
        debug_assert!(self.away.is_empty(), "others work on the memory that is given back");
        self.signature = None;
        self.works = [None; WORKS];
        self.stop_staging(shared);
        for chunk in &mut self.chunks {
            chunk.live = false;
        }
        shared.give_scratch(self.id.0 & 0xffff, self.scratch.take());
    }

    /// Where the steps come from that run or ran last.
    pub(crate) fn source(&self) -> Option<&Source> {
        self.plan.as_ref().map(Plan::source)
    }

    /// The link of some message that is waited for.
    pub(crate) fn waits_for(&self, wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let chunks = self.chunks.iter().filter(|chunk| chunk.live && self.signature.is_some());
        chunks
            .flat_map(|chunk| {
                let receives = chunk.receives.iter().map(|receive| receive.link);
                receives.chain(chunk.sends.iter().map(|send| send.link))
            })
            .filter(|link| wanted(*link))
            .min()
    }

    /// There is room on a link again.
    pub(crate) fn unblock(&mut self) {
        if self.blocked {
            self.blocked = false;
            self.wants_staging = true;
            self.chunks.iter_mut().for_each(|chunk| chunk.dirty = true);
        }
    }

    pub(crate) fn block(&mut self) {
        self.blocked = true;
    }

    /// Does what can be done now, up to a quantum of local work.
    pub(crate) fn advance<D: Device + ?Sized>(
        &mut self,
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<Progress, Failure> {
        let Some(signature) = self.signature else { return Ok(Progress::Waiting(0)) };
        let queue = scene.queue;
        let view = queue.view(scene.layout, self.sequence, &signature);
        let calls = queue.calls(self.sequence);
        let mut bytes = 0;
        if self.wants_room() {
            self.unblock();
        }
        loop {
            self.stage(scene, turn)?;
            for slot in 0..self.depth {
                self.scan(slot, &view, calls, scene, turn)?;
            }
            if self.finished >= self.shape.chunks {
                return Ok(Progress::Done(bytes));
            }
            if let Some(at) = self.next_work() {
                bytes += self.hand(at, &signature, calls, scene, turn)?;
                if bytes >= QUANTUM {
                    return Ok(Progress::Worked(bytes));
                }
            } else if !self.wants_staging && !self.chunks.iter().any(|chunk| chunk.live && chunk.dirty) {
                return Ok(Progress::Waiting(bytes));
            }
        }
    }

    /// Starts every step of the chunk that may start.
    fn scan<D: Device + ?Sized>(
        &mut self,
        slot: u32,
        view: &View<'_>,
        calls: &[LocalCall],
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        while let Some(chunk) = self.chunks.get_mut(slot as usize).filter(|c| c.live && c.dirty) {
            chunk.dirty = false;
            let number = chunk.chunk;
            let mut at = chunk.base;
            while let Some(chunk) = self.chunks.get(slot as usize) {
                let end = chunk.base.saturating_add(WINDOW).min(self.shape.steps);
                if !chunk.live || chunk.chunk != number || at >= end {
                    break;
                }
                if chunk.started & chunk.bit(at) == 0
                    && let Some(plan) = &self.plan
                {
                    let step = plan.step(view, number, at);
                    if chunk.allows(&step.after) {
                        self.begin(slot, at, step.action, calls, scene, turn)?;
                    }
                }
                let base = self.chunks.get(slot as usize).map_or(0, |chunk| chunk.base);
                at = (at + 1).max(base);
            }
        }
        Ok(())
    }

    fn begin<D: Device + ?Sized>(
        &mut self,
        slot: u32,
        step: u32,
        action: Action,
        calls: &[LocalCall],
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let Some(signature) = self.signature else { return Ok(()) };
        match action {
            Action::Nothing => self.complete(slot, step),
            Action::Send { peer, tag, from } => {
                let ground = self.ground(slot, &signature, calls, scene.layout);
                let from = ground.span(&from, scene.rank, turn.shared)?;
                if self.is_staged(&from, turn.shared) {
                    return self.begin_staged((slot, step), (peer, tag), (from, true), scene, turn);
                }
                self.begin_send(slot, step, (peer, tag), from, scene, turn)?;
            }
            Action::Receive { peer, tag, into } => {
                let ground = self.ground(slot, &signature, calls, scene.layout);
                let into = ground.span(&into, scene.rank, turn.shared)?;
                if self.is_staged(&into, turn.shared) {
                    return self.begin_staged((slot, step), (peer, tag), (into, false), scene, turn);
                }
                self.begin_receive(slot, step, (peer, tag), into, scene, turn)?;
            }
            local => {
                let work = Work::new(local);
                if work.is_done() {
                    self.complete(slot, step);
                } else if let Some(place) = self.works.iter_mut().find(|place| place.is_none()) {
                    self.serial = self.serial.wrapping_add(1);
                    *place = Some(Active { slot, step, work, away: 0, order: self.serial });
                    self.mark_started(slot, step);
                } else if let Some(chunk) = self.chunks.get_mut(slot as usize) {
                    chunk.wants_work = true;
                }
            }
        }
        Ok(())
    }

    pub(super) fn ground<'a>(
        &self,
        slot: u32,
        signature: &Signature,
        calls: &'a [LocalCall],
        layout: &Layout,
    ) -> Ground<'a> {
        let (region, base) = self.scratch_at;
        let offset = base + u64::from(slot) * self.slot_bytes;
        Ground {
            calls,
            signature: *signature,
            ranks: layout.ranks(),
            scratch: BufferRef { region, offset, length: self.shape.scratch },
            accelerated: self.accelerated,
        }
    }

    pub(crate) fn mark_started(&mut self, slot: u32, step: u32) {
        if let Some(chunk) = self.chunks.get_mut(slot as usize) {
            chunk.started |= chunk.bit(step);
        }
    }

    /// A step is done, which others may have waited for.
    pub(crate) fn done(&mut self, slot: u32, step: u32) {
        self.complete(slot, step);
        if let Some(chunk) = self.chunks.get_mut(slot as usize) {
            chunk.dirty = true;
        }
    }

    /// A step is done; while scanning, those after it are looked at anyway.
    pub(crate) fn complete(&mut self, slot: u32, step: u32) {
        if !self.staged.is_empty() && !self.end_staged(slot, step) {
            return;
        }
        let (steps, depth, chunks) = (self.shape.steps, u64::from(self.depth), self.shape.chunks);
        let Some(chunk) = self.chunks.get_mut(slot as usize).filter(|chunk| chunk.live) else { return };
        let bit = chunk.bit(step);
        chunk.started |= bit;
        chunk.done |= bit;
        let shift = chunk.done.trailing_ones();
        chunk.base += shift;
        chunk.done = chunk.done.checked_shr(shift).unwrap_or(0);
        chunk.started = chunk.started.checked_shr(shift).unwrap_or(0);
        if chunk.base >= steps {
            self.finished += 1;
            let next = chunk.chunk + depth;
            if next < chunks {
                chunk.begin(next);
            } else {
                chunk.live = false;
            }
        }
    }
}

/// The plan for a call, and how many of the channels it takes: the one listed for it last, or what the settings of all nodes make
/// of it.
fn plan(settings: &PlanSettings, view: &View<'_>, channels: u32, config: &EngineConfig) -> (Plan, u32) {
    let listed = config.plans.iter().rev().find(|listed| listed.is_for(view));
    if let Some(plan) = listed.and_then(|listed| Plan::listed(listed, view, settings.tuning()).ok()) {
        return (plan, channels);
    }
    let Choice { plan, channels, .. } = settings.choice_over(view, channels);
    (plan, channels)
}
