//! Collectives in the communicator's cell: memory that its ranks, all on this node, share. The daemon is not asked; this
//! rank does its part of the work while it waits.

mod group;
mod handing_over;
mod known;
mod memory;
mod slices;
mod waiting;

use std::{sync::Arc, time::Duration};

use ringway_cell::{
    Call, CallMemory, Exchange, Member, NumaNodes, Place, Poll, ProcessorSet, SLOTS, Signature,
    processor_quota,
};

use crate::{Client, arena::Registered, pace::Pace, queue};

use group::Group;
pub(crate) use group::{Fate, Ticket};
use handing_over::Handed;
pub(crate) use known::Known;
use memory::{Kept, Reach, own_of};
pub(crate) use memory::{Own, Peers};
use waiting::Attention;
pub(crate) use waiting::Stopped;

/// In place of a call's number: the communicator had failed before it was made, and nothing of it was published.
const NEVER: u64 = u64::MAX;

/// Ranks that never wait for long would not notice that the daemon is gone, and with it whoever tells them of ranks that
/// are: so often a call asks the kernel whether it is there. Nor would others notice where this rank runs now.
const LOOK_EVERY: u32 = 4096;
/// How many small calls a large one counts for.
const LARGE: u32 = 64;

/// A call that was published and is not over.
#[derive(Debug, Default)]
struct Slot {
    /// Zero when there is none.
    sequence: u64,
    /// Others work on its memory.
    large: bool,
    kept: Kept,
    attention: Option<Attention>,
}

/// What this rank has to do with a cell.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) client: Client,
    pub(crate) rank: u32,
    /// The daemon's number for the communicator.
    pub(crate) number: u32,
    /// Zero for none.
    pub(crate) timeout: Duration,
    /// When the daemon wants to know of a rank that does not come.
    pub(crate) late_after: Duration,
}

/// One communicator's calls in its cell.
#[derive(Debug)]
pub(crate) struct Calls {
    member: Member,
    /// Where processors are.
    nodes: NumaNodes,
    part: Part,
    ranks: u32,
    peers: Peers,
    slots: Box<[Slot]>,
    /// How many slots are in use.
    outstanding: u32,
    /// No call before this one is under way.
    oldest: u64,
    group: Group,
    handed: Handed,
    pace: Pace,
    /// Of this rank's control group, in processors.
    quota: Option<u32>,
    /// Some rank has not said where it may run.
    unsaid: bool,
    /// Regions of this client that were released when it was last looked.
    releases: u64,
    /// Goes up with every call, faster with large ones; see [`LOOK_EVERY`].
    unlooked: u32,
    /// The daemon was told that ranks contradict each other.
    disputed: bool,
    /// The last small call, and others like it.
    known: Option<Known>,
    /// Memory through which large slices are moved; made at first need.
    staging: Option<Arc<Registered>>,
}

impl Calls {
    pub(crate) fn new(cell: ringway_cell::Cell, part: Part, group_max: usize) -> Self {
        let ranks = cell.ranks();
        let member = Member::new(cell, part.rank).learning_by(ringway_cell::monotonic_ns);
        let mut calls = Self {
            member,
            nodes: NumaNodes::read(),
            ranks,
            peers: Peers::new(ranks),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            outstanding: 0,
            oldest: 1,
            group: Group::new(group_max),
            handed: Handed::new(),
            pace: Pace::among(ranks, 1),
            quota: processor_quota(),
            unsaid: true,
            releases: 0,
            unlooked: 0,
            disputed: false,
            known: None,
            staging: None,
            part,
        };
        calls.say_where();
        calls
    }

    /// Says in the cell where this rank runs and may run, and finds out where others may.
    fn say_where(&mut self) {
        if let Some(node) = self.nodes.here() {
            self.member.set_node(node);
        }
        self.member.say_processors(&ProcessorSet::allowed());
        self.learn_processors();
    }

    /// Finds out how many ranks can run at a time.
    fn learn_processors(&mut self) {
        let (processors, all_said) = self.member.learn_processors(self.quota);
        self.unsaid = !all_said;
        self.pace.set_processors(processors);
    }

    /// Publishes a call; `None` when there is no slot for it now. With `blocking` the caller waits for it next: the daemon
    /// is not asked for help, and the wait begins here, while the call's memory is at hand. Gives the call's number,
    /// which [`Calls::wait`] takes.
    #[inline(always)]
    pub(crate) fn submit(
        &mut self,
        call: &Call<'_>,
        memory: [Option<&Arc<Registered>>; 2],
        blocking: bool,
    ) -> Option<u64> {
        let own = Own::registered(memory.map(|region| region.map(|region| &**region)));
        let large = Member::is_large(call, self.ranks);
        if large {
            self.unlooked = self.unlooked.wrapping_add(LARGE);
        }
        let sequence = self.begin(call, !blocking, &own)?;
        if sequence == NEVER || (blocking && self.spin(sequence, &own)) {
            return Some(sequence);
        }
        let kept = memory.map(|region| region.map(Arc::clone));
        self.keep(sequence, large, kept);
        Some(sequence)
    }

    /// How often to poll in a row at the beginning of a wait.
    #[inline(always)]
    pub(crate) const fn polls(&self) -> u32 {
        self.pace.polls()
    }

    /// What is known of a call from the last one like it, or found out now; `None` when it has counts, or is not as it must
    /// be.
    #[inline(always)]
    pub(crate) fn recall(&mut self, signature: &Signature) -> Option<&Known> {
        if !self.known.as_ref().is_some_and(|known| known.prepared.is(signature)) {
            self.known = Some(Known::new(signature, self.part.rank, self.ranks)?);
        }
        self.known.as_ref()
    }

    /// Publishes the small call that was recalled last and polls it for as long as there is a processor for it; `None` when
    /// there is something else to be done first: [`Calls::submit`] does it.
    #[inline(always)]
    pub(crate) fn exchange(&mut self, memory: &CallMemory<'_>) -> Option<Exchange> {
        if self.unlooked + 1 >= LOOK_EVERY || self.part.client.session().releases() != self.releases {
            return None;
        }
        let prepared = &self.known.as_ref()?.prepared;
        match self.member.exchange(prepared, memory, self.pace.polls(), &self.peers) {
            Exchange::Declined => None,
            published => {
                self.unlooked += if prepared.is_small() { 1 } else { LARGE };
                Some(published)
            }
        }
    }

    /// Publishes a call; `None` when there is no slot for it now.
    #[inline(always)]
    fn begin(&mut self, call: &Call<'_>, help: bool, own: &Own<'_>) -> Option<u64> {
        self.unlooked = self.unlooked.wrapping_add(1);
        if self.unlooked >= LOOK_EVERY {
            self.look_around();
        }
        if self.member.cell().verdict().is_some() {
            return Some(self.begin_last(call, own).unwrap_or(NEVER));
        }
        let releases = self.part.client.session().releases();
        if releases != self.releases {
            self.releases = releases;
            self.member.set_epoch(releases);
        }
        self.member.begin(call, help, &Reach { rank: self.part.rank, own, peers: &self.peers })
    }

    /// Publishes a call after the communicator has failed, if all that it needs was there before: it is not this call that
    /// has failed.
    #[cold]
    fn begin_last(&mut self, call: &Call<'_>, own: &Own<'_>) -> Option<u64> {
        let reach = Reach { rank: self.part.rank, own, peers: &self.peers };
        if self.member.is_met(call) { self.member.begin(call, false, &reach) } else { None }
    }

    /// What is done once in many calls.
    #[cold]
    fn look_around(&mut self) {
        self.look_for_daemon();
        self.say_where();
    }

    /// Polls a call for as long as there is a processor for it; whether it is over. Reads no clock.
    #[inline]
    fn spin(&mut self, sequence: u64, own: &Own<'_>) -> bool {
        let reach = Reach { rank: self.part.rank, own, peers: &self.peers };
        for _ in 0..self.pace.polls() {
            match self.member.poll(sequence, &reach) {
                Poll::Done => return true,
                Poll::Pending => Pace::relax(),
                // Needs more than polling.
                _ => return false,
            }
        }
        false
    }

    /// Polls a call once, mapping what it needs. `brief`: with little work.
    fn look(&mut self, sequence: u64, own: &Own<'_>, brief: bool) -> Poll {
        loop {
            let reach = Reach { rank: self.part.rank, own, peers: &self.peers };
            let member = &mut self.member;
            let poll =
                if brief { member.poll_briefly(sequence, &reach) } else { member.poll(sequence, &reach) };
            match poll {
                Poll::Unmapped { rank, region } => {
                    if !self.peers.map(&self.part.client, self.part.number, rank, region) {
                        let reach = Reach { rank: self.part.rank, own, peers: &self.peers };
                        if !self.member.leave_lane(sequence, &reach) {
                            self.peers.ask_again_later();
                        }
                        return self.poll_without(sequence, own);
                    }
                }
                Poll::Stale { rank } => self.peers.forget(rank),
                Poll::Mismatch { sequence, .. } => {
                    if !self.disputed {
                        self.disputed = true;
                        self.inspect(sequence, Duration::ZERO);
                    }
                    return Poll::Pending;
                }
                other => return other,
            }
        }
    }

    /// Others' memory that is needed cannot be had now. Whoever has left may have seen the call through before.
    #[cold]
    fn poll_without(&mut self, sequence: u64, own: &Own<'_>) -> Poll {
        let Some(verdict) = self.member.cell().verdict() else { return Poll::Pending };
        let reach = Reach { rank: self.part.rank, own, peers: &self.peers };
        match self.member.poll(sequence, &reach) {
            Poll::Done => Poll::Done,
            _ => Poll::Failed(verdict),
        }
    }

    /// Keeps a call that is not over.
    pub(crate) fn keep(&mut self, sequence: u64, large: bool, kept: Kept) {
        self.peers.ask_again();
        if self.outstanding == 0 {
            self.oldest = sequence;
        }
        if let Some(slot) = self.slots.get_mut((sequence % SLOTS) as usize) {
            *slot = Slot { sequence, large, kept, attention: None };
            self.outstanding = self.outstanding.saturating_add(1);
        }
    }

    fn slot(&mut self, sequence: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((sequence % SLOTS) as usize)?;
        (slot.sequence == sequence).then_some(slot)
    }

    /// Forgets a call that is over.
    fn settle(&mut self, sequence: u64) {
        if let Some(slot) = self.slot(sequence) {
            *slot = Slot::default();
            self.outstanding = self.outstanding.saturating_sub(1);
        }
    }

    /// Whether the daemon's help was asked for with this call.
    pub(crate) fn wants_help(&mut self, sequence: u64) -> bool {
        self.slot(sequence).is_some_and(|slot| slot.large)
    }

    /// Does what can be done of every call under way but one, so that others need not wait for this rank.
    pub(crate) fn progress(&mut self, but: u64) {
        if self.outstanding == 0 {
            return;
        }
        let mut oldest = None;
        for sequence in self.oldest..=self.member.called() {
            let Some(slot) = self.slot(sequence) else { continue };
            if sequence == but {
                oldest.get_or_insert(sequence);
                continue;
            }
            let kept = core::mem::take(&mut slot.kept);
            if self.look(sequence, &own_of(&kept), false) == Poll::Done {
                self.settle(sequence);
            } else if let Some(slot) = self.slot(sequence) {
                slot.kept = kept;
                oldest.get_or_insert(sequence);
            }
        }
        self.oldest = oldest.unwrap_or_else(|| self.member.called());
    }

    /// Does what can be done of every call under way.
    #[inline]
    pub(crate) fn progress_all(&mut self) {
        if self.outstanding > 0 {
            self.progress(NEVER);
        }
    }

    /// Whether a call is over, well or not. Looks once, and does little: its caller has something else to do, and the daemon
    /// was asked to work on it.
    pub(crate) fn test(&mut self, sequence: u64) -> bool {
        let Some(slot) = self.slot(sequence) else { return true };
        let kept = core::mem::take(&mut slot.kept);
        let poll = self.look(sequence, &own_of(&kept), true);
        if poll == Poll::Done {
            self.settle(sequence);
        } else if let Some(slot) = self.slot(sequence) {
            slot.kept = kept;
        }
        matches!(poll, Poll::Done | Poll::Failed(_))
    }
}

/// A checked call as the cell takes it; `counts` in one list.
#[inline(always)]
pub(crate) fn call_of<'a>(call: &queue::Call<'_>, counts: &'a [u64]) -> Call<'a> {
    let submission = &call.submission;
    let place = |at: ringway_abi::descriptor::BufferHandle| Place { region: at.region, offset: at.offset };
    Call {
        operation: submission.operation,
        datatype: submission.datatype,
        reduction: submission.reduction,
        scale: call.scalar,
        root: if submission.operation.has_root() { submission.rank } else { 0 },
        count: submission.count,
        counts,
        input: submission.input.map(place),
        output: submission.output.map(place),
        staging: None,
    }
}
