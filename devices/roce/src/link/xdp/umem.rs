//! The memory that frames lie in, in chunks that are at any time either ours or the kernel's. All unsafe code about it.

use core::{ffi::c_void, ops::Range, ptr::NonNull, slice};
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a chunk: one page, which is the most that the kernel takes.
pub(super) const CHUNK_BYTES: usize = 4096;
/// What huge pages have; the memory is a multiple of it.
const HUGE_BYTES: usize = 2 << 20;

/// Who may touch a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This thread.
    Us,
    /// The kernel, which puts a frame that comes in there.
    Receiving,
    /// The kernel, which sends the frame in it.
    Sending,
}

/// The memory and who owns each chunk of it.
#[derive(Debug)]
pub(super) struct Umem {
    memory: NonNull<c_void>,
    length: usize,
    owners: Box<[Owner]>,
    huge: bool,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl Send for Umem {}

impl Umem {
    /// Memory with at least this many chunks, all of which are ours.
    pub(super) fn new(chunks: usize) -> io::Result<Self> {
        let length = (chunks * CHUNK_BYTES).next_multiple_of(HUGE_BYTES);
        let map = |flags| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the kernel chooses a place where nothing is; nobody else uses it before it is unmapped.
            unsafe { mmap_anonymous(core::ptr::null_mut(), length, protection, MapFlags::PRIVATE | flags) }
        };
        let (memory, huge) = match map(MapFlags::HUGETLB | MapFlags::POPULATE) {
            Ok(memory) => (memory, true),
            Err(_) => (map(MapFlags::empty())?, false),
        };
        let memory = NonNull::new(memory).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let owners = vec![Owner::Us; chunks].into_boxed_slice();
        let umem = Self { memory, length, owners, huge };
        if !huge {
            // A wish: the system may join pages, or not.
            umem.advise(Advice::LinuxHugepage);
        }
        // A child shall neither share what the kernel writes to nor have it copied.
        umem.advise(Advice::LinuxDontFork);
        Ok(umem)
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: this is the whole mapping, and neither advice in use changes what is in it for this process.
        let _ = unsafe { madvise(self.memory.as_ptr(), self.length, advice) };
    }

    /// Where it is, for the kernel, and how long.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.memory.as_ptr().expose_provenance() as u64, self.length as u64)
    }

    /// Whether it lies in huge pages for sure.
    pub(super) const fn is_huge(&self) -> bool {
        self.huge
    }

    /// The front of a chunk to write to; `None` if it is not ours or not as long.
    pub(super) fn bytes_mut(&mut self, chunk: u32, length: usize) -> Option<&mut [u8]> {
        let start = self.start(chunk, Owner::Us)?;
        if length > CHUNK_BYTES {
            return None;
        }
        // SAFETY: the chunk lies within the mapping, which is initialised (with zeroes). It is ours, so the kernel does
        // not touch it, and this value is exclusively borrowed while the slice lives.
        Some(unsafe { slice::from_raw_parts_mut(self.byte(start), length) })
    }

    /// Bytes of a chunk; `None` if it is not ours or not as long.
    pub(super) fn bytes(&self, chunk: u32, range: Range<usize>) -> Option<&[u8]> {
        let start = self.start(chunk, Owner::Us)?;
        if range.end > CHUNK_BYTES || range.start > range.end {
            return None;
        }
        let (at, length) = (start + range.start, range.end - range.start);
        // SAFETY: the range lies within the chunk, and that within the mapping, which is initialised. The chunk is ours,
        // so the kernel does not touch it, and this value is borrowed while the slice lives.
        Some(unsafe { slice::from_raw_parts(self.byte(at), length) })
    }

    fn byte(&self, at: usize) -> *mut u8 {
        self.memory.as_ptr().cast::<u8>().wrapping_add(at)
    }

    /// Where a chunk of this owner's begins.
    fn start(&self, chunk: u32, owner: Owner) -> Option<usize> {
        let at = usize::try_from(chunk).ok()?;
        (*self.owners.get(at)? == owner).then_some(at * CHUNK_BYTES)
    }

    /// Gives a chunk of ours to the kernel; returns its address in the kernel's terms.
    pub(super) fn give(&mut self, chunk: u32, to: Owner) -> Option<u64> {
        let start = self.start(chunk, Owner::Us)?;
        *self.owners.get_mut(usize::try_from(chunk).ok()?)? = to;
        u64::try_from(start).ok()
    }

    /// Takes a chunk back that the kernel says it has done with; returns it and the place in it. `None` if the kernel
    /// never had it for that.
    pub(super) fn take_back(&mut self, address: u64, from: Owner) -> Option<(u32, usize)> {
        let address = usize::try_from(address).ok()?;
        let chunk = u32::try_from(address / CHUNK_BYTES).ok()?;
        self.start(chunk, from)?;
        *self.owners.get_mut(address / CHUNK_BYTES)? = Owner::Us;
        Some((chunk, address % CHUNK_BYTES))
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: this is what `mmap` gave, and every slice of it is gone with this value. The kernel has pinned the pages
        // for as long as it uses them.
        let _ = unsafe { munmap(self.memory.as_ptr(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_touched_by_their_owner_only() {
        let mut umem = Umem::new(3).unwrap();
        umem.bytes_mut(2, 4096).unwrap().fill(7);
        assert!(umem.bytes_mut(2, 4097).is_none() && umem.bytes_mut(3, 1).is_none());
        assert_eq!(umem.bytes(2, 4095..4096), Some(&[7][..]));
        #[expect(clippy::reversed_empty_ranges, reason = "what a wrong descriptor could lead to")]
        let reversed = 5..4;
        assert!(umem.bytes(2, reversed).is_none() && umem.bytes(2, 0..4097).is_none());

        assert_eq!(umem.give(2, Owner::Receiving), Some(8192));
        assert_eq!(umem.give(2, Owner::Receiving), None);
        assert!(umem.bytes_mut(2, 1).is_none() && umem.bytes(2, 0..1).is_none());
        // Nobody sent it; it is not there; it is far away.
        for (address, from) in [(8192, Owner::Sending), (0, Owner::Receiving), (u64::MAX, Owner::Receiving)] {
            assert_eq!(umem.take_back(address, from), None);
        }
        assert_eq!(umem.take_back(8192 + 256, Owner::Receiving), Some((2, 256)));
        assert_eq!(umem.take_back(8192 + 256, Owner::Receiving), None, "only once");
        assert_eq!(umem.bytes(2, 0..1), Some(&[7][..]));
    }
}
