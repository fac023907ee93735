//! On which processor a rank, or the thread that stands for it in the floor, runs.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors this process may use.
pub(crate) fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Keeps the calling thread, and threads that it starts later, on the processor of the place's number: one after the
/// other, from the first again when there are more places than processors.
pub(crate) fn pin(place: usize, processors: &[usize]) {
    if let Some(cpu) = processors.get(place.checked_rem(processors.len()).unwrap_or(0)) {
        pin_to(*cpu);
    }
}

/// Keeps the calling thread on this processor. Where that is not allowed it runs where it may.
pub(crate) fn pin_to(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}
