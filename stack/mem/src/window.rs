//! Bounds-checked windows: ranges of a mapping, or of a slice, of unknown and changing content.

use core::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

/// A range of bytes in a [`Mapping`](crate::Mapping), or in an ordinary slice, valid for as long as what it was made
/// from is borrowed, of unknown and changing content. Copies of a window are the same bytes, on every thread: where two
/// threads, or two processes, write and read them at once, what is read is some mix of old and new.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
    borrowed: PhantomData<&'a ()>,
}

// SAFETY: a window is a bounds-checked range of a `Mapping`, which is `Sync`, or of plain bytes, which are `Send` and
// `Sync`.
unsafe impl Send for Window<'_> {}
// SAFETY: as above; it hands out raw pointers and copies only, never a reference.
unsafe impl Sync for Window<'_> {}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for a cache line that will be written soon, so that writing it does not wait for whoever read it last.
#[inline(always)]
pub fn prefetch_for_writing(line: *const u8) {
    // The intrinsic of this name needs a feature that is not in the baseline, and only reads without it.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and touches nothing, wherever it points; processors that do not know this one take it
    // for no operation.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Asks for a cache line that will be read soon.
#[inline(always)]
pub fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and touches nothing, wherever it points; SSE, which has it, is in the baseline of the
    // architecture.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

impl<'a> Window<'a> {
    /// A window over ordinary memory, only to be read. Nothing writes the slice while it is borrowed.
    #[must_use]
    pub const fn of(slice: &'a [u8]) -> Self {
        let base = NonNull::from_ref(slice).cast();
        // SAFETY: the slice is borrowed for `'a` and all its bytes are readable.
        unsafe { Self::from_raw(base, slice.len(), false) }
    }

    /// A window over ordinary memory, to be read and written. The slice cannot be used otherwise for as long as the
    /// window, or a copy or part of it, is.
    #[must_use]
    pub const fn of_mut(slice: &'a mut [u8]) -> Self {
        let length = slice.len();
        let base = NonNull::from_mut(slice).cast();
        // SAFETY: the slice is borrowed exclusively for `'a`; any bytes are valid in it.
        unsafe { Self::from_raw(base, length, true) }
    }

    /// A window over any memory.
    ///
    /// # Safety
    /// For all of `'a`, `length` bytes from `base` on are valid for reads, and if `writable` for writes, by raw copies,
    /// and no reference that asserts otherwise is used.
    pub(crate) const unsafe fn from_raw(base: NonNull<u8>, length: usize, writable: bool) -> Self {
        Self { base, length, writable, borrowed: PhantomData }
    }

    /// Bytes in the window.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Whether the window has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether the bytes may be written.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// The first byte. Valid for reads of [`Window::length`] bytes, and for writes when [`Window::is_writable`].
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// As [`Window::as_ptr`].
    #[inline]
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// A part of the window, or `None` when it is not all inside.
    #[must_use]
    #[inline]
    pub fn sub(&self, offset: usize, length: usize) -> Option<Self> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: `offset` is at most `self.length`, so the result is inside the window or one past its end.
        let base = unsafe { self.base.add(offset) };
        Some(Window { base, length, ..*self })
    }

    /// Asks for the lines of a window of a few KiB that will be written soon, so that they come at the same time.
    #[inline]
    pub fn prefetch_for_writing(&self) {
        for offset in (0..self.length).step_by(LINE) {
            prefetch_for_writing(self.base.as_ptr().wrapping_add(offset));
        }
    }

    /// Asks for as many bytes behind this window as it has, a few KiB, which are mostly what is read next. They need not be
    /// anybody's: nothing is touched.
    #[inline]
    pub fn prefetch_behind(&self) {
        for offset in (self.length..2 * self.length).step_by(LINE) {
            prefetch(self.base.as_ptr().wrapping_add(offset));
        }
    }

    /// Copies to another window, which may overlap this one; returns how many bytes: the shorter of the two lengths, zero
    /// when the other is read-only. For a few bytes; longer copies are the business of kernels made for them.
    #[inline]
    pub fn copy_to(&self, to: &Window<'_>) -> usize {
        let n = self.length.min(to.length);
        if !to.writable {
            return 0;
        }
        let (from, into) = (self.base.as_ptr(), to.base.as_ptr());
        match n {
            // One load and one store, rather than a call: what most short messages are.
            // SAFETY: four bytes are inside both windows, of which `to` is writable; an array of bytes may lie anywhere.
            4 => unsafe { core::ptr::copy(from.cast::<[u8; 4]>(), into.cast(), 1) },
            // SAFETY: as above, with eight bytes.
            8 => unsafe { core::ptr::copy(from.cast::<[u8; 8]>(), into.cast(), 1) },
            // SAFETY: `n` bytes are inside both windows, of which `to` is writable. Other processes may change them
            // meanwhile; a copy of bytes then yields some mix of old and new, which callers expect.
            _ => unsafe { core::ptr::copy(from, into, n) },
        }
        n
    }

    /// The word of four bytes at an offset, and whatever was written before it was stored; `None` when it is not inside or
    /// not at a multiple of four.
    #[must_use]
    #[inline]
    pub fn load_word(&self, offset: usize) -> Option<u32> {
        self.word(offset).map(|word| word.load(Ordering::Acquire))
    }

    /// Stores a word of four bytes after everything that was written before; `false` when it is not inside, not at a multiple
    /// of four, or the window is read-only.
    #[inline]
    pub fn store_word(&self, offset: usize, value: u32) -> bool {
        let word = self.word(offset).filter(|_| self.writable);
        word.inspect(|word| word.store(value, Ordering::Release)).is_some()
    }

    #[inline]
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let place = self.sub(offset, size_of::<u32>())?.as_ptr().cast::<u32>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: four aligned bytes inside the window, which is borrowed for as long as the reference lives. Other
        // processes and devices change them by whole words or by bytes, which an atomic load finds as some value.
        Some(unsafe { AtomicU32::from_ptr(place) })
    }

    /// Copies the first bytes out; returns how many (the shorter of the two lengths).
    pub fn read(&self, into: &mut [u8]) -> usize {
        let n = into.len().min(self.length);
        // SAFETY: `n` bytes are inside the window, and `into`, borrowed exclusively, lies outside it. The source may be
        // changed by another process meanwhile; `copy` of bytes then yields some mix of old and new, which callers
        // expect.
        unsafe { core::ptr::copy_nonoverlapping(self.base.as_ptr(), into.as_mut_ptr(), n) };
        n
    }

    /// Copies bytes in; returns how many: the shorter of the two lengths, zero when the window is read-only.
    pub fn write(&self, from: &[u8]) -> usize {
        if !self.writable {
            return 0;
        }
        let n = from.len().min(self.length);
        // SAFETY: `n` bytes are inside the writable window, and `from`, which nobody may write while it is borrowed,
        // lies outside it.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr(), n) };
        n
    }
}

/// An empty list of another lifetime in the same allocation: for lists of windows that are filled anew in every call, on
/// a path that must not allocate. (Collecting in place reuses the allocation.)
#[must_use]
pub fn recycle<From, To>(mut list: Vec<From>) -> Vec<To> {
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_aligned_inside_and_written_only_where_that_is_allowed() {
        let mapping = crate::Mapping::private(16).expect("map");
        let window = mapping.window(0, 16).expect("window");
        assert!(window.store_word(4, 7) && window.store_word(12, 9));
        assert_eq!([0, 4, 12].map(|at| window.load_word(at)), [Some(0), Some(7), Some(9)]);
        assert_eq!([1, 13, 16, usize::MAX].map(|at| window.load_word(at)), [None; 4]);
        assert!(!window.store_word(2, 1) && !window.store_word(16, 1));
        let read_only = Window { writable: false, ..window };
        assert!(!read_only.store_word(0, 1));
        assert_eq!(read_only.load_word(4), Some(7));
    }

    #[test]
    fn short_copies_take_the_shorter_length_and_respect_protection() {
        for n in 0..40 {
            let from: Vec<u8> = (0..n).collect();
            let mut into = [0xff; 32];
            let copied = Window::of(&from).copy_to(&Window::of_mut(&mut into));
            assert_eq!(copied, from.len().min(32));
            assert_eq!(into[..copied], from[..copied]);
            assert!(into[copied..].iter().all(|b| *b == 0xff));
            assert_eq!(Window::of(&from).copy_to(&Window::of(&into)), 0);
        }
    }

    #[test]
    fn a_shared_slice_is_only_read() {
        let bytes = *b"hello";
        let window = Window::of(&bytes);
        assert!(!window.is_writable() && window.length() == 5);
        assert_eq!(window.write(b"x"), 0);
        let mut back = [0; 8];
        assert_eq!(window.sub(1, 4).expect("inside").read(&mut back), 4);
        assert_eq!(&back, b"ello\0\0\0\0");
        assert!(window.sub(1, 5).is_none() && window.sub(usize::MAX, 1).is_none());
        assert_eq!(&bytes, b"hello", "the slice may be used beside the window");
    }

    #[test]
    fn an_exclusive_slice_is_written() {
        let mut bytes = [0; 6];
        let window = Window::of_mut(&mut bytes);
        assert!(window.is_writable() && window.length() == 6);
        assert_eq!(window.sub(2, 3).expect("inside").write(b"abcd"), 3);
        let mut back = [0; 6];
        assert_eq!(window.read(&mut back), 6, "a copy of a window sees what another wrote");
        assert_eq!(back, bytes);
        assert_eq!(&bytes, b"\0\0abc\0", "nothing outside the part");
    }

    #[test]
    fn empty_slices_give_empty_windows() {
        assert!(Window::of(&[]).is_empty());
        let window = Window::of_mut(&mut []);
        assert_eq!((window.write(b"x"), window.read(&mut [0]), window.length()), (0, 0, 0));
        assert!(window.sub(0, 0).is_some() && window.sub(1, 0).is_none());
    }
}
