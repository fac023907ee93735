//! The requester: the send queue, and which of its packets goes out next.

use alloc::collections::VecDeque;

use ringway_verbs::{Operation, PostError, Status, Time, WorkRequest};
use ringway_wire::{PathMtu, Psn};

use crate::{
    Failure, Retries, SendAttributes,
    completions::Completions,
    mutation::{Mutated, Mutation},
    segment::{self, Outgoing},
    selective::Selective,
    timer,
};

/// The longest message. READ responses of two such messages at the smallest MTU stay below half of all PSNs.
pub const MAX_MESSAGE: u64 = 1 << 30;
/// PSNs that may be outstanding at most, whatever the window: of two further apart it is not known which is earlier.
const MAX_OUTSTANDING: u32 = 1 << 23;
/// An acknowledgement is asked for at least once in so many packets.
const ACK_INTERVAL: u32 = 64;
/// The same when acknowledgements also pace what is sent.
const SELECTIVE_ACK_INTERVAL: u32 = 8;

/// A posted send-queue request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posted {
    pub(crate) request: WorkRequest,
    /// Its first PSN.
    pub(crate) first: Psn,
    /// How many PSNs it has: packets of a SEND or WRITE, response packets of a READ.
    pub(crate) packets: u32,
    /// READ and atomics: how many response packets are in place, from the first on.
    pub(crate) answered: u32,
    /// READ and atomics: asked, and counted among the outstanding ones.
    pub(crate) asked: bool,
    /// It cannot be carried out on this side, and fails when all before it are done.
    pub(crate) faulty: bool,
}

impl Posted {
    /// The PSN after its last one.
    pub(crate) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Whether it ends with data from the peer, not with an acknowledgement.
    pub(crate) const fn is_answered(&self) -> bool {
        self.request.operation.is_answered()
    }
}

/// What the requester was told at the step to RTS.
#[derive(Debug, Clone, Copy)]
struct Limits {
    timeout_ns: Option<u64>,
    retries: Retries,
    rnr_retries: Retries,
    reads: u32,
    window: u32,
}

/// The requester's half, and with `completer.rs` the completer's.
///
/// The queue's front part has been sent up to `next`, which lies in the entry at `cursor`. `unacknowledged` always lies
/// in the front entry, or is where the next one will begin.
#[derive(Debug)]
pub(crate) struct Requester {
    depth: usize,
    pub(crate) queue: VecDeque<Posted>,
    /// The entry that `next` lies in.
    pub(crate) cursor: usize,
    /// The oldest PSN that nothing is known about.
    pub(crate) unacknowledged: Psn,
    /// What goes out next.
    pub(crate) next: Psn,
    /// The PSN after the highest that ever went out.
    pub(crate) highest: Psn,
    /// The PSN after the last one given to a posted request.
    assigned: Psn,
    /// READs and atomics asked and not answered.
    pub(crate) outstanding_reads: u32,
    since_ack_request: u32,
    limits: Limits,
    retries: u32,
    rnr_retries: u32,
    /// When to give up waiting for an acknowledgement.
    pub(crate) deadline: Option<Time>,
    /// No request begins at this PSN, where one would, or later.
    drained_at: Option<Psn>,
    /// Until when the peer wants no requests.
    pub(crate) held_until: Option<Time>,
    /// The PSN for whose missing response was gone back already.
    pub(crate) gone_back_for: Option<Psn>,
    /// Present when there is room for it, and in use when both ends have agreed on it.
    pub(crate) selective: Option<Selective>,
    pub(crate) mutation: Mutated,
}

impl Requester {
    /// With `window` above zero there is room for selective acknowledgement.
    pub(crate) fn new(depth: u32, window: u32) -> Self {
        Self {
            depth: depth as usize,
            queue: VecDeque::with_capacity(depth as usize),
            cursor: 0,
            unacknowledged: Psn::ZERO,
            next: Psn::ZERO,
            highest: Psn::ZERO,
            assigned: Psn::ZERO,
            outstanding_reads: 0,
            since_ack_request: 0,
            limits: Limits {
                timeout_ns: None,
                retries: Retries::Times(0),
                rnr_retries: Retries::Times(0),
                reads: 0,
                window: 1,
            },
            retries: 0,
            rnr_retries: 0,
            deadline: None,
            drained_at: None,
            held_until: None,
            gone_back_for: None,
            selective: (window > 0).then(|| Selective::new(window)),
            mutation: Mutated::default(),
        }
    }

    pub(crate) fn start(&mut self, attributes: &SendAttributes, selective: bool) {
        self.limits = Limits {
            timeout_ns: timer::ack_timeout_ns(attributes.timeout),
            retries: attributes.retries,
            rnr_retries: attributes.rnr_retries,
            reads: attributes.max_rd_atomic.into(),
            window: attributes.window,
        };
        let psn = attributes.send_psn;
        (self.unacknowledged, self.next, self.highest, self.assigned) = (psn, psn, psn, psn);
        if let Some(state) = self.selective.as_mut().filter(|_| selective) {
            state.start(psn, attributes.window, attributes.delay_slack_ns);
        }
    }

    /// Whether `completed` further requests, whose completions were not taken, leave no slot.
    pub(crate) fn is_full(&self, completed: usize) -> bool {
        self.queue.len() + completed >= self.depth
    }

    pub(crate) fn post(&mut self, request: &WorkRequest, mtu: PathMtu) -> Result<(), PostError> {
        let length = request.length();
        if length > MAX_MESSAGE {
            return Err(PostError::TooLong);
        }
        let packets = match request.operation {
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                if length != 8 || self.limits.reads == 0 {
                    return Err(if length == 8 { PostError::Unsupported } else { PostError::Memory });
                }
                1
            }
            Operation::Read { .. } if self.limits.reads == 0 => return Err(PostError::Unsupported),
            _ => u32::try_from(mtu.packets(length)).map_err(|_| PostError::TooLong)?,
        };
        let first = self.assigned;
        self.assigned = first.plus(packets);
        let request = *request;
        self.queue.push_back(Posted { request, first, packets, answered: 0, asked: false, faulty: false });
        Ok(())
    }

    /// Lets no request begin any more of which nothing has gone out.
    pub(crate) fn drain(&mut self) {
        let last = self.queue.iter().find(|posted| !posted.end().is_before(self.highest));
        let begun = last.filter(|posted| posted.first.is_before(self.highest));
        self.drained_at = Some(begun.map_or(self.highest, Posted::end));
    }

    /// Lets requests begin again.
    pub(crate) const fn resume(&mut self) {
        self.drained_at = None;
    }

    /// Whether everything before the first request that may not begin is done.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained_at == Some(self.unacknowledged)
    }

    /// Whether what lies at `next` may not begin.
    pub(crate) fn holds_back(&self) -> bool {
        self.drained_at == Some(self.next) && !self.mutation.is(Mutation::BeginWhileDrained)
    }

    /// Whether something could go out but for the rate.
    pub(crate) fn has_more(&self, mtu: PathMtu) -> bool {
        if self.selects() { self.next_selected(mtu).is_some() } else { self.sendable().is_some() }
    }

    /// The entry that `next` lies in, when one of its packets may go out.
    fn sendable(&self) -> Option<&Posted> {
        if self.held_until.is_some() || self.holds_back() {
            return None;
        }
        let posted = self.queue.get(self.cursor)?;
        if posted.faulty {
            return None;
        }
        let outstanding = self.next.above(self.unacknowledged);
        if posted.is_answered() {
            let span = posted.end().above(self.unacknowledged);
            let many = self.outstanding_reads >= self.limits.reads || span >= MAX_OUTSTANDING;
            if many {
                return None;
            }
        }
        let fenced = posted.request.fence && self.next == posted.first && self.outstanding_reads > 0;
        (outstanding < self.limits.window && !fenced).then_some(posted)
    }

    /// What goes out next, if anything may. It counts as sent when [`Requester::sent`] is called.
    pub(crate) fn next_packet(&self, mtu: PathMtu) -> Option<Outgoing> {
        if self.selects() {
            return self.next_selected(mtu);
        }
        let posted = self.sendable()?;
        let mut outgoing = segment::packet(posted, self.next, mtu, u32::MAX)?;
        let window_full = outgoing.end.above(self.unacknowledged) >= self.limits.window;
        outgoing.ack_request |= window_full || self.asks_for_acknowledgement();
        Some(outgoing)
    }

    /// Whether the next packet asks for an acknowledgement because long none did.
    pub(crate) fn asks_for_acknowledgement(&self) -> bool {
        let interval = if self.selects() { SELECTIVE_ACK_INTERVAL } else { ACK_INTERVAL };
        self.since_ack_request + 1 >= interval.min(self.limits.window.div_ceil(4))
    }

    /// A packet went out that asks for an acknowledgement or does not.
    pub(crate) const fn count_ack_request(&mut self, ack_request: bool) {
        self.since_ack_request = if ack_request { 0 } else { self.since_ack_request + 1 };
    }

    /// Packets that may be outstanding.
    pub(crate) const fn window(&self) -> u32 {
        self.limits.window
    }

    /// READs and atomics that may be outstanding.
    pub(crate) const fn reads(&self) -> usize {
        self.limits.reads as usize
    }

    /// The packet that [`Requester::next_packet`] gave is on its way.
    pub(crate) fn sent(&mut self, now: Time, outgoing: &Outgoing) {
        if self.selects() {
            return self.sent_selected(now, outgoing);
        }
        self.next = outgoing.end;
        self.count_ack_request(outgoing.ack_request);
        if let Some(posted) = self.queue.get_mut(self.cursor) {
            if posted.is_answered() {
                posted.asked = true;
                self.outstanding_reads += 1;
            }
            if self.next == posted.end() {
                self.cursor += 1;
            }
        }
        if self.next.is_after(self.highest) {
            self.highest = self.next;
        }
        if self.deadline.is_none() {
            self.restart_timer(now);
        }
    }

    /// The packet that [`Requester::next_packet`] gave cannot be made: its memory is gone.
    pub(crate) fn fault(&mut self, outgoing: &Outgoing) -> Result<(), Failure> {
        let entry = self.entry_with(outgoing.psn).unwrap_or(self.cursor);
        if let Some(posted) = self.queue.get_mut(entry) {
            posted.faulty = true;
        }
        self.check_front()
    }

    /// Fails when the oldest request cannot be carried out.
    pub(crate) fn check_front(&self) -> Result<(), Failure> {
        let faulty = self.queue.front().is_some_and(|posted| posted.faulty);
        if faulty { Err(Failure::LocalProtection) } else { Ok(()) }
    }

    /// When [`Requester::expire`] has something to do.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let probe = self.selective.as_ref().and_then(Selective::probe_at);
        if self.held_until.is_some() { self.held_until } else { timer::earlier(self.deadline, probe) }
    }

    /// Whether the ACK timeout has run out.
    pub(crate) fn is_timed_out(&self, now: Time) -> bool {
        self.held_until.is_none() && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, now: Time) -> Result<(), Failure> {
        if let Some(until) = self.held_until {
            if until <= now {
                self.held_until = None;
                self.resume_selected(now);
            }
            return Ok(());
        }
        if self.selects() {
            return self.expire_selected(now);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.count_retry()?;
            self.gone_back_for = None;
            self.go_back();
        }
        Ok(())
    }

    /// Starts waiting anew, or stops when nothing is outstanding.
    pub(crate) fn restart_timer(&mut self, now: Time) {
        let outstanding = self.unacknowledged != self.next;
        self.deadline =
            self.limits.timeout_ns.filter(|_| outstanding).map(|timeout_ns| timer::after(now, timeout_ns));
    }

    /// Something new was acknowledged.
    pub(crate) fn progressed(&mut self, now: Time) {
        (self.retries, self.rnr_retries) = (0, 0);
        self.gone_back_for = None;
        self.restart_timer(now);
    }

    pub(crate) const fn count_retry(&mut self) -> Result<(), Failure> {
        count(&mut self.retries, self.limits.retries, Failure::RetriesExceeded)
    }

    pub(crate) const fn count_rnr_retry(&mut self) -> Result<(), Failure> {
        count(&mut self.rnr_retries, self.limits.rnr_retries, Failure::RnrRetriesExceeded)
    }

    /// Everything from the oldest unacknowledged PSN on goes out again.
    pub(crate) fn go_back(&mut self) {
        for posted in self.queue.iter_mut().take(self.cursor + 1) {
            if core::mem::take(&mut posted.asked) {
                self.outstanding_reads -= 1;
            }
        }
        self.next = self.unacknowledged;
        self.cursor = 0;
        self.since_ack_request = 0;
        self.deadline = None;
    }

    /// Completes everything: the oldest request with `first`, the rest as flushed.
    pub(crate) fn flush(&mut self, first: Status, completions: &mut Completions) {
        let mut status = first;
        if self.mutation.is(Mutation::FlushBackwards) {
            self.queue.make_contiguous().reverse();
        }
        while let Some(posted) = self.queue.pop_front() {
            completions.send(posted.request.id, status, posted.request.length());
            status = Status::Flushed;
        }
        self.reset();
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.queue.clear();
        (self.cursor, self.outstanding_reads, self.since_ack_request) = (0, 0, 0);
        (self.retries, self.rnr_retries) = (0, 0);
        (self.deadline, self.held_until, self.gone_back_for, self.drained_at) = (None, None, None, None);
        if let Some(selective) = &mut self.selective {
            selective.reset();
        }
    }
}

/// Counts another try.
const fn count(tries: &mut u32, limit: Retries, failure: Failure) -> Result<(), Failure> {
    match limit {
        Retries::Times(limit) if *tries >= limit as u32 => Err(failure),
        Retries::Times(_) | Retries::Forever => {
            *tries = tries.saturating_add(1);
            Ok(())
        }
    }
}
