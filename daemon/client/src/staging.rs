//! Memory through which ordinary slices are copied, kept from call to call.

use core::cell::RefCell;

use ringway_mem::Window;
use zerocopy::IntoBytes as _;

use crate::{Buffer, CallError, Communicator, Element, Error, MemoryError};

/// Copies from one slice to another of the same length, by our own kernel: many a C library's `memcpy` falls to a fraction
/// of its rate where the destination begins a few bytes past the source modulo the page size.
pub(crate) fn copy<T: Element>(from: &[T], to: &mut [T]) {
    let (from, to) = (Window::of(from.as_bytes()), Window::of_mut(to.as_mut_bytes()));
    let done = ringway_reduce::copy(from, &[to]);
    debug_assert!(done.is_ok(), "{done:?}");
}

/// The least bytes of a staging arena.
const LEAST: usize = 64 * 1024;

/// A communicator's staging memory: for what a call reads, and for what it writes. Each grows to what the largest call
/// needs, and stays; there is none while a call uses it, nor after that failed.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    input: RefCell<Option<Buffer<u8>>>,
    output: RefCell<Option<Buffer<u8>>>,
}

/// The staging memory of one call. The buffers taken from it need no allocation when those of the last call were given
/// back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage<'c>(&'c Communicator);

impl Communicator {
    /// Staging memory for a call on slices.
    pub(crate) fn stage(&self) -> Result<Stage<'_>, Error> {
        if self.queue.borrow().is_group_open() {
            return Err(CallError::InsideGroup.into());
        }
        Ok(Stage(self))
    }
}

impl Stage<'_> {
    /// A buffer with a copy of a slice, for a call that reads it.
    pub(crate) fn input<T: Element>(self, slice: &[T]) -> Result<Buffer<T>, Error> {
        let mut buffer = self.take(&self.0.staging.input, slice.len())?;
        copy(slice, &mut buffer);
        Ok(buffer)
    }

    /// A buffer that holds whatever was there before, for a call that writes all of it.
    pub(crate) fn output<T: Element>(self, length: usize) -> Result<Buffer<T>, Error> {
        self.take(&self.0.staging.output, length)
    }

    /// Gives back what [`Stage::input`] gave, when the call has ended.
    pub(crate) fn keep_input<T: Element>(self, buffer: Buffer<T>) {
        self.0.staging.input.replace(buffer.reshape(0));
    }

    /// Gives back what [`Stage::output`] gave, when the call has ended.
    pub(crate) fn keep_output<T: Element>(self, buffer: Buffer<T>) {
        self.0.staging.output.replace(buffer.reshape(0));
    }

    fn take<T: Element>(self, kept: &RefCell<Option<Buffer<u8>>>, length: usize) -> Result<Buffer<T>, Error> {
        // Memory that is too small goes before there is other memory, so that both need not fit.
        if let Some(buffer) = kept.take().and_then(|kept| kept.reshape(length)) {
            return Ok(buffer);
        }
        let bytes = length.checked_mul(size_of::<T>()).ok_or(MemoryError::TooLarge)?.max(LEAST);
        let bytes = bytes.checked_next_power_of_two().ok_or(MemoryError::TooLarge)?;
        let whole = self.0.client.arena(bytes)?.buffer::<u8>(bytes)?;
        Ok(whole.reshape(length).ok_or(MemoryError::TooLarge)?)
    }
}
