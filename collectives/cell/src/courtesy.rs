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
/// One that takes longer than this went to somebody who does not hand back, until the kernel takes the processor away.
const KEPT_NS: u64 = 500_000;
/// The same where more ranks than processors hand theirs to each other: they touch their buffers between two calls, as long as
/// that takes, and hand back then. Kernels mostly let somebody compute for longer while others wait (4 ms with 250 ticks a second).
const KEPT_AMONG_RANKS_NS: u64 = 2_000_000;
/// How many times as long there are none after that.
const REST: u64 = 16;
/// Among ranks only when it happens again so soon after the last time without hand-overs; before that there are none for as
/// long as it took.
const AGAIN_NS: u64 = 100_000_000;
/// Longer than the kernel lets anybody compute while others wait: where it took longer, this thread was stopped.
const SLICE_MOST_NS: u64 = 50_000_000;

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
        let is_kept = took_ns > KEPT_NS;
        if is_kept {
            self.rest_from(now_ns, took_ns, REST);
        }
        is_kept
    }

    /// The same where it mostly went to other ranks.
    const fn handed_over_among_ranks(&mut self, now_ns: u64, took_ns: u64) {
        if took_ns > KEPT_AMONG_RANKS_NS {
            let recent_ns = self.until_ns.saturating_add(AGAIN_NS);
            let is_again = self.until_ns > 0 && now_ns.saturating_sub(took_ns) < recent_ns;
            self.rest_from(now_ns, took_ns, if is_again { REST } else { 1 });
        }
    }

    const fn rest_from(&mut self, now_ns: u64, took_ns: u64, times: u64) {
        let slice_ns = if took_ns < SLICE_MOST_NS { took_ns } else { SLICE_MOST_NS };
        self.until_ns = now_ns.saturating_add(slice_ns * times);
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
        let (now, took) = self.give(calls::yield_now);
        self.rest.handed_over(now, took);
        took
    }

    /// The same where it mostly goes to other ranks.
    pub fn hand_over_among_ranks(&mut self) -> u64 {
        self.hand_over_among_ranks_by(calls::yield_now)
    }

    fn hand_over_among_ranks_by(&mut self, give: impl FnOnce()) -> u64 {
        let (now, took) = self.give(give);
        self.rest.handed_over_among_ranks(now, took);
        took
    }

    /// Gives the processor away, unless it is not to be; when it was back, and how long that took.
    fn give(&self, give: impl FnOnce()) -> (u64, u64) {
        let before = (self.clock)();
        if self.rest.lasts(before) {
            return (before, 0);
        }
        give();
        let after = (self.clock)();
        (after, after.saturating_sub(before))
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
        let mut made = 0;
        for _ in 0..count {
            NOW.set(NOW.get() + 1_000);
            courtesy.hand_over_among_ranks_by(|| {
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
        assert_eq!(made(&mut courtesy, 4_000, 4_000_000), 1);
        assert!(made(&mut courtesy, 636_000, 4_000_000) <= 10, "a stranger has a share of the time");
        made(&mut courtesy, 200_000, 2_000);
        assert_eq!(made(&mut courtesy, 10_000, 2_000), 10_000, "when he has gone it is as before");
    }

    #[test]
    fn what_happens_once_is_no_stranger() {
        let mut courtesy = Courtesy::new(|| NOW.get());
        for _ in 0..3 {
            assert_eq!(made(&mut courtesy, 1, 4_000_000), 1);
            assert_eq!(made(&mut courtesy, 3_999, 2_000), 0);
            assert_eq!(made(&mut courtesy, 100_000, 2_000), 100_000, "it is soon as before");
        }
        assert_eq!(made(&mut courtesy, 1, 4_000_000), 1);
        assert_eq!(made(&mut courtesy, 4_000, 4_000_000), 1);
        assert_eq!(made(&mut courtesy, 63_999, 2_000), 0, "it happened again");
    }

    #[test]
    fn who_computes_for_nobody_here_is_left_alone_for_long() {
        let mut rest = Rest::new();
        assert!(!rest.handed_over(0, KEPT_NS));
        assert!(rest.handed_over(0, 60_000_000_000));
        let ends = [799_999_999, 800_000_000].map(|now_ns| rest.lasts(now_ns));
        assert_eq!(ends, [true, false], "who was stopped for a minute rests no longer");
    }
}
