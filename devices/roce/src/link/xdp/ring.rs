//! The rings between an AF_XDP socket and the kernel: memory of the kernel's, mapped. All unsafe code about them.
//!
//! Each ring has one producer and one consumer, each on one side; indices count up and wrap, entries are at the index
//! modulo the length. The kernel keeps its side in order or everything is lost anyway; even so no index it writes leads
//! outside the mapping, because entries are found by masking.

use core::{
    ffi::c_void,
    marker::PhantomData,
    mem::{align_of, size_of},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};
use std::{io, os::fd::BorrowedFd};

use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset},
};

/// What may lie in a ring.
///
/// # Safety
/// Every bit pattern must be a value.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: a number.
unsafe impl Entry for u64 {}
// SAFETY: three numbers without padding; the flags keep bits without names.
unsafe impl Entry for XdpDesc {}

/// A mapped ring.
#[derive(Debug)]
struct Shared<T> {
    memory: NonNull<c_void>,
    length: usize,
    /// The offsets, which have been checked.
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    mask: u32,
    entry: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl<T: Entry> Send for Shared<T> {}

impl<T: Entry> Shared<T> {
    /// Maps the ring with this many entries, a power of two, that the socket has at this offset.
    fn map(socket: BorrowedFd<'_>, at: u64, offsets: &XdpRingOffset, capacity: u32) -> io::Result<Self> {
        let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
        let offset = |offset: u64, align: usize| {
            usize::try_from(offset).ok().filter(|o| o.is_multiple_of(align) && *o < 1 << 20).ok_or_else(wrong)
        };
        let index = align_of::<AtomicU32>();
        let producer = offset(offsets.producer, index)?;
        let consumer = offset(offsets.consumer, index)?;
        let flags = offset(offsets.flags.ok_or_else(wrong)?, index)?;
        let entries = offset(offsets.desc, align_of::<T>())?;
        if !capacity.is_power_of_two() {
            return Err(wrong());
        }
        let end = entries + usize::try_from(capacity).unwrap_or_default() * size_of::<T>();
        let length = end.max(producer + 4).max(consumer + 4).max(flags + 4);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let shared = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a place where nothing is; nobody else uses it before it is unmapped.
        let memory = unsafe { mmap(core::ptr::null_mut(), length, protection, shared, socket, at) }?;
        let memory = NonNull::new(memory).ok_or_else(wrong)?;
        Ok(Self {
            memory,
            length,
            producer,
            consumer,
            flags,
            entries,
            mask: capacity - 1,
            entry: PhantomData,
        })
    }

    fn index(&self, offset: usize) -> &AtomicU32 {
        let word = self.memory.as_ptr().wrapping_byte_add(offset).cast();
        // SAFETY: this is called with offsets that `map` has checked only: aligned and, with four bytes, within the
        // mapping, which lives as long as this value. The kernel accesses these words atomically.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// The place of the entry with this index: the mapping has `mask + 1` of them behind `entries`, so it is inside.
    fn place(&self, index: u32) -> *mut T {
        let at = self.entries + usize::try_from(index & self.mask).unwrap_or_default() * size_of::<T>();
        self.memory.as_ptr().wrapping_byte_add(at).cast()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: this is what `mmap` gave, and every pointer into it is gone with this value.
        let _ = unsafe { munmap(self.memory.as_ptr(), self.length) };
    }
}

/// The side that puts entries into a ring that the kernel takes them from.
#[derive(Debug)]
pub(super) struct Producer<T: Entry> {
    shared: Shared<T>,
    /// Where the next entry goes.
    next: u32,
    /// What the kernel is known to have taken.
    taken: u32,
}

impl<T: Entry> Producer<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        at: u64,
        offsets: &XdpRingOffset,
        capacity: u32,
    ) -> io::Result<Self> {
        Ok(Self { shared: Shared::map(socket, at, offsets, capacity)?, next: 0, taken: 0 })
    }

    /// Puts an entry, which the kernel sees after [`Self::publish`]; `false` when there is no room.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.taken) > self.shared.mask {
            self.look();
            if self.next.wrapping_sub(self.taken) > self.shared.mask {
                return false;
            }
        }
        // SAFETY: the place is inside the mapping, and the kernel does not look at it before it is published: it has
        // taken what was there a lap ago.
        unsafe { self.shared.place(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the kernel what was put.
    pub(super) fn publish(&self) {
        self.shared.index(self.shared.producer).store(self.next, Ordering::Release);
    }

    fn look(&mut self) {
        self.taken = self.shared.index(self.shared.consumer).load(Ordering::Acquire);
    }

    /// How many entries the kernel has not taken.
    pub(super) fn waiting(&mut self) -> u32 {
        self.look();
        self.next.wrapping_sub(self.taken)
    }

    /// Whether the kernel wants a system call to go on.
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.shared.index(self.shared.flags).load(Ordering::Relaxed);
        XdpRingFlags::from_bits_retain(flags).contains(XdpRingFlags::XDP_RING_NEED_WAKEUP)
    }
}

/// The side that takes entries out of a ring that the kernel puts them into.
#[derive(Debug)]
pub(super) struct Consumer<T: Entry> {
    shared: Shared<T>,
    /// The next entry to take.
    next: u32,
    /// What the kernel is known to have put.
    put: u32,
}

impl<T: Entry> Consumer<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        at: u64,
        offsets: &XdpRingOffset,
        capacity: u32,
    ) -> io::Result<Self> {
        Ok(Self { shared: Shared::map(socket, at, offsets, capacity)?, next: 0, put: 0 })
    }

    /// Takes an entry. Its place is the kernel's again after [`Self::release`].
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.put {
            self.put = self.shared.index(self.shared.producer).load(Ordering::Acquire);
            if self.next == self.put {
                return None;
            }
        }
        // SAFETY: the place is inside the mapping and the kernel, which has put an entry there, does not write to it
        // before it is released; any bits are an entry.
        let entry = unsafe { self.shared.place(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of what was taken back to the kernel.
    pub(super) fn release(&self) {
        self.shared.index(self.shared.consumer).store(self.next, Ordering::Release);
    }
}
