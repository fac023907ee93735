//! A ring's memory as atomics in this process.

use std::sync::Arc;

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
use ringway_ring::Storage;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU64;

/// Memory of a ring, shared by two sides.
#[derive(Debug, Clone)]
pub(crate) struct Memory<const N: usize> {
    pub(crate) entries: Arc<Vec<[AtomicU64; N]>>,
    pub(crate) consumed: Arc<AtomicU64>,
}

impl<const N: usize> Memory<N> {
    pub(crate) fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two());
        let entries = (0..capacity).map(|_| core::array::from_fn(|_| AtomicU64::new(0))).collect();
        Self { entries: Arc::new(entries), consumed: Arc::new(AtomicU64::new(0)) }
    }
}

impl<const N: usize> Storage<N> for Memory<N> {
    type Word<'a> = &'a AtomicU64;

    fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    fn entry(&self, position: u64, word: usize) -> &AtomicU64 {
        let slot = position % self.entries.len() as u64;
        &self.entries[usize::try_from(slot).expect("below the capacity")][word]
    }

    fn consumed(&self) -> &AtomicU64 {
        &self.consumed
    }
}
