//! Memory through which ordinary slices are copied, kept from call to call.

use core::cell::RefCell;
use std::sync::Arc;

use ringway_mem::{ARENA_UNIT, Lease, Window};
use zerocopy::IntoBytes as _;

use crate::{Buffer, CallError, Communicator, Element, Error, MemoryError, arena::Registered};

/// Copies from one slice to another of the same length, by our own kernel: many a C library's `memcpy` falls to a fraction
/// of its rate where the destination begins a few bytes past the source modulo the page size.
pub(crate) fn copy<T: Element>(from: &[T], to: &mut [T]) {
    let (from, to) = (Window::of(from.as_bytes()), Window::of_mut(to.as_mut_bytes()));
    let done = ringway_reduce::copy(from, &[to]);
    debug_assert!(done.is_ok(), "{done:?}");
}

/// The least bytes of a staging arena.
const LEAST: u64 = 64 * 1024;

/// A communicator's staging memory. It grows to what the largest call needs, and stays.
#[derive(Debug, Default)]
pub(crate) struct Staging(RefCell<Option<(Lease, Arc<Registered>)>>);

/// Staging memory for one call; what is not taken yet. Buffers taken from it need no allocation.
#[derive(Debug)]
pub(crate) struct Stage(Option<Buffer<u8>>);

impl Communicator {
    /// Staging memory for slices of these bytes each.
    pub(crate) fn stage(&self, sizes: &[usize]) -> Result<Stage, Error> {
        if self.queue.borrow().is_group_open() {
            return Err(CallError::InsideGroup.into());
        }
        let room =
            |sum: u64, size: &usize| sum.checked_add((*size as u64).checked_next_multiple_of(ARENA_UNIT)?);
        let needed = sizes.iter().try_fold(0, room).ok_or(MemoryError::TooLarge)?.max(LEAST);
        let mut staging = self.staging.0.borrow_mut();
        if let Some((lease, arena)) = &mut *staging
            && lease.length() >= needed
            && let Some(block) = lease.take()
        {
            return Ok(Stage(Some(Buffer::new(block, Arc::clone(arena)))));
        }
        // The old memory goes first, so that both need not fit.
        *staging = None;
        let needed = needed.checked_next_power_of_two().and_then(|n| usize::try_from(n).ok());
        let needed = needed.ok_or(MemoryError::TooLarge)?;
        let whole = self.client.arena(needed)?.buffer::<u8>(needed)?;
        *staging = Some(whole.lease());
        Ok(Stage(Some(whole)))
    }
}

impl Stage {
    /// A buffer with a copy of a slice.
    pub(crate) fn copy<T: Element>(&mut self, slice: &[T]) -> Result<Buffer<T>, Error> {
        let mut buffer = self.room::<T>(slice.len())?;
        copy(slice, &mut buffer);
        Ok(buffer)
    }

    /// A buffer that holds whatever was there before, for a call that writes all of it.
    pub(crate) fn room<T: Element>(&mut self, length: usize) -> Result<Buffer<T>, Error> {
        let bytes = length.checked_mul(size_of::<T>()).ok_or(MemoryError::TooLarge)?;
        let padded = bytes.checked_next_multiple_of(ARENA_UNIT as usize).ok_or(MemoryError::TooLarge)?;
        let rest = self.0.take().ok_or(MemoryError::TooLarge)?;
        let (piece, rest) = rest.split_at(padded).map_err(|_| MemoryError::TooLarge)?;
        self.0 = Some(rest);
        let (piece, _) = piece.split_at(bytes).map_err(|_| MemoryError::TooLarge)?;
        Ok(piece.cast())
    }
}
