//! Why a queue pair failed.

use ringway_verbs::Status;
use thiserror::Error;

/// What moved a queue pair to the error state. Completions say it in the words of `ringway-verbs`, which are fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Failure {
    /// The caller moved it there.
    #[error("the queue pair was moved to the error state")]
    Requested,
    /// The caller knows that the peer, or the way to it, is gone.
    #[error("the peer is gone")]
    PeerLost,
    /// No acknowledgement came, however often the request was sent.
    #[error("the peer does not answer: the request was sent again as often as the retry count allows")]
    RetriesExceeded,
    /// The peer had no receive posted, however often the request was sent.
    #[error("the peer posts no receive: the request was sent again as often as the RNR retry count allows")]
    RnrRetriesExceeded,
    /// The peer refused the request as malformed, or its receive buffer was too short.
    #[error("the peer refused the request as malformed or too long for its receive")]
    RemoteInvalidRequest,
    /// The peer refused the key, range or access.
    #[error("the peer refused the memory key, the range or the access")]
    RemoteAccess,
    /// The peer could not go on.
    #[error("the peer could not carry out the request")]
    RemoteOperational,
    /// The peer's answer does not fit what was asked.
    #[error("the peer's answer does not fit the request")]
    BadResponse,
    /// Local memory of a posted request was deregistered or may not be written.
    #[error("local memory of a posted request is no longer registered, or may not be written")]
    LocalProtection,
    /// A message is longer than the receive posted for it.
    #[error("a message of the peer is longer than the receive posted for it")]
    ReceiveTooShort,
    /// A request of the peer made no sense.
    #[error("a request of the peer makes no sense here and was refused")]
    InvalidRequestReceived,
    /// A request of the peer named memory it may not use.
    #[error("a request of the peer names memory that it may not use and was refused")]
    AccessRefused,
}

impl Failure {
    /// How the oldest request of the send queue completes.
    #[must_use]
    pub const fn send_status(self) -> Status {
        match self {
            Self::PeerLost
            | Self::RetriesExceeded
            | Self::RnrRetriesExceeded
            | Self::RemoteOperational
            | Self::BadResponse => Status::TransportLost,
            Self::RemoteInvalidRequest => Status::RemoteInvalidRequest,
            Self::RemoteAccess => Status::RemoteAccess,
            Self::LocalProtection => Status::LocalProtection,
            Self::Requested | Self::ReceiveTooShort | Self::InvalidRequestReceived | Self::AccessRefused => {
                Status::Flushed
            }
        }
    }
}
