//! What a wake-up costs on this host.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

use super::allowed_cpus;

const ROUNDS: usize = 16;
const BOUND: Duration = Duration::from_millis(5);
/// Spinning for less saves nothing: a client that computes between two operations takes longer than a busy core.
const LEAST: Duration = Duration::from_micros(50);
const MOST: Duration = Duration::from_micros(200);

/// Measures how long it takes from waking a sleeping thread on another core until it runs: the median of a few
/// hand-overs through eventfds, within 5 ms, held to a sensible range. A host that cannot tell counts as a slow one.
pub(crate) fn wake_up_cost() -> Duration {
    // Left to itself the scheduler puts both ends on one core as often as not, where a wake-up is a mere switch.
    let cpus = allowed_cpus();
    let before = sched_getaffinity(None);
    let other = match cpus.as_slice() {
        [own, other, ..] => {
            stay_on(*own);
            Some(*other)
        }
        _ => None,
    };
    let cost = measure(other);
    if let Ok(before) = before {
        // It was in force a moment ago, so it is allowed.
        let _ = sched_setaffinity(None, &before);
    }
    cost.unwrap_or(MOST).clamp(LEAST, MOST)
}

fn stay_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // A CPU that went offline meanwhile makes the measurement worse, not wrong.
    let _ = sched_setaffinity(None, &set);
}

fn measure(other: Option<usize>) -> Option<Duration> {
    let there = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
    let back = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
    std::thread::scope(|scope| {
        let (to, from) = (there.as_fd(), back.as_fd());
        let echo = move || {
            other.into_iter().for_each(stay_on);
            for _ in 0..ROUNDS {
                let mut count = [0; 8];
                if rustix::io::read(to, &mut count).is_err() || count != 1_u64.to_ne_bytes() {
                    return;
                }
                let _ = rustix::io::write(from, &1_u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new().name("ringway-measure".to_owned()).spawn_scoped(scope, echo).ok()?;
        let half_rounds = exchange(&there, &back);
        // Whatever the echo still waits for is answered by a value that ends it.
        let _ = rustix::io::write(&there, &2_u64.to_ne_bytes());
        half_rounds
    })
}

fn exchange(there: impl AsFd, back: impl AsFd) -> Option<Duration> {
    let start = Instant::now();
    let mut times = Vec::with_capacity(ROUNDS);
    while times.len() < ROUNDS - 1 {
        let left = BOUND.checked_sub(start.elapsed())?;
        let sent = Instant::now();
        rustix::io::write(&there, &1_u64.to_ne_bytes()).ok()?;
        let timeout =
            rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::try_from(left.as_nanos()).unwrap_or(0) };
        if poll(&mut [PollFd::new(&back, PollFlags::IN)], Some(&timeout)).ok()? == 0 {
            break;
        }
        rustix::io::read(&back, &mut [0; 8]).ok()?;
        times.push(sent.elapsed() / 2);
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_costs_something_and_measuring_it_ends() {
        let cost = wake_up_cost();
        assert!((LEAST..=MOST).contains(&cost));
    }
}
