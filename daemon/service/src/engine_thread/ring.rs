//! One rank's rings as the engine thread keeps them: what came, what is in flight, what is to be told.

use std::{collections::VecDeque, sync::Arc};

use ringway_abi::{
    Status,
    descriptor::{COMPLETION_WORDS, Completion, FLAG_GROUP, SUBMISSION_WORDS},
};
use ringway_engine::{CommunicatorId, LocalRank};
use ringway_mem::Mapping;
use ringway_ring::{DaemonRings, PeerFault};

use super::streams::StreamWords;
use crate::membership::GroupKey;

/// Operations that one rank may have in flight; more wait in its ring.
const IN_FLIGHT_MAX: u64 = 512;

/// An operation in flight. The engine knows it by the slot's number, so that a client may name its operations as it
/// likes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) token: u32,
    pub(super) regions: [Option<u64>; 2],
    /// A stream waits for it.
    pub(super) streamed: bool,
}

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Its client may ask for things.
    Serving,
    /// Nothing more is read from it; it is gone when nothing is in flight. The number is the request to answer then.
    Leaving(Option<u32>),
}

/// One rank's rings.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) rings: DaemonRings,
    client_memory: Arc<Mapping>,
    pub(super) group: GroupKey,
    pub(super) id: CommunicatorId,
    pub(super) local: LocalRank,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// The session's name for the communicator.
    pub(super) communicator: u32,
    pub(super) life: Life,
    pub(super) finished: u64,
    /// Submissions copied out of the ring, in order; at most the ring's capacity.
    pending: VecDeque<[u64; SUBMISSION_WORDS]>,
    /// How many of them, from the front, belong to groups that are there as a whole.
    whole: usize,
    /// How many of them belong to the group whose room is reserved already.
    reserved: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    in_flight: u64,
    told: bool,
    stall: Option<Stall>,
    words: Option<StreamWords>,
    /// Operations that have ended and whose streams go on when their completions are visible.
    ended: Vec<u32>,
}

/// Why the submission at the front waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stall {
    /// The client has not taken its completions, or has as much in flight as it may.
    Room,
    /// The engine takes no more of it until something finishes.
    Engine,
    /// The caller's stream has not come to it.
    Stream,
}

/// A client broke the protocol of its rings.
#[derive(Debug)]
pub(super) enum RingFault {
    /// In its shared words.
    Words(PeerFault),
    /// By a group that no ring can hold.
    Group,
    /// By taking pages of the ring away.
    Pages,
}

impl core::fmt::Display for RingFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Words(fault) => fault.fmt(f),
            Self::Group => f.write_str("a group of submissions is longer than its ring"),
            Self::Pages => f.write_str("it took pages away from its ring"),
        }
    }
}

impl From<PeerFault> for RingFault {
    fn from(fault: PeerFault) -> Self {
        Self::Words(fault)
    }
}

fn continues(words: &[u64; SUBMISSION_WORDS]) -> bool {
    let [head, ..] = words;
    let [_, _, _, flags, ..] = head.to_le_bytes();
    flags & FLAG_GROUP != 0
}

impl Ring {
    pub(super) fn new(
        (rings, client_memory): (DaemonRings, Arc<Mapping>),
        (group, id, local): (GroupKey, CommunicatorId, LocalRank),
        (rank, size): (u32, u32),
        communicator: u32,
    ) -> Self {
        let capacity = usize::try_from(rings.submissions.capacity()).unwrap_or(0);
        let in_flight = rings.completions.capacity().min(IN_FLIGHT_MAX);
        let slots = u32::try_from(in_flight).unwrap_or(0);
        Self {
            rings,
            client_memory,
            group,
            id,
            local,
            rank,
            size,
            communicator,
            life: Life::Serving,
            finished: 0,
            pending: VecDeque::with_capacity(capacity),
            whole: 0,
            reserved: 0,
            slots: vec![Slot::default(); slots as usize],
            free: (0..slots).rev().collect(),
            in_flight: 0,
            told: false,
            stall: None,
            words: None,
            ended: Vec::new(),
        }
    }

    /// With words for operations in the order of streams.
    pub(super) fn with_words(self, words: Option<StreamWords>) -> Self {
        // As much as a turn completes.
        let room = if words.is_some() { self.pending.capacity().saturating_add(self.slots.len()) } else { 0 };
        Self { words, ended: Vec::with_capacity(room), ..self }
    }

    /// Whether the caller's stream has come to an operation; `None` when there are no words that would say so.
    pub(super) fn is_ready(&mut self, token: u32) -> Option<bool> {
        let ready = self.words.as_ref()?.is_ready(token);
        if !ready {
            self.stall = Some(Stall::Stream);
        }
        Some(ready)
    }

    /// Lets the caller's stream go on after an operation, at the next [`Ring::publish`]: whoever sees that the stream has gone
    /// on sees how the operation ended.
    pub(super) fn tell_stream(&mut self, token: u32) {
        if self.words.is_some() {
            self.ended.push(token);
        }
    }

    /// Copies at most `budget` submissions out of the shared ring; returns how many.
    pub(super) fn pull(&mut self, budget: usize) -> Result<usize, RingFault> {
        let capacity = usize::try_from(self.rings.submissions.capacity()).unwrap_or(0);
        let mut pulled = 0;
        while pulled < budget && self.pending.len() < capacity {
            let Some(words) = self.rings.submissions.pop()? else { break };
            self.pending.push_back(words);
            if !continues(&words) {
                self.whole = self.pending.len();
            }
            pulled += 1;
        }
        if pulled > 0 {
            self.rings.submissions.release();
        }
        if self.client_memory.faulted() {
            return Err(RingFault::Pages);
        }
        if self.pending.len() == capacity && self.whole == 0 {
            return Err(RingFault::Group);
        }
        Ok(pulled)
    }

    /// The next submission to accept, when its whole group is there and there is room to complete all of it.
    pub(super) fn front(&mut self) -> Result<Option<[u64; SUBMISSION_WORDS]>, RingFault> {
        self.stall = None;
        if self.whole == 0 {
            return Ok(None);
        }
        if self.reserved == 0 {
            let group = self.pending.iter().take(self.whole).position(|words| !continues(words));
            let length = group.map_or(self.whole, |last| last.saturating_add(1));
            // A group longer than what may be in flight at a time enters piece by piece.
            let wanted = length.min(self.slots.len()) as u64;
            let room = self
                .rings
                .completions_free_beyond(self.in_flight.saturating_add(wanted).saturating_sub(1))?;
            if room == 0 || (self.free.len() as u64) < wanted {
                self.stall = Some(Stall::Room);
                return Ok(None);
            }
            self.reserved = length;
        } else if self.free.is_empty() || self.rings.completions_free_beyond(self.in_flight)? == 0 {
            self.stall = Some(Stall::Room);
            return Ok(None);
        }
        Ok(self.pending.front().copied())
    }

    /// A slot for the submission at the front; [`Ring::front`] has seen that there is one.
    pub(super) fn claim(&mut self, slot: Slot) -> Option<u32> {
        let number = self.free.pop()?;
        *self.slots.get_mut(number as usize)? = slot;
        self.in_flight = self.in_flight.saturating_add(1);
        Some(number)
    }

    /// The regions of an operation in flight, known only later.
    pub(super) fn hold(&mut self, number: u32, regions: [Option<u64>; 2]) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.regions = regions;
        }
    }

    /// Operations that may be in flight at a time.
    pub(super) fn in_flight_max(&self) -> usize {
        self.slots.len()
    }

    /// The engine does not take the submission at the front now.
    pub(super) fn hold_back(&mut self) {
        self.stall = Some(Stall::Engine);
    }

    /// Why the submission at the front waits, if it does.
    pub(super) fn stall(&self) -> Option<Stall> {
        self.stall
    }

    /// The submission at the front was handled.
    pub(super) fn advance(&mut self) {
        self.pending.pop_front();
        self.whole = self.whole.saturating_sub(1);
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Gives a slot back; what it held, if it was in use.
    pub(super) fn finish(&mut self, number: u32) -> Option<Slot> {
        let slot = std::mem::take(self.slots.get_mut(number as usize)?);
        self.free.push(number);
        self.in_flight = self.in_flight.saturating_sub(1);
        Some(slot)
    }

    /// Stages a completion; its room was reserved when the submission was accepted. `held`: somebody may still be at work
    /// on the operation's buffers.
    pub(super) fn complete(&mut self, token: u32, (status, held): (Status, bool), (rank, bytes): (u32, u64)) {
        self.finished = self.finished.wrapping_add(1);
        if matches!(self.life, Life::Leaving(_)) {
            return;
        }
        let completion = Completion { token, status: status.code(), held, rank, bytes };
        let words: [u64; COMPLETION_WORDS] = completion.encode();
        let staged = self.rings.completions.push(&words);
        debug_assert!(staged.is_ok(), "{staged:?}");
    }

    /// Whether this is the first completion since the last [`Ring::publish`].
    pub(super) fn mark_told(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// Makes staged completions visible; whether the client had to be woken.
    pub(super) fn publish(&mut self) -> bool {
        self.told = false;
        let staged = self.rings.completions.staged() > 0;
        if staged {
            self.rings.completions.publish();
        }
        if let Some(words) = &self.words {
            self.ended.drain(..).for_each(|token| words.tell(token));
        }
        staged && self.rings.wake()
    }

    /// Reads nothing more; what was not accepted is forgotten.
    pub(super) fn leave(&mut self, number: Option<u32>) {
        if self.life == Life::Serving {
            self.life = Life::Leaving(number);
        }
        self.pending.clear();
        self.stall = None;
        (self.whole, self.reserved) = (0, 0);
    }

    /// Operations in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether something waits here that a turn could take.
    pub(super) fn has_work(&self) -> bool {
        let room = (self.pending.len() as u64) < self.rings.submissions.capacity();
        let front = self.whole > 0 && self.stall.is_none();
        self.life == Life::Serving && (front || (room && self.rings.is_ready()))
    }
}
