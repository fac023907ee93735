//! Which words of a communicator's argument slab are in use.

use std::collections::VecDeque;

/// Gives out ranges, in a circle. The daemon reads an operation's range when it accepts the operation, which this side
/// learns no earlier than by its completion: until then the range is in use.
#[derive(Debug)]
pub(crate) struct Slab {
    size: u64,
    /// Words before this are free. Both count from the beginning and never wrap.
    head: u64,
    /// Words from this on are free.
    tail: u64,
    /// Ranges in use, in order: where each ends, and how many operations still use it.
    live: VecDeque<(u64, usize)>,
    /// How many ranges were in use before the first of those.
    passed: u64,
}

/// Names a range in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlabRange(u64);

impl Slab {
    /// An unused slab of so many words, for about so many operations at a time.
    pub(crate) fn new(size: u32, operations: u32) -> Self {
        let live = VecDeque::with_capacity(operations as usize);
        Self { size: u64::from(size), head: 0, tail: 0, live, passed: 0 }
    }

    /// A range in one piece for this many operations: its first word. `None` when there is none free now.
    pub(crate) fn reserve(&mut self, words: usize, operations: usize) -> Option<(u32, SlabRange)> {
        if self.live.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        let (size, words) = (self.size, words as u64);
        let mut start = self.tail;
        if start.checked_rem(size)?.checked_add(words)? > size {
            start = start.next_multiple_of(size);
        }
        let end = start.checked_add(words)?;
        if end - self.head > size {
            return None;
        }
        let first = u32::try_from(start % size).ok()?;
        self.tail = end;
        self.live.push_back((end, operations));
        Some((first, SlabRange(self.passed + self.live.len() as u64 - 1)))
    }

    /// One of a range's operations does not use it any more.
    pub(crate) fn release(&mut self, range: SlabRange) {
        let index = range.0.checked_sub(self.passed).and_then(|i| usize::try_from(i).ok());
        if let Some((_, users)) = index.and_then(|i| self.live.get_mut(i)) {
            *users = users.saturating_sub(1);
        }
        while let Some((end, _)) = self.live.pop_front_if(|(_, users)| *users == 0) {
            self.head = end;
            self.passed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_in_use_never_overlap_and_all_words_come_back(
            size in 1_u32..200,
            steps in prop::collection::vec((1_usize..80, 1_usize..4, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let mut slab = Slab::new(size, 4);
            let mut held: Vec<(Range<u32>, SlabRange, usize)> = Vec::new();
            for (words, operations, which, take) in steps {
                if take {
                    if let Some((first, range)) = slab.reserve(words, operations) {
                        let new = first..first + words as u32;
                        prop_assert!(new.end <= size);
                        prop_assert!(held.iter().all(|(old, ..)| old.end <= new.start || new.end <= old.start));
                        held.push((new, range, operations));
                    } else {
                        prop_assert!(words > size as usize || !held.is_empty());
                    }
                } else if !held.is_empty() {
                    let at = which.index(held.len());
                    slab.release(held[at].1);
                    held[at].2 -= 1;
                    if held[at].2 == 0 {
                        held.swap_remove(at);
                    }
                }
            }
            for (_, range, operations) in held {
                (0..operations).for_each(|_| slab.release(range));
            }
            prop_assert_eq!(slab.reserve(size as usize, 1).map(|(first, _)| first), Some(0));
        }
    }

    #[test]
    fn a_slab_without_words_gives_none() {
        assert_eq!(Slab::new(0, 4).reserve(1, 1), None);
    }
}
