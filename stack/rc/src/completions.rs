//! Completions nobody has taken yet.

use alloc::collections::VecDeque;

use ringway_verbs::{Completion, CompletionKind, QueuePairNumber, Status};

/// Completions in the order they came about. A completion holds the slot of its request until it is taken, so that
/// there is always room for the next one.
#[derive(Debug)]
pub(crate) struct Completions {
    queue_pair: QueuePairNumber,
    waiting: VecDeque<Completion>,
    sends: usize,
    receives: usize,
}

impl Completions {
    pub(crate) fn new(queue_pair: QueuePairNumber, capacity: usize) -> Self {
        Self { queue_pair, waiting: VecDeque::with_capacity(capacity), sends: 0, receives: 0 }
    }

    /// Completions of the send queue that hold a slot.
    pub(crate) const fn sends(&self) -> usize {
        self.sends
    }

    /// Completions of the receive queue that hold a slot.
    pub(crate) const fn receives(&self) -> usize {
        self.receives
    }

    pub(crate) fn send(&mut self, id: u64, status: Status, length: u64) {
        self.sends += 1;
        self.push(id, status, CompletionKind::Send, length, None);
    }

    pub(crate) fn receive(
        &mut self,
        id: u64,
        status: Status,
        kind: CompletionKind,
        length: u64,
        immediate: Option<u32>,
    ) {
        self.receives += 1;
        self.push(id, status, kind, length, immediate);
    }

    fn push(&mut self, id: u64, status: Status, kind: CompletionKind, length: u64, immediate: Option<u32>) {
        debug_assert!(self.waiting.len() < self.waiting.capacity(), "every request has reserved its slot");
        let queue_pair = self.queue_pair;
        self.waiting.push_back(Completion { id, queue_pair, status, kind, length, immediate });
    }

    pub(crate) fn take(&mut self) -> Option<Completion> {
        let completion = self.waiting.pop_front()?;
        match completion.kind {
            CompletionKind::Send => self.sends -= 1,
            CompletionKind::Receive | CompletionKind::ReceiveWrite => self.receives -= 1,
        }
        Some(completion)
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        (self.sends, self.receives) = (0, 0);
    }
}
