//! Making and ending connections.

use core::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_verbs::{Status, Time};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use crate::endpoint::preface;
use crate::error::{ProtocolError, TcpFailure};
use crate::options;
use crate::queue_pair::{Incoming, Phase, QueuePair, Shared};

/// Makes a socket and has the kernel connect it.
pub(crate) fn start_active(pair: &mut QueuePair, shared: &mut Shared, peer: SocketAddr) {
    set_deadline(pair, shared, shared.config.connect_timeout_ns);
    let socket = match make_socket(peer, shared) {
        Ok(socket) => Arc::new(socket),
        Err(errno) => {
            let failure = TcpFailure::from_errno(errno.raw_os_error());
            return fail(pair, shared, failure, Status::TransportLost);
        }
    };
    pair.connecting = shared.driver.connect(&socket, pair.number.0, peer);
    pair.socket = Some(socket);
    if !pair.connecting {
        fail(pair, shared, TcpFailure::System(libc::EBUSY), Status::TransportLost);
    }
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
pub(crate) fn connected(pair: &mut QueuePair, shared: &mut Shared, result: i32) {
    pair.connecting = false;
    match pair.phase {
        Phase::Connecting if result >= 0 => {
            // The peer answers with its first frame when it has matched the token.
            if let (Some(batch), Some(token)) = (pair.batch.as_mut(), pair.peer_token.take()) {
                batch.add_bytes(&preface(&token));
            }
            pair.mark(shared);
        }
        Phase::Closing => finish(pair, shared),
        _ => fail(pair, shared, TcpFailure::from_errno(-result), Status::TransportLost),
    }
}

/// Takes an accepted connection that presented this queue pair's token.
pub(crate) fn take_offer(pair: &mut QueuePair, shared: &mut Shared, socket: OwnedFd) {
    pair.offered = true;
    let prepared = rustix::io::ioctl_fionbio(&socket, shared.driver.wants_nonblocking())
        .and_then(|()| prepare(&socket, shared));
    pair.socket = Some(Arc::new(socket));
    if let Err(errno) = prepared {
        return fail(pair, shared, TcpFailure::from_errno(errno.raw_os_error()), Status::TransportLost);
    }
    if pair.phase == Phase::Connecting {
        ready(pair, shared);
    }
}

/// Waits for the offer, or goes on with one that came before.
pub(crate) fn start_passive(pair: &mut QueuePair, shared: &mut Shared) {
    if pair.socket.is_some() {
        ready(pair, shared);
    } else {
        set_deadline(pair, shared, shared.config.connect_timeout_ns);
    }
}

/// Frames may go both ways from here on.
pub(crate) fn ready(pair: &mut QueuePair, shared: &mut Shared) {
    pair.phase = Phase::Ready;
    shared.changed = true;
    pair.deadline = None;
    pair.mark(shared);
}

fn set_deadline(pair: &mut QueuePair, shared: &mut Shared, after_ns: u64) {
    let deadline = Time(shared.now.0.saturating_add(after_ns));
    pair.deadline = Some(deadline);
    if shared.next_deadline.is_none_or(|next| deadline < next) {
        shared.next_deadline = Some(deadline);
    }
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
    if let Some(socket) = &pair.socket {
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
    if pair.in_flight()
        && let Some(socket) = &pair.socket
    {
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
        shared.driver.cancel(socket, pair.number.0);
    }
    finish(pair, shared);
}

/// Flushes and closes, if nothing is in flight any more.
pub(crate) fn finish(pair: &mut QueuePair, shared: &mut Shared) {
    if pair.phase != Phase::Closing || pair.in_flight() {
        return;
    }
    pair.phase = Phase::Closed;
    shared.driver.forget(pair.number.0);
    pair.socket = None;
    pair.payload = None;
    pair.responses.clear();
    if let Some(batch) = pair.batch.as_mut() {
        batch.clear();
    }
    if let Some(plan) = pair.plan.as_mut() {
        plan.aim([None, None], true);
    }
    if let Incoming::Payload { what: crate::queue_pair::Arriving::Write { held, .. }, .. } = pair.incoming {
        shared.memory.release(&held);
    }
    pair.incoming = Incoming::Discard;
    pair.flush_sends(shared);
    pair.flush_receives(shared);
}
