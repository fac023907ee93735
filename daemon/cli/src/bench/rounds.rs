//! How what was found in rounds becomes points.

use super::{
    ladder::Key,
    pair::Measured,
    result::{Costs, Percentiles, Point, Round, Spread, Test, Told},
    statistics::median_of_known,
};
use crate::perf::round;

/// What a tool found, of which it tells the bytes and their time only where many messages are under way.
pub(super) fn told(point: Point) -> Told {
    let Point { test, polling, bytes, operations, time_us, mean_us, spread_us, goodput_gb_s, .. } = point;
    Told { test, polling, bytes, operations, time_us, mean_us, spread_us, goodput_gb_s }
}

/// The median of the differences within each round: between rounds the machine may have got faster or slower by more.
pub(super) fn difference_us(more: &[Measured], less: &[Measured]) -> Option<f64> {
    let differences = more.iter().zip(less).map(|(more, less)| Some(more.time_us.p50 - less.time_us.p50));
    median_of_known(differences)
}

/// Messages of one operation: a round trip has two.
pub(super) const fn messages(test: Test) -> u64 {
    match test {
        Test::BareRing | Test::Ring | Test::CheckedRing | Test::Latency | Test::ClientLatency => 2,
        _ => 1,
    }
}

/// Puts rounds together.
pub(super) fn point(&(test, bytes, polling, path): &Key, rounds: &[Measured]) -> Point {
    let of = |each: &dyn Fn(&Measured) -> f64| Spread::of(rounds.iter().map(each).collect());
    let per_message = |each: &dyn Fn(&Measured) -> Option<u64>| {
        let one = |seen: &Measured| Some(each(seen)? as f64 / (seen.operations * messages(test)) as f64);
        median_of_known(rounds.iter().map(one))
    };
    // Where many messages are under way the time of one is that of all, divided: most are posted at once, and some wait long.
    let us = |seen: &Measured| {
        if test.is_flow() { seen.seconds * 1e6 / seen.operations as f64 } else { seen.time_us.p50 }
    };
    let time = of(&us);
    let cpu_us = per_message(&|seen| Some(seen.spent.cpu_ns)).map(|ns| ns / 1e3);
    let percentile = |each: fn(&Percentiles) -> Option<f64>| {
        let known = median_of_known(rounds.iter().map(|seen| each(&seen.time_us)));
        known.map(|us| round(us, 4))
    };
    let percentiles = Percentiles {
        p50: round(time.median, 4),
        p99: percentile(|time| time.p99),
        p999: percentile(|time| time.p999),
    };
    let one = |seen: &Measured| Round {
        us: round(us(seen), 4),
        p99_us: seen.time_us.p99,
        cpu_s_per_million: Some(round(
            seen.spent.cpu_ns as f64 / 1e3 / (seen.operations * messages(test)).max(1) as f64,
            5,
        )),
    };
    let per_byte = |value: Option<f64>| value.filter(|_| bytes > 0).map(|value| value / bytes as f64);
    let rounded = |value: Option<f64>| value.map(|value| round(value, 5));
    Point {
        test,
        path: path.to_owned(),
        polling,
        bytes,
        operations: rounds.iter().map(|seen| seen.operations * messages(test)).sum(),
        samples: rounds.iter().map(|seen| seen.samples).min().unwrap_or(0),
        time_us: (!test.is_flow()).then_some(percentiles),
        mean_us: test.is_flow().then(|| round(time.median, 4)),
        spread_us: [time.least, time.most].map(|time| round(time, 4)),
        goodput_gb_s: round(bytes as f64 / 1e3 / time.median.max(1e-6), 5),
        costs: Costs {
            cpu_s_per_million: rounded(cpu_us),
            cpu_s_per_gb: rounded(per_byte(cpu_us).map(|us| us * 1e3)),
            system_calls: rounded(per_message(&|seen| Some(seen.spent.system_calls))),
            context_switches: rounded(per_message(&|seen| Some(seen.spent.context_switches))),
            interrupts: rounded(per_message(&|seen| Some(seen.spent.interrupts))),
            interrupt_cpus: rounded(interrupt_cpus(rounds)),
            copies: rounded(per_byte(per_message(&|seen| Some(seen.copied?.own)))),
            sent_without_copy: rounded(per_byte(per_message(&|seen| Some(seen.copied?.not)))),
            copied_after_all: rounded(per_byte(per_message(&|seen| Some(seen.copied?.after_all)))),
        },
        rounds: rounds.iter().map(one).collect(),
    }
}

fn interrupt_cpus(rounds: &[Measured]) -> Option<f64> {
    let seconds: f64 = rounds.iter().map(|seen| seen.seconds).sum();
    let busy_ms: u64 = rounds.iter().map(|seen| seen.spent.interrupts_ms).sum();
    (seconds > 0.0).then(|| busy_ms as f64 / 1e3 / seconds)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{costs::Spent, result::Polling},
        *,
    };

    fn measured(p50: f64) -> Measured {
        Measured {
            operations: 1,
            seconds: 1.0,
            samples: 1,
            time_us: Percentiles { p50, ..Percentiles::default() },
            spent: Spent::default(),
            daemons_cpu_ns: 0,
            copied: None,
            kernel_copies: None,
        }
    }

    #[test]
    fn of_a_tool_that_tells_a_mean_no_percentiles_are_told() {
        let of = |test| {
            let rounds = [2.0, 4.0, 3.0].map(|us| Measured { seconds: us / 1e6, ..measured(us) });
            told(point(&(test, 1 << 20, Polling::Block, "tool"), &rounds))
        };
        let flow = of(Test::Bandwidth);
        assert_eq!((flow.time_us, flow.mean_us, flow.us()), (None, Some(3.0), 3.0));
        let latency = of(Test::Latency);
        assert_eq!(
            (latency.time_us.map(|time| time.p50), latency.mean_us, latency.us()),
            (Some(3.0), None, 3.0)
        );
        assert_eq!((flow.spread_us, latency.spread_us), ([2.0, 4.0], [2.0, 4.0]));
    }

    #[test]
    fn percentiles_are_told_where_every_round_has_them() {
        let of = |p99s: [Option<f64>; 3]| {
            let one = |p99| Measured {
                time_us: Percentiles { p50: 1.0, p99, p999: None },
                samples: 500,
                ..measured(1.0)
            };
            point(&(Test::Latency, 8, Polling::Spin, "tcp"), &p99s.map(one))
        };
        let known = of([Some(3.0), Some(2.0), Some(4.0)]);
        assert_eq!(known.time_us, Some(Percentiles { p50: 1.0, p99: Some(3.0), p999: None }));
        assert_eq!((known.samples, known.rounds.len(), known.rounds[1].p99_us), (500, 3, Some(2.0)));
        assert_eq!(of([Some(3.0), None, Some(4.0)]).time_us.and_then(|time| time.p99), None);
        // A mean is no percentile.
        let flow = point(&(Test::Bandwidth, 8, Polling::Spin, "tcp"), &[measured(1.0)]);
        assert_eq!((flow.time_us, flow.mean_us), (None, Some(1e6)));
    }

    #[test]
    fn differences_are_those_within_a_round() {
        // Processors that are far apart in some rounds: the medians are 0.19 and 0.2.
        let more = [0.06, 0.19, 0.23].map(measured);
        let less = [0.05, 0.2, 0.2].map(measured);
        let found = difference_us(&more, &less).expect("a difference");
        assert!((found - 0.01).abs() < 1e-9, "{found}");
        // A round that was ended before both were measured.
        let found = difference_us(&more[..2], &less[..1]).expect("a difference");
        assert!((found - 0.01).abs() < 1e-9, "{found}");
        assert_eq!(difference_us(&more, &[]), None);
    }
}
