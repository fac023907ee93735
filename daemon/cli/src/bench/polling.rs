//! What polling costs: a client that calls its daemon now and then, and how busy the daemon is meanwhile.

use std::{collections::BTreeMap, thread, time::Duration};

use super::{
    interrupt::Interrupt,
    ladder::operations_in,
    pair::{Measured, Task},
    paths::{self, OpenPath},
    progress::Progress,
    result::{Percentiles, Point, Polling, PollingPoint, Spread, Test},
    rounds,
    statistics::median_of_known,
};
use crate::perf::round;

/// Shares of as many calls as a spinning daemon answers one after the other; none for a daemon that nobody calls. The rate is the
/// same whatever the daemon does: how long it waits is then all that differs.
const LOADS: [f64; 4] = [0.0, 0.01, 0.1, 1.0];
/// The least calls from which percentiles are taken.
const CALLS_MIN: u64 = 50;

/// What was measured of daemons that clients are alone with.
#[derive(Debug, Default)]
pub(super) struct Curve {
    pub(super) points: Vec<PollingPoint>,
    /// Calls one after the other, as a rung of the ladder.
    pub(super) full: Vec<Point>,
}

/// Measures daemons that poll in each manner, by turns. Each is started for its turn and ended after it: one that spins takes
/// a processor from all others.
pub(super) fn curve(rounds: u32, seconds: f64, interrupt: &Interrupt, progress: &Progress) -> Curve {
    let mut found: BTreeMap<(usize, Polling), Vec<Measured>> = BTreeMap::new();
    // What a call takes where they follow each other, of the first daemon that is measured: one that spins, if it can be.
    let mut call_ns = None;
    for round in 1..=rounds {
        for polling in [Polling::Spin, Polling::Adaptive, Polling::Block] {
            progress.line(&format!("round {round} of {rounds}: a daemon that polls by `{}`", polling.name()));
            let measured = paths::alone(polling, interrupt)
                .and_then(|mut path| turn(&mut path, polling, seconds, &mut call_ns, interrupt));
            match measured {
                Ok(measured) => {
                    for (load, one) in measured {
                        found.entry((load, polling)).or_default().push(one);
                    }
                }
                Err(_) if interrupt.came() => {}
                Err(why) => progress
                    .note(&format!("a daemon that polls by `{}` is not measured: {why}", polling.name())),
            }
        }
    }
    let mut curve = Curve::default();
    for ((load, polling), rounds) in &found {
        let load = LOADS.get(*load).copied().unwrap_or_default();
        curve.points.push(point(*polling, load, call_ns.unwrap_or_default(), rounds));
        if load >= 1.0 {
            curve.full.push(rounds::point(&(Test::DaemonNoop, 0, *polling, "daemon"), rounds));
        }
    }
    curve
}

/// One daemon at every load, which is told by its number: the full one first, which says what a call takes.
fn turn(
    path: &mut OpenPath,
    polling: Polling,
    seconds: f64,
    call_ns: &mut Option<f64>,
    interrupt: &Interrupt,
) -> Result<Vec<(usize, Measured)>, String> {
    let loads = LOADS.iter().enumerate().rev().take_while(|_| !interrupt.came());
    let measured = loads.map(|(number, load)| {
        let one = once(path, polling, period_ns(*load, *call_ns), *load, seconds)?;
        if *load >= 1.0 {
            call_ns.get_or_insert(each_ns(&one));
        }
        Ok((number, one))
    });
    measured.collect()
}

/// From one call to the next.
fn period_ns(load: f64, call_ns: Option<f64>) -> u64 {
    if load >= 1.0 { 0 } else { (call_ns.unwrap_or_default() / load) as u64 }
}

/// What a call took with all that was between it and the next.
fn each_ns(seen: &Measured) -> f64 {
    seen.seconds * 1e9 / seen.operations.max(1) as f64
}

fn once(
    path: &mut OpenPath,
    polling: Polling,
    period_ns: u64,
    load: f64,
    seconds: f64,
) -> Result<Measured, String> {
    if load == 0.0 {
        // What follows the last call is not idleness yet.
        thread::sleep(Duration::from_secs_f64(seconds / 2.0));
        return path.ends.idle(Duration::from_secs_f64(seconds));
    }
    let mut task = Task { period_ns, ..Task::new(Test::DaemonNoop, 0, CALLS_MIN, polling) };
    let first = path.ends.run(&task)?;
    task.operations = operations_in(seconds, &first).max(CALLS_MIN);
    path.ends.run(&task)
}

fn point(polling: Polling, load: f64, call_ns: f64, rounds: &[Measured]) -> PollingPoint {
    let of = |each: &dyn Fn(&Measured) -> f64| Spread::of(rounds.iter().map(each).collect()).median;
    PollingPoint {
        polling,
        load,
        achieved_load: (load > 0.0).then(|| round(call_ns / of(&each_ns), 5)),
        time_us: (load > 0.0).then(|| Percentiles {
            p50: of(&|seen| seen.time_us.p50),
            p99: median_of_known(rounds.iter().map(|seen| seen.time_us.p99)),
            p999: median_of_known(rounds.iter().map(|seen| seen.time_us.p999)),
        }),
        daemon_cpus: round(of(&|seen| seen.daemons_cpu_ns as f64 / 1e9 / seen.seconds.max(1e-9)), 5),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::costs::Spent, *};

    #[test]
    fn a_load_is_a_rate_that_is_missed_where_calls_take_too_long() {
        let measured = |each_us: f64| Measured {
            operations: 1000,
            seconds: each_us / 1e3,
            samples: 0,
            time_us: Percentiles::default(),
            spent: Spent::default(),
            daemons_cpu_ns: 0,
            copied: None,
            kernel_copies: None,
        };
        let call_ns = each_ns(&measured(0.5));
        assert_eq!([1.0, 0.1, 0.01].map(|load| period_ns(load, Some(call_ns))), [0, 5_000, 50_000]);
        let point = |load, each_us| point(Polling::Block, load, call_ns, &[measured(each_us)]);
        let kept = point(0.01, 51.0);
        assert!(!kept.is_off() && kept.achieved_load == Some(0.009_804), "{kept:?}");
        let missed = point(0.1, 50.0);
        assert!(missed.is_off() && missed.achieved_load == Some(0.01), "{missed:?}");
        // Of a daemon that nobody calls nothing is missed.
        assert_eq!((point(0.0, 1.0).achieved_load, point(0.0, 1.0).is_off()), (None, false));
    }
}
