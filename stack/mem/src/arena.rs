//! Where buffers lie in a client's region: an allocator of offsets.
//!
//! Best fit with coalescing, in units of 64 bytes (a cache line, so that no two buffers share one). Buffers of a page
//! or more begin at a different distance from a page boundary each ("cache colour"): equally aligned buffers that are
//! walked together, as the inputs of a reduction are, would otherwise compete for the same sets of the first-level
//! cache, and stores to one would be mistaken for the loads of another 4096 bytes away.
//!
//! Allocation is off the data path: trees, O(log n), may allocate.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

/// Alignment and unit of every block, in bytes.
pub const ARENA_UNIT: u64 = 64;
/// Blocks of at least so many bytes are given colours.
const COLOURED: u64 = 4096;
/// Bytes between colours: two lines, as processors prefetch the neighbour line.
const COLOUR_STEP: u64 = 128;
/// Colours in a page.
const COLOURS: u64 = COLOURED / COLOUR_STEP;
/// From one block's colour to the next one's; coprime to [`COLOURS`], so that all are used, and far from a
/// neighbour.
const COLOUR_STRIDE: u64 = 11;

/// Why no block was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// No free range is long enough.
    #[error(
        "no {wanted} bytes in a row are free: {free} of {length} are free, the longest run has {longest}; \
             drop buffers or make the arena larger"
    )]
    Full {
        /// The bytes asked for.
        wanted: u64,
        /// Free bytes altogether.
        free: u64,
        /// Bytes of the longest free range.
        longest: u64,
        /// The arena's bytes.
        length: u64,
    },
    /// No block begins there.
    #[error("no allocated block begins at offset {0}: release each block once, by the offset it was given")]
    NotAllocated(u64),
}

/// Allocates offsets in a region.
#[derive(Debug)]
pub struct Arena {
    length: u64,
    /// Free ranges: length by offset. No two touch.
    free: BTreeMap<u64, u64>,
    /// The same as (length, offset).
    by_length: BTreeSet<(u64, u64)>,
    /// Allocated blocks: length by offset.
    used: BTreeMap<u64, u64>,
    free_bytes: u64,
    colour: u64,
}

impl Arena {
    /// An empty arena of `length` bytes, rounded down to whole units.
    #[must_use]
    pub fn new(length: u64) -> Self {
        let length = length - length % ARENA_UNIT;
        let mut arena = Self {
            length,
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            used: BTreeMap::new(),
            free_bytes: 0,
            colour: 0,
        };
        arena.give(0, length);
        arena
    }

    /// Bytes of the arena.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Free bytes, in however many ranges.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Allocated blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.used.len()
    }

    /// Allocates a block of at least `bytes` bytes (one unit for zero); returns its offset, a multiple of
    /// [`ARENA_UNIT`].
    ///
    /// # Errors
    /// [`ArenaError::Full`] when no free range is long enough.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, ArenaError> {
        let wanted = bytes.max(1).checked_next_multiple_of(ARENA_UNIT).ok_or_else(|| self.full(bytes))?;
        let coloured = wanted >= COLOURED;
        let place = if coloured { self.place_coloured(wanted) } else { None };
        let (range, start) = match place {
            Some(found) => found,
            // Uncoloured is better than not at all.
            None => self.place(wanted).ok_or_else(|| self.full(bytes))?,
        };
        if coloured {
            self.colour = (self.colour + COLOUR_STRIDE) % COLOURS;
        }
        let length = self.take(range);
        // `start` is inside the range and `wanted` bytes from it as well.
        let (before, after) = (start - range, (range + length) - (start + wanted));
        self.give(range, before);
        self.give(start + wanted, after);
        self.used.insert(start, wanted);
        Ok(start)
    }

    /// Frees a block; returns its length, in whole units.
    ///
    /// # Errors
    /// [`ArenaError::NotAllocated`] when no block begins at the offset.
    pub fn release(&mut self, offset: u64) -> Result<u64, ArenaError> {
        let bytes = self.used.remove(&offset).ok_or(ArenaError::NotAllocated(offset))?;
        let (mut start, mut length) = (offset, bytes);
        if let Some((&before, &before_length)) = self.free.range(..offset).next_back()
            && before + before_length == offset
        {
            self.take(before);
            (start, length) = (before, before_length + bytes);
        }
        let end = offset + bytes;
        if self.free.contains_key(&end) {
            length += self.take(end);
        }
        self.give(start, length);
        Ok(bytes)
    }

    /// The shortest free range that is long enough: its offset, and where the block begins.
    fn place(&self, wanted: u64) -> Option<(u64, u64)> {
        self.by_length.range((wanted, 0)..).next().map(|&(_, range)| (range, range))
    }

    /// The shortest free range in which a block of the next colour fits, and where the block begins. Any range with a
    /// page to spare does, so few are looked at: those between `wanted` and a page more.
    fn place_coloured(&self, wanted: u64) -> Option<(u64, u64)> {
        let colour = self.colour * COLOUR_STEP;
        self.by_length.range((wanted, 0)..).find_map(|&(length, range)| {
            let aligned = range.checked_sub(colour).map_or(0, |r| r.next_multiple_of(COLOURED));
            let start = aligned + colour;
            (start - range <= length - wanted).then_some((range, start))
        })
    }

    /// Takes a free range out; returns its length.
    fn take(&mut self, offset: u64) -> u64 {
        let length = self.free.remove(&offset).unwrap_or(0);
        self.by_length.remove(&(length, offset));
        self.free_bytes -= length;
        length
    }

    /// Puts a free range in that touches no other.
    fn give(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.free.insert(offset, length);
            self.by_length.insert((length, offset));
            self.free_bytes += length;
        }
    }

    fn full(&self, wanted: u64) -> ArenaError {
        let longest = self.by_length.last().map_or(0, |&(length, _)| length);
        ArenaError::Full { wanted, free: self.free_bytes, longest, length: self.length }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Allocate(u64),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = prop_oneof![0u64..200, 200u64..5000, 5000u64..200_000, Just(u64::MAX), Just(4096u64)];
        prop_oneof![bytes.prop_map(Step::Allocate), any::<prop::sample::Index>().prop_map(Step::Release)]
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_everything_coalesces_back(
            length in 0u64..1_000_000,
            steps in prop::collection::vec(step(), 0..150),
        ) {
            let mut arena = Arena::new(length);
            let whole = arena.length();
            let mut held: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(bytes) => match arena.allocate(bytes) {
                        Ok(start) => {
                            prop_assert!(start % ARENA_UNIT == 0 && start + bytes.max(1) <= whole);
                            let end = start + bytes.max(1);
                            prop_assert!(held.iter().all(|&(s, e)| end <= s || e <= start));
                            held.push((start, end));
                        }
                        Err(ArenaError::Full { longest, .. }) => prop_assert!(longest < bytes.max(1)),
                        Err(other) => prop_assert!(false, "{other}"),
                    },
                    Step::Release(which) if !held.is_empty() => {
                        let (start, end) = held.swap_remove(which.index(held.len()));
                        prop_assert!(arena.release(start).expect("held") >= end - start);
                        prop_assert_eq!(arena.release(start), Err(ArenaError::NotAllocated(start)));
                    }
                    Step::Release(_) => {}
                }
                let used: u64 = arena.used.values().sum();
                prop_assert_eq!(used + arena.free_bytes(), whole);
                prop_assert_eq!(arena.free.values().sum::<u64>(), arena.free_bytes());
                prop_assert_eq!(arena.free.len(), arena.by_length.len());
            }
            for (start, _) in held {
                arena.release(start).expect("held");
            }
            prop_assert_eq!((arena.blocks(), arena.free_bytes()), (0, whole));
            prop_assert!(arena.free.len() <= 1, "one range again: {:?}", arena.free);
        }
    }

    #[test]
    fn buffers_of_one_size_differ_in_colour() {
        let mut arena = Arena::new(64 << 20);
        let mut colours: Vec<u64> =
            (0..COLOURS).map(|_| arena.allocate(1 << 20).expect("room") % 4096).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len() as u64, COLOURS);
    }

    #[test]
    fn the_whole_arena_can_be_one_block() {
        let mut arena = Arena::new(1 << 20);
        for _ in 0..3 {
            let start = arena.allocate(1 << 20).expect("room");
            assert_eq!(start, 0);
            assert!(matches!(arena.allocate(1), Err(ArenaError::Full { longest: 0, .. })));
            arena.release(start).expect("held");
        }
    }
}
