//! One queue pair: its queues, its connection and how far either side has got.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_mem::{RegionTable, Window};
use ringway_verbs::{
    Completion, CompletionKind, Completions, Deadline, LocalSlice, QueuePairConfig, QueuePairNumber,
    QueuePairState, ReceiveRequest, Status, Time, Untaken, WorkRequest,
};

use crate::channel::{Channel, OwnFile};
use crate::control::{self, Message};
use crate::counters::Counters;
use crate::endpoint::{TOKEN_BYTES, Token};
use crate::entry::{Entry, Source};
use crate::regions::{Announced, Exports, Imports};
use crate::{ShmConfig, ShmFailure};

/// Messages of one peer that are read from its socket in one turn at most: each can have memory mapped.
pub(crate) const MESSAGES_PER_TURN: usize = 16;
/// READs and atomics of one side that may be outstanding.
pub(crate) const MAX_READS: usize = 16;

/// Where a queue pair is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made; a passive one may have been offered its connection already.
    Init,
    /// Waiting for the peer.
    Connecting,
    /// Connected.
    Ready,
    /// Failed and flushed.
    Failed,
}

/// A posted send-queue request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendEntry {
    pub(crate) request: WorkRequest,
    /// The response to a READ or atomic is here.
    pub(crate) answered: bool,
}

/// A response to be given.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Response {
    /// Bytes of a region, of which so many were given.
    Read { from: LocalSlice, given: u64 },
    /// What a word had in it.
    Word(u64),
}

/// A message of the peer's that is under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    /// Where its bytes go: none for a SEND, whose receive says so.
    pub(crate) target: Option<LocalSlice>,
    pub(crate) total: u64,
    pub(crate) done: u64,
    pub(crate) immediate: Option<u32>,
}

/// A piece of a message, of which so many bytes were copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) source: Source,
    pub(crate) taken: u64,
    pub(crate) last: bool,
    /// Whoever wrote it wants to know soon that it was executed.
    pub(crate) asks: bool,
}

impl Piece {
    /// What an entry brings.
    pub(crate) const fn of(entry: &Entry) -> Self {
        Self { source: entry.source, taken: 0, last: entry.last, asks: entry.asks }
    }
}

/// What a peer that connected brought along.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) socket: OwnedFd,
    pub(crate) file: OwnedFd,
    pub(crate) doorbell: OwnedFd,
}

/// What all queue pairs of a device share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ShmConfig,
    pub(crate) memory: RegionTable,
    pub(crate) exports: Exports,
    pub(crate) completions: Completions,
    pub(crate) counters: Counters,
    /// A queue pair changed its state since the caller last asked to block.
    pub(crate) changed: bool,
    pub(crate) now: Time,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: QueuePairNumber,
    pub(crate) config: QueuePairConfig,
    /// What shows a peer that this queue pair is meant, and what shows the peer's that it is answered by this one.
    pub(crate) token: Token,
    pub(crate) peer: Token,
    pub(crate) phase: Phase,
    pub(crate) failure: Option<ShmFailure>,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) socket: Option<OwnedFd>,
    /// The token was used.
    pub(crate) offered: bool,
    pub(crate) offer: Option<Offer>,
    pub(crate) own: Option<OwnFile>,
    pub(crate) channel: Option<Channel>,
    pub(crate) announced: Announced,
    pub(crate) imports: Imports,

    pub(crate) sends: VecDeque<SendEntry>,
    /// Requests are numbered from 0 as they are posted. These count up to the oldest in `sends`, those put into the ring,
    /// and those the peer says it executed.
    pub(crate) done: u64,
    pub(crate) built: u64,
    pub(crate) executed_there: u64,
    /// Bytes of the request that is next which are in the ring already.
    pub(crate) partial: u64,
    /// Numbers of READs and atomics that wait for their responses.
    pub(crate) reads: VecDeque<u64>,
    /// Bytes of the oldest READ that have come, and what comes now.
    pub(crate) read_done: u64,
    pub(crate) answer: Option<Piece>,
    /// Pieces of responses fetched straight from the peer's memory.
    pub(crate) pulled: u64,

    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) incoming: Option<Incoming>,
    pub(crate) piece: Option<Piece>,
    /// A request that cannot be executed yet.
    pub(crate) held: Option<Entry>,
    pub(crate) executed: u64,
    /// The peer wants to know soon how many were executed.
    pub(crate) asked: bool,
    pub(crate) responses: VecDeque<Response>,
    /// What the peer fetches straight from this side's memory, oldest first, and how much it ever has.
    pub(crate) granted: VecDeque<LocalSlice>,
    pub(crate) pulled_there: u64,

    pub(crate) untaken: Untaken,
}

impl QueuePair {
    pub(crate) fn new(number: QueuePairNumber, config: QueuePairConfig, token: Token) -> Box<Self> {
        Box::new(Self {
            number,
            config,
            token,
            peer: [0; TOKEN_BYTES],
            phase: Phase::Init,
            failure: None,
            deadline: None,
            socket: None,
            offered: false,
            offer: None,
            own: None,
            channel: None,
            announced: Announced::default(),
            imports: Imports::default(),
            sends: VecDeque::with_capacity(config.send_depth as usize),
            done: 0,
            built: 0,
            executed_there: 0,
            partial: 0,
            reads: VecDeque::with_capacity(MAX_READS),
            read_done: 0,
            answer: None,
            pulled: 0,
            receives: VecDeque::with_capacity(config.receive_depth as usize),
            incoming: None,
            piece: None,
            held: None,
            executed: 0,
            asked: false,
            responses: VecDeque::with_capacity(MAX_READS),
            granted: VecDeque::with_capacity(MAX_READS),
            pulled_there: 0,
            untaken: Untaken::default(),
        })
    }

    pub(crate) const fn state(&self) -> QueuePairState {
        match self.phase {
            Phase::Init => QueuePairState::Init,
            Phase::Connecting => QueuePairState::Connecting,
            Phase::Ready => QueuePairState::Ready,
            Phase::Failed => QueuePairState::Error,
        }
    }

    /// Whether requests were posted that the peer cannot see.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.built - self.done < self.sends.len() as u64
            || self.channel.as_ref().is_some_and(Channel::has_unpublished)
    }

    /// The request with this number.
    pub(crate) fn send_entry(&mut self, number: u64) -> Option<&mut SendEntry> {
        let index = usize::try_from(number.checked_sub(self.done)?).ok()?;
        self.sends.get_mut(index)
    }

    /// Opens the connection: the peer's device is told which queue pair is meant.
    pub(crate) fn open(&mut self, socket: OwnedFd, bell: BorrowedFd<'_>) -> Result<(), ShmFailure> {
        let own = OwnFile::new()?;
        control::say_hello(socket.as_fd(), &self.peer, [own.file(), bell])?;
        (self.own, self.socket) = (Some(own), Some(socket));
        Ok(())
    }

    /// Takes the connection that the peer has opened.
    pub(crate) fn accept(&mut self, offer: Offer, bell: BorrowedFd<'_>) -> Result<(), ShmFailure> {
        let own = OwnFile::new()?;
        control::say_welcome(offer.socket.as_fd(), &self.peer, [own.file(), bell])?;
        self.socket = Some(offer.socket);
        self.channel = Some(own.join(offer.file.as_fd(), offer.doorbell)?);
        Ok(())
    }

    /// Reads what the peer has sent over the socket; whether that was all, as far as can be seen. What is left keeps the
    /// socket readable.
    pub(crate) fn listen(&mut self, shared: &mut Shared) -> Result<bool, ShmFailure> {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(socket) = &self.socket else { return Ok(true) };
            match control::receive(socket.as_fd())? {
                None => return Ok(true),
                // Not from whoever took the peer's name when it had ended.
                Some(Message::Welcome { token, .. }) if token != self.token => {
                    return Err(ShmFailure::Protocol);
                }
                Some(Message::Welcome { file, doorbell, .. }) => {
                    let own = self.own.take().ok_or(ShmFailure::Protocol)?;
                    self.channel = Some(own.join(file.as_fd(), doorbell)?);
                    (self.phase, self.deadline, shared.changed) = (Phase::Ready, None, true);
                }
                Some(Message::Region { key, file }) => {
                    if u32::from(key as u16) >= shared.config.max_regions {
                        return Err(ShmFailure::Protocol);
                    }
                    self.imports.add(key, file)?;
                    shared.counters.regions_mapped += 1;
                }
                Some(Message::Forget { key }) => self.imports.remove(key),
                Some(Message::Hello { .. }) => return Err(ShmFailure::Protocol),
            }
        }
        Ok(false)
    }

    /// Learns how far the peer is, and completes what it has executed and answered.
    pub(crate) fn catch_up(&mut self, shared: &mut Shared) -> Result<(), ShmFailure> {
        let Some(channel) = &self.channel else { return Ok(()) };
        if self.done < self.built {
            let executed = channel.executed_there();
            if executed > self.built {
                return Err(ShmFailure::Protocol);
            }
            // Entries may have said more already.
            self.executed_there = self.executed_there.max(executed);
        }
        if !self.granted.is_empty() {
            let pulled = channel.pulled_there();
            let fresh = pulled.checked_sub(self.pulled_there).ok_or(ShmFailure::Protocol)?;
            if fresh > self.granted.len() as u64 {
                return Err(ShmFailure::Protocol);
            }
            self.pulled_there = pulled;
            for slice in self.granted.drain(..fresh as usize) {
                shared.memory.release(&slice);
            }
        }
        self.complete_done(shared);
        Ok(())
    }

    /// An entry of the peer's says how many requests it had executed, in the lower half of their number. What is no further
    /// than what is known is older, or of a peer that harms itself.
    #[inline]
    pub(crate) fn acknowledge(&mut self, executed: u32) {
        let fresh = u64::from(executed.wrapping_sub(self.executed_there as u32));
        if fresh <= self.built - self.executed_there {
            self.executed_there += fresh;
        }
    }

    pub(crate) fn complete_done(&mut self, shared: &mut Shared) {
        while self.done < self.executed_there {
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
    pub(crate) fn complete_receive(&mut self, shared: &mut Shared, status: Status, message: &Incoming) {
        let Some(receive) = self.receives.pop_front() else { return };
        let kind =
            if message.target.is_some() { CompletionKind::ReceiveWrite } else { CompletionKind::Receive };
        self.complete_this_receive(shared, &receive, (status, kind), message.total, message.immediate);
    }

    /// Gives back a receive that no message will use.
    pub(crate) fn flush_receive(&mut self, shared: &mut Shared, receive: &ReceiveRequest) {
        self.complete_this_receive(shared, receive, (Status::Flushed, CompletionKind::Receive), 0, None);
    }

    fn complete_this_receive(
        &mut self,
        shared: &mut Shared,
        receive: &ReceiveRequest,
        (status, kind): (Status, CompletionKind),
        length: u64,
        immediate: Option<u32>,
    ) {
        shared.memory.release(&receive.local);
        let (id, queue_pair) = (receive.id, self.number);
        let completion = Completion { id, queue_pair, status, kind, length, immediate };
        shared.completions.push(completion, &mut self.untaken);
    }

    /// Ends the connection and flushes everything: what the peer executed as a success, the next request with this status.
    pub(crate) fn fail(&mut self, shared: &mut Shared, failure: ShmFailure, status: Status) {
        if self.phase == Phase::Failed {
            return;
        }
        // What the peer did is done, whatever broke; what it says may be what is wrong.
        let _ = self.catch_up(shared);
        (self.phase, self.failure, self.deadline, shared.changed) =
            (Phase::Failed, Some(failure), None, true);
        shared.counters.failures += u64::from(failure != ShmFailure::Local);
        if let Some(mut channel) = self.channel.take() {
            channel.tell(self.executed, self.pulled);
            channel.close();
            channel.ring();
            shared.counters.rang(true);
        }
        (self.socket, self.offer, self.own) = (None, None, None);
        self.imports = Imports::default();
        let mut status = status;
        while let Some(entry) = self.sends.pop_front() {
            self.done += 1;
            self.complete_send(shared, &entry.request, status);
            status = Status::Flushed;
        }
        while let Some(receive) = self.receives.pop_front() {
            self.flush_receive(shared, &receive);
        }
        let target = self.incoming.take().and_then(|message| message.target);
        let read = |response| match response {
            Response::Read { from, .. } => Some(from),
            Response::Word(_) => None,
        };
        let responses = self.responses.drain(..).filter_map(read);
        for slice in responses.chain(self.granted.drain(..)).chain(target) {
            shared.memory.release(&slice);
        }
    }
}

/// The bytes of a request from some byte on, of its two segments, as far as they lie in a row: their segment's key and
/// where in its region they begin, and how many.
pub(crate) fn row(request: &WorkRequest, from: u64) -> LocalSlice {
    let [first, second] = request.local;
    let (slice, skipped) = if from < first.length { (first, from) } else { (second, from - first.length) };
    LocalSlice {
        key: slice.key,
        offset: slice.offset.saturating_add(skipped),
        length: slice.length.saturating_sub(skipped),
    }
}

/// Copies all of one window to another of the same length; whether it was.
pub(crate) fn copy(from: Option<Window<'_>>, to: Option<Window<'_>>) -> bool {
    match (from, to) {
        (Some(from), Some(to)) => from.copy_to(&to) == from.length() && from.length() == to.length(),
        _ => false,
    }
}
