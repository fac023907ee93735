//! Completions on their way from a device to its caller.

use alloc::collections::VecDeque;

use crate::{Completion, CompletionKind, QueuePairConfig, QueuePairNumber};

/// How many completions of a queue pair its caller has not taken; they hold their places in its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Untaken {
    /// Of send-queue requests.
    pub sends: usize,
    /// Of receives.
    pub receives: usize,
}

impl Untaken {
    const fn of(&mut self, kind: CompletionKind) -> &mut usize {
        match kind {
            CompletionKind::Send => &mut self.sends,
            CompletionKind::Receive | CompletionKind::ReceiveWrite => &mut self.receives,
        }
    }

    /// One of this kind was taken.
    #[inline]
    pub const fn take(&mut self, kind: CompletionKind) {
        let count = self.of(kind);
        *count = count.saturating_sub(1);
    }
}

/// The completions of a device's queue pairs, until they are taken.
#[derive(Debug, Default)]
pub struct Completions {
    waiting: VecDeque<Completion>,
    /// How many all queue pairs together can have untaken.
    most: usize,
}

impl Completions {
    /// Makes room for all that a new queue pair can have untaken, so that the data path never allocates.
    pub fn make_room(&mut self, config: QueuePairConfig) {
        self.most += config.send_depth as usize + config.receive_depth as usize;
        self.waiting.reserve(self.most.saturating_sub(self.waiting.len()));
    }

    /// Forgets a queue pair that had these depths, and what was not taken of it.
    pub fn forget(&mut self, queue_pair: QueuePairNumber, config: QueuePairConfig) {
        self.most -= config.send_depth as usize + config.receive_depth as usize;
        self.waiting.retain(|completion| completion.queue_pair != queue_pair);
    }

    /// Adds one, which `untaken` of its queue pair counts.
    #[inline]
    pub fn push(&mut self, completion: Completion, untaken: &mut Untaken) {
        *untaken.of(completion.kind) += 1;
        self.waiting.push_back(completion);
    }

    /// Whether all are taken.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many are not taken.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Puts the oldest ones into places, and tells of each, for [`Untaken::take`]; how many there were.
    #[inline]
    pub fn take(&mut self, places: &mut [Completion], mut taken: impl FnMut(&Completion)) -> usize {
        let mut count = 0;
        for place in places {
            let Some(completion) = self.waiting.pop_front() else { break };
            taken(&completion);
            *place = completion;
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(queue_pair: u32, kind: CompletionKind, id: u64) -> Completion {
        Completion { id, queue_pair: QueuePairNumber(queue_pair), kind, ..Completion::EMPTY }
    }

    #[test]
    fn completions_are_counted_until_they_are_taken_in_their_order() {
        let (mut completions, mut untaken) = (Completions::default(), Untaken::default());
        let config = QueuePairConfig { send_depth: 1, receive_depth: 2 };
        completions.make_room(config);
        let kinds = [CompletionKind::Receive, CompletionKind::Send, CompletionKind::ReceiveWrite];
        for (id, kind) in (1..).zip(kinds) {
            completions.push(completion(7, kind, id), &mut untaken);
        }
        assert_eq!((completions.len(), untaken), (3, Untaken { sends: 1, receives: 2 }));
        let mut places = [Completion::EMPTY; 2];
        assert_eq!(completions.take(&mut places, |taken| untaken.take(taken.kind)), 2);
        assert_eq!(places.map(|place| place.id), [1, 2]);
        assert_eq!(untaken, Untaken { sends: 0, receives: 1 });
        assert_eq!(completions.take(&mut places, |taken| untaken.take(taken.kind)), 1);
        assert_eq!((places[0].id, untaken), (3, Untaken::default()));
        assert!(completions.is_empty());
        untaken.take(CompletionKind::Send);
        assert_eq!(untaken, Untaken::default(), "it does not go below zero");
    }

    #[test]
    fn of_a_queue_pair_that_is_forgotten_nothing_is_taken() {
        let (mut completions, mut untaken) = (Completions::default(), Untaken::default());
        let config = QueuePairConfig { send_depth: 4, receive_depth: 4 };
        for queue_pair in [1, 2] {
            completions.make_room(config);
            completions.push(completion(queue_pair, CompletionKind::Send, 0), &mut untaken);
        }
        completions.forget(QueuePairNumber(1), config);
        let mut places = [Completion::EMPTY; 4];
        assert_eq!(completions.take(&mut places, |_| {}), 1);
        assert_eq!(places[0].queue_pair, QueuePairNumber(2));
    }
}
