//! `ringway perf --overlap`: how much of an operation's time is hidden behind computation. The ranks share the first
//! processor, where they compute in registers; the daemon has the second for itself.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use ringway_client::{Arena, Buffer, Communicator, Reduction, monotonic_ns};
use serde::{Deserialize, Serialize};

use super::{
    place::processors,
    rank::{agree_slowest, barrier, path},
    report::{Times, round, significant},
    spec::Spec,
};
use crate::output;

/// Every rank computes for this many times what the operation takes when nobody waits for it: with less computation there
/// is nothing for it to hide behind.
const COMPUTE_TIMES: f64 = 2.0;
/// How often a rank that does not wait looks whether the operation has ended.
const NAP: Duration = Duration::from_micros(50);
const ITERATIONS: u32 = 50;
const WARMUP: u32 = 5;
const UNATTENDED: u32 = 15;

/// One size's result. Times are medians over iterations, from where the first rank began until the last one was through.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Overlap {
    pub(crate) operation: String,
    pub(crate) bytes: u64,
    pub(crate) ranks: u32,
    pub(crate) path: String,
    /// Submit and wait: the ranks work as well.
    pub(crate) communication_us: f64,
    /// Submit and sleep: the daemon does the work.
    pub(crate) unattended_us: f64,
    /// Compute on every rank.
    pub(crate) computation_us: f64,
    /// Submit, compute, wait.
    pub(crate) both_us: f64,
    /// `1 - exposed / communication`, where exposed is the median of what `both` took longer than the computation before
    /// it. Below zero when the operation takes longer beside computation than alone.
    pub(crate) hidden: f64,
}

pub(crate) fn header() -> String {
    format!(
        "# {:>12} {:>6} {:>16} {:>12} {:>16} {:>12} {:>8}\n# {:>12} {:>6} {:>16} {:>12} {:>16} {:>12} {:>8}",
        "size",
        "path",
        "communication",
        "unattended",
        "computation",
        "both",
        "hidden",
        "(B)",
        "",
        "(us)",
        "(us)",
        "(us)",
        "(us)",
        "(%)"
    )
}

pub(crate) fn line(row: &Overlap) -> String {
    format!(
        "  {:>12} {:>6} {:>16} {:>12} {:>16} {:>12} {:>8}",
        row.bytes,
        row.path,
        significant(row.communication_us),
        significant(row.unattended_us),
        significant(row.computation_us),
        significant(row.both_us),
        format!("{:.1}", row.hidden * 100.0)
    )
}

/// The processor of the ranks and that of the daemon.
pub(crate) fn places() -> Result<(usize, usize), String> {
    match processors().as_slice() {
        [ranks, daemon, ..] => Ok((*ranks, *daemon)),
        _ => Err("--overlap needs two processors: one for the ranks, one for the daemon".to_owned()),
    }
}

/// A rank's part.
pub(crate) fn run_rank(spec: &Spec, world: &Communicator, arena: &Arena) -> Result<(), String> {
    for &bytes in &spec.sizes {
        let elements = (bytes / 4) as usize;
        let mut job = Job { world, arena, buffer: Some(arena.buffer(elements).map_err(|e| e.to_string())?) };
        let row = job.measure(spec, elements as u64 * 4)?;
        if world.rank() == 0 {
            output::line(&serde_json::to_string(&row).map_err(|e| e.to_string())?);
        }
    }
    Ok(())
}

struct Job<'a> {
    world: &'a Communicator,
    arena: &'a Arena,
    /// Away only during an operation.
    buffer: Option<Buffer<f32>>,
}

impl Job<'_> {
    fn measure(&mut self, spec: &Spec, bytes: u64) -> Result<Overlap, String> {
        for _ in 0..WARMUP {
            self.once(0)?;
        }
        let mine = (0..UNATTENDED).map(|_| self.unattended()).collect::<Result<Vec<_>, _>>()?;
        let unattended_us = Times::of(self.agree(&mine)?).p50;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number of rounds"
        )]
        let rounds = (COMPUTE_TIMES * unattended_us * 1e3 / nanoseconds_per_round()) as u64;
        let rounds = agree_slowest(self.world, self.arena, &[rounds as f64])?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as above")]
        let rounds = rounds.first().copied().unwrap_or(1.0) as u64;
        let iterations = if spec.iterations > 0 { spec.iterations } else { ITERATIONS };
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..iterations {
            let taken = [self.once(0)?, self.compute_only(rounds)?, self.once(rounds)?];
            times.iter_mut().zip(taken).for_each(|(list, time)| list.push(time));
        }
        let [alone, computing, both] = times.map(|mine| self.agree(&mine));
        let (alone, computing, both) = (alone?, computing?, both?);
        let longer = both.iter().zip(&computing).map(|(both, computing)| both - computing);
        let exposed_us = Times::of(longer.collect()).p50;
        let [communication_us, computation_us, both_us] = [alone, computing, both].map(|t| Times::of(t).p50);
        Ok(Overlap {
            operation: "allreduce".to_owned(),
            bytes,
            ranks: self.world.size(),
            path: path(self.world),
            communication_us,
            unattended_us,
            computation_us,
            both_us,
            hidden: round(1.0 - exposed_us.max(0.0) / communication_us.max(0.001), 4),
        })
    }

    /// Submits, computes, waits.
    fn once(&mut self, rounds: u64) -> Result<Span, String> {
        let buffer = self.filled()?;
        barrier(self.world)?;
        let begun_ns = monotonic_ns();
        let pending =
            self.world.allreduce_in_place(buffer, Reduction::Sum).map_err(|e| e.error.to_string())?;
        compute(rounds);
        let result = pending.wait().map_err(|e| e.error.to_string())?;
        self.ended(begun_ns, result)
    }

    /// Submits and sleeps.
    fn unattended(&mut self) -> Result<Span, String> {
        let buffer = self.filled()?;
        barrier(self.world)?;
        let begun_ns = monotonic_ns();
        let mut pending =
            self.world.allreduce_in_place(buffer, Reduction::Sum).map_err(|e| e.error.to_string())?;
        while !pending.test() {
            thread::sleep(NAP);
        }
        let result = pending.wait().map_err(|e| e.error.to_string())?;
        self.ended(begun_ns, result)
    }

    /// An operation has ended, with this result, which is checked when its time is taken.
    fn ended(&mut self, begun_ns: u64, result: Buffer<f32>) -> Result<Span, String> {
        let span = self.since(begun_ns)?;
        let sum = self.world.size() as f32;
        // Whole numbers, of which `f32` has all up to 2^24.
        if let Some((at, wrong)) =
            result.iter().enumerate().find(|(_, value)| value.to_bits() != sum.to_bits())
        {
            return Err(format!("element {at} of the result is {wrong}, not {sum}"));
        }
        self.buffer = Some(result);
        Ok(span)
    }

    fn compute_only(&self, rounds: u64) -> Result<Span, String> {
        barrier(self.world)?;
        let begun_ns = monotonic_ns();
        compute(rounds);
        self.since(begun_ns)
    }

    fn filled(&mut self) -> Result<Buffer<f32>, String> {
        let mut buffer = self.buffer.take().ok_or("the buffer was lost")?;
        buffer.fill(1.0);
        Ok(buffer)
    }

    /// Until now. The others get through before this rank goes on: what it does next would take the processor they share.
    fn since(&self, begun_ns: u64) -> Result<Span, String> {
        let span = Span { begun_ns, ended_ns: monotonic_ns() };
        barrier(self.world)?;
        Ok(span)
    }

    /// Nanoseconds from the first rank's begin until the last one's end, of every span.
    fn agree(&self, mine: &[Span]) -> Result<Vec<f64>, String> {
        let slowest = |mine: Vec<f64>| agree_slowest(self.world, self.arena, &mine);
        let ended = slowest(mine.iter().map(|span| span.ended_ns as f64).collect())?;
        let before_zero = slowest(mine.iter().map(|span| -(span.begun_ns as f64)).collect())?;
        Ok(ended.iter().zip(&before_zero).map(|(ended, begun)| ended + begun).collect())
    }
}

/// What a rank took for one step, by the host's clock, which its ranks share.
#[derive(Debug, Clone, Copy)]
struct Span {
    begun_ns: u64,
    ended_ns: u64,
}

/// Computes in registers, each round after the other.
fn compute(rounds: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..rounds {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    black_box(state);
}

fn nanoseconds_per_round() -> f64 {
    const ROUNDS: u32 = 100_000;
    let once = || {
        let begun = Instant::now();
        compute(u64::from(ROUNDS));
        begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    (0..20).map(|_| once()).fold(f64::INFINITY, f64::min).max(0.01)
}
