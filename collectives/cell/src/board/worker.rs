//! A rank's side of a board.

use ringway_mem::{Window, recycle};
use ringway_reduce::{Scalar, ScanStep, Source};

use super::{
    Board, CLOSED, HEADER, OFFERED, PIECES, PRESENT, SLOT,
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
    sources: Vec<Source<'static>>,
    steps: Vec<ScanStep<'static>>,
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
        let (windows, sources, steps) = (Vec::new(), Vec::new(), Vec::new());
        Self { words: board.0, rank, present: false, operands: Vec::new(), windows, sources, steps }
    }

    /// Says that this rank looks at the board from now on, or no more: the daemon offers nothing while nobody does.
    pub fn set_present(&mut self, present: bool) {
        if core::mem::replace(&mut self.present, present) != present {
            self.words.add(PRESENT, if present { 1 } else { u64::MAX });
        }
    }

    /// Does one piece, if there is one that nobody has claimed. Never blocks.
    pub fn work(&mut self, regions: &impl Regions) -> Helped {
        let mut operands = core::mem::take(&mut self.operands);
        let helped = self.work_with(regions, &mut operands);
        self.operands = operands;
        helped
    }

    fn work_with(&mut self, regions: &impl Regions, operands: &mut Vec<Operand>) -> Helped {
        let Some((at, seen, kind, length)) = find(&self.words, self.rank, operands) else {
            return Helped::Nothing;
        };
        let mut windows: Vec<Window<'_>> = core::mem::take(&mut self.windows);
        for operand in operands.iter() {
            match regions.window(operand.rank, operand.place, length) {
                Some(window) => windows.push(window),
                None => {
                    self.windows = recycle(windows);
                    return Helped::Unmapped { rank: operand.rank, region: operand.place.region };
                }
            }
        }
        let mut helped = Helped::Nothing;
        // What was read is what was offered only if the claim succeeds.
        if slots::claim(&self.words, at, seen, self.rank as slots::Claimer) {
            let done = self.run(kind, operands, &windows).is_some();
            slots::finish(&self.words, at, seen, done);
            helped = Helped::Did { bytes: length * operands.len() as u64 };
        }
        self.windows = recycle(windows);
        helped
    }

    /// Does a piece. `None` when that is refused, before anything is written.
    fn run(&mut self, kind: Kind, operands: &[Operand], windows: &[Window<'_>]) -> Option<()> {
        match kind {
            Kind::Reduce { datatype, reduction, sources, divisor } => {
                let (from, to) = windows.split_at_checked(sources as usize)?;
                let mut list: Vec<Source<'_>> = core::mem::take(&mut self.sources);
                list.extend(operands.iter().zip(from).map(|(operand, window)| source(operand, *window)));
                let done = ringway_reduce::reduce(datatype, reduction, &list, to, divisor);
                self.sources = recycle(list);
                done.ok()
            }
            Kind::Scan { datatype, reduction, carry, before, inclusive } => {
                let skipped = usize::from(carry);
                let carry = windows.first().filter(|_| carry).copied();
                let operands = operands.get(skipped..)?.chunks_exact(2);
                let pairs = operands.zip(windows.get(skipped..)?.chunks_exact(2));
                let mut list: Vec<ScanStep<'_>> = core::mem::take(&mut self.steps);
                list.extend(pairs.filter_map(|(operands, windows)| {
                    let input = source(operands.first()?, *windows.first()?);
                    Some(ScanStep { input, output: windows.get(1).copied() })
                }));
                let done = ringway_reduce::scan(datatype, reduction, carry, &list, inclusive, before, None);
                self.steps = recycle(list);
                done.ok()
            }
            Kind::Copy => {
                let (from, to) = windows.split_first()?;
                ringway_reduce::copy(*from, to).ok()
            }
            Kind::Swap => match windows {
                [a, b] => ringway_reduce::swap(*a, *b).ok(),
                _ => None,
            },
        }
    }
}

fn source<'a>(operand: &Operand, window: Window<'a>) -> Source<'a> {
    Source { window, scale: operand.scale.map(|scale| Scalar::from_bytes(scale.to_le_bytes())) }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.set_present(false);
    }
}
