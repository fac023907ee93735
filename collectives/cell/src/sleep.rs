//! Sleeping without missing what others publish.
//!
//! A sleeper says so, looks once more, and blocks; a publisher publishes, then looks whether anybody sleeps. With a
//! full fence between the two steps on both sides they cannot both miss each other. A fence costs a publisher about as
//! much as the hop itself, so it has none: instead the sleeper, who has time, makes every processor that runs a thread
//! of a member execute one (`membarrier(2)`, `MEMBARRIER_CMD_GLOBAL_EXPEDITED`). Where the kernel refuses that, the
//! cell's sleepers word says that publishers must fence.

use core::time::Duration;

use ringway_mem::calls;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::{
    cell::Cell,
    layout::{FENCES, RankWord, SLEEPERS},
    shared::{full_fence, program_order},
};

impl Cell {
    /// Registers this process for the fences that sleepers ask for. Before the first record is published.
    pub(crate) fn prepare_to_sleep(&self) {
        if membarrier(MembarrierCommand::RegisterGlobalExpedited).is_err() {
            self.words.set(SLEEPERS, FENCES);
        }
    }

    /// After publishing anything that somebody may wait for.
    #[inline(always)]
    pub(crate) fn notify(&self) {
        self.notify_those(|_| true);
    }

    /// After publishing a record of a call, or that a rank is through with one: nothing to those who need the records of others. Of
    /// many ranks each would else be woken by each record of a call, and sleep again until the next.
    #[inline(always)]
    pub(crate) fn notify_of_record(&self) {
        self.notify_those(|rank| !self.needs_more_records(rank));
    }

    /// After publishing what these ranks may wait for, if they sleep. What that depends on is looked at after a fence: of several who
    /// publish what it takes, the last one finds that all of it is there.
    #[inline(always)]
    pub(crate) fn notify_those(&self, whom: impl Fn(u32) -> bool) {
        program_order();
        if self.words.load(SLEEPERS) != 0 {
            self.notify_sleepers(whom);
        }
    }

    #[cold]
    fn notify_sleepers(&self, whom: impl Fn(u32) -> bool) {
        full_fence();
        if self.words.load(SLEEPERS) & (FENCES - 1) != 0 {
            self.wake(whom);
        }
    }

    /// Wakes whoever sleeps in the cell, or is about to.
    pub(crate) fn wake_everybody(&self) {
        full_fence();
        self.wake(|_| true);
    }

    fn wake(&self, whom: impl Fn(u32) -> bool) {
        for rank in 0..self.ranks() {
            let (armed, bell) =
                (self.layout.rank(rank, RankWord::Armed), self.layout.rank(rank, RankWord::Bell));
            // One sleep is answered by one call of the kernel at most.
            if self.words.load(armed) == 1 && whom(rank) && self.words.replace(armed, 1, 2).is_ok() {
                self.words.add(bell, 1);
                self.words.wake(bell);
            }
        }
    }

    /// Whether a sleeper cannot go on before ranks publish records that are not there.
    fn needs_more_records(&self, sleeper: u32) -> bool {
        let sequence = self.words.load(self.layout.rank(sleeper, RankWord::Awaits));
        sequence > 0 && (0..self.ranks()).any(|rank| self.history(rank, sequence).is_none())
    }

    /// Says that a rank is about to sleep, and the call of which it needs every record, or 0; the value to sleep on.
    pub(crate) fn arm(&self, rank: u32, awaits: u64) -> u32 {
        let expected = self.words.load(self.layout.rank(rank, RankWord::Bell)) as u32;
        self.words.store(self.layout.rank(rank, RankWord::Awaits), awaits);
        self.words.store(self.layout.rank(rank, RankWord::Armed), 1);
        self.words.add(SLEEPERS, 1);
        full_fence();
        // Where this fails, `prepare_to_sleep` failed too and publishers fence; the time limit of a sleep is for a
        // kernel that takes back what it promised.
        calls::count();
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
        expected
    }

    pub(crate) fn sleep(&self, rank: u32, expected: u32, timeout: Duration) {
        self.words.sleep(self.layout.rank(rank, RankWord::Bell), expected, timeout);
    }

    /// Says that a rank is awake.
    pub(crate) fn disarm(&self, rank: u32) {
        self.words.store(self.layout.rank(rank, RankWord::Armed), 0);
        self.words.add(SLEEPERS, u64::MAX);
    }
}
