//! Work requests, completions and the keys that name memory.

use crate::PostError;

/// Names a registered region in requests posted on this device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LocalKey(pub u32);

/// Names a registered region in requests a peer posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RemoteKey(pub u32);

/// The two names of one registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKeys {
    /// For this side.
    pub local: LocalKey,
    /// For the peers.
    pub remote: RemoteKey,
}

/// What may be done to a region. Reading it locally is always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Receives and READ responses may write it.
    pub local_write: bool,
    /// Peers may WRITE it; needs `local_write`.
    pub remote_write: bool,
    /// Peers may READ it.
    pub remote_read: bool,
    /// Peers may use atomics on it; needs `local_write`.
    pub remote_atomic: bool,
}

impl Access {
    /// Everything.
    pub const ALL: Self =
        Self { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };
    /// Only this side reads and writes.
    pub const LOCAL: Self =
        Self { local_write: true, remote_write: false, remote_read: false, remote_atomic: false };
}

/// Bytes of a region on this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalSlice {
    /// The region.
    pub key: LocalKey,
    /// Bytes from the region's start.
    pub offset: u64,
    /// Bytes; zero for an unused segment.
    pub length: u64,
}

/// The first byte of a peer's memory that an operation touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteSlice {
    /// The peer's region.
    pub key: RemoteKey,
    /// Bytes from the region's start.
    pub offset: u64,
}

/// The most segments of one request.
pub const MAX_SEGMENTS: usize = 2;

/// What a send-queue request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A message into the peer's next posted receive.
    Send {
        /// Delivered with the receive completion.
        immediate: Option<u32>,
    },
    /// Local bytes into the peer's memory; the peer sees no completion.
    Write {
        /// Where they go.
        remote: RemoteSlice,
    },
    /// As [`Operation::Write`], and then one posted receive of the peer completes with the immediate.
    WriteWithImmediate {
        /// Where they go.
        remote: RemoteSlice,
        /// Delivered with the receive completion.
        immediate: u32,
    },
    /// The peer's memory into local memory.
    Read {
        /// Where the bytes come from.
        remote: RemoteSlice,
    },
    /// Adds to a 64-bit word of the peer, whose old value lands in the first local segment (8 bytes).
    FetchAdd {
        /// The word; 8-byte aligned.
        remote: RemoteSlice,
        /// What to add.
        add: u64,
    },
    /// Replaces a 64-bit word of the peer if it has the expected value; the old value lands in the first local
    /// segment (8 bytes).
    CompareSwap {
        /// The word; 8-byte aligned.
        remote: RemoteSlice,
        /// What must be there.
        expected: u64,
        /// What to put there.
        desired: u64,
    },
}

impl Operation {
    /// Whether it reads and changes a word of the peer in one step.
    #[inline]
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }

    /// Whether it ends with data from the peer, which is written to local memory, not with an acknowledgement.
    #[inline]
    #[must_use]
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic()
    }
}

/// A send-queue request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest {
    /// Given back in the completion.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// The local bytes, gathered (or scattered) in this order.
    pub local: [LocalSlice; MAX_SEGMENTS],
    /// Complete even if nothing goes wrong.
    pub signalled: bool,
    /// Start only when every earlier READ and atomic of this queue pair is done.
    pub fence: bool,
}

impl WorkRequest {
    /// The bytes it moves.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.local[0].length.saturating_add(self.local[1].length)
    }

    /// Checks its lengths for a device whose messages have so many bytes at most. What memory it names is not looked at.
    ///
    /// # Errors
    /// When it is too long, or an atomic whose first segment is not 8 bytes and the only one.
    #[inline]
    pub const fn check_lengths(&self, max_message: u64) -> Result<(), PostError> {
        if self.length() > max_message {
            return Err(PostError::TooLong);
        }
        if self.operation.is_atomic() && (self.local[0].length != 8 || self.local[1].length != 0) {
            return Err(PostError::Memory);
        }
        Ok(())
    }
}

/// A buffer for one incoming message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Given back in the completion.
    pub id: u64,
    /// Where a SEND's bytes go; may have no bytes when only WRITE_WITH_IMM is expected.
    pub local: LocalSlice,
}

/// Which request completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionKind {
    /// A send-queue request.
    Send,
    /// A receive, by a SEND.
    Receive,
    /// A receive, by a WRITE_WITH_IMM.
    ReceiveWrite,
}

/// How a request ended (IBA volume 1, 11.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// The message is longer than the local buffer.
    LocalLength,
    /// The local key, range or access is wrong.
    LocalProtection,
    /// The queue pair failed earlier, or was moved to the error state.
    Flushed,
    /// The peer refused the request as malformed, or its receive buffer was too short.
    RemoteInvalidRequest,
    /// The peer refused the key, range or access.
    RemoteAccess,
    /// The connection is lost: the peer does not answer, or the transport broke.
    TransportLost,
}

/// One finished request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request's id.
    pub id: u64,
    /// Its queue pair.
    pub queue_pair: crate::QueuePairNumber,
    /// How it ended. Unless [`Status::Success`] only `id`, `queue_pair` and `kind` mean anything besides.
    pub status: Status,
    /// Which queue it was on.
    pub kind: CompletionKind,
    /// Bytes received or written by the message.
    pub length: u64,
    /// The message's immediate.
    pub immediate: Option<u32>,
}

impl Completion {
    /// A value to fill a slice for [`crate::Device::poll`] with.
    pub const EMPTY: Self = Self {
        id: 0,
        queue_pair: crate::QueuePairNumber(0),
        status: Status::Success,
        kind: CompletionKind::Send,
        length: 0,
        immediate: None,
    };
}
