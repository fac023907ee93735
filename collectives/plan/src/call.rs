//! What is asked for, as one node sees it.

use ringway_types::Operation;

use crate::Layout;

/// One collective call: what every rank agrees on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What to do. Never a point-to-point operation.
    pub operation: Operation,
    /// Bytes of one element, 1 to 8.
    pub element: u32,
    /// Elements: of the whole vector for allreduce, reduce, broadcast, scan and exscan; of one rank's block for
    /// all_gather, reduce_scatter, gather and scatter; of one pair's block for all_to_all. Unused where the
    /// operation carries counts, and for barrier.
    pub count: u64,
    /// The root, for operations that have one.
    pub root: u32,
}

/// Whether an operation is on one vector, of which blocks are parts: else every rank, or pair of ranks, has a block.
pub(crate) const fn is_on_vectors(operation: Operation) -> bool {
    use Operation as O;
    matches!(operation, O::Allreduce | O::Reduce | O::Broadcast | O::Scan | O::Exscan)
}

/// Blocks of elements in a buffer, one for each rank, one behind the other.
#[derive(Debug, Clone, Copy)]
pub enum Blocks<'a> {
    /// Every block has [`Call::count`] elements.
    Uniform,
    /// For all_gather_v, reduce_scatter_v, gather_v and scatter_v: `starts[r]..starts[r + 1]` are rank `r`'s
    /// elements; `ranks + 1` entries. A node that is not the root's knows only the lengths of its own ranks'
    /// blocks in gather_v and scatter_v: others are empty there.
    PerRank {
        /// Prefix sums of the counts.
        starts: &'a [u64],
    },
    /// For all_to_all_v: row `l` (of `ranks + 1` entries) belongs to the node's `l`-th local rank.
    PerPair {
        /// Prefix sums of what local rank `l` sends to each rank.
        sends: &'a [u64],
        /// Prefix sums of what local rank `l` receives from each rank.
        receives: &'a [u64],
    },
}

/// A call as one node sees it: everything `Plan` needs to compute a step.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Who is where.
    pub layout: &'a Layout,
    /// This node.
    pub node: u32,
    /// The call.
    pub call: Call,
    /// The blocks.
    pub blocks: Blocks<'a>,
    /// Which local ranks gave the same memory as input and output, in the operation's in-place form: one entry for
    /// each. Changes local steps only, never what is sent.
    pub in_place: &'a [bool],
}

impl View<'_> {
    /// The bytes `start..start + length` of rank `rank`'s block in a buffer of uniform or per-rank blocks.
    #[must_use]
    pub fn block(&self, rank: u32) -> (u64, u64) {
        let element = u64::from(self.call.element);
        match self.blocks {
            Blocks::Uniform => {
                let length = self.call.count.saturating_mul(element);
                (length.saturating_mul(u64::from(rank)), length)
            }
            Blocks::PerRank { starts } => range(starts, rank as usize, element),
            Blocks::PerPair { .. } => (0, 0),
        }
    }

    /// The bytes that local rank `local` (an index among this node's ranks) sends to `rank`, in its input.
    #[must_use]
    pub fn sends(&self, local: u32, rank: u32) -> (u64, u64) {
        self.pair(local, rank, |sends, _| sends)
    }

    /// The bytes that local rank `local` receives from `rank`, in its output.
    #[must_use]
    pub fn receives(&self, local: u32, rank: u32) -> (u64, u64) {
        self.pair(local, rank, |_, receives| receives)
    }

    fn pair(
        &self,
        local: u32,
        rank: u32,
        which: for<'b> fn(&'b [u64], &'b [u64]) -> &'b [u64],
    ) -> (u64, u64) {
        match self.blocks {
            Blocks::PerPair { sends, receives } => {
                let row = (self.layout.ranks() as usize).saturating_add(1);
                let at = (local as usize).saturating_mul(row).saturating_add(rank as usize);
                range(which(sends, receives), at, u64::from(self.call.element))
            }
            _ => self.block(rank),
        }
    }
}

fn range(starts: &[u64], at: usize, element: u64) -> (u64, u64) {
    let start = starts.get(at).copied().unwrap_or(0);
    let end = starts.get(at.saturating_add(1)).copied().unwrap_or(start);
    (start.saturating_mul(element), end.saturating_sub(start).saturating_mul(element))
}
