//! Receiving: where the next bytes go, and what arrived frames do. Everything here treats the peer as hostile: a
//! frame is parsed and checked before it has any effect, and what is wrong ends the connection.

use ringway_verbs::{CompletionKind, LocalSlice, Operation, RemoteSlice, Status};

use crate::buffers::{MAX_PIECE, ReceivePlan, SMALL_PAYLOAD, STAGING_LENGTH};
use crate::connection::{fail, finish, ready, refuse, violate};
use crate::driver::Awaited;
use crate::error::{ProtocolError, TcpFailure};
use crate::frame::{self, Frame, HEADER_LENGTH, Header, MAX_READS};
use crate::queue_pair::{Arriving, Connection, Incoming, Phase, QueuePair, Response, Shared, Waits};
use crate::stripes::cut;

/// Messages up to this many bytes are acknowledged with the reply, if there is one soon: to send an acknowledgement alone
/// costs about as much as the message did. Whoever sends more waits for its memory to be free.
const SHORT: u64 = 16 << 10;

/// Has the kernel receive what comes next, unless it does already.
pub(crate) fn arm(pair: &mut QueuePair, shared: &mut Shared) {
    if !matches!(pair.phase, Phase::Connecting | Phase::Ready | Phase::Draining) || !pair.is_whole() {
        return;
    }
    let mut started = true;
    for (at, connection) in pair.connections_mut().enumerate() {
        started &= arm_connection(connection, shared, at == 0);
    }
    if !started {
        fail(pair, shared, TcpFailure::System(libc::EBUSY), Status::TransportLost);
    }
}

/// `false` if a receive could not be started.
fn arm_connection(connection: &mut Connection, shared: &mut Shared, has_frames: bool) -> bool {
    let Some(socket) = &connection.socket else { return true };
    let awaits = connection.awaits();
    // What is read ahead of what is known to come waits for a message's other parts. More is left to the socket.
    let may_read = |plan: &mut Box<ReceivePlan>| awaits || plan.unread().len() < HEADER_LENGTH;
    let Some(mut plan) = connection.plan.take_if(may_read) else { return true };
    let mut places = [None, None];
    let mut complete = true;
    let mut room = MAX_PIECE;
    for (place, slice) in places.iter_mut().zip(&connection.places) {
        let length = slice.length.min(room);
        complete &= length == slice.length;
        room -= length;
        if length > 0 {
            *place = shared.memory.span(&LocalSlice { length, ..*slice });
        }
    }
    debug_assert!(complete || room < MAX_PIECE, "a receive has a place");
    plan.aim(places, if complete { connection.ahead } else { 0 });
    let awaited = match connection.drained_socket {
        _ if !awaits && !has_frames => Awaited::Hardly,
        true => Awaited::Soon,
        false => Awaited::Now,
    };
    connection.plan = shared.driver.receive(socket, connection.number, plan, awaited).err();
    connection.plan.is_none()
}

/// Bytes arrived, or the connection ended.
pub(crate) fn received(
    pair: &mut QueuePair,
    shared: &mut Shared,
    at: usize,
    mut plan: Box<ReceivePlan>,
    (result, more): (i32, bool),
) {
    let Some(connection) = pair.connection(at) else { return };
    connection.drained_socket = !more;
    let Ok(count) = u64::try_from(result) else {
        connection.plan = Some(plan);
        if pair.phase == Phase::Closing {
            return finish(pair, shared);
        }
        if result != -libc::EINTR && result != -libc::EAGAIN {
            return fail(pair, shared, TcpFailure::from_errno(-result), Status::TransportLost);
        }
        return pair.mark(shared);
    };
    shared.counters.bytes_received += count;
    connection.advance(plan.received(count));
    connection.plan = Some(plan);
    if pair.phase == Phase::Closing || count == 0 {
        finish(pair, shared);
        return fail(pair, shared, TcpFailure::Closed, Status::TransportLost);
    }
    consume(pair, shared);
    finish(pair, shared);
    pair.mark(shared);
}

/// Works through the bytes read ahead.
fn consume(pair: &mut QueuePair, shared: &mut Shared) {
    loop {
        if matches!(pair.phase, Phase::Closing | Phase::Closed) {
            return;
        }
        match pair.incoming {
            Incoming::Discard => {
                for plan in pair.connections_mut().filter_map(|connection| connection.plan.as_mut()) {
                    plan.consume(plan.unread().len());
                }
                return;
            }
            Incoming::Payload { what, length } => {
                for connection in pair.connections_mut() {
                    take_payload(connection, shared);
                }
                if pair.connections().any(Connection::awaits) {
                    return;
                }
                pair.incoming = Incoming::Header;
                arrived(pair, shared, what, length);
            }
            Incoming::Header => {
                let Some(plan) = pair.first.plan.as_mut() else { return };
                let Some(bytes) = plan.unread().first_chunk::<HEADER_LENGTH>() else { return };
                let header = frame::parse(bytes);
                plan.consume(HEADER_LENGTH);
                match header {
                    Ok(header) => on_header(pair, shared, &header),
                    Err(error) => return violate(pair, shared, error),
                }
            }
        }
    }
}

/// Copies payload that was read ahead on a connection to its places.
fn take_payload(connection: &mut Connection, shared: &mut Shared) {
    let Some(plan) = connection.plan.as_mut() else { return };
    let copied = copy_payload(shared, plan.unread(), &connection.places);
    shared.counters.bytes_copied += copied as u64;
    plan.consume(copied);
    connection.advance(copied as u64);
}

/// Copies payload that was read ahead to its places; returns how much.
fn copy_payload(shared: &Shared, mut bytes: &[u8], places: &[LocalSlice; 2]) -> usize {
    let mut copied = 0;
    for place in places.iter().filter(|place| place.length > 0) {
        let Some(window) = shared.memory.window(place) else { return copied };
        let count = window.write(bytes);
        copied += count;
        bytes = bytes.get(count..).unwrap_or_default();
    }
    copied
}

/// The running count that a frame's 32 bits stand for: the first at or after `known` that ends in them.
fn widen(known: u64, wire: u32) -> u64 {
    known + u64::from(wire.wrapping_sub(known as u32))
}

fn on_header(pair: &mut QueuePair, shared: &mut Shared, header: &Header) {
    let acknowledged = widen(pair.acknowledged, header.executed);
    if acknowledged > pair.built {
        return violate(pair, shared, ProtocolError::Acknowledgement);
    }
    let credits = widen(pair.credits, header.receives);
    if credits - pair.credits > u64::from(u32::MAX / 2) {
        return violate(pair, shared, ProtocolError::Credit);
    }
    pair.acknowledged = acknowledged;
    pair.credits = credits;
    if pair.phase == Phase::Connecting {
        ready(pair, shared);
    }
    pair.complete_done(shared);
    match header.frame {
        Frame::Acknowledge => {}
        Frame::Send { length, immediate, asks } => {
            let waits = match asks {
                false => Waits::Nothing,
                true if length <= SHORT => Waits::Reply,
                true => Waits::Memory,
            };
            on_send(pair, shared, length, (immediate, waits));
        }
        Frame::Write { length, remote, immediate, asks } => {
            let waits = if asks { Waits::Memory } else { Waits::Nothing };
            on_write(pair, shared, length, remote, (immediate, waits));
        }
        Frame::Read { length, remote } => on_read(pair, shared, length, remote),
        Frame::FetchAdd { remote, add } => {
            on_atomic(pair, shared, remote, |old| Some(old.wrapping_add(add)));
        }
        Frame::CompareSwap { remote, expected, desired } => {
            on_atomic(pair, shared, remote, |old| (old == expected).then_some(desired));
        }
        Frame::ReadResponse { length } => on_read_response(pair, shared, length),
        Frame::AtomicResponse { old } => on_atomic_response(pair, shared, old),
        Frame::Refuse { status } => fail(pair, shared, TcpFailure::RefusedByPeer(status), status),
    }
}

/// How many bytes are read ahead after a message of this length. As most messages are like the one before, of long ones that
/// is no more than a header: what is read ahead has to be copied to its place. Short ones come several at a time.
const fn read_ahead_after(length: u64) -> usize {
    if length + HEADER_LENGTH as u64 > STAGING_LENGTH as u64 {
        HEADER_LENGTH + SMALL_PAYLOAD as usize
    } else {
        STAGING_LENGTH
    }
}

/// Has every connection expect its part of a message, for these places.
fn expect_payload(pair: &mut QueuePair, what: Arriving, length: u64, places: [LocalSlice; 2]) {
    pair.incoming = Incoming::Payload { what, length };
    let ahead = read_ahead_after(length);
    let division = pair.receiving.divide(length);
    pair.receiving.advance(&division);
    for (at, connection) in pair.connections_mut().enumerate() {
        connection.places = places;
        connection.ahead = ahead;
        let ranges = cut(places.map(|place| place.length), division.of(at));
        for (place, (start, length)) in connection.places.iter_mut().zip(ranges) {
            *place = LocalSlice { offset: place.offset + start, length, ..*place };
        }
    }
}

fn on_send(pair: &mut QueuePair, shared: &mut Shared, length: u64, (immediate, waits): (Option<u32>, Waits)) {
    let Some(receive) = pair.receives.front().copied() else {
        return violate(pair, shared, ProtocolError::NoReceive);
    };
    if length > receive.local.length {
        pair.complete_receive(shared, Status::LocalLength, CompletionKind::Receive, 0, None);
        return refuse(pair, shared, Status::RemoteInvalidRequest);
    }
    let place = LocalSlice { length, ..receive.local };
    expect_payload(pair, Arriving::Send { immediate, waits }, length, [place, LocalSlice::default()]);
}

fn on_write(
    pair: &mut QueuePair,
    shared: &mut Shared,
    length: u64,
    remote: RemoteSlice,
    (immediate, waits): (Option<u32>, Waits),
) {
    let place = if length == 0 {
        LocalSlice::default()
    } else {
        match shared.memory.remote(remote, length, |access| access.remote_write) {
            Some(place) => place,
            None => return refuse(pair, shared, Status::RemoteAccess),
        }
    };
    if immediate.is_some() && pair.receives.is_empty() {
        return violate(pair, shared, ProtocolError::NoReceive);
    }
    shared.memory.hold(&place);
    let what = Arriving::Write { immediate, waits, held: place };
    expect_payload(pair, what, length, [place, LocalSlice::default()]);
}

fn on_read(pair: &mut QueuePair, shared: &mut Shared, length: u64, remote: RemoteSlice) {
    if pair.responses.len() >= MAX_READS {
        return violate(pair, shared, ProtocolError::TooManyReads);
    }
    if length == 0 {
        // Nothing is read, so there is nothing to check.
        pair.responses.push_back(Response::Empty);
        pair.executed += 1;
        return;
    }
    let span = shared
        .memory
        .remote(remote, length, |access| access.remote_read)
        .and_then(|slice| shared.memory.span(&slice));
    match span {
        Some(span) => {
            pair.responses.push_back(Response::Read(span));
            pair.executed += 1;
        }
        None => refuse(pair, shared, Status::RemoteAccess),
    }
}

fn on_atomic(
    pair: &mut QueuePair,
    shared: &mut Shared,
    remote: RemoteSlice,
    update: impl Fn(u64) -> Option<u64>,
) {
    if pair.responses.len() >= MAX_READS {
        return violate(pair, shared, ProtocolError::TooManyReads);
    }
    if !remote.offset.is_multiple_of(8) {
        return refuse(pair, shared, Status::RemoteInvalidRequest);
    }
    let slice = shared.memory.remote(remote, 8, |access| access.remote_atomic);
    let Some(window) = slice.and_then(|slice| shared.memory.window(&slice)) else {
        return refuse(pair, shared, Status::RemoteAccess);
    };
    // Atomic among the requests of this device, which one thread executes one after the other (IBA volume 1, 9.4.5:
    // atomicity towards the host's own accesses is not promised).
    let mut old = [0; 8];
    window.read(&mut old);
    let old = u64::from_ne_bytes(old);
    if let Some(new) = update(old) {
        window.write(&new.to_ne_bytes());
    }
    pair.responses.push_back(Response::Atomic(old));
    pair.executed += 1;
}

fn on_read_response(pair: &mut QueuePair, shared: &mut Shared, length: u64) {
    let number = pair.reads.front().copied();
    let entry = number.and_then(|number| pair.send_entry(number)).map(|entry| entry.request);
    match entry {
        Some(request)
            if matches!(request.operation, Operation::Read { .. }) && request.length() == length =>
        {
            expect_payload(pair, Arriving::ReadResponse, length, request.local);
        }
        _ => violate(pair, shared, ProtocolError::Response),
    }
}

fn on_atomic_response(pair: &mut QueuePair, shared: &mut Shared, old: u64) {
    let number = pair.reads.front().copied();
    let entry = number.and_then(|number| pair.send_entry(number)).map(|entry| entry.request);
    match entry {
        Some(request) if request.operation.is_atomic() => {
            if let Some(window) = shared.memory.window(&request.local[0]) {
                window.write(&old.to_ne_bytes());
            }
            answered(pair, shared);
        }
        _ => violate(pair, shared, ProtocolError::Response),
    }
}

/// The oldest READ or atomic has its answer.
fn answered(pair: &mut QueuePair, shared: &mut Shared) {
    let number = pair.reads.pop_front();
    if let Some(entry) = number.and_then(|number| pair.send_entry(number)) {
        entry.answered = true;
    }
    pair.complete_done(shared);
}

/// A message's bytes are all in place.
fn arrived(pair: &mut QueuePair, shared: &mut Shared, what: Arriving, length: u64) {
    match what {
        Arriving::Send { immediate, waits } => {
            pair.count_executed(length, waits, shared.now);
            pair.complete_receive(shared, Status::Success, CompletionKind::Receive, length, immediate);
        }
        Arriving::Write { immediate, waits, held } => {
            shared.memory.release(&held);
            pair.count_executed(length, waits, shared.now);
            if immediate.is_some() {
                let kind = CompletionKind::ReceiveWrite;
                pair.complete_receive(shared, Status::Success, kind, length, immediate);
            }
        }
        Arriving::ReadResponse => answered(pair, shared),
    }
}
