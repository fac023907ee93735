//! The rings alone, between two threads: the least that submitting anything to another process takes.

use std::{
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use ringway_abi::descriptor::{BufferHandle, Completion, Submission};
use ringway_mem::Mapping;
use ringway_ring::{BareCursor, BareRing, ClientRings, DaemonRings, Geometry, SUBMISSION_WORDS};
use ringway_types::{DataType, Operation, Reduction};

use super::{
    costs::Spent,
    pair::{Measured, Task},
    result::{Percentiles, Test},
};
use crate::perf::place;

/// Tests of rings.
pub(super) const TESTS: [Test; 3] = [Test::BareRing, Test::Ring, Test::CheckedRing];
/// The path that these are measured over.
pub(super) const RING: &str = "ring";
/// Entries of a ring.
const CAPACITY: u32 = 256;

fn submission() -> Submission {
    let buffer = |offset| Some(BufferHandle { region: 1, offset });
    Submission {
        token: 1,
        operation: Operation::Allreduce,
        datatype: DataType::F32,
        reduction: Some(Reduction::Sum),
        flags: 0,
        rank: 0,
        argument: 0,
        input: buffer(0),
        output: buffer(64),
        count: 2,
    }
}

/// Answers every entry: unseen, or parsed as a daemon does.
fn serve(rings: &mut DaemonRings, is_checked: bool, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(Some(words)) = rings.submissions.pop() else {
            spin_loop();
            continue;
        };
        rings.submissions.release();
        let status = match is_checked {
            true => Submission::parse(&words).map_or(1, |submission| u16::from(submission.flags)),
            false => 0,
        };
        let answer =
            Completion { token: 1, status, held: false, rank: 0, bytes: words.first().copied().unwrap_or(0) };
        while rings.completions.push(&answer.encode()).is_err() {
            spin_loop();
        }
        rings.completions.publish();
        if is_checked {
            rings.wake();
        }
    }
}

/// Half the time of each round trip.
fn round_trips(rings: &mut ClientRings, count: u64) -> Result<Vec<f64>, String> {
    let submission = submission().encode();
    let mut times = Vec::with_capacity(count as usize);
    let mut last = Instant::now();
    for _ in 0..count {
        rings.submissions.send(&submission).map_err(|e| e.to_string())?;
        while rings.completions.pop().map_err(|e| e.to_string())?.is_none() {
            spin_loop();
        }
        rings.completions.release();
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64 / 2.0);
        last = now;
    }
    Ok(times)
}

/// Gives back every entry, until it is told to stop.
fn bare_echo(there: &BareRing, back: &BareRing, stop: &AtomicBool) {
    let (mut taken, mut given) = (BareCursor::default(), BareCursor::default());
    while !stop.load(Ordering::Relaxed) {
        if there.pop(&mut taken, 1, |words| back.push(&mut given, &[words])) == 0 {
            spin_loop();
        }
    }
}

/// Half the time of each round trip, in nanoseconds.
fn bare_round_trips(there: &BareRing, back: &BareRing, count: u64) -> Vec<f64> {
    let (mut given, mut taken) = (BareCursor::default(), BareCursor::default());
    let mut times = Vec::with_capacity(count as usize);
    let mut last = Instant::now();
    for number in 0..count {
        there.push(&mut given, &[[number; SUBMISSION_WORDS]]);
        while back.pop(&mut taken, 1, |_| {}) == 0 {
            spin_loop();
        }
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64 / 2.0);
        last = now;
    }
    times
}

/// Measures a ring once, on two processors.
pub(super) fn run(task: &Task) -> Result<Measured, String> {
    if task.test == Test::BareRing {
        let (there, back) = (BareRing::new(), BareRing::new());
        let echo = |stop: &AtomicBool| bare_echo(&there, &back, stop);
        return between_threads(task, echo, || Ok(bare_round_trips(&there, &back, task.operations)));
    }
    let geometry = Geometry::new(CAPACITY, 2 * CAPACITY, 0).map_err(|e| e.to_string())?;
    let memory = |bytes| Mapping::private(bytes).map(Arc::new).map_err(|e| e.to_string());
    let (c, d) = (memory(geometry.client_bytes())?, memory(geometry.daemon_bytes())?);
    let mut client = ClientRings::attach(&c, &d, geometry).map_err(|e| e.to_string())?;
    let mut daemon = DaemonRings::attach(&c, &d, geometry).map_err(|e| e.to_string())?;
    let is_checked = task.test == Test::CheckedRing;
    between_threads(
        task,
        move |stop| serve(&mut daemon, is_checked, stop),
        || round_trips(&mut client, task.operations),
    )
}

/// Runs one side on one processor until the other, which gives the times, is done.
fn between_threads(
    task: &Task,
    serve: impl FnOnce(&AtomicBool) + Send,
    ask: impl FnOnce() -> Result<Vec<f64>, String> + Send,
) -> Result<Measured, String> {
    let (stop, processors) = (AtomicBool::new(false), place::processors());
    let before = Spent::before_measuring();
    let begun = Instant::now();
    let times = thread::scope(|scope| {
        scope.spawn(|| {
            place::pin(1, &processors);
            serve(&stop);
        });
        let asking = scope.spawn(|| {
            place::pin(0, &processors);
            let times = ask();
            stop.store(true, Ordering::Relaxed);
            times
        });
        asking.join().map_err(|_| "the thread that measures a ring failed".to_owned())
    });
    // What follows is not what was measured.
    let (seconds, spent) = (begun.elapsed().as_secs_f64(), Spent::after_measuring().since(before));
    let mut times = times??;
    Ok(Measured {
        operations: task.operations,
        seconds,
        samples: times.len() as u64,
        time_us: Percentiles::of(&mut times),
        spent,
        daemons_cpu_ns: 0,
        copied: None,
        kernel_copies: None,
    })
}
