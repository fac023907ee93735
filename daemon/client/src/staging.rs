//! Memory through which ordinary slices are copied, kept from call to call.

use core::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use ringway_mem::Window;
use zerocopy::IntoBytes as _;

use crate::{Arena, Buffer, CallError, Communicator, Element, Error, MemoryError, OperationError};

/// Copies from one slice to another of the same length, by our own kernel: many a C library's `memcpy` falls to a fraction
/// of its rate where the destination begins a few bytes past the source modulo the page size.
pub(crate) fn copy<T: Element>(from: &[T], to: &mut [T]) {
    let (from, to) = (Window::of(from.as_bytes()), Window::of_mut(to.as_mut_bytes()));
    let done = ringway_reduce::copy(from, &[to]);
    debug_assert!(done.is_ok(), "{done:?}");
}

/// The least bytes of a staging arena.
const LEAST: usize = 64 * 1024;
/// Bytes that are copied between two looks at the communicator: some milliseconds.
const COPIED_AT_ONCE: usize = 16 << 20;
/// How often the daemon is asked, while memory is made and filled, whether the communicator still stands: each question takes
/// tens of microseconds.
const ASKED_EVERY: Duration = Duration::from_millis(10);

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
/// back. Making and filling many megabytes takes tens of milliseconds, hundreds for the first time. The daemon knows
/// nothing of the call yet, so that it is asked meanwhile whether there still is somebody to make it with.
#[derive(Debug)]
pub(crate) struct Stage<'c> {
    communicator: &'c Communicator,
    /// When the daemon was asked, or the first time that it could have been.
    asked: Cell<Option<Instant>>,
}

impl Communicator {
    /// Staging memory for a call on slices.
    pub(crate) fn stage(&self) -> Result<Stage<'_>, Error> {
        if self.queue.borrow().is_group_open() {
            return Err(CallError::InsideGroup.into());
        }
        Ok(Stage { communicator: self, asked: Cell::new(None) })
    }
}

impl Stage<'_> {
    /// A buffer with a copy of a slice, for a call that reads it.
    pub(crate) fn input<T: Element>(&self, slice: &[T]) -> Result<Buffer<T>, Error> {
        let mut buffer = self.take(&self.communicator.staging.input, slice.len())?;
        self.fill(&mut buffer, slice)?;
        Ok(buffer)
    }

    /// Copies to a buffer what the call finds there.
    pub(crate) fn fill<T: Element>(&self, buffer: &mut [T], slice: &[T]) -> Result<(), Error> {
        let piece = (COPIED_AT_ONCE / size_of::<T>()).max(1);
        for (index, (from, to)) in slice.chunks(piece).zip(buffer.chunks_mut(piece)).enumerate() {
            if index > 0 {
                self.look()?;
            }
            copy(from, to);
        }
        Ok(())
    }

    /// A buffer that holds whatever was there before, for a call that writes all of it.
    pub(crate) fn output<T: Element>(&self, length: usize) -> Result<Buffer<T>, Error> {
        self.take(&self.communicator.staging.output, length)
    }

    /// Ends a call: its result to the caller's slice, where there is one, and back what [`Stage::input`] and [`Stage::output`]
    /// gave.
    pub(crate) fn end<T: Element>(
        &self,
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
    pub(crate) fn keep_input<T: Element>(&self, buffer: Buffer<T>) {
        self.communicator.staging.input.buffer.replace(buffer.reshape(0));
    }

    /// Gives back what [`Stage::output`] gave, when the call has ended.
    pub(crate) fn keep_output<T: Element>(&self, buffer: Buffer<T>) {
        self.communicator.staging.output.buffer.replace(buffer.reshape(0));
    }

    fn take<T: Element>(&self, kept: &Kept, length: usize) -> Result<Buffer<T>, Error> {
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
                arena.insert(self.make(bytes)?).take(bytes)?
            }
        };
        Ok(buffer.reshape(length).ok_or(MemoryError::TooLarge)?)
    }

    fn make(&self, bytes: usize) -> Result<Arena, Error> {
        let mut failure = None;
        let mut stands = || {
            failure = self.look().err();
            failure.is_none()
        };
        let made = Arena::new_while(self.communicator.client.clone(), bytes, &mut stands);
        match failure {
            Some(failure) => Err(failure.into()),
            None => Ok(made?),
        }
    }

    /// Whether the communicator still stands, as the daemon said some milliseconds ago.
    fn look(&self) -> Result<(), OperationError> {
        let now = Instant::now();
        let asked = self.asked.get().unwrap_or(now);
        let is_due = now.duration_since(asked) >= ASKED_EVERY;
        self.asked.set(Some(if is_due { now } else { asked }));
        let failure = if is_due { self.communicator.failure() } else { None };
        failure.map_or(Ok(()), Err)
    }
}
