//! A mapped range of memory.

use core::{
    hint::black_box,
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicU8, Ordering},
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use thiserror::Error;

use crate::{
    PageKind, Window,
    huge::{self, HUGE},
    numa,
    sigbus::{self, MAX_FOREIGN, MAX_FOREIGN_CLIENTS, Owner, RegisterError, Registration},
};

/// Pages by which is told where a mapping's memory is.
const NUMA_SAMPLES: usize = 8;

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Only read.
    Read,
    /// Read and written.
    ReadWrite,
}

/// Why memory could not be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MapError {
    /// A mapping of no bytes was asked for.
    #[error("a mapping needs at least one byte")]
    Empty,
    /// The kernel refused.
    #[error("the kernel refused to map {length} bytes: {errno}")]
    Kernel {
        /// The bytes asked for.
        length: usize,
        /// The kernel's reason.
        errno: rustix::io::Errno,
    },
    /// The process has as many mappings of foreign memory as it may.
    #[error("no more than {most} mappings of such memory are possible: release some regions")]
    TooManyForeign {
        /// How many there may be.
        most: usize,
    },
    /// The handler for faults in foreign memory could not be installed.
    #[error("the kernel refused a handler for SIGBUS: {0}")]
    FaultHandler(rustix::io::Errno),
}

/// A range of mapped memory, unmapped when dropped. Other processes may change its bytes at any time when it is
/// shared.
#[derive(Debug)]
pub struct Mapping {
    /// Present when another process owns the memory and may take pages away. Dropped before the range is unmapped, or
    /// the handler could cover what another mapping gets at this address.
    foreign: Option<Registration>,
    protection: Protection,
    base: NonNull<u8>,
    length: usize,
    /// What is mapped, from its start, when it may be handed on; see [`Mapping::keep_file`].
    file: Option<OwnedFd>,
    /// Holds the range, which may be a part of it, and unmaps all of it when dropped.
    held: MmapRaw,
}

// SAFETY: `base` is an address inside `held`, which is `Send`; this type reads and writes there by atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above; `held` is `Sync`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a file descriptor, shared with whoever else maps it, from the file's start. Large mappings
    /// begin where a huge page can, so that the file's huge pages are mapped as such.
    ///
    /// # Errors
    /// [`MapError`] when `length` is zero or the kernel refuses.
    pub fn shared(fd: BorrowedFd<'_>, length: usize, protection: Protection) -> Result<Self, MapError> {
        if length >= HUGE {
            return Self::aligned(fd, length, protection);
        }
        let mut options = MmapOptions::new();
        options.len(length);
        Self::from_kernel(length, protection, || match protection {
            Protection::Read => options.map_raw_read_only(&fd),
            Protection::ReadWrite => options.map_raw(&fd),
        })
    }

    /// [`Mapping::shared`] at a multiple of [`HUGE`]: reserves a range with so much to spare and maps the file inside.
    /// What is left of the reservation cannot be accessed.
    fn aligned(fd: BorrowedFd<'_>, length: usize, protection: Protection) -> Result<Self, MapError> {
        let kernel = |errno| MapError::Kernel { length, errno };
        let reserved = length.checked_add(HUGE).ok_or(kernel(rustix::io::Errno::NOMEM))?;
        let mut mapping = Self::from_kernel(length, protection, || {
            MmapOptions::new().len(reserved).no_reserve_swap().map_anon().map(MmapRaw::from)
        })?;
        let first = mapping.held.as_mut_ptr();
        // SAFETY: nobody uses the range yet.
        unsafe { rustix::mm::mprotect(first.cast(), reserved, MprotectFlags::empty()) }.map_err(kernel)?;
        let base = first.wrapping_add(first.addr().wrapping_neg() % HUGE);
        let prot = match protection {
            Protection::Read => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range lies inside the reservation, which nobody uses, since the step to a multiple of `HUGE` is
        // less than what was reserved beyond `length`; it is unmapped with the reservation.
        let mapped = unsafe { rustix::mm::mmap(base.cast(), length, prot, flags, fd, 0) }.map_err(kernel)?;
        mapping.base = NonNull::new(mapped.cast()).ok_or(kernel(rustix::io::Errno::FAULT))?;
        Ok(mapping)
    }

    /// Keeps the file that is mapped, so that it can be handed to another process by [`Mapping::file`].
    #[must_use]
    pub fn keep_file(mut self, file: OwnedFd) -> Self {
        self.file = Some(file);
        self
    }

    /// The memory file that this maps from its start, if it was kept.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Maps `length` bytes of zeroed memory private to this process, populated.
    ///
    /// # Errors
    /// [`MapError`] when `length` is zero or the kernel refuses.
    pub fn private(length: usize) -> Result<Self, MapError> {
        Self::from_kernel(length, Protection::ReadWrite, || {
            MmapOptions::new().len(length).populate().map_anon().map(MmapRaw::from)
        })
    }

    fn from_kernel(
        length: usize,
        protection: Protection,
        map: impl FnOnce() -> std::io::Result<MmapRaw>,
    ) -> Result<Self, MapError> {
        if length == 0 {
            return Err(MapError::Empty);
        }
        // The library refuses lengths beyond the address space itself, without a number.
        let errno = |error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::NOMEM);
        let kernel = |errno| MapError::Kernel { length, errno };
        let held = map().map_err(|error| kernel(errno(error)))?;
        let base = NonNull::new(held.as_mut_ptr()).ok_or(kernel(rustix::io::Errno::FAULT))?;
        Ok(Self { foreign: None, protection, base, length, file: None, held })
    }

    /// Maps memory that another process owns and may take pages away from, by punching holes or running out of its
    /// memory limit. A fault in it does not end this process: zeroes are read there from then on, and
    /// [`Mapping::faulted`] says so. The first such mapping installs the process's handler for SIGBUS.
    ///
    /// # Errors
    /// [`MapError`] when `length` is zero, the kernel refuses, or there are too many such mappings.
    pub fn foreign(fd: BorrowedFd<'_>, length: usize, protection: Protection) -> Result<Self, MapError> {
        Self::owned(fd, length, protection, Owner::Client)
    }

    /// [`Mapping::foreign`] of another daemon's memory, only to be read. A part of such mappings is kept for clients.
    pub(crate) fn of_peer(fd: BorrowedFd<'_>, length: usize) -> Result<Self, MapError> {
        Self::owned(fd, length, Protection::Read, Owner::Peer)
    }

    fn owned(
        fd: BorrowedFd<'_>,
        length: usize,
        protection: Protection,
        owner: Owner,
    ) -> Result<Self, MapError> {
        let mut mapping = Self::shared(fd, length, protection)?;
        let registered = sigbus::register(mapping.base.as_ptr().addr(), length, protection, owner);
        let most = if owner == Owner::Client { MAX_FOREIGN } else { MAX_FOREIGN - MAX_FOREIGN_CLIENTS };
        mapping.foreign = Some(registered.map_err(|error| match error {
            RegisterError::Full => MapError::TooManyForeign { most },
            RegisterError::Handler(errno) => MapError::FaultHandler(errno),
        })?);
        Ok(mapping)
    }

    /// Whether pages of a [`Mapping::foreign`] were found missing, and zeroes put there. What was read since is not
    /// what the owner wrote: end its session.
    #[must_use]
    pub fn faulted(&self) -> bool {
        self.foreign.as_ref().is_some_and(Registration::faulted)
    }

    /// Gives every page of a part of this writable mapping of a new memory file memory now: its whole huge pages as such,
    /// where the host can. One ordinary page of each gets memory first, as the kernel collapses nothing that is all holes.
    /// The part begins at a multiple of [`HUGE`].
    pub(crate) fn populate_new(&self, part: Range<usize>) -> rustix::io::Result<()> {
        let part = part.start..part.end.min(self.length);
        let whole = part.len() - part.len() % HUGE;
        if whole > 0 && self.base.addr().get().is_multiple_of(HUGE) {
            // `HUGE` bytes at least are left there.
            let begin = self.base.as_ptr().wrapping_add(part.start);
            huge::advise(begin, whole);
            self.touch(part.start..part.start + whole, HUGE);
            huge::collapse(begin, whole);
        }
        self.populate_part(part)
    }

    /// What pages the memory lies in at the moment, as far as this process has touched it. Reads `/proc/self/smaps`,
    /// which takes a while.
    #[must_use]
    pub fn page_kind(&self) -> PageKind {
        PageKind::of(huge::mapped(self.base.addr().get(), self.length), self.length)
    }

    /// The NUMA node that the memory is on, by a few of its pages: `None` when these are on several, and where the kernel does not
    /// tell. Takes a system call for each.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let step = self.length.div_ceil(NUMA_SAMPLES);
        let mut nodes = (0..self.length).step_by(step).map(|offset| numa::node_of(self.address() + offset));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// Gives every page memory now, so that none is missing later. A writable mapping's contents stay.
    ///
    /// # Errors
    /// The kernel's reason, mostly that there is no memory.
    pub fn populate(&self) -> rustix::io::Result<()> {
        self.populate_part(0..self.length)
    }

    /// The same for a part that begins on a page and is inside.
    fn populate_part(&self, part: Range<usize>) -> rustix::io::Result<()> {
        let advice = match self.protection {
            Protection::ReadWrite => Advice::LinuxPopulateWrite,
            Protection::Read => Advice::LinuxPopulateRead,
        };
        // The kernel checks the address.
        let begin = self.base.as_ptr().wrapping_add(part.start);
        // SAFETY: the advice changes no contents.
        match unsafe { rustix::mm::madvise(begin.cast(), part.len(), advice) } {
            // Linux before 5.14 does not know it.
            Err(rustix::io::Errno::INVAL) => {
                self.touch(part, rustix::param::page_size());
                Ok(())
            }
            other => other,
        }
    }

    /// Touches a byte of every `step` of a part, in the way the protection allows.
    fn touch(&self, part: Range<usize>, step: usize) {
        for offset in (part.start..part.end.min(self.length)).step_by(step) {
            // SAFETY: `offset` is below the length, so the result is inside the mapping.
            let byte = unsafe { self.base.as_ptr().add(offset) };
            // SAFETY: the byte is inside the mapping and only ever reached through atomics and raw copies.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            match self.protection {
                // Adding nothing is a write that keeps what another process may just have written. A compiler that
                // knew what is added, or that nobody looks, would leave it out.
                Protection::ReadWrite => _ = byte.fetch_add(black_box(0), Ordering::Relaxed),
                Protection::Read => _ = black_box(byte.load(Ordering::Relaxed)),
            }
        }
    }

    /// Keeps the mapping out of children made by `fork`: the address range is unmapped there.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn exclude_from_fork(&self) -> rustix::io::Result<()> {
        // SAFETY: the advice concerns children only, in which whoever uses the range faults.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.length(), Advice::LinuxDontFork) }
    }

    /// Where it is mapped.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Bytes mapped.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// What the mapping may be used for.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        self.protection
    }

    /// The bytes `offset..offset + length`, or `None` when they are not all inside.
    #[must_use]
    #[inline]
    pub fn window(&self, offset: u64, length: u64) -> Option<Window<'_>> {
        let end = offset.checked_add(length)?;
        if end > self.length() as u64 {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        let length = usize::try_from(length).ok()?;
        // SAFETY: `offset` is at most the length, so the result is inside the mapping or one past its end.
        let base = unsafe { self.base.add(offset) };
        let writable = self.protection == Protection::ReadWrite;
        // SAFETY: `length` bytes from `base` on are inside the mapping, which the window borrows; the protection says
        // whether they may be written.
        Some(unsafe { Window::from_raw(base, length, writable) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is one node only all memory is on it, and elsewhere on one that there is.
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn memory_is_on_a_node() {
        let there =
            |node: u32| std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists();
        for length in [1, 4096, 1 << 20] {
            let node = Mapping::private(length).expect("map").numa_node();
            assert!(node.is_none_or(there), "{length}: {node:?}");
            assert!(there(1) || !there(0) || node != Some(1), "{length}: {node:?}");
        }
    }

    #[test]
    fn windows_stay_inside() {
        let mapping = Mapping::private(4096).expect("map");
        assert!(mapping.window(0, 4096).is_some());
        assert!(mapping.window(4096, 0).is_some());
        assert!(mapping.window(1, 4096).is_none());
        assert!(mapping.window(u64::MAX, 1).is_none());
        let window = mapping.window(10, 20).expect("window");
        assert!(window.sub(0, 21).is_none());
        assert_eq!(window.write(b"hello"), 5);
        let mut back = [0; 5];
        assert_eq!(window.read(&mut back), 5);
        assert_eq!(&back, b"hello");
    }
}
