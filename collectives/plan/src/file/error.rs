//! What is wrong with a file.

use thiserror::Error;

use super::FILE_BYTES_MAX;
use crate::trace::Untraced;
use crate::verify::Violation;

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FileError {
    /// It is too long.
    #[error("the file has {bytes} bytes; a plan may have {FILE_BYTES_MAX}")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// It is not JSON, or something in it is missing, unknown or of the wrong kind.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What was found and what was expected.
        message: String,
    },
    /// A value at the top of the file is not allowed.
    #[error("`{field}` is {given}; {expected}")]
    Header {
        /// Which.
        field: &'static str,
        /// What it is.
        given: String,
        /// What it may be.
        expected: String,
    },
    /// A step can be right in no plan.
    #[error("plan {plan}: node {node} step {step}: {message}")]
    Step {
        /// The plan's name.
        plan: String,
        /// The node.
        node: u32,
        /// The step's number among the node's, from 0.
        step: usize,
        /// What is wrong, and what was expected.
        message: String,
    },
    /// It cannot be told which blocks steps move.
    #[error("plan {plan}: {untraced}")]
    Untraced {
        /// The plan's name.
        plan: String,
        /// Why not.
        untraced: Untraced,
    },
    /// The plan does not do what it says.
    #[error("plan {plan}: {violation} ({call})")]
    Wrong {
        /// The plan's name.
        plan: String,
        /// What is wrong, and in which step.
        violation: Violation,
        /// The call in which it showed.
        call: String,
    },
}
