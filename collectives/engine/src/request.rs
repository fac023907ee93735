//! What is asked of the engine and what it answers.

use ringway_types::{DataType, Operation, Reduction};

use crate::{BufferRef, Failure};

/// Names a communicator on this node's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommunicatorId(pub u32);

/// A rank of a communicator that is on this node: its index among the node's ranks, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalRank(pub u32);

/// The submitter's name for an operation, given back when it finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u32);

/// A request of one local rank. Buffers were checked to be inside their regions and to have exactly the lengths the
/// operation needs (`None` where the rank has no such buffer: a non-root's output of reduce, barrier, ...).
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// This rank's call of a collective. A rank's collectives on a communicator run in the order submitted.
    Collective(Collective<'a>),
    /// A message.
    PointToPoint(PointToPoint),
}

/// One rank's call of a collective.
#[derive(Debug, Clone, Copy)]
pub struct Collective<'a> {
    /// What to do; never a point-to-point operation.
    pub operation: Operation,
    /// The elements' type.
    pub datatype: DataType,
    /// How values combine, for operations that reduce.
    pub reduction: Option<Reduction>,
    /// This rank's scalar for premul_sum.
    pub scale: Option<[u8; 8]>,
    /// The root, for operations that have one.
    pub root: u32,
    /// Elements, as `ringway_plan::Call::count` says.
    pub count: u64,
    /// For operations that carry counts, elements: all_gather_v and reduce_scatter_v: one for each rank; gather_v and
    /// scatter_v: one for each rank at the root, this rank's alone (one entry) elsewhere; all_to_all_v: what goes to
    /// each rank, then what comes from each.
    pub counts: &'a [u64],
    /// What is read.
    pub input: Option<BufferRef>,
    /// What is written.
    pub output: Option<BufferRef>,
}

/// A message between two ranks. Messages of one sender to one receiver with the same tag match in the order sent.
#[derive(Debug, Clone, Copy)]
pub enum PointToPoint {
    /// To a rank.
    Send {
        /// The rank.
        peer: u32,
        /// Matches a receive with the same tag.
        tag: u64,
        /// The message.
        buffer: BufferRef,
    },
    /// From a rank, or from any.
    Receive {
        /// The rank; `None` for any.
        peer: Option<u32>,
        /// Matches a send with the same tag.
        tag: u64,
        /// Room for the message, which may be shorter.
        buffer: BufferRef,
    },
}

/// A finished operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The communicator.
    pub communicator: CommunicatorId,
    /// Whose operation it was.
    pub local: LocalRank,
    /// The submitter's name for it.
    pub token: Token,
    /// For a receive: the sender's rank and the message's bytes; for others the rank itself and zero.
    pub outcome: Result<(u32, u64), Failure>,
}
