//! The process's address space: what is mapped and set aside. Addresses that were a device's are nothing else's later, so
//! that whoever uses one too long is told so.

use std::{ffi::c_void, os::fd::AsFd, ptr};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::{
    error::{Failure, Result},
    regions::{Access, Span},
};

/// What mapping units, allocations and reservations are multiples of.
pub(crate) const GRANULARITY: usize = 2 << 20;

const fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Maps a file for reading and writing, wherever there is room.
pub(crate) fn map(file: impl AsFd, bytes: usize) -> Result<Span> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the place, so that nothing else is there.
    let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
    Span::new(mapped.map_err(|_| Failure::OUT_OF_MEMORY)?.expose_provenance(), bytes)
}

/// Maps zeroed memory of this process alone.
pub(crate) fn map_anonymous(bytes: usize) -> Result<Span> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the place, so that nothing else is there.
    let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
    Span::new(mapped.map_err(|_| Failure::OUT_OF_MEMORY)?.expose_provenance(), bytes)
}

/// Sets aside addresses that start at a multiple of `alignment`, a power of two.
pub(crate) fn reserve(bytes: usize, alignment: usize) -> Result<Span> {
    let room = bytes.checked_add(alignment).ok_or(Failure::OUT_OF_MEMORY)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses the place, so that nothing else is there.
    let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), flags) };
    let whole = Span::new(mapped.map_err(|_| Failure::OUT_OF_MEMORY)?.expose_provenance(), room)?;
    let start = whole.start.next_multiple_of(alignment);
    let kept = Span { start, end: start + bytes };
    for rest in [Span { start: whole.start, end: kept.start }, Span { start: kept.end, end: whole.end }] {
        if rest.bytes() > 0 {
            // SAFETY: just mapped, and known to nobody.
            unsafe { unmap(rest) };
        }
    }
    Ok(kept)
}

/// Maps the start of a file over addresses set aside, without access to it so far.
///
/// # Safety
/// The addresses are set aside, and nothing there is in use.
pub(crate) unsafe fn map_over(span: Span, file: impl AsFd) -> Result<()> {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: replaces what the caller says is not in use.
    let mapped =
        unsafe { rustix::mm::mmap(pointer(span.start), span.bytes(), ProtFlags::empty(), flags, file, 0) };
    mapped.map(|_| ()).map_err(|_| Failure::OUT_OF_MEMORY)
}

/// Gives back the memory behind these addresses, which are then set aside again.
///
/// # Safety
/// Nothing there is in use.
pub(crate) unsafe fn retire(span: Span) -> Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: replaces what the caller says is not in use.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(pointer(span.start), span.bytes(), ProtFlags::empty(), flags) };
    mapped.map(|_| ()).map_err(|_| Failure::OUT_OF_MEMORY)
}

/// # Safety
/// The pages are this library's and not in use.
unsafe fn unmap(span: Span) {
    // SAFETY: unmaps what the caller says is not in use. It fails for no range that was mapped, and if it did, the pages
    // would stay, which harms nothing.
    let _ = unsafe { rustix::mm::munmap(pointer(span.start), span.bytes()) };
}

/// # Safety
/// The pages are this library's, and nobody uses them in a way that this forbids.
pub(crate) unsafe fn protect(span: Span, access: Access) -> Result<()> {
    let flags = match access {
        Access::None => MprotectFlags::empty(),
        Access::Read => MprotectFlags::READ,
        Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: as the caller says.
    let protected = unsafe { rustix::mm::mprotect(pointer(span.start), span.bytes(), flags) };
    protected.map_err(|_| Failure::OUT_OF_MEMORY)
}
