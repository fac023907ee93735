//! Why an operation failed, kept as values and made into a sentence only when somebody asks.

use core::fmt;

use ringway_abi::Status;
use ringway_engine::{Failure, Refused};

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reason {
    /// The descriptor itself says so.
    Descriptor(Status),
    /// A handle names no region of the session.
    Region { side: Side, handle: u64 },
    /// A buffer is missing.
    NoBuffer { side: Side, bytes: u64 },
    /// A buffer is not inside its region.
    Range { side: Side, offset: u64, bytes: u64, region_bytes: u64 },
    /// Input and output overlap.
    Overlap,
    /// The rank is not in the communicator.
    Rank { rank: u32, size: u32 },
    /// The list of counts has the wrong length or lies outside the slab.
    Counts { given: u32, needed: usize },
    /// Sizes overflow.
    TooLarge { count: u64 },
    /// It is ordered with a stream, and the rank has said no words for that.
    NoStreamWords,
    /// It is for a cell, and the communicator has none.
    NoCell,
    /// It is for the cell, and the daemon cannot act there as it says.
    Cell(ringway_cell::Refusal),
    /// The engine did not take it.
    Refused(Refused),
    /// It failed in the engine.
    Engine(Failure),
    /// The daemon is shutting down.
    ShuttingDown,
}

/// Which buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Input,
    Output,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
        })
    }
}

impl Reason {
    /// The status in the completion.
    pub(crate) const fn status(&self) -> Status {
        match self {
            Self::Descriptor(status) => *status,
            Self::Region { .. } => Status::BadRegion,
            Self::NoBuffer { .. } | Self::Range { .. } => Status::BadRange,
            Self::Overlap => Status::Overlap,
            Self::Rank { .. } => Status::BadRank,
            Self::Counts { .. } => Status::BadCounts,
            Self::TooLarge { .. } => Status::TooLarge,
            Self::NoStreamWords | Self::NoCell => Status::BadFlags,
            Self::Cell(_) => Status::BadCall,
            Self::Refused(refused) => status_of_refused(refused),
            Self::Engine(failure) => status_of(failure),
            Self::ShuttingDown => Status::ShuttingDown,
        }
    }

    /// The rank that it names; zero when it names none.
    pub(crate) const fn rank(&self) -> u32 {
        match self {
            Self::Engine(failure) => rank_of(failure),
            Self::Rank { rank, .. } => *rank,
            _ => 0,
        }
    }
}

/// The rank that a failure names.
const fn rank_of(failure: &Failure) -> u32 {
    match failure {
        Failure::Mismatch { other_rank: rank, .. }
        | Failure::Count { sender: rank, .. }
        | Failure::Rank { rank, .. }
        | Failure::Node { rank, .. }
        | Failure::TimedOut { rank, .. }
        | Failure::Aborted { rank } => *rank,
        Failure::Truncated { .. } | Failure::Memory { .. } => 0,
    }
}

/// The status that a program acts on.
const fn status_of(failure: &Failure) -> Status {
    match failure {
        Failure::Mismatch { .. } => Status::Mismatch,
        Failure::Count { .. } => Status::Count,
        Failure::Truncated { .. } => Status::Truncated,
        Failure::Rank { .. } => Status::RankFailed,
        Failure::Node { .. } => Status::NodeLost,
        Failure::TimedOut { .. } => Status::TimedOut,
        Failure::Aborted { .. } => Status::Aborted,
        Failure::Memory { .. } => Status::TooLarge,
    }
}

/// The same for what the engine did not take.
const fn status_of_refused(refused: &Refused) -> Status {
    match refused {
        // The first never gets here: it is back-pressure.
        Refused::Full | Refused::Unknown => Status::Aborted,
        Refused::Rank { .. } => Status::BadRank,
        Refused::Region => Status::BadRegion,
        Refused::Counts { .. } => Status::BadCounts,
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(status) => f.write_str(status.text()),
            Self::Region { side, handle } => write!(
                f,
                "the {side} names region {handle:#x}, which this client has not registered or has released; register \
                 it first"
            ),
            Self::NoBuffer { side, bytes } => {
                write!(f, "the {side} is missing; the operation needs one of {bytes} bytes")
            }
            Self::Range { side, offset, bytes, region_bytes } => write!(
                f,
                "the {side} is outside its region: {bytes} bytes at offset {offset} of a region of {region_bytes} \
                 bytes"
            ),
            Self::Overlap => f.write_str(
                "input and output overlap; give separate buffers, or the same one in the operation's in-place form",
            ),
            Self::Rank { rank, size } => write!(
                f,
                "rank {rank} is not in the communicator, whose ranks are 0 to {}",
                size.saturating_sub(1)
            ),
            Self::Counts { given, needed } => {
                write!(f, "{given} counts were given where the operation needs {needed}")
            }
            Self::TooLarge { count } => write!(
                f,
                "the sizes overflow: {count} elements, for as many ranks as the operation has blocks, are more than an \
                 address can name"
            ),
            Self::NoStreamWords => f.write_str(
                "it is ordered with a stream, but the rank joined the communicator without words for that, or these are \
                 not inside a region of its own; name them when joining",
            ),
            Self::NoCell => f.write_str(
                "the communicator has no cell, or not for this call; submit collectives without the cell's flags",
            ),
            Self::Cell(refusal) => refusal.fmt(f),
            Self::Refused(refused) => refused.fmt(f),
            Self::Engine(failure) => failure.fmt(f),
            Self::ShuttingDown => f.write_str("the daemon is shutting down; connect again when it is back"),
        }
    }
}
