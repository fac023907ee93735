//! How an operation is ordered with a stream of its caller's GPU: by two words in a region of the client's.
//!
//! The caller's stream writes [`value`] of the operation's token into the word *ready* of the token's [`slot`], when all work
//! before is done; the daemon takes the submission ([`crate::descriptor::FLAG_STREAM`]) then. When the operation has ended, well
//! or not, the daemon writes the same value into the word *done*, for which the caller's stream waits. Values of one slot
//! only grow, modulo 2^32. A client whose daemon is gone writes *done* itself.

/// Slots of a communicator's words.
pub const SLOTS: u32 = 1024;
/// Bytes of a slot: a cache line.
pub const SLOT_BYTES: u64 = 64;
/// Where *ready* is in a slot.
pub const READY: u64 = 0;
/// Where *done* is in a slot.
pub const DONE: u64 = 4;
/// Bytes of all slots.
pub const BYTES: u64 = SLOTS as u64 * SLOT_BYTES;

/// The first byte of a token's slot.
#[inline]
#[must_use]
pub const fn slot(token: u32) -> u64 {
    ((token % SLOTS) as u64).wrapping_mul(SLOT_BYTES)
}

/// What says that the operation with this token is ready, or done.
#[inline]
#[must_use]
pub const fn value(token: u32) -> u32 {
    token.wrapping_add(1)
}

/// Whether a word has reached a value.
#[inline]
#[must_use]
pub const fn is_reached(word: u32, value: u32) -> bool {
    word.wrapping_sub(value) <= u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_inside_and_values_grow_with_the_uses_of_a_slot() {
        for token in [0, 1, SLOTS - 1, SLOTS, u32::MAX] {
            assert!(slot(token) + SLOT_BYTES <= BYTES);
        }
        for (earlier, later) in [(0, 1 << 20), (u32::MAX - 5, (1 << 20) - 6)] {
            assert_eq!(slot(earlier), slot(later));
            assert!(is_reached(value(later), value(earlier)) && !is_reached(value(earlier), value(later)));
            assert!(is_reached(value(earlier), value(earlier)));
        }
        assert!(!is_reached(0, value(0)), "fresh memory says nothing");
    }
}
