//! The operations on memory of a GPU.

use std::sync::Arc;

use ringway_abi::{
    descriptor::{BufferHandle, FLAG_ANY_SOURCE, FLAG_STREAM, Submission},
    extent::{Caller, Extent, counts_needed, extent},
};
use ringway_types::{DataType, Operation, Reduction};

use super::{Enqueued, GpuBuffer, Stream, memory::Block};
use crate::{CallError, Communicator, Element, Reduce, Source, queue::Call};

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

/// A buffer of a call.
struct Part {
    handle: BufferHandle,
    bytes: u64,
    block: Arc<Block>,
    is_foreign: bool,
}

/// A call that makes sense, and the memory that it uses.
type Checked<'w> = (Call<'w>, [Option<Arc<Block>>; 2]);

/// A call before it is checked.
struct Wish<'w> {
    operation: Operation,
    datatype: DataType,
    reduce: Option<(Reduction, u64)>,
    rank: u32,
    flags: u8,
    tag: u64,
    count: u64,
    counts: [&'w [u64]; 2],
    input: Option<Part>,
    output: Option<Part>,
}

impl Communicator {
    /// Puts operations into a stream of the GPU that this rank joined with ([`crate::CommunicatorBuilder::gpu`]).
    #[must_use]
    pub const fn on<'c>(&'c self, stream: &'c Stream) -> OnStream<'c> {
        OnStream { communicator: self, stream }
    }
}

impl<'c> OnStream<'c> {
    fn part<T: Element>(&self, buffer: &GpuBuffer<T>) -> Part {
        Part {
            handle: buffer.handle(),
            bytes: buffer.byte_length(),
            block: Arc::clone(buffer.block()),
            is_foreign: !buffer.client().is(&self.communicator.client),
        }
    }

    fn wish<'w, T: Element>(
        &self,
        operation: Operation,
        count: u64,
        input: Option<&GpuBuffer<T>>,
        output: Option<&GpuBuffer<T>>,
    ) -> Wish<'w> {
        Wish {
            operation,
            datatype: T::DATATYPE,
            reduce: None,
            rank: 0,
            flags: FLAG_STREAM,
            tag: 0,
            count,
            counts: [&[], &[]],
            input: input.map(|buffer| self.part(buffer)),
            output: output.map(|buffer| self.part(buffer)),
        }
    }

    fn enqueue(&self, wish: Wish<'_>) -> Result<Enqueued<'c>, CallError> {
        let checked = [self.check(wish)?];
        self.enqueue_all(checked).map(|[enqueued]| enqueued)
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
            let blocks = checked.each_ref().map(|(_, blocks)| blocks.clone());
            queue.submit_streamed(calls, |tokens| words.order(tokens, self.stream, blocks)).transpose()
        })??;
        Ok(tickets.map(|ticket| Enqueued::new(communicator, ticket)))
    }

    fn check<'w>(&self, wish: Wish<'w>) -> Result<Checked<'w>, CallError> {
        let Wish { operation, datatype, rank, flags, counts, count, .. } = wish;
        let size = self.communicator.size;
        let has_rank = operation.has_root() || !operation.is_collective();
        if has_rank && flags & FLAG_ANY_SOURCE == 0 && rank >= size {
            return Err(CallError::Rank { rank, size });
        }
        if let Some((reduction, _)) = wish.reduce.filter(|(r, _)| !datatype.supports(*r)) {
            return Err(CallError::Unsupported { reduction, datatype });
        }
        let caller = Caller { rank: self.communicator.rank, size, root: rank };
        let needed = counts_needed(operation, caller);
        let given = counts.iter().map(|list| list.len()).sum();
        if given != needed {
            return Err(CallError::Counts { operation, actual: given, expected: needed });
        }
        let element = datatype.size() as u64;
        let joined: Vec<u64> = counts.concat();
        let Extent { input: read, output: written } =
            extent(operation, caller, element, count, &joined).ok_or(CallError::TooLarge { operation })?;
        let input = fit(operation, "input", element, wish.input, read)?;
        let output = fit(operation, "output", element, wish.output, written)?;
        let (reduction, scalar) = wish.reduce.unzip();
        let submission = Submission {
            token: 0,
            operation,
            datatype,
            reduction,
            flags,
            rank,
            argument: wish.tag,
            input: input.as_ref().map(|part| part.handle),
            output: output.as_ref().map(|part| part.handle),
            count,
        };
        let scalar = scalar.filter(|_| reduction == Some(Reduction::PremulSum));
        let call = Call { submission, scalar, counts, memory: [None, None] };
        let (words, room) = (call.slab_words(), self.communicator.queue.borrow().slab_room());
        if words > room {
            return Err(CallError::TooManyCounts { operation, words, room });
        }
        Ok((call, [input, output].map(|part| part.map(|part| part.block))))
    }

    fn combine<T: Element>(
        &self,
        operation: Operation,
        (input, output): (Option<&GpuBuffer<T>>, Option<&GpuBuffer<T>>),
        count: u64,
        (reduce, root): (Reduce<T>, u32),
    ) -> Result<Enqueued<'c>, CallError> {
        let reduce = Some((reduce.reduction, reduce.scalar));
        self.enqueue(Wish { reduce, rank: root, ..self.wish(operation, count, input, output) })
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
        let buffers = (Some(input), Some(output));
        self.combine(Operation::Allreduce, buffers, input.len() as u64, (reduce.into(), 0))
    }

    /// Combines every rank's `input`; the root gets the result in its `output`, which others need not have.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn reduce<T: Element>(
        &self,
        input: &GpuBuffer<T>,
        output: Option<&GpuBuffer<T>>,
        reduce: impl Into<Reduce<T>>,
        root: u32,
    ) -> Result<Enqueued<'c>, CallError> {
        self.combine(Operation::Reduce, (Some(input), output), input.len() as u64, (reduce.into(), root))
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
        let buffers = (Some(input), Some(output));
        self.combine(Operation::ReduceScatter, buffers, output.len() as u64, (reduce.into(), 0))
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
        let buffers = (Some(input), Some(output));
        self.combine(Operation::Scan, buffers, input.len() as u64, (reduce.into(), 0))
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
        let buffers = (Some(input), Some(output));
        self.combine(Operation::Exscan, buffers, input.len() as u64, (reduce.into(), 0))
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
        let wish = self.wish(Operation::Broadcast, output.len() as u64, input, Some(output));
        self.enqueue(Wish { rank: root, ..wish })
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
        self.enqueue(self.wish(Operation::AllGather, input.len() as u64, Some(input), Some(output)))
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
        let wish = self.wish(Operation::Gather, input.len() as u64, Some(input), output);
        self.enqueue(Wish { rank: root, ..wish })
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
        let wish = self.wish(Operation::Scatter, output.len() as u64, input, Some(output));
        self.enqueue(Wish { rank: root, ..wish })
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
        self.enqueue(self.wish(Operation::AllToAll, count, Some(input), Some(output)))
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
        let wish = self.wish(Operation::AllToAllV, 0, Some(input), Some(output));
        self.enqueue(Wish { counts: [sends, receives], ..wish })
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
        let wish = self.wish(Operation::AllGatherV, 0, Some(input), Some(output));
        self.enqueue(Wish { counts: [counts, &[]], ..wish })
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
        let reduce = reduce.into();
        let wish = self.wish(Operation::ReduceScatterV, 0, Some(input), Some(output));
        let reduce = Some((reduce.reduction, reduce.scalar));
        self.enqueue(Wish { counts: [counts, &[]], reduce, ..wish })
    }

    /// The stream goes on when every rank's has come here.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn barrier(&self) -> Result<Enqueued<'c>, CallError> {
        self.enqueue(self.wish::<u8>(Operation::Barrier, 0, None, None))
    }

    /// As [`OnStream::gather`], with a count for each rank: the root gives all of them, others their own.
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
        let wish = self.wish(Operation::GatherV, 0, Some(input), output);
        self.enqueue(Wish { counts: [self.own_or_all(counts, root), &[]], rank: root, ..wish })
    }

    /// As [`OnStream::scatter`], with a count for each rank: the root gives all of them, others their own.
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
        let wish = self.wish(Operation::ScatterV, 0, input, Some(output));
        self.enqueue(Wish { counts: [self.own_or_all(counts, root), &[]], rank: root, ..wish })
    }

    /// Of a list with a count for each rank what this rank says of it: who is not the root its own alone.
    fn own_or_all<'w>(&self, counts: &'w [u64], root: u32) -> &'w [u64] {
        let (rank, size) = (self.communicator.rank as usize, self.communicator.size as usize);
        let own = counts.get(rank..=rank).filter(|_| counts.len() == size);
        if self.communicator.rank == root { counts } else { own.unwrap_or(counts) }
    }

    /// A message to a rank, and one from a rank, at once: each alone would keep the stream until its peer's comes to the other.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn send_recv<T: Element>(
        &self,
        (sent, to, send_tag): (&GpuBuffer<T>, u32, u64),
        (received, from, receive_tag): (&GpuBuffer<T>, u32, u64),
    ) -> Result<[Enqueued<'c>; 2], CallError> {
        let send = self.wish(Operation::Send, sent.len() as u64, Some(sent), None);
        let receive = self.wish(Operation::Receive, received.len() as u64, None, Some(received));
        self.enqueue_all([
            self.check(Wish { rank: to, tag: send_tag, ..send })?,
            self.check(Wish { rank: from, tag: receive_tag, ..receive })?,
        ])
    }

    /// A message to a rank.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn send<T: Element>(
        &self,
        buffer: &GpuBuffer<T>,
        peer: u32,
        tag: u64,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = self.wish(Operation::Send, buffer.len() as u64, Some(buffer), None);
        self.enqueue(Wish { rank: peer, tag, ..wish })
    }

    /// A message from a rank, or from any, of at most the buffer's length; [`Enqueued::wait`] tells whose and how long.
    ///
    /// # Errors
    /// As [`OnStream::allreduce`].
    pub fn receive<T: Element>(
        &self,
        buffer: &GpuBuffer<T>,
        source: impl Into<Source>,
        tag: u64,
    ) -> Result<Enqueued<'c>, CallError> {
        let wish = self.wish(Operation::Receive, buffer.len() as u64, None, Some(buffer));
        let wish = match source.into() {
            Source::Rank(rank) => Wish { rank, tag, ..wish },
            Source::Any => Wish { flags: FLAG_STREAM | FLAG_ANY_SOURCE, tag, ..wish },
        };
        self.enqueue(wish)
    }
}

/// A buffer of exactly the bytes that are needed; none where none are.
fn fit(
    operation: Operation,
    which: &'static str,
    element: u64,
    part: Option<Part>,
    needed: Option<u64>,
) -> Result<Option<Part>, CallError> {
    if part.as_ref().is_some_and(|part| part.is_foreign) {
        return Err(CallError::ForeignBuffer { which });
    }
    match (part, needed) {
        (_, None) => Ok(None),
        (None, Some(_)) => Err(CallError::NoBuffer { operation, which }),
        (Some(part), Some(bytes)) if part.bytes == bytes => Ok(Some(part)),
        (Some(part), Some(bytes)) => {
            let (actual, expected) = (part.bytes / element, bytes / element);
            Err(CallError::Length { operation, which, actual, expected })
        }
    }
}
