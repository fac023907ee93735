//! A cell as everybody who maps it sees it.

use std::sync::Arc;

use ringway_mem::Mapping;
use thiserror::Error;

use crate::{
    Signature,
    layout::{EXITED, LEFT, Layout, RankWord, VERDICT},
    processors::ProcessorSet,
    shape::Shape,
    shared::{Words, full_fence},
    step::{Step, reach},
};

/// Bytes of the file of a cell for so many ranks: whole pages. `None` for none, or more than [`crate::RANKS_MAX`].
#[must_use]
pub fn bytes(ranks: u32) -> Option<u64> {
    let words = Layout::new(ranks)?.words() as u64;
    (words * 8).checked_next_multiple_of(4096)
}

/// Why a cell was not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AttachError {
    /// No cell has so many ranks.
    #[error("a cell has 1 to {} ranks, not {ranks}", crate::RANKS_MAX)]
    Ranks {
        /// Ranks asked for.
        ranks: u32,
    },
    /// The mapping is too short, or read-only.
    #[error("the cell's file is mapped with {found} bytes and {needed} are needed, for reading and writing")]
    Mapping {
        /// Bytes mapped.
        found: u64,
        /// Bytes needed.
        needed: u64,
    },
}

/// Why a communicator is at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The status with which its operations fail; never zero.
    pub status: u16,
    /// The rank that the reason names.
    pub rank: u32,
}

impl Verdict {
    fn encode(self) -> u64 {
        u64::from(self.status.max(1)) | u64::from(self.rank) << 32
    }

    fn parse(word: u64) -> Option<Self> {
        let status = (word & 0xffff) as u16;
        (status != 0).then_some(Self { status, rank: (word >> 32) as u32 })
    }
}

/// What two ranks say that cannot both be so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contradiction {
    /// They called different things.
    Signatures {
        /// One rank.
        rank: u32,
        /// What it called.
        call: Signature,
        /// Another rank.
        other_rank: u32,
        /// What that one called.
        other: Signature,
    },
    /// They disagree about the length of a block, in bytes.
    Counts {
        /// Who sends.
        sender: u32,
        /// Who receives.
        receiver: u32,
        /// Bytes sent.
        sent: u64,
        /// Bytes expected.
        expected: u64,
    },
}

/// The shared memory of one communicator's ranks on a node. Cloning gives the same cell.
#[derive(Debug, Clone)]
pub struct Cell {
    pub(crate) words: Words,
    pub(crate) layout: Layout,
    ranks: u32,
}

impl Cell {
    /// A cell in mapped memory of [`bytes`] bytes, zeroed when the cell began.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(mapping: Arc<Mapping>, ranks: u32) -> Result<Self, AttachError> {
        let layout = Layout::new(ranks).ok_or(AttachError::Ranks { ranks })?;
        let (found, needed) = (mapping.length() as u64, layout.words() as u64 * 8);
        let words = Words::new(mapping, layout.words()).ok_or(AttachError::Mapping { found, needed })?;
        Ok(Self { words, layout, ranks })
    }

    /// How many ranks it has.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    #[inline(always)]
    pub(crate) fn rank_word(&self, rank: u32, word: RankWord) -> u64 {
        self.words.load_acquire(self.layout.rank(rank, word))
    }

    /// Ends the communicator: calls that are not complete fail, and nobody begins new work on others' memory. The first
    /// verdict stands; whether it is this one. Wakes every sleeper.
    pub fn fail(&self, verdict: Verdict) -> bool {
        let first = self.words.replace(VERDICT, 0, verdict.encode()).is_ok();
        self.wake_everybody();
        first
    }

    /// Why the communicator is at its end, if it is.
    #[inline]
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        Verdict::parse(self.words.load_acquire(VERDICT))
    }

    /// Says that a rank's process has ended: it writes no more. Wakes every sleeper.
    pub fn set_exited(&self, rank: u32) {
        self.set_state(rank, EXITED);
    }

    /// Says that a rank left in order, after the last call it published. Wakes every sleeper.
    pub fn set_left(&self, rank: u32) {
        self.set_state(rank, LEFT);
    }

    fn set_state(&self, rank: u32, state: u64) {
        if rank < self.ranks {
            self.words.set(self.layout.rank(rank, RankWord::State), state);
            self.wake_everybody();
        }
    }

    /// Whether a rank left in order.
    #[must_use]
    pub fn has_left(&self, rank: u32) -> bool {
        rank < self.ranks && self.rank_word(rank, RankWord::State) & LEFT != 0
    }

    /// Whether a rank's process has ended.
    #[must_use]
    pub fn has_exited(&self, rank: u32) -> bool {
        rank < self.ranks && self.rank_word(rank, RankWord::State) & EXITED != 0
    }

    /// The last call a rank published, by what it says.
    #[must_use]
    pub fn called(&self, rank: u32) -> u64 {
        if rank < self.ranks { self.rank_word(rank, RankWord::Called) } else { 0 }
    }

    /// The last call for which a rank wants the daemon's help, by what it says.
    #[must_use]
    pub fn wanted(&self, rank: u32) -> u64 {
        if rank < self.ranks { self.rank_word(rank, RankWord::Wanted) } else { 0 }
    }

    /// Whether a rank sleeps in the cell, by what it says.
    #[must_use]
    pub fn is_waiting(&self, rank: u32) -> bool {
        rank < self.ranks && self.rank_word(rank, RankWord::Armed) != 0
    }

    /// How many ranks are at work on a call, by what they say.
    #[must_use]
    pub fn at_work(&self) -> u32 {
        (0..self.ranks).map(|rank| u32::from(self.rank_word(rank, RankWord::Inside) != 0)).sum()
    }

    /// A rank says on which processors it may run.
    pub(crate) fn say_processors(&self, rank: u32, processors: &ProcessorSet) {
        let first = self.layout.rank(rank, RankWord::Processors);
        for (at, word) in (first..).zip(processors.words) {
            self.words.store(at, word);
        }
    }

    /// On which processors any of the ranks may run, by what they say, and whether all have said it.
    #[must_use]
    pub fn processors(&self) -> (ProcessorSet, bool) {
        let of = |rank| {
            let first = self.layout.rank(rank, RankWord::Processors);
            ProcessorSet { words: core::array::from_fn(|at| self.words.load(first + at)) }
        };
        (0..self.ranks).map(of).fold((ProcessorSet::default(), true), |(all, said), set| {
            (all.union(&set), said && !set.is_empty())
        })
    }

    /// What a rank called; `None` when it has not called this far, when a later call has taken the slot, or when it
    /// means nothing.
    #[must_use]
    pub fn signature(&self, rank: u32, sequence: u64) -> Option<Signature> {
        if rank >= self.ranks || sequence == 0 {
            return None;
        }
        self.agreement(rank, sequence)?.signature()
    }

    /// The first contradiction between what ranks published for a call.
    #[must_use]
    pub fn contradiction(&self, sequence: u64) -> Option<Contradiction> {
        let mut calls = (0..self.ranks).filter_map(|rank| Some((rank, self.signature(rank, sequence)?)));
        let (rank, call) = calls.next()?;
        if let Some((other_rank, other)) = calls.find(|(_, other)| *other != call) {
            return Some(Contradiction::Signatures { rank, call, other_rank, other });
        }
        let shape = Shape::of(&call, self.ranks)?;
        crate::extent::disagreement(self, sequence, &shape)
    }

    /// A rank begins to work on others' memory for a call. It looks for a verdict after this: either it sees one, or whoever
    /// gives one sees the rank at work.
    pub(crate) fn enter(&self, rank: u32, sequence: u64) {
        self.words.store(self.layout.rank(rank, RankWord::Inside), sequence);
        full_fence();
        reach(Step::Entered);
    }

    /// A rank works on nobody's memory any more.
    pub(crate) fn leave(&self, rank: u32) {
        self.words.store_release(self.layout.rank(rank, RankWord::Inside), 0);
    }

    /// Ranks, other than this one, whose processes live and that are at work on others' memory.
    pub(crate) fn anyone_inside_but(&self, rank: u32) -> bool {
        (0..self.ranks).any(|r| r != rank && self.rank_word(r, RankWord::Inside) != 0 && !self.has_exited(r))
    }

    /// Whether a rank is at work on others' memory for a call, by what it says.
    #[must_use]
    pub fn is_at_work(&self, rank: u32, sequence: u64) -> bool {
        rank < self.ranks && sequence > 0 && self.rank_word(rank, RankWord::Inside) == sequence
    }

    /// The last call that a rank is through with, with all before it, by what it says: it may not have said so yet. One that
    /// has left is through with all it made.
    #[must_use]
    pub fn consumed(&self, rank: u32) -> u64 {
        match rank {
            _ if rank >= self.ranks => 0,
            _ if self.has_left(rank) => self.called(rank),
            _ => self.rank_word(rank, RankWord::Consumed),
        }
    }

    /// The last call that every rank is through with.
    pub(crate) fn consumed_by_all(&self) -> u64 {
        (0..self.ranks).map(|rank| self.consumed(rank)).min().unwrap_or(0)
    }
}
