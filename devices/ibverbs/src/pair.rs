//! One queue pair: what was posted, and how far the device is with it.

mod connecting;
mod queue;

use std::sync::Arc;

use ringway_verbs::{
    Completion, CompletionKind, Deadline, LocalSlice, Operation, PostError, QueuePairConfig, QueuePairNumber,
    QueuePairState, ReceiveRequest, Status, Time, Untaken, WorkRequest,
};
use ringway_wire::Psn;

pub(crate) use self::queue::Queue;
use crate::{
    IbverbsFailure,
    endpoint::End,
    hardware::{Done, Outgoing, POST_BATCH, QueuePair, Receive, Unposted, Verb},
    regions::Regions,
    shared::Shared,
};

/// One request of so many in a row is signalled even if nobody asked for it, so that the queue does not fill with those that nobody
/// hears of; of a short queue one in a quarter of it.
const SIGNAL_EVERY: u32 = 16;
/// The device has so long to flush a failed queue pair, in nanoseconds; then it is reset.
const FLUSH_NS: u64 = 1_000_000_000;
/// In a request's id: it is a receive. Below stands the queue pair's number, above the place in the queue.
const RECEIVE: u64 = 1 << 31;

/// Where a queue pair is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made; receives may be posted.
    Init,
    /// The peer is tried. What is posted for it waits.
    Connecting,
    /// The peer has answered.
    Ready,
    /// Failed: what is outstanding is being flushed.
    Failed,
}

/// What stands in the send queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry {
    Request(WorkRequest),
    /// Tries the connection.
    Probe,
}

impl Entry {
    /// Whether it is an atomic on something else than a word.
    fn is_misaligned(&self) -> bool {
        match self {
            Self::Request(WorkRequest {
                operation: Operation::FetchAdd { remote, .. } | Operation::CompareSwap { remote, .. },
                ..
            }) => !remote.offset.is_multiple_of(8),
            _ => false,
        }
    }

    /// What the device is told of it, which somebody is to hear of in any case if it is `reported`.
    fn outgoing<'a>(&self, id: u64, reported: bool, regions: &'a Regions) -> Outgoing<'a> {
        match self {
            Self::Probe => Outgoing {
                id,
                verb: Verb::Probe,
                segments: [None; 2],
                signalled: true,
                fence: false,
                inline: false,
            },
            Self::Request(request) => Outgoing {
                id,
                verb: Verb::Operation(request.operation),
                segments: request.local.each_ref().map(|slice| regions.segment(slice)),
                signalled: request.signalled || reported,
                fence: request.fence,
                inline: false,
            },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) number: QueuePairNumber,
    pub(crate) config: QueuePairConfig,
    pub(crate) phase: Phase,
    pub(crate) first_psn: Psn,
    pub(crate) failure: Option<IbverbsFailure>,
    /// It is among those with something to hand over.
    pub(crate) active: bool,
    /// The other end, once it is known.
    pub(crate) peer: Option<End>,
    hardware: Arc<QueuePair>,
    sends: Queue<Entry>,
    receives: Queue<ReceiveRequest>,
    pub(crate) untaken: Untaken,
    /// How the oldest request of those that are flushed ends, when it was none of them that failed.
    first_status: Status,
    /// When connecting must be over.
    connected_by: Deadline,
    /// When the peer was heard last.
    heard: Time,
    /// It is on its way to RTS, on another thread.
    pub(crate) setting_up: bool,
    /// What waited when it was flushed could not be handed over then.
    flush_asked: bool,
    /// Requests that the device got after the last one that is signalled.
    unsignalled: u32,
    /// It is being tried.
    probing: bool,
    /// When the device must be through with flushing.
    flush_by: Deadline,
}

/// The queue pair of a completed request, its place in the queue, and whether it is a receive.
pub(crate) const fn split(id: u64) -> (QueuePairNumber, u32, bool) {
    (QueuePairNumber(id as u32 & !(RECEIVE as u32)), (id >> 32) as u32, id & RECEIVE != 0)
}

impl Pair {
    pub(crate) fn new(
        number: QueuePairNumber,
        config: QueuePairConfig,
        psn: Psn,
        hardware: QueuePair,
    ) -> Box<Self> {
        Box::new(Self {
            number,
            config,
            phase: Phase::Init,
            first_psn: psn,
            failure: None,
            active: false,
            peer: None,
            hardware: Arc::new(hardware),
            // A probe has a place of its own.
            sends: Queue::with_capacity(config.send_depth as usize + 1),
            receives: Queue::with_capacity(config.receive_depth as usize),
            untaken: Untaken::default(),
            first_status: Status::Flushed,
            connected_by: Deadline::At(Time(0)),
            heard: Time(0),
            setting_up: false,
            flush_asked: false,
            unsignalled: 0,
            probing: false,
            flush_by: Deadline::At(Time(0)),
        })
    }

    /// By what the device names the request in this place of the send queue.
    const fn id(&self, place: u32) -> u64 {
        (place as u64) << 32 | self.number.0 as u64
    }

    /// The number that the device gave it.
    pub(crate) fn hardware_number(&self) -> u32 {
        self.hardware.number()
    }

    pub(crate) const fn state(&self) -> QueuePairState {
        match self.phase {
            Phase::Init => QueuePairState::Init,
            Phase::Connecting => QueuePairState::Connecting,
            Phase::Ready => QueuePairState::Ready,
            Phase::Failed => QueuePairState::Error,
        }
    }

    /// Adds a request to the send queue; it waits for [`Pair::hand_over`].
    #[inline]
    pub(crate) fn post_send(&mut self, request: &WorkRequest, shared: &mut Shared) -> Result<(), PostError> {
        request.check_lengths(shared.max_message)?;
        if request.operation.is_atomic() && !shared.limits.atomics {
            return Err(PostError::Unsupported);
        }
        shared.regions.table.check_request(request)?;
        if self.phase == Phase::Init {
            return Err(PostError::WrongState);
        }
        let probes = usize::from(self.probing);
        if self.sends.len() - probes + self.untaken.sends >= self.config.send_depth as usize {
            return Err(PostError::Full);
        }
        request.local.iter().for_each(|slice| shared.regions.table.hold(slice));
        self.sends.push(Entry::Request(*request));
        if self.phase == Phase::Failed {
            self.flush_unposted(shared);
        }
        Ok(())
    }

    /// Adds a buffer to the receive queue; it waits for [`Pair::hand_over`].
    #[inline]
    pub(crate) fn post_receive(
        &mut self,
        request: &ReceiveRequest,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        shared.regions.table.check_local(&request.local, true)?;
        if self.receives.len() + self.untaken.receives >= self.config.receive_depth as usize {
            return Err(PostError::Full);
        }
        shared.regions.table.hold(&request.local);
        self.receives.push(*request);
        if self.phase == Phase::Failed {
            self.flush_unposted(shared);
        }
        Ok(())
    }

    /// Hands receives to the device, and with `sends` requests as well, at the latest when that has become possible.
    #[inline]
    pub(crate) fn hand_over(&mut self, sends: bool, shared: &mut Shared) {
        if self.phase == Phase::Failed {
            return;
        }
        let sends = sends || self.flush_asked;
        let handed = self.hand_receives(shared).and_then(|()| match sends && self.phase == Phase::Ready {
            true => self.hand_sends(shared),
            false => Ok(()),
        });
        self.flush_asked = sends && self.sends.has_more();
        if let Err((what, Unposted { errno, .. })) = handed {
            self.fail(IbverbsFailure::System { what, errno: errno.raw_os_error() }, shared);
        }
    }

    /// Whether something waits to be handed over that could be.
    pub(crate) fn has_more(&self) -> bool {
        match self.phase {
            Phase::Ready => self.sends.has_more() || self.receives.has_more(),
            Phase::Init | Phase::Connecting => self.receives.has_more(),
            Phase::Failed => false,
        }
    }

    fn hand_receives(&mut self, shared: &Shared) -> Result<(), (&'static str, Unposted)> {
        if !self.receives.has_more() {
            return Ok(());
        }
        let waiting = self.receives.waiting().map(|(place, request)| Receive {
            id: self.id(place) | RECEIVE,
            segment: shared.regions.segment(&request.local),
        });
        let posted = self.hardware.post_receives(waiting);
        self.receives.handed(posted.unwrap_or_else(|unposted| unposted.taken));
        posted.map(|_| ()).map_err(|unposted| ("a receive", unposted))
    }

    fn hand_sends(&mut self, shared: &mut Shared) -> Result<(), (&'static str, Unposted)> {
        if !self.sends.has_more() {
            return Ok(());
        }
        let fit = self.sends.waiting().take_while(|(_, entry)| !entry.is_misaligned()).count();
        if fit == 0 {
            self.refuse_next(shared);
            return Ok(());
        }
        let (regions, counters) = (&shared.regions, &mut shared.counters);
        // What comes behind those that fit waits until they are done, which must be told.
        let told = (fit < self.sends.unposted()).then(|| fit - 1);
        let (bound, mut unsignalled) = (self.unsignalled_max(), self.unsignalled);
        let waiting = self.sends.waiting().take(fit).enumerate().map(|(at, (place, entry))| {
            let is_due = unsignalled + 1 >= bound || told == Some(at);
            let mut outgoing = entry.outgoing(self.id(place), is_due, regions);
            outgoing.inline = self.hardware.fits_inline(&outgoing);
            unsignalled = if outgoing.signalled { 0 } else { unsignalled + 1 };
            counters.requests_signalled += u64::from(outgoing.signalled);
            counters.requests_inline += u64::from(outgoing.inline);
            outgoing
        });
        let posted = self.hardware.post_sends(waiting);
        let count = posted.unwrap_or_else(|unposted| unposted.taken);
        self.sends.handed(count);
        self.unsignalled = unsignalled;
        counters.requests_sent += count as u64;
        let rung = count.div_ceil(POST_BATCH) as u64;
        shared.counters.doorbells += rung;
        shared.counters.system_calls += if shared.choice.port.is_software { rung } else { 0 };
        posted.map(|_| ()).map_err(|unposted| ("a request", unposted))
    }

    /// The next request is one that devices refuse when it is posted, as the peer would: it fails when all before it are done.
    fn refuse_next(&mut self, shared: &mut Shared) {
        if !self.sends.is_posted() {
            self.end_send(Status::RemoteInvalidRequest, shared);
            self.fail(IbverbsFailure::RefusedRequest, shared);
        } else if self.is_untold() {
            self.probe(shared);
        }
    }

    /// How many requests in a row nobody is told of.
    fn unsignalled_max(&self) -> u32 {
        SIGNAL_EVERY.min(self.config.send_depth / 4).max(1)
    }

    /// Whether the device has requests whose end nothing will tell.
    const fn is_untold(&self) -> bool {
        self.unsignalled > 0 && !self.probing && matches!(self.phase, Phase::Ready)
    }

    /// Takes what the device has completed.
    #[inline]
    pub(crate) fn complete(&mut self, place: u32, receive: bool, done: &Done, shared: &mut Shared) {
        if receive {
            self.complete_receive(place, done, shared);
        } else {
            self.complete_sends(place, done.status, shared);
        }
        if self.phase == Phase::Failed {
            self.flush_unposted(shared);
        }
    }

    /// The requests up to this one are over: those before it succeeded.
    fn complete_sends(&mut self, place: u32, status: Status, shared: &mut Shared) {
        let Some(before) = self.sends.before(place) else { return };
        // While connecting the device has a probe only.
        let connecting = self.phase == Phase::Connecting;
        for _ in 0..before {
            self.end_send(Status::Success, shared);
        }
        if status == Status::Success {
            self.heard = shared.now;
        }
        self.end_send(status, shared);
        if connecting || status == Status::Success {
            return;
        }
        let failure = match status {
            Status::RemoteAccess | Status::RemoteInvalidRequest => IbverbsFailure::RefusedRequest,
            Status::TransportLost => IbverbsFailure::RetriesExceeded,
            // It failed and the device has not said why: a request of the peer was refused.
            Status::Flushed => IbverbsFailure::RefusedPeer,
            _ => IbverbsFailure::Fatal,
        };
        self.fail(failure, shared);
    }

    /// Takes the oldest entry of the send queue, and reports it where somebody is to hear of it.
    fn end_send(&mut self, status: Status, shared: &mut Shared) {
        let request = match self.sends.pop() {
            Some(Entry::Request(request)) => request,
            Some(Entry::Probe) => return self.probed(status, shared),
            None => return,
        };
        request.local.iter().for_each(|slice| shared.regions.table.release(slice));
        let status = match status {
            Status::Flushed => core::mem::replace(&mut self.first_status, Status::Flushed),
            status => {
                self.first_status = Status::Flushed;
                status
            }
        };
        let length = request.length();
        if status == Status::Success {
            shared.counters.bytes_sent += length;
            if !request.signalled {
                return;
            }
        }
        let completion = Completion {
            id: request.id,
            queue_pair: self.number,
            status,
            kind: CompletionKind::Send,
            length,
            immediate: None,
        };
        shared.completions.push(completion, &mut self.untaken);
    }

    fn complete_receive(&mut self, place: u32, done: &Done, shared: &mut Shared) {
        // Receives complete one by one. Those that are flushed while connecting are posted again with the next try.
        let again = self.phase == Phase::Connecting && done.status != Status::Success;
        if again || self.receives.before(place) != Some(0) {
            return;
        }
        // Devices differ in what they say of a receive whose message did not fit, or was a WRITE that was refused.
        let status = match done.status {
            Status::RemoteInvalidRequest | Status::TransportLost => Status::LocalLength,
            Status::RemoteAccess => Status::Flushed,
            status => status,
        };
        let kind = if done.written { CompletionKind::ReceiveWrite } else { CompletionKind::Receive };
        self.end_receive(status, kind, done.length, done.immediate, shared);
        match status {
            Status::Success => {
                self.heard = shared.now;
                shared.counters.messages_received += 1;
                shared.counters.bytes_received += done.length;
            }
            _ => self.fail(IbverbsFailure::RefusedPeer, shared),
        }
    }

    fn end_receive(
        &mut self,
        status: Status,
        kind: CompletionKind,
        length: u64,
        immediate: Option<u32>,
        shared: &mut Shared,
    ) {
        let Some(request) = self.receives.pop() else { return };
        shared.regions.table.release(&request.local);
        let (id, queue_pair) = (request.id, self.number);
        let completion = Completion { id, queue_pair, status, kind, length, immediate };
        shared.completions.push(completion, &mut self.untaken);
    }

    /// Moves to the error state. What the device has is flushed by it.
    pub(crate) fn fail(&mut self, failure: IbverbsFailure, shared: &mut Shared) {
        if self.phase == Phase::Failed {
            return;
        }
        // The oldest request is told that the connection is lost, where none of them was what failed.
        let lost = match failure {
            IbverbsFailure::NoAnswer | IbverbsFailure::DeviceLost | IbverbsFailure::System { .. } => true,
            IbverbsFailure::Local => false,
            _ => self.phase == Phase::Connecting,
        };
        if lost {
            self.first_status = Status::TransportLost;
        }
        shared.counters.failures += u64::from(failure != IbverbsFailure::Local);
        shared.changed = true;
        (self.phase, self.failure) = (Phase::Failed, Some(failure));
        let gone = failure == IbverbsFailure::DeviceLost || self.hardware.fail().is_err();
        self.flush_by = if gone { Deadline::At(shared.now) } else { Deadline::After(FLUSH_NS) };
        if gone {
            self.give_up_flushing(shared);
        }
        self.flush_unposted(shared);
    }

    /// Ends what the device was never given, once it is through with what it was.
    fn flush_unposted(&mut self, shared: &mut Shared) {
        while self.sends.is_unposted() {
            self.end_send(Status::Flushed, shared);
        }
        while self.receives.is_unposted() {
            self.end_receive(Status::Flushed, CompletionKind::Receive, 0, None, shared);
        }
    }

    /// The device does not flush: it is made to forget everything, and what it had ends here.
    fn give_up_flushing(&mut self, shared: &mut Shared) {
        // If it refuses even that it is gone, and reaches no memory.
        let _ = self.hardware.reset();
        self.sends.take_back();
        self.receives.take_back();
        self.flush_unposted(shared);
    }

    /// Ends it: when this returns the device reaches no memory on its behalf.
    pub(crate) fn destroy(mut self: Box<Self>, shared: &mut Shared) {
        drop(self.hardware);
        let mut release = |slice: &LocalSlice| shared.regions.table.release(slice);
        while let Some(entry) = self.sends.pop() {
            if let Entry::Request(request) = entry {
                request.local.iter().for_each(&mut release);
            }
        }
        while let Some(request) = self.receives.pop() {
            release(&request.local);
        }
    }
}
