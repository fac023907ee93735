//! Which receive gets which message.
//!
//! Messages of one sender with one tag match in the order sent: they arrive in that order, wait in one list per
//! receiving rank in the order of arrival, and a receive takes the first that fits it.

use ringway_plan::Layout;
use ringway_verbs::Device;

use super::{KEY_MASK, Kind, Op, POINT_IMMEDIATE, Place, Point, State, turn_of};
use crate::link::{Class, Queued};
use crate::message::{Envelope, Message};
use crate::turn::{Shared, Turn};
use crate::{BufferRef, Failure};

/// The most bytes copied at once.
const PIECE: u64 = 64 << 10;

/// A message without a receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unexpected {
    pub(super) source: u32,
    pub(super) tag: u64,
    pub(super) length: u64,
    pub(super) from: From,
}

/// Where its bytes are.
#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    /// In the buffer of a local send that waits.
    Local { key: u32 },
    /// In the message pool.
    Pool { slot: u32 },
    /// In a receive buffer of a link.
    Bounce { link: usize, bounce: u32 },
    /// On the other node, which waits for a grant.
    Announced { link: usize, slot: u32 },
}

/// A copy from one rank's memory to another's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copying {
    send: u32,
    receive: u32,
    source: u32,
    from: BufferRef,
    into: BufferRef,
    sent: u64,
}

impl Unexpected {
    pub(super) fn give_back(&self, shared: &mut Shared) {
        if let From::Pool { slot } = self.from {
            shared.pool.give(slot);
        }
    }
}

/// What a receive ends with.
pub(super) fn received(source: u32, sent: u64, room: u64) -> Result<(u32, u64), Failure> {
    if sent > room { Err(Failure::Truncated { sent, room }) } else { Ok((source, sent)) }
}

fn cut(buffer: BufferRef, length: u64) -> BufferRef {
    BufferRef { length: buffer.length.min(length), ..buffer }
}

impl Point {
    /// The first message that came for a receive.
    pub(super) fn take_unexpected(&mut self, local: u32, peer: Option<u32>, tag: u64) -> Option<Unexpected> {
        let inbox = self.inboxes.get_mut(local as usize)?;
        let at = inbox
            .unexpected
            .iter()
            .position(|message| message.tag == tag && peer.is_none_or(|peer| peer == message.source))?;
        let message = inbox.unexpected.remove(at)?;
        if matches!(message.from, From::Pool { .. }) {
            inbox.buffered = inbox.buffered.saturating_sub(1);
        }
        Some(message)
    }

    /// The first receive that was posted for a message.
    pub(super) fn take_posted(&mut self, local: u32, source: u32, tag: u64) -> Option<(u32, Op)> {
        let posted = &self.inboxes.get(local as usize)?.posted;
        let at = posted.iter().position(|key| {
            self.op(*key).is_some_and(|op| op.tag == tag && op.peer.is_none_or(|peer| peer == source))
        })?;
        let key = self.inboxes.get_mut(local as usize)?.posted.remove(at)?;
        self.op(key).map(|op| (key, *op))
    }

    pub(super) fn keep(&mut self, local: u32, message: Unexpected) {
        if let Some(inbox) = self.inboxes.get_mut(local as usize) {
            inbox.unexpected.push_back(message);
        }
    }

    pub(super) fn send_local<D: ?Sized>(
        &mut self,
        key: u32,
        op: &Op,
        layout: &Layout,
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        let source = layout.local(self.node).get(op.local as usize).copied().unwrap_or(0);
        let to = layout.local_index(op.peer.unwrap_or(source));
        if let Some((receive, posted)) = self.take_posted(to, source, op.tag) {
            return self.copy_local(key, receive, source, op.buffer, posted.buffer, turn);
        }
        let (length, tag) = (op.buffer.length, op.tag);
        let config = &turn.shared.config;
        let small = length <= u64::from(config.eager_max_bytes);
        let limit = config.buffered_per_rank;
        let may = small && self.inboxes.get(to as usize).is_some_and(|inbox| inbox.buffered < limit);
        if let Some(slot) = may.then(|| turn.shared.pool.take()).flatten() {
            if length > 0 {
                let into = turn.shared.workspace.buffer(turn.shared.pool.offset(slot), length);
                copy_pieces(op.buffer, into, turn);
            }
            if let Some(inbox) = self.inboxes.get_mut(to as usize) {
                inbox.buffered += 1;
            }
            self.keep(to, Unexpected { source, tag, length, from: From::Pool { slot } });
            self.finish(key, Ok((source, 0)), turn.shared);
            return 2 * length;
        }
        self.set(key, State::Waiting);
        self.keep(to, Unexpected { source, tag, length, from: From::Local { key } });
        0
    }

    pub(super) fn send_remote<D: Device + ?Sized>(
        &mut self,
        key: u32,
        op: &Op,
        destination: u32,
        link: usize,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) {
        let source = place.layout.local(self.node).get(op.local as usize).copied().unwrap_or(0);
        let envelope = Envelope { source, destination, tag: op.tag, length: op.buffer.length };
        self.set(key, State::Remote { link });
        if let Some(link) = place.peers.links.get_mut(link) {
            link.queue.push_back(Queued { key, envelope, buffer: op.buffer });
            link.pump(turn);
        }
    }

    /// Gives a message that has come to a receive; returns bytes touched.
    pub(super) fn deliver<D: Device + ?Sized>(
        &mut self,
        message: Unexpected,
        key: u32,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        let Some(op) = self.op(key).copied() else { return 0 };
        let room = op.buffer.length;
        let moved = message.length.min(room);
        match message.from {
            From::Local { key: send } => {
                let Some(buffer) = self.op(send).map(|op| op.buffer) else { return 0 };
                return self.copy_local(send, key, message.source, buffer, op.buffer, turn);
            }
            From::Pool { slot } => {
                let from = turn.shared.workspace.buffer(turn.shared.pool.offset(slot), moved);
                copy_pieces(from, cut(op.buffer, moved), turn);
                turn.shared.pool.give(slot);
            }
            From::Bounce { link, bounce } => {
                let Some(link) = place.peers.links.get_mut(link) else { return 0 };
                let from = link.payload(bounce, moved, turn.shared);
                copy_pieces(from, cut(op.buffer, moved), turn);
                link.held = link.held.saturating_sub(1);
                link.release(bounce, Class::Point, turn);
            }
            From::Announced { link: at, slot } => {
                let Some(link) = place.peers.links.get_mut(at) else { return 0 };
                link.held = link.held.saturating_sub(1);
                let (into, immediate) = (cut(op.buffer, moved), POINT_IMMEDIATE | (key & KEY_MASK));
                let Some(granted) = link.grant(turn_of(key), into, immediate, turn) else { return 0 };
                link.control(Message::PointGrant { slot, length: moved, granted }, turn);
                self.set(key, State::Landing { link: at, source: message.source, sent: message.length });
                return 0;
            }
        }
        self.finish(key, received(message.source, message.length, room), turn.shared);
        2 * moved
    }

    fn copy_local<D: ?Sized>(
        &mut self,
        send: u32,
        receive: u32,
        source: u32,
        from: BufferRef,
        into: BufferRef,
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        debug_assert!(self.op(send).is_none_or(|op| op.kind == Kind::Send));
        self.set(send, State::Copying);
        self.set(receive, State::Copying);
        let copying = Copying { send, receive, source, from, into, sent: from.length };
        // A short message does not wait for the long ones that are being copied.
        if from.length <= PIECE {
            return self.copy_piece(copying, turn);
        }
        self.copies.push_back(copying);
        0
    }

    /// Copies the next piece; returns bytes touched.
    pub(super) fn copy_piece<D: ?Sized>(&mut self, copying: Copying, turn: &mut Turn<'_, D>) -> u64 {
        let Copying { send, receive, source, mut from, mut into, sent } = copying;
        let length = from.length.min(into.length).min(PIECE);
        if length > 0 {
            turn.memory.copy(cut(from, length), &[cut(into, length)]);
        }
        (from.offset, from.length) = (from.offset + length, from.length - length);
        (into.offset, into.length) = (into.offset + length, into.length - length);
        if from.length > 0 && into.length > 0 {
            self.copies.push_back(Copying { from, into, ..copying });
            return 2 * length;
        }
        let room = self.op(receive).map_or(0, |op| op.buffer.length);
        let rank = source;
        self.finish(send, Ok((rank, 0)), turn.shared);
        self.finish(receive, received(source, sent, room), turn.shared);
        2 * length
    }
}

/// Copies a short message.
pub(super) fn copy_pieces<D: ?Sized>(from: BufferRef, into: BufferRef, turn: &mut Turn<'_, D>) {
    let length = from.length.min(into.length);
    if length > 0 {
        turn.memory.copy(cut(from, length), &[cut(into, length)]);
    }
}
