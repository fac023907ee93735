//! One queue pair: its queues, its connections and how far either side has got.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_mem::{RegionTable, Span};
use ringway_verbs::{
    Completion, CompletionKind, Completions, Deadline, LocalSlice, QueuePairConfig, QueuePairNumber,
    QueuePairState, ReceiveRequest, Status, Time, Untaken, WorkRequest,
};

use crate::buffers::{ReceivePlan, STAGING_LENGTH, SendBatch};
use crate::driver::Driver;
use crate::error::TcpFailure;
use crate::frame::MAX_READS;
use crate::loans::LOANS_PER_CONNECTION;
use crate::stripes::Turns;
use crate::{TcpConfig, Token};

/// For how many polls an acknowledgement waits for a message to go with: about as long as it takes a client that was told of
/// what has come to answer.
const REPLY_POLLS: u32 = 8;
/// And for how many nanoseconds: a caller that has more to do between two polls does not keep its peer waiting for that.
const REPLY_NS: u64 = 20_000;
/// For how many polls it waits while the socket has more: the next of them finds that, and messages that follow each other
/// are acknowledged together.
const MORE_POLLS: u32 = 2;
/// From so many messages or bytes on that the peer was not told of, it is told at once: it may have no room for more.
const UNTOLD_MAX: u64 = 8;
const UNTOLD_BYTES_MAX: u64 = 128 << 10;

/// Where a queue pair is in its life, in more detail than [`QueuePairState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made; a passive one may have been offered its connection already.
    Init,
    /// Waiting for the system, for the acceptor or for the peer's first frame.
    Connecting,
    /// Frames go both ways.
    Ready,
    /// Failed by a request of the peer: what is begun and the refusal are still sent.
    Draining,
    /// Failed; waiting for the kernel to let go of its operations.
    Closing,
    /// Failed and flushed.
    Closed,
}

/// A posted send-queue request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendEntry {
    pub(crate) request: WorkRequest,
    /// The response to a READ or atomic is here.
    pub(crate) answered: bool,
}

/// What the sender of a message waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Nothing,
    /// A moment more or less does not count.
    Reply,
    Memory,
}

/// A response to be sent.
#[derive(Debug)]
pub(crate) enum Response {
    Read(Span),
    /// To a READ of no bytes.
    Empty,
    Atomic(u64),
}

/// What of a payload goes over one connection, and is still to be put into a batch.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) spans: [Option<Span>; 2],
    /// The request that it belongs to, if it is not a response's. On the first connection it counts as built when this is
    /// complete.
    pub(crate) request: Option<u64>,
}

/// What is arriving.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Incoming {
    Header,
    /// A message's bytes, whose places the connections have.
    Payload {
        what: Arriving,
        /// The whole message.
        length: u64,
    },
    /// The connection is ending; what comes is thrown away.
    Discard,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Arriving {
    Send {
        immediate: Option<u32>,
        waits: Waits,
    },
    /// `held` is the segment whose region is in use meanwhile.
    Write {
        immediate: Option<u32>,
        waits: Waits,
        held: LocalSlice,
    },
    ReadResponse,
}

/// What a device has counted since it was made, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Sent on all connections, with headers.
    pub(crate) bytes_sent: u64,
    /// Received on all connections, with headers.
    pub(crate) bytes_received: u64,
    /// Payload that the device itself copied, between registered memory and its own buffers.
    pub(crate) bytes_copied: u64,
}

/// What all queue pairs of a device share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: TcpConfig,
    pub(crate) memory: RegionTable,
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) counters: Counters,
    pub(crate) completions: Completions,
    /// Queue pairs with something to send or to receive into, by index.
    pub(crate) dirty: VecDeque<u16>,
    /// The caller polls: acknowledgements may wait for one of the next polls.
    pub(crate) patient: bool,
    /// A queue pair changed its state since the caller last asked to block: it gets another turn to see it.
    pub(crate) changed: bool,
    pub(crate) now: Time,
    /// When to look at the deadlines of queue pairs, at the latest.
    pub(crate) next_deadline: Option<Time>,
}

/// One of a queue pair's connections, and what is on its way there.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What the driver knows it by.
    pub(crate) number: u32,
    pub(crate) socket: Option<Arc<OwnedFd>>,
    pub(crate) connecting: bool,
    /// `None` while the kernel has it.
    pub(crate) batch: Option<Box<SendBatch>>,
    /// `None` while the kernel has it.
    pub(crate) plan: Option<Box<ReceivePlan>>,
    /// The last receive left nothing in the socket.
    pub(crate) drained_socket: bool,
    pub(crate) payload: Option<Payload>,
    /// Requests before this one have no part in the payload or the batch.
    pub(crate) confirmed: u64,
    /// For each batch that is lent to the kernel the first request that has a part in it, in their order.
    pub(crate) lent: VecDeque<u64>,
    /// Where what arrives goes; they shrink as it comes.
    pub(crate) places: [LocalSlice; 2],
    /// Bytes to read ahead of what is known to come.
    pub(crate) ahead: usize,
}

impl Connection {
    fn new(number: u32, confirmed: u64) -> Self {
        Self {
            number,
            socket: None,
            connecting: false,
            batch: Some(SendBatch::new()),
            plan: Some(ReceivePlan::new()),
            drained_socket: true,
            payload: None,
            confirmed,
            lent: VecDeque::with_capacity(LOANS_PER_CONNECTION),
            places: [LocalSlice::default(); 2],
            ahead: STAGING_LENGTH,
        }
    }

    /// Whether the kernel works on something of it.
    fn in_flight(&self) -> bool {
        self.batch.is_none() || self.plan.is_none() || self.connecting || !self.lent.is_empty()
    }

    /// Whether all that was to be sent is sent, and nothing of it is lent any more.
    pub(crate) fn is_silent(&self) -> bool {
        self.payload.is_none()
            && self.lent.is_empty()
            && self.batch.as_ref().is_some_and(|batch| batch.is_empty())
    }

    /// Whether more of the message that arrives comes this way.
    pub(crate) fn awaits(&self) -> bool {
        self.places.iter().any(|place| place.length > 0)
    }

    /// Takes note of payload bytes that are in their places.
    pub(crate) fn advance(&mut self, mut count: u64) {
        for place in &mut self.places {
            let part = count.min(place.length);
            place.offset += part;
            place.length -= part;
            count -= part;
        }
    }
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: QueuePairNumber,
    pub(crate) config: QueuePairConfig,
    pub(crate) token: Token,
    /// The peer's token, to be presented once connected.
    pub(crate) peer_token: Option<Token>,
    pub(crate) phase: Phase,
    /// The one that carries the frames.
    pub(crate) first: Connection,
    /// Those that carry only parts of payloads.
    pub(crate) others: Vec<Connection>,
    /// Whether it is known how many there are to be: whoever connects says so.
    pub(crate) agreed: bool,
    /// Whether this side connects.
    pub(crate) active: bool,
    pub(crate) dirty: bool,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) failure: Option<TcpFailure>,
    /// How the oldest request completes when the queue pair has failed.
    pub(crate) first_status: Status,

    pub(crate) sends: VecDeque<SendEntry>,
    /// Requests are numbered from 0 as they are posted. These count up to: the oldest in `sends`, those put into a
    /// batch, and those the peer says it executed.
    pub(crate) done: u64,
    pub(crate) built: u64,
    pub(crate) acknowledged: u64,
    /// Whose turn it is to carry a part of what is sent.
    pub(crate) sending: Turns,
    /// Numbers of READs and atomics that wait for their responses.
    pub(crate) reads: VecDeque<u64>,
    /// Receives the peer ever posted, and how many of them were used.
    pub(crate) credits: u64,
    pub(crate) credits_used: u64,

    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) receives_posted: u64,
    pub(crate) incoming: Incoming,
    /// Whose turn it is to carry a part of what is received.
    pub(crate) receiving: Turns,
    pub(crate) executed: u64,
    pub(crate) responses: VecDeque<Response>,
    pub(crate) refusal: Option<Status>,
    /// What the peer was last told of `executed` and `receives_posted`; `None` before the first frame.
    pub(crate) told: Option<(u64, u64)>,
    /// The peer waits to be told, or is to be told soon in any case.
    pub(crate) asked: bool,
    /// For how many more polls that may wait for something else to be sent.
    pub(crate) patience: u32,
    /// And until when.
    pub(crate) patient_until: Time,
    /// Bytes of messages that the peer was not told of.
    pub(crate) untold_bytes: u64,

    pub(crate) sends_flushed: bool,
    pub(crate) receives_flushed: bool,
    pub(crate) untaken: Untaken,
}

impl QueuePair {
    pub(crate) fn new(number: QueuePairNumber, config: QueuePairConfig, token: Token) -> Box<Self> {
        Box::new(Self {
            number,
            config,
            token,
            peer_token: None,
            phase: Phase::Init,
            first: Connection::new(number.0, 0),
            others: Vec::new(),
            agreed: false,
            active: false,
            dirty: false,
            deadline: None,
            failure: None,
            first_status: Status::Flushed,
            sends: VecDeque::with_capacity(config.send_depth as usize),
            done: 0,
            built: 0,
            acknowledged: 0,
            sending: Turns::new(1),
            reads: VecDeque::with_capacity(MAX_READS),
            credits: 0,
            credits_used: 0,
            receives: VecDeque::with_capacity(config.receive_depth as usize),
            receives_posted: 0,
            incoming: Incoming::Header,
            receiving: Turns::new(1),
            executed: 0,
            responses: VecDeque::with_capacity(MAX_READS),
            refusal: None,
            told: None,
            asked: false,
            patience: 0,
            patient_until: Time(0),
            untold_bytes: 0,
            sends_flushed: false,
            receives_flushed: false,
            untaken: Untaken::default(),
        })
    }

    pub(crate) const fn index(&self) -> u16 {
        self.number.0 as u16
    }

    pub(crate) const fn state(&self) -> QueuePairState {
        match self.phase {
            Phase::Init => QueuePairState::Init,
            Phase::Connecting => QueuePairState::Connecting,
            Phase::Ready => QueuePairState::Ready,
            Phase::Draining | Phase::Closing | Phase::Closed => QueuePairState::Error,
        }
    }

    pub(crate) fn connections(&self) -> impl Iterator<Item = &Connection> {
        core::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn connections_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        core::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The connection of this place among them.
    pub(crate) fn connection(&mut self, at: usize) -> Option<&mut Connection> {
        match at.checked_sub(1) {
            None => Some(&mut self.first),
            Some(other) => self.others.get_mut(other),
        }
    }

    /// How many connections there are, or places for them.
    pub(crate) const fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// Has connections of these numbers beside the first.
    pub(crate) fn agree(&mut self, others: &[u32]) {
        self.others.extend(others.iter().map(|number| Connection::new(*number, u64::MAX)));
        let connections = self.count();
        self.agreed = true;
        (self.sending, self.receiving) = (Turns::new(connections), Turns::new(connections));
    }

    /// Whether all connections are there.
    pub(crate) fn is_whole(&self) -> bool {
        self.agreed
            && self.connections().all(|connection| connection.socket.is_some() && !connection.connecting)
    }

    /// Whether the kernel works on something of this queue pair.
    pub(crate) fn in_flight(&self) -> bool {
        self.connections().any(Connection::in_flight)
    }

    /// Remembers to look after this queue pair at the next flush or poll.
    pub(crate) fn mark(&mut self, shared: &mut Shared) {
        if !self.dirty {
            self.dirty = true;
            shared.dirty.push_back(self.index());
        }
    }

    /// The request with this number.
    pub(crate) fn send_entry(&mut self, number: u64) -> Option<&mut SendEntry> {
        let index = usize::try_from(number.checked_sub(self.done)?).ok()?;
        self.sends.get_mut(index)
    }

    /// Counts a message of the peer that was executed, and how its sender waits to be told.
    pub(crate) fn count_executed(&mut self, length: u64, waits: Waits, now: Time) {
        let untold = self.told.map_or(u64::MAX, |(executed, _)| self.executed - executed);
        self.executed += 1;
        if untold == 0 {
            self.untold_bytes = 0;
        }
        self.untold_bytes = self.untold_bytes.saturating_add(length);
        let is_much = untold.saturating_add(1) >= UNTOLD_MAX || self.untold_bytes >= UNTOLD_BYTES_MAX;
        let was_asked = self.asked;
        self.asked |= is_much || waits != Waits::Nothing;
        if self.asked && !was_asked {
            self.patient_until = Time(now.0.saturating_add(REPLY_NS));
        }
        self.patience = match waits {
            _ if is_much => 0,
            _ if !self.first.drained_socket => self.patience.max(MORE_POLLS),
            Waits::Reply if !was_asked => REPLY_POLLS,
            Waits::Reply | Waits::Nothing => self.patience,
            Waits::Memory => 0,
        };
    }

    /// Whether the peer is to be told how far this side has got, by a frame of its own if there is no other: it waits for that, or
    /// may send no more than half of what there are receives for, or it has been told nothing yet.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        let Some((_, told)) = self.told else { return true };
        let untold = self.receives_posted - told;
        let used = self.receives_posted - self.receives.len() as u64;
        self.asked || (untold > 0 && told.saturating_sub(used) <= untold)
    }

    /// Completes what is executed, answered and out of the kernel's hands.
    pub(crate) fn complete_done(&mut self, shared: &mut Shared) {
        let free = |connection: &Connection| {
            connection.lent.front().map_or(connection.confirmed, |lent| connection.confirmed.min(*lent))
        };
        let free = self.connections().map(free).min().unwrap_or_default();
        while self.done < free.min(self.acknowledged) {
            let Some(entry) = self.sends.front() else { return };
            if entry.request.operation.is_answered() && !entry.answered {
                return;
            }
            let request = entry.request;
            self.sends.pop_front();
            self.done += 1;
            self.complete_send(shared, &request, Status::Success);
        }
    }

    pub(crate) fn complete_send(&mut self, shared: &mut Shared, request: &WorkRequest, status: Status) {
        for slice in &request.local {
            shared.memory.release(slice);
        }
        if status == Status::Success && !request.signalled {
            return;
        }
        let completion = Completion {
            id: request.id,
            queue_pair: self.number,
            status,
            kind: CompletionKind::Send,
            length: request.length(),
            immediate: None,
        };
        shared.completions.push(completion, &mut self.untaken);
    }

    /// Completes the oldest receive.
    pub(crate) fn complete_receive(
        &mut self,
        shared: &mut Shared,
        status: Status,
        kind: CompletionKind,
        length: u64,
        immediate: Option<u32>,
    ) {
        let Some(receive) = self.receives.pop_front() else { return };
        self.complete_this_receive(
            shared,
            &receive,
            Completion { id: receive.id, queue_pair: self.number, status, kind, length, immediate },
        );
    }

    fn complete_this_receive(
        &mut self,
        shared: &mut Shared,
        receive: &ReceiveRequest,
        completion: Completion,
    ) {
        shared.memory.release(&receive.local);
        shared.completions.push(completion, &mut self.untaken);
    }

    /// Gives a receive back that was posted after its queue was flushed.
    pub(crate) fn flush_receive(&mut self, shared: &mut Shared, receive: &ReceiveRequest) {
        let completion = Completion {
            id: receive.id,
            queue_pair: self.number,
            status: Status::Flushed,
            kind: CompletionKind::Receive,
            length: 0,
            immediate: None,
        };
        self.complete_this_receive(shared, receive, completion);
    }

    /// Completes the whole receive queue as flushed.
    pub(crate) fn flush_receives(&mut self, shared: &mut Shared) {
        self.receives_flushed = true;
        while !self.receives.is_empty() {
            self.complete_receive(shared, Status::Flushed, CompletionKind::Receive, 0, None);
        }
    }

    /// Completes the whole send queue: what was executed as a success, the next with the failure's status, the rest as
    /// flushed. The kernel has let go of all of it.
    pub(crate) fn flush_sends(&mut self, shared: &mut Shared) {
        self.sends_flushed = true;
        let built = self.built;
        self.connections_mut().for_each(|connection| connection.confirmed = built);
        self.complete_done(shared);
        let mut status = self.first_status;
        while let Some(entry) = self.sends.pop_front() {
            self.done += 1;
            self.complete_send(shared, &entry.request, status);
            status = Status::Flushed;
        }
    }
}
