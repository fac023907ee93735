//! Why operations fail.

use core::fmt;

use ringway_types::{DataType, Operation, Reduction};
use thiserror::Error;

/// What one rank called: everything the ranks of a collective must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// What to do.
    pub operation: Operation,
    /// The elements' type.
    pub datatype: DataType,
    /// How values combine, for operations that reduce.
    pub reduction: Option<Reduction>,
    /// The root; zero where there is none.
    pub root: u32,
    /// Elements, or a digest of the counts where all ranks must give the same ones.
    pub count: u64,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if self.operation == Operation::Barrier {
            return Ok(());
        }
        write!(f, " {}", self.datatype)?;
        if let Some(reduction) = self.reduction {
            write!(f, " {reduction}")?;
        }
        match self.operation {
            Operation::AllGatherV | Operation::ReduceScatterV => {
                write!(f, " counts #{:08x}", self.count & 0xffff_ffff)?
            }
            Operation::GatherV | Operation::ScatterV | Operation::AllToAllV => {}
            _ => write!(f, " x{}", self.count)?,
        }
        if self.operation.has_root() {
            write!(f, " root {}", self.root)?;
        }
        Ok(())
    }
}

/// How a rank was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankFailure {
    /// Its process ended or closed its connection without leaving the communicator.
    Exited,
    /// It broke the protocol and its session was ended.
    Misbehaved,
    /// It left the communicator while operations that need it were outstanding.
    Left,
}

impl Failure {
    /// That of a node whose accelerator does its work no more; `rank` is its lowest.
    #[must_use]
    pub const fn of_accelerator(node: u32, rank: u32) -> Self {
        Self::Node { node, rank, reason: crate::message::ACCELERATOR_FAILED, rail: None }
    }
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exited => "its process ended",
            Self::Misbehaved => "it broke the protocol and was disconnected",
            Self::Left => "it left the communicator",
        })
    }
}

/// Why an operation failed. All but [`Failure::Truncated`] and [`Failure::Count`] end the communicator: its other
/// operations, and those submitted later, fail with the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// Two ranks called different things.
    #[error(
        "ranks called different operations: rank {rank} called `{call}`, rank {other_rank} called `{other}` \
         (both as their collective number {sequence}); every rank must make the same call"
    )]
    Mismatch {
        /// One rank.
        rank: u32,
        /// What it called.
        call: Signature,
        /// Another rank.
        other_rank: u32,
        /// What that one called.
        other: Signature,
        /// Which collective of the communicator, counted from 1.
        sequence: u64,
    },
    /// Two ranks disagree about the length of a block.
    #[error(
        "rank {sender} sends {sent} bytes to rank {receiver}, which expects {expected}; make the counts agree"
    )]
    Count {
        /// Who sends.
        sender: u32,
        /// Who receives.
        receiver: u32,
        /// Bytes sent.
        sent: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// A message is longer than the buffer it was received into.
    #[error(
        "a message of {sent} bytes does not fit the receive buffer of {room} bytes; receive into a larger one"
    )]
    Truncated {
        /// Bytes sent.
        sent: u64,
        /// Bytes of the buffer.
        room: u64,
    },
    /// A rank was lost.
    #[error("rank {rank} failed: {how}")]
    Rank {
        /// Which.
        rank: u32,
        /// How.
        how: RankFailure,
    },
    /// A node was lost, and with it all its ranks.
    #[error("node {node} (rank {rank} and its neighbours) is lost: {reason}{}", OnRail(*rail))]
    Node {
        /// The node's number in the communicator.
        node: u32,
        /// The lowest rank on it.
        rank: u32,
        /// What was seen.
        reason: &'static str,
        /// On which of the nodes' rails, counted from 0, where it was not on all of several.
        rail: Option<u32>,
    },
    /// An operation took longer than the communicator's timeout.
    #[error("`{call}` timed out after {waited_ms} ms: rank {rank} has not called it{others}")]
    TimedOut {
        /// What was waited for.
        call: Signature,
        /// The lowest rank that has not come, as far as this node knows.
        rank: u32,
        /// How long.
        waited_ms: u64,
        /// Further ranks, as text, or empty.
        others: String,
    },
    /// The engine's workspace is too small for the operation.
    #[error(
        "the operation needs {needed} bytes of the daemon's workspace, which has {available}; give the daemon a larger \
         workspace"
    )]
    Memory {
        /// Bytes needed.
        needed: u64,
        /// The largest block there is.
        available: u64,
    },
    /// A rank aborted the communicator.
    #[error("rank {rank} aborted the communicator")]
    Aborted {
        /// Which.
        rank: u32,
    },
}

struct OnRail(Option<u32>);

impl fmt::Display for OnRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |rail| write!(f, ", on rail {rail}"))
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// Back-pressure: try again when operations have finished.
    #[error("too many operations are outstanding; wait for some of them")]
    Full,
    /// There is no such communicator or rank.
    #[error("no such communicator on this node")]
    Unknown,
    /// The peer or root is not a rank of the communicator.
    #[error("rank {rank} is not in the communicator, which has {size} ranks")]
    Rank {
        /// The rank given.
        rank: u32,
        /// Ranks in the communicator.
        size: u32,
    },
    /// A buffer is in a region that was not added to the engine.
    #[error("a buffer is in a region that is not registered here; register it first")]
    Region,
    /// The list of counts has the wrong length.
    #[error("{given} counts were given where the operation needs {needed}")]
    Counts {
        /// How many were given.
        given: usize,
        /// How many are needed.
        needed: usize,
    },
}
