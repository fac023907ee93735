//! Typed pieces of an arena.

use core::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};
use std::sync::Arc;

use ringway_abi::descriptor::BufferHandle;
use ringway_mem::{Block, Lease, Window};
use zerocopy::FromBytes;

use crate::{Element, arena::Registered};

/// Elements in an [`crate::Arena`], used like a slice. An operation takes it by value and gives it back when it has
/// ended: while somebody else reads or writes the memory, there is no slice of it.
pub struct Buffer<T: Element> {
    block: Block,
    arena: Arc<Registered>,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub(crate) const fn new(block: Block, arena: Arc<Registered>) -> Self {
        Self { block, arena, element: PhantomData }
    }

    #[inline]
    pub(crate) fn handle(&self) -> BufferHandle {
        BufferHandle { region: self.arena.region, offset: self.block.offset() }
    }

    /// The memory, for an operation that owns the buffer.
    #[inline]
    pub(crate) const fn window(&self) -> Window<'_> {
        self.block.window()
    }

    #[inline]
    pub(crate) const fn region(&self) -> &Arc<Registered> {
        &self.arena
    }

    /// The memory, to be used again for other elements when the buffer is gone.
    pub(crate) fn lease(&self) -> (Lease, Arc<Registered>) {
        (self.block.lease(), Arc::clone(&self.arena))
    }

    /// The same memory as elements of another type, of which it holds a whole number and to which it is aligned.
    pub(crate) fn cast<U: Element>(self) -> Buffer<U> {
        Buffer { block: self.block, arena: self.arena, element: PhantomData }
    }

    /// Two buffers: the first `at` elements and the others. Each can be given to an operation of its own.
    ///
    /// # Errors
    /// The buffer itself when it has fewer elements.
    pub fn split_at(self, at: usize) -> Result<(Self, Self), Self> {
        let Self { block, arena, element } = self;
        let bytes = (at as u64).saturating_mul(size_of::<T>() as u64);
        match block.split_at(bytes) {
            Ok((front, back)) => Ok((
                Self { block: front, arena: Arc::clone(&arena), element },
                Self { block: back, arena, element },
            )),
            Err(block) => Err(Self { block, arena, element }),
        }
    }

    /// One buffer again of two that [`Buffer::split_at`] made.
    ///
    /// # Errors
    /// Both when `next` does not directly follow.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        let Self { block, arena, element } = self;
        match block.join(next.block) {
            Ok(block) => Ok(Self { block, arena, element }),
            Err((first, second)) => Err((
                Self { block: first, arena, element },
                Self { block: second, arena: next.arena, element },
            )),
        }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // Blocks begin at multiples of 64 bytes, or of an element's size from there, and hold whole elements.
        <[T]>::ref_from_bytes(self.block.bytes()).unwrap_or_default()
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        <[T]>::mut_from_bytes(self.block.bytes_mut()).unwrap_or_default()
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
