//! Messages between nodes from and to an accelerator's memory, which no device reaches: their bytes go through the
//! workspace, as long as they are. A message has to wait while there is no room for it, and those behind it, as messages
//! of one sender must not overtake each other.

use ringway_verbs::Device;

use super::copying::{Copying, End, copy_pieces, cut};
use super::matching::{From, Unexpected};
use super::{Op, Place, Point, State};
use crate::link::{Class, Queued};
use crate::message::Envelope;
use crate::turn::{Shared, Turn};
use crate::{BufferRef, Failure};

/// A send to another node in line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staged {
    key: u32,
    link: usize,
    destination: u32,
    /// What is still missing.
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Room in the workspace.
    Room,
    /// The bytes there.
    Bytes,
    /// Nothing.
    Nothing,
}

impl Point {
    pub(super) fn send_remote<D: Device + ?Sized>(
        &mut self,
        key: u32,
        op: &Op,
        destination: u32,
        link: usize,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) {
        self.set(key, State::Remote { link });
        let accelerated = op.buffer.length > 0 && turn.shared.is_on_accelerator(op.buffer.region);
        if accelerated || !self.staged.is_empty() {
            let stage = if accelerated { Stage::Room } else { Stage::Nothing };
            self.staged.push_back(Staged { key, link, destination, stage });
            return;
        }
        self.queue_remote(key, op, (destination, link), op.buffer, place, turn);
    }

    fn queue_remote<D: Device + ?Sized>(
        &self,
        key: u32,
        op: &Op,
        (destination, link): (u32, usize),
        buffer: BufferRef,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) {
        let source = place.layout.local(self.node).get(op.local as usize).copied().unwrap_or(0);
        let envelope = Envelope { source, destination, tag: op.tag, length: buffer.length };
        if let Some(link) = place.peers.links.get_mut(link) {
            link.queue.push_back(Queued { key, envelope, buffer });
            link.pump(turn);
        }
    }

    /// Goes on with what is staged.
    pub(super) fn stage<D: Device + ?Sized>(&mut self, place: &mut Place<'_>, turn: &mut Turn<'_, D>) {
        for _ in 0..self.unstaged.len() {
            let Some((message, key)) = self.unstaged.pop_front() else { break };
            self.deliver(message, key, place, turn);
        }
        for at in 0..self.staged.len() {
            let Some(Staged { key, stage: Stage::Room, .. }) = self.staged.get(at).copied() else { continue };
            if !self.fill(at, key, turn) {
                break;
            }
        }
        while let Some(Staged { key, link, destination, .. }) =
            self.staged.pop_front_if(|staged| staged.stage == Stage::Nothing)
        {
            let Some(op) = self.op(key).copied() else { continue };
            let buffer = self.bytes_of(&op, turn.shared);
            self.queue_remote(key, &op, (destination, link), buffer, place, turn);
        }
        if self.wants_room() {
            turn.shared.soon = true;
        }
    }

    /// Whether a message waits for room that only others can make.
    pub(crate) fn wants_room(&self) -> bool {
        !self.unstaged.is_empty() || self.staged.iter().any(|staged| staged.stage == Stage::Room)
    }

    /// Has a send's bytes copied to where there is room for them; `false` when there is none now.
    fn fill<D: ?Sized>(&mut self, at: usize, key: u32, turn: &mut Turn<'_, D>) -> bool {
        let Some(op) = self.op(key).copied() else {
            self.staged.remove(at);
            return true;
        };
        let Some(into) = self.take_stage(key, op.buffer.length, turn.shared) else {
            if op.buffer.length > longest(turn.shared) {
                self.staged.remove(at);
                self.finish(key, Err(no_room(op.buffer.length, turn.shared)), turn.shared);
            }
            return false;
        };
        if let Some(staged) = self.staged.get_mut(at) {
            staged.stage = Stage::Bytes;
        }
        self.copy_piece(Copying { from: op.buffer, into, end: End::Staged { send: key } }, turn);
        true
    }

    /// A send's bytes are staged.
    pub(super) fn filled(&mut self, key: u32) {
        if let Some(staged) = self.staged.iter_mut().find(|staged| staged.key == key) {
            staged.stage = Stage::Nothing;
        }
    }

    fn take_stage(&mut self, key: u32, length: u64, shared: &mut Shared) -> Option<BufferRef> {
        let start = shared.workspace.take(length)?;
        if let Some(op) = self.op_mut(key) {
            op.stage = Some((start, length));
        }
        Some(shared.workspace.buffer(start, length))
    }

    /// Where the bytes of a send are that devices reach.
    pub(super) fn bytes_of(&self, op: &Op, shared: &Shared) -> BufferRef {
        op.stage.map_or(op.buffer, |(start, length)| shared.workspace.buffer(start, length))
    }

    /// Where an announced message may be written; `None` when it has to wait, or has failed.
    pub(super) fn landing(
        &mut self,
        message: Unexpected,
        key: u32,
        shared: &mut Shared,
    ) -> Option<BufferRef> {
        let op = self.op(key).copied()?;
        let moved = message.length.min(op.buffer.length);
        if moved == 0 || !shared.is_on_accelerator(op.buffer.region) {
            return Some(cut(op.buffer, moved));
        }
        if moved > longest(shared) {
            // The sender, whose message could go, is granted nothing of it.
            return Some(cut(op.buffer, 0));
        }
        let into = self.take_stage(key, moved, shared);
        if into.is_none() {
            self.set(key, State::Waiting);
            self.unstaged.push_back((message, key));
        }
        into
    }

    /// A short message from another node to an accelerator's memory: out of the receive buffer first, which others need.
    pub(super) fn deliver_staged<D: Device + ?Sized>(
        &mut self,
        message: Unexpected,
        key: u32,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        let (Some(op), From::Bounce { link: at, bounce }) = (self.op(key).copied(), message.from) else {
            return 0;
        };
        let moved = message.length.min(op.buffer.length);
        let Some(kept) = self.take_stage(key, moved, turn.shared) else {
            self.set(key, State::Waiting);
            self.unstaged.push_back((message, key));
            return 0;
        };
        if let Some(link) = place.peers.links.get_mut(at) {
            copy_pieces(link.payload(bounce, moved, turn.shared), kept, turn);
            link.held = link.held.saturating_sub(1);
            link.release(bounce, Class::Point, turn);
        }
        let (source, sent) = (message.source, message.length);
        self.set(key, State::Copying);
        let end = End::Delivered { receive: key, source, sent, pool: None };
        self.copy_piece(Copying { from: kept, into: cut(op.buffer, moved), end }, turn)
    }

    /// A granted message to an accelerator's memory was written into the workspace: the next visit copies it on. `false` when
    /// it was not staged.
    pub(super) fn landed(&mut self, key: u32, (source, sent): (u32, u64), shared: &mut Shared) -> bool {
        let Some(op) = self.op(key).copied() else { return false };
        let Some((start, length)) = op.stage else {
            let moved = sent.min(op.buffer.length);
            if moved == 0 || !shared.is_on_accelerator(op.buffer.region) {
                return false;
            }
            self.finish(key, Err(no_room(moved, shared)), shared);
            return true;
        };
        let from = shared.workspace.buffer(start, length);
        self.set(key, State::Copying);
        let end = End::Delivered { receive: key, source, sent, pool: None };
        self.copies.push_back(Copying { from, into: cut(op.buffer, length), end });
        true
    }
}

/// The longest message that is staged; longer ones fail rather than wait for a workspace that is all free.
const fn longest(shared: &Shared) -> u64 {
    shared.workspace.length() / 2
}

fn no_room(needed: u64, shared: &Shared) -> Failure {
    Failure::Memory { needed, available: longest(shared) }
}
