//! The daemon's side of a board.

use super::{
    Board, CLOSED, HEADER, OFFERED, PIECES, PRESENT, RELEASED, SLOT, Work,
    piece::{describe, is_sound},
    slots::{self, DAEMON, Standing},
};
use crate::shared::Words;

const fn slot(index: usize) -> usize {
    HEADER + index * SLOT
}

/// What the daemon has on a board. It names pieces by keys of the caller's, who keeps what they are.
#[derive(Debug)]
pub struct Offers {
    words: Words,
    /// What was offered in each slot: its number, and the caller's key.
    slots: [Option<(u64, u64)>; PIECES],
    /// Slots that hold an offer, a bit each.
    held: u64,
    /// Offers made.
    made: u64,
    closed: bool,
    /// Ranks whose processes have ended.
    exited: Vec<bool>,
    nonsense: bool,
}

impl Offers {
    /// Nothing on a board of so many ranks.
    #[must_use]
    pub fn new(board: Board, ranks: u32) -> Self {
        let exited = vec![false; ranks as usize];
        Self {
            words: board.0,
            slots: [None; PIECES],
            held: 0,
            made: 0,
            closed: false,
            exited,
            nonsense: false,
        }
    }

    /// Ranks that wait and look at the board, as far as the ranks say.
    #[must_use]
    pub fn company(&self) -> u64 {
        self.words.load(PRESENT)
    }

    /// Offers that have not been collected, taken or withdrawn.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.held.count_ones()
    }

    /// Nothing more will be offered, and nobody begins what is: the communicator has failed.
    pub fn close(&mut self) {
        self.closed = true;
        self.words.store_release(CLOSED, 1);
    }

    /// The process of a rank has ended: it writes no more.
    pub fn set_exited(&mut self, rank: u32) {
        if let Some(exited) = self.exited.get_mut(rank as usize) {
            *exited = true;
        }
    }

    /// A region of one of the ranks was released: the others forget what they have mapped of it.
    pub fn count_release(&mut self) {
        self.words.add(RELEASED, 1);
    }

    /// Whether a rank has done a piece that was not collected yet, or has spoiled one.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.held().any(|(index, number, _)| {
            let standing = slots::standing(&self.words, slot(index), number);
            !matches!(standing, Standing::Offered | Standing::Claimed(_))
        })
    }

    /// Whether a slot's state was found to be what no honest process writes. Its piece is never collected: end the
    /// communicator.
    #[must_use]
    pub const fn is_tampered_with(&self) -> bool {
        self.nonsense
    }

    /// Offers a piece. `false` when the board is full, or closed, or the piece has too many operands: do it yourself.
    pub fn offer(&mut self, key: u64, work: &Work<'_>) -> bool {
        let index = (!self.held).trailing_zeros() as usize;
        if index >= PIECES || self.closed || !is_sound(work.kind, work.length, work.operands.len()) {
            return false;
        }
        self.made += 1;
        describe(&self.words, slot(index), work);
        slots::offer(&self.words, slot(index), self.made);
        if let Some(place) = self.slots.get_mut(index) {
            *place = Some((self.made, key));
        }
        self.hold(self.held | 1 << index);
        true
    }

    /// Tells the ranks where to look.
    fn hold(&mut self, held: u64) {
        self.held = held;
        self.words.store_release(OFFERED, held);
    }

    fn free(&mut self, index: usize) {
        if let Some(place) = self.slots.get_mut(index) {
            *place = None;
        }
        self.hold(self.held & !(1 << index));
    }

    fn held(&self) -> impl DoubleEndedIterator<Item = (usize, u64, u64)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, offer)| offer.map(|(number, key)| (index, number, key)))
    }

    /// The next piece that a rank has done.
    pub fn collect(&mut self) -> Option<u64> {
        let standing = |(index, number, key)| (index, key, slots::standing(&self.words, slot(index), number));
        let mut ended = self
            .held()
            .map(standing)
            .filter(|(_, _, standing)| matches!(standing, Standing::Done | Standing::Nonsense));
        let (index, key, standing) = ended.next()?;
        drop(ended);
        if standing == Standing::Nonsense {
            self.nonsense = true;
            return None;
        }
        self.free(index);
        Some(key)
    }

    /// Claims a piece that no rank has claimed, the last in the order of slots: the caller does it.
    pub fn take(&mut self) -> Option<u64> {
        let (index, key) = self.held().rev().find_map(|(index, number, key)| {
            let at = slot(index);
            let free = match slots::standing(&self.words, at, number) {
                Standing::Returned => true,
                Standing::Offered => {
                    slots::look(&self.words, at).is_some_and(|s| slots::claim(&self.words, at, s, DAEMON))
                }
                _ => false,
            };
            free.then_some((index, key))
        })?;
        self.free(index);
        Some(key)
    }

    fn find(&self, key: u64) -> Option<(usize, u64)> {
        self.held().find(|(_, _, other)| *other == key).map(|(index, number, _)| (index, number))
    }

    /// Takes a piece back, so that nobody begins it. Whether nobody is at it; if not, call again later. Afterwards it is
    /// not collected.
    pub fn withdraw(&mut self, key: u64) -> bool {
        let Some((index, number)) = self.find(key) else { return true };
        let at = slot(index);
        let mut standing = slots::standing(&self.words, at, number);
        if standing == Standing::Offered {
            if slots::look(&self.words, at).is_some_and(|seen| slots::claim(&self.words, at, seen, DAEMON)) {
                standing = Standing::Returned;
            } else {
                standing = slots::standing(&self.words, at, number);
            }
        }
        let gone = match standing {
            Standing::Returned | Standing::Done => true,
            Standing::Claimed(rank) => {
                // A rank that is not there was made up by somebody who is.
                self.exited.get(usize::from(rank)).copied().unwrap_or_else(|| self.exited.iter().all(|e| *e))
            }
            Standing::Offered => false,
            Standing::Nonsense => self.exited.iter().all(|exited| *exited),
        };
        if gone {
            self.free(index);
        }
        gone
    }

    /// The rank that is at a piece, as far as the board says.
    #[must_use]
    pub fn holder(&self, key: u64) -> Option<u32> {
        let (index, number) = self.find(key)?;
        match slots::standing(&self.words, slot(index), number) {
            Standing::Claimed(rank) if rank != DAEMON => Some(u32::from(rank)),
            _ => None,
        }
    }
}
