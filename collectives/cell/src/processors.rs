//! How many processors the workers of a cell have together, as a rank, or a daemon, may be bound to one while the others run
//! elsewhere; and near which memory they are.

use std::fs;

use ringway_mem::calls;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

/// Words of a [`ProcessorSet`].
pub(crate) const SET_WORDS: usize = 16;

/// Processors that a list may name.
const PROCESSORS_MOST: u32 = 1 << 16;

/// How many processors the machine has, as Linux lists those that are online; `None` when it does not say.
#[must_use]
pub fn online_processors() -> Option<u32> {
    count_listed(&fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

/// The first and last number of each range in a list like `0-3,8`; `None` for what is no range.
fn ranges(list: &str) -> impl Iterator<Item = Option<(u32, u32)>> {
    list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some((first, last))
    })
}

/// How many numbers a list has.
fn count_listed(list: &str) -> Option<u32> {
    ranges(list).try_fold(0_u32, |sum, range| {
        let (first, last) = range?;
        sum.checked_add(last - first)?.checked_add(1)
    })
}

/// The processor on which this thread runs now. Makes no system call.
#[must_use]
pub fn current_processor() -> usize {
    sched_getcpu()
}

/// Processors, by the numbers that Linux gives them. Those beyond the first 1024 are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessorSet {
    pub(crate) words: [u64; SET_WORDS],
}

impl ProcessorSet {
    /// Those on which this thread may run; the machine's when the kernel does not say. A system call.
    #[must_use]
    pub fn allowed() -> Self {
        calls::count();
        match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
            Err(_) => (0..online_processors().unwrap_or(1) as usize).collect(),
        }
    }

    /// How many they are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Those of either.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        self.words.iter_mut().zip(other.words).for_each(|(word, other)| *word |= other);
        self
    }
}

impl FromIterator<usize> for ProcessorSet {
    fn from_iter<I: IntoIterator<Item = usize>>(processors: I) -> Self {
        let mut set = Self::default();
        for processor in processors {
            if let Some(word) = set.words.get_mut(processor / 64) {
                *word |= 1 << (processor % 64);
            }
        }
        set
    }
}

/// How many can run at a time of those who may run on these processors together: as many as there are, as far as their control
/// group's quota goes. One at least.
#[must_use]
pub fn budget(together: &ProcessorSet, quota: Option<u32>) -> u32 {
    together.count().min(quota.unwrap_or(u32::MAX)).max(1)
}

/// On which NUMA node each processor is.
#[derive(Debug, Clone, Default)]
pub struct NumaNodes {
    /// By the processor's number.
    of: Vec<Option<u32>>,
}

impl NumaNodes {
    /// As Linux lists them: none where it does not.
    #[must_use]
    pub fn read() -> Self {
        let mut nodes = Self::default();
        let folders = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
        for folder in folders {
            let name = folder.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
            if let (Some(number), Ok(list)) = (number, fs::read_to_string(folder.path().join("cpulist"))) {
                nodes.add(number, &list);
            }
        }
        nodes
    }

    /// Processors of one node, as a list.
    fn add(&mut self, node: u32, list: &str) {
        for (first, last) in ranges(list).flatten().filter(|(_, last)| *last < PROCESSORS_MOST) {
            let last = last as usize;
            if self.of.len() <= last {
                self.of.resize(last + 1, None);
            }
            if let Some(of) = self.of.get_mut(first as usize..=last) {
                of.fill(Some(node));
            }
        }
    }

    /// The node on which this thread runs now, where it is known. Makes no system call.
    #[must_use]
    pub fn here(&self) -> Option<u32> {
        if self.of.is_empty() { None } else { self.of.get(current_processor()).copied().flatten() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count_listed("0-3,8\n"), Some(5));
        assert_eq!(count_listed("0"), Some(1));
        assert_eq!((count_listed(""), count_listed("3-1"), count_listed("0-x")), (None, None, None));
    }

    /// For ranks that are bound so.
    fn of(bound: &[&[usize]], quota: Option<u32>) -> u32 {
        let sets = bound.iter().map(|processors| processors.iter().copied().collect::<ProcessorSet>());
        budget(&sets.fold(ProcessorSet::default(), |all, set| all.union(&set)), quota)
    }

    #[test]
    fn ranks_have_the_processors_on_which_any_of_them_may_run_as_far_as_the_quota_goes() {
        // All on one, whatever the machine has.
        assert_eq!(of(&[&[3][..]; 4], None), 1);
        // Each on its own.
        assert_eq!(of(&[&[0], &[1], &[2], &[1000]], None), 4);
        // Each on the two threads of its own core.
        let pairs = [0, 1, 2, 3, 4, 5, 6, 7].map(|core| [core, core + 64]);
        assert_eq!(of(&pairs.each_ref().map(<[usize; 2]>::as_slice), None), 16);
        // All on the same few.
        assert_eq!(of(&[&[0, 1, 2][..]; 8], None), 3);
        assert_eq!(of(&[&[0, 1, 2][..]; 8], Some(2)), 2);
        assert_eq!((of(&[&[0][..]; 2], Some(2)), of(&[], Some(9))), (1, 1));
        // Beyond what a set holds.
        assert_eq!(of(&[&[5, 1024, usize::MAX]], None), 1);
    }

    #[test]
    fn a_thread_may_run_where_it_runs() {
        let allowed = ProcessorSet::allowed();
        let here: ProcessorSet = [sched_getcpu()].into_iter().collect();
        assert!(!allowed.is_empty() && allowed.union(&here) == allowed, "{allowed:?}");
    }

    #[test]
    fn processors_are_on_the_nodes_that_list_them() {
        let mut nodes = NumaNodes::default();
        assert_eq!(nodes.here(), None);
        nodes.add(1, "2-3,6\n");
        nodes.add(0, "0-1,x,5-4,0-4294967295\n");
        // A node that has memory alone.
        nodes.add(2, "\n");
        assert_eq!(nodes.of, [Some(0), Some(0), Some(1), Some(1), None, None, Some(1)]);
        let read = NumaNodes::read();
        assert!(read.of.is_empty() || read.here().is_some(), "{read:?}");
    }
}
