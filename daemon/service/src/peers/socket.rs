//! TCP sockets that never block.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
};

use ringway_mem::calls;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

/// Connections that may wait to be accepted: a large communicator's daemons all come at once.
const BACKLOG: i32 = 4096;

/// Starts to listen.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // The standard library lets only 128 wait; listening again changes nothing but that.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts one connection; `None` when there is none.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    calls::count();
    match listener.accept() {
        Ok((stream, from)) => {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            Ok(Some((stream, from)))
        }
        // The peer hung up while it waited to be accepted, or a signal came: nothing is wrong with the listener.
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => Ok(None),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

/// Starts to connect; the socket becomes writable when it is done.
pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a connection that was started is made: `Ok(false)` while it is not.
pub(crate) fn finish_connect(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        // With nobody listening, a socket that was given the very port it connects to is connected with itself.
        Ok(peer) if stream.local_addr()? == peer => Err(ErrorKind::ConnectionRefused.into()),
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotConnected => Ok(false),
        Err(e) => Err(e),
    }
}

/// What one read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The other side has closed.
    Closed,
}

/// Reads what is there.
pub(crate) fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
    calls::count();
    match stream.read(buffer) {
        Ok(0) => Ok(ReadOutcome::Closed),
        Ok(n) => Ok(ReadOutcome::Bytes(n)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(ReadOutcome::Nothing)
        }
        Err(e) => Err(e),
    }
}

/// Writes what fits; returns how much that was.
pub(crate) fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    calls::count();
    match stream.write(bytes) {
        Ok(n) => Ok(n),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(e) => Err(e),
    }
}

/// Whether an address is one of this host's.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}
