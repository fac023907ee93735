//! Telling a running daemon to stop.

use std::os::{
    fd::{AsFd, BorrowedFd},
    unix::net::UnixStream,
};

/// Stops the daemon when anything is written to it, or when it is dropped. A signal handler can write to it.
#[derive(Debug)]
pub struct StopHandle(UnixStream);

/// What the daemon watches.
#[derive(Debug)]
pub struct Stop(UnixStream);

/// A handle and what it stops.
///
/// # Errors
/// When the system has no descriptors left.
pub fn stop_pair() -> std::io::Result<(StopHandle, Stop)> {
    let (handle, stop) = UnixStream::pair()?;
    handle.set_nonblocking(true)?;
    stop.set_nonblocking(true)?;
    Ok((StopHandle(handle), Stop(stop)))
}

impl StopHandle {
    /// Another handle, for another signal.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Stops the daemon when the process gets one of these signals.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn on_signals(&self, signals: &[i32]) -> std::io::Result<()> {
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, self.0.try_clone()?)?;
        }
        Ok(())
    }

    /// Stops the daemon.
    pub fn stop(&self) {
        use std::io::Write;
        let _ = (&self.0).write(&[1]);
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
