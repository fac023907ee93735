//! On which processor a rank, or the thread that stands for it in the floor, runs.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors this process may use.
pub(crate) fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The processors that one of several nodes on this machine has, which divide all of them; all of them where there are fewer
/// than nodes.
pub(crate) fn of_node(processors: &[usize], node: usize, nodes: usize) -> &[usize] {
    let first = |node| first_of_node(processors.len(), node, nodes);
    let own = processors.get(first(node)..first(node.saturating_add(1))).unwrap_or_default();
    if own.is_empty() { processors } else { own }
}

/// The place of the first processor that one of several nodes has.
pub(crate) fn first_of_node(processors: usize, node: usize, nodes: usize) -> usize {
    processors.saturating_mul(node).checked_div(nodes).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::of_node;

    #[test]
    fn nodes_divide_the_processors() {
        assert_eq!([0, 1].map(|node| of_node(&[4, 6], node, 2)), [[4], [6]]);
        assert_eq!([0, 1].map(|node| of_node(&[0, 1, 2], node, 2).len()), [1, 2]);
        assert_eq!([of_node(&[0, 1], 0, 1), of_node(&[0, 1], 0, 3), of_node(&[0, 1], 0, 0)], [[0, 1]; 3]);
    }
}
