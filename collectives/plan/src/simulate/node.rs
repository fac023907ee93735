//! One node: the chunks it has under way, the window of steps of each, and what its own work costs.

use super::network::{Costs, Picoseconds};
use super::program::{Op, What};
use crate::LOOKAHEAD;

/// Steps of a chunk that may be under way: the first unfinished one and those it may look ahead to.
const WINDOW: u32 = LOOKAHEAD + 1;

/// An op that has not begun, and a step without which it cannot.
#[derive(Debug)]
struct Waiting {
    op: u32,
    blocker: u32,
}

/// A chunk under way. Bit `i` of `done` stands for step `base + i`.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) chunk: u64,
    pub(super) live: bool,
    base: u32,
    done: u128,
    /// The next op to come into the window.
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
}

impl Slot {
    pub(super) fn new(chunk: u64, live: bool) -> Self {
        Self { chunk, live, base: 0, done: 0, next: 0, waiting: Vec::new() }
    }

    fn begin(&mut self, chunk: u64) {
        (self.chunk, self.base, self.done, self.next) = (chunk, 0, 0, 0);
        self.waiting.clear();
    }

    const fn has_done(&self, step: u32) -> bool {
        step < self.base || (step - self.base < u128::BITS && self.done >> (step - self.base) & 1 == 1)
    }

    /// A step that an op waits for and that is not done, if there is one.
    fn blocker(&self, op: &Op) -> Option<u32> {
        op.after.iter().find_map(|range| {
            let start = range.start.max(self.base);
            let left = range.end.checked_sub(start).filter(|left| *left > 0)?;
            let missing = !self.done >> (start - self.base).min(u128::BITS - 1);
            let first = missing.trailing_zeros();
            (first < left).then(|| start + first)
        })
    }

    pub(super) fn complete(&mut self, first: u32, count: u32) {
        self.done |= ((1_u128 << count) - 1) << (first - self.base);
        let shift = self.done.trailing_ones();
        self.base += shift;
        self.done = self.done.checked_shr(shift).unwrap_or(0);
    }

    pub(super) const fn is_finished(&self, steps: u32) -> bool {
        self.base >= steps
    }

    /// The ops that may begin now, in their order; whatever does nothing is done on the way.
    pub(super) fn startable(&mut self, ops: &[Op], into: &mut Vec<u32>) {
        loop {
            let end = self.base.saturating_add(WINDOW);
            let before = self.base;
            let mut waiting = core::mem::take(&mut self.waiting);
            waiting.retain_mut(|it| !self.has_done(it.blocker) || self.waits(it, ops, into));
            while let Some(op) = ops.get(self.next as usize).filter(|op| op.first < end) {
                let mut it = Waiting { op: self.next, blocker: op.first };
                self.next += 1;
                if self.waits(&mut it, ops, into) {
                    waiting.push(it);
                }
            }
            self.waiting = waiting;
            if self.base == before {
                return;
            }
        }
    }

    /// Whether an op cannot begin yet, and what blocks it; else it begins.
    fn waits(&mut self, it: &mut Waiting, ops: &[Op], into: &mut Vec<u32>) -> bool {
        let op = &ops[it.op as usize];
        if let Some(blocker) = self.blocker(op) {
            it.blocker = blocker;
            return true;
        }
        if op.what == What::Nothing {
            self.complete(op.first, op.count);
        } else {
            into.push(it.op);
        }
        false
    }

    /// The first step that is not done.
    pub(super) const fn first(&self) -> u32 {
        self.base
    }
}

impl Node {
    pub(super) fn new(steps: u32, chunks: u64, depth: u32, slowdown: f64) -> Self {
        let chunks = if steps == 0 { 0 } else { chunks };
        let slots = (0..u64::from(depth)).map(|chunk| Slot::new(chunk, chunk < chunks)).collect();
        Self { steps, slots, finished: 0, messages_until: 0, work_until: 0, slowdown }
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

    /// When the node has done local work, of so many bytes combined and copied, that it can begin from now on.
    pub(super) fn work(
        &mut self,
        now: Picoseconds,
        (combined, copied): (u64, u64),
        costs: &Costs,
    ) -> Picoseconds {
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
