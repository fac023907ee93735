//! What the responder still has to say, and what it remembers to say it again.

use alloc::collections::VecDeque;

use ringway_verbs::{RemoteKey, Time};
use ringway_wire::{Aeth, PathMtu, Psn, Syndrome};

use crate::timer;

/// Something to send to the peer's completer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    /// An acknowledgement of either kind.
    Acknowledge { psn: Psn, aeth: Aeth },
    /// The rest of a READ's response, whose next packet has this PSN.
    Read { psn: Psn, msn: u32, memory: RemoteBytes, first: bool, again: bool },
    /// An atomic's response.
    Atomic { psn: Psn, msn: u32, old: u64, again: bool },
}

impl Response {
    /// Whether it is a READ's.
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// The PSN of its next packet.
    const fn psn(&self) -> Psn {
        match self {
            Self::Acknowledge { psn, .. } | Self::Read { psn, .. } | Self::Atomic { psn, .. } => *psn,
        }
    }
}

/// Bytes a peer named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteBytes {
    pub(crate) key: RemoteKey,
    pub(crate) address: u64,
    pub(crate) length: u32,
}

impl RemoteBytes {
    /// Without the first `offset` bytes.
    pub(crate) const fn from(self, offset: u32) -> Self {
        Self {
            key: self.key,
            address: self.address.wrapping_add(offset as u64),
            length: self.length.saturating_sub(offset),
        }
    }
}

/// The most responses that wait to be given again; of further ones the peer will remind us.
const AGAIN_MAX: usize = 32;

/// What a READ or atomic was, kept so that a duplicate can be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Resource {
    Read { first: Psn, msn: u32, packets: u32, memory: RemoteBytes },
    Atomic { psn: Psn, msn: u32, memory: RemoteBytes, old: u64 },
}

/// Responses in the order of their requests, and the last READs and atomics. Both are bounded: by the resources, and
/// because acknowledgements that follow one another become one.
#[derive(Debug)]
pub(crate) struct Responses {
    queue: VecDeque<Response>,
    resources: VecDeque<Resource>,
    /// How many READs and atomics are remembered.
    limit: usize,
    capacity: usize,
    /// Acknowledgements are reports, made when they are sent.
    reports: bool,
    /// Messages completed, modulo 2^24. What answers a request says how many there are with it.
    pub(crate) msn: u32,
    /// When the packet came that is being looked at.
    pub(crate) now: Time,
    /// The report that is to be sent.
    pub(crate) report: Option<ReportDue>,
    /// The only response is an acknowledgement that lets this side's requests go first.
    yielding: Option<Yielding>,
}

/// An acknowledgement of short messages toward a peer that is told nothing by reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Yielding {
    /// Since when.
    since: Time,
    /// Of how many messages.
    messages: u32,
}

/// A report that is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportDue {
    /// It waits for nothing.
    urgent: bool,
    /// The messages that wait to be acknowledged by it.
    messages: u32,
    /// Since when the oldest of them does.
    since: Time,
    /// This side has sent requests since.
    replied: bool,
}

/// How long an acknowledgement may wait when this side has sent something itself, in nanoseconds: less than what the
/// other end waits for news before it asks.
const REPORT_DELAY_NS: u64 = 32_000;
/// Messages that wait for one acknowledgement at most.
const REPORT_MESSAGES: u32 = 16;

impl ReportDue {
    /// When it goes out after all, whatever this side is at.
    pub(crate) fn at(&self) -> Time {
        timer::after(self.since, REPORT_DELAY_NS)
    }

    /// Whether it goes out now.
    pub(crate) fn goes(&self, now: Time, acknowledge: Acknowledge) -> bool {
        let delayed = self.replied && self.at() > now;
        match acknowledge {
            _ if self.urgent || self.messages >= REPORT_MESSAGES => true,
            // Others may keep this side at work for ever.
            Acknowledge::Urgent => self.at() <= now,
            Acknowledge::Idle => !delayed,
            Acknowledge::All => true,
        }
    }

    /// Whether a request of this side goes out before it: one that answers what it reports is waited for, it is not.
    pub(crate) const fn lets_pass(&self) -> bool {
        !self.urgent && !self.replied
    }
}

/// Which acknowledgements go out. Those of short messages can wait: what this side has to send is wanted more, and later
/// one acknowledgement says it of several. Any other peer than a Ringway end gets it right behind that at the latest, as it
/// may wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// None that can wait, but for those that have waited for long: this side is at work.
    Urgent,
    /// Those too that waited for this side to have nothing else to do, but for a few microseconds those of messages that
    /// it has sent an answer to.
    Idle,
    /// All: nobody may look after the queue pair soon.
    All,
}

impl Responses {
    pub(crate) fn new(resources: u8) -> Self {
        let limit = usize::from(resources);
        // The responses, an acknowledgement between any two, and one at either end.
        let capacity = 2 * (limit + AGAIN_MAX) + 2;
        Self {
            queue: VecDeque::with_capacity(capacity),
            resources: VecDeque::with_capacity(limit),
            limit,
            capacity,
            reports: false,
            msn: 0,
            now: Time(0),
            report: None,
            yielding: None,
        }
    }

    /// Forgets everything and answers at most `resources` READs and atomics at once from now on. With `reports` what is
    /// acknowledged is told by reports.
    pub(crate) fn reset(&mut self, resources: u8, reports: bool) {
        self.queue.clear();
        self.resources.clear();
        (self.reports, self.msn, self.report, self.yielding) = (reports, 0, None, None);
        self.limit = usize::from(resources);
    }

    pub(crate) fn front(&self) -> Option<Response> {
        self.queue.front().copied()
    }

    /// Adds an acknowledgement, or makes the last one say this as well. Of different kinds the last one counts: a
    /// NAK acknowledges what came before it, and an acknowledgement comes after a NAK only when that is settled.
    pub(crate) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        self.acknowledge_with(psn, Aeth { syndrome, msn: self.msn });
    }

    fn acknowledge_with(&mut self, psn: Psn, aeth: Aeth) {
        if self.reports && is_ack(&aeth) {
            return self.report_soon();
        }
        if !is_ack(&aeth) {
            self.yielding = None;
        }
        let response = Response::Acknowledge { psn, aeth };
        if let Some(last) = self.queue.back_mut().filter(|last| matches!(last, Response::Acknowledge { .. }))
        {
            *last = response;
        } else if self.queue.len() < self.capacity {
            self.queue.push_back(response);
        }
    }

    /// A report is to be sent, which waits for nothing.
    pub(crate) const fn report_now(&mut self) {
        self.report = Some(ReportDue { urgent: true, messages: 0, since: Time(0), replied: false });
    }

    /// A report is to be sent, at the latest when enough messages wait for it.
    fn report_soon(&mut self) {
        let now = self.now;
        let due =
            self.report.get_or_insert(ReportDue { urgent: false, messages: 0, since: now, replied: false });
        due.messages += 1;
    }

    /// The acknowledgement or report that is to be sent, if there is one, waits no longer.
    pub(crate) const fn hurry(&mut self) {
        self.yielding = None;
        if let Some(due) = &mut self.report {
            due.urgent = true;
        }
    }

    /// A short message was executed: its acknowledgement lets requests go first if there is nothing else to say.
    pub(crate) fn let_requests_pass(&mut self) {
        let alone = self.queue.len() == 1
            && matches!(self.queue.front(), Some(Response::Acknowledge { aeth, .. }) if is_ack(aeth));
        let messages = |yielding: Yielding| Yielding { messages: yielding.messages + 1, ..yielding };
        let first = Yielding { since: self.now, messages: 1 };
        self.yielding = alone.then(|| self.yielding.map_or(first, messages));
    }

    /// Whether the response that is next lets requests go first.
    pub(crate) fn yields(&self, now: Time, acknowledge: Acknowledge) -> bool {
        acknowledge == Acknowledge::Urgent
            && self.yielding.is_some_and(|Yielding { since, messages }| {
                messages < REPORT_MESSAGES && timer::after(since, REPORT_DELAY_NS) > now
            })
    }

    /// Whether an acknowledgement waits.
    pub(crate) const fn waits(&self) -> bool {
        self.report.is_some() || self.yielding.is_some()
    }

    /// This side has sent a request.
    pub(crate) const fn replied(&mut self) {
        self.yielding = None;
        if let Some(due) = &mut self.report {
            due.replied = true;
        }
    }

    /// READs and atomics that wait to be answered, for the first time or again.
    fn pending(&self, wanted_again: bool) -> usize {
        let is_wanted = |response: &&Response| match response {
            Response::Acknowledge { .. } => false,
            Response::Read { again, .. } | Response::Atomic { again, .. } => *again == wanted_again,
        };
        self.queue.iter().filter(is_wanted).count()
    }

    /// Whether a new READ or atomic may be taken on.
    pub(crate) fn has_room(&self) -> bool {
        self.pending(false) < self.limit
    }

    /// Takes a READ on, which is not counted yet.
    pub(crate) fn read(&mut self, first: Psn, packets: u32, memory: RemoteBytes) {
        let msn = self.msn.wrapping_add(1);
        self.remember(Resource::Read { first, msn, packets, memory });
        self.push(Response::Read { psn: first, msn, memory, first: true, again: false });
    }

    /// Answers an atomic that was executed and is not counted yet.
    pub(crate) fn atomic(&mut self, psn: Psn, memory: RemoteBytes, old: u64) {
        let msn = self.msn.wrapping_add(1);
        self.remember(Resource::Atomic { psn, msn, memory, old });
        self.push(Response::Atomic { psn, msn, old, again: false });
    }

    fn remember(&mut self, resource: Resource) {
        if self.resources.len() >= self.limit {
            self.resources.pop_front();
        }
        if self.resources.len() < self.limit {
            self.resources.push_back(resource);
        }
    }

    fn push(&mut self, response: Response) {
        self.yielding = None;
        if self.queue.len() < self.capacity {
            self.queue.push_back(response);
        }
    }

    /// Puts a response that is given again where it belongs. A peer that goes back drops what comes before the answer that it
    /// misses, and does not ask for that again while it waits: it goes before all that is later. A peer that asks for single
    /// packets takes them in any order, and tells by the order in which it asked what is lost: there it goes last.
    fn push_again(&mut self, response: Response) {
        if self.pending(true) >= AGAIN_MAX || self.queue.len() >= self.capacity {
            return;
        }
        self.yielding = None;
        let is_later = |waiting: &Response| !self.reports && waiting.psn().is_after(response.psn());
        let place = self.queue.iter().position(is_later).unwrap_or(self.queue.len());
        self.queue.insert(place, response);
    }

    /// Answers a READ request that was executed before, wholly or from some packet on; says whether it is remembered
    /// and names the same memory.
    pub(crate) fn read_again(&mut self, from: Psn, memory: RemoteBytes, mtu: PathMtu) -> bool {
        let known = self.resources.iter().find_map(|resource| match resource {
            Resource::Read { first, msn, packets, memory: whole } => {
                let skipped = from.above(*first);
                let offset = u64::from(skipped) * mtu.bytes() as u64;
                let within = skipped < *packets
                    && whole.key == memory.key
                    && whole.address.wrapping_add(offset) == memory.address
                    && offset + u64::from(memory.length) <= u64::from(whole.length);
                within.then_some(*msn)
            }
            Resource::Atomic { .. } => None,
        });
        let Some(msn) = known else { return false };
        let end = from.plus(u32::try_from(mtu.packets(memory.length.into())).unwrap_or(u32::MAX));
        // A response that is under way and covers this one is all there is to send, from here on if need be.
        for response in &mut self.queue {
            if let Response::Read { psn, memory: rest, first, .. } = response {
                let rest_end = psn.plus(u32::try_from(mtu.packets(rest.length.into())).unwrap_or(u32::MAX));
                if rest_end == end {
                    if psn.is_after(from) {
                        (*psn, *rest, *first) = (from, memory, true);
                    }
                    return true;
                }
            }
        }
        self.push_again(Response::Read { psn: from, msn, memory, first: true, again: true });
        true
    }

    /// Answers an atomic that was executed before, with the result it had then; says whether it is remembered.
    pub(crate) fn atomic_again(&mut self, again: Psn, named: RemoteBytes) -> bool {
        let known = self.resources.iter().find_map(|resource| match resource {
            Resource::Atomic { psn, msn, memory, old } if *psn == again && *memory == named => {
                Some((*msn, *old))
            }
            _ => None,
        });
        let Some((msn, old)) = known else { return false };
        let is_pending = |r: &Response| matches!(r, Response::Atomic { psn, .. } if *psn == again);
        if !self.queue.iter().any(is_pending) {
            self.push_again(Response::Atomic { psn: again, msn, old, again: true });
        }
        true
    }

    /// The packet of the first response is on its way: `mtu` bytes of it, if it is a READ's.
    pub(crate) fn sent(&mut self, mtu: PathMtu) {
        self.yielding = None;
        let bytes = u32::try_from(mtu.bytes()).unwrap_or(u32::MAX);
        match self.queue.front_mut() {
            Some(Response::Read { psn, memory, first, .. }) if memory.length > bytes => {
                (*psn, *memory, *first) = (psn.next(), memory.from(bytes), false);
            }
            _ => drop(self.queue.pop_front()),
        }
    }

    /// Acknowledges what was acknowledged before, when so many messages were completed, but where a NAK that says as much
    /// is still to be sent.
    pub(crate) fn acknowledge_again(&mut self, psn: Psn, msn: u32) {
        let settled = |last: &Response| match last {
            Response::Acknowledge { aeth, .. } => is_ack(aeth),
            Response::Read { .. } | Response::Atomic { .. } => true,
        };
        if self.queue.back().is_none_or(settled) {
            self.acknowledge_with(psn, Aeth { syndrome: Syndrome::ACK, msn });
        }
    }

    /// Refuses the READ that the first response was for, which then does not count; nothing comes after that.
    pub(crate) fn refuse_front(&mut self, psn: Psn, syndrome: Syndrome) {
        let msn = match self.queue.front() {
            Some(Response::Read { msn, .. }) => msn.wrapping_sub(1),
            _ => self.msn,
        };
        self.queue.clear();
        self.acknowledge_with(psn, Aeth { syndrome, msn });
    }
}

const fn is_ack(aeth: &Aeth) -> bool {
    matches!(aeth.syndrome, Syndrome::Ack(_))
}

#[cfg(test)]
mod tests {
    use ringway_wire::RnrTimer;

    use super::*;

    fn reporting() -> Responses {
        let mut responses = Responses::new(1);
        responses.reset(1, true);
        responses.now = Time(1000);
        responses.acknowledge(Psn::ZERO, Syndrome::ACK);
        responses
    }

    fn yielding() -> Responses {
        let mut responses = Responses::new(1);
        responses.reset(1, false);
        responses.now = Time(1000);
        responses.acknowledge(Psn::ZERO, Syndrome::ACK);
        responses.let_requests_pass();
        responses
    }

    fn yields(responses: &Responses, now: u64) -> bool {
        responses.yields(Time(now), Acknowledge::Urgent)
    }

    #[test]
    fn an_acknowledgement_lets_one_request_pass_for_a_while() {
        let mut responses = yielding();
        assert!(yields(&responses, 1000 + REPORT_DELAY_NS - 1) && responses.waits());
        assert!(!yields(&responses, 1000 + REPORT_DELAY_NS), "this side never got idle");
        assert!(!responses.yields(Time(1000), Acknowledge::Idle));
        responses.now = Time(2000);
        responses.acknowledge(Psn::new(1), Syndrome::ACK);
        responses.let_requests_pass();
        assert!(!yields(&responses, 1000 + REPORT_DELAY_NS), "the first message came then");
        responses.replied();
        assert!(!yields(&responses, 1000) && !responses.waits());
    }

    #[test]
    fn only_an_acknowledgement_that_is_alone_lets_requests_pass() {
        let mut refused = yielding();
        refused.acknowledge(Psn::new(1), Syndrome::RnrNak(RnrTimer::at_least(10)));
        assert!(!yields(&refused, 1000));
        refused.let_requests_pass();
        assert!(!yields(&refused, 1000));
        let mut answering = yielding();
        answering.atomic(Psn::new(1), RemoteBytes { key: RemoteKey(0), address: 0, length: 8 }, 0);
        assert!(!yields(&answering, 1000));
        answering.acknowledge(Psn::new(2), Syndrome::ACK);
        answering.let_requests_pass();
        assert!(!yields(&answering, 1000));
        let mut long = yielding();
        long.hurry();
        assert!(!yields(&long, 1000));
        let mut several = yielding();
        for _ in 1..REPORT_MESSAGES {
            assert!(yields(&several, 1000));
            several.let_requests_pass();
        }
        assert!(!yields(&several, 1000));
    }

    fn goes(responses: &Responses, now: u64, acknowledge: Acknowledge) -> bool {
        responses.report.is_some_and(|due| due.goes(Time(now), acknowledge))
    }

    #[test]
    fn a_report_waits_for_idleness_and_longer_when_a_reply_went_out() {
        let mut responses = reporting();
        assert!(!goes(&responses, 1000, Acknowledge::Urgent));
        assert!(goes(&responses, 1000 + REPORT_DELAY_NS, Acknowledge::Urgent), "this side never got idle");
        assert!(goes(&responses, 1000, Acknowledge::Idle));
        responses.replied();
        assert!(!goes(&responses, 1000 + REPORT_DELAY_NS - 1, Acknowledge::Idle));
        assert!(goes(&responses, 1000 + REPORT_DELAY_NS, Acknowledge::Idle));
        assert!(goes(&responses, 1000, Acknowledge::All));
    }

    #[test]
    fn so_many_messages_wait_and_no_more() {
        let mut responses = reporting();
        for _ in 1..REPORT_MESSAGES {
            assert!(!goes(&responses, 1000, Acknowledge::Urgent));
            responses.acknowledge(Psn::ZERO, Syndrome::ACK);
        }
        assert!(goes(&responses, 1000, Acknowledge::Urgent));
        let mut hurried = reporting();
        hurried.replied();
        hurried.hurry();
        assert!(goes(&hurried, 1000, Acknowledge::Urgent));
    }

    #[test]
    fn a_report_of_messages_lets_one_request_pass_and_one_of_a_gap_none() {
        let lets_pass = |responses: &Responses| responses.report.is_some_and(|due| due.lets_pass());
        let mut responses = reporting();
        for _ in 0..REPORT_MESSAGES {
            assert!(lets_pass(&responses));
            responses.acknowledge(Psn::ZERO, Syndrome::ACK);
        }
        responses.replied();
        assert!(!lets_pass(&responses));
        let mut gap = reporting();
        gap.report_now();
        assert!(!lets_pass(&gap));
    }
}
