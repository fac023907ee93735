//! A rank's side of a board.

use ringway_mem::{Window, recycle};

use super::{
    Board, CLOSED, Executor, HEADER, OFFERED, OPERANDS_MAX, PIECES, PRESENT, RELEASED, SLOT,
    piece::{Kind, Operand, read},
    slots::{self, Seen},
};
use crate::{Regions, shared::Words};

/// One rank's part in a board: it does pieces while it waits.
#[derive(Debug)]
pub struct Worker {
    words: Words,
    rank: u32,
    present: bool,
    operands: Vec<Operand>,
    // Empty between calls; kept for their allocations, since the data path does not allocate.
    windows: Vec<Window<'static>>,
    executor: Executor,
}

/// What a rank found to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helped {
    /// Nothing.
    Nothing,
    /// A piece, touching so many bytes. Tell the daemon if it sleeps.
    Did {
        /// Bytes read and written.
        bytes: u64,
    },
    /// A piece in memory that is not mapped here: map it and call again, or let the daemon do it.
    Unmapped {
        /// Whose region.
        rank: u32,
        /// Its handle, or [`super::SCRATCH`].
        region: u64,
    },
}

/// What a look at the board found.
#[derive(Debug)]
pub enum Found {
    /// Nothing to do.
    Nothing,
    /// A piece in memory that is not mapped here.
    Unmapped {
        /// Whose region.
        rank: u32,
        /// Its handle, or [`super::SCRATCH`].
        region: u64,
    },
    /// A piece that nobody else does now.
    Claimed(Claimed),
}

/// A piece that this rank has claimed. Until [`Claimed::finish`] everybody waits for it: dropping it is what a rank does
/// that stops in the middle.
#[derive(Debug)]
pub struct Claimed {
    words: Words,
    at: usize,
    seen: Seen,
    kind: Kind,
    length: u64,
}

/// The first slot, from `rank` on, that has something to do and whose description makes sense.
pub(super) fn find(
    words: &Words,
    rank: u32,
    operands: &mut Vec<Operand>,
) -> Option<(usize, Seen, Kind, u64)> {
    let offered = words.load_acquire(OFFERED);
    if offered == 0 || words.load(CLOSED) != 0 {
        return None;
    }
    // Ranks begin at different places, so that they seldom want the same piece.
    let slots = (0..PIECES).map(|nth| (nth + rank as usize * 5) % PIECES);
    slots.filter(|index| offered & (1 << index) != 0).find_map(|index| {
        let at = HEADER + index * SLOT;
        let seen = slots::look(words, at)?;
        let (kind, length) = read(words, at, operands)?;
        Some((at, seen, kind, length))
    })
}

impl Worker {
    /// A rank of a board's communicator, by its number among the ranks that the board was made for.
    #[must_use]
    pub fn new(board: Board, rank: u32) -> Self {
        let (operands, windows) = (Vec::with_capacity(OPERANDS_MAX), Vec::with_capacity(OPERANDS_MAX));
        Self { words: board.0, rank, present: false, operands, windows, executor: Executor::default() }
    }

    /// Says that this rank looks at the board from now on, or no more: the daemon offers nothing while nobody does.
    pub fn set_present(&mut self, present: bool) {
        if core::mem::replace(&mut self.present, present) != present {
            self.words.add(PRESENT, if present { 1 } else { u64::MAX });
        }
    }

    /// How many regions of the board's ranks were released. When it has changed, forget what is mapped of them.
    #[must_use]
    pub fn releases(&self) -> u64 {
        self.words.load_acquire(RELEASED)
    }

    /// Does one piece, if there is one that nobody has claimed. Never blocks.
    pub fn work(&mut self, regions: &impl Regions) -> Helped {
        let mut operands = core::mem::take(&mut self.operands);
        let helped = self.work_with(regions, &mut operands);
        self.operands = operands;
        helped
    }

    fn work_with(&mut self, regions: &impl Regions, operands: &mut Vec<Operand>) -> Helped {
        let mut windows: Vec<Window<'_>> = core::mem::take(&mut self.windows);
        let helped = match self.claim(regions, operands, &mut windows) {
            Found::Nothing => Helped::Nothing,
            Found::Unmapped { rank, region } => Helped::Unmapped { rank, region },
            Found::Claimed(claimed) => {
                let bytes = claimed.length * operands.len() as u64;
                let done = self.executor.run(claimed.kind, operands, &windows);
                claimed.finish(done);
                Helped::Did { bytes }
            }
        };
        self.windows = recycle(windows);
        helped
    }

    /// Claims a piece, if there is one that nobody has claimed: what it is done to is in `operands`, and where that is
    /// mapped in `windows`. Most call [`Worker::work`], which does it as well.
    pub fn claim<'r>(
        &self,
        regions: &'r impl Regions,
        operands: &mut Vec<Operand>,
        windows: &mut Vec<Window<'r>>,
    ) -> Found {
        let Some((at, seen, kind, length)) = find(&self.words, self.rank, operands) else {
            return Found::Nothing;
        };
        windows.clear();
        for operand in operands.iter() {
            match regions.window(operand.rank, operand.place, length) {
                Some(window) => windows.push(window),
                // Read while another offer was written, it may name anything.
                None if !slots::is_unchanged(&self.words, at, seen) => return Found::Nothing,
                None => return Found::Unmapped { rank: operand.rank, region: operand.place.region },
            }
        }
        // What was read is what was offered only if the claim succeeds.
        if slots::claim(&self.words, at, seen, self.rank as slots::Claimer) {
            Found::Claimed(Claimed { words: self.words.clone(), at, seen, kind, length })
        } else {
            Found::Nothing
        }
    }
}

impl Claimed {
    /// What is to be done, to so many bytes of each operand.
    #[must_use]
    pub const fn work(&self) -> (Kind, u64) {
        (self.kind, self.length)
    }

    /// It is done; or, if not `done`, was left as it was.
    pub fn finish(self, done: bool) {
        slots::finish(&self.words, self.at, self.seen, done);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.set_present(false);
    }
}
