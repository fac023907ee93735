//! Typed pieces of an arena.

use core::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};
use std::sync::Arc;

use ringway_abi::descriptor::BufferHandle;
use ringway_mem::{Block, Window};
use zerocopy::FromBytes;

use crate::{Element, arena::Registered};

/// Elements in an [`crate::Arena`], used like a slice. An operation takes it by value and gives it back when it has
/// ended: while somebody else reads or writes the memory, there is no slice of it.
pub struct Buffer<T: Element> {
    /// Behind one pointer: operations take buffers and give them back, and a short one takes no longer than moving several
    /// words, which are stored one by one and loaded in pairs.
    memory: Box<Memory>,
    element: PhantomData<T>,
}

struct Memory {
    block: Block,
    arena: Arc<Registered>,
}

impl<T: Element> Buffer<T> {
    pub(crate) fn new(block: Block, arena: Arc<Registered>) -> Self {
        Self { memory: Box::new(Memory { block, arena }), element: PhantomData }
    }

    #[inline]
    pub(crate) fn handle(&self) -> BufferHandle {
        BufferHandle { region: self.memory.arena.region, offset: self.memory.block.offset() }
    }

    /// The memory, for an operation that owns the buffer.
    #[inline]
    pub(crate) fn window(&self) -> Window<'_> {
        self.memory.block.window()
    }

    #[inline]
    pub(crate) fn region(&self) -> &Arc<Registered> {
        &self.memory.arena
    }

    /// The arena's memory that this buffer was taken from, as `length` elements from its beginning on; they hold whatever is
    /// there. `None` when that has another part still in use, or is shorter.
    pub(crate) fn reshape<U: Element>(mut self, length: usize) -> Option<Buffer<U>> {
        let bytes = length.checked_mul(size_of::<U>())? as u64;
        let block = &mut self.memory.block;
        if !block.restore() {
            return None;
        }
        drop(block.split_off(bytes)?);
        Some(Buffer { memory: self.memory, element: PhantomData })
    }

    /// Two buffers: the first `at` elements and the others. Each can be given to an operation of its own.
    ///
    /// # Errors
    /// The buffer itself when it has fewer elements.
    pub fn split_at(mut self, at: usize) -> Result<(Self, Self), Self> {
        let bytes = (at as u64).saturating_mul(size_of::<T>() as u64);
        match self.memory.block.split_off(bytes) {
            Some(back) => {
                let back = Self::new(back, Arc::clone(&self.memory.arena));
                Ok((self, back))
            }
            None => Err(self),
        }
    }

    /// One buffer again of two that [`Buffer::split_at`] made.
    ///
    /// # Errors
    /// Both when `next` does not directly follow.
    pub fn join(mut self, next: Self) -> Result<Self, (Self, Self)> {
        let Memory { block, arena } = *next.memory;
        match self.memory.block.append(block) {
            Ok(()) => Ok(self),
            Err(block) => Err((self, Self::new(block, arena))),
        }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // Blocks begin at multiples of 64 bytes, or of an element's size from there, and hold whole elements.
        <[T]>::ref_from_bytes(self.memory.block.bytes()).unwrap_or_default()
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        <[T]>::mut_from_bytes(self.memory.block.bytes_mut()).unwrap_or_default()
    }
}

impl<T: Element> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Element> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("elements", &self.len()).field("type", &T::DATATYPE.name()).finish()
    }
}
