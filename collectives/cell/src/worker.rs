//! Who works on jobs, and what it has learnt about writing memory that others read or have read.

use ringway_mem::calls;
use ringway_reduce::Stores;

use crate::{
    Clock, Courtesy,
    cell::Cell,
    claim::COUNT_BITS,
    job::Job,
    shape::Shape,
    ways::Ways,
    work::{Views, Worked},
};

/// Calls whose time is looked at together where each takes less than looking at the clock does.
pub(crate) const CALLS_WEIGHED: u64 = 64;
/// Calls with long payloads that are weighed together: with as many as there are places for those, their root has waited for
/// readers.
const PUTS_WEIGHED: u64 = crate::POOL_SLOTS;

/// Who works.
#[derive(Debug)]
pub(crate) struct Worker {
    /// `None` for the daemon.
    pub(crate) rank: Option<u32>,
    /// Every rank can have a processor of its own, with caches of its own.
    roomy: bool,
    /// What it does by the time that things take; without a clock it goes by rules.
    timing: Option<Timing>,
}

#[derive(Debug)]
struct Timing {
    /// What it has learnt about writing others' outputs.
    ways: Ways,
    /// And about writing its own staging memory, which others read: of one segment after the other.
    staging: Ways,
    /// Whether asking for lines pays for one who waits for nobody.
    asking: Batches,
    /// Whether long payloads are put past the caches.
    putting: Batches,
    courtesy: Courtesy,
}

/// What is learnt of calls by the time from one batch of them to the next: what they cost this rank says little of what others wait
/// for.
#[derive(Debug)]
struct Batches {
    ways: Ways,
    /// When the batch at hand began, if it is timed.
    begun: Option<u64>,
    /// What was done in it.
    weight: u64,
}

impl Batches {
    fn new(clock: Clock) -> Self {
        Self { ways: Ways::new(clock), begun: None, weight: 0 }
    }

    /// As [`Ways::go_past`], for a call of the batch of this number; each weighs so much. From a batch that no other follows nothing is
    /// learnt.
    fn go_past(&mut self, (batch, weight): (u64, u64), (shape, bytes): (&Shape, u64), guess: bool) -> bool {
        let last = self.ways.number();
        let is_new = last != Some(batch);
        if is_new {
            let weight = core::mem::take(&mut self.weight);
            let follows = last.is_some_and(|last| last + 1 == batch);
            self.ways.end(self.begun.take(), if follows { weight } else { 0 });
        }
        self.weight += weight;
        let past = self.ways.go_past(batch, shape.operation, bytes, guess);
        if is_new {
            self.begun = self.ways.begin();
        }
        past
    }
}

impl Worker {
    /// For a cell whose ranks have not said yet where they may run.
    pub(crate) const fn new(rank: Option<u32>) -> Self {
        Self { rank, roomy: false, timing: None }
    }

    /// So many of this many ranks can run at a time.
    pub(crate) const fn set_processors(&mut self, processors: u32, ranks: u32) {
        self.roomy = processors >= ranks;
    }

    /// Whether every rank can have a processor of its own.
    pub(crate) const fn is_roomy(&self) -> bool {
        self.roomy
    }

    /// Lets it learn from what calls take.
    pub(crate) fn learn_by(&mut self, clock: Clock) {
        let [ways, staging] = core::array::from_fn(|_| Ways::new(clock));
        let [asking, putting] = core::array::from_fn(|_| Batches::new(clock));
        self.timing = Some(Timing { ways, staging, asking, putting, courtesy: Courtesy::new(clock) });
    }

    /// Gives the processor to whoever else wants it.
    pub(crate) fn hand_over(&mut self) {
        match &mut self.timing {
            Some(timing) => _ = timing.courtesy.hand_over(),
            None => calls::yield_now(),
        }
    }

    /// As [`Job::work`], with the stores that suit the call.
    pub(crate) fn work(
        &mut self,
        (cell, job): (&Cell, &Job),
        views: &mut Views<'_>,
        lanes: impl Iterator<Item = u32>,
        limits: (u64, u64),
    ) -> Worked {
        let Some(bytes) = views.bytes_to_others(job) else { return job.work(cell, views, lanes, limits) };
        let (past, weighed) = self.goes_past(job.sequence, &job.shape, bytes);
        views.streams_to_others = past;
        let worked = job.work(cell, views, lanes, limits);
        self.learn(weighed, worked.bytes);
        worked
    }

    /// Whether to write others' outputs past the caches in a call that touches so many bytes in all, by what was learnt so
    /// far. The work begins now.
    pub(crate) fn goes_past(&mut self, sequence: u64, shape: &Shape, bytes: u64) -> (bool, Weighed) {
        let guess = self.roomy && ringway_reduce::streaming_to_others_pays(bytes, shape.ranks);
        let Some(Timing { ways, .. }) = &mut self.timing else { return (guess, Weighed { begun: None }) };
        let past = ways.go_past(sequence, shape.operation, bytes, guess);
        (past, Weighed { begun: ways.begin() })
    }

    /// Whether the next calls ask for the lines that they will write, by what calls like them took so far; for a rank that makes
    /// [`CALLS_WEIGHED`] of them between two of these.
    #[cold]
    pub(crate) fn asks_ahead(&mut self, sequence: u64, shape: &Shape, bytes: usize) -> bool {
        let Some(Timing { asking, .. }) = &mut self.timing else { return false };
        asking.go_past((sequence / CALLS_WEIGHED, CALLS_WEIGHED), (shape, bytes as u64), false)
    }

    /// Whether a payload of so many bytes is put past the caches, or half of it, by what calls like it took so far.
    pub(crate) fn puts_past(&mut self, sequence: u64, shape: &Shape, bytes: u64) -> bool {
        let Some(Timing { putting, .. }) = &mut self.timing else { return true };
        putting.go_past((sequence / PUTS_WEIGHED, bytes), (shape, bytes), true)
    }

    /// After that work, which read and wrote so many bytes.
    pub(crate) fn learn(&mut self, weighed: Weighed, bytes: u64) {
        if let Some(Timing { ways, .. }) = &mut self.timing {
            ways.end(weighed.begun, bytes);
        }
    }

    /// Copies so many bytes of a segment to the rank's staging memory with the stores that cost least so far. Through the caches
    /// each line has to be taken back from who read it last: what four ranks on two processors give to a reduction of 64 MiB took
    /// 17 ms where these were 60 ns apart and 38 where they were 300, past the caches 17 and 16.
    pub(crate) fn stage(&mut self, job: &Job, (segment, bytes): (u64, u64), copy: impl FnOnce(Stores)) {
        let staging = match &mut self.timing {
            Some(Timing { staging, .. }) if ringway_reduce::streaming_to_others_matters(bytes) => staging,
            _ => return copy(Stores::Cached),
        };
        let number = job.sequence << COUNT_BITS | segment;
        let past = staging.go_past(number, job.shape.operation, bytes, false);
        let begun = staging.begin();
        copy(if past { Stores::Streaming } else { Stores::Cached });
        // Who reads it then does so from memory, which took up to half as long as the copying: counted as if it were copied for
        // fewer bytes.
        staging.end(begun, if past { bytes * 2 / 3 } else { bytes });
    }
}

/// Work from which is learnt what it costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighed {
    /// `None` when it is not timed.
    begun: Option<u64>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::cell::Cell as Value;

    use super::*;
    use crate::Call;

    thread_local! {
        static NOW: Value<u64> = const { Value::new(0) };
    }

    /// Stages calls of many segments, where a byte costs so much through the caches and past them; how many of the last hundred
    /// segments went past them.
    fn staged_past((through, past): (u64, u64)) -> usize {
        let mut worker = Worker::new(Some(0));
        worker.learn_by(|| NOW.get());
        let mut job = Job::new(2);
        let call = Call { count: 40 << 20, ..Call::BARRIER };
        job.shape = Shape { block: call.count, ..Shape::of_call(&call, 2) };
        (job.segment, job.segments) = (1 << 20, 40);
        let mut went = Vec::new();
        for sequence in 1..=10 {
            job.sequence = sequence;
            for segment in 0..job.segments {
                worker.stage(&job, (segment, 1 << 20), |stores| {
                    let is_past = stores == Stores::Streaming;
                    NOW.set(NOW.get() + (1 << 20) * if is_past { past } else { through });
                    went.push(is_past);
                });
            }
        }
        went.iter().rev().take(100).filter(|past| **past).count()
    }

    /// How many of the last hundred batches of calls asked ahead, where a call takes so long that does not, and that does.
    fn asked_ahead((without, with): (u64, u64)) -> usize {
        let mut worker = Worker::new(Some(0));
        worker.learn_by(|| NOW.get());
        let shape = Job::new(2).shape;
        let mut asked = Vec::new();
        for batch in 1..=300 {
            asked.push(worker.asks_ahead(batch * CALLS_WEIGHED, &shape, 4));
            NOW.set(NOW.get() + CALLS_WEIGHED * if asked.last() == Some(&true) { with } else { without });
        }
        asked.iter().rev().take(100).filter(|asks| **asks).count()
    }

    #[test]
    fn lines_are_asked_for_ahead_where_calls_take_less_time_by_it() {
        assert!(asked_ahead((100, 65)) > 90);
        for costs in [(100, 100), (100, 95), (70, 100)] {
            assert!(asked_ahead(costs) < 10, "{costs:?}");
        }
        assert!(!Worker::new(Some(0)).asks_ahead(CALLS_WEIGHED, &Job::new(2).shape, 4), "there is no clock");
    }

    /// How many of the last thousand payloads were put past the caches, where a call takes so long through them and past
    /// them, and is followed by so many that put none.
    fn put_past((through, past): (u64, u64), others: u64) -> usize {
        let mut worker = Worker::new(Some(0));
        worker.learn_by(|| NOW.get());
        let shape = Job::new(4).shape;
        let mut went = Vec::new();
        for call in 0..300 * PUTS_WEIGHED {
            let is_past = worker.puts_past(call * (1 + others), &shape, 32 << 10);
            NOW.set(NOW.get() + if is_past { past } else { through });
            went.push(is_past);
        }
        went.iter().rev().take(1000).filter(|past| **past).count()
    }

    #[test]
    fn payloads_are_put_through_the_caches_where_calls_take_less_time_by_it() {
        for others in [0, 2] {
            assert!(put_past((5_000, 7_000), others) < 100);
            for costs in [(5_000, 5_000), (4_900, 5_000), (7_000, 5_000)] {
                assert!(put_past(costs, others) > 900, "{costs:?}");
            }
        }
        assert_eq!(
            put_past((5_000, 7_000), 2 * PUTS_WEIGHED),
            1000,
            "there are no calls in a row to learn from"
        );
        assert!(Worker::new(Some(0)).puts_past(1, &Job::new(4).shape, 32 << 10), "there is no clock");
    }

    #[test]
    fn segments_are_staged_past_the_caches_where_that_is_worth_more_than_it_costs_readers() {
        // Elsewhere there are no such stores.
        assert_eq!(staged_past((3, 1)) > 90, cfg!(target_arch = "x86_64"));
        for costs in [(1, 1), (4, 3), (1, 3)] {
            assert!(staged_past(costs) < 10, "{costs:?}");
        }
    }
}
