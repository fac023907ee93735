//! Ranks for which the daemon acts in their cells: those that made more calls without waiting than a cell has slots for.
//!
//! Such a rank submits its calls to its ring, marked as the cell's; from the first of them until none is left the daemon is
//! that rank there (`ringway_cell::StandIn` says how the part changes hands). New calls wait here, in their order, for
//! a slot, and are checked as any submission when they get one; each is completed when it is over for the rank. The
//! blocks of large ones are done by whoever waits and by the daemon's helper, as always.
//!
//! A turn makes and ends calls worth a bounded number of bytes; ranks take turns in coming first. Nothing is allocated
//! once a rank has handed its part over for the first time.

use std::{collections::VecDeque, time::Duration};

use ringway_abi::descriptor::{FLAG_PUBLISHED, SUBMISSION_WORDS, Submission, split};
use ringway_cell::{
    Call, Cell, INLINE_BYTES, Place, Poll, Refusal, Regions, SLOTS, Signature, StandIn, Verdict,
};
use ringway_engine::{Failure, Request};
use ringway_mem::{HandleTable, Window};
use ringway_verbs::Time;

use super::{
    EngineThread, Inspect, Region,
    accept::{self, Accepted},
    cells::GroupCell,
    drain::{Asking, count_uses},
    reason::{Reason, Side},
    ring::Slot,
};
use crate::{membership::GroupKey, session::SessionKey};

/// Bytes of small calls made and ended in one turn of the loop, about.
const TURN_BYTES: u64 = 256 << 10;

/// After so long without anything to do for a rank it is looked whether others will ever come.
const LOOK_NS: u64 = 1_000_000;

/// For so long after the last step the next one is expected soon.
const PRESSING_NS: u64 = 2_000_000;

/// How long to sleep while the daemon acts for ranks. Those that wait for one of them ring; for the ranks themselves it
/// looks again after a part of the time that they have waited already.
const PATIENCE_LEAST: Duration = Duration::from_millis(1);
const PATIENCE_MOST: Duration = Duration::from_millis(20);
const PATIENCE_PART: u32 = 8;

/// A call in the cell.
#[derive(Debug, Clone, Copy)]
struct Made {
    sequence: u64,
    /// The ring's slot for its completion.
    slot: u32,
}

/// What the control thread's questions and the log have had of a wait.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    left: bool,
    late: bool,
    over: bool,
    disputed: bool,
}

/// One rank's part.
#[derive(Debug)]
struct Acting {
    group: GroupKey,
    rank: u32,
    stand_in: StandIn,
    /// The other ranks are told that the daemon acts for this one.
    said: bool,
    /// Calls in the cell that are not over, in order.
    made: VecDeque<Made>,
    /// Calls that have no slot in the cell yet, with the ring's slot of each.
    waiting: VecDeque<([u64; SUBMISSION_WORDS], u32)>,
    /// When it last got on.
    since: Time,
    looked: Time,
    told: Told,
}

/// Every rank for which the daemon acts, or has acted.
#[derive(Debug, Default)]
pub(super) struct StandIns {
    /// By the index of the rank's ring.
    by_ring: Vec<Option<Box<Acting>>>,
    /// The daemon acts for some rank.
    active: bool,
    /// Where the next turn begins.
    first: usize,
}

/// A rank's own memory.
struct Own<'a> {
    session: SessionKey,
    rank: u32,
    regions: &'a HandleTable<Region>,
}

impl Own<'_> {
    fn region(&self, handle: u64) -> Option<&Region> {
        self.regions.get(handle).filter(|region| region.session == self.session)
    }
}

impl Regions for Own<'_> {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        if rank != self.rank {
            return None;
        }
        self.region(place.region)?.memory.host()?.window(place.offset, length)
    }
}

/// Where a turn is with one rank's calls.
#[derive(Debug, Default)]
struct Cursor {
    /// Calls before this one were looked at.
    next: usize,
    /// A large call that is not over was among them: those after it wait, so that the cell's tables are read once for
    /// each.
    behind_large: bool,
}

/// What one step for a rank did.
#[derive(Debug)]
enum Step {
    /// There is nothing to do now.
    Nothing,
    /// A call is over, by its ring's slot; it may have copied so many bytes.
    Over(u32, u64),
    /// A call was published, and so many bytes copied at most.
    Begun(u64),
    /// A call was wrong.
    Refused(u32, Reason),
    /// Ranks contradict each other.
    Mismatch(u64),
    /// A rank ended the communicator.
    Failed(Verdict),
}

impl Acting {
    fn new((group, rank): (GroupKey, u32), cell: &Cell, in_flight: usize) -> Self {
        Self {
            group,
            rank,
            stand_in: StandIn::new(cell.clone(), rank),
            said: false,
            made: VecDeque::with_capacity(SLOTS as usize),
            waiting: VecDeque::with_capacity(in_flight),
            since: Time(0),
            looked: Time(0),
            told: Told::default(),
        }
    }

    fn is_idle(&self) -> bool {
        self.made.is_empty() && self.waiting.is_empty()
    }

    fn got_on(&mut self, now: Time) {
        (self.since, self.looked, self.told) = (now, now, Told::default());
    }

    /// Begins to act for the rank.
    fn take_over(&mut self, now: Time) -> Result<(), Refusal> {
        self.stand_in.take_over()?;
        self.say(true);
        self.got_on(now);
        Ok(())
    }

    /// Takes over a call that the rank has published; the regions it uses.
    fn adopt(&mut self, submission: &Submission, own: &Own<'_>) -> Result<[Option<u64>; 2], Reason> {
        let handles = [submission.input, submission.output];
        for (side, handle) in [Side::Input, Side::Output].into_iter().zip(handles) {
            if let Some(handle) = handle.map(|handle| handle.region)
                && own.region(handle).is_none()
            {
                return Err(Reason::Region { side, handle });
            }
        }
        let Submission { operation, datatype, reduction, count, .. } = *submission;
        let root = if operation.has_root() { submission.rank } else { 0 };
        let signature = Signature { operation, datatype, reduction, root, count };
        let places = [submission.input, submission.output];
        let places = places.map(|at| at.map(|at| Place { region: at.region, offset: at.offset }));
        let adopted = self.stand_in.adopt(submission.argument, &signature, places, own);
        adopted.map(|()| handles.map(|handle| handle.map(|h| h.region))).map_err(Reason::Cell)
    }

    /// Looks at calls in the cell until one of them is over, or is never going to be.
    fn look(&mut self, cursor: &mut Cursor, own: &Own<'_>) -> Step {
        while let Some(Made { sequence, slot }) = self.made.get(cursor.next).copied() {
            let large = !self.stand_in.is_small(sequence);
            if !(large && cursor.behind_large) {
                let bytes = self.stand_in.copied_bytes(sequence);
                match self.stand_in.poll(sequence, own) {
                    Poll::Done => {
                        self.made.remove(cursor.next);
                        return Step::Over(slot, bytes);
                    }
                    Poll::Mismatch { sequence, .. } if !self.told.disputed => {
                        self.told.disputed = true;
                        return Step::Mismatch(sequence);
                    }
                    Poll::Failed(verdict) => return Step::Failed(verdict),
                    _ => {}
                }
                cursor.behind_large |= large;
            }
            cursor.next = cursor.next.saturating_add(1);
        }
        Step::Nothing
    }

    /// The call for which it has waited longest.
    fn first(&self) -> u64 {
        self.made.front().map_or(self.stand_in.room_after(), |made| made.sequence)
    }

    fn is_full(&mut self) -> bool {
        self.made.len() as u64 >= SLOTS || !self.stand_in.has_room()
    }

    /// Tells the other ranks whether the daemon acts for this one.
    fn say(&mut self, acts: bool) {
        if std::mem::replace(&mut self.said, acts) != acts {
            self.stand_in.cell().set_stood_in(self.rank, acts);
        }
    }
}

impl StandIns {
    fn get_mut(&mut self, index: usize) -> Option<&mut Acting> {
        self.by_ring.get_mut(index)?.as_deref_mut()
    }

    fn iter(&self) -> impl Iterator<Item = &Acting> {
        self.by_ring.iter().flatten().map(|acting| &**acting).filter(|acting| !acting.is_idle())
    }

    /// That of a ring, made at need.
    fn of_ring(&mut self, index: usize, make: impl FnOnce() -> Acting) -> Option<&mut Acting> {
        if self.by_ring.len() <= index {
            self.by_ring.resize_with(index.saturating_add(1), || None);
        }
        Some(self.by_ring.get_mut(index)?.get_or_insert_with(|| Box::new(make())))
    }

    /// Whether the daemon acts for a rank that is likely to get on soon.
    pub(super) fn is_pressing(&self, now: Time) -> bool {
        self.active && self.iter().any(|acting| now.0.saturating_sub(acting.since.0) < PRESSING_NS)
    }

    /// How long to sleep at most.
    pub(super) fn patience(&self, now: Time) -> Option<Duration> {
        let waited = self.iter().map(|acting| now.0.saturating_sub(acting.since.0)).min()?;
        Some((Duration::from_nanos(waited) / PATIENCE_PART).clamp(PATIENCE_LEAST, PATIENCE_MOST))
    }
}

/// An accepted collective as the cell takes it.
fn call_of<'a>(accepted: &Accepted<'a>) -> Option<Call<'a>> {
    let Request::Collective(of) = &accepted.request else { return None };
    let [input, output] = accepted.regions;
    let place = |region: Option<u64>, buffer: Option<ringway_engine::BufferRef>| {
        Some(Place { region: region?, offset: buffer?.offset })
    };
    Some(Call {
        operation: of.operation,
        datatype: of.datatype,
        reduction: of.reduction,
        scale: of.scale.map(u64::from_le_bytes),
        root: of.root,
        count: of.count,
        counts: of.counts,
        input: place(input, of.input),
        output: place(output, of.output),
        staging: None,
    })
}

impl EngineThread {
    /// Takes a submission for the cell from the front of a ring. `false` when there is no room for it.
    pub(super) fn take_for_cell(&mut self, index: usize, words: &[u64; SUBMISSION_WORDS], now: Time) -> bool {
        let taken = self.entrust(index, words, now);
        let Some((_, ring)) = self.rings.get_mut(index) else { return false };
        if let Ok(false) = taken {
            return false;
        }
        ring.advance();
        self.counters.submitted = self.counters.submitted.wrapping_add(1);
        self.standins.active = true;
        if let Err(reason) = taken {
            let [.., tail] = *words;
            self.refuse(index, split(tail).1, reason);
        }
        true
    }

    fn entrust(&mut self, index: usize, words: &[u64; SUBMISSION_WORDS], now: Time) -> Result<bool, Reason> {
        let Self { rings, regions, cells, standins, .. } = self;
        let Some((session, ring)) = rings.get_mut(index) else { return Ok(false) };
        let submission = Submission::parse(words).map_err(|(_, status)| Reason::Descriptor(status))?;
        let cell = cells.get(ring.group).ok_or(Reason::NoCell)?;
        if let Some(reason) = &cell.reason {
            return Err(reason.clone());
        }
        let (part, in_flight) = ((ring.group, ring.rank), ring.in_flight_max());
        let acting = standins.of_ring(index, || Acting::new(part, &cell.cell, in_flight));
        let Some(acting) = acting else { return Ok(false) };
        if acting.is_idle() {
            acting.take_over(now).map_err(Reason::Cell)?;
        }
        let mut slot = Slot { token: submission.token, regions: [None; 2], streamed: false };
        if submission.flags & FLAG_PUBLISHED == 0 {
            let Some(number) = ring.claim(slot) else { return Ok(false) };
            acting.waiting.push_back((*words, number));
            return Ok(true);
        }
        slot.regions = acting.adopt(&submission, &Own { session: *session, rank: ring.rank, regions })?;
        // There is room: the ring has seen to it before it gave the submission.
        let Some(number) = ring.claim(slot) else { return Err(Reason::NoCell) };
        count_uses(regions, slot.regions);
        acting.made.push_back(Made { sequence: submission.argument, slot: number });
        Ok(true)
    }

    /// Acts for ranks in their cells, a bounded amount; whether anything was done.
    pub(super) fn stand_in(&mut self, now: Time) -> bool {
        if !self.standins.active {
            return false;
        }
        let count = self.standins.by_ring.len();
        let first = self.standins.first.checked_rem(count).unwrap_or(0);
        self.standins.first = first.wrapping_add(1);
        let (mut worked, mut budget) = (false, TURN_BYTES);
        for nth in 0..count {
            let index = first.wrapping_add(nth).checked_rem(count).unwrap_or(0);
            worked |= self.stand_in_at(index, &mut budget, now);
        }
        let active = self.standins.iter().next().is_some();
        self.standins.active = active;
        worked
    }

    fn stand_in_at(&mut self, index: usize, budget: &mut u64, now: Time) -> bool {
        let (mut cursor, mut worked) = (Cursor::default(), false);
        while *budget > 0 {
            let mut bytes = INLINE_BYTES as u64;
            match self.step(index, &mut cursor) {
                Step::Nothing => break,
                Step::Over(slot, copied) => {
                    // Of payloads that are longer there is one.
                    bytes = bytes.saturating_mul(self.size_of(index)).max(copied);
                    self.end_in_cell(index, slot, Ok(()));
                }
                Step::Begun(copied) => bytes = copied,
                Step::Refused(slot, reason) => self.end_in_cell(index, slot, Err(reason)),
                Step::Mismatch(sequence) => {
                    self.ask_about(index, sequence, now);
                    continue;
                }
                Step::Failed(verdict) => self.fail_with(index, verdict),
            }
            *budget = budget.saturating_sub(bytes);
            worked = true;
        }
        let Some(acting) = self.standins.get_mut(index) else { return worked };
        let group = acting.group;
        if worked && self.cells.get(group).is_some_and(GroupCell::is_spoiled) {
            self.fail_spoiled(group);
        }
        let Some(acting) = self.standins.get_mut(index) else { return worked };
        if acting.is_idle() {
            acting.say(false);
        } else if worked {
            acting.got_on(now);
        } else {
            self.attend(index, now);
        }
        worked
    }

    /// The next thing that can be done for a rank.
    fn step(&mut self, index: usize, cursor: &mut Cursor) -> Step {
        let Self { rings, regions, standins, arguments, .. } = self;
        let Some(acting) = standins.get_mut(index).filter(|acting| !acting.is_idle()) else {
            return Step::Nothing;
        };
        let Some((session, ring)) = rings.get_mut(index) else { return Step::Nothing };
        let own = Own { session: *session, rank: ring.rank, regions };
        match acting.look(cursor, &own) {
            Step::Nothing => {}
            step => return step,
        }
        let Some((words, slot)) = acting.waiting.front().copied() else { return Step::Nothing };
        if acting.is_full() {
            return Step::Nothing;
        }
        let asking = Asking { session: *session, regions, rings: &ring.rings };
        let accepted = accept::accept(&words, (ring.rank, ring.size), &asking, arguments);
        let begun = accepted.map(|accepted| {
            let call = call_of(&accepted)?;
            let sequence = acting.stand_in.begin(&call, &own)?;
            Some((sequence, accepted.regions))
        });
        match begun {
            Err(reason) => {
                acting.waiting.pop_front();
                Step::Refused(slot, reason)
            }
            Ok(None) => Step::Nothing,
            Ok(Some((sequence, used))) => {
                acting.waiting.pop_front();
                let copied = acting.stand_in.copied_bytes(sequence);
                acting.made.push_back(Made { sequence, slot });
                ring.hold(slot, used);
                count_uses(regions, used);
                Step::Begun(copied)
            }
        }
    }

    fn size_of(&mut self, index: usize) -> u64 {
        self.rings.get_mut(index).map_or(1, |(_, ring)| u64::from(ring.size))
    }

    /// Completes a call of a rank's cell.
    fn end_in_cell(&mut self, index: usize, slot: u32, outcome: Result<(), Reason>) {
        let Some((_, ring)) = self.rings.get_mut(index) else { return };
        let rank = ring.rank;
        // It is counted among the cell's.
        ring.finished = ring.finished.wrapping_sub(1);
        self.counters.finished = self.counters.finished.wrapping_add(1);
        self.report(index, slot, outcome.map(|()| (rank, 0)));
    }

    /// Looks, now and then, after a rank that does not get on.
    fn attend(&mut self, index: usize, now: Time) {
        let timeout_ms = self.standins.get_mut(index).and_then(|acting| self.groups.get(&acting.group));
        let timeout_ms = timeout_ms.map_or(0, |group| u64::from(group.timeout_ms));
        let late_after_ms = self.late_after_ms;
        let Some(acting) = self.standins.get_mut(index) else { return };
        if now.0.saturating_sub(acting.looked.0) < LOOK_NS {
            return;
        }
        acting.looked = now;
        let (sequence, before) = (acting.first(), acting.told);
        let waited_ms = milliseconds(now, acting.since);
        acting.told.left |= acting.stand_in.waits_for_nobody(sequence);
        acting.told.late |= waited_ms >= late_after_ms;
        acting.told.over |= timeout_ms > 0 && waited_ms >= timeout_ms;
        let Told { left, late, over, .. } = acting.told;
        if (left, late, over) != (before.left, before.late, before.over) {
            self.ask_about(index, sequence, now);
        }
    }

    /// Has the cell inspected for a call that does not end.
    fn ask_about(&mut self, index: usize, sequence: u64, now: Time) {
        let Some(acting) = self.standins.get_mut(index) else { return };
        let waited_ms = milliseconds(now, acting.since);
        let Some((session, ring)) = self.rings.get_mut(index) else { return };
        let inspect = Inspect { communicator: ring.communicator, sequence, waited_ms };
        let session = *session;
        self.inspect(session, inspect, now);
    }

    /// A rank said that the communicator is at its end: it could have aborted it as well.
    fn fail_with(&mut self, index: usize, verdict: Verdict) {
        let Some((_, ring)) = self.rings.get_mut(index) else { return };
        let rank = if verdict.rank < ring.size { verdict.rank } else { ring.rank };
        let group = ring.group;
        self.fail_group(group, Failure::Aborted { rank });
    }

    /// The communicator is at its end: nothing more is done for its ranks.
    pub(super) fn end_stand_ins(&mut self, group: GroupKey, reason: &Reason) {
        for index in 0..self.standins.by_ring.len() {
            if self.standins.get_mut(index).is_some_and(|acting| acting.group == group) {
                for slot in self.stop_acting(index) {
                    self.end_in_cell(index, slot, Err(reason.clone()));
                }
            }
        }
    }

    /// A rank is gone: nothing more is done for it, and nobody waits for what it asked.
    pub(super) fn release_stand_in(&mut self, index: usize) {
        for slot in self.stop_acting(index) {
            self.end_in_cell(index, slot, Ok(()));
        }
    }

    /// Ends what is done for a rank; the slots of calls that are not over.
    fn stop_acting(&mut self, index: usize) -> impl Iterator<Item = u32> + use<> {
        let mut acting = self.standins.by_ring.get_mut(index).and_then(Option::take);
        if let Some(acting) = &mut acting {
            acting.say(false);
        }
        acting.into_iter().flat_map(|acting| {
            let Acting { made, waiting, .. } = *acting;
            made.into_iter().map(|made| made.slot).chain(waiting.into_iter().map(|(_, slot)| slot))
        })
    }
}

fn milliseconds(now: Time, since: Time) -> u64 {
    now.0.saturating_sub(since.0) / 1_000_000
}
