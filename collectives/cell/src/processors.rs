//! How many processors the workers of a cell have together, as a rank, or a daemon, may be bound to one while the others run
//! elsewhere; and near which memory they are.

use std::fs;

use rustix::thread::sched_getcpu;

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
        if self.of.is_empty() { None } else { self.of.get(sched_getcpu()).copied().flatten() }
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
