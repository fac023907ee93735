//! Small calls: every rank computes its own result from what all have published beside their records.

use ringway_mem::Window;
use ringway_reduce::{Source, Stores};
use ringway_types::Operation;

use crate::{cell::Cell, shape::Shape};

/// A small call as one rank computes it.
#[derive(Debug)]
pub(crate) struct Small<'c> {
    pub(crate) cell: &'c Cell,
    pub(crate) sequence: u64,
    pub(crate) shape: &'c Shape,
    pub(crate) rank: u32,
}

impl<'c> Small<'c> {
    /// A part of what a rank has put, untagged.
    #[inline(always)]
    pub(crate) fn payload(&self, rank: u32, start: u64, length: u64) -> Option<Window<'c>> {
        // Whoever puts anything puts as much as the others.
        let at = self.cell.payload(rank, self.sequence, self.shape.contribution() as usize);
        self.cell.words.bytes(at, start, length)
    }

    /// Copies what others need of this rank's input to where they read it, by such stores. For a rank that contributes, in a
    /// call whose payload is neither tagged nor in the pool.
    #[inline(always)]
    pub(crate) fn put(&self, input: Window<'_>, stores: Stores) -> Option<()> {
        let (first, rest) = self.parts(input)?;
        let length = first.length() as u64;
        put_short(stores, first, self.payload(self.rank, 0, length)?)?;
        rest.map_or(Some(()), |rest| {
            put_short(stores, rest, self.payload(self.rank, length, rest.length() as u64)?)
        })
    }

    /// What others need of this rank's input, in the order in which it is put: the blocks for the ranks after this one, then
    /// those for the ranks before it; or all of it.
    #[inline(always)]
    pub(crate) fn parts<'w>(&self, input: Window<'w>) -> Option<(Window<'w>, Option<Window<'w>>)> {
        let Self { shape, rank, .. } = *self;
        if !shape.is_split() {
            return Some((input.sub(0, shape.block as usize)?, None));
        }
        let (before, own) = (u64::from(rank) * shape.block, shape.block);
        let after = shape.contribution().checked_sub(before)?;
        Some((input.sub((before + own) as usize, after as usize)?, input.sub(0, before as usize)))
    }

    /// This rank's own block of its input.
    #[inline]
    fn own(&self, input: Window<'c>) -> Option<Window<'c>> {
        let start = if self.shape.is_split() { u64::from(self.rank) * self.shape.block } else { 0 };
        input.sub(start as usize, self.shape.block as usize)
    }

    /// Copies what this rank has for itself to its output. For a rank that keeps a part of its input.
    #[inline]
    pub(crate) fn keep_own(&self, input: Option<Window<'c>>, output: Option<Window<'_>>) -> Option<()> {
        let Self { shape, rank, .. } = *self;
        let place = match shape.operation {
            Operation::Broadcast | Operation::Scatter => 0,
            _ => rank,
        };
        let from = self.own(input?)?;
        let to = output?.sub((u64::from(place) * shape.block) as usize, shape.block as usize)?;
        if from.as_ptr() == to.as_ptr() { Some(()) } else { copy_short(from, to) }
    }

    /// What a rank has for this one.
    #[inline]
    fn from(&self, rank: u32, input: Option<Window<'c>>) -> Option<Window<'c>> {
        let shape = self.shape;
        if rank == self.rank {
            return self.own(input?);
        }
        let position = if shape.is_split() { self.position(rank) } else { 0 };
        self.payload(rank, u64::from(position) * shape.block, shape.block)
    }

    /// Where this rank's block is among those that another one has put: they stand in the order of ranks, beginning after it.
    #[inline]
    pub(crate) const fn position(&self, rank: u32) -> u32 {
        if self.rank > rank { self.rank - rank - 1 } else { self.shape.ranks + self.rank - rank - 1 }
    }

    /// Computes this rank's output from its own input and what every other rank it needs has put; whether all of that was
    /// there. For a rank that takes anything of others, whose records it has seen.
    #[inline]
    pub(crate) fn take(&self, input: Option<Window<'c>>, output: Option<Window<'_>>) -> Option<bool> {
        let Self { shape, rank, .. } = *self;
        if shape.is_tagged() && self.is_any_streamed() {
            return self.take_tagged(input, output?);
        }
        let taken = match shape.operation {
            Operation::Allreduce | Operation::ReduceScatter | Operation::Reduce => {
                self.reduce(shape.ranks, input, output?)
            }
            Operation::Scan => self.reduce(rank + 1, input, output?),
            Operation::Exscan => self.reduce(rank, input, output?),
            Operation::Broadcast | Operation::Scatter => copy_short(self.from(shape.root, None)?, output?),
            _ => self.collect(output?),
        };
        taken.map(|()| true)
    }

    /// The other ranks' blocks, each in its place.
    fn collect(&self, output: Window<'_>) -> Option<()> {
        let block = self.shape.block;
        for rank in (0..self.shape.ranks).filter(|rank| *rank != self.rank) {
            let to = output.sub((u64::from(rank) * block) as usize, block as usize)?;
            copy_short(self.from(rank, None)?, to)?;
        }
        Some(())
    }

    /// Combines what the first `count` ranks have for this one.
    #[inline]
    fn reduce(&self, count: u32, input: Option<Window<'c>>, output: Window<'_>) -> Option<()> {
        let divisor = self.shape.divisor(count);
        let (datatype, reduction) = (self.shape.datatype, self.shape.reduction?);
        let first = self.source(0, input)?;
        // The usual numbers of ranks need no long list.
        let done = match count {
            1 => ringway_reduce::reduce(datatype, reduction, &[first], &[output], divisor),
            2 => {
                let sources = [first, self.source(1, input)?];
                ringway_reduce::reduce(datatype, reduction, &sources, &[output], divisor)
            }
            3 | 4 => {
                let last = self.source(count - 1, input)?;
                let sources = [first, self.source(1, input)?, self.source(2, input)?, last];
                let sources = sources.get(..count as usize)?;
                ringway_reduce::reduce(datatype, reduction, sources, &[output], divisor)
            }
            _ => return self.reduce_many(count, input, output),
        };
        debug_assert!(done.is_ok(), "{done:?}");
        Some(())
    }

    #[inline(never)]
    fn reduce_many(&self, count: u32, input: Option<Window<'c>>, output: Window<'_>) -> Option<()> {
        let divisor = self.shape.divisor(count);
        let (datatype, reduction) = (self.shape.datatype, self.shape.reduction?);
        let first = self.source(0, input)?;
        let mut many = [first; crate::RANKS_MAX as usize];
        let sources = many.get_mut(..count as usize)?;
        for (rank, source) in (0..).zip(&mut *sources) {
            *source = self.source(rank, input)?;
        }
        let done = ringway_reduce::reduce(datatype, reduction, sources, &[output], divisor);
        debug_assert!(done.is_ok(), "{done:?}");
        Some(())
    }

    #[inline]
    fn source(&self, rank: u32, input: Option<Window<'c>>) -> Option<Source<'c>> {
        let window = self.from(rank, input)?;
        Some(Source { window, scale: self.shape.scale(|| self.cell.scale(rank, self.sequence)) })
    }
}

/// Payloads that are copied without a kernel.
const SHORT_BYTES: usize = 64;

#[inline]
fn copy_short(from: Window<'_>, to: Window<'_>) -> Option<()> {
    put_short(Stores::Cached, from, to)
}

#[inline]
fn put_short(stores: Stores, from: Window<'_>, to: Window<'_>) -> Option<()> {
    if from.length() <= SHORT_BYTES {
        return (from.copy_to(&to) == from.length()).then_some(());
    }
    let done = ringway_reduce::copy_with(stores, from, &[to]);
    debug_assert!(done.is_ok(), "{done:?}");
    done.ok()
}
