//! How many bytes an operation reads and writes.

use ringway_types::Operation;

/// Bytes of one rank's input and output; `None` where the rank has no such buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// What is read.
    pub input: Option<u64>,
    /// What is written.
    pub output: Option<u64>,
}

/// Where one rank stands in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The rank.
    pub rank: u32,
    /// Ranks in the communicator.
    pub size: u32,
    /// The root, for operations that have one.
    pub root: u32,
}

/// How many counts the operation carries at this rank.
#[must_use]
#[inline]
pub fn counts_needed(operation: Operation, caller: Caller) -> usize {
    let size = caller.size as usize;
    match operation {
        Operation::AllGatherV | Operation::ReduceScatterV => size,
        Operation::GatherV | Operation::ScatterV if caller.rank == caller.root => size,
        Operation::GatherV | Operation::ScatterV => 1,
        Operation::AllToAllV => size.saturating_mul(2),
        _ => 0,
    }
}

/// The bytes one rank reads and writes. `count` is in elements: of the whole vector for allreduce, reduce, broadcast,
/// scan, exscan, send and receive; of one rank's block for all_gather, reduce_scatter, gather, scatter and
/// all_to_all; unused where there are `counts`. Counts are as [`counts_needed`] says: all_to_all_v has those of what is
/// sent to each rank first, then those of what each rank sends.
///
/// `None` when the sizes overflow or there are not [`counts_needed`] counts.
#[must_use]
#[inline]
pub fn extent(
    operation: Operation,
    caller: Caller,
    element: u64,
    count: u64,
    counts: &[u64],
) -> Option<Extent> {
    let Caller { rank, size, root } = caller;
    if counts.len() != counts_needed(operation, caller) {
        return None;
    }
    let bytes = |elements: u64| elements.checked_mul(element).filter(|b| i64::try_from(*b).is_ok());
    let sum = |list: &[u64]| bytes(list.iter().try_fold(0_u64, |a, b| a.checked_add(*b))?);
    let own = |list: &[u64]| bytes(*list.get(if list.len() == 1 { 0 } else { rank as usize })?);
    let one = bytes(count)?;
    let all = bytes(count.checked_mul(u64::from(size))?);
    let is_root = rank == root;
    let at_root = |value: Option<u64>| if is_root { value.map(Some) } else { Some(None) };
    let (input, output) = match operation {
        Operation::Allreduce | Operation::Scan | Operation::Exscan => (Some(one), Some(one)),
        Operation::Reduce => (Some(one), is_root.then_some(one)),
        Operation::Broadcast => (is_root.then_some(one), Some(one)),
        Operation::AllGather => (Some(one), Some(all?)),
        Operation::AllGatherV => (Some(own(counts)?), Some(sum(counts)?)),
        Operation::ReduceScatter => (Some(all?), Some(one)),
        Operation::ReduceScatterV => (Some(sum(counts)?), Some(own(counts)?)),
        Operation::Gather => (Some(one), at_root(all)?),
        Operation::GatherV => (Some(own(counts)?), at_root(sum(counts))?),
        Operation::Scatter => (at_root(all)?, Some(one)),
        Operation::ScatterV => (at_root(sum(counts))?, Some(own(counts)?)),
        Operation::AllToAll => (Some(all?), Some(all?)),
        Operation::AllToAllV => {
            let (sends, receives) = counts.split_at_checked(size as usize)?;
            (Some(sum(sends)?), Some(sum(receives)?))
        }
        Operation::Barrier => (None, None),
        Operation::Send => (Some(one), None),
        Operation::Receive => (None, Some(one)),
    };
    Some(Extent { input, output })
}

/// Where the input must start in the output (or, for the second of the two, the output in the input) for the call to
/// be in place, in bytes: `(input_in_output, output_in_input)`. `None` when the operation has no in-place form at this
/// rank.
#[must_use]
#[inline]
pub fn in_place_offset(
    operation: Operation,
    caller: Caller,
    element: u64,
    count: u64,
    counts: &[u64],
) -> Option<InPlace> {
    let Caller { rank, size: _, root } = caller;
    let before = |list: &[u64]| {
        let elements = list.get(..rank as usize)?.iter().try_fold(0_u64, |a, b| a.checked_add(*b))?;
        elements.checked_mul(element)
    };
    let uniform = u64::from(rank).checked_mul(count)?.checked_mul(element);
    match operation {
        Operation::Allreduce | Operation::Scan | Operation::Exscan | Operation::AllToAll => {
            Some(InPlace::InputInOutput(0))
        }
        Operation::Reduce | Operation::Broadcast if rank == root => Some(InPlace::InputInOutput(0)),
        Operation::AllGather => Some(InPlace::InputInOutput(uniform?)),
        Operation::AllGatherV => Some(InPlace::InputInOutput(before(counts)?)),
        Operation::Gather if rank == root => Some(InPlace::InputInOutput(uniform?)),
        Operation::GatherV if rank == root => Some(InPlace::InputInOutput(before(counts)?)),
        Operation::ReduceScatter => Some(InPlace::OutputInInput(uniform?)),
        Operation::ReduceScatterV => Some(InPlace::OutputInInput(before(counts)?)),
        Operation::Scatter if rank == root => Some(InPlace::OutputInInput(uniform?)),
        Operation::ScatterV if rank == root => Some(InPlace::OutputInInput(before(counts)?)),
        _ => None,
    }
}

/// An operation's in-place form: which buffer lies in which, and how far from its start in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlace {
    /// The input starts this far into the output.
    InputInOutput(u64),
    /// The output starts this far into the input.
    OutputInInput(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Caller = Caller { rank: 1, size: 3, root: 0 };

    #[test]
    fn extents_follow_the_operation() {
        let of = |operation, counts: &[u64]| extent(operation, AT, 4, 10, counts);
        assert_eq!(of(Operation::Allreduce, &[]), Some(Extent { input: Some(40), output: Some(40) }));
        assert_eq!(of(Operation::Reduce, &[]), Some(Extent { input: Some(40), output: None }));
        assert_eq!(of(Operation::AllGather, &[]), Some(Extent { input: Some(40), output: Some(120) }));
        assert_eq!(of(Operation::AllGatherV, &[1, 2, 3]), Some(Extent { input: Some(8), output: Some(24) }));
        assert_eq!(of(Operation::GatherV, &[2]), Some(Extent { input: Some(8), output: None }));
        assert_eq!(
            of(Operation::AllToAllV, &[1, 2, 3, 4, 5, 6]),
            Some(Extent { input: Some(24), output: Some(60) })
        );
        assert_eq!(of(Operation::AllToAllV, &[1, 2, 3]), None);
        assert_eq!(of(Operation::Barrier, &[]), Some(Extent { input: None, output: None }));
    }

    #[test]
    fn overflow_is_refused() {
        assert_eq!(extent(Operation::Allreduce, AT, 8, u64::MAX / 8 + 1, &[]), None);
        assert_eq!(extent(Operation::AllGather, AT, 1, u64::MAX / 2, &[]), None);
        assert_eq!(extent(Operation::AllGatherV, AT, 1, 0, &[u64::MAX, 1, 0]), None);
    }
}
