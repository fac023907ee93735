//! Small calls: every rank computes its own result from what all have published beside their records.

use ringway_mem::Window;
use ringway_reduce::{Scalar, Source};
use ringway_types::{Operation, Reduction};

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
    /// A part of what a rank contributes.
    #[inline]
    fn payload(&self, rank: u32, start: u64, length: u64) -> Option<Window<'c>> {
        let whole = self.shape.contribution_of(rank) as usize;
        let at = self.cell.payload(rank, self.sequence, whole);
        self.cell.words.window(at, whole)?.sub(start as usize, length as usize)
    }

    /// Copies this rank's input to where others read it.
    #[inline]
    pub(crate) fn put(&self, input: Option<Window<'_>>) -> Option<()> {
        let bytes = self.shape.contribution_of(self.rank);
        if bytes == 0 {
            return Some(());
        }
        let input = input?;
        let to = self.payload(self.rank, 0, bytes)?;
        copy_short(input, to)
    }

    /// Computes this rank's output from what every rank it needs has put.
    #[inline]
    pub(crate) fn take(&self, output: Option<Window<'_>>) -> Option<()> {
        let Self { shape, rank, .. } = *self;
        let block = shape.block;
        let is_root = rank == shape.root;
        if block == 0 {
            return Some(());
        }
        match shape.operation {
            Operation::Allreduce => self.reduce(0..shape.ranks, 0, output?),
            Operation::Reduce if is_root => self.reduce(0..shape.ranks, 0, output?),
            Operation::ReduceScatter => self.reduce(0..shape.ranks, u64::from(rank) * block, output?),
            Operation::Scan => self.reduce(0..rank + 1, 0, output?),
            Operation::Exscan if rank > 0 => self.reduce(0..rank, 0, output?),
            Operation::Broadcast => copy_short(self.payload(shape.root, 0, block)?, output?),
            Operation::Scatter => {
                copy_short(self.payload(shape.root, u64::from(rank) * block, block)?, output?)
            }
            Operation::Gather if is_root => self.collect(0, output?),
            Operation::AllGather => self.collect(0, output?),
            Operation::AllToAll => self.collect(u64::from(rank) * block, output?),
            _ => Some(()),
        }
    }

    /// The ranks' blocks, one after the other.
    fn collect(&self, start: u64, output: Window<'_>) -> Option<()> {
        let block = self.shape.block;
        for rank in 0..self.shape.ranks {
            let to = output.sub((u64::from(rank) * block) as usize, block as usize)?;
            copy_short(self.payload(rank, start, block)?, to)?;
        }
        Some(())
    }

    #[inline]
    fn reduce(&self, ranks: core::ops::Range<u32>, start: u64, output: Window<'_>) -> Option<()> {
        let count = ranks.len();
        let divisor = self.shape.divisor(ranks.end);
        let (datatype, reduction) = (self.shape.datatype, self.shape.reduction?);
        let first = self.source(0, start)?;
        // The usual numbers of ranks need no long list.
        let done = match count {
            1 => ringway_reduce::reduce(datatype, reduction, &[first], &[output], divisor),
            2 => {
                let sources = [first, self.source(1, start)?];
                ringway_reduce::reduce(datatype, reduction, &sources, &[output], divisor)
            }
            3 | 4 => {
                let last = self.source(ranks.end - 1, start)?;
                let sources = [first, self.source(1, start)?, self.source(2, start)?, last];
                ringway_reduce::reduce(datatype, reduction, sources.get(..count)?, &[output], divisor)
            }
            _ => return self.reduce_many(ranks, start, output),
        };
        debug_assert!(done.is_ok(), "{done:?}");
        Some(())
    }

    #[inline(never)]
    fn reduce_many(&self, ranks: core::ops::Range<u32>, start: u64, output: Window<'_>) -> Option<()> {
        let count = ranks.len();
        let divisor = self.shape.divisor(ranks.end);
        let (datatype, reduction) = (self.shape.datatype, self.shape.reduction?);
        let first = self.source(0, start)?;
        let mut many = [first; crate::RANKS_MAX as usize];
        let sources = many.get_mut(..count)?;
        for (rank, source) in (0..).zip(&mut *sources) {
            *source = self.source(rank, start)?;
        }
        let done = ringway_reduce::reduce(datatype, reduction, sources, &[output], divisor);
        debug_assert!(done.is_ok(), "{done:?}");
        Some(())
    }

    #[inline]
    fn source(&self, rank: u32, start: u64) -> Option<Source<'c>> {
        let window = self.payload(rank, start, self.shape.block)?;
        let scaled = self.shape.reduction == Some(Reduction::PremulSum);
        let scale = scaled.then(|| Scalar::from_bytes(self.cell.scale(rank, self.sequence).to_le_bytes()));
        Some(Source { window, scale })
    }
}

/// Payloads that are copied without a kernel.
const SHORT_BYTES: usize = 64;

#[inline]
fn copy_short(from: Window<'_>, to: Window<'_>) -> Option<()> {
    if from.length() <= SHORT_BYTES {
        return (from.copy_to(&to) == from.length()).then_some(());
    }
    let done = ringway_reduce::copy(from, &[to]);
    debug_assert!(done.is_ok(), "{done:?}");
    done.ok()
}
