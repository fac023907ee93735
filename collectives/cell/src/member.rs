//! One rank's part in a cell.

mod consuming;
mod handing_over;
mod putting;
mod room;
mod waiting;

use core::time::Duration;

use ringway_mem::Window;

use crate::{
    Call, Clock, POOL_SLOTS, Place, ProcessorSet, Regions, SLOTS, budget,
    cell::{Cell, Verdict},
    job::Job,
    lane_order::LaneOrder,
    large::Large,
    layout::RankWord,
    record::{Agreement, History, Part},
    shape::{Need, Shape},
    small::Small,
    tagged::Distance,
    worker::Worker,
};

pub use handing_over::{Refusal, StandIn};
pub use waiting::Awaited;

/// What [`Member::poll`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Poll {
    /// The call is over for this rank: its output is there, its buffers are its own again.
    Done,
    /// Others have to come, or to finish what they do. Wait, then poll again.
    Pending,
    /// A region that a rank named is not known. Map it, then poll again.
    Unmapped {
        /// Whose region it is.
        rank: u32,
        /// The daemon's handle for it.
        region: u64,
    },
    /// A rank has released regions since it was last polled: forget those of it that are mapped, then poll again.
    Stale {
        /// Whose regions.
        rank: u32,
    },
    /// Ranks contradict each other: what exactly, [`Cell::contradiction`] tells. It stays so.
    Mismatch {
        /// The other rank, or one of the two.
        rank: u32,
        /// The call in question; may be an earlier one.
        sequence: u64,
    },
    /// The communicator is at its end.
    Failed(Verdict),
}

impl Poll {
    /// What was complete before the verdict may not have been when it was looked at, before that: it is looked at again.
    #[inline]
    pub(crate) fn or_complete(self, again: impl FnOnce() -> Self) -> Self {
        if matches!(self, Self::Failed(_)) { again() } else { self }
    }
}

/// One call under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outstanding {
    pub(crate) sequence: u64,
    pub(crate) agreement: Agreement,
    /// With all calls before it.
    pub(crate) history: History,
    pub(crate) shape: Shape,
    pub(crate) small: bool,
    /// Where this rank's own memory is.
    pub(crate) part: Part,
    /// The ranks below this one have published the same call.
    pub(crate) seen: u32,
    /// Bytes of a payload in the pool that were copied before all of it was there.
    pub(crate) taken: usize,
    pub(crate) over: bool,
    pub(crate) large: Large,
}

/// One rank's part in a cell: publishes its calls, and does of their work what it can.
#[derive(Debug)]
pub struct Member {
    pub(crate) cell: Cell,
    pub(crate) rank: u32,
    called: u64,
    /// What it has called so far.
    history: History,
    consumed: u64,
    /// The last call for which a slot is known to be free.
    free_until: u64,
    /// The same of slots in the pool.
    pool_free_until: u64,
    /// With what all ranks must be through before there is room for a call for which there was none.
    room_after: u64,
    /// A call that those for whom this rank waits have published, when it was last looked.
    pub(crate) ahead: u64,
    /// The first call at which it is looked again.
    pub(crate) look_ahead_at: u64,
    /// It asks for the lines of short calls in which it waits for nobody.
    pub(crate) asks_ahead: bool,
    /// Somebody else acts for this rank.
    away: bool,
    /// A poll does one block of work at most.
    pub(crate) is_brief: bool,
    pub(crate) epoch: u16,
    /// The region epochs of the others, as last seen.
    pub(crate) epochs: Vec<u16>,
    pub(crate) calls: Box<[Outstanding]>,
    /// A contradiction found in a call that was over already.
    dispute: Option<(u32, u64)>,
    pub(crate) job: Job,
    pub(crate) worker: Worker,
    /// How far those are who wait for its records.
    pub(crate) distance: Distance,
    pub(crate) order: LaneOrder,
    /// The NUMA node that it said it runs on.
    node: Option<u32>,
    /// The processor on which it said it waits, plus one; zero before.
    processor: u64,
}

impl Member {
    /// This rank's part, from the first call on. `rank` is one of the cell's.
    #[must_use]
    pub fn new(cell: Cell, rank: u32) -> Self {
        cell.prepare_to_sleep();
        let ranks = cell.ranks();
        let job = Job::new(ranks);
        let nothing = Outstanding {
            sequence: 0,
            agreement: Agreement::default(),
            history: History::default(),
            shape: job.shape,
            small: true,
            part: Part::default(),
            seen: 0,
            taken: 0,
            over: true,
            large: Large::default(),
        };
        Self {
            rank: rank.min(ranks.saturating_sub(1)),
            called: 0,
            history: History::default(),
            consumed: 0,
            free_until: SLOTS,
            pool_free_until: POOL_SLOTS,
            room_after: 0,
            ahead: 0,
            look_ahead_at: 0,
            asks_ahead: false,
            away: false,
            is_brief: false,
            epoch: 0,
            epochs: vec![0; ranks as usize],
            calls: vec![nothing; SLOTS as usize].into_boxed_slice(),
            dispute: None,
            job,
            worker: Worker::new(Some(rank)),
            distance: Distance::default(),
            order: LaneOrder::new(Some(rank.min(ranks.saturating_sub(1))), ranks),
            node: None,
            processor: 0,
            cell,
        }
    }

    /// Lets it learn by this clock how to write what others read: which way costs less depends on the machine.
    #[must_use]
    pub fn learning_by(mut self, clock: Clock) -> Self {
        self.worker.learn_by(clock);
        self.distance = Distance::by(clock);
        self
    }

    /// The cell.
    #[must_use]
    pub const fn cell(&self) -> &Cell {
        &self.cell
    }

    /// Says on which NUMA node this rank runs: others take over blocks of near ranks first. It may say so again at any time;
    /// others look now and then.
    pub fn set_node(&mut self, node: u32) {
        if self.node.replace(node) != Some(node) {
            self.cell.words.store(self.cell.layout.rank(self.rank, RankWord::Node), u64::from(node) + 1);
        }
    }

    /// Says on which processors this rank may run. It may say so again at any time.
    pub fn say_processors(&mut self, processors: &ProcessorSet) {
        self.cell.say_processors(self.rank, processors);
    }

    /// How many ranks can run at a time, by where those who have said so may run and this control group's quota (see
    /// [`crate::budget`]); and whether all have.
    pub fn learn_processors(&mut self, quota: Option<u32>) -> (u32, bool) {
        let (together, all_said) = self.cell.processors();
        let processors = budget(&together, quota);
        self.worker.set_processors(processors, self.cell.ranks());
        (processors, all_said)
    }

    /// How many calls this rank has published.
    #[must_use]
    pub const fn called(&self) -> u64 {
        self.called
    }

    /// Whether a call is large: done in turns by whoever waits, and worth the daemon's help.
    #[must_use]
    pub fn is_large(call: &Call<'_>, ranks: u32) -> bool {
        !Shape::of_call(call, ranks).is_small()
    }

    /// Says that regions of this rank were released: peers forget what they have mapped of them.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch as u16;
    }

    #[inline(always)]
    fn index(sequence: u64) -> usize {
        (sequence % SLOTS) as usize
    }

    /// Publishes a call; its number, or `None` when no slot is free now. With `help` the daemon is asked to work on it.
    /// `regions` must know this rank's own memory.
    #[inline]
    pub fn begin(&mut self, call: &Call<'_>, help: bool, regions: &impl Regions) -> Option<u64> {
        let shape = Shape::of_call(call, self.cell.ranks());
        if !self.room_for(shape.is_pooled(), shape.contributes(self.rank)) {
            return None;
        }
        let sequence = self.called + 1;
        let agreement = Agreement::of(call);
        let history = self.history_and(agreement);
        let small = shape.is_small();
        let scale = call.scale.unwrap_or(0);
        let part = if small {
            let part = Part::of_small([call.input, call.output], scale);
            let (input, output) = self.windows(&shape, &part, regions);
            let puts = input.filter(|_| shape.contributes(self.rank));
            self.put_and_publish((sequence, history), agreement, &shape, (scale, puts));
            if shape.keeps(self.rank) {
                let kept = self.small(sequence, &shape).keep_own(input, output);
                debug_assert!(kept.is_some(), "the caller's memory is not there");
            }
            part
        } else {
            let part = self.large_part(call, scale);
            if help {
                self.cell.words.store(self.cell.layout.rank(self.rank, RankWord::Wanted), sequence);
            }
            self.publish_large((sequence, history), agreement, &part, call.counts);
            part
        };
        self.keep(sequence, (agreement, history), shape, part);
        self.cell.prefetch_for_writing(self.rank, sequence + 1, 0);
        Some(sequence)
    }

    #[inline]
    fn windows<'w>(
        &self,
        shape: &Shape,
        part: &Part,
        regions: &'w impl Regions,
    ) -> (Option<Window<'w>>, Option<Window<'w>>) {
        let (reads, writes) = shape.blocks(self.rank);
        let window = |place: Option<Place>, blocks: u64| {
            let place = place.filter(|_| blocks > 0)?;
            regions.window(self.rank, place, blocks.saturating_mul(shape.block))
        };
        (window(part.input, reads), window(part.output, writes))
    }

    /// The next call's number.
    #[inline(always)]
    pub(crate) const fn next(&self) -> u64 {
        self.called + 1
    }

    /// Remembers a call that may not be over soon.
    #[inline]
    pub(crate) fn keep(
        &mut self,
        sequence: u64,
        (agreement, history): (Agreement, History),
        shape: Shape,
        part: Part,
    ) {
        if let Some(slot) = self.calls.get_mut(Self::index(sequence)) {
            // Field by field: the whole would be put together elsewhere first, and then copied.
            slot.sequence = sequence;
            slot.agreement = agreement;
            slot.history = history;
            slot.shape = shape;
            slot.small = shape.is_small();
            slot.part = part;
            (slot.seen, slot.taken) = (0, 0);
            slot.over = false;
            if !slot.small {
                slot.large = Large::default();
            }
        }
    }

    /// A call that was not kept is over for this rank. It is remembered unless every record of it was looked at.
    #[inline(always)]
    pub(crate) fn finish_unkept(&mut self, sequence: u64, history: History, seen: u32) {
        if !self.consume_if_seen(sequence, seen)
            && let Some(slot) = self.calls.get_mut(Self::index(sequence))
        {
            (slot.sequence, slot.history, slot.over) = (sequence, history, true);
        }
    }

    /// What this rank has called so far, and then this.
    #[inline(always)]
    pub(crate) fn history_and(&self, agreement: Agreement) -> History {
        self.history.and(agreement)
    }

    /// What a rank says of its memory for a large call.
    fn large_part(&self, call: &Call<'_>, scale: u64) -> Part {
        let part = Part { input: call.input, output: call.output, scale, staged: false, epoch: self.epoch };
        match call.staging {
            Some(_) if [call.input, call.output].into_iter().flatten().any(Place::is_private) => {
                Part { input: call.staging, output: call.staging, staged: true, ..part }
            }
            _ => part,
        }
    }

    #[inline(always)]
    pub(crate) fn small<'c>(&'c self, sequence: u64, shape: &'c Shape) -> Small<'c> {
        Small { cell: &self.cell, sequence, shape, rank: self.rank }
    }

    /// Whether a call that is not published yet can be had although the communicator has failed: it failed because a rank
    /// left, that rank made this call before, and whoever is needed for it has published it. Large ones need everybody.
    #[must_use]
    pub fn is_met(&self, call: &Call<'_>) -> bool {
        let took_part = |rank| self.cell.has_left(rank) && self.cell.called(rank) > self.called;
        let shape = Shape::of_call(call, self.cell.ranks());
        let need = shape.need(self.rank);
        if !shape.is_small() || need == Need::Nobody {
            return false;
        }
        if !self.cell.verdict().is_some_and(|verdict| took_part(verdict.rank)) {
            return false;
        }
        let history = self.history_and(Agreement::of(call));
        look(&self.cell, (self.next(), history), &mut 0, self.rank, need) == Seen::All
    }

    /// Does of a call what can be done now; never blocks. `regions` must know this rank's own memory, until the call is
    /// over. A call that is over stays so, and one that was complete when the communicator failed is over.
    #[inline]
    pub fn poll(&mut self, sequence: u64, regions: &impl Regions) -> Poll {
        self.poll_once(sequence, regions).or_complete(|| self.poll_again(sequence, regions))
    }

    #[cold]
    #[inline(never)]
    fn poll_again(&mut self, sequence: u64, regions: &impl Regions) -> Poll {
        self.poll_once(sequence, regions)
    }

    #[inline]
    fn poll_once(&mut self, sequence: u64, regions: &impl Regions) -> Poll {
        let index = Self::index(sequence);
        let Some(call) = self.calls.get_mut(index) else { return Poll::Done };
        if call.over || call.sequence != sequence {
            return Poll::Done;
        }
        if !call.small {
            return self.poll_large(sequence, regions);
        }
        let seen = see(&self.cell, call, self.rank, call.shape.need(self.rank));
        let (shape, part, taken) = (call.shape, call.part, call.taken);
        let mut seen = seen;
        if shape.takes(self.rank) && (seen == Seen::All || seen == Seen::NotYet && shape.is_pooled()) {
            let (input, output) = self.windows(&shape, &part, regions);
            let small = self.small(sequence, &shape);
            let done = match seen {
                Seen::All if shape.is_pooled() => small.take_rest(taken, output).map(drop),
                Seen::All => small.take(input, output).map(|all| {
                    if !all {
                        seen = Seen::NotYet;
                    }
                }),
                _ => small.take_ahead(taken, output).map(|taken| self.keep_taken(sequence, taken)),
            };
            debug_assert!(done.is_some(), "the caller's memory is not there");
        }
        if seen != Seen::All {
            return self.wait_for(seen, sequence);
        }
        self.finish(sequence);
        Poll::Done
    }

    /// As [`Member::poll`], with one block of work at most: for a rank that does not wait, but looks. Whoever looks in a
    /// loop still gets the call done.
    pub fn poll_briefly(&mut self, sequence: u64, regions: &impl Regions) -> Poll {
        self.is_brief = true;
        let poll = self.poll(sequence, regions);
        self.is_brief = false;
        poll
    }

    /// The answer while ranks have not come.
    #[inline]
    pub(crate) fn wait_for(&mut self, seen: Seen, sequence: u64) -> Poll {
        if let Some(verdict) = self.cell.verdict() {
            return Poll::Failed(verdict);
        }
        if self.consumed + 1 < sequence {
            // What keeps the others may be an earlier call, which was over here before they made it.
            self.sweep();
        }
        match (seen, self.dispute) {
            (Seen::Other(rank), _) => {
                Poll::Mismatch { rank, sequence: self.first_difference(rank, sequence) }
            }
            (_, Some((rank, sequence))) => Poll::Mismatch { rank, sequence },
            _ => Poll::Pending,
        }
    }

    /// After a verdict: this rank works on nobody's memory any more. [`Member::poll`] leaves of itself; this is for a
    /// rank that does not poll.
    pub fn leave_work(&mut self) {
        self.cell.leave(self.rank);
    }

    /// After a verdict: no other rank whose process lives is at work on anybody's memory, nor will be. The daemon has
    /// left before it gave the verdict.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        crate::shared::full_fence();
        !self.cell.anyone_inside_but(self.rank)
    }

    /// Says that this rank is about to sleep until a call is over; poll once more after this. The value to sleep on.
    #[must_use]
    pub fn arm(&self, sequence: u64) -> u32 {
        let awaits = if self.needs_more_records(sequence) { sequence } else { 0 };
        self.cell.arm(self.rank, awaits)
    }

    /// Sleeps until something happens in the cell, at most for `timeout`.
    pub fn sleep(&self, expected: u32, timeout: Duration) {
        self.cell.sleep(self.rank, expected, timeout);
    }

    /// Says that this rank is awake.
    pub fn disarm(&self) {
        self.cell.disarm(self.rank);
    }
}

/// Who has published a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    All,
    NotYet,
    /// This rank has published another, or one before it.
    Other(u32),
}

/// Looks for the records of a call under way that are needed.
#[inline(always)]
pub(crate) fn see(cell: &Cell, call: &mut Outstanding, rank: u32, need: Need) -> Seen {
    look(cell, (call.sequence, call.history), &mut call.seen, rank, need)
}

/// Looks for the records that are needed. The ranks below `already` have published theirs, alike.
#[inline(always)]
pub(crate) fn look(
    cell: &Cell,
    (sequence, history): (u64, History),
    already: &mut u32,
    rank: u32,
    need: Need,
) -> Seen {
    let end = match need {
        Need::All => cell.ranks(),
        Need::Below(end) => end,
        Need::Nobody => return Seen::All,
        Need::One(one) => {
            return match cell.history(one, sequence) {
                None => Seen::NotYet,
                Some(theirs) if theirs == history => Seen::All,
                Some(_) => Seen::Other(one),
            };
        }
    };
    while *already < end {
        if *already != rank {
            match cell.history(*already, sequence) {
                None => return Seen::NotYet,
                Some(theirs) if theirs != history => return Seen::Other(*already),
                Some(_) => {}
            }
        }
        *already += 1;
    }
    Seen::All
}
