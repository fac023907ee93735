//! The words every layer shares: what is computed ([`Operation`]), on what ([`DataType`]) and how values
//! combine ([`Reduction`]), with the one table that says which pairs are defined ([`DataType::supports`]).
//!
//! The numeric codes are part of the client and peer protocols: they never change meaning.
#![no_std]
#![forbid(unsafe_code)]

mod f8;

use serde::{Deserialize, Serialize};

pub use f8::{F8E4M3, F8E5M2};

/// Declares an enum whose variants have fixed one-byte codes and lower-case names.
macro_rules! coded {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $code,)* }

        impl $name {
            /// Every value, in the order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code used in shared memory and on the wire.
            #[inline]
            #[must_use]
            pub const fn code(self) -> u8 { self as u8 }

            /// The value with this code, if there is one.
            #[inline]
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// The name used in configuration, on the command line and in messages.
            #[inline]
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The value with this name, if there is one.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { f.pad(self.name()) }
        }
    };
}

coded! {
    /// The type of one element. Multi-byte types are in the host's byte order, which is little-endian on every
    /// supported host.
    DataType {
        /// Signed 8-bit integer.
        I8 = 0, "i8";
        /// Unsigned 8-bit integer, and the type of plain bytes.
        U8 = 1, "u8";
        /// Signed 32-bit integer.
        I32 = 2, "i32";
        /// Unsigned 32-bit integer.
        U32 = 3, "u32";
        /// Signed 64-bit integer.
        I64 = 4, "i64";
        /// Unsigned 64-bit integer.
        U64 = 5, "u64";
        /// IEEE 754 binary16.
        F16 = 6, "f16";
        /// bfloat16: the upper half of a binary32.
        Bf16 = 7, "bf16";
        /// IEEE 754 binary32.
        F32 = 8, "f32";
        /// IEEE 754 binary64.
        F64 = 9, "f64";
        /// E4M3 of OFP8: no infinity, up to 448. See [`F8E4M3`](struct@F8E4M3).
        F8E4M3 = 10, "f8e4m3";
        /// E5M2 of OFP8: with infinities, up to 57344. See [`F8E5M2`](struct@F8E5M2).
        F8E5M2 = 11, "f8e5m2";
    }
}

coded! {
    /// How the values of several ranks become one.
    Reduction {
        /// Sum; integers wrap.
        Sum = 0, "sum";
        /// Product; integers wrap.
        Prod = 1, "prod";
        /// Minimum; for floats IEEE 754-2019 `minimum`: a NaN wins and -0 is below +0.
        Min = 2, "min";
        /// Maximum; for floats IEEE 754-2019 `maximum`.
        Max = 3, "max";
        /// Sum divided by the number of ranks; integer results truncate toward zero.
        Avg = 4, "avg";
        /// Each rank's values times that rank's own scalar, then the sum.
        PremulSum = 5, "premul_sum";
        /// Logical and: 1 where every value is non-zero, else 0.
        LogicalAnd = 6, "land";
        /// Logical or: 1 where any value is non-zero, else 0.
        LogicalOr = 7, "lor";
        /// Logical exclusive or: 1 where an odd number of values is non-zero, else 0.
        LogicalXor = 8, "lxor";
        /// Bitwise and; integers only.
        BitAnd = 9, "band";
        /// Bitwise or; integers only.
        BitOr = 10, "bor";
        /// Bitwise exclusive or; integers only.
        BitXor = 11, "bxor";
    }
}

coded! {
    /// What a rank asks for. The collective ones are called by every rank of a communicator in the same order.
    Operation {
        /// Combine every rank's input; every rank gets the result.
        Allreduce = 1, "allreduce";
        /// Combine every rank's input; the root gets the result.
        Reduce = 2, "reduce";
        /// The root's input to every rank.
        Broadcast = 3, "broadcast";
        /// Every rank's input, in rank order, to every rank.
        AllGather = 4, "all_gather";
        /// As [`Operation::AllGather`] with a count for each rank.
        AllGatherV = 5, "all_gather_v";
        /// Combine every rank's input; rank `i` gets the `i`-th block of the result.
        ReduceScatter = 6, "reduce_scatter";
        /// As [`Operation::ReduceScatter`] with a count for each rank.
        ReduceScatterV = 7, "reduce_scatter_v";
        /// Every rank's input, in rank order, to the root.
        Gather = 8, "gather";
        /// As [`Operation::Gather`] with a count for each rank.
        GatherV = 9, "gather_v";
        /// The `i`-th block of the root's input to rank `i`.
        Scatter = 10, "scatter";
        /// As [`Operation::Scatter`] with a count for each rank.
        ScatterV = 11, "scatter_v";
        /// The `j`-th block of rank `i`'s input becomes the `i`-th block of rank `j`'s output.
        AllToAll = 12, "all_to_all";
        /// As [`Operation::AllToAll`] with a count for each pair.
        AllToAllV = 13, "all_to_all_v";
        /// Completes when every rank has called it.
        Barrier = 14, "barrier";
        /// Rank `r` gets the combination of the inputs of ranks `0..=r`.
        Scan = 15, "scan";
        /// Rank `r` gets the combination of the inputs of ranks `0..r`; rank 0's output is not touched.
        Exscan = 16, "exscan";
        /// A message to one rank.
        Send = 17, "send";
        /// A message from one rank, or from any.
        Receive = 18, "recv";
    }
}

impl DataType {
    /// Bytes of one element.
    #[inline]
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The bits of the number 1, as far as an element has them.
    #[inline]
    #[must_use]
    pub const fn one_bits(self) -> u64 {
        match self {
            Self::F8E4M3 => 0x38,
            Self::F8E5M2 => 0x3c,
            Self::F16 => 0x3c00,
            Self::Bf16 => 0x3f80,
            Self::F32 => 1_f32.to_bits() as u64,
            Self::F64 => 1_f64.to_bits(),
            Self::I8 | Self::U8 | Self::I32 | Self::U32 | Self::I64 | Self::U64 => 1,
        }
    }

    /// Whether this is a floating-point type.
    #[inline]
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64 | Self::F8E4M3 | Self::F8E5M2)
    }

    /// The type-by-reduction table: every pair is defined but the bitwise reductions of floats.
    #[inline]
    #[must_use]
    pub const fn supports(self, reduction: Reduction) -> bool {
        !(self.is_float() && reduction.is_bitwise())
    }
}

impl Reduction {
    /// Whether this works on the bits of integers.
    #[inline]
    #[must_use]
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
    }
}

impl Operation {
    /// Whether the operation combines values, so that its type and reduction matter.
    #[inline]
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Self::Allreduce
                | Self::Reduce
                | Self::ReduceScatter
                | Self::ReduceScatterV
                | Self::Scan
                | Self::Exscan
        )
    }

    /// Whether one rank, the root, has a part of its own.
    #[inline]
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(
            self,
            Self::Reduce | Self::Broadcast | Self::Gather | Self::GatherV | Self::Scatter | Self::ScatterV
        )
    }

    /// Whether the call carries a list of counts.
    #[inline]
    #[must_use]
    pub const fn has_counts(self) -> bool {
        matches!(
            self,
            Self::AllGatherV | Self::ReduceScatterV | Self::GatherV | Self::ScatterV | Self::AllToAllV
        )
    }

    /// Whether every rank of the communicator takes part; the others are messages between two ranks.
    #[inline]
    #[must_use]
    pub const fn is_collective(self) -> bool {
        !matches!(self, Self::Send | Self::Receive)
    }
}

/// One number for a list of counts that every rank must give alike: FNV-1a over 64-bit words, with the high half folded in
/// so that every count reaches every bit.
#[must_use]
pub fn digest_counts(counts: &[u64]) -> u64 {
    counts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, count| {
        let mixed = (hash ^ count).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for &t in DataType::ALL {
            assert_eq!(DataType::from_code(t.code()), Some(t));
            assert_eq!(DataType::from_name(t.name()), Some(t));
        }
        for &r in Reduction::ALL {
            assert_eq!(Reduction::from_code(r.code()), Some(r));
            assert_eq!(Reduction::from_name(r.name()), Some(r));
        }
        for &o in Operation::ALL {
            assert_eq!(Operation::from_code(o.code()), Some(o));
            assert_eq!(Operation::from_name(o.name()), Some(o));
        }
        assert_eq!(DataType::from_code(12), None);
        assert_eq!(Operation::from_code(0), None);
    }

    #[test]
    fn only_bitwise_reductions_of_floats_are_undefined() {
        let undefined = DataType::ALL
            .iter()
            .flat_map(|t| Reduction::ALL.iter().map(move |r| (*t, *r)))
            .filter(|(t, r)| !t.supports(*r))
            .count();
        assert_eq!(undefined, 6 * 3);
    }
}
