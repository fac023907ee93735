//! The writing side of a ring.

use crate::{PHASE_MASK, PeerFault, PushError, Storage, Word, phase_of};

/// Writes entries. Its positions are private; the peer's consumed count is a claim that is checked.
///
/// Entries are staged by [`Producer::push`] and become visible together by [`Producer::publish`], whatever their
/// number, with one release store: the first entry's phase is withheld until then, and a consumer reads in order.
#[derive(Debug)]
pub struct Producer<S, const N: usize> {
    storage: S,
    /// Where the next entry goes.
    position: u64,
    /// What the consumer may see.
    published: u64,
    /// The last checked consumed count.
    consumed: u64,
    /// The last word of the first staged entry, which [`Producer::publish`] stores.
    withheld: u64,
}

impl<S: Storage<N>, const N: usize> Producer<S, N> {
    /// A producer at the start of a zeroed ring.
    pub const fn new(storage: S) -> Self {
        Self::resume(storage, 0)
    }

    /// A producer of a ring whose entries before `position` were all published and consumed.
    pub const fn resume(storage: S, position: u64) -> Self {
        Self { storage, position, published: position, consumed: position, withheld: 0 }
    }

    /// Entries the ring holds.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.storage.capacity()
    }

    /// Entries staged since the last [`Producer::publish`].
    #[inline]
    #[must_use]
    pub const fn staged(&self) -> u64 {
        self.position.wrapping_sub(self.published)
    }

    /// The position of the next entry: how many were staged since the ring began.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Entries that can be staged now, at least; the peer's count is looked at only when the answer would be none.
    ///
    /// # Errors
    /// [`PeerFault::Consumed`] when the peer's count is impossible.
    #[inline]
    pub fn free(&mut self) -> Result<u64, PeerFault> {
        self.free_for(1)
    }

    /// Entries that can be staged now, at least; the peer's count is looked at only when the cached answer would be
    /// below `wanted`. May answer less than `wanted`.
    ///
    /// # Errors
    /// [`PeerFault::Consumed`] when the peer's count is impossible.
    #[inline]
    pub fn free_for(&mut self, wanted: u64) -> Result<u64, PeerFault> {
        let free = self.cached_free();
        if free >= wanted {
            return Ok(free);
        }
        self.refresh()?;
        Ok(self.cached_free())
    }

    #[inline]
    fn cached_free(&self) -> u64 {
        // `consumed <= published <= position <= consumed + capacity` holds at all times.
        self.storage.capacity().wrapping_sub(self.position.wrapping_sub(self.consumed))
    }

    /// Published entries the peer has not released yet, by its last count.
    ///
    /// # Errors
    /// [`PeerFault::Consumed`] when the peer's count is impossible.
    #[inline]
    pub fn unread(&mut self) -> Result<u64, PeerFault> {
        self.refresh()?;
        Ok(self.published.wrapping_sub(self.consumed))
    }

    fn refresh(&mut self) -> Result<(), PeerFault> {
        let claimed = self.storage.consumed().load_acquire();
        let outstanding = self.published.wrapping_sub(self.consumed);
        if claimed.wrapping_sub(self.consumed) > outstanding {
            return Err(PeerFault::Consumed { claimed, least: self.consumed, most: self.published });
        }
        self.consumed = claimed;
        Ok(())
    }

    /// Stages an entry; the low half of its last word is replaced by the ring's phase.
    ///
    /// # Errors
    /// [`PushError::Full`], or the peer's fault. Nothing was staged then.
    #[inline]
    pub fn push(&mut self, entry: &[u64; N]) -> Result<(), PushError> {
        if self.free()? == 0 {
            return Err(PushError::Full);
        }
        let last = N.saturating_sub(1);
        let mut tail = 0;
        for (index, &word) in entry.iter().enumerate() {
            if index == last {
                tail = (word & !PHASE_MASK) | u64::from(phase_of(self.position));
            } else {
                self.storage.entry(self.position, index).store_relaxed(word);
            }
        }
        if self.position == self.published {
            self.withheld = tail;
        } else {
            self.storage.entry(self.position, last).store_relaxed(tail);
        }
        self.position = self.position.wrapping_add(1);
        Ok(())
    }

    /// Makes every staged entry visible, with one release store.
    #[inline]
    pub fn publish(&mut self) {
        if self.position != self.published {
            self.storage.entry(self.published, N.saturating_sub(1)).store_release(self.withheld);
            self.published = self.position;
        }
    }

    /// Stages an entry and makes it, and whatever was staged before, visible.
    ///
    /// # Errors
    /// As [`Producer::push`].
    #[inline]
    pub fn send(&mut self, entry: &[u64; N]) -> Result<(), PushError> {
        self.push(entry)?;
        self.publish();
        Ok(())
    }
}
