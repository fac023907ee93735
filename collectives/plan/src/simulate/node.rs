//! One node: the chunks it has under way, the window of steps of each, and what its own work costs.

use core::ops::Range;

use super::network::{Costs, Picoseconds};
use crate::{Action, LOOKAHEAD, OutputSet, Step};

/// Steps of a chunk that may be under way: the first unfinished one and those it may look ahead to.
const WINDOW: u32 = LOOKAHEAD + 1;

/// A step that has not begun.
#[derive(Debug)]
struct Waiting {
    index: u32,
    step: Step,
}

/// A chunk under way. Bit `i` of `done` stands for step `base + i`.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) chunk: u64,
    pub(super) live: bool,
    base: u32,
    done: u128,
    /// The next step to come into the window.
    next: u32,
    waiting: Vec<Waiting>,
}

/// A node while it is simulated.
#[derive(Debug)]
pub(super) struct Node {
    /// Steps of each chunk here.
    pub(super) steps: u32,
    pub(super) slots: Vec<Slot>,
    pub(super) finished: u64,
    /// Until when messages and local work keep it busy, each one behind the other.
    messages_until: Picoseconds,
    work_until: Picoseconds,
    slowdown: f64,
    locals: u32,
}

impl Slot {
    pub(super) fn new(chunk: u64, live: bool) -> Self {
        let waiting = Vec::with_capacity(WINDOW as usize);
        Self { chunk, live, base: 0, done: 0, next: 0, waiting }
    }

    fn begin(&mut self, chunk: u64) {
        (self.chunk, self.base, self.done, self.next) = (chunk, 0, 0, 0);
        self.waiting.clear();
    }

    /// Whether all steps of a range are done.
    fn has_done(&self, range: &Range<u32>) -> bool {
        let start = range.start.max(self.base);
        if range.end <= start {
            return true;
        }
        let (from, many) = (start - self.base, range.end - start);
        if from + many > WINDOW {
            return false;
        }
        let mask = ((1_u128 << many) - 1) << from;
        self.done & mask == mask
    }

    pub(super) fn complete(&mut self, index: u32) {
        self.done |= 1_u128 << (index - self.base);
        let shift = self.done.trailing_ones();
        self.base += shift;
        self.done >>= shift;
    }

    pub(super) const fn is_finished(&self, steps: u32) -> bool {
        self.base >= steps
    }

    /// The steps that may begin now, in their order; whatever does nothing is done on the way. `step` computes one.
    pub(super) fn startable(
        &mut self,
        steps: u32,
        mut step: impl FnMut(u32) -> Step,
        into: &mut Vec<(u32, Action)>,
    ) {
        loop {
            let end = self.base.saturating_add(WINDOW).min(steps);
            let before = self.base;
            while self.next < end {
                let index = self.next;
                self.next += 1;
                let step = step(index);
                if step.action == Action::Nothing && step.after.iter().all(|range| self.has_done(range)) {
                    self.complete(index);
                } else {
                    self.waiting.push(Waiting { index, step });
                }
            }
            let mut waiting = core::mem::take(&mut self.waiting);
            waiting.retain(|it| {
                if !it.step.after.iter().all(|range| self.has_done(range)) {
                    return true;
                }
                if it.step.action == Action::Nothing {
                    self.complete(it.index);
                } else {
                    into.push((it.index, it.step.action));
                }
                false
            });
            self.waiting = waiting;
            if self.base == before {
                return;
            }
        }
    }

    /// The first step that is not done.
    pub(super) const fn first(&self) -> u32 {
        self.base
    }
}

impl Node {
    pub(super) fn new(steps: u32, chunks: u64, depth: u32, (locals, slowdown): (u32, f64)) -> Self {
        let chunks = if steps == 0 { 0 } else { chunks };
        let slots = (0..u64::from(depth)).map(|chunk| Slot::new(chunk, chunk < chunks)).collect();
        Self { steps, slots, finished: 0, messages_until: 0, work_until: 0, slowdown, locals }
    }

    /// A chunk is finished and the next one may begin in its place.
    pub(super) fn turn_over(&mut self, slot: u32, chunks: u64) {
        self.finished += 1;
        let depth = self.slots.len() as u64;
        let slot = &mut self.slots[slot as usize];
        let next = slot.chunk + depth;
        if next < chunks {
            slot.begin(next);
        } else {
            slot.live = false;
        }
    }

    /// When the node has handled a message that it can handle from now on.
    pub(super) fn handle(&mut self, now: Picoseconds, costs: &Costs) -> Picoseconds {
        if costs.message == 0 {
            return now;
        }
        let time = scaled(costs.message as f64, self.slowdown);
        self.messages_until = self.messages_until.max(now).saturating_add(time);
        self.messages_until
    }

    /// When the node has done a local step that it can begin from now on.
    pub(super) fn work(&mut self, now: Picoseconds, action: &Action, costs: &Costs) -> Picoseconds {
        let (combined, copied) = touched(action, self.locals);
        let time = combined as f64 * costs.reduce + copied as f64 * costs.copy;
        if time == 0.0 {
            return now;
        }
        self.work_until = self.work_until.max(now).saturating_add(scaled(time, self.slowdown));
        self.work_until
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, rounded")]
fn scaled(time: f64, slowdown: f64) -> Picoseconds {
    (time * slowdown).round() as Picoseconds
}

/// Bytes that a local step combines, each operand but the first counted, and bytes that it copies besides: of an only operand,
/// and to every place but the first of a result.
pub(super) fn touched(action: &Action, locals: u32) -> (u64, u64) {
    let outputs = |set| match set {
        OutputSet::None => 0,
        OutputSet::One(_) => 1,
        OutputSet::All => u64::from(locals),
        OutputSet::AllBut(_) => u64::from(locals).saturating_sub(1),
    };
    let combine = |operands: u64, places: u64, length: u64| match operands {
        0 => (0, 0),
        1 => (0, length.saturating_mul(places)),
        _ => (length.saturating_mul(operands - 1), length.saturating_mul(places.saturating_sub(1))),
    };
    match *action {
        Action::Nothing | Action::Send { .. } | Action::Receive { .. } => (0, 0),
        Action::Reduce { sources, into, length, .. } => {
            let inputs = if sources.inputs.is_some() { u64::from(locals) } else { 0 };
            let places = outputs(into.outputs) + u64::from(into.scratch.is_some());
            combine(u64::from(sources.partials.count) + inputs, places, length)
        }
        Action::Copy { from, into } => {
            let places = outputs(into.outputs) + u64::from(into.scratch.is_some());
            (0, from.length.saturating_mul(places))
        }
        Action::Swap { a, b } => (0, a.length.saturating_add(b.length)),
        // Every rank's result is one place; all but a rank's own first one are combinations.
        Action::Scan { carry, locals, length, .. } => {
            combine(u64::from(locals.count) + u64::from(carry.is_some()), 1, length)
        }
        Action::Fold { carry, locals, length, .. } => {
            combine(u64::from(locals.count) + u64::from(carry.is_some()), 1, length)
        }
    }
}
