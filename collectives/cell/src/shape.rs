//! What follows from a call's signature and the number of ranks alone.

use ringway_reduce::Scalar;
use ringway_types::{DataType, Operation, Reduction};

use crate::{
    BETWEEN_TWO_BYTES, COMBINED_BY_TWO_BYTES, Call, INLINE_BYTES, NEEDED_BY_ALL_BYTES, POOLED_BYTES,
    Signature,
    tagged::{TAGGED_BYTES, TAGGED_FROM_MANY_BYTES},
};

/// A call's signature among so many ranks, its sizes checked not to overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) operation: Operation,
    pub(crate) datatype: DataType,
    pub(crate) reduction: Option<Reduction>,
    pub(crate) root: u32,
    pub(crate) ranks: u32,
    /// Bytes of one block: of the whole vector where there is one only. Zero for operations that carry counts.
    pub(crate) block: u64,
}

/// Whose records a rank needs before a small call is over for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Everybody's.
    All,
    /// That of one rank.
    One(u32),
    /// Those of the ranks below this one.
    Below(u32),
    /// Nobody's.
    Nobody,
}

impl Need {
    /// Whether that of a rank is among them.
    #[inline]
    pub(crate) const fn is_for(self, rank: u32) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == rank,
            Self::Below(end) => rank < end,
            Self::Nobody => false,
        }
    }
}

impl Shape {
    /// `None` when sizes overflow.
    pub(crate) fn of(signature: &Signature, ranks: u32) -> Option<Self> {
        let Signature { operation, datatype, reduction, root, count } = *signature;
        let counted = operation.has_counts() || operation == Operation::Barrier;
        let block = if counted { 0 } else { count.checked_mul(datatype.size() as u64)? };
        block.checked_mul(u64::from(ranks)).filter(|all| i64::try_from(*all).is_ok())?;
        (ranks > 0 && root < ranks).then_some(Self { operation, datatype, reduction, root, ranks, block })
    }

    /// As [`Shape::of`], of a call that its maker has checked.
    #[inline]
    pub(crate) fn of_call(call: &Call<'_>, ranks: u32) -> Self {
        let operation = call.operation;
        let counted = operation.has_counts() || operation == Operation::Barrier;
        let block = if counted { 0 } else { call.count.saturating_mul(call.datatype.size() as u64) };
        let root = if operation.has_root() { call.root } else { 0 };
        let reduction = call.reduction;
        Self { operation, datatype: call.datatype, reduction, root, ranks, block }
    }

    /// How many blocks a rank's input and its output have in an operation without counts.
    #[inline]
    pub(crate) fn blocks(&self, rank: u32) -> (u64, u64) {
        let ranks = u64::from(self.ranks);
        let at_root = |blocks| if rank == self.root { blocks } else { 0 };
        match self.operation {
            Operation::Allreduce | Operation::Scan | Operation::Exscan => (1, 1),
            Operation::Reduce => (1, at_root(1)),
            Operation::Broadcast => (at_root(1), 1),
            Operation::AllGather => (1, ranks),
            Operation::ReduceScatter => (ranks, 1),
            Operation::Gather => (1, at_root(ranks)),
            Operation::Scatter => (at_root(ranks), 1),
            Operation::AllToAll => (ranks, ranks),
            _ => (0, 0),
        }
    }

    /// Whether a rank's input has a block for each rank, of which it keeps its own.
    #[inline]
    pub(crate) const fn is_split(&self) -> bool {
        matches!(self.operation, Operation::ReduceScatter | Operation::Scatter | Operation::AllToAll)
    }

    /// Bytes that a rank which contributes anything does: what others need of its input.
    #[inline]
    pub(crate) fn contribution(&self) -> u64 {
        let blocks = if self.is_split() { u64::from(self.ranks) - 1 } else { 1 };
        self.block.saturating_mul(blocks)
    }

    /// Whether others need anything of this rank.
    #[inline]
    pub(crate) const fn contributes(&self, rank: u32) -> bool {
        let is_root = rank == self.root;
        match self.operation {
            _ if self.block == 0 => false,
            Operation::Broadcast | Operation::Scatter => is_root,
            Operation::Reduce | Operation::Gather => !is_root,
            _ => true,
        }
    }

    /// Whether a part of a rank's output is its own input.
    #[inline]
    pub(crate) const fn keeps(&self, rank: u32) -> bool {
        let is_root = rank == self.root;
        match self.operation {
            _ if self.block == 0 => false,
            Operation::Broadcast | Operation::Scatter | Operation::Gather => is_root,
            Operation::AllGather | Operation::AllToAll => true,
            _ => false,
        }
    }

    /// Whether a rank's output depends on what others put.
    #[inline]
    pub(crate) const fn takes(&self, rank: u32) -> bool {
        let is_root = rank == self.root;
        match self.operation {
            _ if self.block == 0 => false,
            Operation::Broadcast | Operation::Scatter => !is_root,
            Operation::Reduce | Operation::Gather => is_root,
            Operation::Exscan => rank > 0,
            _ => true,
        }
    }

    /// Whether the payload travels beside the records.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        let most = match self.operation {
            // Each byte is needed by one rank only, and nothing is computed from it.
            Operation::AllToAll => INLINE_BYTES,
            Operation::AllGather if self.ranks == 2 => INLINE_BYTES,
            Operation::Allreduce | Operation::ReduceScatter if self.ranks == 2 => COMBINED_BY_TWO_BYTES,
            Operation::Broadcast if self.ranks > 2 => POOLED_BYTES,
            // Who only gives waits for nobody, which matters the more the more ranks take.
            operation if operation.has_root() && self.ranks > 2 => INLINE_BYTES,
            operation if operation.has_root() => BETWEEN_TWO_BYTES,
            _ => NEEDED_BY_ALL_BYTES,
        };
        !self.operation.has_counts() && self.contribution() <= most as u64
    }

    /// Whether what the root takes comes from every other rank, of an operation with a root.
    pub(crate) const fn is_from_many(&self) -> bool {
        matches!(self.operation, Operation::Reduce | Operation::Gather)
    }

    /// Whether a small call's payload is in words that say to which call they belong.
    #[inline]
    pub(crate) fn is_tagged(&self) -> bool {
        let bytes = self.contribution();
        // A scalar would have to be tagged as well.
        let scaled = self.reduction == Some(Reduction::PremulSum);
        self.operation.has_root()
            && !self.operation.has_counts()
            && !scaled
            && bytes > 0
            && bytes <= if self.is_from_many() { TAGGED_FROM_MANY_BYTES } else { TAGGED_BYTES } as u64
    }

    /// Whether a small call's payload is in the pool.
    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        self.contribution() > INLINE_BYTES as u64 && self.is_small()
    }

    /// Whose records this rank needs before a small call is over for it.
    #[inline]
    pub(crate) fn need(&self, rank: u32) -> Need {
        match self.operation {
            Operation::Broadcast | Operation::Scatter if rank == self.root => Need::Nobody,
            Operation::Broadcast | Operation::Scatter => Need::One(self.root),
            Operation::Reduce | Operation::Gather if rank != self.root => Need::Nobody,
            Operation::Scan | Operation::Exscan => Need::Below(rank),
            _ => Need::All,
        }
    }

    /// Elements' divisor of an average over so many ranks.
    #[inline]
    pub(crate) fn divisor(&self, ranks: u32) -> Option<u32> {
        (self.reduction == Some(Reduction::Avg)).then_some(ranks)
    }

    /// What a rank's values are multiplied by first, of the bits that it gave.
    #[inline]
    pub(crate) fn scale(&self, bits: impl FnOnce() -> u64) -> Option<Scalar> {
        let scaled = self.reduction == Some(Reduction::PremulSum);
        scaled.then(|| Scalar::from_bytes(bits().to_le_bytes()))
    }

    /// Whether a staged rank's input and output lie at the same place of its staging memory: what is there is a copy, and
    /// these operations have an in-place form.
    pub(crate) fn shares_staging(&self) -> bool {
        matches!(
            self.operation,
            Operation::Allreduce
                | Operation::Reduce
                | Operation::Broadcast
                | Operation::Scan
                | Operation::Exscan
        )
    }
}
