//! Steps that speak to other nodes about an accelerator's memory, which no device reaches: the bytes of a message go through
//! a block of the workspace, copied there before it is sent, or from there after it has come. Several steps, of several
//! chunks, are staged at a time, so that copies either way and the network work at once.

use ringway_verbs::Device;

use super::run::{Run, Scene};
use crate::turn::{Shared, Turn};
use crate::{BufferRef, Failure, Handed, Piece, Ticket};

/// Tells a piece of a staged step from one of a local step.
pub(super) const STAGED_TICKET: u32 = 1 << 30;
/// Blocks of which a part is being copied at a time; others wait.
const STAGED_MAX: usize = 64;

/// A step that is staged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staged {
    slot: u32,
    step: u32,
    peer: u32,
    tag: u32,
    /// The accelerator's memory.
    bytes: BufferRef,
    /// Its block of the workspace: start and length.
    block: (u64, u64),
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// What is sent is being copied into the block: the ticket's number.
    Filling(u32),
    /// It can be sent.
    Filled,
    Sending,
    Receiving,
    /// The message is in the block.
    Landed,
    /// It is being copied out of the block.
    Draining(u32),
    /// The block is free.
    Over,
}

impl Run {
    /// Begins a step whose bytes are an accelerator's. It stays unbegun while there is no room.
    pub(super) fn begin_staged<D: Device + ?Sized>(
        &mut self,
        (slot, step): (u32, u32),
        (peer, tag): (u32, u32),
        (bytes, sends): (BufferRef, bool),
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let room = self.staged.len() < STAGED_MAX;
        let Some(start) = room.then(|| turn.shared.workspace.take(bytes.length)).flatten() else {
            if self.staged.is_empty() {
                let available = turn.shared.workspace.largest();
                if bytes.length > turn.shared.workspace.length() / 2 {
                    return Err(Failure::Memory { needed: bytes.length, available });
                }
                turn.shared.soon = true;
            }
            self.block();
            return Ok(());
        };
        self.mark_started(slot, step);
        let block = (start, bytes.length);
        let stage = if sends { Stage::Filled } else { Stage::Receiving };
        let mut staged = Staged { slot, step, peer, tag, bytes, block, stage };
        let there = turn.shared.workspace.buffer(start, bytes.length);
        if sends {
            staged.stage = match self.copy_staged(bytes, there, turn) {
                Some(number) => Stage::Filling(number),
                None => {
                    self.wants_staging = true;
                    Stage::Filled
                }
            };
        }
        self.staged.push(staged);
        if !sends {
            self.begin_receive(slot, step, (peer, tag), there, scene, turn)?;
        }
        Ok(())
    }

    /// Has bytes copied; the ticket's number when that is done later.
    fn copy_staged<D: ?Sized>(
        &mut self,
        source: BufferRef,
        destination: BufferRef,
        turn: &mut Turn<'_, D>,
    ) -> Option<u32> {
        self.serial = self.serial.wrapping_add(1);
        let number = STAGED_TICKET | (self.serial & (STAGED_TICKET - 1));
        let ticket = Ticket { communicator: self.id, number };
        let piece = Piece::Copy { source, destinations: &[destination] };
        let handed = turn.memory.hand(ticket, &piece, true);
        (handed == Handed::Later).then(|| {
            self.away.push(number);
            number
        })
    }

    /// A step has ended. Whether that is all: of a message that has come, the bytes are still to be copied on.
    pub(super) fn end_staged(&mut self, slot: u32, step: u32) -> bool {
        let of_step = |staged: &&mut Staged| (staged.slot, staged.step) == (slot, step);
        let Some(staged) = self.staged.iter_mut().find(of_step) else { return true };
        match staged.stage {
            Stage::Receiving => {
                staged.stage = Stage::Landed;
                self.wants_staging = true;
                false
            }
            Stage::Sending => {
                staged.stage = Stage::Over;
                self.wants_staging = true;
                true
            }
            _ => true,
        }
    }

    /// A piece that somebody else copied is done.
    pub(super) fn collected_staged(&mut self, number: u32) {
        for staged in &mut self.staged {
            if staged.stage == Stage::Filling(number) {
                staged.stage = Stage::Filled;
            } else if staged.stage == Stage::Draining(number) {
                staged.stage = Stage::Over;
                let (slot, step) = (staged.slot, staged.step);
                self.wants_staging = true;
                self.done(slot, step);
                return;
            }
        }
        self.wants_staging = true;
    }

    /// Goes on with what is staged.
    pub(super) fn stage<D: Device + ?Sized>(
        &mut self,
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        if !core::mem::take(&mut self.wants_staging) {
            return Ok(());
        }
        for at in 0..self.staged.len() {
            let Some(staged) = self.staged.get(at).copied() else { break };
            let Staged { slot, step, peer, tag, bytes, block, stage } = staged;
            let there = turn.shared.workspace.buffer(block.0, block.1);
            let next = match stage {
                Stage::Filled => {
                    self.set_stage(at, Stage::Sending);
                    if self.begin_send(slot, step, (peer, tag), there, scene, turn)? {
                        continue;
                    } else {
                        Stage::Filled
                    }
                }
                Stage::Landed => match self.copy_staged(there, bytes, turn) {
                    Some(number) => Stage::Draining(number),
                    None => {
                        self.set_stage(at, Stage::Over);
                        self.done(slot, step);
                        continue;
                    }
                },
                _ => continue,
            };
            self.set_stage(at, next);
        }
        let before = self.staged.len();
        self.staged.retain(|staged| {
            let over = staged.stage == Stage::Over;
            if over {
                turn.shared.workspace.give(staged.block.0, staged.block.1);
            }
            !over
        });
        if self.staged.len() < before {
            self.unblock();
        }
        Ok(())
    }

    fn set_stage(&mut self, at: usize, stage: Stage) {
        if let Some(staged) = self.staged.get_mut(at) {
            staged.stage = stage;
        }
    }

    /// Gives the blocks back when the collective ends.
    pub(super) fn stop_staging(&mut self, shared: &mut Shared) {
        for staged in self.staged.drain(..) {
            shared.workspace.give(staged.block.0, staged.block.1);
        }
    }

    /// Whether a step waits for room that only others can make.
    pub(crate) fn wants_room(&self) -> bool {
        self.accelerated && self.blocked && self.staged.is_empty() && self.signature.is_some()
    }

    /// Whether a step's bytes have to be staged.
    pub(super) fn is_staged(&self, bytes: &BufferRef, shared: &Shared) -> bool {
        self.accelerated && bytes.length > 0 && shared.is_on_accelerator(bytes.region)
    }
}
