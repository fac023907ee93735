//! What is known of calls before they are made: calls are often followed by others like them.

use ringway_abi::extent::{Caller, InPlace, in_place_offset};
use ringway_cell::{Prepared, Signature};

/// A call whose signature passed all checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) prepared: Prepared,
    /// Where input and output begin in the buffer of a call in place.
    pub(crate) within: (u64, u64),
}

impl Known {
    /// `None` when the call has counts, or is not as it must be.
    #[cold]
    pub(crate) fn new(signature: &Signature, rank: u32, size: u32) -> Option<Self> {
        let Signature { operation, datatype, reduction, root, count } = *signature;
        let element = datatype.size() as u64;
        let is_of_something = count > 0 || operation == ringway_types::Operation::Barrier;
        let is_defined = reduction.is_none_or(|reduction| datatype.supports(reduction));
        if !is_of_something || !is_defined || !operation.is_collective() {
            return None;
        }
        let prepared = Prepared::new(signature, rank, size)?;
        let within = match in_place_offset(operation, Caller { rank, size, root }, element, count, &[]) {
            Some(InPlace::InputInOutput(at)) => (at, 0),
            Some(InPlace::OutputInInput(at)) => (0, at),
            None => (0, 0),
        };
        Some(Self { prepared, within })
    }
}
