//! Whether there is room for a rank's next call: in its slots, and in the pool.

use super::Member;
use crate::{POOL_SLOTS, SLOTS};

/// Calls that may be over and not reported as consumed before the reporting is worth a look at others' records.
const SWEEP_EVERY: u64 = if cfg!(loom) { 1 } else { 16 };
/// The same of calls whose payload is in the pool.
const POOL_SWEEP_EVERY: u64 = POOL_SLOTS.div_ceil(2);

impl Member {
    /// Whether there is room for the next call: a slot, and where its payload goes to the pool, one there.
    #[inline]
    pub(crate) fn room_for(&mut self, is_pooled: bool, contributes: bool) -> bool {
        self.room() && (!is_pooled || self.room_in_pool(contributes))
    }

    /// Whether a slot is free for the next call.
    #[inline]
    pub fn room(&mut self) -> bool {
        if self.called >= self.free_until {
            return self.room_now();
        }
        // Not with every call: where others are behind, it finds little, and takes their lines from them.
        if self.called.wrapping_sub(self.consumed) >= SWEEP_EVERY && self.called.is_multiple_of(SWEEP_EVERY) {
            self.sweep();
        }
        true
    }

    /// As [`Member::room`], where none is known of.
    fn room_now(&mut self) -> bool {
        if self.away {
            return false;
        }
        self.free_until = self.free_until_with(SLOTS);
        self.called < self.free_until
    }

    /// Whether the pool has a slot for the next call, if this rank puts anything there; if not, only that others find one
    /// in time.
    #[inline(never)]
    pub(crate) fn room_in_pool(&mut self, puts: bool) -> bool {
        let unreported = self.called.wrapping_sub(self.consumed);
        if unreported >= POOL_SWEEP_EVERY && unreported.is_multiple_of(POOL_SWEEP_EVERY) {
            self.sweep();
        }
        if puts && self.called >= self.pool_free_until {
            self.pool_free_until = self.free_until_with(POOL_SLOTS);
        }
        !puts || self.called < self.pool_free_until
    }

    /// The last call for which one of so many slots is free.
    fn free_until_with(&mut self, slots: u64) -> u64 {
        if self.called.wrapping_sub(self.consumed) >= slots {
            // It is this rank itself that keeps the slots.
            self.sweep();
        }
        self.room_after = (self.called + 1).saturating_sub(slots);
        self.cell.consumed_by_all().saturating_add(slots)
    }

    /// The call with which all ranks must be through before there is room for the one for which there was none.
    #[must_use]
    pub const fn room_after(&self) -> u64 {
        self.room_after
    }

    /// Whether somebody else acts for this rank, so that nothing becomes free here.
    pub(crate) const fn is_away(&self) -> bool {
        self.away
    }
}
