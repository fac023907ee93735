//! A mapped range of memory and bounds-checked windows into it.

use core::{marker::PhantomData, ptr::NonNull};
use std::os::fd::BorrowedFd;

use rustix::mm::{MapFlags, ProtFlags};
use thiserror::Error;

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
}

/// A range of mapped memory, unmapped when dropped. Other processes may change its bytes at any time when it is
/// shared.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    protection: Protection,
}

// SAFETY: a mapping is an address range owned by this value; it is tied to no thread.
unsafe impl Send for Mapping {}
// SAFETY: shared access only hands out raw pointers and volatile copies, which tolerate concurrent change by design.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a file descriptor, shared with whoever else maps it, from the file's start.
    ///
    /// # Errors
    /// [`MapError`] when `length` is zero or the kernel refuses.
    pub fn shared(fd: BorrowedFd<'_>, length: usize, protection: Protection) -> Result<Self, MapError> {
        if length == 0 {
            return Err(MapError::Empty);
        }
        let flags = match protection {
            Protection::Read => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses a fresh address range, so no existing memory is affected.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), length, flags, MapFlags::SHARED, fd, 0) };
        Self::from_kernel(base, length, protection)
    }

    /// Maps `length` bytes of zeroed memory private to this process, populated.
    ///
    /// # Errors
    /// [`MapError`] when `length` is zero or the kernel refuses.
    pub fn private(length: usize) -> Result<Self, MapError> {
        if length == 0 {
            return Err(MapError::Empty);
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: the kernel chooses a fresh address range, so no existing memory is affected.
        let base = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), length, prot, flags) };
        Self::from_kernel(base, length, Protection::ReadWrite)
    }

    fn from_kernel(
        base: rustix::io::Result<*mut core::ffi::c_void>,
        length: usize,
        protection: Protection,
    ) -> Result<Self, MapError> {
        let base = base.map_err(|errno| MapError::Kernel { length, errno })?;
        let base = NonNull::new(base.cast()).ok_or(MapError::Empty)?;
        Ok(Self { base, length, protection })
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
    pub fn window(&self, offset: u64, length: u64) -> Option<Window<'_>> {
        let end = offset.checked_add(length)?;
        if end > self.length as u64 {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        let length = usize::try_from(length).ok()?;
        // SAFETY: `offset` is at most `self.length`, so the result is inside the mapping or one past its end.
        let base = unsafe { self.base.add(offset) };
        Some(Window {
            base,
            length,
            writable: self.protection == Protection::ReadWrite,
            mapping: PhantomData,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value and every window into it borrows this value, so nothing uses it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Bytes inside a [`Mapping`]: valid for as long as the mapping lives, of unknown and changing content.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
    mapping: PhantomData<&'a Mapping>,
}

// SAFETY: a window is a bounds-checked address range of a `Mapping`, which is `Sync`.
unsafe impl Send for Window<'_> {}
// SAFETY: as above; it hands out raw pointers only.
unsafe impl Sync for Window<'_> {}

impl<'a> Window<'a> {
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

    /// A part of the window, or `None` when it is not all inside.
    #[must_use]
    pub fn sub(&self, offset: usize, length: usize) -> Option<Self> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: `offset` is at most `self.length`, so the result is inside the mapping or one past its end.
        let base = unsafe { self.base.add(offset) };
        Some(Window { base, length, ..*self })
    }

    /// Copies the first bytes out; returns how many (the shorter of the two lengths).
    pub fn read(&self, into: &mut [u8]) -> usize {
        let n = into.len().min(self.length);
        // SAFETY: `n` bytes are inside the mapping, `into` is a distinct private slice. The source may be changed by
        // another process meanwhile; `copy` of bytes then yields some mix of old and new, which callers expect.
        unsafe { core::ptr::copy_nonoverlapping(self.base.as_ptr(), into.as_mut_ptr(), n) };
        n
    }

    /// Copies bytes in; returns how many: the shorter of the two lengths, zero when the window is read-only.
    pub fn write(&self, from: &[u8]) -> usize {
        if !self.writable {
            return 0;
        }
        let n = from.len().min(self.length);
        // SAFETY: `n` bytes are inside the writable mapping, and `from` is a private slice outside it.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr(), n) };
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
