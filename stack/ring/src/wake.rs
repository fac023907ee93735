//! Sleeping without missing the other side.
//!
//! The side that wants to sleep arms a flag word, looks at its rings once more, and only then blocks. The other side
//! publishes, and then looks at the flag. A sequentially consistent fence between the two steps on both sides makes
//! it impossible that both miss each other (the store-buffer pattern; `io_uring` does the same with
//! `IORING_SQ_NEED_WAKEUP`).
//!
//! ```text
//! sleeper: arm(flag); nothing to do? -> block; disarm(flag)
//! other:   publish();  armed(flag)?   -> wake
//! ```

#[cfg(not(loom))]
use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};

use crate::Word;

/// Says that this side is about to sleep, by a value other than zero. Look at the rings once more before blocking.
#[inline]
pub fn arm(flag: &impl Word, value: u64) {
    flag.store_relaxed(value);
    fence(Ordering::SeqCst);
}

/// Says that this side is awake.
#[inline]
pub fn disarm(flag: &impl Word) {
    flag.store_relaxed(0);
}

/// After publishing: the value with which the other side armed its flag, or zero when it is awake.
#[inline]
#[must_use]
pub fn armed(flag: &impl Word) -> u64 {
    fence(Ordering::SeqCst);
    flag.load_relaxed()
}

/// Marks a value of the client's flag word as armed; the low half is the sequence it sleeps on.
const WAITING: u64 = 1 << 32;

/// Before a client blocks on a sequence word: reads the sequence, then arms the flag with it. Returns the sequence to
/// block on.
#[inline]
pub fn arm_sequence(sequence: &impl Word, flag: &impl Word) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the sequence is the low half")]
    let expected = sequence.load_relaxed() as u32;
    arm(flag, WAITING | u64::from(expected));
    expected
}

/// After publishing: moves the sequence on when the client sleeps on its present value; says whether the client must
/// be woken. One sleep is answered by one wake-up at most, since the sequence then differs. `current` is the
/// daemon's own copy of the sequence.
#[inline]
#[must_use]
pub fn advance_sequence(sequence: &impl Word, current: &mut u32, flag: &impl Word) -> bool {
    if armed(flag) != WAITING | u64::from(*current) {
        return false;
    }
    *current = current.wrapping_add(1);
    sequence.store_release(u64::from(*current));
    true
}
