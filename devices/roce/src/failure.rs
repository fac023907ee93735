//! Why a queue pair failed, in words for a person.

use ringway_rc::Failure;
use thiserror::Error;

use crate::LinkError;

/// Why a queue pair failed, for logs and messages; see [`RoceDevice::last_error`](crate::RoceDevice::last_error).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RoceFailure {
    /// There is no way to the peer.
    #[error(transparent)]
    Unreachable(#[from] LinkError),
    /// The way to the peer carries less than both ends' interfaces do.
    #[error(
        "the way to the peer carries {way} bytes of payload in a packet, the interfaces of both ends {both}: give all of \
         the network the same MTU, or limit the path MTU"
    )]
    NarrowWay {
        /// What the way carries.
        way: usize,
        /// What both ends agreed on.
        both: usize,
    },
    /// The peer did not answer while connecting.
    #[error(
        "the peer did not answer: UDP port 4791 may be blocked by a firewall, or its device may be another one"
    )]
    NoAnswer,
    /// Nothing has been heard of the peer.
    #[error("nothing has been heard of the peer for {0} ms")]
    Silent(u64),
    /// The peer's host says that nobody listens there, and the peer, asked, says nothing.
    #[error(
        "the peer's host says that nobody takes packets on its RoCE port, and the peer has not answered for {0} ms since: \
         its process has ended, or a firewall there rejects UDP port 4791"
    )]
    Refused(u64),
    /// The peer says nothing, in the words of that failure, and packets to it were said to be too long.
    #[error(
        "{0}; and packets to the peer were refused as too long for the way (EMSGSIZE, \"fragmentation needed\"): give all of the \
         network the same MTU, or limit the path MTU"
    )]
    TooLong(Box<Self>),
    /// The peer's queue pair has failed or was destroyed.
    #[error("the peer's queue pair has failed or was destroyed")]
    Gone,
    /// The caller moved the queue pair to the error state.
    #[error("the queue pair was moved to the error state by its owner")]
    Local,
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] Failure),
}

impl RoceFailure {
    /// Whether all that is known is that the peer says nothing.
    pub(crate) const fn is_silence(&self) -> bool {
        matches!(self, Self::NoAnswer | Self::Silent(_) | Self::Transport(Failure::RetriesExceeded))
    }
}
