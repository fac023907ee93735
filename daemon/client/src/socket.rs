//! Connecting to the daemon's Unix SEQPACKET socket. Messages on it are those of `ringway_mem::passing`.

use core::time::Duration;
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use ringway_mem::calls;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with},
};

/// Connects to a daemon's socket.
pub(crate) fn connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Waits until there is something to receive, a hang-up included.
pub(crate) fn readable(socket: BorrowedFd<'_>, patience: Duration) -> rustix::io::Result<bool> {
    is_ready(socket, PollFlags::IN, patience)
}

/// Waits until there is room to send, or nobody to send to.
pub(crate) fn writable(socket: BorrowedFd<'_>, patience: Duration) -> rustix::io::Result<bool> {
    is_ready(socket, PollFlags::OUT, patience)
}

fn is_ready(socket: BorrowedFd<'_>, flags: PollFlags, patience: Duration) -> rustix::io::Result<bool> {
    let timeout = Timespec::try_from(patience).map_err(|_| Errno::INVAL)?;
    calls::count();
    match poll(&mut [PollFd::new(&socket, flags)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(reason) => Err(reason),
    }
}
