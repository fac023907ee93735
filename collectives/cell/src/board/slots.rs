//! The protocol of one slot.
//!
//! A slot's state is one word: the number of the offer in the high 40 bits, who claimed it in the next 16, and what it
//! is in the low 8. The daemon offers (any of its own states -> offered) with a release store; whoever wins the exchange
//! offered -> claimed does the piece and says so with a release words. Since a number is used for one offer only, an
//! exchange that succeeds proves that what was read of the description before it belongs to that offer.

use crate::shared::Words;

/// Who claims: a rank, or [`DAEMON`].
pub(super) type Claimer = u16;
/// The daemon as a claimer.
pub(super) const DAEMON: Claimer = Claimer::MAX;

const NUMBER_SHIFT: u32 = 24;
const OFFERED: u64 = 1;
const CLAIMED: u64 = 2;
const DONE: u64 = 3;
const RETURNED: u64 = 4;

/// What a slot's state says of one offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nobody has claimed it.
    Offered,
    Claimed(Claimer),
    Done,
    /// It was claimed and nothing was done: the claimer could not.
    Returned,
    /// No honest process wrote this.
    Nonsense,
}

/// An offer that can be claimed, as seen by a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

const fn word(number: u64, claimer: Claimer, state: u64) -> u64 {
    (number << NUMBER_SHIFT) | ((claimer as u64) << 8) | state
}

/// Offers what is described in a slot. `number` has not been used for the slot, and nobody is at its last offer.
pub(super) fn offer(words: &Words, at: usize, number: u64) {
    words.store_release(at, word(number, 0, OFFERED));
}

/// How an offer stands. What was done for it is visible when it is done.
pub(super) fn standing(words: &Words, at: usize, number: u64) -> Standing {
    let found = words.load_acquire(at);
    if found >> NUMBER_SHIFT != word(number, 0, 0) >> NUMBER_SHIFT {
        return Standing::Nonsense;
    }
    match found & 0xff {
        OFFERED => Standing::Offered,
        CLAIMED => Standing::Claimed((found >> 8) as Claimer),
        DONE => Standing::Done,
        RETURNED => Standing::Returned,
        _ => Standing::Nonsense,
    }
}

/// An offer that somebody may claim. Its description can be read afterwards, and is what it seems when [`claim`]
/// succeeds.
pub(super) fn look(words: &Words, at: usize) -> Option<Seen> {
    let found = words.load_acquire(at);
    (found & 0xff == OFFERED).then_some(Seen(found))
}

/// Claims an offer. With success nobody else does it, and nobody changes the slot until [`finish`].
pub(super) fn claim(words: &Words, at: usize, seen: Seen, claimer: Claimer) -> bool {
    words.replace(at, seen.0, word(seen.0 >> NUMBER_SHIFT, claimer, CLAIMED)).is_ok()
}

/// Whether nothing has happened to an offer since it was seen, so that its description was read as it was written.
pub(super) fn is_unchanged(words: &Words, at: usize, seen: Seen) -> bool {
    words.replace(at, seen.0, seen.0).is_ok()
}

/// A claimed piece is done (or, if not `done`, left as it was).
pub(super) fn finish(words: &Words, at: usize, seen: Seen, done: bool) {
    words.store_release(at, word(seen.0 >> NUMBER_SHIFT, 0, if done { DONE } else { RETURNED }));
}
