//! Inputs whose results are exactly predictable whatever the order of combination, as the verifier of nccl-tests
//! makes them: small integers, so that every partial sum is exact in every type.

use half::{bf16, f16};
use ringway_types::{F8E4M3, F8E5M2, Operation, Reduction};

/// A type whose values can be made from and compared with small integers.
pub(crate) trait Sample: ringway_client::Element + Copy + PartialEq + 'static {
    /// Up to this number every integer is a value, or none that is not shows.
    const EXACT: u64;
    /// This integer, rounded where it is no value.
    fn of(value: i64) -> Self;
    /// `sum` divided by `ranks` as the reduction avg defines it: truncated for integers, rounded once for floats.
    fn quotient(sum: i64, ranks: i64) -> Self;
    /// The reduction premul_sum with this scalar.
    fn premul(scalar: i64) -> ringway_client::Reduce<Self>;
}

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl Sample for $type {
            const EXACT: u64 = u64::MAX;
            #[expect(clippy::allow_attributes, reason = "not every instance of this macro needs the casts below")]
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "wrapping is meant")]
            fn of(value: i64) -> Self { value as Self }
            fn quotient(sum: i64, ranks: i64) -> Self { Self::of(sum / ranks) }
            fn premul(scalar: i64) -> ringway_client::Reduce<Self> {
                ringway_client::Reduce::premul(scalar.try_into().unwrap_or_default())
            }
        }
    )* };
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($type:ty, $exact:expr, $make:expr);*) => { $(
        impl Sample for $type {
            const EXACT: u64 = $exact;
            fn of(value: i64) -> Self { $make(value as f64) }
            fn quotient(sum: i64, ranks: i64) -> Self { $make(sum as f64 / ranks as f64) }
            fn premul(scalar: i64) -> ringway_client::Reduce<Self> { ringway_client::Reduce::premul(scalar as f64) }
        }
    )* };
}
floats!(
    // A quotient of two integers below 2^24 rounds to narrower types the same through f32 as through f64.
    F8E4M3, 1 << 4, |v: f64| Self::from_f32(v as f32);
    F8E5M2, 1 << 3, |v: f64| Self::from_f32(v as f32);
    f16, 1 << 11, |v: f64| Self::from_f32(v as f32);
    bf16, 1 << 8, |v: f64| Self::from_f32(v as f32);
    f32, 1 << 24, |v: f64| v as Self;
    f64, 1 << 53, |v: f64| v
);

/// Rank `rank`'s input element `index`. Values are few and small; products stay small because at most two ranks give
/// a 2 at any index.
pub(crate) fn input<T: Sample>(reduction: Option<Reduction>, ranks: u32, rank: u32, index: u64) -> i64 {
    let (r, n) = (u64::from(rank), u64::from(ranks));
    let mixed = index.wrapping_mul(7).wrapping_add(r.wrapping_mul(5)).wrapping_add(r * r);
    let small = |limit: u64| i64::try_from(mixed % limit).unwrap_or(0);
    match reduction {
        Some(Reduction::Prod) => 1 + i64::from(index % n.max(2) == r),
        Some(Reduction::LogicalAnd | Reduction::BitAnd) => {
            if mixed.is_multiple_of(5) {
                small(3)
            } else {
                3
            }
        }
        Some(
            Reduction::Min
            | Reduction::Max
            | Reduction::BitOr
            | Reduction::BitXor
            | Reduction::LogicalOr
            | Reduction::LogicalXor,
        ) => small(100),
        // Of eight-bit floats sums must stay below 16 and 8: each rank has a share, or some have one each; premul_sum doubles.
        Some(_) if T::EXACT < 256 => match T::EXACT / (2 * n.max(1)) {
            0 if index.wrapping_add(r) % n >= T::EXACT / 2 => 0,
            share => small(share.clamp(1, 3) + 1),
        },
        // Sums must stay below 128 for i8 and 256 for bf16.
        _ if ranks <= 30 => small(4),
        _ => small(2),
    }
}

/// Rank `rank`'s scalar for premul_sum.
pub(crate) const fn scalar(rank: u32) -> i64 {
    1 + (rank % 2) as i64
}

/// The combination of the inputs of `ranks` at one index.
pub(crate) fn combined<T: Sample>(
    reduction: Reduction,
    ranks: u32,
    of: core::ops::Range<u32>,
    index: u64,
) -> T {
    let values = || of.clone().map(|r| input::<T>(Some(reduction), ranks, r, index));
    let count = i64::from(of.end.saturating_sub(of.start));
    match reduction {
        Reduction::Sum => T::of(values().sum()),
        Reduction::Prod => T::of(values().product()),
        Reduction::Min => T::of(values().min().unwrap_or(0)),
        Reduction::Max => T::of(values().max().unwrap_or(0)),
        Reduction::Avg => T::quotient(values().sum(), count.max(1)),
        Reduction::PremulSum => T::of(of.clone().zip(values()).map(|(r, v)| v * scalar(r)).sum()),
        Reduction::LogicalAnd => T::of(i64::from(values().all(|v| v != 0))),
        Reduction::LogicalOr => T::of(i64::from(values().any(|v| v != 0))),
        Reduction::LogicalXor => T::of(i64::from(values().filter(|v| *v != 0).count() % 2 == 1)),
        Reduction::BitAnd => T::of(values().fold(-1, |a, v| a & v)),
        Reduction::BitOr => T::of(values().fold(0, |a, v| a | v)),
        Reduction::BitXor => T::of(values().fold(0, |a, v| a ^ v)),
    }
}

/// One call, as the oracle needs to know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) operation: Operation,
    pub(crate) reduction: Option<Reduction>,
    pub(crate) ranks: u32,
    pub(crate) root: u32,
    /// Elements, as the operation counts them; for operations with counts the smallest block's.
    pub(crate) count: u64,
}

impl Case {
    /// Elements of rank `rank`'s block, for operations with a block for each rank.
    pub(crate) fn block(&self, rank: u32) -> u64 {
        self.count + if self.operation.has_counts() { u64::from(rank % 3) } else { 0 }
    }

    /// Elements that rank `from` sends to rank `to` in an all-to-all.
    pub(crate) fn pair(&self, from: u32, to: u32) -> u64 {
        self.count + if self.operation.has_counts() { u64::from((2 * from + to) % 3) } else { 0 }
    }

    /// The elements before rank `rank`'s block.
    fn start(&self, rank: u32) -> u64 {
        (0..rank).map(|r| self.block(r)).sum()
    }

    /// The rank whose block has element `index`, and where in the block, for blocks of these lengths.
    fn locate(&self, mut index: u64, length: impl Fn(u32) -> u64) -> (u32, u64) {
        for rank in 0..self.ranks {
            if index < length(rank) {
                return (rank, index);
            }
            index -= length(rank);
        }
        (self.ranks, index)
    }

    /// Element `index` of rank `rank`'s input.
    pub(crate) fn input<T: Sample>(&self, rank: u32, index: u64) -> T {
        T::of(input::<T>(self.reduction, self.ranks, rank, index))
    }

    /// Element `index` of rank `rank`'s output; `None` where the output is not written.
    pub(crate) fn output<T: Sample>(&self, rank: u32, index: u64) -> Option<T> {
        let reduced =
            |upto: u32, i: u64| combined(self.reduction.unwrap_or(Reduction::Sum), self.ranks, 0..upto, i);
        let gathered = |i: u64| {
            let (source, at) = self.locate(i, |r| self.block(r));
            self.input(source, at)
        };
        let at_root = rank == self.root;
        match self.operation {
            Operation::Allreduce => Some(reduced(self.ranks, index)),
            Operation::Reduce => at_root.then(|| reduced(self.ranks, index)),
            Operation::Broadcast => Some(self.input(self.root, index)),
            Operation::AllGather | Operation::AllGatherV => Some(gathered(index)),
            Operation::Gather | Operation::GatherV => at_root.then(|| gathered(index)),
            Operation::ReduceScatter | Operation::ReduceScatterV => {
                Some(reduced(self.ranks, self.start(rank) + index))
            }
            Operation::Scatter | Operation::ScatterV => Some(self.input(self.root, self.start(rank) + index)),
            Operation::AllToAll | Operation::AllToAllV => {
                let (source, at) = self.locate(index, |r| self.pair(r, rank));
                let before: u64 = (0..rank).map(|r| self.pair(source, r)).sum();
                Some(self.input(source, before + at))
            }
            Operation::Scan => Some(reduced(rank + 1, index)),
            Operation::Exscan => (rank > 0).then(|| reduced(rank, index)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partial_sum_is_exact_in_the_narrowest_types() {
        for ranks in 1..=64 {
            for index in 0..50 {
                let sum: i64 = (0..ranks)
                    .map(|r| input::<bf16>(Some(Reduction::PremulSum), ranks, r, index) * scalar(r))
                    .sum();
                assert!(ranks > 30 || sum < 256, "{ranks} ranks sum to {sum}");
                let product: i64 =
                    (0..ranks).map(|r| input::<bf16>(Some(Reduction::Prod), ranks, r, index)).product();
                assert!(product <= 4);
            }
        }
    }

    #[test]
    fn every_partial_sum_is_exact_in_eight_bits_and_says_something() {
        fn check<T: Sample>() {
            for ranks in 1..=64 {
                let mut seen = std::collections::BTreeSet::new();
                for index in 0..500 {
                    let of = |r| input::<T>(Some(Reduction::PremulSum), ranks, r, index) * scalar(r);
                    let sum = (0..ranks).map(of).sum::<i64>();
                    assert!(sum.unsigned_abs() <= T::EXACT, "{ranks} ranks sum to {sum}");
                    seen.insert(sum);
                }
                assert!(seen.len() > 1, "{ranks} ranks always sum to {seen:?}");
            }
        }
        check::<F8E4M3>();
        check::<F8E5M2>();
    }

    #[test]
    fn averages_truncate_or_round_once() {
        assert_eq!(i32::quotient(-7, 2), -3);
        assert_eq!(f32::quotient(7, 2).to_bits(), 3.5_f32.to_bits());
    }
}
