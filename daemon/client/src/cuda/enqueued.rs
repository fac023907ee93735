//! Operations that were put into streams.

use std::time::Instant;

use ringway_abi::{Status, descriptor::Completion};

use crate::{
    Communicator, OperationError,
    pending::Ended,
    queue::{Progress, Ticket},
    wait::Event,
};

/// An operation in a stream. Dropping it is fine: it goes on, and [`Communicator::check_streams`] tells if it fails. Dropping
/// the communicator waits for those that have not ended.
#[derive(Debug)]
pub struct Enqueued<'c> {
    communicator: &'c Communicator,
    ticket: Option<Ticket>,
}

impl<'c> Enqueued<'c> {
    pub(super) const fn new(communicator: &'c Communicator, ticket: Ticket) -> Self {
        Self { communicator, ticket: Some(ticket) }
    }

    /// Waits, this thread, until the operation has ended. For a receive: the sender's rank and the message's bytes, else this
    /// rank and zero.
    ///
    /// # Errors
    /// [`OperationError`].
    pub fn wait(mut self) -> Result<(u32, u64), OperationError> {
        let Some(ticket) = self.ticket.take() else { return Err(OperationError::NotSent) };
        let ended = self.communicator.await_streamed(ticket);
        match ended {
            Ok(completion) if completion.status == Status::Success.code() => {
                Ok((completion.rank, completion.bytes))
            }
            Ok(completion) => Err(self.communicator.explain(completion)),
            Err(error) => Err(error),
        }
    }

    /// Whether the operation has ended, well or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.is_none_or(|ticket| {
            let mut queue = self.communicator.queue.borrow_mut();
            queue.collect();
            queue.progress(ticket) != Some(Progress::Outstanding)
        })
    }
}

impl Drop for Enqueued<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.communicator.queue.borrow_mut().detach(ticket);
        }
    }
}

impl Communicator {
    /// Waits until the operations in streams have ended, for as long as an operation may take.
    pub(crate) fn await_streams(&self) {
        let mut queue = self.queue.borrow_mut();
        let give_up = self.give_up_at(Instant::now());
        let _ = self.waiting.until(&mut queue, Event::Completion, give_up, |queue| !queue.has_streamed());
        self.let_go(&mut queue);
    }

    fn await_streamed(&self, ticket: Ticket) -> Result<Completion, OperationError> {
        let ended = self.await_all([Some(ticket), None], None);
        let taken = self.queue.borrow_mut().take(ticket);
        if let Some(words) = &self.words {
            // A daemon that is gone writes no more; one that does not answer may.
            let gone = matches!(ended, Err(Ended::Lost));
            let held = taken.map_or(!gone, |progress| match progress {
                Progress::Ended(completion) => completion.held,
                _ => !gone,
            });
            words.ended(ticket.0, held);
        }
        match (ended, taken) {
            (_, Some(Progress::Ended(completion))) => Ok(completion),
            (Err(Ended::Unresponsive { waited_ms }), _) => Err(OperationError::Unresponsive { waited_ms }),
            _ => Err(OperationError::DaemonLost),
        }
    }

    /// What became of the operations in streams that nobody waits for ([`Enqueued::wait`]): the first failure since the last call,
    /// among those that have ended. Waits for nothing.
    ///
    /// # Errors
    /// [`OperationError`].
    pub fn check_streams(&self) -> Result<(), OperationError> {
        let failed = {
            let mut queue = self.queue.borrow_mut();
            queue.collect();
            self.let_go(&mut queue);
            queue.take_failure()
        };
        match failed {
            Some(completion) => Err(self.explain(completion)),
            None if self.client.is_lost() => Err(OperationError::DaemonLost),
            None => Ok(()),
        }
    }

    /// Lets go of the memory of operations that have ended and that nobody waits for.
    pub(super) fn let_go(&self, queue: &mut crate::queue::Queue) {
        while let Some((token, held)) = queue.next_detached_end() {
            if let Some(words) = &self.words {
                words.ended(token, held);
            }
        }
    }
}
