//! Counts of the operations that carry them, and how long every rank's buffers are.

use ringway_types::Operation;

use crate::{
    cell::{Cell, Contradiction},
    shape::Shape,
};

/// The counts of one call, as sums of those before: `row` 0 for operations whose blocks are the same for all; for
/// all_to_all_v a row for each rank, of what it sends and of what it receives. All in elements.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    sends: Vec<u64>,
    receives: Vec<u64>,
    columns: usize,
}

impl Tables {
    /// Reads the counts that ranks published, those of whom `present` is true; the first contradiction between them.
    pub(crate) fn fill(
        &mut self,
        cell: &Cell,
        sequence: u64,
        shape: &Shape,
        present: impl Fn(u32) -> bool,
    ) -> Result<(), Contradiction> {
        let ranks = shape.ranks as usize;
        let rows = if shape.operation == Operation::AllToAllV { ranks } else { 1 };
        self.columns = ranks + 1;
        for table in [&mut self.sends, &mut self.receives] {
            table.clear();
            table.resize(rows * self.columns, 0);
        }
        let found = match shape.operation {
            Operation::AllToAllV => self.fill_pairs(cell, sequence, shape, present),
            Operation::GatherV | Operation::ScatterV => self.fill_rooted(cell, sequence, shape, present),
            _ => {
                if let Some(rank) = (0..shape.ranks).find(|rank| present(*rank)) {
                    cell.counts(rank, sequence, self.sends.get_mut(..ranks).unwrap_or_default());
                }
                Ok(())
            }
        };
        self.sends.chunks_exact_mut(self.columns).for_each(prefix);
        self.receives.chunks_exact_mut(self.columns).for_each(prefix);
        found
    }

    fn fill_pairs(
        &mut self,
        cell: &Cell,
        sequence: u64,
        shape: &Shape,
        present: impl Fn(u32) -> bool,
    ) -> Result<(), Contradiction> {
        let (ranks, columns) = (shape.ranks as usize, self.columns);
        let mut both = [0; crate::INLINE_BYTES / 8];
        for rank in (0..shape.ranks).filter(|rank| present(*rank)) {
            let counts = both.get_mut(..2 * ranks).unwrap_or_default();
            cell.counts(rank, sequence, counts);
            let (sends, receives) = counts.split_at(ranks);
            let row = rank as usize * columns..rank as usize * columns + ranks;
            if let (Some(into), Some(from)) = (self.sends.get_mut(row.clone()), self.receives.get_mut(row)) {
                into.copy_from_slice(sends);
                from.copy_from_slice(receives);
            }
        }
        let at = |table: &[u64], row: u32, column: u32| {
            table.get(row as usize * columns + column as usize).copied().unwrap_or(0)
        };
        for sender in (0..shape.ranks).filter(|rank| present(*rank)) {
            for receiver in (0..shape.ranks).filter(|rank| present(*rank)) {
                let (sent, expected) =
                    (at(&self.sends, sender, receiver), at(&self.receives, receiver, sender));
                agree((sender, receiver), sent, expected, shape)?;
            }
        }
        Ok(())
    }

    fn fill_rooted(
        &mut self,
        cell: &Cell,
        sequence: u64,
        shape: &Shape,
        present: impl Fn(u32) -> bool,
    ) -> Result<(), Contradiction> {
        let root = shape.root;
        if !present(root) {
            return Ok(());
        }
        cell.counts(root, sequence, self.sends.get_mut(..shape.ranks as usize).unwrap_or_default());
        for rank in (0..shape.ranks).filter(|rank| *rank != root && present(*rank)) {
            let mut own = [0];
            cell.counts(rank, sequence, &mut own);
            let ([own], roots) = (own, self.sends.get(rank as usize).copied().unwrap_or(0));
            if shape.operation == Operation::GatherV {
                agree((rank, root), own, roots, shape)?;
            } else {
                agree((root, rank), roots, own, shape)?;
            }
        }
        Ok(())
    }

    fn at(table: &[u64], columns: usize, row: u32, column: u32) -> u64 {
        table.get(row as usize * columns + column as usize).copied().unwrap_or(0)
    }

    /// Elements before the block for `column` in what `row` sends, and the block's elements.
    pub(crate) fn sent(&self, row: u32, column: u32) -> (u64, u64) {
        let start = Self::at(&self.sends, self.columns, row, column);
        (start, Self::at(&self.sends, self.columns, row, column + 1).saturating_sub(start))
    }

    /// As [`Tables::sent`], of what `row` receives from `column`.
    pub(crate) fn received(&self, row: u32, column: u32) -> (u64, u64) {
        let start = Self::at(&self.receives, self.columns, row, column);
        (start, Self::at(&self.receives, self.columns, row, column + 1).saturating_sub(start))
    }

    /// Elements of a row of what is sent, and of what is received.
    pub(crate) fn totals(&self, row: u32) -> (u64, u64) {
        let last = u32::try_from(self.columns.saturating_sub(1)).unwrap_or(0);
        (Self::at(&self.sends, self.columns, row, last), Self::at(&self.receives, self.columns, row, last))
    }
}

fn agree(
    (sender, receiver): (u32, u32),
    sent: u64,
    expected: u64,
    shape: &Shape,
) -> Result<(), Contradiction> {
    if sent == expected {
        return Ok(());
    }
    let element = shape.datatype.size() as u64;
    let (sent, expected) = (sent.saturating_mul(element), expected.saturating_mul(element));
    Err(Contradiction::Counts { sender, receiver, sent, expected })
}

/// Counts to sums of those before, in place; the last entry becomes the total.
fn prefix(row: &mut [u64]) {
    let mut sum = 0_u64;
    for entry in row {
        let count = core::mem::replace(entry, sum);
        sum = sum.saturating_add(count);
    }
}

/// The first contradiction between the counts of a call, of the ranks that have made it.
pub(crate) fn disagreement(cell: &Cell, sequence: u64, shape: &Shape) -> Option<Contradiction> {
    if !shape.operation.has_counts() {
        return None;
    }
    let present = |rank| cell.agreement(rank, sequence).is_some();
    Tables::default().fill(cell, sequence, shape, present).err()
}

impl Shape {
    /// Bytes of a rank's input and output; `None` where sizes overflow.
    pub(crate) fn extents(&self, rank: u32, tables: &Tables) -> Option<(u64, u64)> {
        let element = self.datatype.size() as u64;
        let bytes = |elements: u64| elements.checked_mul(element);
        let is_root = rank == self.root;
        let at_root = |bytes| if is_root { bytes } else { 0 };
        if !self.operation.has_counts() {
            let (input, output) = self.blocks(rank);
            return Some((input.checked_mul(self.block)?, output.checked_mul(self.block)?));
        }
        let (total, own) = (bytes(tables.totals(0).0)?, bytes(tables.sent(0, rank).1)?);
        Some(match self.operation {
            Operation::AllGatherV => (own, total),
            Operation::ReduceScatterV => (total, own),
            Operation::GatherV => (own, at_root(total)),
            Operation::ScatterV => (at_root(total), own),
            _ => {
                let (sent, received) = tables.totals(rank);
                (bytes(sent)?, bytes(received)?)
            }
        })
    }
}
