//! One queue pair to a peer node: its buffers, its credits and what waits to be sent.

use std::collections::VecDeque;

use ringway_verbs::{
    Device, LocalKey, LocalSlice, Operation, PostError, QueuePairConfig, QueuePairError, QueuePairNumber,
    ReceiveRequest, RemoteSlice, Time, WorkRequest,
};

use crate::message::{Credits, Envelope, Exchange, FAILURE, HEADER, Message, emit_failure};
use crate::turn::{Shared, Turn};
use crate::{BufferRef, EngineConfig, Failure};

/// Bytes of a send slot: a header and a payload short enough to be copied beside it.
pub(crate) const SLOT: u64 = 256;
/// The longest payload that is copied into the send slot, so that its source is free at once.
const INLINE: u64 = SLOT - HEADER as u64;
/// Send-queue requests that may be outstanding.
const SEND_DEPTH: u32 = 128;
/// Data leaves this many places for control messages.
const RESERVED: usize = 16;
/// Receives beyond those that eager messages may hold. Control messages and the notices of WRITE_WITH_IMM use them
/// and give them back at once; with none left the device holds the sender back.
const CONTROL_RECEIVES: u32 = 16;
/// Long messages are written in pieces of this many bytes, so that a sign of life is never far behind.
const SEGMENT: u64 = 1 << 20;
/// Bytes of long messages that may be posted at once.
const WINDOW: u64 = 4 << 20;
/// Point-to-point messages that may be announced and not granted.
const ANNOUNCEMENTS: u32 = 256;

/// What a send-queue request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Nothing waits for it.
    Control,
    /// A step of the plan that runs.
    Step { slot: u32, step: u32 },
    /// A point-to-point operation.
    Point { key: u32 },
}

/// What happened on a link that a part above it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The bytes have left.
    Sent(Purpose),
    /// The point-to-point message was announced.
    Announced { key: u32 },
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    purpose: Purpose,
    bytes: u64,
}

/// A long message that is being written.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    from: BufferRef,
    key: LocalKey,
    target: RemoteSlice,
    immediate: u32,
    purpose: Purpose,
}

/// A point-to-point message that is not on its way yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) key: u32,
    pub(crate) envelope: Envelope,
    pub(crate) buffer: BufferRef,
}

/// A collective's message that came before the step it is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) exchange: Exchange,
    pub(crate) length: u64,
    pub(crate) kind: EarlyKind,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum EarlyKind {
    Data { bounce: u32 },
    Announce,
    Grant { target: RemoteSlice, immediate: u32 },
}

/// Which credits a buffer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Collective,
    Point,
}

/// How a message was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Not at all: try again after completions.
    No,
    /// The source is in use until the purpose's event.
    Posted,
    /// The source is free.
    Copied,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: u32,
    /// The lowest rank on the node.
    pub(crate) rank: u32,
    pub(crate) queue_pair: QueuePairNumber,
    id: u64,
    check: u32,
    memory: u64,
    memory_length: u64,
    bounce_bytes: u64,
    receives: u32,
    posted: u32,
    credits_each: u16,
    eager_max: u64,
    max_message: u64,
    sent: VecDeque<Sent>,
    next: u32,
    unsignalled: u32,
    in_flight: u64,
    outbox: VecDeque<Message>,
    pub(crate) queue: VecDeque<Queued>,
    transfers: VecDeque<Transfer>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) early: Vec<Early>,
    credits: Credits,
    owed: Credits,
    announced: u32,
    /// Point-to-point messages of the peer that wait for a receive.
    pub(crate) held: u32,
    /// When a sign of life was asked for that has not come.
    pub(crate) asked: Option<Time>,
    pub(crate) heard: Time,
    /// When it was asked last, and whether it is to be asked now.
    pub(crate) pinged: Time,
    pub(crate) ping_due: bool,
    /// A rank of the node that has left, and after how many collectives.
    pub(crate) left: Option<(u32, u64)>,
    /// The node's last rank has left.
    pub(crate) ended: bool,
    /// The queue pair failed.
    pub(crate) broken: Option<Time>,
    pub(crate) abort_heard: bool,
    destroyed: bool,
}

/// Where a link stands in a communicator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkPlace {
    pub(crate) communicator: u32,
    pub(crate) link: u32,
    pub(crate) node: u32,
    pub(crate) rank: u32,
    pub(crate) check: u32,
}

/// Splits a work request's id into communicator index, link index, whether it is a receive, and number.
pub(crate) const fn split_id(id: u64) -> (usize, usize, u32) {
    ((id >> 48) as usize, ((id >> 32) & 0xffff) as usize, (id & 0x7fff_ffff) as u32)
}

impl Link {
    pub(crate) fn queue_pair_config(config: &EngineConfig) -> QueuePairConfig {
        QueuePairConfig { send_depth: SEND_DEPTH, receive_depth: receives(config) }
    }

    pub(crate) fn new<D: Device + ?Sized>(
        place: LinkPlace,
        queue_pair: QueuePairNumber,
        shared: &mut Shared,
        device: &D,
    ) -> Option<Self> {
        let config = &shared.config;
        let (receives, bounce_bytes) = (receives(config), config.bounce_bytes());
        let memory_length = u64::from(SEND_DEPTH) * SLOT + u64::from(receives) * bounce_bytes;
        let memory = shared.workspace.take_long(memory_length)?;
        let each = Credits { collective: config.credits, point: config.credits };
        Some(Self {
            node: place.node,
            rank: place.rank,
            queue_pair,
            id: (u64::from(place.communicator) << 48) | (u64::from(place.link) << 32),
            check: place.check,
            memory,
            memory_length,
            bounce_bytes,
            receives,
            posted: 0,
            credits_each: config.credits,
            eager_max: u64::from(config.eager_max_bytes),
            max_message: device.capabilities().max_message.max(1),
            sent: VecDeque::with_capacity(SEND_DEPTH as usize),
            next: 0,
            unsignalled: 0,
            in_flight: 0,
            outbox: VecDeque::with_capacity(64),
            queue: VecDeque::with_capacity(64),
            transfers: VecDeque::with_capacity(64),
            events: VecDeque::with_capacity(2 * SEND_DEPTH as usize),
            early: Vec::with_capacity(64),
            credits: each,
            owed: Credits::default(),
            announced: 0,
            held: 0,
            asked: None,
            heard: Time(0),
            pinged: Time(0),
            ping_due: false,
            left: None,
            ended: false,
            broken: None,
            abort_heard: false,
            destroyed: false,
        })
    }

    /// Posts every receive. Before connecting, so that nothing can come too early.
    pub(crate) fn post_receives<D: Device + ?Sized>(
        &mut self,
        shared: &mut Shared,
        device: &mut D,
    ) -> Result<(), PostError> {
        while self.posted < self.receives {
            let at = self.posted;
            self.post_receive(at, shared, device)?;
        }
        Ok(())
    }

    fn post_receive<D: Device + ?Sized>(
        &mut self,
        index: u32,
        shared: &mut Shared,
        device: &mut D,
    ) -> Result<(), PostError> {
        let local = LocalSlice {
            key: shared.workspace.keys().local,
            offset: self.bounce_offset(index),
            length: self.bounce_bytes,
        };
        let request = ReceiveRequest { id: self.id | (1 << 31) | u64::from(index), local };
        device.post_receive(self.queue_pair, &request)?;
        self.posted += 1;
        shared.unflushed = true;
        Ok(())
    }

    fn bounce_offset(&self, index: u32) -> u64 {
        self.memory + u64::from(SEND_DEPTH) * SLOT + u64::from(index) * self.bounce_bytes
    }

    /// The payload of an eager message that was received.
    pub(crate) fn payload(&self, bounce: u32, length: u64, shared: &Shared) -> BufferRef {
        shared.workspace.buffer(self.bounce_offset(bounce) + HEADER as u64, length)
    }

    /// The message in a receive buffer, when its bytes make sense.
    pub(crate) fn read<D: ?Sized>(&self, bounce: u32, length: u64, turn: &Turn<'_, D>) -> Option<Message> {
        let mut bytes = [0; HEADER];
        if bounce >= self.receives || length < HEADER as u64 {
            return None;
        }
        turn.memory.read(turn.shared.workspace.buffer(self.bounce_offset(bounce), HEADER as u64), &mut bytes);
        let message = Message::parse(&bytes, self.check)?;
        let payload = length - HEADER as u64;
        let expected = match message {
            Message::Data { length, .. } => length,
            Message::PointData { envelope, .. } => envelope.length,
            Message::Abort => FAILURE as u64,
            _ => 0,
        };
        (payload == expected).then_some(message)
    }

    /// A receive has completed.
    pub(crate) fn taken(&mut self, now: Time) {
        self.posted = self.posted.saturating_sub(1);
        self.heard = now;
        self.asked = None;
    }

    /// A receive has failed.
    pub(crate) fn lost(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Nothing more can come.
    pub(crate) fn is_drained(&self) -> bool {
        self.posted == 0
    }

    /// Posts a receive buffer again.
    pub(crate) fn repost<D: Device + ?Sized>(&mut self, bounce: u32, turn: &mut Turn<'_, D>) {
        if self.broken.is_none() && self.post_receive(bounce, turn.shared, turn.device).is_err() {
            self.broken = Some(turn.now);
        }
    }

    /// Posts the receive buffer of an eager message again and owes the sender a credit.
    pub(crate) fn release<D: Device + ?Sized>(&mut self, bounce: u32, class: Class, turn: &mut Turn<'_, D>) {
        self.repost(bounce, turn);
        let owed = match class {
            Class::Collective => &mut self.owed.collective,
            Class::Point => &mut self.owed.point,
        };
        *owed = owed.saturating_add(1);
        if *owed >= self.credits_each.div_ceil(2) {
            let credits = core::mem::take(&mut self.owed);
            self.control(Message::Credit { credits }, turn);
        }
    }

    /// The peer gives credits back; never more than there are.
    pub(crate) fn credit(&mut self, more: Credits) {
        let add = |have: u16, more: u16| have.saturating_add(more).min(self.credits_each);
        self.credits = Credits {
            collective: add(self.credits.collective, more.collective),
            point: add(self.credits.point, more.point),
        };
    }

    /// Whether an eager message of the class has a receive buffer waiting for it.
    pub(crate) fn has_credit(&self, class: Class) -> bool {
        match class {
            Class::Collective => self.credits.collective > 0,
            Class::Point => self.credits.point > 0,
        }
    }

    fn has_room(&self) -> bool {
        self.outbox.is_empty() && self.sent.len() + RESERVED < SEND_DEPTH as usize
    }

    /// Sends an eager message of a collective; the caller has seen a credit.
    pub(crate) fn send_data<D: Device + ?Sized>(
        &mut self,
        exchange: Exchange,
        from: BufferRef,
        purpose: Purpose,
        turn: &mut Turn<'_, D>,
    ) -> Taken {
        if !self.has_room() {
            return Taken::No;
        }
        let message = Message::Data { exchange, length: from.length, credits: self.owed };
        let taken = self.send_eager(&message, from, purpose, turn);
        if taken != Taken::No {
            self.owed = Credits::default();
            self.credits.collective -= 1;
        }
        taken
    }

    fn send_eager<D: Device + ?Sized>(
        &mut self,
        message: &Message,
        from: BufferRef,
        purpose: Purpose,
        turn: &mut Turn<'_, D>,
    ) -> Taken {
        let slot = self.slot();
        let mut header = self.write_header(slot, message, turn);
        if from.length <= INLINE {
            if from.length > 0 {
                let into = turn.shared.workspace.buffer(slot + HEADER as u64, from.length);
                turn.memory.copy(from, &[into]);
                header.length += from.length;
            }
            let posted = self.post(send(), [header, LocalSlice::default()], Purpose::Control, false, turn);
            return if posted { Taken::Copied } else { Taken::No };
        }
        let Some(key) = turn.shared.local_key(from.region) else { return Taken::No };
        let payload = LocalSlice { key, offset: from.offset, length: from.length };
        if self.post(send(), [header, payload], purpose, true, turn) { Taken::Posted } else { Taken::No }
    }

    /// Sends a message without payload, now or as soon as there is room.
    pub(crate) fn control<D: Device + ?Sized>(&mut self, message: Message, turn: &mut Turn<'_, D>) {
        if !self.outbox.is_empty() || !self.post_control(&message, turn) {
            self.outbox.push_back(message);
        }
    }

    fn post_control<D: Device + ?Sized>(&mut self, message: &Message, turn: &mut Turn<'_, D>) -> bool {
        if self.sent.len() >= SEND_DEPTH as usize {
            return false;
        }
        let header = self.write_header(self.slot(), message, turn);
        self.post(send(), [header, LocalSlice::default()], Purpose::Control, false, turn)
    }

    /// Tells the peer of a failure. What waited to be sent is dropped. `false` when there is no room yet.
    pub(crate) fn abort<D: Device + ?Sized>(&mut self, failure: &Failure, turn: &mut Turn<'_, D>) -> bool {
        self.outbox.clear();
        self.queue.clear();
        self.transfers.clear();
        if self.sent.len() >= SEND_DEPTH as usize {
            return false;
        }
        let slot = self.slot();
        let mut header = self.write_header(slot, &Message::Abort, turn);
        let into = turn.shared.workspace.buffer(slot + HEADER as u64, FAILURE as u64);
        turn.memory.write(into, &emit_failure(failure));
        header.length += FAILURE as u64;
        self.post(send(), [header, LocalSlice::default()], Purpose::Control, true, turn)
    }

    /// Writes a long message where the peer has granted it.
    pub(crate) fn transfer<D: Device + ?Sized>(
        &mut self,
        from: BufferRef,
        target: RemoteSlice,
        immediate: u32,
        purpose: Purpose,
        turn: &mut Turn<'_, D>,
    ) {
        if from.length == 0 {
            self.control(Message::Written { immediate }, turn);
            self.events.push_back(Event::Sent(purpose));
        } else if let Some(key) = turn.shared.local_key(from.region) {
            self.transfers.push_back(Transfer { from, key, target, immediate, purpose });
            self.pump(turn);
        } else {
            self.broken = Some(turn.now);
        }
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn pump<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        while let Some(message) = self.outbox.front().copied() {
            if !self.post_control(&message, turn) {
                return;
            }
            self.outbox.pop_front();
        }
        while self.has_room() && self.pump_queued(turn) {}
        while self.has_room() && self.in_flight < WINDOW && self.pump_transfer(turn) {}
    }

    fn pump_queued<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) -> bool {
        let Some(Queued { key, envelope, buffer }) = self.queue.front().copied() else { return false };
        if envelope.length <= self.eager_max && self.credits.point > 0 {
            let message = Message::PointData { envelope, credits: self.owed };
            match self.send_eager(&message, buffer, Purpose::Point { key }, turn) {
                Taken::No => return false,
                Taken::Posted => {}
                Taken::Copied => self.events.push_back(Event::Sent(Purpose::Point { key })),
            }
            self.owed = Credits::default();
            self.credits.point -= 1;
        } else if self.announced < ANNOUNCEMENTS {
            self.announced += 1;
            self.control(Message::PointAnnounce { envelope, slot: key }, turn);
            self.events.push_back(Event::Announced { key });
        } else {
            return false;
        }
        self.queue.pop_front();
        true
    }

    /// A point-to-point message of the peer has to wait. `false` when there are more than a correct peer can send.
    pub(crate) fn hold(&mut self) -> bool {
        self.held += 1;
        self.held <= ANNOUNCEMENTS + u32::from(self.credits_each)
    }

    /// An announced point-to-point message was granted.
    pub(crate) fn granted(&mut self) {
        self.announced = self.announced.saturating_sub(1);
    }

    fn pump_transfer<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) -> bool {
        let Some(transfer) = self.transfers.pop_front() else { return false };
        let length = transfer.from.length.min(SEGMENT).min(self.max_message);
        let local = LocalSlice { key: transfer.key, offset: transfer.from.offset, length };
        let last = length == transfer.from.length;
        let (operation, purpose) = if last {
            let (remote, immediate) = (transfer.target, transfer.immediate);
            (Operation::WriteWithImmediate { remote, immediate }, transfer.purpose)
        } else {
            (Operation::Write { remote: transfer.target }, Purpose::Control)
        };
        if !self.post(operation, [local, LocalSlice::default()], purpose, true, turn) {
            self.transfers.push_front(transfer);
            return false;
        }
        if let Some(sent) = self.sent.back_mut() {
            sent.bytes = length;
        }
        self.in_flight += length;
        if !last {
            let mut rest = transfer;
            rest.from.offset += length;
            rest.from.length -= length;
            rest.target.offset = rest.target.offset.saturating_add(length);
            self.transfers.push_back(rest);
        }
        true
    }

    fn slot(&self) -> u64 {
        self.memory + u64::from(self.next % SEND_DEPTH) * SLOT
    }

    fn write_header<D: ?Sized>(&self, slot: u64, message: &Message, turn: &mut Turn<'_, D>) -> LocalSlice {
        let workspace = &turn.shared.workspace;
        turn.memory.write(workspace.buffer(slot, HEADER as u64), &message.emit(self.check));
        LocalSlice { key: workspace.keys().local, offset: slot, length: HEADER as u64 }
    }

    fn post<D: Device + ?Sized>(
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
        let id = self.id | u64::from(self.next & 0x7fff_ffff);
        let request = WorkRequest { id, operation, local, signalled, fence: false };
        match turn.device.post_send(self.queue_pair, &request) {
            Ok(()) => {
                self.sent.push_back(Sent { purpose, bytes: 0 });
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

    /// A send-queue request and all before it are done.
    pub(crate) fn sent(&mut self, number: u32) {
        let first = self.next.wrapping_sub(u32::try_from(self.sent.len()).unwrap_or(0));
        let count = (number.wrapping_sub(first) & 0x7fff_ffff).wrapping_add(1) as usize;
        if count > self.sent.len() {
            return;
        }
        for sent in self.sent.drain(..count) {
            self.in_flight = self.in_flight.saturating_sub(sent.bytes);
            if sent.purpose != Purpose::Control {
                self.events.push_back(Event::Sent(sent.purpose));
            }
        }
    }

    /// Whether everything that was signalled is done, so that only requests nobody waits for remain.
    pub(crate) fn is_quiet(&self) -> bool {
        self.outbox.is_empty() && self.sent.len() <= self.unsignalled as usize
    }

    /// Destroys the queue pair. `false`: not yet, try again.
    pub(crate) fn destroy<D: Device + ?Sized>(&mut self, device: &mut D) -> bool {
        if self.destroyed {
            return true;
        }
        match device.destroy_queue_pair(self.queue_pair) {
            Ok(()) | Err(QueuePairError::Unknown) => {
                self.destroyed = true;
                self.events.clear();
                self.early.clear();
            }
            Err(_) => device.fail_queue_pair(self.queue_pair),
        }
        self.destroyed
    }

    /// Gives the buffers back; the queue pair is destroyed.
    pub(crate) fn free(&mut self, shared: &mut Shared) {
        if self.memory_length > 0 {
            shared.workspace.give(self.memory, self.memory_length);
            self.memory_length = 0;
        }
    }
}

const fn send() -> Operation {
    Operation::Send { immediate: None }
}

/// Receives of one queue pair: eager messages of both classes, and control messages.
fn receives(config: &EngineConfig) -> u32 {
    2 * u32::from(config.credits) + CONTROL_RECEIVES
}
