//! A rank's part in its cell, taken by the daemon for a while.
//!
//! A rank may have [`SLOTS`] calls under way. One that makes more without waiting hands its part over: the daemon,
//! asked through the communicator's rings, acts for it in the cell until none of what it was asked is left, and the
//! rank then goes on by itself.
//!
//! **Who acts.** Exactly one of the two acts for the rank: publishes, consumes, and writes the rank's `called`,
//! `consumed` and `wanted` words. The right to do so lies in the submission ring:
//!
//! - The rank stops ([`Member::hand_over`]), then submits its calls that are not over, by number, and the new one. The
//!   release of the submissions is the release of the part: the daemon acquires it with the first of them, and finds in
//!   the rank's own words and records how far the rank has come ([`StandIn::take_over`]).
//! - The daemon acts for as long as a submission is not completed. It touches nothing of the part any more before it
//!   makes the last completion visible. That is the release of the part back: a rank that has taken a completion for
//!   each of its submissions has acquired it, and reads in turn how far the daemon has come ([`Member::resume`]).
//! - A submission that crosses the last completion on its way begins a turn of the daemon's anew; the rank, which counts
//!   it, does not take its part back before that one is over as well.
//!
//! Both sides see everything the other has done, and neither needs a word of its own in the cell for it. For the other
//! ranks nothing changes: each word of the part has one writer at a time, writes of both are ordered by the ring, so that
//! what a rank releases with `consumed` includes the reads of whoever acted before.
//!
//! **What the daemon believes.** Numbers, signatures and windows are checked against private copies; how far the rank
//! has come must be possible. A record's `over` stands nowhere: calls that the rank does not name between two that it
//! names, or before the first new one, are over for it. Until then nothing behind them is consumed.
//!
//! **Who is woken.** Publishing and consuming look for sleepers whoever does it. The daemon does not sleep in a cell:
//! ranks about to sleep ring its doorbell when it acts for one of them ([`Cell::has_stand_in`]), and it looks from time
//! to time.

use thiserror::Error;

use super::{Member, Outstanding, Poll, Seen, see};
use crate::{
    Call, INLINE_BYTES, Place, Regions, SLOTS, Signature,
    cell::Cell,
    large::Large,
    layout::{RankWord, STOOD_IN},
    record::Part,
    shape::{Need, Shape},
    shared::Words,
};

/// No rank gets so far: beyond, words were written by somebody who wants to cause an overflow.
const CALLED_MAX: u64 = 1 << 62;

/// Why a call is not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The rank's words in the cell cannot be.
    #[error("{called} calls published and {consumed} consumed cannot be: the cell was written to by mistake")]
    Words {
        /// Calls published, by the rank's word.
        called: u64,
        /// Calls consumed, by the rank's word.
        consumed: u64,
    },
    /// No call of that number can be taken over.
    #[error("call {sequence} is not one of those after {known} and up to {called}")]
    Sequence {
        /// The number given.
        sequence: u64,
        /// Calls up to this one are known already.
        known: u64,
        /// The last call published.
        called: u64,
    },
    /// The rank's record of it says something else.
    #[error("call {sequence} was published as something else")]
    Signature {
        /// The number given.
        sequence: u64,
    },
    /// The input is not where it is said to be.
    #[error("the input of call {sequence} is missing, or not inside its region")]
    Input {
        /// The number given.
        sequence: u64,
    },
    /// The output is not where it is said to be.
    #[error("the output of call {sequence} is missing, or not inside its region")]
    Output {
        /// The number given.
        sequence: u64,
    },
}

impl Cell {
    /// Says whether the daemon acts for a rank.
    pub fn set_stood_in(&self, rank: u32, stood_in: bool) {
        if rank >= self.ranks() {
            return;
        }
        let word = self.layout.rank(rank, RankWord::State);
        if stood_in {
            self.words.set(word, STOOD_IN);
        } else {
            self.words.clear(word, STOOD_IN);
        }
    }

    /// Whether the daemon acts for some rank. It does not sleep in the cell: who is about to rings its doorbell.
    #[must_use]
    pub fn has_stand_in(&self) -> bool {
        (0..self.ranks()).any(|rank| self.rank_word(rank, RankWord::State) & STOOD_IN != 0)
    }
}

impl Member {
    /// Stops acting: until [`Member::resume`] there is no room for a call, and none may be polled.
    pub fn hand_over(&mut self) {
        Words::end_stream();
        self.away = true;
        // Nothing is left to sweep, and no slot is known to be free.
        self.consumed = self.called;
        (self.free_until, self.pool_free_until) = (0, 0);
    }

    /// A call that is not over: what was called, and where its input and output are.
    #[must_use]
    pub fn outstanding(&self, sequence: u64) -> Option<(Signature, Option<Place>, Option<Place>)> {
        let call = self.calls.get(Self::index(sequence))?;
        let call = (call.sequence == sequence && !call.over).then_some(call)?;
        Some((call.agreement.signature()?, call.part.input, call.part.output))
    }

    /// Acts again, from where the rank is by now. All its calls are over.
    ///
    /// # Errors
    /// [`Refusal::Words`] when the cell says what cannot be.
    pub fn resume(&mut self) -> Result<(), Refusal> {
        let word = |word| self.cell.rank_word(self.rank, word);
        let (called, consumed) = (word(RankWord::Called), word(RankWord::Consumed));
        if called > CALLED_MAX || called.checked_sub(consumed).is_none_or(|calls| calls > SLOTS) {
            return Err(Refusal::Words { called, consumed });
        }
        (self.called, self.consumed) = (called, consumed);
        (self.free_until, self.pool_free_until) = (called, called);
        self.away = false;
        self.dispute = None;
        self.job.sequence = 0;
        if called > 0 {
            self.history = self.cell.history(self.rank, called).unwrap_or_default();
        }
        for sequence in consumed + 1..=called {
            // One that is not there contradicts every other rank's.
            let agreement = self.cell.agreement(self.rank, sequence).unwrap_or_default();
            let history = self.cell.history(self.rank, sequence).unwrap_or_default();
            if let Some(call) = self.calls.get_mut(Self::index(sequence)) {
                let (part, large) = (Part::default(), Large::default());
                *call = Outstanding {
                    sequence,
                    agreement,
                    history,
                    part,
                    large,
                    seen: 0,
                    taken: 0,
                    over: true,
                    ..*call
                };
            }
        }
        Ok(())
    }

    /// As [`Member::poll`], of a large call in which this side does no work.
    fn watch(&mut self, sequence: u64) -> Poll {
        let Some(call) = self.calls.get_mut(Self::index(sequence)) else { return Poll::Done };
        if call.over || call.sequence != sequence {
            return Poll::Done;
        }
        match see(&self.cell, call, self.rank, Need::All) {
            Seen::All => {}
            seen => return self.wait_for(seen, sequence),
        }
        let shape = call.shape;
        if self.job.sequence != sequence && self.job.load(&self.cell, sequence, shape).is_err() {
            return self.wait_for(Seen::Other(self.rank), sequence);
        }
        if !self.job.is_complete(&self.cell, &mut 0) {
            return self.wait_for(Seen::NotYet, sequence);
        }
        self.job.sequence = 0;
        self.finish(sequence);
        Poll::Done
    }
}

/// The daemon, acting for one rank. It publishes that rank's calls and computes its outputs of small ones; blocks of large
/// ones are left to [`crate::Helper`] and the ranks. Every step is bounded by one call's payloads.
#[derive(Debug)]
pub struct StandIn {
    member: Member,
    /// Calls up to this one were named by the rank, are over, or were made here.
    known: u64,
}

impl StandIn {
    /// For a rank of the cell. Nothing is done before [`StandIn::take_over`].
    #[must_use]
    pub fn new(cell: Cell, rank: u32) -> Self {
        Self { member: Member::new(cell, rank), known: 0 }
    }

    /// The cell.
    #[must_use]
    pub const fn cell(&self) -> &Cell {
        self.member.cell()
    }

    /// Begins to act, from where the rank is. Calls that it has published and not consumed are not known yet.
    ///
    /// # Errors
    /// [`Refusal::Words`].
    pub fn take_over(&mut self) -> Result<(), Refusal> {
        self.member.resume()?;
        let Member { called, consumed, .. } = self.member;
        self.known = consumed;
        self.member.epoch = if called > 0 { self.cell().part(self.member.rank, called).epoch } else { 0 };
        for sequence in consumed + 1..=called {
            self.set_over(sequence, false);
        }
        Ok(())
    }

    fn set_over(&mut self, sequence: u64, over: bool) {
        if let Some(call) = self.member.calls.get_mut(Member::index(sequence)) {
            call.over = over;
        }
    }

    /// Calls up to this one that were not named are over for the rank.
    fn pass(&mut self, last: u64) {
        for sequence in self.known + 1..=last {
            self.set_over(sequence, true);
        }
        self.known = self.known.max(last);
    }

    /// Takes over a call that the rank has published, after those taken over before. `regions` must know the rank's own
    /// memory.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn adopt(
        &mut self,
        sequence: u64,
        signature: &Signature,
        [input, output]: [Option<Place>; 2],
        regions: &impl Regions,
    ) -> Result<(), Refusal> {
        let Member { called, rank, .. } = self.member;
        if sequence <= self.known || sequence > called {
            return Err(Refusal::Sequence { sequence, known: self.known, called });
        }
        let other = Refusal::Signature { sequence };
        let ranks = self.cell().ranks();
        let call = self.member.calls.get_mut(Member::index(sequence)).ok_or(other)?;
        if call.agreement.signature() != Some(*signature) {
            return Err(other);
        }
        let shape = Shape::of(signature, ranks).ok_or(other)?;
        let small = shape.is_small();
        let (reads, writes) = shape.blocks(rank);
        let is_missing = |place: Option<Place>, blocks: u64| {
            let bytes = blocks.saturating_mul(shape.block);
            bytes > 0 && place.and_then(|place| regions.window(rank, place, bytes)).is_none()
        };
        if small && is_missing(output, writes) {
            return Err(Refusal::Output { sequence });
        }
        // What others need of the input was published with the call.
        if small && signature.operation.reduces() && is_missing(input, reads) {
            return Err(Refusal::Input { sequence });
        }
        (call.shape, call.small, call.part) = (shape, small, Part { input, output, ..Part::default() });
        self.pass(sequence - 1);
        self.set_over(sequence, false);
        self.known = sequence;
        Ok(())
    }

    /// Whether a slot is free for the next call. Calls that the rank has published and not named are over from now on.
    pub fn has_room(&mut self) -> bool {
        self.pass(self.member.called);
        // The rank's own word says so as well, unless others write there.
        if self.member.called - self.member.consumed >= SLOTS {
            self.member.sweep();
        }
        self.member.room() && self.member.called - self.member.consumed < SLOTS
    }

    /// Publishes a call, checked as [`Call`] says; its number, or `None` when no slot is free now.
    pub fn begin(&mut self, call: &Call<'_>, regions: &impl Regions) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        self.known = self.member.begin(call, true, regions)?;
        Some(self.known)
    }

    /// Looks at a call; never [`Poll::Unmapped`] nor [`Poll::Stale`]. `regions` must know the rank's own memory until
    /// the call is over.
    pub fn poll(&mut self, sequence: u64, regions: &impl Regions) -> Poll {
        if self.is_small(sequence) {
            self.member.poll(sequence, regions)
        } else {
            self.member.watch(sequence).or_complete(|| self.member.watch(sequence))
        }
    }

    /// Whether a call is small.
    #[must_use]
    pub fn is_small(&self, sequence: u64) -> bool {
        self.member.calls.get(Member::index(sequence)).is_none_or(|call| call.small)
    }

    /// The most bytes of one rank that beginning or ending a call copies. Those of a large one are the business of whoever
    /// works on its blocks.
    #[must_use]
    pub fn copied_bytes(&self, sequence: u64) -> u64 {
        let call = self.member.calls.get(Member::index(sequence)).filter(|call| call.small);
        call.map_or(0, |call| call.shape.contribution()).max(INLINE_BYTES as u64)
    }

    /// As [`Member::room_after`].
    #[must_use]
    pub const fn room_after(&self) -> u64 {
        self.member.room_after()
    }

    /// The last call published.
    #[must_use]
    pub const fn called(&self) -> u64 {
        self.member.called()
    }

    /// Whether a call waits for a rank that has left and does not come any more.
    #[must_use]
    pub fn waits_for_nobody(&self, sequence: u64) -> bool {
        self.member.missing(sequence).any(|rank| self.cell().has_left(rank))
    }
}
