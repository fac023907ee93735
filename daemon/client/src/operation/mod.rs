//! The operations: what each needs, checked before anything is sent.
//!
//! Counts are elements. Where every rank has a block, `count` is one block's elements and follows from the buffers.

mod collective;
mod counted;
mod message;

use std::time::Instant;

use ringway_abi::{
    descriptor::{BufferHandle, Submission},
    extent::{Caller, Extent, InPlace, counts_needed, extent, in_place_offset},
};
use ringway_types::{DataType, Operation, Reduction};

use crate::{
    Buffer, CallError, Communicator, Element, Pending, SubmitError,
    pending::Held,
    queue::{Call, Queue, Ticket},
    wait::Interrupted,
};

pub use message::Source;

/// A non-blocking operation that was submitted, or the reason why not, with the buffers.
pub type Submitted<'c, B> = Result<Pending<'c, B>, SubmitError<B>>;

/// A buffer as a call sees it.
#[derive(Debug, Clone, Copy)]
struct View<'b> {
    handle: BufferHandle,
    bytes: u64,
    client: &'b crate::Client,
}

/// Where a call's data is.
#[derive(Debug, Clone, Copy)]
enum Place<'b> {
    /// In two buffers; the rank may lack one.
    Apart(Option<View<'b>>, Option<View<'b>>),
    /// In one buffer, in the operation's in-place form.
    Within(View<'b>),
}

/// A call before it is checked.
#[derive(Debug, Clone, Copy)]
struct Wish<'b> {
    operation: Operation,
    datatype: DataType,
    reduce: Option<(Reduction, u64)>,
    /// The root or peer.
    rank: u32,
    flags: u8,
    /// The tag of a message.
    tag: u64,
    count: u64,
    place: Place<'b>,
}

fn view<T: Element>(buffer: &Buffer<T>) -> View<'_> {
    View { handle: buffer.handle(), bytes: size_of_val::<[T]>(buffer) as u64, client: buffer.client() }
}

fn length<T: Element>(buffer: &Buffer<T>) -> u64 {
    buffer.len() as u64
}

impl<'b> Wish<'b> {
    fn new<T: Element>(operation: Operation, count: u64, place: Place<'b>) -> Self {
        Self { operation, datatype: T::DATATYPE, reduce: None, rank: 0, flags: 0, tag: 0, count, place }
    }

    const fn rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }

    fn reduce<T: Element>(mut self, reduce: crate::Reduce<T>) -> Self {
        self.reduce = Some((reduce.reduction, reduce.scalar));
        self
    }
}

impl Communicator {
    /// Checks a call completely: what the daemon would refuse is refused here.
    fn check<'w>(&self, wish: &Wish<'_>, counts: [&'w [u64]; 2]) -> Result<Call<'w>, CallError> {
        let Wish { operation, datatype, rank, .. } = *wish;
        let any = wish.flags & ringway_abi::descriptor::FLAG_ANY_SOURCE != 0;
        let has_rank = operation.has_root() || !operation.is_collective();
        if has_rank && !any && rank >= self.size {
            return Err(CallError::Rank { rank, size: self.size });
        }
        if let Some((reduction, _)) = wish.reduce.filter(|(r, _)| !datatype.supports(*r)) {
            return Err(CallError::Unsupported { reduction, datatype });
        }
        let caller = Caller { rank: self.rank, size: self.size, root: rank };
        let (input, output) = self.place(wish, counts, caller)?;
        for (view, which) in [(input, "input"), (output, "output")] {
            if view.is_some_and(|view| !view.client.is(&self.client)) {
                return Err(CallError::ForeignBuffer { which });
            }
        }
        let (reduction, scalar) = wish.reduce.unzip();
        let submission = Submission {
            token: 0,
            operation,
            datatype,
            reduction,
            flags: wish.flags,
            rank,
            argument: wish.tag,
            input: input.map(|view| view.handle),
            output: output.map(|view| view.handle),
            count: wish.count,
        };
        let scalar = scalar.filter(|_| reduction == Some(Reduction::PremulSum));
        let call = Call { submission, scalar, counts };
        let (words, room) = (call.slab_words(), self.queue.borrow().slab_room());
        if words > room {
            return Err(CallError::TooManyCounts { operation, words, room });
        }
        Ok(call)
    }

    /// What is read and what is written, each of exactly the length that the operation needs.
    fn place<'b>(
        &self,
        wish: &Wish<'b>,
        counts: [&[u64]; 2],
        caller: Caller,
    ) -> Result<(Option<View<'b>>, Option<View<'b>>), CallError> {
        let Wish { operation, datatype, count, .. } = *wish;
        let element = datatype.size() as u64;
        let needed = counts_needed(operation, caller);
        let given = counts.iter().map(|list| list.len()).sum();
        if given != needed {
            return Err(CallError::Counts { operation, actual: given, expected: needed });
        }
        // Only all_to_all_v has two lists; joining them is for nothing in every other case.
        let mut joined = self.scratch.borrow_mut();
        let list = match counts {
            [list, []] => list,
            [first, second] => {
                joined.clear();
                joined.extend(first.iter().chain(second));
                &joined
            }
        };
        let sizes =
            extent(operation, caller, element, count, list).ok_or(CallError::TooLarge { operation })?;
        let Extent { input: read, output: written } = sizes;
        let fit = |view: Option<View<'b>>, bytes: Option<u64>, which: &'static str| match (view, bytes) {
            (_, None) => Ok(None),
            (None, Some(_)) => Err(CallError::NoBuffer { operation, which }),
            (Some(view), Some(bytes)) if view.bytes == bytes => Ok(Some(view)),
            (Some(view), Some(bytes)) => {
                let (actual, expected) = (view.bytes / element, bytes / element);
                Err(CallError::Length { operation, which, actual, expected })
            }
        };
        let whole = match wish.place {
            Place::Apart(input, output) => {
                return Ok((fit(input, read, "input")?, fit(output, written, "output")?));
            }
            Place::Within(whole) => Some(whole),
        };
        let at = |view: Option<View<'b>>, offset: u64| {
            view.map(|view| {
                let offset = view.handle.offset.saturating_add(offset);
                View { handle: BufferHandle { offset, ..view.handle }, ..view }
            })
        };
        match in_place_offset(operation, caller, element, count, list) {
            Some(InPlace::InputInOutput(offset)) => {
                let whole = fit(whole, written, "buffer")?;
                Ok((at(whole, offset), whole))
            }
            Some(InPlace::OutputInInput(offset)) => {
                let whole = fit(whole, read, "buffer")?;
                Ok((whole, at(whole, offset)))
            }
            // This rank has only one of the two.
            None => Ok((fit(whole, read, "buffer")?, fit(whole, written, "buffer")?)),
        }
    }

    /// Submits a checked call, waiting for room when the ring is full.
    fn dispatch(&self, call: &Call<'_>) -> Result<Ticket, CallError> {
        if self.queue.borrow().is_group_open() {
            let mut queue = self.queue.borrow_mut();
            let max = u32::try_from(queue.group_max()).unwrap_or(u32::MAX);
            return queue.submit(call).ok_or(CallError::GroupTooLarge { max });
        }
        self.when_room(|queue| queue.submit(call))
    }

    /// Does what needs room in the ring, waiting for it for as long as an operation may take. Meanwhile completions are
    /// taken, so that the daemon can go on.
    pub(crate) fn when_room<R>(
        &self,
        mut attempt: impl FnMut(&mut Queue) -> Option<R>,
    ) -> Result<R, CallError> {
        let mut queue = self.queue.borrow_mut();
        queue.collect();
        if let Some(done) = attempt(&mut queue) {
            return Ok(done);
        }
        let mut done = None;
        let deadline = if self.timeout.is_zero() { None } else { Instant::now().checked_add(self.timeout) };
        let outcome = self.waiting.until(&mut queue, deadline, |queue| {
            done = attempt(queue);
            done.is_some()
        });
        match (outcome, done) {
            (Ok(()), Some(done)) => Ok(done),
            (Err(Interrupted::Lost), _) => Err(CallError::DaemonLost),
            _ => Err(CallError::Full),
        }
    }

    /// Checks and submits; `wish` says what, of the buffers that the operation then owns.
    fn start<B: Held>(
        &self,
        buffers: B,
        wish: impl FnOnce(&B) -> Result<Wish<'_>, CallError>,
    ) -> Submitted<'_, B> {
        self.start_counted(buffers, [&[], &[]], wish)
    }

    /// As `start`, with counts.
    fn start_counted<B: Held>(
        &self,
        buffers: B,
        counts: [&[u64]; 2],
        wish: impl FnOnce(&B) -> Result<Wish<'_>, CallError>,
    ) -> Submitted<'_, B> {
        let sent =
            wish(&buffers).and_then(|wish| self.check(&wish, counts)).and_then(|call| self.dispatch(&call));
        match sent {
            Ok(ticket) => Ok(Pending::new(self, [Some(ticket), None], buffers)),
            Err(error) => Err(SubmitError { error, buffers }),
        }
    }

    /// One block's elements, of a buffer that holds one for each rank.
    fn block(&self, operation: Operation, which: &'static str, elements: u64) -> Result<u64, CallError> {
        let size = u64::from(self.size);
        if elements.is_multiple_of(size) {
            Ok(elements / size)
        } else {
            Err(CallError::Uneven { operation, which, actual: elements, size: self.size })
        }
    }
}
