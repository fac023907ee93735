//! One small error for each kind of call.

use thiserror::Error;

/// What to do about an `errno` value, where that is known: 12 is ENOMEM on every Linux.
const fn hint(errno: i32) -> &'static str {
    match errno {
        12 => {
            ": more locked memory is needed than the limit allows, see `ulimit -l`, or LimitMEMLOCK=infinity in a unit"
        }
        _ => "",
    }
}

/// Why memory was not registered or deregistered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// The device has no free key.
    #[error("the device's memory table is full ({limit} regions); deregister some first")]
    TableFull {
        /// How many it holds.
        limit: u32,
    },
    /// Remote write or atomic access was asked for without local write access.
    #[error("remote write and atomic access need local write access as well")]
    AccessCombination,
    /// The operating system or hardware refused (an `errno` value).
    #[error("the system refused to register the memory (errno {0}{hint})", hint = hint(*.0))]
    System(i32),
    /// The device cannot reach memory of this kind.
    #[error(
        "the device cannot register a dma-buf: it takes RDMA hardware whose driver can, Linux 5.12 and libibverbs of rdma-core 34 or \
         newer; copy through memory of the host instead"
    )]
    Unsupported,
    /// A posted request still uses the region.
    #[error("a posted request still uses the region")]
    Busy,
    /// No region has this key.
    #[error("no region has this key")]
    UnknownKey,
}

/// Why a queue pair could not be made, found, drained or destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum QueuePairError {
    /// The device has no room for another.
    #[error("the device has no room for another queue pair (limit {limit})")]
    TableFull {
        /// How many it holds.
        limit: u32,
    },
    /// The operating system or hardware refused (an `errno` value).
    #[error("the system refused the queue pair (errno {0})")]
    System(i32),
    /// Something the kernel or hardware does for it is still going on.
    #[error("the queue pair is still in use; poll and try again")]
    Busy,
    /// The device does not offer this.
    #[error("the device cannot drain send queues")]
    Unsupported,
    /// The queue pair is not in the state in which this is possible.
    #[error("the queue pair cannot be drained, or resumed, in its state")]
    WrongState,
    /// There is no such queue pair.
    #[error("there is no such queue pair")]
    Unknown,
}

/// Why a connection could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// The peer's endpoint is not one of this kind of device.
    #[error("the peer's endpoint is not one of this kind of device; both nodes must use the same device")]
    ForeignEndpoint,
    /// The peer's device speaks another version.
    #[error(
        "the peer's device speaks version {theirs} of its protocol, this one version {ours}; install the same version of \
         Ringway on every node"
    )]
    OtherVersion {
        /// The peer's version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The queue pair is not in its initial state.
    #[error("the queue pair is already connected or failed")]
    WrongState,
    /// There is no such queue pair.
    #[error("there is no such queue pair")]
    Unknown,
}

/// Why a request was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PostError {
    /// Back-pressure: the queue is full. Nothing was posted.
    #[error("the queue is full; take completions and try again")]
    Full,
    /// The local key or range is wrong.
    #[error("the request names memory that is not registered, or bytes outside it")]
    Memory,
    /// The message is longer than the device allows.
    #[error("the message is longer than the device allows")]
    TooLong,
    /// The device does not offer the operation.
    #[error("the device does not offer this operation")]
    Unsupported,
    /// The queue pair cannot take requests in its state.
    #[error("the queue pair cannot take this request in its state")]
    WrongState,
    /// There is no such queue pair.
    #[error("there is no such queue pair")]
    Unknown,
}
