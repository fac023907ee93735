//! The operations: what each needs, checked before anything is sent.
//!
//! Counts are elements. Where every rank has a block, `count` is one block's elements and follows from the buffers.

mod collective;
mod counted;
mod message;
mod quick;

use std::{
    cell::{RefCell, RefMut},
    sync::Arc,
    time::Instant,
};

use ringway_abi::{
    descriptor::{BufferHandle, Submission},
    extent::{Caller, Extent, InPlace, counts_needed, extent, in_place_offset},
};
use ringway_mem::Window;
use ringway_types::{DataType, Operation, Reduction};

use crate::{
    Buffer, CallError, Client, Communicator, Element, Failure, OperationError, Pending, Returned,
    SubmitError,
    arena::Registered,
    cell::{self, Calls},
    pending::{Held, Tickets},
    queue::{Call, Queue},
    wait::{Event, Interrupted},
};

pub use message::Source;

/// A non-blocking operation that was submitted, or the reason why not, with the buffers.
pub type Submitted<'c, B> = Result<Pending<'c, B>, SubmitError<B>>;

/// A buffer as the check of a call sees it, whatever memory it is in.
pub(crate) trait Operand<'b>: Copy {
    fn handle(&self) -> BufferHandle;

    /// The same, so many bytes further on.
    fn further(self, bytes: u64) -> Self;

    fn bytes(&self) -> u64;

    /// Whether it may go through this client.
    fn is_of(&self, client: &Client) -> bool;

    /// The region that it is in, where a call is to keep that.
    fn region(&self) -> Option<&'b Arc<Registered>>;
}

/// A buffer of the host's memory as a call sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'b> {
    handle: BufferHandle,
    window: Window<'b>,
    /// `None` for the caller's own slices.
    region: Option<&'b Arc<Registered>>,
}

impl<'b> Operand<'b> for View<'b> {
    #[inline]
    fn handle(&self) -> BufferHandle {
        self.handle
    }

    #[inline]
    fn further(self, bytes: u64) -> Self {
        let offset = self.handle.offset.saturating_add(bytes);
        Self { handle: BufferHandle { offset, ..self.handle }, ..self }
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.window.length() as u64
    }

    #[inline]
    fn is_of(&self, client: &Client) -> bool {
        self.region.is_none_or(|region| region.client.is(client))
    }

    #[inline]
    fn region(&self) -> Option<&'b Arc<Registered>> {
        self.region
    }
}

/// Where a call's data is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<V> {
    /// In two buffers; the rank may lack one.
    Apart(Option<V>, Option<V>),
    /// In one buffer, in the operation's in-place form.
    Within(V),
}

impl<V: Copy> Place<V> {
    /// The buffers: input and output, or the one that has both.
    #[inline]
    pub(crate) const fn operands(self) -> [Option<V>; 2] {
        match self {
            Self::Apart(input, output) => [input, output],
            Self::Within(whole) => [Some(whole), None],
        }
    }
}

/// A call before it is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<V> {
    operation: Operation,
    datatype: DataType,
    reduce: Option<(Reduction, u64)>,
    /// The root or peer.
    rank: u32,
    flags: u8,
    /// The tag of a message.
    tag: u64,
    count: u64,
    place: Place<V>,
}

#[inline]
pub(crate) fn view<T: Element>(buffer: &Buffer<T>) -> View<'_> {
    View { handle: buffer.handle(), window: buffer.window(), region: Some(buffer.region()) }
}

/// A slice of the caller's, by one of the handles that the cell has for them.
#[inline]
pub(crate) const fn view_of_slice(window: Window<'_>, region: u64) -> View<'_> {
    View { handle: BufferHandle { region, offset: 0 }, window, region: None }
}

#[inline]
fn length<T: Element>(buffer: &Buffer<T>) -> u64 {
    buffer.len() as u64
}

impl<V: Copy> Wish<V> {
    #[inline]
    pub(crate) fn new<T: Element>(operation: Operation, count: u64, place: Place<V>) -> Self {
        Self { operation, datatype: T::DATATYPE, reduce: None, rank: 0, flags: 0, tag: 0, count, place }
    }

    #[inline]
    pub(crate) const fn rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }

    pub(crate) const fn flag(mut self, flag: u8) -> Self {
        self.flags |= flag;
        self
    }

    pub(crate) const fn place(&self) -> Place<V> {
        self.place
    }

    #[inline]
    pub(crate) fn reduce<T: Element>(mut self, reduce: crate::Reduce<T>) -> Self {
        self.reduce = Some((reduce.reduction, reduce.scalar));
        self
    }
}

impl Communicator {
    /// Checks a call completely: what the daemon would refuse is refused here.
    #[inline(always)]
    pub(crate) fn check<'w, V: Operand<'w>>(
        &self,
        wish: &Wish<V>,
        counts: [&'w [u64]; 2],
    ) -> Result<Call<'w>, CallError> {
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
            if view.is_some_and(|view| !view.is_of(&self.client)) {
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
            input: input.map(|view| view.handle()),
            output: output.map(|view| view.handle()),
            count: wish.count,
        };
        let scalar = scalar.filter(|_| reduction == Some(Reduction::PremulSum));
        let memory = [input, output].map(|view| view.and_then(|view| view.region()));
        let call = Call { submission, scalar, counts, memory };
        let words = call.slab_words();
        if words > 0 && self.calls.is_none() {
            let room = self.queue.borrow().slab_room();
            if words > room {
                return Err(CallError::TooManyCounts { operation, words, room });
            }
        }
        Ok(call)
    }

    /// What is read and what is written, each of exactly the length that the operation needs.
    #[inline(always)]
    fn place<'b, V: Operand<'b>>(
        &self,
        wish: &Wish<V>,
        counts: [&[u64]; 2],
        caller: Caller,
    ) -> Result<(Option<V>, Option<V>), CallError> {
        let Wish { operation, datatype, count, .. } = *wish;
        let element = datatype.size() as u64;
        let needed = counts_needed(operation, caller);
        let given = counts.iter().map(|list| list.len()).sum();
        if given != needed {
            return Err(CallError::Counts { operation, actual: given, expected: needed });
        }
        // Only all_to_all_v has two lists; joining them is for nothing in every other case.
        let joined;
        let list = match counts {
            [list, []] => list,
            [first, second] => {
                joined = self.join(first, second);
                &joined
            }
        };
        let sizes =
            extent(operation, caller, element, count, list).ok_or(CallError::TooLarge { operation })?;
        let Extent { input: read, output: written } = sizes;
        let fit = |view: Option<V>, bytes: Option<u64>, which: &'static str| match (view, bytes) {
            (_, None) => Ok(None),
            (None, Some(_)) => Err(CallError::NoBuffer { operation, which }),
            (Some(view), Some(bytes)) if view.bytes() == bytes => Ok(Some(view)),
            (Some(view), Some(bytes)) => {
                let (actual, expected) = (view.bytes() / element, bytes / element);
                Err(CallError::Length { operation, which, actual, expected })
            }
        };
        let whole = match wish.place {
            Place::Apart(input, output) => {
                return Ok((fit(input, read, "input")?, fit(output, written, "output")?));
            }
            Place::Within(whole) => Some(whole),
        };
        let at = |view: Option<V>, offset: u64| view.map(|view| view.further(offset));
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

    /// Two lists of counts in one.
    fn join(&self, first: &[u64], second: &[u64]) -> std::cell::Ref<'_, Vec<u64>> {
        let mut joined = self.scratch.borrow_mut();
        joined.clear();
        joined.extend(first.iter().chain(second));
        drop(joined);
        self.scratch.borrow()
    }

    /// Checks a call and submits it, waiting for room when there is none. One function for both, so that what was
    /// checked need not go through memory before it is published.
    #[inline(never)]
    fn submit(&self, wish: &Wish<View<'_>>, counts: [&[u64]; 2]) -> Result<Tickets, CallError> {
        let call = self.check(wish, counts)?;
        self.dispatch(&call)
    }

    #[inline(always)]
    fn dispatch(&self, call: &Call<'_>) -> Result<Tickets, CallError> {
        if let Some(calls) = &self.calls
            && call.submission.operation.is_collective()
        {
            return self.dispatch_to_cell(calls, call);
        }
        self.dispatch_to_daemon(call).map(|ticket| Tickets::Ring([Some(ticket), None]))
    }

    #[inline(always)]
    fn dispatch_to_cell(&self, cell: &RefCell<Calls>, call: &Call<'_>) -> Result<Tickets, CallError> {
        let joined;
        let counts = match call.counts {
            [list, []] => list,
            [first, second] => {
                joined = self.join(first, second);
                &joined
            }
        };
        let of_cell = cell::call_of(call, counts);
        let mut calls = cell.borrow_mut();
        if calls.is_group_open() {
            let max = u32::try_from(self.group_max()).unwrap_or(u32::MAX);
            let staged = calls.stage(&of_cell, call.memory).map(Tickets::Cell);
            return staged.ok_or(CallError::GroupTooLarge { max });
        }
        self.submit_to_cell((cell, calls), &of_cell, call.memory, self.blocks.get())
    }

    /// Publishes a call in the cell, or gives it to the daemon when there is no slot for it.
    #[inline(always)]
    pub(crate) fn submit_to_cell(
        &self,
        (cell, mut calls): (&RefCell<Calls>, RefMut<'_, Calls>),
        call: &ringway_cell::Call<'_>,
        memory: [Option<&Arc<Registered>>; 2],
        blocking: bool,
    ) -> Result<Tickets, CallError> {
        let Some(sequence) = calls.submit(call, memory, blocking) else {
            drop(calls);
            return self.submit_without_slot(cell, call, memory, blocking);
        };
        if !blocking && calls.wants_help(sequence) {
            self.queue.borrow_mut().rings().wake();
        }
        Ok(Tickets::Cell(cell::Ticket::Call(sequence)))
    }

    fn dispatch_to_daemon(&self, call: &Call<'_>) -> Result<crate::queue::Ticket, CallError> {
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
        let outcome = self.waiting.until(&mut queue, Event::Room, deadline, |queue| {
            self.progress_in_cell();
            done = attempt(queue);
            done.is_some()
        });
        match (outcome, done) {
            (Ok(()), Some(done)) => Ok(done),
            (Err(Interrupted::Lost), _) => Err(CallError::DaemonLost),
            _ => Err(CallError::Full),
        }
    }

    /// Submits the operation that `submit` calls and waits for it: the same as submitting it and then
    /// [`Pending::wait`], but faster where ranks share memory, since it is known that this rank will work on it itself.
    ///
    /// ```no_run
    /// # use ringway_client::{Buffer, Communicator, Error, Reduction};
    /// # fn f(world: &Communicator, gradients: Buffer<f32>) -> Result<Buffer<f32>, Error> {
    /// let gradients = world.run(|w| w.allreduce_in_place(gradients, Reduction::Avg))?;
    /// # Ok(gradients) }
    /// ```
    ///
    /// # Errors
    /// As [`Pending::wait`]; [`OperationError::Call`] when it could not be submitted.
    #[inline]
    pub fn run<'c, B: Held>(
        &'c self,
        submit: impl FnOnce(&'c Self) -> Submitted<'c, B>,
    ) -> Result<B, Failure<B>> {
        self.blocks.set(true);
        let submitted = submit(self);
        self.blocks.set(false);
        match submitted {
            Ok(pending) => pending.wait(),
            Err(SubmitError { error, buffers }) => {
                Err(Failure { error: OperationError::Call(error), returned: Returned::Buffers(buffers) })
            }
        }
    }

    /// Checks and submits; `wish` says what, of the buffers that the operation then owns.
    #[inline(always)]
    pub(crate) fn start<B: Held>(
        &self,
        buffers: B,
        wish: impl FnOnce(&B) -> Result<Wish<View<'_>>, CallError>,
    ) -> Submitted<'_, B> {
        self.start_counted(buffers, [&[], &[]], wish)
    }

    /// As `start`, with counts.
    #[inline(always)]
    fn start_counted<B: Held>(
        &self,
        buffers: B,
        counts: [&[u64]; 2],
        wish: impl FnOnce(&B) -> Result<Wish<View<'_>>, CallError>,
    ) -> Submitted<'_, B> {
        let sent = match wish(&buffers) {
            Ok(wish) => match self.make_quickly(wish) {
                Some(tickets) => Ok(tickets),
                // A copy, so that the wish has no address and need not be in memory for what comes before.
                None => self.submit(&{ wish }, counts),
            },
            Err(error) => Err(error),
        };
        match sent {
            Ok(tickets) => Ok(Pending::new(self, tickets, buffers)),
            Err(error) => Err(SubmitError { error, buffers }),
        }
    }

    /// One block's elements, of a buffer that holds one for each rank.
    pub(crate) fn block(
        &self,
        operation: Operation,
        which: &'static str,
        elements: u64,
    ) -> Result<u64, CallError> {
        let size = u64::from(self.size);
        if elements.is_multiple_of(size) {
            Ok(elements / size)
        } else {
            Err(CallError::Uneven { operation, which, actual: elements, size: self.size })
        }
    }
}
