//! A plan whose steps are listed.

use core::ops::Range;

use ringway_types::Operation;

use super::STEPS_MAX;
use crate::{Ineligible, View};

/// A plan that was read from a file and proved right, or made of an algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub(super) name: String,
    pub(super) operation: Operation,
    pub(super) blocks: u32,
    pub(super) scratch: u32,
    pub(super) chunk_bytes: u64,
    /// Of every node.
    pub(super) steps: Vec<Vec<Entry>>,
    pub(super) digest: u64,
}

/// One step, in blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What is done.
    pub what: What,
    /// The first block that it is about.
    pub block: u32,
    /// How many blocks.
    pub count: u32,
    /// Steps of the same node, all of lower number, that must be done first.
    pub after: [Range<u32>; 2],
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It only waits.
    Nothing,
    /// Blocks to a node.
    Send {
        /// The destination.
        peer: u32,
        /// Tells the message from others of the same chunk between the same two nodes.
        tag: u32,
        /// Where the blocks are: an input, an output or scratch.
        from: Location,
    },
    /// Blocks from a node.
    Receive {
        /// The source.
        peer: u32,
        /// As in the matching `Send`.
        tag: u32,
        /// Where the blocks go: an output or scratch.
        into: Location,
    },
    /// Combine partial results, and then the inputs of all local ranks.
    Reduce {
        /// The first partial result's place in scratch.
        scratch: u32,
        /// Places from one partial result to the next one.
        stride: u32,
        /// Partial results; none at all when 0.
        partials: u32,
        /// Whether the inputs are combined with them.
        inputs: bool,
        /// Where the result goes.
        into: Into,
        /// Whether the result is final.
        finish: bool,
    },
    /// Copy blocks.
    Copy {
        /// Where they are.
        from: Location,
        /// Where they go.
        into: Into,
    },
}

/// Where blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// The input of the rank that gives.
    Input,
    /// The output of the rank that gets; the first one's where all do.
    Output,
    /// These blocks are in as many places of scratch memory, from this one on.
    Scratch(u32),
}

/// Where a result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Into {
    /// Which outputs.
    pub outputs: Outputs,
    /// From which place of scratch memory on, when it goes there as well.
    pub scratch: Option<u32>,
}

/// Outputs of local ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// None.
    None,
    /// Those of all that get the result.
    All,
    /// All but the first local rank's.
    Others,
}

impl Listed {
    /// The plan's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// The number of nodes it is for.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    /// Into how many blocks a chunk is cut.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Places of one block each in scratch memory.
    #[must_use]
    pub const fn scratch(&self) -> u32 {
        self.scratch
    }

    /// Bytes that a chunk has of the vector, or of each rank's block.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The steps of a node; none for a node that does not exist.
    #[must_use]
    pub fn steps(&self, node: u32) -> &[Entry] {
        self.steps.get(node as usize).map_or(&[], Vec::as_slice)
    }

    /// This plan with another step in the place of one, not proved: for [`Listed::to_json`], and to be read again.
    #[must_use]
    pub fn with_step(&self, node: u32, step: usize, entry: Entry) -> Self {
        let mut other = self.clone();
        if let Some(place) = other.steps.get_mut(node as usize).and_then(|steps| steps.get_mut(step)) {
            *place = entry;
        }
        other.sealed()
    }

    /// A number that differs between plans that differ, but for very rare accidents, and does not depend on how a file
    /// is laid out.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether it can do this call.
    #[must_use]
    pub fn is_for(&self, view: &View<'_>) -> bool {
        let ranks = if self.is_per_rank() { view.layout.most_local() } else { 1 };
        view.call.operation == self.operation
            && view.layout.nodes() == self.nodes()
            && ranks <= self.most_ranks()
    }

    /// The most ranks of one node that steps can be numbered for.
    fn most_ranks(&self) -> u32 {
        let longest = self.steps.iter().map(Vec::len).max().unwrap_or(0).max(1);
        if self.is_per_rank() { STEPS_MAX / u32::try_from(longest).unwrap_or(u32::MAX) } else { u32::MAX }
    }

    pub(crate) fn ineligible(&self) -> Ineligible {
        Ineligible::NotListed {
            name: self.name.clone(),
            operation: self.operation,
            nodes: self.nodes(),
            ranks: self.most_ranks(),
        }
    }

    /// Whether blocks are those of ranks, rather than parts of a vector.
    pub(super) const fn is_per_rank(&self) -> bool {
        is_per_rank(self.operation)
    }
}

/// Whether an operation's blocks are those of ranks.
pub(super) const fn is_per_rank(operation: Operation) -> bool {
    !crate::call::is_on_vectors(operation)
}

/// The operations that plans may be listed for.
pub(super) const OPERATIONS: [Operation; 9] = [
    Operation::Allreduce,
    Operation::Reduce,
    Operation::Broadcast,
    Operation::AllGather,
    Operation::AllGatherV,
    Operation::ReduceScatter,
    Operation::ReduceScatterV,
    Operation::Gather,
    Operation::Scatter,
];

/// Whether every node gets the result: the ranks of one share what the first one receives.
pub(super) const fn is_for_all(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Allreduce | Operation::Broadcast | Operation::AllGather | Operation::AllGatherV
    )
}
