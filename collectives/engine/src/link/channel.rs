//! One queue pair of a link: its send queue, and the long messages that are written over it.

use std::collections::VecDeque;

use ringway_verbs::{
    Device, LocalSlice, Operation, PostError, QueuePairError, QueuePairNumber, ReceiveRequest, RemoteSlice,
    Time, WorkRequest,
};

use super::{ChannelPlace, Event, Purpose, RECEIVE, RESERVED, SEND_DEPTH, Sent, Transfer, WINDOW};
use crate::BufferRef;
use crate::turn::{Shared, Turn};

/// The bits of a request's number in its id.
pub(super) const NUMBER: u32 = (1 << 28) - 1;

/// A queue pair that is connected with the one of the same number at the peer.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) queue_pair: QueuePairNumber,
    /// The rail it goes over, where the node has several.
    pub(crate) rail: Option<u32>,
    /// The NUMA node of the rail's network card, where it is known and matters.
    pub(super) numa_node: Option<u32>,
    /// What the ids of its requests begin with.
    id: u64,
    sent: VecDeque<Sent>,
    pub(super) next: u32,
    unsignalled: u32,
    in_flight: u64,
    pub(super) transfers: VecDeque<Transfer>,
    /// Receives that are posted.
    pub(super) posted: u32,
    /// Of what is posted at once.
    pub(super) max_message: u64,
    /// When it failed.
    pub(crate) broken: Option<Time>,
    /// When a sign of life was asked for that has not come.
    pub(crate) asked: Option<Time>,
    destroyed: bool,
}

impl Channel {
    pub(super) fn new(place: ChannelPlace, id: u64, max_message: u64) -> Self {
        Self {
            queue_pair: place.queue_pair,
            rail: place.rail,
            numa_node: place.numa_node,
            id,
            sent: VecDeque::with_capacity(SEND_DEPTH as usize),
            next: 0,
            unsignalled: 0,
            in_flight: 0,
            transfers: VecDeque::with_capacity(64),
            posted: 0,
            max_message,
            broken: None,
            asked: None,
            destroyed: false,
        }
    }

    /// Whether there is a place for a request, beside those that control messages keep to themselves.
    pub(super) fn has_room(&self) -> bool {
        self.sent.len() + RESERVED < SEND_DEPTH as usize
    }

    /// Whether there is any place for a request.
    pub(super) fn is_full(&self) -> bool {
        self.sent.len() >= SEND_DEPTH as usize
    }

    /// Posts a request. `false` when there is no room, and when the queue pair has failed.
    pub(super) fn post<D: Device + ?Sized>(
        &mut self,
        operation: Operation,
        local: [LocalSlice; 2],
        purpose: Purpose,
        wanted: bool,
        turn: &mut Turn<'_, D>,
    ) -> bool {
        if self.broken.is_some() || self.destroyed {
            return false;
        }
        let signalled = wanted || self.unsignalled + 1 >= SEND_DEPTH / 4;
        let id = self.id | u64::from(self.next & NUMBER);
        let request = WorkRequest { id, operation, local, signalled, fence: false };
        match turn.device.post_send(self.queue_pair, &request) {
            Ok(()) => {
                self.sent.push_back(Sent { purpose, bytes: 0, epoch: 0 });
                self.next = self.next.wrapping_add(1);
                self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
                turn.shared.unflushed = true;
                true
            }
            Err(PostError::Full) => false,
            Err(_) => {
                self.broken = Some(turn.now);
                false
            }
        }
    }

    /// Posts a receive; `index` names it in its completion.
    pub(super) fn post_receive<D: Device + ?Sized>(
        &mut self,
        index: u32,
        local: LocalSlice,
        device: &mut D,
    ) -> Result<(), PostError> {
        let request = ReceiveRequest { id: self.id | RECEIVE | u64::from(index), local };
        device.post_receive(self.queue_pair, &request)?;
        self.posted += 1;
        Ok(())
    }

    /// A receive has completed.
    pub(super) fn taken(&mut self) {
        self.posted = self.posted.saturating_sub(1);
        self.asked = None;
    }

    /// A receive has failed.
    pub(crate) fn lost(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Whether a piece of a long message could be posted.
    pub(super) fn wants_to_post(&self) -> bool {
        let open = self.broken.is_none() && !self.destroyed;
        open && !self.transfers.is_empty() && self.has_room() && self.in_flight < WINDOW
    }

    /// Posts a piece of the long message that waits longest; returns its bytes.
    pub(super) fn post_transfer<D: Device + ?Sized>(&mut self, segment: u64, turn: &mut Turn<'_, D>) -> u64 {
        let Some(transfer) = self.transfers.pop_front() else { return 0 };
        let length = transfer.from.length.min(segment).min(self.max_message);
        let local = LocalSlice { key: transfer.key, offset: transfer.from.offset, length };
        let last = length == transfer.from.length;
        let (operation, purpose) = if last {
            let remote = transfer.target;
            let told =
                transfer.immediate.map(|immediate| Operation::WriteWithImmediate { remote, immediate });
            (told.unwrap_or(Operation::Write { remote }), transfer.purpose)
        } else {
            (Operation::Write { remote: transfer.target }, Purpose::Control)
        };
        if !self.post(operation, [local, LocalSlice::default()], purpose, true, turn) {
            self.transfers.push_front(transfer);
            return 0;
        }
        if let Some(sent) = self.sent.back_mut() {
            (sent.bytes, sent.epoch) = (length, turn.shared.network.epoch());
        }
        self.in_flight += length;
        if !last {
            let mut rest = transfer;
            rest.from.offset += length;
            rest.from.length -= length;
            rest.target.offset = rest.target.offset.saturating_add(length);
            if self.transfers.iter().any(|other| other.purpose == rest.purpose) {
                // Parts of one message are told of in their order.
                self.transfers.push_front(rest);
            } else {
                self.transfers.push_back(rest);
            }
        }
        length
    }

    /// Writes into a peer's memory, telling nobody. Returns the bytes that were posted.
    pub(super) fn write<D: Device + ?Sized>(
        &mut self,
        from: BufferRef,
        room: RemoteSlice,
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        let Some(key) = turn.shared.local_key(from.region) else { return 0 };
        let mut posted = 0;
        while posted < from.length && self.has_room() {
            let length = (from.length - posted).min(self.max_message);
            let local = LocalSlice { key, offset: from.offset + posted, length };
            let remote = RemoteSlice { key: room.key, offset: room.offset.saturating_add(posted) };
            let operation = Operation::Write { remote };
            if !self.post(operation, [local, LocalSlice::default()], Purpose::Control, false, turn) {
                break;
            }
            posted += length;
        }
        posted
    }

    /// Asks for a sign of life without the peer's engine: its device acknowledges a WRITE of no bytes. With no room for it as
    /// much is under way already that will be acknowledged.
    pub(super) fn ask<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let operation = Operation::Write { remote: RemoteSlice::default() };
        if !self.is_full() {
            self.post(operation, [LocalSlice::default(); 2], Purpose::Control, true, turn);
        }
    }

    /// A request and all before it are done: what waits for that is told.
    pub(super) fn sent(&mut self, number: u32, events: &mut VecDeque<Event>, now: Time, shared: &mut Shared) {
        let first = self.next.wrapping_sub(u32::try_from(self.sent.len()).unwrap_or(0));
        let count = (number.wrapping_sub(first) & NUMBER).wrapping_add(1) as usize;
        if count > self.sent.len() {
            return;
        }
        let communicator = communicator(self.id);
        for sent in self.sent.drain(..count) {
            shared.network.sent(communicator, sent.bytes, sent.epoch, now);
            self.in_flight = self.in_flight.saturating_sub(sent.bytes);
            if sent.purpose != Purpose::Control {
                events.push_back(Event::Sent(sent.purpose));
            }
        }
    }

    /// Whether everything that was signalled is done, so that only requests nobody waits for remain.
    pub(super) fn is_quiet(&self) -> bool {
        self.broken.is_some() || self.sent.len() <= self.unsignalled as usize
    }

    /// Destroys the queue pair. `false`: not yet, try again.
    pub(super) fn destroy<D: Device + ?Sized>(&mut self, device: &mut D) -> bool {
        if !self.destroyed {
            match device.destroy_queue_pair(self.queue_pair) {
                Ok(()) | Err(QueuePairError::Unknown) => self.destroyed = true,
                Err(_) => device.fail_queue_pair(self.queue_pair),
            }
        }
        self.destroyed
    }

    /// Forgets what was posted; the queue pair is destroyed.
    pub(super) fn forget(&mut self, shared: &mut Shared) {
        let (communicator, now) = (communicator(self.id), shared.network.progress());
        for sent in self.sent.drain(..) {
            shared.network.sent(communicator, sent.bytes, sent.epoch, now);
        }
    }
}

/// The communicator's index, of the id of a request.
pub(super) const fn communicator(id: u64) -> u32 {
    (id >> 48) as u32
}
