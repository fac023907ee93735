//! What polling costs: a client that calls its daemon now and then, and how busy the daemon is meanwhile.

use std::{collections::BTreeMap, thread, time::Duration};

use super::{
    interrupt::Interrupt,
    ladder::{self, operations_in},
    pair::{Measured, Task},
    paths::{self, OpenPath},
    progress::Progress,
    result::{Percentiles, Point, Polling, PollingPoint, Spread, Test},
};
use crate::perf::round;

/// Shares of time in which a call is under way; none for a daemon that nobody calls.
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
    for round in 1..=rounds {
        for polling in [Polling::Spin, Polling::Adaptive, Polling::Block] {
            progress.line(&format!("round {round} of {rounds}: a daemon that polls by `{}`", polling.name()));
            let measured = paths::alone(polling, interrupt)
                .and_then(|mut path| turn(&mut path, polling, seconds, interrupt));
            match measured {
                Ok(measured) => {
                    for (load, one) in measured.into_iter().enumerate() {
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
        curve.points.push(point(*polling, load, rounds));
        if load >= 1.0 {
            curve.full.push(ladder::point(&(Test::DaemonNoop, 0, *polling, "daemon"), rounds));
        }
    }
    curve
}

/// One daemon at every load.
fn turn(
    path: &mut OpenPath,
    polling: Polling,
    seconds: f64,
    interrupt: &Interrupt,
) -> Result<Vec<Measured>, String> {
    let loads = LOADS.iter().take_while(|_| !interrupt.came());
    loads.map(|load| once(path, polling, *load, seconds)).collect()
}

fn once(path: &mut OpenPath, polling: Polling, load: f64, seconds: f64) -> Result<Measured, String> {
    if load == 0.0 {
        // What follows the last call is not idleness yet.
        thread::sleep(Duration::from_secs_f64(seconds / 2.0));
        return path.ends.idle(Duration::from_secs_f64(seconds));
    }
    let mut task = Task { load, ..Task::new(Test::DaemonNoop, 0, CALLS_MIN, polling) };
    let first = path.ends.run(&task)?;
    task.operations = operations_in(seconds, &first).max(CALLS_MIN);
    path.ends.run(&task)
}

fn point(polling: Polling, load: f64, rounds: &[Measured]) -> PollingPoint {
    let of = |each: &dyn Fn(&Measured) -> f64| Spread::of(rounds.iter().map(each).collect()).median;
    PollingPoint {
        polling,
        load,
        time_us: (load > 0.0).then(|| Percentiles {
            p50: of(&|seen| seen.time_us.p50),
            p99: of(&|seen| seen.time_us.p99),
            p999: of(&|seen| seen.time_us.p999),
        }),
        daemon_cpus: round(of(&|seen| seen.daemons_cpu_ns as f64 / 1e9 / seen.seconds.max(1e-9)), 5),
    }
}
