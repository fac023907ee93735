//! What can go wrong, in words for a person.

use thiserror::Error;

/// Why the device could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ShmError {
    /// The system refused something (an `errno` value).
    #[error("the system refused {what} (errno {errno})")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
    /// The limits asked for are out of range.
    #[error("{limit} must be between 1 and {most}")]
    Limit {
        /// Which limit.
        limit: &'static str,
        /// The most it may be.
        most: u32,
    },
}

/// Why a queue pair failed, for logs and messages; see [`ShmDevice::last_error`](crate::ShmDevice::last_error).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ShmFailure {
    /// Nobody has a socket of this name.
    #[error(
        "nobody is there on this host: the other daemon has ended, is in another network namespace, or is kept away by a \
         security policy"
    )]
    Refused,
    /// The peer did not connect or answer in time.
    #[error("the peer did not connect in time")]
    TimedOut,
    /// The peer closed the connection, or its process ended.
    #[error("the peer closed the connection, or its process has ended")]
    Closed,
    /// The peer sent something that is not possible.
    #[error("the peer broke the protocol: it is of another version, or damaged")]
    Protocol,
    /// There is no memory for the rings.
    #[error("the system has no memory or no descriptor for a connection's rings; check the limits")]
    Memory,
    /// Pages of the peer's memory are gone.
    #[error("pages of the peer's memory are gone: its client took them away, or this host has no memory")]
    PagesLost,
    /// The peer refused a request.
    #[error("the peer refused a request")]
    RefusedRequest,
    /// A request of the peer was refused.
    #[error("a request of the peer was refused")]
    RefusedPeer,
    /// This side moved it to the error state.
    #[error("this side ended the connection")]
    Local,
}
