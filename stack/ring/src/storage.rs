//! The memory a ring lives in, as words that both sides may touch at any time.

/// One 64-bit cell that another thread or process may change at any time.
pub trait Word {
    /// Loads, ordered with nothing.
    fn load_relaxed(&self) -> u64;
    /// Loads; what the writer stored before its release store is visible afterwards.
    fn load_acquire(&self) -> u64;
    /// Stores, ordered with nothing.
    fn store_relaxed(&self, value: u64);
    /// Stores; everything stored before is visible to whoever acquires this value.
    fn store_release(&self, value: u64);
}

macro_rules! word_for {
    ($cell:path, $ordering:path) => {
        impl Word for &$cell {
            #[inline(always)]
            fn load_relaxed(&self) -> u64 {
                use $ordering as Ordering;
                self.load(Ordering::Relaxed)
            }
            #[inline(always)]
            fn load_acquire(&self) -> u64 {
                use $ordering as Ordering;
                self.load(Ordering::Acquire)
            }
            #[inline(always)]
            fn store_relaxed(&self, value: u64) {
                use $ordering as Ordering;
                self.store(value, Ordering::Relaxed);
            }
            #[inline(always)]
            fn store_release(&self, value: u64) {
                use $ordering as Ordering;
                self.store(value, Ordering::Release);
            }
        }
    };
}

word_for!(core::sync::atomic::AtomicU64, core::sync::atomic::Ordering);
#[cfg(loom)]
word_for!(loom::sync::atomic::AtomicU64, loom::sync::atomic::Ordering);

/// A ring's memory: a power of two of entries of `N` words, and the consumed count. The capacity is private truth: it
/// never changes and is never read from shared memory.
pub trait Storage<const N: usize> {
    /// How a word is reached.
    type Word<'a>: Word
    where
        Self: 'a;

    /// Entries; a power of two.
    fn capacity(&self) -> u64;

    /// A word of the entry that a position falls on (the position modulo the capacity). `word` is below `N`.
    fn entry(&self, position: u64, word: usize) -> Self::Word<'_>;

    /// How many entries were consumed since the ring began: written by the consumer, read by the producer.
    fn consumed(&self) -> Self::Word<'_>;
}
