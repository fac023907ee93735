//! A yardstick: a ring that trusts its peer, checks nothing and completes nothing. What anything that protects and answers
//! costs is to be seen beside it. Not for use between processes.

extern crate alloc;

use alloc::boxed::Box;
use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::SUBMISSION_WORDS;

/// Entries of a ring; a power of two.
const CAPACITY: usize = 256;

/// An entry, as long as a submission.
pub type BareEntry = [u64; SUBMISSION_WORDS];

#[derive(Debug)]
#[repr(align(128))]
struct Index(AtomicU64);

#[derive(Debug)]
#[repr(align(64))]
struct Entry([AtomicU64; SUBMISSION_WORDS]);

/// One direction, between two threads. It is laid out like the fastest known ones (rigtorp's `SPSCQueue`): the indices 128
/// bytes apart, and each side keeps the other's. One entry at a time may take longer than through a [`crate::Producer`], whose
/// consumer looks at the entry itself: here the cache line of an index moves as well.
#[derive(Debug)]
pub struct BareRing {
    entries: Box<[Entry]>,
    head: Index,
    tail: Index,
}

/// One side's position, and what it knows of the other's.
#[derive(Debug, Default)]
pub struct BareCursor {
    position: u64,
    peer: u64,
}

impl BareRing {
    /// An empty ring.
    #[must_use]
    pub fn new() -> Self {
        let entry = |_| Entry([const { AtomicU64::new(0) }; SUBMISSION_WORDS]);
        let index = || Index(AtomicU64::new(0));
        Self { entries: (0..CAPACITY).map(entry).collect(), head: index(), tail: index() }
    }

    #[inline]
    fn entry(&self, position: u64) -> Option<&Entry> {
        self.entries.get(position as usize % CAPACITY)
    }

    /// Adds entries, no more than 256, as soon as there is room for all of them.
    #[inline]
    pub fn push(&self, cursor: &mut BareCursor, batch: &[BareEntry]) {
        while cursor.position + batch.len() as u64 - cursor.peer > CAPACITY as u64 {
            cursor.peer = self.head.0.load(Ordering::Acquire);
            spin_loop();
        }
        for words in batch {
            if let Some(entry) = self.entry(cursor.position) {
                entry.0.iter().zip(words).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
            }
            cursor.position += 1;
        }
        self.tail.0.store(cursor.position, Ordering::Release);
    }

    /// Takes what there is, at most so many entries; how many.
    #[inline]
    pub fn pop(&self, cursor: &mut BareCursor, most: u64, mut each: impl FnMut(BareEntry)) -> u64 {
        if cursor.peer == cursor.position {
            cursor.peer = self.tail.0.load(Ordering::Acquire);
        }
        let count = (cursor.peer - cursor.position).min(most);
        for _ in 0..count {
            if let Some(entry) = self.entry(cursor.position) {
                each(core::array::from_fn(|word| entry.0.get(word).map_or(0, |w| w.load(Ordering::Relaxed))));
            }
            cursor.position += 1;
        }
        if count > 0 {
            self.head.0.store(cursor.position, Ordering::Release);
        }
        count
    }

    /// Whether all that was added was taken.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.head.0.load(Ordering::Acquire) == self.tail.0.load(Ordering::Acquire)
    }
}

impl Default for BareRing {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn entries_come_once_and_in_order() {
        let ring = BareRing::new();
        let count = 10 * CAPACITY as u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut cursor = BareCursor::default();
                (0..count / 2).for_each(|pair| {
                    ring.push(
                        &mut cursor,
                        &[2 * pair, 2 * pair + 1].map(|number| [number; SUBMISSION_WORDS]),
                    );
                });
            });
            let (mut cursor, mut next) = (BareCursor::default(), 0);
            while next < count {
                let taken = ring.pop(&mut cursor, 3, |words| {
                    assert_eq!(words, [next; SUBMISSION_WORDS]);
                    next += 1;
                });
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
            assert_eq!(ring.pop(&mut cursor, 3, |_| {}), 0);
        });
        assert!(ring.is_drained());
    }
}
