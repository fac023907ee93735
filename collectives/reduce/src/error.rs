//! Why a request was refused. Nothing has been written when one of these is returned.

use ringway_types::{DataType, Reduction};
use thiserror::Error;

/// Why [`crate::reduce`] or [`crate::scan`] refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReduceError {
    /// The type-by-reduction table has no such pair.
    #[error("{reduction} of {datatype} is not defined: bitwise reductions need an integer type")]
    Unsupported {
        /// The type asked for.
        datatype: DataType,
        /// The reduction asked for.
        reduction: Reduction,
    },
    /// There is nothing to combine.
    #[error("a reduction needs at least one source, none was given")]
    NoSource,
    /// Two windows differ in length.
    #[error("every window of one reduction has the same length: expected {expected} bytes, found {found}")]
    LengthMismatch {
        /// The bytes of the first window.
        expected: usize,
        /// The bytes of the one that differs.
        found: usize,
    },
    /// The windows end inside an element.
    #[error("{length} bytes are not a whole number of elements of {datatype}, which are {} bytes", datatype.size())]
    PartialElement {
        /// The type asked for.
        datatype: DataType,
        /// The bytes of every window.
        length: usize,
    },
    /// A window to write to is mapped for reading only.
    #[error("a destination is read-only: map it for writing")]
    ReadOnly,
    /// A scale was given for a reduction that is no sum.
    #[error("{reduction} takes no scale: only sum, avg and premul_sum multiply their inputs first")]
    ScaleRefused {
        /// The reduction asked for.
        reduction: Reduction,
    },
    /// A divisor was given for a reduction that is no sum.
    #[error("{reduction} takes no divisor: only sum, avg and premul_sum can be divided")]
    DivisorRefused {
        /// The reduction asked for.
        reduction: Reduction,
    },
    /// A result would be divided by zero ranks, or by more than can be counted.
    #[error("the number of ranks to divide by must be between 1 and 4294967295")]
    BadDivisor,
}

/// Why [`crate::copy`] or [`crate::swap`] refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CopyError {
    /// Two windows differ in length.
    #[error("every window of one copy has the same length: expected {expected} bytes, found {found}")]
    LengthMismatch {
        /// The bytes of the first window.
        expected: usize,
        /// The bytes of the one that differs.
        found: usize,
    },
    /// A window to write to is mapped for reading only.
    #[error("a destination is read-only: map it for writing")]
    ReadOnly,
}
