//! Streaming (non-temporal) stores: whole lines of 64 bytes that go to memory without being read into a cache first.
//!
//! Only whole aligned lines are worth it. Where the first one is equally far into every destination, blocks of results go
//! there straight from the registers, after those before it. Else results are gathered in a [`Stage`],
//! a few hundred bytes that stay in the first-level cache, and each destination is sent the lines that are complete in
//! it, at its own alignment; the bytes before its first and after its last line are stored plainly. The way over the
//! stage costs nothing where memory is the limit, and a third where the sources are in the caches.

use core::ptr::NonNull;

use ringway_mem::Window;
use ringway_types::{DataType, Reduction};

use super::{ReduceJob, level::Level};
use crate::Stores;

/// Bytes of a cache line, which is what memory is written in.
const LINE: usize = 64;
/// Bytes of the largest block a kernel stores at once.
const BLOCK: usize = 256;
/// Below so many bytes nothing is streamed. At least a block of every type and a line more, so that the first block
/// reaches past every destination's first line boundary.
const LEAST: usize = 512;
/// Destinations of one call that are streamed to; further ones are written through the caches.
const MASKED: usize = u128::BITS as usize;

/// Whether streaming is possible here and sensible for windows of `length` bytes.
pub(crate) const fn helps(length: usize) -> bool {
    cfg!(target_arch = "x86_64") && length >= LEAST
}

/// The destinations, by their place in the slice, that are streamed to: those that are none of the sources.
fn streamed<'a>(
    stores: Stores,
    destinations: &[Window<'_>],
    sources: impl Iterator<Item = Window<'a>> + Clone,
) -> u128 {
    let is_source = |d: &Window<'_>| sources.clone().any(|s| s.as_ptr() == d.as_ptr());
    let is_kept = |place: usize| match stores {
        Stores::Cached => true,
        Stores::Streaming => false,
        Stores::StreamingBut(kept) => kept == place,
        Stores::StreamingOnly(only) => only != place,
    };
    let places = destinations.iter().take(MASKED).enumerate();
    let marked = places.filter(|(place, d)| !is_kept(*place) && !is_source(d));
    marked.fold(0, |mask, (i, _)| mask | 1 << i)
}

/// Whether the destination at a place is streamed to.
#[inline(always)]
const fn is_streamed(mask: u128, place: usize) -> bool {
    place < MASKED && mask >> place & 1 == 1
}

/// Bytes before the first line of every destination that is streamed to; `None` where they differ.
fn common_head(mask: u128, destinations: &[Window<'_>]) -> Option<usize> {
    let streamed = destinations.iter().enumerate().filter(|(place, _)| is_streamed(mask, *place));
    let mut heads = streamed.map(|(_, d)| d.as_ptr().addr().wrapping_neg() % LINE);
    let first = heads.next()?;
    heads.all(|head| head == first).then_some(first)
}

/// [`super::reduce`] with streaming stores, of a job of at least [`LEAST`] bytes.
pub(crate) fn reduce(
    (level, stores): (Level, Stores),
    datatype: DataType,
    reduction: Reduction,
    divisor: Option<u32>,
    job: ReduceJob<'_>,
) {
    let sources = core::iter::once(job.first).chain(job.rest).map(|source| source.window);
    let mask = streamed(stores, job.destinations, sources);
    if mask == 0 {
        return super::reduce(level, datatype, reduction, divisor, job);
    }
    let head = common_head(mask, job.destinations).filter(|head| head.is_multiple_of(datatype.size()));
    let mut stage = Stage::new(level, mask, head.is_some());
    let staged = ReduceJob { stage: Some(NonNull::from_mut(&mut stage)), head: head.unwrap_or(0), ..job };
    super::reduce(level, datatype, reduction, divisor, staged);
    // SAFETY: the stage has seen all bytes of the job, whose destinations were checked.
    unsafe { stage.finish(job.destinations, job.length) };
}

/// [`super::copy::copy`] with streaming stores, of at least [`LEAST`] bytes. What was streamed need not be visible before a
/// [`fence`].
///
/// # Safety
/// Every destination is writable and as long as the source; the processor has the level's features.
pub(crate) unsafe fn copy((level, stores): (Level, Stores), source: Window<'_>, destinations: &[Window<'_>]) {
    let mask = streamed(stores, destinations, core::iter::once(source));
    if mask == 0 {
        // SAFETY: the caller's promise is passed on.
        return unsafe { super::copy::copy(level, source, destinations) };
    }
    let length = source.length();
    let mut start = 0;
    while start < length {
        let end = length.min(start + BLOCK);
        let part = Part { from: source.as_ptr(), start, end };
        // SAFETY: the part is inside the source and every destination, and what was before it has been sent.
        unsafe { send_to_all(level, part, destinations, mask) };
        start = end;
    }
    // SAFETY: everything has been sent.
    unsafe { send_last(source.as_ptr(), destinations, length) };
}

/// Results on their way to the destinations: the last line's worth of what was sent on, and the next block.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Stage {
    /// The last bytes before the next block: some are in incomplete lines of some destinations.
    before: [u8; LINE],
    /// Where the next block is written.
    block: [u8; BLOCK],
    level: Level,
    streamed: u128,
    /// Blocks are not gathered: the large ones begin with a line in every destination that is streamed to.
    direct: bool,
}

impl Stage {
    const fn new(level: Level, streamed: u128, direct: bool) -> Self {
        Self { before: [0; LINE], block: [0; BLOCK], level, streamed, direct }
    }

    /// Whether blocks go to the destinations by [`Stage::send`], and not by way of the stage.
    #[inline(always)]
    pub(super) const fn is_direct(&self) -> bool {
        self.direct
    }

    /// Stores a block of results to every destination: past the caches, except to those that are not streamed to and
    /// where the block, one of the first or last few, is not whole registers or does not begin with one.
    ///
    /// # Safety
    /// Every destination is valid for writes of the block from `offset` on.
    #[inline(always)]
    pub(super) unsafe fn send<T: Copy, const N: usize>(
        &self,
        block: &[T; N],
        destinations: &[Window<'_>],
        offset: usize,
    ) {
        for (place, destination) in destinations.iter().enumerate() {
            // SAFETY: the caller vouches that `offset` is inside the destination.
            let to = unsafe { destination.as_ptr().add(offset) };
            #[cfg(target_arch = "x86_64")]
            if size_of::<[T; N]>().is_multiple_of(x86::REGISTER)
                && is_streamed(self.streamed, place)
                && to.addr().is_multiple_of(x86::REGISTER)
            {
                // SAFETY: the caller vouches for the block's bytes, which are whole registers, and aligned as the first
                // one is.
                unsafe { x86::stream_block(block, to) };
                continue;
            }
            let _ = place;
            // SAFETY: the caller vouches for the block's bytes.
            unsafe { super::write_block(to, block) };
        }
    }

    /// Where a kernel puts its next block: room for [`BLOCK`] bytes.
    #[inline(always)]
    pub(super) const fn next_block(&mut self) -> *mut u8 {
        self.block.as_mut_ptr()
    }

    /// The start of the whole result, were all of it in the stage: only the bytes from a line before `offset` on are.
    #[inline(always)]
    const fn from(&self, offset: usize) -> *const u8 {
        core::ptr::from_ref(self).cast::<u8>().wrapping_add(LINE).wrapping_sub(offset)
    }

    /// Sends the block on, `length` bytes that belong `offset` bytes into every destination.
    ///
    /// # Safety
    /// Every destination is valid for writes of these bytes, and everything before them went this way.
    #[inline(never)]
    pub(super) unsafe fn advance(&mut self, destinations: &[Window<'_>], offset: usize, length: usize) {
        let part = Part { from: self.from(offset), start: offset, end: offset + length };
        // SAFETY: the caller vouches for the destinations; the stage has the block and the line before it.
        unsafe { send_to_all(self.level, part, destinations, self.streamed) };
        if length >= LINE {
            let last = self.block.as_ptr().wrapping_add(length - LINE);
            // SAFETY: blocks have at most `BLOCK` bytes, so that a line's worth before their end is in the block,
            // which does not overlap what it is copied to. The constant length makes this two or four moves.
            unsafe { core::ptr::copy_nonoverlapping(last, self.before.as_mut_ptr(), LINE) };
        } else {
            self.before.copy_within(length.., 0);
            self.before[LINE - length..].copy_from_slice(&self.block[..length]);
        }
    }

    /// Stores the last, incomplete line of every destination, and makes visible all that was streamed.
    ///
    /// # Safety
    /// Every destination is valid for writes of `length` bytes, all of which went this way.
    unsafe fn finish(&self, destinations: &[Window<'_>], length: usize) {
        if !self.direct {
            // SAFETY: the stage has the last line's worth of bytes, and the caller vouches for the destinations.
            unsafe { send_last(self.from(length), destinations, length) };
        }
        fence();
    }
}

/// Bytes `start..end` of something whose first byte is, or would be, at `from`. The bytes of the line before `start`
/// are there as well, unless `start` is zero.
#[derive(Clone, Copy)]
struct Part {
    from: *const u8,
    start: usize,
    end: usize,
}

/// Sends a part to every destination.
///
/// # Safety
/// The part is readable, every destination is valid for writes of `..end`, what is before the part has been sent, and
/// the processor has the level's features.
#[inline(always)]
unsafe fn send_to_all(level: Level, part: Part, destinations: &[Window<'_>], mask: u128) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise is passed on.
        Level::Avx2 | Level::Avx512 => unsafe { x86::send_to_all_avx2(part, destinations, mask) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise is passed on.
        Level::Baseline => unsafe { x86::send_to_all_sse2(part, destinations, mask) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => {
            // `helps` says no here, so nothing comes this way.
            let _ = mask;
            for destination in destinations {
                // SAFETY: the caller's promise is passed on.
                unsafe { store(part.from, destination.as_ptr(), part.start, part.end) };
            }
        }
    }
}

/// Stores what is left in the last line of every destination.
///
/// # Safety
/// The last line's worth of the `length` bytes from `from` on is readable, every destination is valid for writes of
/// them, and all have been sent.
unsafe fn send_last(from: *const u8, destinations: &[Window<'_>], length: usize) {
    if cfg!(target_arch = "x86_64") {
        for destination in destinations {
            let to = destination.as_ptr();
            // SAFETY: the caller vouches for the bytes; the last boundary is at most a line before the end.
            unsafe { store(from, to, last_boundary(to, length), length) };
        }
    }
}

/// Makes everything that was streamed visible before what the thread writes next, which it is otherwise not.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of the architecture has the instruction.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// The last position up to `end` at which a line of the destination begins; `end` is at least a line.
#[inline(always)]
fn last_boundary(to: *mut u8, end: usize) -> usize {
    end - to.addr().wrapping_add(end) % LINE
}

/// Stores bytes `start..end` plainly.
///
/// # Safety
/// They are readable from `from` and writable at `to`.
#[inline(always)]
unsafe fn store(from: *const u8, to: *mut u8, start: usize, end: usize) {
    const STEP: usize = 32;
    let mut start = start;
    while end - start >= STEP {
        // SAFETY: the caller vouches for the bytes up to `end`. A copy of so few is a load and a store, not a call.
        let to = unsafe { to.add(start) };
        // SAFETY: as above, and as below.
        unsafe { core::ptr::copy(from.wrapping_add(start), to, STEP) };
        start += STEP;
    }
    let from = from.wrapping_add(start);
    // SAFETY: the caller vouches for the bytes up to `end`.
    let to = unsafe { to.add(start) };
    // SAFETY: as above; the stage overlaps nothing, and a copy's source only destinations that are its very bytes,
    // which `copy` allows: memory that is moved onto itself.
    unsafe { core::ptr::copy(from, to, end - start) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::{LINE, Part, Window, is_streamed, last_boundary, store};

    /// Bytes that are streamed at a time.
    pub(super) const REGISTER: usize = size_of::<__m128i>();

    /// Streams a block that is whole registers.
    ///
    /// # Safety
    /// `to` is valid for writes of the block, and aligned to [`REGISTER`].
    #[inline(always)]
    pub(super) unsafe fn stream_block<T: Copy, const N: usize>(block: &[T; N], to: *mut u8) {
        let from = core::ptr::from_ref(block).cast::<__m128i>();
        let to = to.cast::<__m128i>();
        for i in 0..size_of::<[T; N]>() / REGISTER {
            // SAFETY: the `i`-th of the block's registers. SSE2 is in the baseline of the architecture.
            let value = unsafe { _mm_loadu_si128(from.wrapping_add(i)) };
            // SAFETY: the caller vouches for the bytes and the alignment.
            unsafe { _mm_stream_si128(to.wrapping_add(i), value) };
        }
    }

    /// Declares a sender to one destination and to all, from the instructions that load and stream a register.
    macro_rules! sender {
        ($one:ident, $all:ident, $feature:literal, $register:ty, $load:ident, $stream:ident, $store:ident) => {
            /// Writes the lines that the part completes in a destination, past the caches or through them.
            ///
            /// # Safety
            /// As for [`super::send_to_all`].
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn $one<const STREAMS: bool>(part: Part, to: *mut u8) {
                const STEP: usize = size_of::<$register>();
                let mut at = if part.start == 0 {
                    let first = to.addr().wrapping_neg() % LINE;
                    // SAFETY: the caller vouches for the part, and the first one is longer than a line.
                    unsafe { store(part.from, to, 0, first) };
                    first
                } else {
                    last_boundary(to, part.start)
                };
                let end = last_boundary(to, part.end);
                while at < end {
                    let from = part.from.wrapping_add(at).cast::<$register>();
                    // SAFETY: the line is whole and ends in the part, so the destination has it.
                    let line = unsafe { to.add(at) }.cast::<$register>();
                    for i in 0..LINE / STEP {
                        // SAFETY: from the line before the part on, up to its end, bytes are readable.
                        let value = unsafe { $load(from.wrapping_add(i)) };
                        let to = line.wrapping_add(i);
                        // SAFETY: inside the line; `at` is where a line begins, so the address is aligned.
                        unsafe { if STREAMS { $stream(to, value) } else { $store(to, value) } };
                    }
                    at += LINE;
                }
            }

            /// [`super::send_to_all`] with the feature.
            ///
            /// # Safety
            /// As there.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $all(part: Part, destinations: &[Window<'_>], mask: u128) {
                for (place, destination) in destinations.iter().enumerate() {
                    if is_streamed(mask, place) {
                        // SAFETY: the caller's promise is passed on.
                        unsafe { $one::<true>(part, destination.as_ptr()) };
                    } else {
                        // SAFETY: as above.
                        unsafe { $one::<false>(part, destination.as_ptr()) };
                    }
                }
            }
        };
    }

    sender! {
        send_avx2, send_to_all_avx2, "avx2",
        __m256i, _mm256_loadu_si256, _mm256_stream_si256, _mm256_store_si256
    }
    sender! {
        send_sse2, send_to_all_sse2, "sse2",
        __m128i, _mm_loadu_si128, _mm_stream_si128, _mm_store_si128
    }
}
