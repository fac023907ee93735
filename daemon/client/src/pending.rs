//! Operations under way, and how their buffers come back.

use core::{fmt, mem::ManuallyDrop, time::Duration};
use std::time::Instant;

use ringway_abi::{
    Status,
    control::{Reply, Request},
    descriptor::Completion,
};

use crate::{
    Buffer, Communicator, Element, Failure, OperationError, Returned,
    cell::{self, Fate, Stopped},
    queue::{Progress, Ticket},
    wait::{Event, Interrupted},
};

/// What an operation was submitted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tickets {
    /// It is over.
    Over,
    /// To the daemon: one submission, or two that make one call.
    Ring([Option<Ticket>; 2]),
    /// To the cell.
    Cell(cell::Ticket),
}

/// What an operation owns while it runs, and gives back.
#[doc(hidden)]
pub trait Held {
    /// Takes over what the completion says.
    #[doc(hidden)]
    fn settle(&mut self, completion: Settled);
}

/// What a completion says about a message.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Settled {
    rank: u32,
    bytes: u64,
}

impl Held for () {
    fn settle(&mut self, _: Settled) {}
}

impl<T: Element> Held for Buffer<T> {
    fn settle(&mut self, _: Settled) {}
}

impl<T: Element> Held for Option<Buffer<T>> {
    fn settle(&mut self, _: Settled) {}
}

impl<A: Held, B: Held> Held for (A, B) {
    fn settle(&mut self, completion: Settled) {
        self.0.settle(completion);
        self.1.settle(completion);
    }
}

/// A received message in its buffer, which may be longer.
#[derive(Debug)]
pub struct Received<T: Element> {
    /// The buffer.
    pub buffer: Buffer<T>,
    pub(crate) source: u32,
    pub(crate) elements: usize,
}

impl<T: Element> Received<T> {
    pub(crate) const fn into(buffer: Buffer<T>) -> Self {
        Self { buffer, source: 0, elements: 0 }
    }

    /// The rank that sent it.
    #[must_use]
    pub const fn source(&self) -> u32 {
        self.source
    }

    /// How many elements it has.
    #[must_use]
    pub const fn elements(&self) -> usize {
        self.elements
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &[T] {
        self.buffer.get(..self.elements).unwrap_or_default()
    }
}

impl<T: Element> Held for Received<T> {
    fn settle(&mut self, completion: Settled) {
        self.source = completion.rank;
        let elements = completion.bytes / size_of::<T>() as u64;
        self.elements = usize::try_from(elements).map_or(self.buffer.len(), |n| n.min(self.buffer.len()));
    }
}

/// An operation under way. It owns its buffers; [`Pending::wait`] gives them back. Dropping it waits as well.
#[must_use = "dropping an operation at once waits for it; call `wait` where its result is needed"]
pub struct Pending<'c, B: Held> {
    communicator: &'c Communicator,
    tickets: Tickets,
    /// There until given back or retired.
    buffers: Option<B>,
}

impl<B: Held> fmt::Debug for Pending<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("tickets", &self.tickets).finish_non_exhaustive()
    }
}

/// Why [`Pending::wait_timeout`] has no result.
#[derive(Debug)]
pub enum TimeoutError<'c, B: Held> {
    /// The operation is still under way and keeps its buffers.
    Expired(Pending<'c, B>),
    /// It failed.
    Failed(Failure<B>),
}

impl<B: Held> fmt::Display for TimeoutError<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(_) => f.write_str("the operation is still under way"),
            Self::Failed(failure) => write!(f, "{}", failure.error),
        }
    }
}

impl<B: Held + fmt::Debug> std::error::Error for TimeoutError<'_, B> {}

impl<'c, B: Held> Pending<'c, B> {
    #[inline]
    pub(crate) const fn new(communicator: &'c Communicator, tickets: Tickets, buffers: B) -> Self {
        Self { communicator, tickets, buffers: Some(buffers) }
    }

    /// Waits until the operation has ended and gives its buffers back.
    ///
    /// # Errors
    /// [`Failure`] with the reason, and with the buffers where they can be given back.
    // Inlined, so that an operation that is over is not moved once more: where its parts were written by narrower stores than
    // it is read by, reading waits for every store before, and those of the call go to lines that others have. With these
    // 300 ns away, a broadcast of 64 B took 1.7 times as long.
    #[inline(always)]
    pub fn wait(self) -> Result<B, Failure<B>> {
        if self.tickets == Tickets::Over {
            // Nothing is under way, so dropping it would do nothing.
            let mut over = ManuallyDrop::new(self);
            return over.give();
        }
        self.wait_on()
    }

    #[inline(never)]
    fn wait_on(mut self) -> Result<B, Failure<B>> {
        match self.end(None) {
            Ok(()) => self.finish(),
            Err(ended) => Err(self.abandon(ended)),
        }
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    /// [`TimeoutError::Expired`] gives the operation back, which goes on and keeps its buffers;
    /// [`TimeoutError::Failed`] is as for [`Pending::wait`].
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<B, TimeoutError<'c, B>> {
        let deadline = Instant::now().checked_add(timeout);
        match self.end(deadline) {
            Ok(()) => self.finish().map_err(TimeoutError::Failed),
            Err(Ended::Expired) => Err(TimeoutError::Expired(self)),
            Err(error) => Err(TimeoutError::Failed(self.abandon(error))),
        }
    }

    /// Whether the operation has ended, well or not; then [`Pending::wait`] returns at once. Where ranks share memory it does
    /// a block of the operation's work at most; the rest is left to the daemon, and to whoever waits.
    #[must_use]
    pub fn test(&mut self) -> bool {
        match self.tickets {
            Tickets::Over => true,
            Tickets::Ring(tickets) => self.communicator.test_all(tickets),
            Tickets::Cell(cell::Ticket::Call(sequence)) => match self.communicator.handed(sequence) {
                None => self.communicator.test_in_cell(sequence),
                Some(ticket) => {
                    let tickets = [Some(ticket), None];
                    self.tickets = Tickets::Ring(tickets);
                    self.communicator.test_all(tickets)
                }
            },
            Tickets::Cell(cell::Ticket::Grouped(token)) => match self.communicator.fate(token) {
                Fate::Staged => false,
                Fate::NotSent => true,
                Fate::Sent(tickets) => {
                    self.tickets = tickets;
                    self.test()
                }
            },
        }
    }

    /// Waits until the operation has ended, or until the deadline.
    #[inline]
    fn end(&mut self, deadline: Option<Instant>) -> Result<(), Ended> {
        match self.tickets {
            Tickets::Over => Ok(()),
            Tickets::Ring(tickets) => self.communicator.await_all(tickets, deadline),
            Tickets::Cell(cell::Ticket::Call(sequence)) => {
                match self.communicator.await_in_cell(sequence, deadline) {
                    Err(Ended::Handed(ticket)) => self.end_in_ring(ticket, deadline),
                    ended => ended,
                }
            }
            Tickets::Cell(cell::Ticket::Grouped(token)) => self.end_of_group(token, deadline),
        }
    }

    /// The end of a call that was published in the cell and that the daemon sees through.
    #[cold]
    fn end_in_ring(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<(), Ended> {
        let tickets = [Some(ticket), None];
        self.tickets = Tickets::Ring(tickets);
        self.communicator.await_all(tickets, deadline)
    }

    fn end_of_group(&mut self, token: u32, deadline: Option<Instant>) -> Result<(), Ended> {
        match self.communicator.fate(token) {
            Fate::Staged => Err(Ended::InsideGroup),
            Fate::NotSent => Err(Ended::InCell { error: OperationError::NotSent, unused: true }),
            Fate::Sent(tickets) => {
                self.tickets = tickets;
                self.end(deadline)
            }
        }
    }

    /// The end of an operation whose results are all there.
    #[inline]
    fn finish(&mut self) -> Result<B, Failure<B>> {
        match core::mem::replace(&mut self.tickets, Tickets::Over) {
            Tickets::Ring(tickets) => self.finish_with(tickets),
            _ => self.give(),
        }
    }

    /// Gives the buffers back.
    #[inline(always)]
    fn give(&mut self) -> Result<B, Failure<B>> {
        match self.buffers.take() {
            Some(buffers) => Ok(buffers),
            None => Err(Failure { error: OperationError::NotSent, returned: Returned::BuffersRetired }),
        }
    }

    fn finish_with(&mut self, tickets: [Option<Ticket>; 2]) -> Result<B, Failure<B>> {
        let mut error = None;
        let mut settled = Settled { rank: 0, bytes: 0 };
        let mut held = false;
        for ticket in tickets.into_iter().flatten() {
            match self.communicator.take(ticket) {
                Some(Progress::Ended(completion)) if completion.status == Status::Success.code() => {
                    settled = Settled { rank: completion.rank, bytes: completion.bytes };
                }
                Some(Progress::Ended(completion)) => {
                    held |= completion.held;
                    error.get_or_insert_with(|| self.communicator.explain(completion));
                }
                _ => {
                    error.get_or_insert(OperationError::NotSent);
                }
            }
        }
        match (self.buffers.take(), error) {
            (Some(mut buffers), None) => {
                buffers.settle(settled);
                Ok(buffers)
            }
            (Some(buffers), Some(error)) => {
                let unused = !held && self.communicator.is_left(tickets, &error);
                Err(Failure { error, returned: give_back(Some(buffers), unused) })
            }
            // Buffers leave only together with the pending operation itself.
            (None, _) => Err(Failure { error: OperationError::NotSent, returned: Returned::BuffersRetired }),
        }
    }

    /// The end of an operation whose result does not come.
    fn abandon(&mut self, ended: Ended) -> Failure<B> {
        let (error, unused) = match ended {
            // The daemon's memory is gone when its socket is: nobody writes any more.
            Ended::Lost => {
                let error = OperationError::DaemonLost;
                let unused = match self.tickets {
                    Tickets::Ring(tickets) => self.communicator.is_left(tickets, &error),
                    _ => true,
                };
                (error, unused)
            }
            Ended::InsideGroup => {
                self.communicator.cancel(self.tickets);
                (OperationError::InsideGroup, true)
            }
            Ended::InCell { error, unused } => (error, unused),
            Ended::Unresponsive { waited_ms } => (OperationError::Unresponsive { waited_ms }, false),
            Ended::Expired | Ended::Handed(_) => (OperationError::Unresponsive { waited_ms: 0 }, false),
        };
        self.tickets = Tickets::Over;
        Failure { error, returned: give_back(self.buffers.take(), unused) }
    }
}

/// Gives buffers back when nobody uses them.
fn give_back<B>(buffers: Option<B>, unused: bool) -> Returned<B> {
    match buffers {
        Some(buffers) if unused => Returned::Buffers(buffers),
        Some(buffers) => {
            retire(buffers);
            Returned::BuffersRetired
        }
        None => Returned::BuffersRetired,
    }
}

/// Leaves buffers to whoever may still write to them: their memory is never used again.
fn retire<B>(buffers: B) {
    let _ = ManuallyDrop::new(buffers);
}

impl<B: Held> Drop for Pending<'_, B> {
    fn drop(&mut self) {
        if self.tickets == Tickets::Over {
            return;
        }
        match self.end(None) {
            Ok(()) => {
                if let Tickets::Ring(tickets) = self.tickets {
                    for ticket in tickets.into_iter().flatten() {
                        self.communicator.take(ticket);
                    }
                }
            }
            Err(ended) => drop(self.abandon(ended)),
        }
    }
}

/// Why operations were not waited for to their end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The caller's deadline has passed.
    Expired,
    /// The daemon is gone.
    Lost,
    /// The communicator's timeout passed long ago, and the daemon has not ended the operation.
    Unresponsive { waited_ms: u64 },
    /// The operation is in a group that is still being collected.
    InsideGroup,
    /// The daemon sees it through: its result comes by the ring.
    Handed(Ticket),
    /// It failed in the cell. `unused`: nobody else reads or writes its memory any more.
    InCell { error: OperationError, unused: bool },
}

/// How much later than the communicator's timeout the daemon may report it.
const GRACE: Duration = Duration::from_secs(15);

impl Communicator {
    /// When to wait no more for what was begun: the daemon does not answer then.
    pub(crate) fn give_up_at(&self, begun: Instant) -> Option<Instant> {
        let patience = Some(self.timeout).filter(|timeout| !timeout.is_zero());
        patience.and_then(|timeout| begun.checked_add(timeout.saturating_add(GRACE)))
    }

    /// Waits until all the operations have ended, or until the deadline.
    pub(crate) fn await_all(
        &self,
        tickets: [Option<Ticket>; 2],
        deadline: Option<Instant>,
    ) -> Result<(), Ended> {
        let tickets = || tickets.into_iter().flatten();
        let mut queue = self.queue.borrow_mut();
        if tickets().any(|t| queue.progress(t) == Some(Progress::Staged)) {
            return Err(Ended::InsideGroup);
        }
        let started = Instant::now();
        let give_up = self.give_up_at(started);
        let until = [deadline, give_up].into_iter().flatten().min();
        let outcome = self.waiting.until(&mut queue, Event::Completion, until, |queue| {
            self.progress_in_cell();
            tickets().all(|t| queue.progress(t) != Some(Progress::Outstanding))
        });
        match outcome {
            Ok(()) => Ok(()),
            Err(Interrupted::Lost) => Err(Ended::Lost),
            Err(Interrupted::Expired) if deadline.is_some() && until == deadline => Err(Ended::Expired),
            Err(Interrupted::Expired) => {
                let waited_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                Err(Ended::Unresponsive { waited_ms })
            }
        }
    }

    /// Whether all the operations have ended, or the daemon is gone.
    fn test_all(&self, tickets: [Option<Ticket>; 2]) -> bool {
        let mut queue = self.queue.borrow_mut();
        queue.collect();
        let ended = |queue: &crate::queue::Queue| {
            let outstanding = |t| matches!(queue.progress(t), Some(Progress::Outstanding | Progress::Staged));
            !tickets.into_iter().flatten().any(outstanding)
        };
        if ended(&queue) {
            return true;
        }
        // Asking the kernel whether the daemon lives costs a system call: not every time.
        if !self.is_test_for_long() || !self.client.is_lost() {
            return false;
        }
        queue.collect();
        true
    }

    /// Once in many vain tests: what costs a system call is done then.
    fn is_test_for_long(&self) -> bool {
        let tests = self.tests.get().wrapping_add(1);
        self.tests.set(tests);
        tests.is_multiple_of(1024)
    }

    /// Waits until a call in the cell is over, or until the deadline.
    #[inline]
    fn await_in_cell(&self, sequence: u64, deadline: Option<Instant>) -> Result<(), Ended> {
        let Some(calls) = &self.calls else { return Ok(()) };
        match calls.borrow_mut().wait(sequence, deadline) {
            Ok(()) => Ok(()),
            Err(Stopped::Expired) => Err(Ended::Expired),
            Err(Stopped::Handed(ticket)) => Err(Ended::Handed(ticket)),
            Err(Stopped::Over { error, unused }) => Err(Ended::InCell { error, unused }),
        }
    }

    /// Whether a call in the cell is over, or the daemon gone.
    fn test_in_cell(&self, sequence: u64) -> bool {
        let Some(calls) = &self.calls else { return true };
        let mut calls = calls.borrow_mut();
        calls.test(sequence) || (self.is_test_for_long() && calls.look_after(sequence))
    }

    fn fate(&self, token: u32) -> Fate {
        self.calls.as_ref().map_or(Fate::NotSent, |calls| calls.borrow_mut().fate(token))
    }

    /// Does what can be done in the cell while this rank waits for something else.
    pub(crate) fn progress_in_cell(&self) {
        if let Some(calls) = &self.calls {
            calls.borrow_mut().progress_all();
        }
    }

    fn take(&self, ticket: Ticket) -> Option<Progress> {
        self.queue.borrow_mut().take(ticket)
    }

    /// Takes an operation out of the open group.
    fn cancel(&self, tickets: Tickets) {
        match (tickets, &self.calls) {
            (Tickets::Ring(tickets), _) => {
                tickets.into_iter().flatten().for_each(|ticket| self.queue.borrow_mut().cancel(ticket));
            }
            (Tickets::Cell(cell::Ticket::Grouped(token)), Some(calls)) => calls.borrow_mut().cancel(token),
            _ => {}
        }
    }

    /// Why it failed, in the daemon's words; `None` while it stands.
    pub(crate) fn failure(&self) -> Option<OperationError> {
        self.client.failure_of(self.number)
    }

    /// The daemon's sentence for a failed operation, or the status's own where it has none.
    pub(crate) fn explain(&self, completion: Completion) -> OperationError {
        let Some(status) = Status::from_code(completion.status) else {
            return OperationError::UnknownStatus { code: completion.status };
        };
        let request = Request::Explain { communicator: self.number, token: completion.token };
        if let Ok(Reply::Text(message)) = self.client.request(request).map(|answer| answer.reply) {
            return OperationError::Failed { status, message };
        }
        // The daemon keeps the sentences of the last failures only; those of one communicator say the same.
        let of_communicator = || if status.is_recoverable() { None } else { self.failure() };
        of_communicator().unwrap_or_else(|| OperationError::of_status(status))
    }
}
