//! How often a call is made and when the clock is read. The programs in benches/peers keep the same rules.

use super::spec::Spec;

/// From this many bytes on every call is timed by itself, after its buffers were touched and the ranks aligned. Below,
/// reading the clock and a barrier would be a part of the result: whole loops are timed, with the touching inside.
const ALIGN_FROM_BYTES: u64 = 4096;
/// How long a loop takes, unless its calls are slow: long compared with reading the clock, and so short that most loops
/// are not interrupted even on a busy machine; the median is then of those.
const LOOP_NS: f64 = 50_000.0;
const LOOP_CALLS_MIN: u64 = 20;
const SAMPLES_MIN: u64 = 5;
const SAMPLES_MAX: u64 = 5000;

/// Parts of the samples after which it is looked whether so much of the time was used up that the rest is left out: a
/// machine where others work makes calls take much longer than the first ones said. The same after 8 samples, 16, 32 and so
/// on: where calls take a thousand times as long, a part would be minutes.
const PARTS: u32 = 10;
const PATIENCE: f64 = 3.0;

/// What is timed at one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Times the clock is read before and after.
    pub(crate) samples: u32,
    /// Calls between the two.
    pub(crate) calls: u32,
}

impl Pace {
    /// Whether calls of this size are timed one by one. Calls between nodes always are: they take long enough.
    pub(crate) const fn is_aligned(bytes: u64, nodes: u32) -> bool {
        bytes >= ALIGN_FROM_BYTES || nodes > 1
    }

    /// As many calls as were asked for, else as fit into the time when one takes `each_ns`; the fewest when that is not
    /// known (infinite).
    pub(crate) fn of(spec: &Spec, aligned: bool, each_ns: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, and is bounded"
        )]
        let in_time = |ns: f64| (ns / each_ns.max(50.0)) as u64;
        let asked = (spec.iterations > 0).then_some(u64::from(spec.iterations));
        let calls = if aligned { 1 } else { in_time(LOOP_NS).max(LOOP_CALLS_MIN) };
        let calls = calls.min(asked.unwrap_or(u64::MAX));
        let fitting = (in_time(spec.seconds * 1e9) / calls).clamp(SAMPLES_MIN, SAMPLES_MAX);
        let samples = asked.map_or(fitting, |n| n.div_ceil(calls));
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Self { samples: narrow(samples), calls: narrow(calls) }
    }

    /// Whether to ask after this sample, counted from 0, if enough time was spent. Not when a number was asked for.
    pub(crate) fn looks_after(self, spec: &Spec, sample: u32) -> bool {
        let (part, taken) = (self.samples.div_ceil(PARTS).max(1), sample + 1);
        let is_due = taken.is_multiple_of(part) || taken.is_power_of_two();
        spec.iterations == 0 && is_due && u64::from(taken) >= SAMPLES_MIN
    }

    /// Whether enough time was spent.
    pub(crate) fn is_over(spec: &Spec, spent_ns: f64) -> bool {
        spent_ns > spec.seconds * 1e9 * PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(iterations: u32, seconds: f64) -> Spec {
        Spec { iterations, seconds, ..Spec::default() }
    }

    #[test]
    fn short_calls_are_timed_in_loops_and_long_ones_by_themselves() {
        assert!(!Pace::is_aligned(4095, 1) && Pace::is_aligned(4096, 1) && Pace::is_aligned(8, 2));
        assert_eq!(Pace::of(&spec(0, 0.2), false, 250.0), Pace { samples: 4000, calls: 200 });
        assert_eq!(Pace::of(&spec(0, 0.2), false, 1e7), Pace { samples: 5, calls: 20 });
        assert_eq!(Pace::of(&spec(0, 0.2), true, 1e6), Pace { samples: 200, calls: 1 });
        assert_eq!(Pace::of(&spec(0, 0.2), true, 1e9), Pace { samples: 5, calls: 1 });
    }

    #[test]
    fn no_less_than_a_few_samples_are_taken() {
        let pace = Pace { samples: 200, calls: 1 };
        let looks: Vec<_> = (0..200).filter(|s| pace.looks_after(&spec(0, 0.2), *s)).map(|s| s + 1).collect();
        assert_eq!(looks, [8, 16, 20, 32, 40, 60, 64, 80, 100, 120, 128, 140, 160, 180, 200]);
        let few = Pace { samples: 5, calls: 1 };
        assert_eq!((0..5).find(|s| few.looks_after(&spec(0, 0.2), *s)), Some(4));
        assert!(Pace::is_over(&spec(0, 0.2), 1e9) && !Pace::is_over(&spec(0, 0.2), 0.5e9));
    }

    #[test]
    fn what_was_asked_for_is_done() {
        assert_eq!(Pace::of(&spec(1, 0.2), false, 250.0), Pace { samples: 1, calls: 1 });
        assert_eq!(Pace::of(&spec(100, 0.2), false, 5000.0), Pace { samples: 5, calls: 20 });
        let seven = Pace::of(&spec(7, 0.2), true, 1e9);
        assert_eq!(seven, Pace { samples: 7, calls: 1 });
        assert!((0..7).all(|sample| !seven.looks_after(&spec(7, 0.2), sample)));
    }
}
