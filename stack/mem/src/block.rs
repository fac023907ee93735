//! Memory of this process's own region, owned piece by piece.
//!
//! A [`Pool`] is a region that this process made and mapped. A [`Block`] owns a range of it, so that its bytes can be
//! ordinary slices: no two blocks share a byte. The region is also mapped by the daemon, which reads and writes a range
//! only while an operation runs that was given it; whoever hands a block's range to the daemon keeps the block, unused,
//! until the operation has ended (see DESIGN "Ownership": the client library moves buffers into the operation).

use core::{mem::ManuallyDrop, ptr::NonNull};
#[expect(
    clippy::disallowed_types,
    reason = "allocating is off the data path, and blocks are dropped on any thread"
)]
use std::sync::Mutex;
use std::{
    os::fd::OwnedFd,
    sync::{Arc, PoisonError},
};

use crate::{Arena, ArenaError, Mapping, MemFd, MemFdError, PageKind, Window};

/// A region of this process, from which blocks are taken. Cloning gives the same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    #[expect(clippy::disallowed_types, reason = "as above")]
    arena: Mutex<Arena>,
}

impl Shared {
    fn with_arena<R>(&self, work: impl FnOnce(&mut Arena) -> R) -> R {
        // Every method of the arena leaves it whole, also one that panics before it changes anything.
        work(&mut self.arena.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pool {
    /// A zeroed, populated and sealed region of at least `bytes` bytes, and the descriptor by which the daemon is given
    /// it. The descriptor is for that alone: writing to the region by other ways changes bytes under the eyes of those
    /// who hold blocks. Asked now and then whether it is still wanted, as [`MemFd::region_while`].
    ///
    /// # Errors
    /// [`MemFdError`] when the kernel has no memory, the size overflows, or it is not wanted any more.
    pub fn new(
        name: &str,
        bytes: u64,
        wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(Self, OwnedFd), MemFdError> {
        let page = rustix::param::page_size() as u64;
        let length = bytes.max(1).checked_next_multiple_of(page).unwrap_or(0);
        let (file, mapping) = MemFd::region_while(name, length, wanted)?;
        let arena = Arena::new(mapping.length() as u64);
        #[expect(clippy::disallowed_types, reason = "as above")]
        let arena = Mutex::new(arena);
        Ok((Self { shared: Arc::new(Shared { mapping, arena }) }, file.into_fd()))
    }

    /// The region's bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.shared.mapping.length() as u64
    }

    /// A window over a range of the region, for an operation that owns the blocks there; `None` when it is not all
    /// inside. As with the daemon's mapping of the region, whoever uses it keeps the blocks of the range unused meanwhile.
    #[must_use]
    #[inline]
    pub fn window(&self, offset: u64, length: u64) -> Option<Window<'_>> {
        self.shared.mapping.window(offset, length)
    }

    /// What pages the region lies in, by the kernel's word: huge ones spare large operations most of the address
    /// translation. Takes a while; not for the data path.
    #[must_use]
    pub fn page_kind(&self) -> PageKind {
        self.shared.mapping.page_kind()
    }

    /// Takes `bytes` bytes, aligned to [`crate::ARENA_UNIT`]. They hold whatever they held before; those of a new pool
    /// are zero.
    ///
    /// # Errors
    /// [`ArenaError::Full`].
    pub fn take(&self, bytes: u64) -> Result<Block, ArenaError> {
        let offset = self.shared.with_arena(|arena| arena.allocate(bytes))?;
        let pool = Arc::clone(&self.shared);
        Ok(Block::whole(Arc::new(Range { pool, offset, length: bytes })))
    }
}

/// A range as the arena gave it; it goes back when the last block in it is gone.
#[derive(Debug)]
struct Range {
    pool: Arc<Shared>,
    offset: u64,
    length: u64,
}

impl Drop for Range {
    fn drop(&mut self) {
        // The arena gave this offset, and this is the one time that it is released.
        let _ = self.pool.with_arena(|arena| arena.release(self.offset));
    }
}

impl Range {
    /// The range's memory; empty if the arena were to give what is not inside the region.
    fn window(&self) -> Window<'_> {
        self.pool.mapping.window(self.offset, self.length).unwrap_or(Window::of(&[]))
    }
}

/// Bytes of a pool that nobody else has.
#[derive(Debug)]
pub struct Block {
    range: Arc<Range>,
    /// The first byte; `length` bytes from there are inside the range.
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a block is the one owner of its bytes, as a box of them would be; the mapping that holds them may be used, and
// unmapped, on any thread.
unsafe impl Send for Block {}
// SAFETY: as above; shared, it gives shared slices only.
unsafe impl Sync for Block {}

impl Block {
    fn whole(range: Arc<Range>) -> Self {
        let window = range.window();
        let (base, length) = (window.base(), window.length());
        Self { range, base, length }
    }

    /// Where it begins in the region.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u64 {
        self.base.addr().get().wrapping_sub(self.range.pool.mapping.address()) as u64
    }

    /// How many bytes it has.
    #[must_use]
    #[inline]
    pub const fn length(&self) -> u64 {
        self.length as u64
    }

    /// A window over the bytes, for an operation that owns the block; see [`Pool::window`].
    #[must_use]
    #[inline]
    pub const fn window(&self) -> Window<'_> {
        // SAFETY: the bytes are inside a mapping that `self` keeps alive, and writable, since `MemFd::region` made it.
        // Whoever owns the block for an operation uses no slice of it meanwhile.
        unsafe { Window::from_raw(self.base, self.length, true) }
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are inside a mapping that `self` keeps alive, initialised by the kernel. Blocks do not
        // overlap (each is a part of a range of the arena, split without overlap) and are not `Clone`, so that writes
        // in this process need `&mut self`. The daemon, which this process trusts with its data, writes to it only
        // during an operation; who starts one holds the block so that this method is not called meanwhile.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }

    /// The bytes, to be written.
    #[must_use]
    #[inline]
    pub const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; the mapping is writable, since `MemFd::region` made it, and `&mut self` excludes
        // every other use of the range in this process.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }

    /// Keeps the first `at` bytes and gives the others. The range goes back to the pool when both are gone. `None`, and nothing
    /// is changed, when there are fewer bytes.
    #[must_use]
    pub fn split_off(&mut self, at: u64) -> Option<Self> {
        let at = usize::try_from(at).ok()?;
        let length = self.length.checked_sub(at)?;
        // SAFETY: `at` is at most the length, so the result is inside the range or one past its end.
        let base = unsafe { self.base.add(at) };
        self.length = at;
        Some(Self { range: Arc::clone(&self.range), base, length })
    }

    /// Takes on a block that follows this one.
    ///
    /// # Errors
    /// The other block when they do not adjoin in one range.
    pub fn append(&mut self, next: Self) -> Result<(), Self> {
        let end = self.base.addr().get() + self.length;
        if !Arc::ptr_eq(&self.range, &next.range) || end != next.base.addr().get() {
            return Err(next);
        }
        self.length = self.length.saturating_add(next.length);
        Ok(())
    }

    /// Makes this block its whole range again, if the range has no other block; says whether it is.
    pub fn restore(&mut self) -> bool {
        // Every block of the range holds a count: being the only holder means that there is no other.
        let alone = Arc::get_mut(&mut self.range).is_some();
        if alone {
            let window = self.range.window();
            (self.base, self.length) = (window.base(), window.length());
        }
        alone
    }

    /// Leaves the bytes to whoever may still write to them: they are never given out again.
    pub fn retire(self) {
        let _ = ManuallyDrop::new(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(bytes: u64) -> Pool {
        Pool::new("test", bytes, &mut || true).expect("pool").0
    }

    #[test]
    fn blocks_are_apart_and_come_back() {
        let pool = pool(4096);
        let mut a = pool.take(100).expect("room");
        let mut b = pool.take(100).expect("room");
        a.bytes_mut().fill(1);
        b.bytes_mut().fill(2);
        assert!(a.bytes().iter().all(|x| *x == 1) && b.bytes().iter().all(|x| *x == 2));
        drop((a, b));
        assert_eq!(pool.take(4096).expect("all of it").bytes().len(), 4096);
    }

    #[test]
    fn a_split_block_comes_back_when_both_halves_are_gone() {
        let pool = pool(4096);
        let mut front = pool.take(4096).expect("room");
        let mut back = front.split_off(1000).expect("long enough");
        front.bytes_mut().fill(1);
        back.bytes_mut().fill(2);
        assert_eq!((front.length(), back.length(), back.offset()), (1000, 3096, 1000));
        assert!(front.bytes().iter().all(|x| *x == 1));
        drop(front);
        assert!(pool.take(64).is_err(), "the back half is still there");
        drop(back);
        let mut whole = pool.take(4096).expect("room");
        assert!(whole.split_off(5000).is_none(), "too short");
        assert_eq!(whole.length(), 4096);
    }

    #[test]
    fn halves_join_in_order_only() {
        let pool = pool(8192);
        let mut a = pool.take(4096).expect("room");
        let mut b = a.split_off(10).expect("long enough");
        let mut a = b.append(a).expect_err("the wrong order");
        assert_eq!((a.length(), b.length()), (10, 4086));
        a.append(b).expect("adjoining");
        assert_eq!(a.length(), 4096);
        let (mut c, d) = (pool.take(64).expect("room"), pool.take(64).expect("room"));
        assert!(c.append(d).is_err(), "they are two ranges");
    }

    #[test]
    fn a_block_is_its_whole_range_again_only_when_it_is_alone_there() {
        let pool = pool(4096);
        let mut front = pool.take(4096).expect("room");
        let mut back = front.split_off(1000).expect("long enough");
        assert!(!back.restore());
        assert_eq!((back.offset(), back.length()), (1000, 3096));
        drop(front);
        drop(back.split_off(7));
        assert_eq!((back.offset(), back.length()), (1000, 7));
        assert!(pool.take(1).is_err(), "what was split off and dropped is not anybody else's");
        assert!(back.restore());
        assert_eq!((back.offset(), back.length()), (0, 4096));
        back.retire();
        assert!(pool.take(1).is_err(), "a retired range is never given out again");
    }

    #[test]
    fn an_empty_block_is_an_empty_slice() {
        let pool = pool(1);
        assert_eq!(pool.length() % 4096, 0);
        let mut block = pool.take(0).expect("room");
        assert!(block.bytes().is_empty() && block.bytes_mut().is_empty());
        assert!(Pool::new("test", u64::MAX, &mut || true).is_err());
    }
}
