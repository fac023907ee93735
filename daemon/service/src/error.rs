//! Why a daemon does not run.

use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::{TuningFileError, config::ConfigError};

/// Why a daemon did not start, or stopped.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// A setting makes no sense here.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tuning file cannot be used.
    #[error(transparent)]
    Tuning(#[from] TuningFileError),
    /// Another daemon serves the socket.
    #[error(
        "another ringwayd (process {pid}) already serves `{}`; stop that one, or give this one a different \
         --socket",
        socket.display()
    )]
    AlreadyRunning {
        /// The socket.
        socket: PathBuf,
        /// The other daemon's process, as its lock file says; `?` when it does not.
        pid: String,
    },
    /// The socket cannot be made.
    #[error("cannot listen on `{}`: {reason}", socket.display())]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The operating system refused something the daemon cannot do without.
    #[error("cannot {what}: {errno}")]
    System {
        /// What.
        what: &'static str,
        /// The system's reason.
        errno: Errno,
    },
    /// Work with other nodes cannot start.
    #[error("cannot work with other nodes: {0}")]
    Network(String),
    /// The device between nodes does not work here.
    #[error("device `{device}` does not work here: {reason}")]
    Device {
        /// Which.
        device: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The engine cannot work with this configuration.
    #[error("the engine does not start: {0}")]
    Engine(String),
}

impl ServiceError {
    /// Wraps a refused system call.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { what, errno }
    }
}
