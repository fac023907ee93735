//! What the responder still has to say, and what it remembers to say it again.

use alloc::collections::VecDeque;

use ringway_verbs::RemoteKey;
use ringway_wire::{PathMtu, Psn, Syndrome};

/// Something to send to the peer's completer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    /// An acknowledgement of either kind.
    Acknowledge { psn: Psn, syndrome: Syndrome },
    /// The rest of a READ's response, whose next packet has this PSN.
    Read { psn: Psn, memory: RemoteBytes, first: bool, again: bool },
    /// An atomic's response.
    Atomic { psn: Psn, old: u64, again: bool },
}

impl Response {
    /// Whether it is a READ's.
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
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
    Read { first: Psn, packets: u32, memory: RemoteBytes },
    Atomic { psn: Psn, memory: RemoteBytes, old: u64 },
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
    /// A report is to be sent.
    pub(crate) report_due: bool,
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
            report_due: false,
        }
    }

    /// Forgets everything and answers at most `resources` READs and atomics at once from now on. With `reports` what is
    /// acknowledged is told by reports.
    pub(crate) fn reset(&mut self, resources: u8, reports: bool) {
        self.queue.clear();
        self.resources.clear();
        (self.reports, self.report_due) = (reports, false);
        self.limit = usize::from(resources);
    }

    pub(crate) fn front(&self) -> Option<Response> {
        self.queue.front().copied()
    }

    /// Adds an acknowledgement, or makes the last one say this as well. Of different kinds the last one counts: a
    /// NAK acknowledges what came before it, and an acknowledgement comes after a NAK only when that is settled.
    pub(crate) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        if self.reports && matches!(syndrome, Syndrome::Ack(_)) {
            self.report_due = true;
            return;
        }
        let response = Response::Acknowledge { psn, syndrome };
        if let Some(last) = self.queue.back_mut().filter(|last| matches!(last, Response::Acknowledge { .. }))
        {
            *last = response;
        } else if self.queue.len() < self.capacity {
            self.queue.push_back(response);
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

    /// Takes a READ on.
    pub(crate) fn read(&mut self, first: Psn, packets: u32, memory: RemoteBytes) {
        self.remember(Resource::Read { first, packets, memory });
        self.push(Response::Read { psn: first, memory, first: true, again: false });
    }

    /// Answers an atomic that was executed.
    pub(crate) fn atomic(&mut self, psn: Psn, memory: RemoteBytes, old: u64) {
        self.remember(Resource::Atomic { psn, memory, old });
        self.push(Response::Atomic { psn, old, again: false });
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
        if self.queue.len() < self.capacity {
            self.queue.push_back(response);
        }
    }

    /// Answers a READ request that was executed before, wholly or from some packet on; says whether it is remembered
    /// and names the same memory.
    pub(crate) fn read_again(&mut self, from: Psn, memory: RemoteBytes, mtu: PathMtu) -> bool {
        let known = self.resources.iter().any(|resource| match resource {
            Resource::Read { first, packets, memory: whole } => {
                let skipped = from.above(*first);
                let offset = u64::from(skipped) * mtu.bytes() as u64;
                skipped < *packets
                    && whole.key == memory.key
                    && whole.address.wrapping_add(offset) == memory.address
                    && offset + u64::from(memory.length) <= u64::from(whole.length)
            }
            Resource::Atomic { .. } => false,
        });
        if !known {
            return false;
        }
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
        if self.pending(true) < AGAIN_MAX {
            self.push(Response::Read { psn: from, memory, first: true, again: true });
        }
        true
    }

    /// Answers an atomic that was executed before, with the result it had then; says whether it is remembered.
    pub(crate) fn atomic_again(&mut self, again: Psn, named: RemoteBytes) -> bool {
        let known = self.resources.iter().find_map(|resource| match resource {
            Resource::Atomic { psn, memory, old } if *psn == again && *memory == named => Some(*old),
            _ => None,
        });
        let Some(old) = known else { return false };
        let is_pending = |r: &Response| matches!(r, Response::Atomic { psn, .. } if *psn == again);
        if self.pending(true) < AGAIN_MAX && !self.queue.iter().any(is_pending) {
            self.push(Response::Atomic { psn: again, old, again: true });
        }
        true
    }

    /// The packet of the first response is on its way: `mtu` bytes of it, if it is a READ's.
    pub(crate) fn sent(&mut self, mtu: PathMtu) {
        let bytes = u32::try_from(mtu.bytes()).unwrap_or(u32::MAX);
        match self.queue.front_mut() {
            Some(Response::Read { psn, memory, first, .. }) if memory.length > bytes => {
                (*psn, *memory, *first) = (psn.next(), memory.from(bytes), false);
            }
            _ => drop(self.queue.pop_front()),
        }
    }

    /// Acknowledges what was acknowledged before, but where a NAK that says as much is still to be sent.
    pub(crate) fn acknowledge_again(&mut self, psn: Psn) {
        let settled = |last: &Response| match last {
            Response::Acknowledge { syndrome, .. } => matches!(syndrome, Syndrome::Ack(_)),
            Response::Read { .. } | Response::Atomic { .. } => true,
        };
        if self.queue.back().is_none_or(settled) {
            self.acknowledge(psn, Syndrome::ACK);
        }
    }

    /// Refuses what the first response was for; nothing comes after that.
    pub(crate) fn refuse_front(&mut self, psn: Psn, syndrome: Syndrome) {
        self.queue.clear();
        self.acknowledge(psn, syndrome);
    }
}
