//! Handing the processor over to whoever else wants it, as long as that serves those who wait for each other.
//!
//! Among ranks a processor comes back within microseconds, as whoever waits hands it over in turn. A program that has
//! nothing to do with them keeps it until the kernel takes it away, milliseconds later: next to one busy loop, calls of
//! 0.2 us took 2 ms. So after a hand-over that took so long there are none for several times as long; a rank that waits
//! for long sleeps in the end, and does not need them. With fewer processors than ranks it sleeps at once meanwhile, as
//! others need the processor that it would poll on. That costs so much that there once is not enough: the host of a virtual
//! machine keeps processors as well, now and then, and who was there may be done.

use ringway_mem::calls;

use crate::Clock;

/// A hand-over that takes longer went to somebody: the call of the kernel alone takes a third of it.
pub const TAKEN_NS: u64 = 1_000;
/// How many times as long there are none after one that went to somebody who kept the processor.
const REST: u64 = 16;
/// It happened again when it did so soon after the last such time.
const AGAIN_NS: u64 = 100_000_000;
/// Longer than the kernel lets anybody compute while others wait: where it took longer, this thread was stopped.
const SLICE_MOST_NS: u64 = 50_000_000;

/// Whom hand-overs mostly go to.
#[derive(Debug, Clone, Copy)]
struct Takers {
    /// A longer one went to somebody who does not hand back, until the kernel takes the processor away.
    kept_ns: u64,
    /// How many times as long there are none when that did not happen before.
    rest_at_first: u64,
}

const ANYBODY: Takers = Takers { kept_ns: 500_000, rest_at_first: REST };
/// More ranks than processors hand theirs to each other: they touch their buffers between two calls, as long as that takes, and hand
/// back then. Kernels mostly let somebody compute for longer while others wait (4 ms with 250 ticks a second).
const RANKS: Takers = Takers { kept_ns: 2_000_000, rest_at_first: 1 };

/// When the processor may be given away again, after somebody kept it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rest {
    until_ns: u64,
}

impl Rest {
    /// It may be given away.
    #[must_use]
    pub const fn new() -> Self {
        Self { until_ns: 0 }
    }

    /// A hand-over ended at `now_ns` that took so long; whether somebody kept the processor.
    pub const fn handed_over(&mut self, now_ns: u64, took_ns: u64) -> bool {
        self.handed_over_to(now_ns, took_ns, ANYBODY)
    }

    const fn handed_over_to(&mut self, now_ns: u64, took_ns: u64, takers: Takers) -> bool {
        let is_kept = took_ns > takers.kept_ns;
        if is_kept {
            let slice_ns = if took_ns < SLICE_MOST_NS { took_ns } else { SLICE_MOST_NS };
            let recent_ns = self.until_ns.saturating_add(AGAIN_NS);
            let is_again = self.until_ns > 0 && now_ns.saturating_sub(took_ns) < recent_ns;
            let times = if is_again { REST } else { takers.rest_at_first };
            self.until_ns = now_ns.saturating_add(slice_ns * times);
        }
        is_kept
    }

    /// Whether it lasts.
    #[must_use]
    pub const fn lasts(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

/// How one thread hands its processor over.
#[derive(Debug, Clone, Copy)]
pub struct Courtesy {
    clock: Clock,
    rest: Rest,
}

impl Courtesy {
    /// By this clock.
    #[must_use]
    pub const fn new(clock: Clock) -> Self {
        Self { clock, rest: Rest::new() }
    }

    /// Gives the processor to whoever wants it; the nanoseconds until it came back, zero when it was not given.
    pub fn hand_over(&mut self) -> u64 {
        self.hand_over_by(ANYBODY, calls::yield_now)
    }

    /// The same where it mostly goes to other ranks.
    pub fn hand_over_among_ranks(&mut self) -> u64 {
        self.hand_over_by(RANKS, calls::yield_now)
    }

    fn hand_over_by(&mut self, takers: Takers, give: impl FnOnce()) -> u64 {
        let before = (self.clock)();
        if self.rest.lasts(before) {
            return 0;
        }
        give();
        let after = (self.clock)();
        let took = after.saturating_sub(before);
        self.rest.handed_over_to(after, took, takers);
        took
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    /// How many hand-overs are made of so many, one each microsecond, when each takes so long.
    fn made(courtesy: &mut Courtesy, count: u32, took: u64) -> u32 {
        made_among(ANYBODY, courtesy, count, took)
    }

    fn made_among(takers: Takers, courtesy: &mut Courtesy, count: u32, took: u64) -> u32 {
        let mut made = 0;
        for _ in 0..count {
            NOW.set(NOW.get() + 1_000);
            courtesy.hand_over_by(takers, || {
                made += 1;
                NOW.set(NOW.get() + took);
            });
        }
        made
    }

    #[test]
    fn strangers_get_little_and_others_what_they_want() {
        let mut courtesy = Courtesy::new(|| NOW.get());
        assert_eq!(made(&mut courtesy, 10_000, 2_000), 10_000, "others hand back");
        assert!(made(&mut courtesy, 640_000, 4_000_000) <= 11, "a stranger has a share of the time");
        let mut rest = Rest::new();
        assert!(rest.handed_over(0, 60_000_000_000));
        let ends = [799_999_999, 800_000_000].map(|now_ns| rest.lasts(now_ns));
        assert_eq!(ends, [true, false], "who was stopped for a minute rests no longer");
        made(&mut courtesy, 64_000, 2_000);
        assert_eq!(made(&mut courtesy, 10_000, 2_000), 10_000, "when he has gone it is as before");
    }

    #[test]
    fn what_happens_once_among_ranks_is_no_stranger() {
        let mut courtesy = Courtesy::new(|| NOW.get());
        let mut made = |count, took| made_among(RANKS, &mut courtesy, count, took);
        for _ in 0..3 {
            assert_eq!(made(1, 4_000_000), 1);
            assert_eq!(made(3_999, 2_000), 0);
            assert_eq!(made(100_000, 2_000), 100_000, "it is soon as before");
        }
        assert_eq!(made(1, 4_000_000), 1);
        assert_eq!(made(4_000, 4_000_000), 1);
        assert_eq!(made(63_999, 2_000), 0, "it happened again");
        assert!(made(636_000, 4_000_000) <= 10, "a stranger has a share of the time");
        made(200_000, 2_000);
        assert_eq!(made(10_000, 2_000), 10_000, "when he has gone it is as before");
    }
}
