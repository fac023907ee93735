//! The reading side of a ring.

use crate::{PHASE_MASK, PeerFault, Storage, Word, phase_of};

/// Reads entries: each is copied once, and only the copy is looked at.
///
/// Space goes back to the producer by [`Consumer::release`], once per batch. Between two releases at most
/// [`Consumer::capacity`] entries come out, whatever the peer writes.
#[derive(Debug)]
pub struct Consumer<S, const N: usize> {
    storage: S,
    /// The next entry to read.
    position: u64,
    /// What the producer was told.
    released: u64,
}

impl<S: Storage<N>, const N: usize> Consumer<S, N> {
    /// A consumer at the start of a zeroed ring.
    pub const fn new(storage: S) -> Self {
        Self::resume(storage, 0)
    }

    /// A consumer of a ring whose entries before `position` were all consumed and released.
    pub const fn resume(storage: S, position: u64) -> Self {
        Self { storage, position, released: position }
    }

    /// Entries the ring holds.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.storage.capacity()
    }

    /// How many entries were read since the ring began.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Entries read since the last [`Consumer::release`].
    #[inline]
    #[must_use]
    pub const fn unreleased(&self) -> u64 {
        self.position.wrapping_sub(self.released)
    }

    /// Whether [`Consumer::pop`] would give an entry (or a fault) now. Reads one word.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !matches!(self.look(), Ok(None))
    }

    /// The last word of the entry at the position, when the entry is published.
    #[inline]
    fn look(&self) -> Result<Option<u64>, PeerFault> {
        if self.unreleased() >= self.storage.capacity() {
            return Ok(None);
        }
        let tail = self.storage.entry(self.position, N.saturating_sub(1)).load_acquire();
        #[expect(clippy::cast_possible_truncation, reason = "the phase is the low half")]
        let found = tail as u32;
        let expected = phase_of(self.position);
        if found == expected {
            return Ok(Some(tail));
        }
        // What the producer left there one lap ago, or zero in the first lap.
        let untouched = match self.position.checked_sub(self.storage.capacity()) {
            Some(before) => phase_of(before),
            None => 0,
        };
        if found == untouched {
            Ok(None)
        } else {
            Err(PeerFault::Phase { position: self.position, found, expected })
        }
    }

    /// Copies the next entry out, if one is published. The low half of its last word, the ring's own, reads as zero.
    ///
    /// # Errors
    /// [`PeerFault::Phase`] when the entry is neither published nor untouched.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<[u64; N]>, PeerFault> {
        let mut entry = [0; N];
        Ok(self.pop_into(&mut entry)?.then_some(entry))
    }

    #[inline]
    fn pop_into(&mut self, entry: &mut [u64; N]) -> Result<bool, PeerFault> {
        let Some(tail) = self.look()? else { return Ok(false) };
        let last = N.saturating_sub(1);
        for (index, word) in entry.iter_mut().enumerate() {
            *word = if index == last {
                tail & !PHASE_MASK
            } else {
                self.storage.entry(self.position, index).load_relaxed()
            };
        }
        self.position = self.position.wrapping_add(1);
        Ok(true)
    }

    /// Copies up to `into.len()` entries out; returns how many. A fault behind good entries shows at the next call.
    ///
    /// # Errors
    /// [`PeerFault::Phase`] when the first entry is neither published nor untouched.
    #[inline]
    pub fn pop_batch(&mut self, into: &mut [[u64; N]]) -> Result<usize, PeerFault> {
        let mut count = 0;
        for entry in into {
            match self.pop_into(entry) {
                Ok(true) => count += 1,
                Ok(false) => break,
                Err(fault) if count == 0 => return Err(fault),
                Err(_) => break,
            }
        }
        Ok(count)
    }

    /// Gives the entries read so far back to the producer, with one release store.
    #[inline]
    pub fn release(&mut self) {
        if self.position != self.released {
            self.storage.consumed().store_release(self.position);
            self.released = self.position;
        }
    }
}
