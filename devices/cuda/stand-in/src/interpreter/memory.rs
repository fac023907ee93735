//! Memory by its address. Volatile, since other processes may share it.

use core::ptr;

/// Reads a little-endian number of one, two, four or eight bytes.
///
/// # Safety
/// `address` is a multiple of `bytes` and valid for reads of so many.
pub(super) unsafe fn read(address: usize, bytes: usize) -> u64 {
    match bytes {
        // SAFETY: the caller vouches for the one byte.
        1 => u64::from(unsafe { ptr::with_exposed_provenance::<u8>(address).read_volatile() }),
        // SAFETY: the caller vouches for the two bytes and their alignment.
        2 => u64::from(unsafe { ptr::with_exposed_provenance::<u16>(address).read_volatile() }),
        // SAFETY: the caller vouches for the four bytes and their alignment.
        4 => u64::from(unsafe { ptr::with_exposed_provenance::<u32>(address).read_volatile() }),
        // SAFETY: the caller vouches for the eight bytes and their alignment.
        _ => unsafe { ptr::with_exposed_provenance::<u64>(address).read_volatile() },
    }
}

/// Writes the low one, two, four or eight bytes of a number.
///
/// # Safety
/// `address` is a multiple of `bytes` and valid for writes of so many.
pub(super) unsafe fn write(address: usize, bytes: usize, value: u64) {
    match bytes {
        // SAFETY: the caller vouches for the one byte.
        1 => unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(value as u8) },
        // SAFETY: the caller vouches for the two bytes and their alignment.
        2 => unsafe { ptr::with_exposed_provenance_mut::<u16>(address).write_volatile(value as u16) },
        // SAFETY: the caller vouches for the four bytes and their alignment.
        4 => unsafe { ptr::with_exposed_provenance_mut::<u32>(address).write_volatile(value as u32) },
        // SAFETY: the caller vouches for the eight bytes and their alignment.
        _ => unsafe { ptr::with_exposed_provenance_mut::<u64>(address).write_volatile(value) },
    }
}
