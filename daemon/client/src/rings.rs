//! The shared rings of one communicator as this side uses them: room, argument slab, doorbell.

use core::time::Duration;
use std::{collections::VecDeque, sync::Arc};

use ringway_abi::descriptor::{COMPLETION_WORDS, SUBMISSION_WORDS};
use ringway_mem::Mapping;
use ringway_ring::{ClientRings, Geometry};

use crate::Client;

/// One communicator's rings.
#[derive(Debug)]
pub(crate) struct Rings {
    inner: ClientRings,
    client: Client,
    slab: Slab,
    completions: u32,
    submissions: u32,
    /// The daemon wrote into the rings what no daemon writes: nothing there can be relied upon any more.
    broken: bool,
}

impl Rings {
    /// Attaches to the file that this side writes (`ours`) and the one that the daemon writes.
    pub(crate) fn attach(
        client: Client,
        ours: &Arc<Mapping>,
        daemons: &Arc<Mapping>,
        geometry: Geometry,
    ) -> Result<Self, ringway_ring::AttachError> {
        Ok(Self {
            inner: ClientRings::attach(ours, daemons, geometry)?,
            client,
            slab: Slab::new(geometry.slab_words(), geometry.submissions()),
            completions: geometry.completions(),
            submissions: geometry.submissions(),
            broken: false,
        })
    }

    pub(crate) const fn submissions(&self) -> u32 {
        self.submissions
    }

    pub(crate) const fn completions(&self) -> u32 {
        self.completions
    }

    pub(crate) const fn slab_words(&self) -> u32 {
        self.slab.size
    }

    /// Whether `wanted` submissions can be put now.
    pub(crate) fn has_room(&mut self, wanted: u64) -> bool {
        if self.broken {
            return false;
        }
        match self.inner.submissions.free_for(wanted) {
            Ok(free) => free >= wanted,
            Err(_) => {
                self.broken = true;
                false
            }
        }
    }

    /// A range of the slab for the submissions that are put next, before they are published; `None` when there is none
    /// free now.
    pub(crate) fn reserve_slab(&mut self, words: usize) -> Option<u32> {
        let words = u32::try_from(words).ok()?;
        if let Some(first) = self.slab.reserve(words) {
            return Some(first);
        }
        let unread = self.inner.submissions.unread().ok()?;
        self.slab.release(self.inner.submissions.position().wrapping_sub(unread));
        self.slab.reserve(words)
    }

    /// Writes words of a range that was reserved.
    pub(crate) fn write_slab(&mut self, first: u32, words: &[u64]) {
        // A range from `reserve_slab` is inside.
        let _ = self.inner.write_slab(first, words);
    }

    /// Puts a submission for which [`Rings::has_room`] said that there is room; it is visible after
    /// [`Rings::publish`].
    pub(crate) fn put(&mut self, words: &[u64; SUBMISSION_WORDS]) {
        if self.inner.submissions.push(words).is_err() {
            self.broken = true;
        }
    }

    /// Shows the daemon what was put, and wakes it when it sleeps.
    pub(crate) fn publish(&mut self) {
        self.slab.commit(self.inner.submissions.position());
        self.inner.submissions.publish();
        if self.inner.need_wakeup() {
            // An eventfd that cannot take more is readable anyway.
            let _ = rustix::io::write(&self.client.session().doorbell, &1_u64.to_ne_bytes());
        }
    }

    /// The next completion.
    pub(crate) fn take(&mut self) -> Option<[u64; COMPLETION_WORDS]> {
        match self.inner.completions.pop() {
            Ok(Some(words)) => Some(words),
            Ok(None) => {
                self.inner.completions.release();
                None
            }
            Err(_) => {
                self.broken = true;
                None
            }
        }
    }

    /// Blocks until there are completions, for at most `timeout`.
    pub(crate) fn block(&mut self, timeout: Duration) {
        self.inner.sleep(Some(timeout));
    }

    /// Whether nothing will come from the daemon any more. A system call.
    pub(crate) fn is_lost(&self) -> bool {
        self.broken || self.client.is_lost()
    }
}

/// Which words of the argument slab are in use. Submissions are consumed in order, so the ranges are freed in order:
/// counts run from the ring's beginning and never wrap.
#[derive(Debug)]
struct Slab {
    size: u32,
    /// Words before this are free.
    head: u64,
    /// Words from this on are free.
    tail: u64,
    /// For each batch with words: the submission position behind it, and the tail then.
    live: VecDeque<(u64, u64)>,
}

impl Slab {
    fn new(size: u32, submissions: u32) -> Self {
        Self { size, head: 0, tail: 0, live: VecDeque::with_capacity(submissions as usize) }
    }

    /// A range in one piece.
    fn reserve(&mut self, words: u32) -> Option<u32> {
        if self.live.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        let (size, words) = (u64::from(self.size), u64::from(words));
        let mut start = self.tail;
        if start.checked_rem(size)? + words > size {
            start = start.next_multiple_of(size);
        }
        if start + words - self.head > size {
            return None;
        }
        self.tail = start + words;
        u32::try_from(start % size).ok()
    }

    /// What was reserved belongs to submissions before this position.
    fn commit(&mut self, position: u64) {
        if self.live.back().map_or(self.head, |(_, tail)| *tail) != self.tail {
            self.live.push_back((position, self.tail));
        }
    }

    /// Submissions before this position were consumed.
    fn release(&mut self, consumed: u64) {
        while let Some((_, tail)) = self.live.pop_front_if(|(position, _)| *position <= consumed) {
            self.head = tail;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_ranges_do_not_overlap_while_in_use() {
        let mut slab = Slab::new(8, 4);
        assert_eq!(slab.reserve(9), None);
        assert_eq!(slab.reserve(5), Some(0));
        slab.commit(1);
        assert_eq!(slab.reserve(4), None, "three words are left");
        assert_eq!(slab.reserve(3), Some(5));
        slab.commit(2);
        assert_eq!(slab.reserve(1), None);
        slab.release(1);
        assert_eq!(slab.reserve(4), Some(0));
        slab.commit(3);
        slab.release(2);
        assert_eq!(slab.reserve(5), None, "four words are in use");
        assert_eq!(slab.reserve(2), Some(4));
        slab.commit(4);
        // Two words are left at the end, and the four at the beginning are in use.
        assert_eq!(slab.reserve(3), None);
        slab.release(4);
        assert_eq!(slab.reserve(8), Some(0));
    }

    #[test]
    fn submissions_without_words_hold_nothing() {
        let mut slab = Slab::new(8, 4);
        slab.commit(1);
        assert!(slab.live.is_empty());
        assert_eq!(slab.reserve(8), Some(0));
        slab.commit(2);
        slab.commit(3);
        slab.release(2);
        assert_eq!(slab.reserve(8), Some(0));
        assert_eq!(Slab::new(0, 4).reserve(1), None);
    }
}
