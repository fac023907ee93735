//! The option of sockets that has no safe form elsewhere.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use crate::error::TcpError;

/// Has reads of a socket poll the network card's queue for so many microseconds; nothing is done for 0.
pub(crate) fn set_busy_polling(socket: &OwnedFd, busy_poll_us: u32) -> rustix::io::Result<()> {
    if busy_poll_us == 0 {
        return Ok(());
    }
    let value = libc::c_int::try_from(busy_poll_us).map_err(|_| Errno::INVAL)?;
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open, as it is borrowed; the kernel reads `length` bytes of `value`, which is as long and lives
    // until the call returns.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            (&raw const value).cast(),
            length,
        )
    };
    if done == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

/// Whether that is allowed, before there is any connection.
pub(crate) fn check_busy_polling(busy_poll_us: u32) -> Result<(), TcpError> {
    if busy_poll_us == 0 {
        return Ok(());
    }
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
        .and_then(|socket| set_busy_polling(&socket, busy_poll_us))
        .map_err(|errno| TcpError::BusyPolling(errno.raw_os_error()))
}
