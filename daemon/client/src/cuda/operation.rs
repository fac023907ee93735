//! The operations on memory of a GPU.

use std::sync::Arc;

use ringway_abi::descriptor::{BufferHandle, FLAG_STREAM};
use ringway_types::Operation;

use super::{Enqueued, GpuBuffer, Stream, memory::Block};
use crate::{
    CallError, Client, Communicator, Element, Reduce, Source,
    arena::Registered,
    operation::{Operand, Place, Wish},
    queue::Call,
};

/// Puts operations into a stream. Input and output may be the same buffer where the operation has an in-place form: the
/// whole for those whose input and output are of one length, else the rank's own block of the longer of the two.
///
/// Every rank of the communicator makes the same calls in the same order, whatever their streams. Ranks with memory of the
/// host take part by the communicator's other methods.
#[derive(Debug, Clone, Copy)]
pub struct OnStream<'c> {
    communicator: &'c Communicator,
    stream: &'c Stream,
}

/// A buffer as a call sees it.
#[derive(Debug, Clone, Copy)]
struct View<'b> {
    handle: BufferHandle,
    bytes: u64,
    block: &'b Arc<Block>,
}

impl<'b> Operand<'b> for View<'b> {
    fn handle(&self) -> BufferHandle {
        self.handle
    }

    fn further(self, bytes: u64) -> Self {
        let offset = self.handle.offset.saturating_add(bytes);
        Self { handle: BufferHandle { offset, ..self.handle }, ..self }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_of(&self, client: &Client) -> bool {
        self.block.client().is(client)
    }

    // The block keeps it.
    fn region(&self) -> Option<&'b Arc<Registered>> {
        None
    }
}

fn view<T: Element>(buffer: &GpuBuffer<T>) -> View<'_> {
    View { handle: buffer.handle(), bytes: buffer.byte_length(), block: buffer.block() }
}

fn place<'b, T: Element>(
    input: Option<&'b GpuBuffer<T>>,
    output: Option<&'b GpuBuffer<T>>,
) -> Place<View<'b>> {
    Place::Apart(input.map(view), output.map(view))
}

/// Of an operation without counts.
const NONE: [&[u64]; 2] = [&[], &[]];

/// A call that makes sense, and the memory that it uses.
type Checked<'w> = (Call<'w>, [Option<&'w Arc<Block>>; 2]);

impl Communicator {
    /// Puts operations into a stream of the GPU that this rank joined with ([`crate::CommunicatorBuilder::gpu`]).
    #[must_use]
    pub const fn on<'c>(&'c self, stream: &'c Stream) -> OnStream<'c> {
        OnStream { communicator: self, stream }
    }
}

impl<'c> OnStream<'c> {
    fn enqueue<'w>(&self, wish: Wish<View<'w>>, counts: [&'w [u64]; 2]) -> Result<Enqueued<'c>, CallError> {
        self.enqueue_all([self.check(wish, counts)?]).map(|[enqueued]| enqueued)
    }

    /// Puts calls that go together into the stream.
    fn enqueue_all<const N: usize>(&self, checked: [Checked<'_>; N]) -> Result<[Enqueued<'c>; N], CallError> {
        let communicator = self.communicator;
        let words = communicator.words.as_ref().ok_or(CallError::NoGpu)?;
        if communicator.queue.borrow().is_group_open() {
            return Err(CallError::InsideGroup);
        }
        let calls = checked.each_ref().map(|(call, _)| call);
        let tickets = communicator.when_room(|queue| {
            communicator.let_go(queue);
            let blocks = checked.map(|(_, blocks)| blocks);
            queue.submit_streamed(calls, |tokens| words.order(tokens, self.stream, blocks)).transpose()
        })??;
        Ok(tickets.map(|ticket| Enqueued::new(communicator, ticket)))
    }

    fn check<'w>(&self, wish: Wish<View<'w>>, counts: [&'w [u64]; 2]) -> Result<Checked<'w>, CallError> {
        let wish = wish.flag(FLAG_STREAM);
        let call = self.communicator.check(&wish, counts)?;
        let blocks = wish.place().operands().map(|view| view.map(|view| view.block));
        Ok((call, blocks))
    }

    fn combine<'w, T: Element>(
        &self,
        operation: Operation,
        (input, output): (&'w GpuBuffer<T>, &'w GpuBuffer<T>),
        count: usize,
        reduce: Reduce<T>,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(operation, count as u64, place(Some(input), Some(output)));
        self.enqueue(wish.reduce(reduce), NONE)
    }

    /// Combines every rank's `input`; every rank gets the result in `output`.
    ///
    /// # Errors
    /// [`CallError`]; then nothing is in the stream.
    pub fn allreduce<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Result<Enqueued<'c>, CallError> {
        self.combine(Operation::Allreduce, (input, output), input.len(), reduce.into())
    }

    /// Combines every rank's `input`; the root gets the result in its `output`, which others need not have.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn reduce<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: Option<&GpuBuffer<T>>,
        root: u32,
        reduce: impl Into<Reduce<T>>,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(Operation::Reduce, input.len() as u64, place(Some(input), output));
        self.enqueue(wish.rank(root).reduce(reduce.into()), NONE)
    }

    /// Combines every rank's `input`, which has a block for each rank; rank `i` gets the `i`-th block of the result.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Result<Enqueued<'c>, CallError> {
        self.combine(Operation::ReduceScatter, (input, output), output.len(), reduce.into())
    }

    /// Rank `r` gets the combination of the inputs of ranks `0..=r`.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn scan<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Result<Enqueued<'c>, CallError> {
        self.combine(Operation::Scan, (input, output), input.len(), reduce.into())
    }

    /// Rank `r` gets the combination of the inputs of ranks `0..r`; rank 0's output is not touched.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn exscan<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Result<Enqueued<'c>, CallError> {
        self.combine(Operation::Exscan, (input, output), input.len(), reduce.into())
    }

    /// The root's `input`, which others need not have, to every rank's `output`.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn broadcast<T: Element>(
        &self,
        input: Option<&GpuBuffer<T>>,
        output: &GpuBuffer<T>,
        root: u32,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(Operation::Broadcast, output.len() as u64, place(input, Some(output)));
        self.enqueue(wish.rank(root), NONE)
    }

    /// Every rank's `input`, in rank order, to every rank's `output`.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn all_gather<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
    ) -> Result<Enqueued<'c>, CallError> {
        let place = place(Some(input), Some(output));
        self.enqueue(Wish::new::<T>(Operation::AllGather, input.len() as u64, place), NONE)
    }

    /// Every rank's `input`, in rank order, to the root's `output`.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn gather<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: Option<&GpuBuffer<T>>,
        root: u32,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(Operation::Gather, input.len() as u64, place(Some(input), output));
        self.enqueue(wish.rank(root), NONE)
    }

    /// The `i`-th block of the root's `input` to rank `i`'s `output`.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn scatter<T: Element>(
        &self,
        input: Option<&GpuBuffer<T>>,
        output: &GpuBuffer<T>,
        root: u32,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(Operation::Scatter, output.len() as u64, place(input, Some(output)));
        self.enqueue(wish.rank(root), NONE)
    }

    /// The `j`-th block of rank `i`'s `input` becomes the `i`-th block of rank `j`'s `output`.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn all_to_all<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
    ) -> Result<Enqueued<'c>, CallError> {
        let count = self.communicator.block(Operation::AllToAll, "input", input.len() as u64)?;
        self.enqueue(Wish::new::<T>(Operation::AllToAll, count, place(Some(input), Some(output))), NONE)
    }

    /// As [`OnStream::all_to_all`], with so many elements for each rank, and from each.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        sends: &[u64],
        output: &GpuBuffer<T>,
        receives: &[u64],
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(Operation::AllToAllV, 0, place(Some(input), Some(output)));
        self.enqueue(wish, [sends, receives])
    }

    /// As [`OnStream::all_gather`], with a count for each rank.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn all_gather_v<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
        counts: &[u64],
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(Operation::AllGatherV, 0, place(Some(input), Some(output)));
        self.enqueue(wish, [counts, &[]])
    }

    /// As [`OnStream::reduce_scatter`], with a count for each rank.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: &GpuBuffer<T>,
        counts: &[u64],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = Wish::new::<T>(Operation::ReduceScatterV, 0, place(Some(input), Some(output)));
        self.enqueue(wish.reduce(reduce.into()), [counts, &[]])
    }

    /// The stream goes on when every rank's has come here.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn barrier(&self) -> Result<Enqueued<'c>, CallError> {
        self.enqueue(Wish::new::<u8>(Operation::Barrier, 0, Place::Apart(None, None)), NONE)
    }

    /// As [`OnStream::gather`], with a count for each rank; those that other ranks than the root give are not looked at.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn gather_v<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: Option<&GpuBuffer<T>>,
        counts: &[u64],
        root: u32,
    ) -> Result<Enqueued<'c>, CallError> {
        let own = [input.len() as u64];
        let counts = if self.communicator.rank == root { counts } else { &own };
        let wish = Wish::new::<T>(Operation::GatherV, 0, place(Some(input), output));
        self.enqueue(wish.rank(root), [counts, &[]])
    }

    /// As [`OnStream::scatter`], with a count for each rank; those that other ranks than the root give are not looked at.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn scatter_v<T: Element>(
        &self,
        input: Option<&GpuBuffer<T>>,
        output: &GpuBuffer<T>,
        counts: &[u64],
        root: u32,
    ) -> Result<Enqueued<'c>, CallError> {
        let own = [output.len() as u64];
        let counts = if self.communicator.rank == root { counts } else { &own };
        let wish = Wish::new::<T>(Operation::ScatterV, 0, place(input, Some(output)));
        self.enqueue(wish.rank(root), [counts, &[]])
    }

    /// A message to a rank, and one from a rank, at once: each alone would keep the stream until its peer's comes to the other.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn send_recv<T: Element>(
        &self,
        (sent, to, send_tag): (&GpuBuffer<T>, u32, u64),
        (received, from, receive_tag): (&GpuBuffer<T>, impl Into<Source>, u64),
    ) -> Result<[Enqueued<'c>; 2], CallError> {
        let send = Wish::send::<T>((view(sent), sent.len()), to, send_tag);
        let receive = Wish::receive::<T>((view(received), received.len()), from.into(), receive_tag);
        self.enqueue_all([self.check(send, NONE)?, self.check(receive, NONE)?])
    }

    /// A message to a rank.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn send<T: Element>(
        &self,
        buffer: &GpuBuffer<T>,
        to: u32,
        tag: u64,
    ) -> Result<Enqueued<'c>, CallError> {
        self.enqueue(Wish::send::<T>((view(buffer), buffer.len()), to, tag), NONE)
    }

    /// A message from a rank, or from any, of at most the buffer's length; [`Enqueued::wait`] tells whose and how long.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn recv<T: Element>(
        &self,
        buffer: &GpuBuffer<T>,
        from: impl Into<Source>,
        tag: u64,
    ) -> Result<Enqueued<'c>, CallError> {
        self.enqueue(Wish::receive::<T>((view(buffer), buffer.len()), from.into(), tag), NONE)
    }
}
