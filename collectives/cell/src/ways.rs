//! Which way of writing others' outputs costs less, learnt from what calls took.
//!
//! A worker writes the outputs of ranks that work on other processors, whose caches hold them. Through its own caches it
//! has to fetch each line from there first; past the caches it does not, but the owner then reads its result from memory.
//! Which of the two is faster depends on sizes and, much more, on how far the processors are apart: for two ranks and
//! 1 MiB, 29 us through the caches and 42 past them where the processors have a cache in common, 335 us and 61 where they
//! have not. Nothing tells a program where it runs, and on a virtual machine that changes within seconds. So a worker
//! tries: now and then, and ever more rarely while that brings nothing, some calls in a row go the other way, as the
//! first ones still find the lines where the old way left them; the way whose fastest call cost less is used from then
//! on. When calls become much slower than they were, it is tried again at once.
//! A rank that stages its memory learns the same of its segments, each of which is as a call here, and one that waits for nobody
//! whether to ask ahead for the lines that it writes ([`crate::worker`]).
//!
//! What is computed does not depend on it.

use ringway_types::Operation;

use crate::clock::Clock;

/// Calls before the way in use is doubted for the first time, and again after it was changed.
const CALLS_FIRST: u32 = 16;
/// The most calls between two doubts.
const CALLS_MOST: u32 = 1024;
/// Calls that are timed of each way.
const TIMED: u32 = 3;
/// Calls the other way before it is timed.
const SETTLING: u32 = 2;
/// Between doubts one call out of so many is timed.
const WATCHED_EVERY: u32 = 8;
/// A way is left for one that costs less than this share of it.
const WORTH: f64 = 0.94;
/// Calls are much slower than they were when they cost so many times as much ...
const SLOWER: f64 = 1.5;
/// ... so many times in a row that were timed.
const SLOWER_TIMES: u32 = 3;
/// Magnitudes that have places of their own: from the least calls that matter, 2^15 bytes, to more than caches hold.
const MAGNITUDES: usize = 16;
/// Places for kinds of calls: one for each operation and magnitude.
const PLACES: usize = 16 * MAGNITUDES;

/// The calls that are alike: an operation, and the bytes it touches to the next lower power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    operation: Operation,
    magnitude: u32,
}

impl Kind {
    fn of(operation: Operation, bytes: u64) -> Self {
        Self { operation, magnitude: bytes.checked_ilog2().unwrap_or_default() }
    }

    const fn place(self) -> usize {
        (self.operation.code() as usize * MAGNITUDES + self.magnitude as usize % MAGNITUDES) % PLACES
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The way in use is used.
    Using,
    /// And timed, to be compared with.
    Weighing,
    /// The other way is.
    Trying,
}

/// What is known of one kind of calls.
#[derive(Debug, Clone, Copy)]
struct Trial {
    kind: Kind,
    /// The way in use: past the caches.
    past: bool,
    phase: Phase,
    /// Calls until this phase ends.
    left: u32,
    /// Calls of the phase of use.
    interval: u32,
    /// What the way in use cost when it was last weighed, in nanoseconds for each byte of memory read and written.
    cost: f64,
    /// The least cost in this phase.
    least: f64,
    /// How many timed calls in a row were much slower.
    slower: u32,
}

impl Trial {
    const fn new(kind: Kind, past: bool) -> Self {
        Self {
            kind,
            past,
            phase: Phase::Using,
            left: CALLS_FIRST,
            interval: CALLS_FIRST,
            cost: f64::INFINITY,
            least: f64::INFINITY,
            slower: 0,
        }
    }

    /// Whether the next call's outputs are written past the caches.
    fn goes_past(&self) -> bool {
        self.past != (self.phase == Phase::Trying)
    }

    fn is_timed(&self) -> bool {
        match self.phase {
            Phase::Using => self.left.is_multiple_of(WATCHED_EVERY),
            Phase::Weighing => true,
            Phase::Trying => self.left <= TIMED,
        }
    }

    /// After a call, and what it cost if it was timed.
    fn learn(&mut self, cost: Option<f64>) {
        if let Some(cost) = cost {
            self.least = self.least.min(cost);
            self.slower = if cost > SLOWER * self.cost { self.slower + 1 } else { 0 };
        }
        self.left = self.left.saturating_sub(1);
        match self.phase {
            Phase::Using if self.slower >= SLOWER_TIMES => {
                self.interval = CALLS_FIRST;
                self.enter(Phase::Weighing, TIMED);
            }
            _ if self.left > 0 => {}
            Phase::Using => self.enter(Phase::Weighing, TIMED),
            Phase::Weighing => {
                self.cost = self.least;
                self.enter(Phase::Trying, SETTLING + TIMED);
            }
            Phase::Trying => {
                if self.least < WORTH * self.cost {
                    self.past = !self.past;
                    self.cost = self.least;
                    self.interval = CALLS_FIRST;
                } else {
                    self.interval = (2 * self.interval).min(CALLS_MOST);
                }
                self.enter(Phase::Using, self.interval);
            }
        }
    }

    fn enter(&mut self, phase: Phase, calls: u32) {
        (self.phase, self.left) = (phase, calls);
        (self.least, self.slower) = (f64::INFINITY, 0);
    }
}

/// The call at hand.
#[derive(Debug, Clone, Copy)]
struct Current {
    sequence: u64,
    /// Where its trial is.
    place: usize,
    nanoseconds: u64,
    bytes: u64,
}

/// What one worker knows.
#[derive(Debug)]
pub(crate) struct Ways {
    clock: Clock,
    trials: Box<[Option<Trial>]>,
    current: Option<Current>,
}

impl Ways {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, trials: vec![None; PLACES].into_boxed_slice(), current: None }
    }

    /// Whether to write past the caches in a call that reads and writes so many `bytes` in all. `guess` is the answer for
    /// kinds of calls of which nothing is known. A call that is worked on several times always gets the same answer.
    pub(crate) fn go_past(&mut self, sequence: u64, operation: Operation, bytes: u64, guess: bool) -> bool {
        let kind = Kind::of(operation, bytes);
        let place = kind.place();
        if self.current.is_none_or(|current| current.sequence != sequence) {
            self.settle();
            self.current = Some(Current { sequence, place, nanoseconds: 0, bytes: 0 });
        }
        let Some(slot) = self.trials.get_mut(place) else { return guess };
        let known = slot.filter(|trial| trial.kind == kind);
        slot.insert(known.unwrap_or_else(|| Trial::new(kind, guess))).goes_past()
    }

    /// The number of the call at hand.
    pub(crate) fn number(&self) -> Option<u64> {
        self.current.map(|current| current.sequence)
    }

    /// The call at hand is over: a later one has begun.
    fn settle(&mut self) {
        let Some(current) = self.current.take() else { return };
        let Some(Some(trial)) = self.trials.get_mut(current.place) else { return };
        if current.bytes > 0 {
            trial.learn(trial.is_timed().then(|| current.nanoseconds as f64 / current.bytes as f64));
        }
    }

    /// When work on the call at hand begins; `None` when it is not timed.
    pub(crate) fn begin(&self) -> Option<u64> {
        let trial = self.trials.get(self.current?.place)?.as_ref()?;
        trial.is_timed().then(self.clock)
    }

    /// After work that began at that time and read and wrote so many bytes.
    pub(crate) fn end(&mut self, begun: Option<u64>, bytes: u64) {
        let now = begun.map(|_| (self.clock)());
        if let Some(current) = &mut self.current {
            current.bytes += bytes;
            if let (Some(begun), Some(now)) = (begun, now) {
                current.nanoseconds += now.saturating_sub(begun);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 1 << 20;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    fn clock() -> u64 {
        NOW.get()
    }

    /// Makes calls; how many of them went past the caches. A byte costs so many nanoseconds through them and past them.
    fn call(ways: &mut Ways, first: u64, calls: u64, (through, past): (u64, u64)) -> u64 {
        let mut went_past = 0;
        for sequence in first..first + calls {
            let goes_past = ways.go_past(sequence, Operation::Allreduce, BYTES, false);
            went_past += u64::from(goes_past);
            let begun = ways.begin();
            NOW.set(NOW.get() + BYTES / 2 * if goes_past { past } else { through });
            ways.end(begun, BYTES / 2);
        }
        went_past
    }

    #[test]
    fn the_cheaper_way_is_found_and_kept() {
        let mut ways = Ways::new(clock);
        call(&mut ways, 1, 25, (5, 1));
        assert!(call(&mut ways, 26, 10_000, (5, 1)) > 9_500);
        let mut ways = Ways::new(clock);
        assert!(call(&mut ways, 1, 10_000, (1, 5)) < 200);
    }

    #[test]
    fn what_has_become_slow_is_doubted_at_once() {
        let mut ways = Ways::new(clock);
        call(&mut ways, 1, 5_000, (1, 2));
        call(&mut ways, 5_001, 60, (10, 2));
        assert_eq!(call(&mut ways, 5_061, 10, (10, 2)), 10);
    }

    #[test]
    fn what_has_become_better_unseen_is_found_in_time() {
        let mut ways = Ways::new(clock);
        call(&mut ways, 1, 5_000, (4, 3));
        call(&mut ways, 5_001, u64::from(CALLS_MOST) + 20, (1, 3));
        assert_eq!(call(&mut ways, 10_000, 10, (1, 3)), 0);
    }

    #[test]
    fn a_call_keeps_its_way() {
        let mut ways = Ways::new(clock);
        for sequence in 1..200 {
            let first = ways.go_past(sequence, Operation::Broadcast, BYTES, false);
            for _ in 0..3 {
                let begun = ways.begin();
                NOW.set(NOW.get() + if first { 1 } else { 5 });
                ways.end(begun, 1);
                assert_eq!(ways.go_past(sequence, Operation::Broadcast, BYTES, false), first);
            }
        }
    }

    #[test]
    fn calls_to_which_a_worker_came_too_late_teach_nothing() {
        let mut ways = Ways::new(clock);
        for sequence in 1..1_000 {
            assert!(!ways.go_past(sequence, Operation::Allreduce, BYTES, false));
            let begun = ways.begin();
            ways.end(begun, 0);
        }
    }

    proptest! {
        /// Whatever calls cost, the other way gets few of them once the costs stay as they are.
        #[test]
        fn doubting_stays_cheap(noise in prop::collection::vec((1_u64..20, 1_u64..20), 0..400), dear in 2_u64..20) {
            let mut ways = Ways::new(clock);
            let mut next = 1;
            for costs in noise {
                call(&mut ways, next, 3, costs);
                next += 3;
            }
            call(&mut ways, next, 3_000, (1, dear));
            let went_past = call(&mut ways, next + 3_000, 10_000, (1, dear));
            prop_assert!(went_past < 200, "{went_past}");
        }
    }
}
