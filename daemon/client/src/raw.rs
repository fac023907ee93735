//! Submissions without any check, for tests of how the daemon treats a client that gets it wrong.

use core::time::Duration;
use std::time::Instant;

use ringway_abi::descriptor::{Completion, SUBMISSION_WORDS, Submission, split};

use crate::{
    Buffer, Communicator, Element, OperationError,
    queue::Ticket,
    wait::{Event, Interrupted},
};

pub use ringway_abi::descriptor::BufferHandle;

/// Submits a descriptor as it is but for its token, which is given back; `None` when the ring is full. With `slab`, the
/// words are put into the argument slab and the descriptor's argument says where.
pub fn submit(communicator: &Communicator, submission: Submission, slab: &[u64]) -> Option<u32> {
    let mut queue = communicator.queue.borrow_mut();
    let call = crate::queue::Call { submission, scalar: None, counts: [slab, &[]], memory: [None, None] };
    queue.submit(&call).map(|ticket| ticket.0)
}

/// Submits words as they are, token included: their completion reaches nobody, unless the token is one that
/// [`submit`] gave. `false` when the ring is full.
pub fn submit_words(communicator: &Communicator, words: &[u64; SUBMISSION_WORDS]) -> bool {
    let mut queue = communicator.queue.borrow_mut();
    let rings = queue.rings();
    if !rings.has_room(1) {
        return false;
    }
    rings.put(words);
    rings.publish();
    true
}

/// Waits for the completion of what [`submit`] submitted; `None` when none comes in time or the daemon is gone.
pub fn wait(communicator: &Communicator, token: u32, timeout: Duration) -> Option<Completion> {
    use crate::queue::Progress;
    let ticket = Ticket(token);
    let deadline = Instant::now().checked_add(timeout);
    let mut queue = communicator.queue.borrow_mut();
    let ended: Result<(), Interrupted> =
        communicator.waiting.until(&mut queue, Event::Completion, deadline, |queue| {
            queue.progress(ticket) != Some(Progress::Outstanding)
        });
    ended.ok()?;
    match queue.take(ticket) {
        Some(Progress::Ended(completion)) => Some(completion),
        _ => None,
    }
}

/// The daemon's sentence for a completion.
pub fn explain(communicator: &Communicator, completion: Completion) -> OperationError {
    communicator.explain(completion)
}

/// Where a buffer is, as a descriptor says it.
pub fn handle<T: Element>(buffer: &Buffer<T>) -> BufferHandle {
    buffer.handle()
}

/// The token of a descriptor's words.
#[must_use]
pub const fn token(words: &[u64; SUBMISSION_WORDS]) -> u32 {
    split(words[SUBMISSION_WORDS - 1]).1
}
