//! Steps, run on the names of blocks.

use std::collections::BTreeMap;

use ringway_types::Operation as O;

use super::{MOVED_MAX, Trace, Untraced};
use crate::{Action, OutputSet, Place, Span, Step};

/// A run of all steps.
pub(super) struct Run {
    /// With the blocks of the steps that are done.
    pub(super) trace: Trace,
    /// Of every node, which block lies where.
    memory: Vec<BTreeMap<(Place, u64), u32>>,
    /// Messages under way, by source, destination and tag.
    sent: BTreeMap<(u32, u32, u32), Sent>,
    done: Vec<Vec<bool>>,
    /// Blocks that were moved.
    moved: usize,
}

/// A message under way.
struct Sent {
    /// The node and the step.
    by: (u32, u32),
    time: u32,
    blocks: Vec<u32>,
}

/// What a step did.
#[derive(Default)]
struct Done {
    blocks: Vec<u32>,
    /// What it received.
    message: Option<Sent>,
}

/// What is wrong with a step that cannot be run.
const UNWRITTEN: &str = "it reads what nobody has written";

impl Run {
    /// Before the first step.
    pub(super) fn new(mut trace: Trace) -> Self {
        let done = trace.steps.iter().map(|steps| vec![false; steps.len()]).collect();
        let mut memory = Vec::new();
        for node in 0..trace.layout.nodes() {
            let mut here = BTreeMap::new();
            for (local, &rank) in (0..).zip(trace.layout.local(node)) {
                let (first, count) = input(trace.operation, rank, trace.layout.ranks(), trace.parts);
                let places = (0..).map(|at| (Place::Input(local), at));
                here.extend(places.zip(first..first + count));
                trace.blocks = trace.blocks.max(first + count);
            }
            memory.push(here);
        }
        Self { trace, memory, sent: BTreeMap::new(), done, moved: 0 }
    }

    /// Runs all steps.
    pub(super) fn finish(&mut self) -> Result<(), Untraced> {
        let mut progress = true;
        while progress {
            progress = false;
            for node in 0..self.trace.layout.nodes() {
                let done = &self.done[node as usize];
                let first = done.iter().position(|done| !done).unwrap_or(done.len());
                for step in first..done.len() {
                    let ran = self.advance(node, step);
                    progress |= ran.map_err(|why| Untraced::Step { node, step, why })?;
                    if self.moved > MOVED_MAX {
                        return Err(Untraced::Long);
                    }
                }
            }
        }
        for (node, done) in (0..).zip(&self.done) {
            if let Some(step) = done.iter().position(|done| !done) {
                return Err(Untraced::Step { node, step, why: "it never starts" });
            }
        }
        Ok(())
    }

    /// The block at a place.
    #[cfg(test)]
    pub(super) fn found(&self, node: u32, place: Place, at: u64) -> Option<u32> {
        self.memory[node as usize].get(&(place, at)).copied()
    }

    /// Runs a step if it can be run; whether it was.
    fn advance(&mut self, node: u32, step: usize) -> Result<bool, &'static str> {
        let (done, steps) = (&self.done[node as usize], &self.trace.steps[node as usize]);
        let Step { action, after } = &steps[step].step;
        let action = *action;
        let is_done = |step: u32| done.get(step as usize) == Some(&true);
        if done[step] || !after.iter().all(|range| range.clone().all(is_done)) {
            return Ok(false);
        }
        let waits = after.iter().flat_map(Clone::clone).filter_map(|step| steps.get(step as usize));
        let before = waits.filter(|step| !step.is_idle).map(|step| step.time + 1).max();
        let at = (node, u32::try_from(step).unwrap_or(u32::MAX));
        let time = before.unwrap_or(0);
        let Some(Done { blocks, message }) = self.act((at, time), action)? else { return Ok(false) };
        self.moved += blocks.len();
        let traced = &mut self.trace.steps[node as usize][step];
        traced.time = message.as_ref().map_or(time, |sent| time.max(sent.time + 1));
        traced.is_idle = action == Action::Nothing && before.is_none();
        traced.blocks = blocks;
        self.trace.messages.extend(message.map(|sent| [sent.by, at]));
        self.done[node as usize][step] = true;
        Ok(true)
    }

    /// Does what a step does at some time; `None` for a message that is not there yet.
    fn act(
        &mut self,
        ((node, step), time): ((u32, u32), u32),
        action: Action,
    ) -> Result<Option<Done>, &'static str> {
        let scratch = |offset, length| Span { place: Place::Scratch, offset, length };
        let input = |local, offset, length| Span { place: Place::Input(local), offset, length };
        let blocks = match action {
            Action::Nothing => Vec::new(),
            Action::Send { peer, tag, from } => {
                let blocks = self.read(node, from)?;
                self.sent.insert((node, peer, tag), Sent { by: (node, step), time, blocks: blocks.clone() });
                blocks
            }
            Action::Receive { peer, tag, into } => {
                let Some(message) = self.sent.remove(&(peer, node, tag)) else { return Ok(None) };
                self.write(node, (into.place, into.offset), &message.blocks);
                return Ok(Some(Done { blocks: message.blocks.clone(), message: Some(message) }));
            }
            Action::Copy { from, into } => {
                let blocks = self.read(node, from)?;
                self.write_targets(node, into.outputs, into.offset, into.scratch, &blocks);
                blocks
            }
            Action::Reduce { sources, into, length, .. } => {
                let partials = sources.partials;
                let at = (0..partials.count).map(|i| partials.offset + u64::from(i) * partials.stride);
                let mut operands = at.map(|at| scratch(at, length)).collect::<Vec<_>>();
                operands.extend(sources.inputs.map(|offset| input(0, offset, length)));
                let (first, rest) = operands.split_first().ok_or("it combines nothing")?;
                let blocks = self.read(node, *first)?;
                for operand in rest {
                    if self.read(node, *operand)? != blocks {
                        return Err("it combines what are different blocks");
                    }
                }
                self.write_targets(node, into.outputs, into.offset, into.scratch, &blocks);
                blocks
            }
            Action::Swap { a, b } => {
                let (mut first, second) = (self.read(node, a)?, self.read(node, b)?);
                self.write(node, (a.place, a.offset), &second);
                self.write(node, (b.place, b.offset), &first);
                first.extend(second);
                first
            }
            Action::Scan { locals, offset, length, .. } => {
                let blocks = self.read(node, input(locals.first, offset, length))?;
                for local in locals.first..locals.first + locals.count {
                    let rank = self.trace.layout.local(node).get(local as usize);
                    // Nobody is before the first one.
                    if self.trace.operation == O::Scan || rank != Some(&0) {
                        self.write(node, (Place::Output(local), offset), &blocks);
                    }
                }
                blocks
            }
            Action::Fold { locals, offset, length, into, .. } => {
                let blocks = self.read(node, input(locals.first, offset, length))?;
                self.write(node, (Place::Scratch, into), &blocks);
                blocks
            }
        };
        Ok(Some(Done { blocks, message: None }))
    }

    fn read(&self, node: u32, span: Span) -> Result<Vec<u32>, &'static str> {
        let here = &self.memory[node as usize];
        let all = span.offset..span.offset + span.length;
        all.map(|at| here.get(&(span.place, at)).copied().ok_or(UNWRITTEN)).collect()
    }

    fn write(&mut self, node: u32, (place, offset): (Place, u64), blocks: &[u32]) {
        let places = (offset..).map(|at| (place, at));
        self.memory[node as usize].extend(places.zip(blocks.iter().copied()));
    }

    fn write_targets(
        &mut self,
        node: u32,
        outputs: OutputSet,
        offset: u64,
        scratch: Option<u64>,
        blocks: &[u32],
    ) {
        let locals = u32::try_from(self.trace.layout.local(node).len()).unwrap_or(u32::MAX);
        for local in (0..locals).filter(|local| outputs.has(*local)) {
            self.write(node, (Place::Output(local), offset), blocks);
        }
        if let Some(at) = scratch {
            self.write(node, (Place::Scratch, at), blocks);
        }
    }
}

/// The blocks of a rank's input, which follow each other: the first one's name and how many there are. (The root is rank 0.)
const fn input(operation: O, rank: u32, ranks: u32, parts: u32) -> (u32, u32) {
    match operation {
        O::Allreduce | O::Reduce | O::Scan | O::Exscan => (0, parts),
        O::Broadcast if rank == 0 => (0, parts),
        O::AllGather | O::AllGatherV | O::Gather | O::GatherV => (rank * parts, parts),
        O::ReduceScatter | O::ReduceScatterV => (0, ranks * parts),
        O::Scatter | O::ScatterV if rank == 0 => (0, ranks * parts),
        O::AllToAll | O::AllToAllV => (rank * ranks * parts, ranks * parts),
        _ => (0, 0),
    }
}
