//! The words of a cell in mapped memory: the only module with unsafe code.
#![expect(
    unsafe_code,
    reason = "shared memory is reached through raw pointers; this module is where that happens"
)]

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, fence};
use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering, compiler_fence},
    time::Duration,
};
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};

use ringway_mem::{Mapping, Protection, Window, calls};
use rustix::{
    thread::futex::{self, Flags},
    time::Timespec,
};

const _: () = assert!(cfg!(target_endian = "little"), "the futex word is the low half of its 64-bit word");

/// Words that other processes read and write at any time. Every method takes any index: one beyond the end, which only
/// a mistake of ours could make, is taken for the last word.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    base: NonNull<u64>,
    last: usize,
    mapping: Arc<Mapping>,
    /// The words, where loom must see them; the mapping then only has the payloads.
    #[cfg(loom)]
    modelled: Arc<Vec<AtomicU64>>,
}

// SAFETY: the pointer is into the mapping that the value keeps alive, and all access is atomic.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The first `count` words of a mapping; `None` when it is shorter or read-only.
    pub(crate) fn new(mapping: Arc<Mapping>, count: usize) -> Option<Self> {
        let window = mapping.window(0, count.checked_mul(8)? as u64)?;
        let base = NonNull::new(window.as_ptr().cast::<u64>()).filter(|base| base.is_aligned())?;
        let writable = mapping.protection() == Protection::ReadWrite;
        let last = count.checked_sub(1)?;
        writable.then(|| Self {
            base,
            last,
            mapping,
            #[cfg(loom)]
            modelled: Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()),
        })
    }

    #[inline(always)]
    fn pointer(&self, index: usize) -> NonNull<u64> {
        debug_assert!(index <= self.last, "word {index} of {}", self.last);
        // SAFETY: the index is at most that of the last word, so the result is inside the mapping.
        unsafe { self.base.add(index.min(self.last)) }
    }

    #[cfg(loom)]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.modelled[index]
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the pointer is aligned and inside the mapping that `self` keeps alive, and only atomics ever touch
        // words by reference: their interior may change by design.
        unsafe { AtomicU64::from_ptr(self.pointer(index).as_ptr()) }
    }

    /// Loads, ordered with nothing.
    #[inline(always)]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Loads; what the writer stored before its release is visible afterwards.
    #[inline(always)]
    pub(crate) fn load_acquire(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Stores, ordered with nothing.
    #[inline(always)]
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Stores past the caches where that can be, ordered with nothing: whoever sees it may not see what was stored before.
    #[inline(always)]
    pub(crate) fn stream(&self, index: usize, value: u64) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        // SAFETY: the pointer is aligned and inside the mapping that `self` keeps alive. A store of an aligned word is one
        // access, as an atomic's is, and nobody refers to words but by atomics; SSE2 is in the baseline of the architecture.
        unsafe {
            core::arch::x86_64::_mm_stream_si64(self.pointer(index).as_ptr().cast(), value.cast_signed());
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        self.store(index, value);
    }

    /// What was streamed is visible before anything that follows.
    pub(crate) fn end_stream() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a fence touches nothing; SSE, which has it, is in the baseline of the architecture.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
    }

    /// Stores; everything read and stored before is over for whoever acquires this value.
    #[inline(always)]
    pub(crate) fn store_release(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Replaces `old` by `new`, acquiring and releasing; the value found otherwise.
    #[inline(always)]
    pub(crate) fn replace(&self, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.word(index).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Adds, wrapping; in one order with every other such call and [`full_fence`].
    #[inline(always)]
    pub(crate) fn add(&self, index: usize, value: u64) {
        self.word(index).fetch_add(value, Ordering::SeqCst);
    }

    /// Sets bits.
    pub(crate) fn set(&self, index: usize, bits: u64) {
        self.word(index).fetch_or(bits, Ordering::SeqCst);
    }

    /// Clears bits.
    pub(crate) fn clear(&self, index: usize, bits: u64) {
        self.word(index).fetch_and(!bits, Ordering::SeqCst);
    }

    /// Bytes beginning `start` after a word; `None` when they are not all inside.
    #[inline(always)]
    pub(crate) fn bytes(&self, index: usize, start: u64, length: u64) -> Option<Window<'_>> {
        self.mapping.window((index as u64 * 8).checked_add(start)?, length)
    }

    /// Asks for a line that will be written soon, so that writing it does not wait for whoever read it last.
    #[inline(always)]
    pub(crate) fn prefetch_for_writing(&self, index: usize) {
        ringway_mem::prefetch_for_writing(self.pointer(index).as_ptr().cast());
    }

    /// Asks for a line that will be read soon.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize) {
        ringway_mem::prefetch(self.pointer(index).as_ptr().cast());
    }

    fn futex(&self, index: usize) -> &AtomicU32 {
        let pointer = self.pointer(index).as_ptr().cast::<u32>();
        // SAFETY: the pointer is aligned, inside the mapping that `self` keeps alive, and on a little-endian machine
        // it is the low half of the word. Only its address is used, for the kernel.
        unsafe { AtomicU32::from_ptr(pointer) }
    }

    /// Blocks while the low half of a word has the expected value, at most for `timeout`.
    pub(crate) fn sleep(&self, index: usize, expected: u32, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        // Whatever ended it, the caller looks for itself.
        calls::count();
        let _ = futex::wait(self.futex(index), Flags::empty(), expected, timeout.as_ref());
    }

    /// Wakes whoever sleeps on a word.
    pub(crate) fn wake(&self, index: usize) {
        // The address is valid for as long as `self` lives, so the call cannot fail in a way that matters.
        calls::count();
        let _ = futex::wake(self.futex(index), Flags::empty(), u32::MAX >> 1);
    }
}

/// Everything before it is visible to every other thread before anything after it is done.
#[inline(always)]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Keeps the compiler from moving accesses across. What the processor does is up to the other side: see
/// [`crate::sleep`].
#[inline(always)]
pub(crate) fn program_order() {
    compiler_fence(Ordering::SeqCst);
}
