//! More ranks than processors for them.

use std::{slice, thread};

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::harness::{Daemon, form, tell_all};

/// Allreduces, one after the other.
const CALLS: u32 = 1000;
/// What they may take in microseconds: with one burnt time slice of the kernel's in each, of 3 ms or more, they would take longer.
const BOUND_US: u64 = 2_000_000;
/// Other tests want the same processor.
const TRIES: u32 = 5;

/// What the slowest rank's calls of 8 bytes take in microseconds, all ranks being bound to one processor.
fn series_on_one_processor(daemon: &Daemon, ranks: usize) -> u64 {
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    // Processes may run where the thread may that starts them.
    sched_setaffinity(None, &one).expect("one processor of those that there are");
    let mut ranks = form(slice::from_ref(daemon), ranks, "");
    let mut took_us = || {
        tell_all(&mut ranks, &format!("series {CALLS} 2"));
        let took = ranks.iter_mut().map(|rank| rank.answer().expect("they all call it"));
        took.map(|us| us.parse::<u64>().expect("a number")).max().unwrap_or(u64::MAX)
    };
    (0..TRIES).map(|_| took_us()).find(|us| *us < BOUND_US).unwrap_or(u64::MAX)
}

#[test]
fn ranks_that_are_bound_to_one_processor_hand_it_over_rather_than_burn_time_slices() {
    let daemon = Daemon::start("");
    for ranks in [2, 4] {
        let took = thread::scope(|scope| scope.spawn(|| series_on_one_processor(&daemon, ranks)).join());
        assert!(
            took.expect("a time") < BOUND_US,
            "{CALLS} calls of {ranks} ranks took longer than {BOUND_US} us"
        );
    }
}
