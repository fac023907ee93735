//! What can go wrong, in words for a person.

#[cfg(feature = "verbs")]
use ringway_verbs::Cause;
use rustix::io::Errno;
use thiserror::Error;

use crate::{ChoiceError, SelectorError};

/// Why the device could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IbverbsError {
    /// There is no port to use.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The text names no device.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The library is not there, or too old.
    #[error(
        "this host has no libibverbs ({0}); install the package libibverbs1 with ibverbs-providers (rdma-core, libibverbs)"
    )]
    NoLibrary(String),
    /// The kernel has the device, but the library has nothing to drive it with.
    #[error(
        "libibverbs cannot drive RDMA device `{0}`: install the package ibverbs-providers (rdma-core), load the kernel module \
         ib_uverbs, and see to it that /dev/infiniband is there (in a container: pass it in)"
    )]
    NoDriver(String),
    /// The device refused to be opened.
    #[error(
        "RDMA device `{device}` cannot be opened (errno {errno}): check the rights on /dev/infiniband/uverbs*, and in a container \
         that they are passed in"
    )]
    Open {
        /// Its name.
        device: String,
        /// The system's reason.
        errno: i32,
    },
    /// The system refused something (an `errno` value).
    #[error("the system refused {what} (errno {errno}{})", hint(*errno))]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
    /// A limit that was asked for is out of range.
    #[error("{limit} must be between 1 and {most}")]
    Limit {
        /// Which limit.
        limit: &'static str,
        /// The most it may be.
        most: u32,
    },
}

impl IbverbsError {
    #[cfg(feature = "verbs")]
    pub(crate) fn system(what: &'static str, errno: Errno) -> Self {
        Self::System { what, errno: errno.raw_os_error() }
    }
}

/// What to do about it, where that is known.
fn hint(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::NOMEM => {
            ": more locked memory is needed than the limit allows; `ulimit -l unlimited`, or LimitMEMLOCK=infinity"
        }
        Errno::PERM | Errno::ACCESS => ": the privilege is missing",
        _ => "",
    }
}

/// Why a queue pair failed, for logs and messages; see `IbverbsDevice::last_error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum IbverbsFailure {
    /// The peer did not answer while connecting.
    #[error("the peer did not answer in time: it has ended, or no packets of its RDMA port come here")]
    NoAnswer,
    /// The device's retries are used up.
    #[error(
        "the peer does not answer any more: the connection broke, the peer has ended, or a link was down for longer than all \
         retries take"
    )]
    RetriesExceeded,
    /// The peer refused a request.
    #[error("the peer refused a request")]
    RefusedRequest,
    /// A request of the peer was refused.
    #[error("a request of the peer was refused")]
    RefusedPeer,
    /// The device says that the queue pair has failed.
    #[error("the RDMA device reports that the queue pair has failed")]
    Fatal,
    /// The device says that it is broken or being removed.
    #[error("the RDMA device is broken, or was removed")]
    DeviceLost,
    /// The system refused a step (an `errno` value).
    #[error("the system refused {what} (errno {errno})")]
    System {
        /// The step.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
    /// This side moved it to the error state.
    #[error("this side ended the connection")]
    Local,
}

impl IbverbsFailure {
    /// Whose failure it is, in words without numbers.
    #[cfg(feature = "verbs")]
    pub(crate) const fn cause(self) -> Cause {
        let of_peer = match self {
            Self::Fatal => return Cause::QueuePairFatal,
            Self::DeviceLost => return Cause::DeviceLost,
            Self::NoAnswer => {
                "its connection broke: it did not answer in time, so it has ended, or no packets of its RDMA port come here"
            }
            Self::RetriesExceeded => {
                "its connection broke: it did not answer for as long as requests are repeated (see verbs_timeout and \
                 verbs_retries), or there is no way to it"
            }
            Self::RefusedRequest => "its connection broke: it refused a request",
            Self::RefusedPeer => "its connection broke: a request of it was refused, or its queue pair ended",
            Self::System { .. } => "its connection broke: the system refused to make or use it",
            Self::Local => "its connection was ended by this side",
        };
        Cause::Peer(of_peer)
    }
}
