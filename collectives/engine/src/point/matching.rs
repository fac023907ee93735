//! Which receive gets which message.
//!
//! Messages of one sender with one tag match in the order sent: they arrive in that order, wait in one list per
//! receiving rank in the order of arrival, and a receive takes the first that fits it.

use ringway_plan::Layout;
use ringway_verbs::Device;

use super::copying::{Copying, End, copy_pieces, cut, take_bounced};
use super::{KEY_MASK, Op, POINT_IMMEDIATE, Place, Point, State, turn_of};
use crate::Failure;
use crate::message::Message;
use crate::turn::{Shared, Turn};

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
            return self.copy_local((key, receive), source, (op.buffer, posted.buffer), turn);
        }
        let (length, tag) = (op.buffer.length, op.tag);
        let config = &turn.shared.config;
        // An accelerator's memory is copied once, when it is known where to.
        let small =
            length <= u64::from(config.eager_max_bytes) && !turn.shared.is_on_accelerator(op.buffer.region);
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
                return self.copy_local((send, key), message.source, (buffer, op.buffer), turn);
            }
            From::Pool { slot } => {
                let from = turn.shared.workspace.buffer(turn.shared.pool.offset(slot), moved);
                let (source, sent) = (message.source, message.length);
                let end = End::Delivered { receive: key, source, sent, pool: Some(slot) };
                self.set(key, State::Copying);
                return self.copy_piece(Copying { from, into: cut(op.buffer, moved), end }, turn);
            }
            From::Bounce { link: at, bounce } => {
                if turn.shared.is_on_accelerator(op.buffer.region) {
                    return self.deliver_short(message, key, place, turn);
                }
                take_bounced((at, bounce), cut(op.buffer, moved), place, turn);
            }
            From::Announced { link: at, slot } => {
                let Some(link) = place.peers.links.get_mut(at) else { return 0 };
                link.held = link.held.saturating_sub(1);
                if moved > 0 && turn.shared.is_on_accelerator(op.buffer.region) {
                    self.land(message, key, place, turn);
                    return 0;
                }
                let (into, immediate) = (cut(op.buffer, moved), POINT_IMMEDIATE | (key & KEY_MASK));
                let Some(granted) = link.grant(turn_of(key), into, immediate, turn) else { return 0 };
                link.control(Message::PointGrant { slot, length: moved, last: true, granted }, turn);
                self.set(key, State::Landing { link: at, source: message.source, sent: message.length });
                return 0;
            }
        }
        self.finish(key, received(message.source, message.length, room), turn.shared);
        2 * moved
    }
}
