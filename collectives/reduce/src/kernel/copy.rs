//! Copy loops. Ours and not the C library's, because the string instructions that one uses on some processors fall
//! to a tenth of their rate when the destination is a few bytes past the source modulo the page size; plain loads
//! and stores do not.

use ringway_mem::Window;

use super::level::Level;

/// A group of bytes that is loaded and stored as one.
trait Lane {
    const BYTES: usize;
    type Register: Copy;

    /// # Safety
    /// `from` is valid for reads of [`Lane::BYTES`]; the processor has the lane's features.
    unsafe fn load(from: *const u8) -> Self::Register;

    /// # Safety
    /// `to` is valid for writes of [`Lane::BYTES`]; the processor has the lane's features.
    unsafe fn store(to: *mut u8, value: Self::Register);
}

/// Declares a lane that is one integer.
macro_rules! integer_lane {
    ($($name:ident, $int:ty;)*) => { $(
        struct $name;

        impl Lane for $name {
            const BYTES: usize = size_of::<$int>();
            type Register = $int;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> $int {
                // SAFETY: the caller vouches for the bytes; no alignment is assumed.
                unsafe { from.cast::<$int>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, value: $int) {
                // SAFETY: the caller vouches for the bytes; no alignment is assumed.
                unsafe { to.cast::<$int>().write_unaligned(value) }
            }
        }
    )* };
}

integer_lane! {
    Byte, u8;
    Eight, u64;
    Sixteen, u128;
}

/// Declares a lane that is one vector register.
#[cfg(target_arch = "x86_64")]
macro_rules! vector_lane {
    ($($(#[$meta:meta])* $name:ident, $register:ident, $load:ident, $store:ident;)*) => { $(
        $(#[$meta])*
        struct $name;

        impl Lane for $name {
            const BYTES: usize = size_of::<core::arch::x86_64::$register>();
            type Register = core::arch::x86_64::$register;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self::Register {
                // SAFETY: the caller vouches for the bytes and the features; no alignment is assumed.
                unsafe { core::arch::x86_64::$load(from.cast()) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, value: Self::Register) {
                // SAFETY: the caller vouches for the bytes and the features; no alignment is assumed.
                unsafe { core::arch::x86_64::$store(to.cast(), value) }
            }
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
vector_lane! {
    ThirtyTwo, __m256i, _mm256_loadu_si256, _mm256_storeu_si256;
    /// A whole cache line: whoever has it in a cache need not send what was in it.
    SixtyFour, __m512i, _mm512_loadu_si512, _mm512_storeu_si512;
}

/// From so many lanes on the first destination's begin at multiples of their size: a store that crosses from one cache
/// line to the next takes twice as long as one within a line, while loads hardly differ. The lane before the first of
/// these is stored where it lies, and overlaps it.
const ALIGN_FROM_LANES: usize = 32;

/// From so many bytes on eight lanes are loaded before the first is stored. Fewer bytes mostly come from another processor's cache,
/// or go to one, and their first stores would wait for the last loads.
const BLOCKS_FROM: usize = 2048;

/// Copies `N` lanes, `offset` bytes in, to every destination.
///
/// # Safety
/// Every window has these bytes, destinations are writable, and the processor has the lane's features.
#[inline(always)]
unsafe fn copy_block<L: Lane, const N: usize>(
    source: Window<'_>,
    destinations: &[Window<'_>],
    offset: usize,
) {
    // SAFETY: the caller vouches for the bytes from `offset` on.
    let from = unsafe { source.as_ptr().add(offset) };
    let block: [L::Register; N] = core::array::from_fn(|i| {
        // SAFETY: the `i`-th of `N` lanes.
        let at = unsafe { from.add(i * L::BYTES) };
        // SAFETY: as above.
        unsafe { L::load(at) }
    });
    for destination in destinations {
        // SAFETY: the caller vouches for the bytes from `offset` on.
        let to = unsafe { destination.as_ptr().add(offset) };
        for (i, value) in block.iter().enumerate() {
            // SAFETY: the `i`-th of `N` lanes.
            let at = unsafe { to.add(i * L::BYTES) };
            // SAFETY: as above.
            unsafe { L::store(at, *value) };
        }
    }
}

/// # Safety
/// As for [`copy_block`], of all bytes of the source.
#[inline(always)]
unsafe fn copy_all<L: Lane>(source: Window<'_>, destinations: &[Window<'_>]) {
    let length = source.length();
    let mut offset = 0;
    let before = destinations.first().map_or(0, |to| to.as_ptr().align_offset(L::BYTES));
    if (1..L::BYTES).contains(&before) && length >= ALIGN_FROM_LANES * L::BYTES {
        // SAFETY: a lane is there from the first byte on.
        unsafe { copy_block::<L, 1>(source, destinations, 0) };
        offset = before;
    }
    while length >= BLOCKS_FROM && length - offset >= 8 * L::BYTES {
        // SAFETY: eight lanes are left from `offset` on.
        unsafe { copy_block::<L, 8>(source, destinations, offset) };
        offset += 8 * L::BYTES;
    }
    while length - offset >= L::BYTES {
        // SAFETY: one lane is left from `offset` on.
        unsafe { copy_block::<L, 1>(source, destinations, offset) };
        offset += L::BYTES;
    }
    while length - offset >= Sixteen::BYTES {
        // SAFETY: sixteen bytes are left from `offset` on.
        unsafe { copy_block::<Sixteen, 1>(source, destinations, offset) };
        offset += Sixteen::BYTES;
    }
    while length - offset >= Eight::BYTES {
        // SAFETY: eight bytes are left from `offset` on.
        unsafe { copy_block::<Eight, 1>(source, destinations, offset) };
        offset += Eight::BYTES;
    }
    while offset < length {
        // SAFETY: a byte is left at `offset`.
        unsafe { copy_block::<Byte, 1>(source, destinations, offset) };
        offset += 1;
    }
}

/// Exchanges `N` lanes, `offset` bytes in.
///
/// # Safety
/// Both windows have these bytes and are writable, and the processor has the lane's features.
#[inline(always)]
unsafe fn swap_block<L: Lane, const N: usize>(a: Window<'_>, b: Window<'_>, offset: usize) {
    for i in 0..N {
        // SAFETY: the `i`-th of `N` lanes from `offset` on.
        let at_a = unsafe { a.as_ptr().add(offset + i * L::BYTES) };
        // SAFETY: as above.
        let at_b = unsafe { b.as_ptr().add(offset + i * L::BYTES) };
        // SAFETY: as above.
        let from_a = unsafe { L::load(at_a) };
        // SAFETY: as above.
        let from_b = unsafe { L::load(at_b) };
        // SAFETY: as above, and writable.
        unsafe { L::store(at_a, from_b) };
        // SAFETY: as above, and writable.
        unsafe { L::store(at_b, from_a) };
    }
}

/// # Safety
/// As for [`swap_block`], of all bytes of `a`.
#[inline(always)]
unsafe fn swap_all<L: Lane>(a: Window<'_>, b: Window<'_>) {
    let length = a.length();
    let mut offset = 0;
    while length - offset >= 4 * L::BYTES {
        // SAFETY: four lanes are left from `offset` on.
        unsafe { swap_block::<L, 4>(a, b, offset) };
        offset += 4 * L::BYTES;
    }
    while length - offset >= Eight::BYTES {
        // SAFETY: eight bytes are left from `offset` on.
        unsafe { swap_block::<Eight, 1>(a, b, offset) };
        offset += Eight::BYTES;
    }
    while offset < length {
        // SAFETY: a byte is left at `offset`.
        unsafe { swap_block::<Byte, 1>(a, b, offset) };
        offset += 1;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(source: Window<'_>, destinations: &[Window<'_>]) {
    // SAFETY: the caller's promise is passed on.
    unsafe { copy_all::<ThirtyTwo>(source, destinations) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_avx512(source: Window<'_>, destinations: &[Window<'_>]) {
    // SAFETY: the caller's promise is passed on.
    unsafe { copy_all::<SixtyFour>(source, destinations) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn swap_avx2(a: Window<'_>, b: Window<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe { swap_all::<ThirtyTwo>(a, b) }
}

/// From so many bytes on registers of 64 bytes are used. Fewer bytes are often just written, perhaps by stores that overlap: a load
/// that needs parts of two of them waits until both are in the cache, and all stores before them.
#[cfg(target_arch = "x86_64")]
const WIDE_FROM: usize = 512;

/// Copies the source to every destination.
///
/// # Safety
/// Every destination is writable and as long as the source; the processor has the level's features.
pub(crate) unsafe fn copy(level: Level, source: Window<'_>, destinations: &[Window<'_>]) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller vouches for the windows and the level.
        Level::Avx512 if source.length() >= WIDE_FROM => unsafe { copy_avx512(source, destinations) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 | Level::Avx512 => unsafe { copy_avx2(source, destinations) },
        // SAFETY: the caller vouches for the windows.
        _ => unsafe { copy_all::<Sixteen>(source, destinations) },
    }
}

/// Exchanges the bytes of two windows.
///
/// # Safety
/// Both are writable and of one length; the processor has the level's features.
pub(crate) unsafe fn swap(level: Level, a: Window<'_>, b: Window<'_>) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller vouches for the windows and the level.
        Level::Avx2 | Level::Avx512 => unsafe { swap_avx2(a, b) },
        // SAFETY: the caller vouches for the windows.
        _ => unsafe { swap_all::<Sixteen>(a, b) },
    }
}
