//! Why things fail, one small type for each kind of thing, and [`Error`] for callers that treat them alike.

use std::{io, path::PathBuf};

use ringway_abi::{Status, control::RefusalKind};
use ringway_types::{DataType, Operation, Reduction};
use thiserror::Error;

use crate::EnvironmentError;

/// Any failure of this library, for `?` in programs that treat them alike. Buffers carried by the more specific error
/// are freed by the conversion.
#[derive(Debug, Error)]
#[expect(
    clippy::error_impl_error,
    reason = "read as `ringway_client::Error`, the one error of the crate as a whole"
)]
pub enum Error {
    /// No daemon could be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request on the control socket failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The environment names no rank.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A communicator could not be formed.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A call was not submitted.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An operation failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A call of the GPU's driver failed.
    #[error(transparent)]
    Gpu(#[from] ringway_cuda::CudaError),
}

/// Why no daemon could be reached.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nobody listens at the socket that was asked for.
    #[error("no daemon answers at {socket}: {reason}; start one with `ringwayd --socket {socket}`")]
    NotThere {
        /// The socket.
        socket: PathBuf,
        /// The kernel's reason.
        reason: io::Error,
    },
    /// There is no daemon at the usual places, and none may be started.
    #[error(
        "no daemon answers at {tried}, and none may be started (by RINGWAY_AUTOSTART=0 or this program's choice); start `ringwayd`, or name \
         a daemon's socket in RINGWAY_SOCKET"
    )]
    NoDaemon {
        /// The sockets tried, with the reasons.
        tried: String,
    },
    /// A daemon could not be started.
    #[error("no daemon answers at {tried}, and none could be started: {reason}")]
    Start {
        /// The sockets tried, with the reasons.
        tried: String,
        /// What went wrong.
        reason: Box<StartError>,
    },
    /// A setting in the environment cannot be understood.
    #[error("{variable} is `{value}`, but a number of milliseconds was expected")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// What it is set to.
        value: String,
    },
    /// What listens at the socket is not a Ringway daemon.
    #[error("{socket}: what listens there is not a Ringway daemon")]
    NotRingway {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon speaks another version of the protocol.
    #[error(
        "{socket}: the daemon speaks version {theirs} of the protocol and this program version {ours}; use the same \
         release of both"
    )]
    Version {
        /// The socket.
        socket: PathBuf,
        /// The daemon's version.
        theirs: u32,
        /// This library's version.
        ours: u32,
    },
    /// The daemon does not serve this client.
    #[error("{socket}: the daemon does not serve this process: {reason}")]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// Its reason.
        reason: &'static str,
    },
    /// The daemon did not answer in time.
    #[error("{socket}: the daemon did not answer within {waited_ms} ms; is it stopped?")]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// How long was waited.
        waited_ms: u64,
    },
    /// Talking to the daemon failed.
    #[error("{socket}: {reason}")]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// Why a daemon could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The program is nowhere to be found.
    #[error(
        "the program `ringwayd` is neither beside this executable nor in PATH; install it, or name it in RINGWAY_DAEMON"
    )]
    NoProgram,
    /// The folder for the socket cannot be used.
    #[error("the folder {folder} cannot be used: {reason}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The program could not be run.
    #[error("{program} could not be run: {reason}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The kernel's reason.
        reason: io::Error,
    },
    /// The daemon ended at once.
    #[error("{program} ended with {status}; its last words, from {log}:\n{words}")]
    Ended {
        /// The program.
        program: PathBuf,
        /// Its exit status.
        status: String,
        /// Where its output is.
        log: PathBuf,
        /// The end of its output.
        words: String,
    },
    /// The daemon did not get ready in time.
    #[error("{program} was started but does not listen at {socket} after {waited_ms} ms; see {log}")]
    NotReady {
        /// The program.
        program: PathBuf,
        /// Where it was expected.
        socket: PathBuf,
        /// How long was waited.
        waited_ms: u64,
        /// Where its output is.
        log: PathBuf,
    },
    /// Another process has held the start lock for too long.
    #[error("another process has been starting a daemon for {waited_ms} ms (it holds {lock})")]
    Locked {
        /// The lock file.
        lock: PathBuf,
        /// How long was waited.
        waited_ms: u64,
    },
}

/// Why a request on the control socket failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The daemon is gone. Nothing works on this client any more; connect again.
    #[error("the daemon is gone; connect again")]
    DaemonLost,
    /// The daemon did not answer in time.
    #[error("the daemon did not answer within {waited_ms} ms")]
    NoAnswer {
        /// How long was waited.
        waited_ms: u64,
    },
    /// The daemon refused, and says why.
    #[error("{message}")]
    Refused {
        /// What kind of reason.
        kind: RefusalKind,
        /// The daemon's sentence.
        message: String,
    },
    /// The daemon's answer does not fit the request.
    #[error("the daemon's answer makes no sense ({what}); is it the same release as this program?")]
    Protocol {
        /// What was wrong.
        what: &'static str,
    },
    /// The kernel refused to send or receive.
    #[error("the control socket failed: {reason}")]
    Socket {
        /// What went wrong.
        reason: String,
    },
}

/// Why memory could not be had.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The kernel gave none.
    #[error("{bytes} bytes of shared memory could not be had: {reason}")]
    Kernel {
        /// How much was wanted.
        bytes: u64,
        /// The kernel's reason.
        reason: String,
    },
    /// The daemon did not admit the memory.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The arena has no room for the buffer.
    #[error(
        "the arena has no room for a buffer of {wanted} bytes: {free} of its {size} bytes are free, {largest} in one \
         piece; make a larger arena, or drop buffers that are no longer needed"
    )]
    Full {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// The largest free piece.
        largest: u64,
        /// The arena's bytes.
        size: u64,
    },
    /// The GPU's driver gave none, or does not share it.
    #[error(transparent)]
    Gpu(#[from] ringway_cuda::CudaError),
    /// The size overflows.
    #[error("a buffer of that many elements has more bytes than there are addresses")]
    TooLarge,
}

/// Why a communicator could not be formed.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The rank is not below the size.
    #[error("rank {rank} cannot be in a communicator of {size} ranks: ranks count from 0")]
    Rank {
        /// The rank given.
        rank: u32,
        /// The number of ranks given.
        size: u32,
    },
    /// The number of ranks is not supported.
    #[error("a communicator of {size} ranks cannot be formed: there may be 1 to {max}")]
    Size {
        /// The number of ranks given.
        size: u32,
        /// The most there may be.
        max: u32,
    },
    /// The daemon refused, is gone or does not answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The rings, or the cell, that the daemon gave cannot be used.
    #[error("the shared memory that the daemon gave cannot be used: {reason}")]
    Rings {
        /// What is wrong.
        reason: String,
    },
    /// The ranks could not agree on how to split.
    #[error("the ranks could not agree on how to split the communicator: {0}")]
    Split(OperationError),
    /// The agreement on how to split could not be submitted.
    #[error("the ranks could not agree on how to split the communicator: {0}")]
    SplitCall(CallError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Why a call was not submitted. Nothing was sent: other ranks see nothing of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The root or peer is not a rank of the communicator.
    #[error("rank {rank} is not in the communicator, whose ranks are 0 to {last}", last = .size.saturating_sub(1))]
    Rank {
        /// The rank given.
        rank: u32,
        /// Ranks in the communicator.
        size: u32,
    },
    /// The reduction is not defined for the type.
    #[error("{reduction} is not defined for {datatype}: bitwise reductions are for integers")]
    Unsupported {
        /// The reduction.
        reduction: Reduction,
        /// The elements' type.
        datatype: DataType,
    },
    /// A buffer has the wrong length.
    #[error("{operation}: the {which} has {actual} elements where {expected} are needed")]
    Length {
        /// The operation.
        operation: Operation,
        /// Which buffer.
        which: &'static str,
        /// Its elements.
        actual: u64,
        /// The elements it should have.
        expected: u64,
    },
    /// A buffer's length cannot be divided among the ranks.
    #[error("{operation}: the {which} has {actual} elements, which is not a multiple of the {size} ranks")]
    Uneven {
        /// The operation.
        operation: Operation,
        /// Which buffer.
        which: &'static str,
        /// Its elements.
        actual: u64,
        /// Ranks in the communicator.
        size: u32,
    },
    /// A buffer that this rank needs was not given.
    #[error("{operation}: the root needs an {which}")]
    NoBuffer {
        /// The operation.
        operation: Operation,
        /// Which buffer.
        which: &'static str,
    },
    /// The list of counts has the wrong length.
    #[error("{operation}: {actual} counts were given where {expected} are needed, one for each rank")]
    Counts {
        /// The operation.
        operation: Operation,
        /// How many were given.
        actual: usize,
        /// How many are needed.
        expected: usize,
    },
    /// Sizes overflow.
    #[error("{operation}: the sizes overflow")]
    TooLarge {
        /// The operation.
        operation: Operation,
    },
    /// The list of counts does not fit the communicator's argument slab.
    #[error("{operation}: {words} counts do not fit, the communicator takes {room} at a time")]
    TooManyCounts {
        /// The operation.
        operation: Operation,
        /// Words needed.
        words: usize,
        /// Words there are.
        room: usize,
    },
    /// A buffer belongs to another client's arena.
    #[error(
        "the {which} comes from an arena of another client; use one made by the communicator's own client"
    )]
    ForeignBuffer {
        /// Which buffer.
        which: &'static str,
    },
    /// Too many operations are outstanding, and none finished within the communicator's timeout.
    #[error("too many operations are outstanding; wait for some of them")]
    Full,
    /// The group is larger than the ring.
    #[error(
        "a group may have {max} operations on this communicator, this one has more; nothing of it was sent"
    )]
    GroupTooLarge {
        /// The most it may have.
        max: u32,
    },
    /// A group was opened, or a blocking call made, inside a group.
    #[error("inside a group only non-blocking operations can be submitted")]
    InsideGroup,
    /// The daemon is gone.
    #[error("the daemon is gone; connect again")]
    DaemonLost,
    /// An operation in a stream, on a communicator that was joined without a GPU.
    #[error("this communicator was joined without a GPU; give it to `CommunicatorBuilder::gpu` when joining")]
    NoGpu,
    /// The GPU's driver refused to put an operation's order into the stream.
    #[error(transparent)]
    Gpu(#[from] ringway_cuda::CudaError),
}

/// A call that was not submitted, with the buffers it would have taken.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct SubmitError<B> {
    /// Why.
    pub error: CallError,
    /// The buffers.
    pub buffers: B,
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OperationError {
    /// The daemon ended it with this status and sentence.
    #[error("{message}")]
    Failed {
        /// What a program acts on.
        status: Status,
        /// What was wrong, with the ranks concerned.
        message: String,
    },
    /// The daemon is gone, and with it all operations.
    #[error("the daemon is gone, and with it all operations; connect again")]
    DaemonLost,
    /// The daemon lives but has not ended the operation, long after the communicator's timeout.
    #[error(
        "the daemon has not ended the operation after {waited_ms} ms, although its timeout is over; is it stopped?"
    )]
    Unresponsive {
        /// How long was waited.
        waited_ms: u64,
    },
    /// The daemon ended it with a status that this version does not know.
    #[error("the operation failed with status {code}, which this version does not know")]
    UnknownStatus {
        /// The status.
        code: u16,
    },
    /// The operation was part of a group that was not sent.
    #[error("the operation was part of a group that was not sent")]
    NotSent,
    /// The call was not submitted; only [`Communicator::run`](crate::Communicator::run) says so here.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It was waited for inside the group that it belongs to.
    #[error("an operation cannot be waited for inside its group, which is sent when the closure returns")]
    InsideGroup,
}

impl OperationError {
    /// With the status's own words, where the daemon has none.
    pub(crate) fn of_status(status: Status) -> Self {
        Self::Failed { status, message: status.text().to_owned() }
    }

    /// Whether only this operation failed: the communicator can be used on.
    #[must_use]
    pub const fn is_recoverable(&self) -> bool {
        match self {
            Self::Failed { status, .. } => status.is_recoverable(),
            Self::NotSent | Self::InsideGroup => true,
            Self::Call(error) => !matches!(error, CallError::DaemonLost | CallError::Full),
            Self::DaemonLost | Self::Unresponsive { .. } | Self::UnknownStatus { .. } => false,
        }
    }

    /// The status the daemon gave, if it gave one.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Failed { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// The buffers of a failed operation.
#[derive(Debug)]
pub enum Returned<B> {
    /// Nobody uses them any more. What an output holds is not defined.
    Buffers(B),
    /// Somebody may still write to them: the daemon, or a rank's process that is stopped in the middle of its work. They
    /// cannot be given back, and their memory is not used again while this client lives.
    BuffersRetired,
}

/// A failed operation, with its buffers where they can be given back.
#[derive(Debug, Error)]
#[error("{error}{}", match .returned {
    Returned::Buffers(_) => "",
    Returned::BuffersRetired => " (its buffers may still be written and are not given back)",
})]
pub struct Failure<B> {
    /// Why.
    pub error: OperationError,
    /// The buffers.
    pub returned: Returned<B>,
}

impl<B> Failure<B> {
    /// The buffers, where they can be given back.
    #[must_use]
    pub fn into_buffers(self) -> Option<B> {
        match self.returned {
            Returned::Buffers(buffers) => Some(buffers),
            Returned::BuffersRetired => None,
        }
    }
}

impl<B> From<SubmitError<B>> for CallError {
    fn from(refused: SubmitError<B>) -> Self {
        refused.error
    }
}

impl<B> From<SubmitError<B>> for Error {
    fn from(refused: SubmitError<B>) -> Self {
        Self::Call(refused.error)
    }
}

impl<B> From<Failure<B>> for OperationError {
    fn from(failure: Failure<B>) -> Self {
        failure.error
    }
}

impl<B> From<Failure<B>> for Error {
    fn from(failure: Failure<B>) -> Self {
        match failure.error {
            OperationError::Call(error) => Self::Call(error),
            error => Self::Operation(error),
        }
    }
}
