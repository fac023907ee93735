//! What can go wrong, in words for a person.

use ringway_verbs::Status;
use thiserror::Error;

use crate::frame::FrameError;

/// Why the device could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TcpError {
    /// The kernel has no io_uring.
    #[error("the kernel has no io_uring; the tcp device needs Linux 6.1 or newer")]
    NoIoUring,
    /// io_uring may not be used here.
    #[error(
        "io_uring is forbidden here; set the sysctl kernel.io_uring_disabled to 0 (or to 1 with this process in \
         kernel.io_uring_group), and allow the io_uring system calls in the container's seccomp profile; \
         the device `tcp-epoll` does without it"
    )]
    Forbidden,
    /// The kernel's io_uring lacks what is needed.
    #[error("the kernel's io_uring is too old; the tcp device needs Linux 6.1 or newer")]
    TooOld,
    /// Not enough memory may be locked.
    #[error("the kernel refused memory for io_uring; raise the limit on locked memory (ulimit -l)")]
    Memory,
    /// Anything else (an `errno` value).
    #[error("the system refused {what} (errno {errno})")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
    /// Sockets may not poll the network card (an `errno` value).
    #[error(
        "the system refused busy polling (errno {0}); it needs CAP_NET_ADMIN and a kernel with CONFIG_NET_RX_BUSY_POLL; \
         set it to 0 to do without"
    )]
    BusyPolling(i32),
    /// Connections may not have this congestion control (an `errno` value).
    #[error(
        "the system refused {name} as TCP's congestion control (errno {errno}); it has those in \
         net.ipv4.tcp_available_congestion_control, of which without CAP_NET_ADMIN only those in \
         net.ipv4.tcp_allowed_congestion_control may be used"
    )]
    Congestion {
        /// What was asked for.
        name: &'static str,
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

/// Why a queue pair failed, for logs and messages; see [`TcpDevice::last_error`](crate::TcpDevice::last_error).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TcpFailure {
    /// The peer's host answered that nobody listens.
    #[error("the peer refused the connection: nothing listens on its data port")]
    Refused,
    /// There is no way to the peer.
    #[error("the peer's address cannot be reached (errno {0}); check the advertised address and the route")]
    Unreachable(i32),
    /// The peer did not connect or answer in time.
    #[error("the peer did not connect in time")]
    TimedOut,
    /// The peer reset the connection.
    #[error("the peer reset the connection; its process has probably died")]
    Reset,
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer did not keep the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(ProtocolError),
    /// The peer refused a request of ours.
    #[error("the peer refused a request: {0:?}")]
    RefusedByPeer(Status),
    /// We refused a request of the peer.
    #[error("a request of the peer was refused: {0:?}")]
    RefusedHere(Status),
    /// There is no slot for its connections.
    #[error(
        "no room for more connections: there are 65,535 already; have fewer queue pairs, or fewer connections for each"
    )]
    NoRoom,
    /// The caller moved the queue pair to the error state.
    #[error("the queue pair was moved to the error state by its owner")]
    Local,
    /// The system failed the connection (an `errno` value).
    #[error("the system failed the connection (errno {0})")]
    System(i32),
}

/// What a peer did that the protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// Bytes that are no header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It acknowledged more requests than it was sent.
    #[error("it acknowledged requests that were not sent")]
    Acknowledgement,
    /// Its count of receives went back.
    #[error("its count of posted receives went back")]
    Credit,
    /// A message came for which no receive was announced.
    #[error("it sent a message for which no receive was announced")]
    NoReceive,
    /// More READs and atomics at once than allowed.
    #[error("it has more READs and atomics outstanding than allowed")]
    TooManyReads,
    /// A response nobody waits for, or of another length.
    #[error("it sent a response that answers no request")]
    Response,
}

impl TcpFailure {
    /// The failure for an `errno` value of a connection.
    pub(crate) const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ECONNREFUSED => Self::Refused,
            libc::ETIMEDOUT => Self::TimedOut,
            libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED => Self::Reset,
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EADDRNOTAVAIL => Self::Unreachable(errno),
            other => Self::System(other),
        }
    }
}
