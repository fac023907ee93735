//! Counters of blocks: which are claimed, and how many are done.
//!
//! A counter's word is the generation of its slot in the high 40 bits and the count in the low 24. A word of an earlier
//! generation counts as zero, so that nobody has to reset it between calls; a generation comes again after 2^46 calls.

use crate::{SLOTS, cell::Cell};

pub(crate) const COUNT_BITS: u32 = 24;
/// The most blocks of a lane.
pub(crate) const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const GENERATION_MAX: u64 = u64::MAX >> COUNT_BITS;

const fn generation(sequence: u64) -> u64 {
    (sequence / SLOTS) & GENERATION_MAX
}

const fn split(word: u64) -> (u64, u64) {
    (word >> COUNT_BITS, word & COUNT_MAX)
}

const fn join(generation: u64, count: u64) -> u64 {
    generation << COUNT_BITS | count
}

impl Cell {
    /// What a counter stands at for a call; more than any limit when a later call has begun to use it.
    #[inline]
    pub(crate) fn count(&self, word: usize, sequence: u64) -> u64 {
        let (found, count) = split(self.words.load_acquire(word));
        match found.cmp(&generation(sequence)) {
            core::cmp::Ordering::Less => 0,
            core::cmp::Ordering::Equal => count,
            core::cmp::Ordering::Greater => COUNT_MAX,
        }
    }

    /// Claims the next of `limit` blocks; `None` when all are claimed.
    #[inline]
    pub(crate) fn claim(&self, word: usize, sequence: u64, limit: u64) -> Option<u64> {
        let ours = generation(sequence);
        let mut seen = self.words.load(word);
        loop {
            let (found, count) = split(seen);
            let next = if found < ours { 0 } else { count };
            if found > ours || next >= limit.min(COUNT_MAX) {
                return None;
            }
            match self.words.replace(word, seen, join(ours, next + 1)) {
                Ok(()) => return Some(next),
                Err(now) => seen = now,
            }
        }
    }

    /// Adds to a counter. Everything done before is visible to whoever reads the new count.
    #[inline]
    pub(crate) fn add_count(&self, word: usize, sequence: u64, more: u64) {
        let ours = generation(sequence);
        let mut seen = self.words.load(word);
        loop {
            let (found, count) = split(seen);
            let now = if found < ours { more } else { count.saturating_add(more).min(COUNT_MAX) };
            if found > ours {
                // The call is over without us: only a cell whose words were tampered with says so.
                return;
            }
            match self.words.replace(word, seen, join(ours, now)) {
                Ok(()) => return,
                Err(other) => seen = other,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use ringway_mem::Mapping;

    use super::*;

    #[test]
    fn every_block_is_claimed_once_in_every_generation() {
        let length = usize::try_from(crate::bytes(2).expect("two ranks")).expect("fits");
        let cell = Cell::attach(Arc::new(Mapping::private(length).expect("map")), 2).expect("attach");
        for sequence in [3, 3 + SLOTS, 3 + 5 * SLOTS] {
            let word = cell.layout.claim(sequence, 1);
            let claimed: Vec<Vec<u64>> = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| std::iter::from_fn(|| cell.claim(word, sequence, 1000)).collect())
                    })
                    .collect();
                workers.into_iter().map(|w| w.join().expect("no panic")).collect()
            });
            let mut all: Vec<u64> = claimed.concat();
            all.sort_unstable();
            assert_eq!(all, (0..1000).collect::<Vec<_>>());
            let done = cell.layout.done(sequence, 1, 0);
            claimed.iter().for_each(|some| cell.add_count(done, sequence, some.len() as u64));
            assert_eq!(cell.count(done, sequence), 1000);
        }
        let word = cell.layout.claim(3, 1);
        assert_eq!(cell.claim(word, 3, 1000), None, "a worker of an earlier call gets nothing");
        assert_eq!(cell.count(word, 3), COUNT_MAX);
    }
}
