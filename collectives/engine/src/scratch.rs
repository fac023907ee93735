//! Scratch memory for collectives: who gets how much of the workspace, and in which order.
//!
//! A collective takes up to a quarter of what is free for the sake of speed, so that one after another can start, and
//! one chunk's worth at least. Those that find too little stand in line: nobody who comes later takes what the first
//! one waits for. Collectives that need very little have an arena of their own and wait for no large one.

use std::collections::VecDeque;

use crate::Failure;
use crate::turn::Shared;
use crate::workspace::Workspace;

/// The arena for small collectives has this part of the workspace,
const SMALL_PART: u64 = 16;
/// but not more bytes than this.
const SMALL_MAX: u64 = 1 << 20;
/// A collective counts as small when one chunk of it needs no more than this part of the arena.
const SMALL_SHARE: u64 = 8;

/// A block of scratch memory: its first byte and its bytes.
pub(crate) type Block = (u64, u64);

/// Who has scratch memory and who waits for some.
#[derive(Debug)]
pub(crate) struct Scratch {
    small: Workspace,
    small_at: Block,
    /// Communicators that wait, the first first.
    line: VecDeque<u32>,
    /// Blocks that are given out.
    holders: u32,
    /// Something has changed for those who wait.
    changed: bool,
}

impl Scratch {
    /// Takes the arena for small collectives out of the workspace.
    pub(crate) fn new(workspace: &mut Workspace, length: u64) -> Self {
        let wanted = (length / SMALL_PART).min(SMALL_MAX);
        let small_at = workspace.take_long(wanted).map_or((0, 0), |start| (start, wanted));
        let small = Workspace::new(workspace.region(), workspace.key(), small_at.1);
        Self { small, small_at, line: VecDeque::with_capacity(64), holders: 0, changed: false }
    }

    /// Whether those who wait should try again.
    pub(crate) const fn take_changed(&mut self) -> bool {
        core::mem::replace(&mut self.changed, false)
    }

    /// There may be one more communicator.
    pub(crate) fn add(&mut self, communicators: usize) {
        self.line.reserve(communicators.saturating_sub(self.line.len()));
    }

    fn take_small(&mut self, each: u64, wanted: u32) -> Option<(u32, Block)> {
        let share = self.small_at.1 / SMALL_SHARE;
        let depth = u32::try_from(share / each).unwrap_or(u32::MAX).min(wanted);
        let length = each.checked_mul(u64::from(depth)).filter(|length| *length > 0)?;
        let start = self.small.take(length)?;
        Some((depth, (self.small_at.0 + start, length)))
    }

    fn stand_in_line(&mut self, communicator: u32) {
        if !self.line.contains(&communicator) {
            self.line.push_back(communicator);
        }
    }

    /// A communicator does not wait any more: whoever is first now may try.
    fn leave_line(&mut self, communicator: u32) {
        if let Some(place) = self.line.iter().position(|other| *other == communicator) {
            self.line.remove(place);
            self.changed = true;
        }
    }
}

impl Shared {
    /// Scratch memory for as many chunks of `each` bytes, `wanted` at most, as there is room for. `None`: the
    /// communicator has to wait.
    pub(crate) fn take_scratch(
        &mut self,
        communicator: u32,
        each: u64,
        wanted: u32,
    ) -> Result<Option<(u32, Option<Block>)>, Failure> {
        if each == 0 {
            return Ok(Some((wanted, None)));
        }
        let first = self.scratch.line.front().is_none_or(|first| *first == communicator);
        let taken = match self.scratch.take_small(each, wanted) {
            Some(taken) => Some(taken),
            None if first => self.take_large(each, wanted),
            None => None,
        };
        if let Some((depth, block)) = taken {
            self.scratch.holders += 1;
            self.scratch.leave_line(communicator);
            return Ok(Some((depth, Some(block))));
        }
        if first && self.scratch.holders == 0 {
            self.scratch.leave_line(communicator);
            return Err(Failure::Memory { needed: each, available: self.workspace.largest() });
        }
        self.scratch.stand_in_line(communicator);
        Ok(None)
    }

    fn take_large(&mut self, each: u64, wanted: u32) -> Option<(u32, Block)> {
        let share = self.workspace.largest() / 4;
        let depth = u32::try_from(share / each).unwrap_or(u32::MAX).clamp(1, wanted);
        let length = each.saturating_mul(u64::from(depth));
        self.workspace.take(length).map(|start| (depth, (start, length)))
    }

    /// A communicator's collective has ended: it needs its block no more, and waits for none.
    pub(crate) fn give_scratch(&mut self, communicator: u32, block: Option<Block>) {
        self.scratch.leave_line(communicator);
        let Some((start, length)) = block else { return };
        let (base, small) = self.scratch.small_at;
        match start.checked_sub(base).filter(|offset| *offset < small) {
            Some(offset) => self.scratch.small.give(offset, length),
            None => self.workspace.give(start, length),
        }
        self.scratch.holders = self.scratch.holders.saturating_sub(1);
        self.scratch.changed = true;
    }
}
