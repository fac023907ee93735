//! Memory through which ordinary slices are copied, kept from call to call.

use core::cell::RefCell;

use ringway_mem::Window;
use zerocopy::IntoBytes as _;

use crate::{Arena, Buffer, CallError, Communicator, Element, Error, MemoryError};

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
/// needs, and stays.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    input: Kept,
    output: Kept,
}

#[derive(Debug, Default)]
struct Kept {
    arena: RefCell<Option<Arena>>,
    /// In the arena; none while a call uses it, nor after that failed.
    buffer: RefCell<Option<Buffer<u8>>>,
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

    /// Ends a call: its result to the caller's slice, where there is one, and back what [`Stage::input`] and [`Stage::output`]
    /// gave.
    pub(crate) fn end<T: Element>(
        self,
        (from, to): (impl Into<Option<Buffer<T>>>, impl Into<Option<Buffer<T>>>),
        output: Option<&mut [T]>,
    ) {
        let (from, to) = (from.into(), to.into());
        if let (Some(to), Some(output)) = (&to, output) {
            copy(to, output);
        }
        from.into_iter().for_each(|from| self.keep_input(from));
        to.into_iter().for_each(|to| self.keep_output(to));
    }

    /// Gives back what [`Stage::input`] gave, when the call has ended.
    pub(crate) fn keep_input<T: Element>(self, buffer: Buffer<T>) {
        self.0.staging.input.buffer.replace(buffer.reshape(0));
    }

    /// Gives back what [`Stage::output`] gave, when the call has ended.
    pub(crate) fn keep_output<T: Element>(self, buffer: Buffer<T>) {
        self.0.staging.output.buffer.replace(buffer.reshape(0));
    }

    fn take<T: Element>(self, kept: &Kept, length: usize) -> Result<Buffer<T>, Error> {
        if let Some(buffer) = kept.buffer.take().and_then(|buffer| buffer.reshape(length)) {
            return Ok(buffer);
        }
        let bytes = length.checked_mul(size_of::<T>()).ok_or(MemoryError::TooLarge)?.max(LEAST);
        let bytes = bytes.checked_next_power_of_two().ok_or(MemoryError::TooLarge)?;
        let mut arena = kept.arena.borrow_mut();
        // What a failed call had is free again, unless somebody may still be at work on it.
        let again = arena.as_ref().and_then(|arena| arena.take(bytes).ok());
        let buffer: Buffer<u8> = match again {
            Some(again) => again,
            None => {
                // The old memory goes before there is other memory, so that both need not fit.
                *arena = None;
                arena.insert(self.0.client.arena(bytes)?).take(bytes)?
            }
        };
        Ok(buffer.reshape(length).ok_or(MemoryError::TooLarge)?)
    }
}
