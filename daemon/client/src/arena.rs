//! Memory that the daemon can reach.

use core::fmt;
use std::{os::fd::AsFd, sync::Arc};

use ringway_abi::control::{Reply, Request};
use ringway_mem::{ArenaError, MemFdError, Pool, Window};

use crate::{Buffer, Client, Element, MemoryError, RequestError, connect::PATIENCE};

/// Memory registered with the daemon, from which buffers are taken. Cloning it is cheap and gives the same arena; the
/// memory is freed when the last clone and the last buffer are gone.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Registered>,
}

/// A region that the daemon has admitted.
pub(crate) struct Registered {
    pub(crate) pool: Pool,
    pub(crate) client: Client,
    /// The daemon's handle for it.
    pub(crate) region: u64,
}

impl Registered {
    /// All of it.
    #[inline]
    pub(crate) fn window(&self) -> Option<Window<'_>> {
        self.pool.window(0, self.pool.length())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The daemon frees its side; when it is gone, there is nothing to free.
        self.client.give_up(Request::ReleaseRegion { region: self.region });
        // Others learn of it with the next call of each communicator, and unmap it.
        self.client.session().count_release();
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("region", &self.region).finish_non_exhaustive()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Arena {
    pub(crate) fn new(client: Client, bytes: usize) -> Result<Self, MemoryError> {
        Self::new_while(client, bytes, &mut || true)
    }

    /// The same, asked now and then whether it is still wanted. Where it is not, it fails for want of memory.
    pub(crate) fn new_while(
        client: Client,
        bytes: usize,
        wanted_still: &mut dyn FnMut() -> bool,
    ) -> Result<Self, MemoryError> {
        let wanted = bytes as u64;
        let unavailable =
            |reason: MemFdError| MemoryError::Kernel { bytes: wanted, reason: reason.to_string() };
        let control = &client.session().control;
        // Every page is paid for below, so what would be refused is not even begun.
        control.request(Request::MayRegister { bytes: wanted }, &[], PATIENCE)?;
        let (pool, descriptor) = Pool::new("ringway-arena", wanted, wanted_still).map_err(unavailable)?;
        let answer = control.request(Request::RegisterRegion, &[descriptor.as_fd()], PATIENCE)?;
        let Reply::Region { region, length } = answer.reply else {
            return Err(RequestError::Protocol { what: "no region where one was registered" }.into());
        };
        let shared = Arc::new(Registered { pool, client, region });
        if length != shared.pool.length() {
            return Err(RequestError::Protocol { what: "a region of another length" }.into());
        }
        Ok(Self { shared })
    }

    /// A buffer of `length` elements, all zero.
    ///
    /// ```no_run
    /// # fn f(client: &ringway_client::Client) -> Result<(), ringway_client::Error> {
    /// let arena = client.arena(1 << 20)?;
    /// let mut buffer = arena.buffer::<f32>(1000)?;
    /// buffer[0] = 1.0;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`MemoryError::Full`] when the arena has no room for it.
    pub fn buffer<T: Element>(&self, length: usize) -> Result<Buffer<T>, MemoryError> {
        let mut buffer = self.take::<T>(length)?;
        buffer.fill(T::default());
        Ok(buffer)
    }

    /// A buffer with a copy of `values`.
    ///
    /// # Errors
    /// As [`Arena::buffer`].
    pub fn buffer_from<T: Element>(&self, values: &[T]) -> Result<Buffer<T>, MemoryError> {
        let mut buffer = self.take::<T>(values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }

    /// The arena's bytes: those asked for, rounded up to whole pages. Every buffer takes a multiple of 64 of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.pool.length()
    }

    /// The region, to be used as a whole and without buffers.
    pub(crate) fn into_region(self) -> Arc<Registered> {
        self.shared
    }

    /// A buffer that holds whatever its memory held before.
    pub(crate) fn take<T: Element>(&self, length: usize) -> Result<Buffer<T>, MemoryError> {
        let bytes = length.checked_mul(size_of::<T>()).ok_or(MemoryError::TooLarge)?;
        let block = self.shared.pool.take(bytes as u64).map_err(|error| match error {
            ArenaError::Full { wanted, free, longest, length } => {
                MemoryError::Full { wanted, free, largest: longest, size: length }
            }
            ArenaError::NotAllocated(_) => MemoryError::TooLarge,
        })?;
        Ok(Buffer::new(block, Arc::clone(&self.shared)))
    }
}
