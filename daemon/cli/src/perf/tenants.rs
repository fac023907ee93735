//! `ringway perf --tenants`: two jobs on one daemon. Which share of the bytes each gets when both have as much to do as
//! they can, and by how much the large operations of one delay the small ones of the other.

use std::{
    sync::mpsc::{Sender, channel},
    thread,
    time::{Duration, Instant},
};

use ringway_client::{Arena, Buffer, Communicator, Pending, Reduction, monotonic_ns};
use serde::{Deserialize, Serialize};

use super::{
    parent::{Campaign, measure},
    rank::path,
    report::{Times, round, significant},
    spec::{Mode, Spec},
};
use crate::{local::cluster::Cluster, output};

/// The small operation, and the second job's large one.
const SMALL_BYTES: u64 = 8;
const SECOND_BYTES: u64 = 4 << 20;
/// Bytes a bulk job keeps under way, in two operations at least: enough for the daemon to be busy while a rank naps.
const UNDER_WAY_BYTES: u64 = 64 << 20;
/// How long a bulk job goes on before and after what is measured beside it.
const MARGIN_S: f64 = 0.5;
/// How often two jobs are started anew, each time to go on for longer, that did not run beside one another for long enough.
const TRIES: u32 = 4;
/// How often a rank that sleeps looks whether its operation has ended.
const NAP: Duration = Duration::from_micros(500);

/// What a job's first rank tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Told {
    /// The first operation has ended.
    Started,
    /// When each bulk operation ended, in nanoseconds of the system's monotonic clock.
    Bulk { ended_ns: Vec<u64> },
    /// Times of the small ones.
    Small { time_us: Times, path: String },
}

/// What was found with the ranks of bulk jobs waiting for their operations, or asleep while the daemon works.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "measure", rename_all = "snake_case")]
pub(crate) enum Finding {
    Shares {
        path: String,
        asleep: bool,
        ranks: u32,
        bytes: [u64; 2],
        #[serde(rename = "GBps")]
        rate: [f64; 2],
        share: [f64; 2],
    },
    Delay {
        path: String,
        asleep: bool,
        ranks: u32,
        bulk_bytes: u64,
        small_bytes: u64,
        alone_us: Times,
        beside_us: Times,
        delay_p50_us: f64,
        delay_p99_us: f64,
    },
}

pub(crate) fn line(finding: &Finding) -> String {
    let bulk_ranks = |asleep: bool| if asleep { "sleep" } else { "wait" };
    match finding {
        Finding::Shares { path, asleep, bytes: [a, b], rate, share, .. } => format!(
            "shares, ranks {}, path {path}: {:.1}% in operations of {a} B, {:.1}% in operations of {b} B ({:.3} and {:.3} GB/s)",
            bulk_ranks(*asleep),
            share[0] * 100.0,
            share[1] * 100.0,
            rate[0],
            rate[1]
        ),
        Finding::Delay {
            path,
            asleep,
            bulk_bytes,
            small_bytes,
            alone_us,
            beside_us,
            delay_p50_us,
            delay_p99_us,
            ..
        } => {
            format!(
                "delay, bulk ranks {}, path {path}: {small_bytes} B take {} us (p99 {}) alone, {} us (p99 {}) beside operations of \
                 {bulk_bytes} B: {} us more (p99 {})",
                bulk_ranks(*asleep),
                significant(alone_us.p50),
                significant(alone_us.p99),
                significant(beside_us.p50),
                significant(beside_us.p99),
                significant(*delay_p50_us),
                significant(*delay_p99_us)
            )
        }
    }
}

/// Both measurements, with the ranks of bulk jobs waiting and asleep.
pub(crate) fn tenants(
    cluster: &Cluster,
    spec: &Spec,
    ranks: u32,
    mut finding: impl FnMut(&Finding),
) -> Result<(), String> {
    let bulk_bytes = spec.sizes.first().copied().unwrap_or(64 << 20);
    let jobs = Jobs { cluster, spec, ranks };
    let (alone_us, path) = jobs.small()?;
    for asleep in [false, true] {
        let (rate, share) = jobs.shares([bulk_bytes, SECOND_BYTES], asleep)?;
        let bytes = [bulk_bytes, SECOND_BYTES];
        finding(&Finding::Shares { path: path.clone(), asleep, ranks, bytes, rate, share });
        let beside_us = jobs.small_beside(bulk_bytes, asleep)?;
        finding(&Finding::Delay {
            path: path.clone(),
            asleep,
            ranks,
            bulk_bytes,
            small_bytes: SMALL_BYTES,
            alone_us,
            beside_us,
            delay_p50_us: round(beside_us.p50 - alone_us.p50, 3),
            delay_p99_us: round(beside_us.p99 - alone_us.p99, 3),
        });
    }
    Ok(())
}

/// Starts jobs.
#[derive(Clone, Copy)]
struct Jobs<'a> {
    cluster: &'a Cluster,
    spec: &'a Spec,
    ranks: u32,
}

impl Jobs<'_> {
    fn run(&self, mode: Mode, bytes: u64, seconds: f64, told: impl FnMut(&Told)) -> Result<(), String> {
        let spec = Spec { mode, sizes: vec![bytes], seconds, ..self.spec.clone() };
        let campaign = Campaign { ranks: self.ranks as usize, spec, show_progress: false };
        measure(self.cluster, &campaign, told)
    }

    fn small(&self) -> Result<(Times, String), String> {
        let mut found = None;
        self.run(Mode::Small, SMALL_BYTES, self.spec.seconds, |told| {
            if let Told::Small { time_us, path } = told {
                found = Some((*time_us, path.clone()));
            }
        })?;
        found.ok_or_else(|| "the small job said nothing".to_owned())
    }

    /// A bulk job, which says when it has begun; when each operation ended.
    fn bulk(&self, bytes: u64, seconds: f64, asleep: bool, begun: &Sender<()>) -> Result<Vec<u64>, String> {
        let mut found = Vec::new();
        self.run(Mode::Bulk { asleep }, bytes, seconds, |told| match told {
            Told::Started => _ = begun.send(()),
            Told::Bulk { ended_ns } => found.clone_from(ended_ns),
            Told::Small { .. } => {}
        })?;
        Ok(found)
    }

    fn small_beside(&self, bulk_bytes: u64, asleep: bool) -> Result<Times, String> {
        let (begun, has_begun) = channel();
        thread::scope(|scope| {
            let bulk = scope
                .spawn(move || self.bulk(bulk_bytes, self.spec.seconds + 2.0 * MARGIN_S, asleep, &begun));
            // An error here is the bulk job's failure, which its thread tells.
            let small = if has_begun.recv().is_ok() { Some(self.small()) } else { None };
            ended(bulk.join())?;
            small.unwrap_or_else(|| Err("the bulk job did not start".to_owned())).map(|(times, _)| times)
        })
    }

    /// Gigabytes per second and share of each job while both run: from when each has used all of its buffers, for half of
    /// the time that was asked for at least. Where others want the processors too, one job may begin much later.
    fn shares(&self, bytes: [u64; 2], asleep: bool) -> Result<([f64; 2], [f64; 2]), String> {
        for tries in 0..TRIES {
            let seconds = self.spec.seconds + f64::from(2 << tries) * MARGIN_S;
            let ended = self.bulk_twice(bytes, seconds, asleep)?;
            let (from, to) = together(bytes, &ended);
            if (to.saturating_sub(from) as f64) < self.spec.seconds * 0.5e9 {
                continue;
            }
            let moved = [0, 1].map(|job: usize| operations_within(&ended[job], from, to) * bytes[job] as f64);
            let all: f64 = moved.iter().sum();
            return Ok((
                moved.map(|m| round(m / (to - from) as f64, 4)),
                moved.map(|m| round(m / all.max(1.0), 4)),
            ));
        }
        Err("the two jobs did not run at the same time; give more --seconds".to_owned())
    }

    /// Two bulk jobs at once; when each operation of each ended.
    fn bulk_twice(&self, bytes: [u64; 2], seconds: f64, asleep: bool) -> Result<[Vec<u64>; 2], String> {
        let (begun, _has_begun) = channel();
        thread::scope(|scope| {
            let jobs = bytes.map(|bytes| {
                let begun = begun.clone();
                scope.spawn(move || self.bulk(bytes, seconds, asleep, &begun))
            });
            let [a, b] = jobs.map(|job| ended(job.join()));
            Ok([a?, b?])
        })
    }
}

/// From when until when two jobs run, each with all of its buffers used before.
fn together(bytes: [u64; 2], ended: &[Vec<u64>; 2]) -> (u64, u64) {
    let warm = |job: usize| {
        let uses = depth(Mode::Bulk { asleep: false }, bytes[job]) as usize;
        ended[job].get(uses).copied().unwrap_or(u64::MAX)
    };
    let last = |job: usize| ended[job].last().copied().unwrap_or(0);
    (warm(0).max(warm(1)), last(0).min(last(1)))
}

fn ended<T>(joined: thread::Result<Result<T, String>>) -> Result<T, String> {
    joined.unwrap_or_else(|_| Err("a job's thread panicked".to_owned()))
}

/// How many operations lie between two moments, each as the part of it that does.
fn operations_within(ended: &[u64], from: u64, to: u64) -> f64 {
    ended
        .windows(2)
        .filter_map(|pair| if let [begun, done] = pair { Some((*begun, *done)) } else { None })
        .map(|(begun, done)| {
            let inside = done.min(to).saturating_sub(begun.max(from));
            inside as f64 / done.saturating_sub(begun).max(1) as f64
        })
        .sum()
}

/// Operations that a rank keeps under way.
pub(crate) fn depth(mode: Mode, bytes: u64) -> u64 {
    if matches!(mode, Mode::Bulk { .. }) { (UNDER_WAY_BYTES / bytes.max(1)).clamp(2, 32) } else { 1 }
}

/// A rank's part in either job. Element 0 tells every rank alike when to stop: a rank whose time is over adds one.
pub(crate) fn run_rank(spec: &Spec, world: &Communicator, arena: &Arena) -> Result<(), String> {
    let tenant = Tenant { world, until: Instant::now() + Duration::from_secs_f64(spec.seconds) };
    let elements = (spec.sizes.first().copied().unwrap_or(SMALL_BYTES) / 4).max(1) as usize;
    let told = match spec.mode {
        Mode::Bulk { asleep } => tenant.bulk(arena, elements, asleep)?,
        _ => tenant.small(arena, elements)?,
    };
    if world.rank() == 0 {
        tell(&told)?;
    }
    Ok(())
}

fn tell(told: &Told) -> Result<(), String> {
    output::line(&serde_json::to_string(told).map_err(|e| e.to_string())?);
    Ok(())
}

struct Tenant<'a> {
    world: &'a Communicator,
    until: Instant,
}

impl<'a> Tenant<'a> {
    fn submit(&self, mut buffer: Buffer<f32>) -> Result<Pending<'a, Buffer<f32>>, String> {
        let over = f32::from(u8::from(Instant::now() >= self.until));
        buffer.iter_mut().take(1).for_each(|flag| *flag = over);
        self.world.allreduce_in_place(buffer, Reduction::Sum).map_err(|e| e.error.to_string())
    }

    /// The buffer again, and whether it was the last operation.
    fn wait(
        &self,
        mut pending: Pending<'a, Buffer<f32>>,
        asleep: bool,
    ) -> Result<(Buffer<f32>, bool), String> {
        while asleep && !pending.test() {
            thread::sleep(NAP);
        }
        let buffer = pending.wait().map_err(|e| e.error.to_string())?;
        let over = buffer.first().is_some_and(|flag| *flag > 0.0);
        Ok((buffer, over))
    }

    fn bulk(&self, arena: &Arena, elements: usize, asleep: bool) -> Result<Told, String> {
        let mut pending = std::collections::VecDeque::new();
        for _ in 0..depth(Mode::Bulk { asleep }, elements as u64 * 4) {
            pending.push_back(self.submit(arena.buffer(elements).map_err(|e| e.to_string())?)?);
        }
        let mut ended_ns = Vec::new();
        while let Some(oldest) = pending.pop_front() {
            let (buffer, over) = self.wait(oldest, asleep)?;
            ended_ns.push(monotonic_ns());
            if over {
                break;
            }
            if ended_ns.len() == 1 && self.world.rank() == 0 {
                tell(&Told::Started)?;
            }
            pending.push_back(self.submit(buffer)?);
        }
        // Every rank has submitted those that follow the last one.
        pending.into_iter().try_for_each(|p| self.wait(p, asleep).map(drop))?;
        Ok(Told::Bulk { ended_ns })
    }

    fn small(&self, arena: &Arena, elements: usize) -> Result<Told, String> {
        let mut buffer = arena.buffer(elements).map_err(|e| e.to_string())?;
        let mut times = Vec::new();
        loop {
            let begun = Instant::now();
            let (back, over) = self.wait(self.submit(buffer)?, false)?;
            times.push(begun.elapsed().as_nanos() as f64);
            if over {
                return Ok(Told::Small { time_us: Times::of(times), path: path(self.world) });
            }
            buffer = back;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_together_once_each_has_used_its_buffers() {
        let bytes = [UNDER_WAY_BYTES, UNDER_WAY_BYTES / 4];
        let ended = |from: u64, count: u64| (from..from + count).collect::<Vec<_>>();
        assert_eq!(together(bytes, &[ended(10, 8), ended(0, 20)]), (12, 17));
        assert_eq!(together(bytes, &[ended(0, 8), ended(4, 20)]), (8, 7));
        // One that did not come so far was not beside the other.
        assert_eq!(together(bytes, &[ended(0, 8), ended(0, 4)]), (u64::MAX, 3));
    }

    #[test]
    fn operations_count_with_the_part_that_is_inside() {
        let ended = [0, 100, 200, 300];
        let count = |from, to| operations_within(&ended, from, to);
        assert!((count(0, 300) - 3.0).abs() < 1e-9);
        assert!((count(50, 225) - 1.75).abs() < 1e-9);
        assert!(count(400, 500).abs() < 1e-9);
    }
}
