//! Proves plans right: every node's steps are enumerated, checked against the rules of the crate's documentation
//! and run on symbols instead of numbers.
//!
//! What is proved of a scenario: every element of every output ends up with exactly the contributions it must have,
//! each once, combined in the same order and association for every rank and finished once; nothing else is written;
//! scratch memory is enough; messages match; nothing waits forever; and any two steps that touch the same bytes, one of
//! them writing, are ordered whatever the timing. Ordered means by [`crate::Step::after`], by the chunks a chunk waits
//! for, and by messages: what happened before a message was sent happened before its bytes arrived.
//!
//! Of an operation that reduces it can be proved besides that it combines in the order that `order = "strict"` promises
//! ([`check_strict`]), and asked in which one it does ([`associations`]).

mod association;
mod expect;
mod hazard;
mod memory;
mod program;
mod run;
mod scenario;
mod symbol;

use thiserror::Error;

use crate::{Algorithm, Ineligible, Tuning};
use hazard::Writers;

pub use association::{Associations, Term, associations, check_strict};
pub(crate) use program::list;
pub use program::{Program, enumerate};
pub use run::Order;
pub(crate) use run::{Done, watch};
pub use scenario::{Counts, Scenario};

/// Where a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    /// The node.
    pub node: u32,
    /// The chunk.
    pub chunk: u64,
    /// The step's number in the chunk.
    pub step: u32,
}

impl core::fmt::Display for At {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {} chunk {} step {}", self.node, self.chunk, self.step)
    }
}

/// What is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// The algorithm cannot do it.
    #[error(transparent)]
    Ineligible(#[from] Ineligible),
    /// Nodes choose different plans.
    #[error("node {node} chooses another plan than node 0")]
    DifferentPlans {
        /// The node.
        node: u32,
    },
    /// A step names memory that does not exist.
    #[error("{at}: bytes {offset}..{end} of a memory of {size}", end = offset.saturating_add(*length))]
    OutOfBounds {
        /// The step.
        at: At,
        /// The first byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes there are.
        size: u64,
    },
    /// A range is not one of whole elements.
    #[error("{at}: offset {offset} or length {length} is not a multiple of the element size")]
    Misaligned {
        /// The step.
        at: At,
        /// The first byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A step waits for itself or for a later one.
    #[error("{at}: waits for a step that does not come before it")]
    Forward {
        /// The step.
        at: At,
    },
    /// A message goes to a node that does not exist, or to its own.
    #[error("{at}: a message with node {peer}")]
    Peer {
        /// The step.
        at: At,
        /// The other node.
        peer: u32,
    },
    /// Two messages have one name.
    #[error("{at}: its message has the name of the one of {other}")]
    SameTag {
        /// The step.
        at: At,
        /// The other step.
        other: At,
    },
    /// The other end of a message is missing.
    #[error("{at}: its message has no other end")]
    Unmatched {
        /// The step.
        at: At,
    },
    /// The two ends of a message disagree.
    #[error("{at}: its message has {length} bytes, but {other_length} at {other}")]
    Length {
        /// The sending step.
        at: At,
        /// Its bytes.
        length: u64,
        /// The receiving step.
        other: At,
        /// Its bytes.
        other_length: u64,
    },
    /// Ranges of one step overlap that must not, or differ in length.
    #[error("{at}: its own ranges overlap or differ in length")]
    Overlap {
        /// The step.
        at: At,
    },
    /// A step reads what nothing has written.
    #[error("{at}: reads bytes that hold nothing yet")]
    Unwritten {
        /// The step.
        at: At,
    },
    /// A final result is combined again, or finished twice.
    #[error("{at}: combines a result that is final already")]
    FinishedTwice {
        /// The step.
        at: At,
    },
    /// No step can go on.
    #[error("{at}: never starts or never ends")]
    Deadlock {
        /// The first step that is stuck.
        at: At,
    },
    /// Two steps touch the same bytes and nothing orders them.
    #[error("{first} and {second} touch the same bytes in no certain order")]
    Hazard {
        /// One step.
        first: At,
        /// The other.
        second: At,
    },
    /// An element of an output is wrong in the end.
    #[error("rank {rank}: element {element} of its output is wrong: {what}{}", written(*last))]
    Result {
        /// The rank.
        rank: u32,
        /// The element of its output.
        element: u64,
        /// What is wrong.
        what: Wrong,
        /// The step that wrote it last.
        last: Option<At>,
    },
    /// An element of an output is right, but not combined in the order and association that `order = "strict"` promises. Both
    /// are given as the ranks whose inputs are combined, each combination in brackets.
    #[error("rank {rank}: element {element} of its output is {found}, where strict promises {promised}")]
    Association {
        /// The rank.
        rank: u32,
        /// The element of its output.
        element: u64,
        /// How it was combined.
        found: String,
        /// How it must be.
        promised: String,
    },
    /// Memory was changed that is no output.
    #[error("rank {rank}: a step wrote to memory that the operation leaves alone{}", written(*last))]
    Stray {
        /// The rank.
        rank: u32,
        /// The step that wrote it last.
        last: Option<At>,
    },
    /// A node can leave a barrier before another one has come.
    #[error("node {node} can leave the barrier before node {other} has come")]
    Barrier {
        /// The node that leaves.
        node: u32,
        /// The node that has not come.
        other: u32,
    },
}

fn written(last: Option<At>) -> String {
    last.map_or_else(String::new, |at| format!("; {at} wrote it last"))
}

/// What is wrong with an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// It was never written.
    Missing,
    /// Its contributions are not the ones it must have, each once.
    Contributions,
    /// Contributions were combined in another order than it must be, or than for another rank.
    Order,
    /// A reduction was not finished, or something else was.
    Finish,
}

impl core::fmt::Display for Wrong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Missing => "it was never written",
            Self::Contributions => "it has not the contributions it must have, each once",
            Self::Order => "its contributions are combined in a different order",
            Self::Finish => "it is finished wrongly",
        })
    }
}

/// What a proof looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Steps that do something.
    pub steps: u64,
    /// Messages between nodes.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Pairs of steps on the same bytes that were found ordered.
    pub ordered_pairs: u64,
}

/// Proves the plan that every node makes for a scenario: the chosen one, or that of an algorithm.
///
/// # Errors
/// The first [`Violation`] found.
pub fn verify(
    scenario: &Scenario,
    algorithm: Option<Algorithm>,
    tuning: &Tuning,
) -> Result<Stats, Violation> {
    prove(scenario, &enumerate(scenario, algorithm, tuning)?)
}

/// Checks programs, and runs them in several orders.
pub(crate) fn prove(scenario: &Scenario, programs: &[Program]) -> Result<Stats, Violation> {
    let stats = check(scenario, programs)?;
    for order in [Order::Reverse, Order::Seeded(1), Order::Seeded(2)] {
        run::run(scenario, programs, order, &Writers::default())?;
    }
    Ok(stats)
}

/// Proves programs, one for each node, right for a scenario.
///
/// # Errors
/// The first [`Violation`] found.
pub fn check(scenario: &Scenario, programs: &[Program]) -> Result<Stats, Violation> {
    program::check(programs)?;
    let (mut stats, writers) = hazard::check(scenario, programs)?;
    run::run(scenario, programs, Order::Forward, &writers)?;
    for step in programs.iter().flat_map(|program| program.chunks.iter().flatten()) {
        stats.steps += u64::from(step.action != crate::Action::Nothing);
        if let crate::Action::Send { from, .. } = step.action {
            stats.messages += 1;
            stats.message_bytes += from.length;
        }
    }
    Ok(stats)
}
