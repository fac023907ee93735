//! Making and ending connections.

use core::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_verbs::{Deadline, Status};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use crate::buffers::STAGING_LENGTH;
use crate::endpoint::Preface;
use crate::error::{ProtocolError, TcpFailure};
use crate::options;
use crate::queue_pair::{Connection, Incoming, Phase, QueuePair, Shared};

/// Makes the sockets and has the kernel connect them.
pub(crate) fn start_active(pair: &mut QueuePair, shared: &mut Shared, peer: SocketAddr) {
    set_deadline(pair, shared, shared.config.connect_timeout_ns);
    let failed = pair.connections_mut().find_map(|connection| start(connection, shared, peer).err());
    if let Some(errno) = failed {
        fail(pair, shared, TcpFailure::from_errno(errno.raw_os_error()), Status::TransportLost);
    }
}

fn start(connection: &mut Connection, shared: &mut Shared, peer: SocketAddr) -> rustix::io::Result<()> {
    let socket = connection.socket.insert(Arc::new(make_socket(peer, shared)?));
    connection.connecting = shared.driver.connect(socket, connection.number, peer);
    if connection.connecting { Ok(()) } else { Err(Errno::BUSY) }
}

fn make_socket(peer: SocketAddr, shared: &Shared) -> rustix::io::Result<OwnedFd> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, shared.driver.wants_nonblocking());
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    prepare(&socket, shared)?;
    if let Some(source) = shared.config.source.filter(|source| source.is_ipv4() == peer.is_ipv4()) {
        rustix::net::bind(&socket, &SocketAddr::new(source, 0))?;
    }
    Ok(socket)
}

/// Sets what every connection has.
fn prepare(socket: &OwnedFd, shared: &Shared) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    shared.config.congestion.apply(socket)?;
    options::set_busy_polling(socket, shared.config.busy_poll_us)
}

/// The kernel's word on a connect.
pub(crate) fn connected(pair: &mut QueuePair, shared: &mut Shared, at: usize, result: i32) {
    let (token, connections) = (pair.peer_token, pair.count());
    let (is_connecting, is_closing) = (pair.phase == Phase::Connecting, pair.phase == Phase::Closing);
    let Some(connection) = pair.connection(at) else { return };
    connection.connecting = false;
    if is_closing {
        return finish(pair, shared);
    }
    if !is_connecting || result < 0 {
        return fail(pair, shared, TcpFailure::from_errno(-result), Status::TransportLost);
    }
    // The peer answers with its first frame when it has matched the token of all of them.
    if let (Some(batch), Some(token)) = (connection.batch.as_mut(), token) {
        // Neither is more than `MAX_CONNECTIONS`.
        let preface = Preface { token, connection: at as u8, connections: connections as u8 };
        batch.add_bytes(&preface.encode());
    }
    pair.mark(shared);
}

/// Whether a queue pair waits for an accepted connection that says this of itself, beside the token.
pub(crate) fn waits_for(pair: &mut QueuePair, preface: &Preface) -> bool {
    !pair.active
        && matches!(pair.phase, Phase::Init | Phase::Connecting)
        && (!pair.agreed || pair.count() == usize::from(preface.connections))
        && pair.connection(preface.connection.into()).is_none_or(|connection| connection.socket.is_none())
}

/// Takes an accepted connection that this queue pair waits for.
pub(crate) fn take_offer(pair: &mut QueuePair, shared: &mut Shared, at: usize, socket: OwnedFd) {
    let prepared = rustix::io::ioctl_fionbio(&socket, shared.driver.wants_nonblocking())
        .and_then(|()| prepare(&socket, shared));
    let Some(connection) = pair.connection(at) else { return };
    connection.socket = Some(Arc::new(socket));
    if let Err(errno) = prepared {
        return fail(pair, shared, TcpFailure::from_errno(errno.raw_os_error()), Status::TransportLost);
    }
    if pair.phase == Phase::Connecting && pair.is_whole() {
        ready(pair, shared);
    }
}

/// Waits for offers, or goes on with those that came before.
pub(crate) fn start_passive(pair: &mut QueuePair, shared: &mut Shared) {
    if pair.is_whole() {
        ready(pair, shared);
    } else {
        set_deadline(pair, shared, shared.config.connect_timeout_ns);
    }
}

/// Frames may go both ways from here on.
pub(crate) fn ready(pair: &mut QueuePair, shared: &mut Shared) {
    pair.phase = Phase::Ready;
    pair.peer_token = None;
    shared.changed = true;
    pair.deadline = None;
    pair.mark(shared);
}

fn set_deadline(pair: &mut QueuePair, shared: &mut Shared, after_ns: u64) {
    let deadline = Deadline::After(after_ns);
    (pair.deadline, shared.next_deadline) = (Some(deadline), Some(deadline.look_at()));
}

/// The peer did not do in time what it had to.
pub(crate) fn expire(pair: &mut QueuePair, shared: &mut Shared) {
    pair.deadline = None;
    match pair.phase {
        Phase::Connecting => fail(pair, shared, TcpFailure::TimedOut, Status::TransportLost),
        Phase::Draining => close(pair, shared),
        _ => {}
    }
}

/// Refuses a request of the peer: it learns why after what it was sent before, and both queue pairs fail.
pub(crate) fn refuse(pair: &mut QueuePair, shared: &mut Shared, status: Status) {
    pair.failure = Some(TcpFailure::RefusedHere(status));
    pair.first_status = Status::Flushed;
    pair.phase = Phase::Draining;
    shared.changed = true;
    pair.refusal = Some(status);
    pair.incoming = Incoming::Discard;
    pair.flush_receives(shared);
    set_deadline(pair, shared, shared.config.linger_ns);
    pair.mark(shared);
}

/// Everything that was to be sent before the end is sent: the peer sees the end of the stream and closes.
pub(crate) fn drained(pair: &mut QueuePair, shared: &mut Shared) {
    // Not of the others: the peer could see their end before it has read why.
    if let Some(socket) = &pair.first.socket {
        let _ = rustix::net::shutdown(socket, Shutdown::Write);
    }
    pair.flush_sends(shared);
}

/// The peer broke the protocol.
pub(crate) fn violate(pair: &mut QueuePair, shared: &mut Shared, error: impl Into<ProtocolError>) {
    fail(pair, shared, TcpFailure::Protocol(error.into()), Status::TransportLost);
}

/// Ends a connection. The oldest request completes with `first`, once the kernel has let go of everything.
pub(crate) fn fail(pair: &mut QueuePair, shared: &mut Shared, failure: TcpFailure, first: Status) {
    if matches!(pair.phase, Phase::Closing | Phase::Closed) {
        return;
    }
    if pair.phase != Phase::Draining {
        pair.failure = Some(failure);
        pair.first_status = first;
    }
    close(pair, shared);
}

fn close(pair: &mut QueuePair, shared: &mut Shared) {
    pair.phase = Phase::Closing;
    shared.changed = true;
    pair.deadline = None;
    if pair.in_flight() {
        for connection in pair.connections() {
            if let Some(socket) = &connection.socket {
                let _ = rustix::net::shutdown(socket, Shutdown::Both);
                shared.driver.cancel(socket, connection.number);
            }
        }
    }
    finish(pair, shared);
}

/// Flushes and closes, if nothing is in flight any more.
pub(crate) fn finish(pair: &mut QueuePair, shared: &mut Shared) {
    if pair.phase != Phase::Closing || pair.in_flight() {
        return;
    }
    pair.phase = Phase::Closed;
    for connection in pair.connections_mut() {
        shared.driver.forget(connection.number);
        connection.socket = None;
        connection.payload = None;
        if let Some(batch) = connection.batch.as_mut() {
            batch.clear();
        }
        if let Some(plan) = connection.plan.as_mut() {
            plan.aim([None, None], STAGING_LENGTH);
        }
    }
    pair.responses.clear();
    if let Incoming::Payload { what: crate::queue_pair::Arriving::Write { held, .. }, .. } = pair.incoming {
        shared.memory.release(&held);
    }
    pair.incoming = Incoming::Discard;
    pair.flush_sends(shared);
    pair.flush_receives(shared);
}
