//! Memory of a GPU that the daemon can reach.

use core::{fmt, marker::PhantomData, ops::Range};
use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
};

use ringway_abi::{
    control::{Reply, Request},
    descriptor::BufferHandle,
};
use ringway_cuda::{Bytes, CudaError, Gpu, Memory, Path, Stream};
use ringway_mem::{Arena, ArenaError};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Client, Element, MemoryError, RequestError, connect::PATIENCE};

/// Every buffer begins at a multiple of this many bytes, as allocations of CUDA do.
const ALIGNMENT: u64 = 256;

/// Memory of a GPU, registered with the daemon, from which buffers are taken. Cloning it gives the same; the memory is freed
/// when the last clone and the last buffer are gone.
#[derive(Debug, Clone)]
pub struct GpuArena {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    /// The daemon's handle for it.
    region: u64,
    memory: Memory,
    // Taking and giving buffers is off the data path.
    arena: Mutex<Arena>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("region", &self.region).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The daemon frees its side; when it is gone, there is nothing to free.
        self.client.give_up(Request::ReleaseRegion { region: self.region });
    }
}

impl GpuArena {
    pub(crate) fn allocate(client: Client, gpu: &Arc<Gpu>, bytes: u64) -> Result<Self, MemoryError> {
        let control = &client.session().control;
        control.request(Request::MayRegister { bytes }, &[], PATIENCE)?;
        let (memory, descriptor) = Memory::allocate(gpu, bytes)?;
        let length = memory.bytes().length();
        let request = Request::RegisterGpuRegion { gpu: *gpu.uuid(), offset: 0, length, ipc: None };
        let answer = control.request(request, &[descriptor.as_fd()], PATIENCE)?;
        Self::registered(client, answer.reply, memory)
    }

    pub(crate) fn import(
        client: Client,
        gpu: &Arc<Gpu>,
        address: u64,
        length: u64,
    ) -> Result<Self, MemoryError> {
        let (memory, handle, offset) = Memory::borrow(gpu, address, length)?;
        let mut halves = ([0; 32], [0; 32]);
        for (to, from) in halves.0.iter_mut().chain(&mut halves.1).zip(handle) {
            *to = from;
        }
        let request = Request::RegisterGpuRegion { gpu: *gpu.uuid(), offset, length, ipc: Some(halves) };
        let answer = client.request(request)?;
        Self::registered(client, answer.reply, memory)
    }

    fn registered(client: Client, reply: Reply, memory: Memory) -> Result<Self, MemoryError> {
        let Reply::Region { region, .. } = reply else {
            return Err(RequestError::Protocol { what: "no region where one was registered" }.into());
        };
        let arena = Mutex::new(Arena::new(memory.bytes().length()));
        Ok(Self { shared: Arc::new(Shared { client, region, memory, arena }) })
    }

    /// The arena's bytes: those asked for, rounded up to what a GPU allocates at least (2 MiB).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.memory.bytes().length()
    }

    /// The GPU that it is on.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.shared.memory.gpu()
    }

    /// How the daemon reaches it.
    #[must_use]
    pub fn path(&self) -> Path {
        self.shared.memory.path()
    }

    /// A buffer of `length` elements, which hold whatever the memory held before.
    ///
    /// # Errors
    /// [`MemoryError::Full`] when the arena has no room for it.
    pub fn buffer<T: Element>(&self, length: usize) -> Result<GpuBuffer<T>, MemoryError> {
        let bytes = (length as u64).checked_mul(size_of::<T>() as u64).ok_or(MemoryError::TooLarge)?;
        let wanted = bytes.max(1).checked_next_multiple_of(ALIGNMENT).ok_or(MemoryError::TooLarge)?;
        let offset = self.shared.with_arena(|arena| arena.allocate(wanted)).map_err(|error| match error {
            ArenaError::Full { wanted, free, longest, length } => {
                MemoryError::Full { wanted, free, largest: longest, size: length }
            }
            ArenaError::NotAllocated(_) => MemoryError::TooLarge,
        })?;
        let block = Block { arena: Arc::clone(&self.shared), offset };
        Ok(GpuBuffer { block: Arc::new(block), first: 0, length, element: PhantomData })
    }
}

impl Shared {
    fn with_arena<R>(&self, work: impl FnOnce(&mut Arena) -> R) -> R {
        work(&mut self.arena.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A range of an arena, which goes back when the last buffer in it is gone.
#[derive(Debug)]
pub(crate) struct Block {
    arena: Arc<Shared>,
    offset: u64,
}

impl Block {
    pub(crate) fn client(&self) -> &Client {
        &self.arena.client
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _ = self.arena.with_arena(|arena| arena.release(self.offset));
    }
}

/// Elements in memory of a GPU. Cloning it gives the same elements. Operations keep the memory until they have ended; that
/// nobody else uses it meanwhile is the caller's care, as with every work in streams: what then is in it is not defined.
pub struct GpuBuffer<T: Element> {
    block: Arc<Block>,
    /// The first element, of the block's.
    first: usize,
    length: usize,
    element: PhantomData<T>,
}

impl<T: Element> Clone for GpuBuffer<T> {
    fn clone(&self) -> Self {
        Self { block: Arc::clone(&self.block), ..*self }
    }
}

impl<T: Element> fmt::Debug for GpuBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuBuffer").field("address", &self.address()).field("length", &self.length).finish()
    }
}

impl<T: Element> GpuBuffer<T> {
    /// How many elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Some of its elements; `None` when they are not all among them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let length = range.end.checked_sub(range.start).filter(|_| range.end <= self.length)?;
        Some(Self { first: self.first + range.start, length, ..self.clone() })
    }

    fn offset(&self) -> u64 {
        self.block.offset + (self.first * size_of::<T>()) as u64
    }

    pub(crate) fn handle(&self) -> BufferHandle {
        BufferHandle { region: self.block.arena.region, offset: self.offset() }
    }

    pub(crate) fn byte_length(&self) -> u64 {
        (self.length * size_of::<T>()) as u64
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// Where it is, for kernels of this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.block.arena.memory.bytes().address() + self.offset()
    }

    fn bytes(&self) -> Result<Bytes, CudaError> {
        let (offset, wanted) = (self.offset(), self.byte_length());
        let all = self.block.arena.memory.bytes();
        let short = CudaError::TooShort { offset, wanted, length: all.length() };
        all.part(offset, wanted).ok_or(short)
    }

    /// Copies values into it, in the order of the stream, and waits for that. The shorter of the two lengths counts.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn upload(&self, stream: &Stream, values: &[T]) -> Result<(), CudaError> {
        stream.upload(values.as_bytes(), self.bytes()?)
    }

    /// Copies its values out, in the order of the stream, and waits for that.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn download(&self, stream: &Stream, values: &mut [T]) -> Result<(), CudaError>
    where
        T: FromBytes + IntoBytes,
    {
        stream.download(self.bytes()?, values.as_mut_bytes())
    }

    /// Sets its bytes, in the order of the stream.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn fill(&self, stream: &Stream, byte: u8) -> Result<(), CudaError> {
        stream.fill(self.bytes()?, byte)
    }

    /// Copies its values to another buffer, in the order of the stream.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn copy_to(&self, stream: &Stream, other: &Self) -> Result<(), CudaError> {
        stream.copy(self.bytes()?, other.bytes()?)
    }
}
