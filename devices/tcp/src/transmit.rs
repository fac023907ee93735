//! Sending: what goes into the next batch, and what a finished batch means.

use ringway_mem::Span;
use ringway_verbs::{Operation, Status, WorkRequest};

use crate::buffers::SendBatch;
use crate::connection::{drained, fail, finish};
use crate::error::TcpFailure;
use crate::frame::{self, Frame, Header, MAX_READS};
use crate::queue_pair::{Connection, Counters, Payload, Phase, QueuePair, Response, Shared};
use crate::stripes::{Division, cut};

/// Builds and sends batches, unless they are on their way or there is nothing to say.
pub(crate) fn transmit(pair: &mut QueuePair, shared: &mut Shared) {
    if !matches!(pair.phase, Phase::Connecting | Phase::Ready | Phase::Draining) {
        return;
    }
    // Others first: what they take of one payload lets the next begin.
    let built = pair.built;
    pair.others.iter_mut().for_each(|connection| fill(connection, shared, built));
    if pair.phase != Phase::Connecting {
        fill_first(pair, shared);
    }
    let mut started = true;
    for connection in pair.connections_mut().filter(|connection| !connection.connecting) {
        started &= send(connection, shared);
    }
    if !started {
        fail(pair, shared, TcpFailure::System(libc::EBUSY), Status::TransportLost);
    } else if pair.phase == Phase::Draining
        && !pair.sends_flushed
        && pair.connections().all(Connection::is_silent)
    {
        drained(pair, shared);
    }
}

/// Has the kernel send a connection's batch, if it is here and has something; `false` if that could not be started.
fn send(connection: &mut Connection, shared: &mut Shared) -> bool {
    let Some(socket) = &connection.socket else { return true };
    let Some(batch) = connection.batch.take_if(|batch| !batch.is_empty()) else { return true };
    connection.batch = shared.driver.send(socket, connection.number, batch).err();
    connection.batch.is_none()
}

/// Builds the first connection's batch out of frames, and has the others take their parts of payloads.
fn fill_first(pair: &mut QueuePair, shared: &mut Shared) {
    let Some(mut batch) = pair.first.batch.take_if(|batch| batch.is_empty()) else { return };
    batch.first_request = pair.built;
    build(pair, shared, &mut batch);
    pair.first.batch = Some(batch);
}

/// Puts what another connection than the first has of a payload into its batch.
fn fill(connection: &mut Connection, shared: &mut Shared, built: u64) {
    let (Some(batch), Some(payload)) = (connection.batch.as_mut(), connection.payload.as_mut()) else {
        return;
    };
    if batch.is_empty() {
        batch.first_request = payload.request.unwrap_or(built);
    }
    if batch.has_room() && add_payload(payload, &mut shared.counters, batch) {
        connection.payload = None;
    }
}

/// A batch came back from the kernel, without what has been sent of it.
pub(crate) fn sent(
    pair: &mut QueuePair,
    shared: &mut Shared,
    at: usize,
    mut batch: Box<SendBatch>,
    result: i32,
    lent: Option<u64>,
) {
    shared.counters.bytes_sent += u64::try_from(result).unwrap_or(0);
    let complete = batch.is_empty();
    if complete {
        // Regions are in use by what is left of it.
        batch.clear();
    }
    let built = pair.built;
    let Some(connection) = pair.connection(at) else { return };
    connection.batch = Some(batch);
    connection.lent.extend(lent);
    if complete {
        let pending = connection.payload.as_ref().map(|payload| payload.request.unwrap_or(built));
        connection.confirmed = if at == 0 { built } else { pending.unwrap_or(u64::MAX) };
    }
    if pair.phase == Phase::Closing {
        return finish(pair, shared);
    }
    if result < 0 && result != -libc::EINTR && result != -libc::EAGAIN {
        return fail(pair, shared, TcpFailure::from_errno(-result), Status::TransportLost);
    }
    if complete {
        pair.complete_done(shared);
    }
    pair.mark(shared);
}

/// The kernel has let go of what was lent to it under this number.
pub(crate) fn returned(pair: &mut QueuePair, shared: &mut Shared, at: usize, first_request: u64) {
    let Some(connection) = pair.connection(at) else { return };
    if let Some(place) = connection.lent.iter().position(|lent| *lent == first_request) {
        connection.lent.remove(place);
    }
    if pair.phase == Phase::Closing {
        return finish(pair, shared);
    }
    pair.complete_done(shared);
    // One that ends may have waited for nothing else.
    pair.mark(shared);
}

fn build(pair: &mut QueuePair, shared: &mut Shared, batch: &mut SendBatch) {
    loop {
        if !continue_payload(pair, shared, batch) || !batch.has_room() {
            return;
        }
        if !pair.responses.is_empty() {
            if !add_response(pair, shared, batch) {
                break;
            }
        } else if let Some(status) = pair.refusal.take() {
            add_frame(pair, batch, Frame::Refuse { status });
        } else if pair.phase != Phase::Ready || !add_request(pair, shared, batch) {
            break;
        }
    }
    if pair.phase == Phase::Ready && pair.owes_acknowledgement() {
        if batch.is_empty() && shared.patient && pair.patience > 0 && shared.now < pair.patient_until {
            // Looked at again with the next poll, by which there may be a message to go with.
            pair.patience -= 1;
            pair.mark(shared);
        } else {
            add_frame(pair, batch, Frame::Acknowledge);
        }
    }
}

fn add_frame(pair: &mut QueuePair, batch: &mut SendBatch, frame: Frame) {
    // Both counts go modulo 2^32; the other side knows them well enough to tell which.
    let header = Header { frame, executed: pair.executed as u32, receives: pair.receives_posted as u32 };
    pair.told = Some((pair.executed, pair.receives_posted));
    (pair.asked, pair.patience) = (false, 0);
    batch.add_bytes(&frame::encode(&header));
}

/// Adds more of the message begun last; whether it is complete.
fn continue_payload(pair: &mut QueuePair, shared: &mut Shared, batch: &mut SendBatch) -> bool {
    let Some(payload) = pair.first.payload.as_mut() else { return true };
    if !add_payload(payload, &mut shared.counters, batch) {
        return false;
    }
    pair.built += u64::from(payload.request.is_some());
    pair.first.payload = None;
    true
}

/// Adds as much of a payload as should go into a batch; whether that is all of it.
fn add_payload(payload: &mut Payload, counters: &mut Counters, batch: &mut SendBatch) -> bool {
    for place in &mut payload.spans {
        let Some(span) = place.as_mut() else { continue };
        let room = batch.room();
        if room == 0 {
            return false;
        }
        if span.length <= room {
            counters.bytes_copied += batch.add_span(span.clone());
            *place = None;
        } else {
            counters.bytes_copied += batch.add_span(span.first(room));
            span.offset += room;
            span.length -= room;
            return false;
        }
    }
    true
}

/// Divides a message of so many bytes among the connections; `None` while one that is to carry a part has not taken the last.
fn divide(pair: &QueuePair, length: u64) -> Option<Division> {
    let division = pair.sending.divide(length);
    let is_free =
        |(at, connection): (usize, &Connection)| division.of(at).1 == 0 || connection.payload.is_none();
    pair.connections().enumerate().all(is_free).then_some(division)
}

/// Gives each connection its part of a message whose frame was added.
fn begin_payload(
    pair: &mut QueuePair,
    shared: &mut Shared,
    division: &Division,
    spans: &[Option<Span>; 2],
    request: Option<u64>,
) {
    pair.sending.advance(division);
    let built = pair.built;
    for (at, connection) in pair.connections_mut().enumerate() {
        let part = division.of(at);
        if at > 0 && part.1 == 0 {
            continue;
        }
        // On the first connection also a payload of which nothing goes there has the request counted as built.
        connection.payload = Some(Payload { spans: part_of(spans, part), request });
        if at > 0 {
            connection.confirmed = connection.confirmed.min(request.unwrap_or(u64::MAX));
            fill(connection, shared, built);
        }
    }
}

/// What of two spans lies in a range of the bytes that they are together.
fn part_of(spans: &[Option<Span>; 2], range: (u64, u64)) -> [Option<Span>; 2] {
    let lengths =
        [0, 1].map(|at: usize| spans.get(at).and_then(Option::as_ref).map_or(0, |span| span.length));
    let [first, second] = cut(lengths, range);
    let of = |span: Option<&Span>, (start, length): (u64, u64)| {
        let mut part = span.filter(|_| length > 0)?.first(start + length);
        part.offset += start;
        part.length = length;
        Some(part)
    };
    let [one, two] = spans;
    [of(one.as_ref(), first), of(two.as_ref(), second)]
}

/// Begins the next response; `false` while it has to wait.
fn add_response(pair: &mut QueuePair, shared: &mut Shared, batch: &mut SendBatch) -> bool {
    let length = if let Some(Response::Read(span)) = pair.responses.front() { span.length } else { 0 };
    let Some(division) = divide(pair, length) else { return false };
    match pair.responses.pop_front() {
        Some(Response::Atomic(old)) => add_frame(pair, batch, Frame::AtomicResponse { old }),
        Some(Response::Empty) => add_frame(pair, batch, Frame::ReadResponse { length: 0 }),
        Some(Response::Read(span)) => {
            add_frame(pair, batch, Frame::ReadResponse { length });
            begin_payload(pair, shared, &division, &[Some(span), None], None);
        }
        None => {}
    }
    true
}

/// Begins the next request, if it may go now.
fn add_request(pair: &mut QueuePair, shared: &mut Shared, batch: &mut SendBatch) -> bool {
    let number = pair.built;
    let Some(entry) = pair.send_entry(number) else { return false };
    let request = entry.request;
    let answered = request.operation.is_answered();
    if (request.fence && !pair.reads.is_empty()) || (answered && pair.reads.len() >= MAX_READS) {
        return false;
    }
    let Some(division) = divide(pair, if answered { 0 } else { request.length() }) else { return false };
    let uses_receive =
        matches!(request.operation, Operation::Send { .. } | Operation::WriteWithImmediate { .. });
    if uses_receive {
        if pair.credits_used >= pair.credits {
            return false;
        }
        pair.credits_used += 1;
    }
    // When half of the queue waits, its room is waited for as well.
    let asks = request.signalled || 2 * pair.sends.len() > pair.config.send_depth as usize;
    add_frame(pair, batch, request_frame(&request, asks));
    if answered {
        pair.reads.push_back(number);
        pair.built += 1;
        return true;
    }
    let spans = request.local.map(|slice| (slice.length > 0).then(|| shared.memory.span(&slice)).flatten());
    begin_payload(pair, shared, &division, &spans, Some(number));
    true
}

const fn request_frame(request: &WorkRequest, asks: bool) -> Frame {
    let length = request.length();
    match request.operation {
        Operation::Send { immediate } => Frame::Send { length, immediate, asks },
        Operation::Write { remote } => Frame::Write { length, remote, immediate: None, asks },
        Operation::WriteWithImmediate { remote, immediate } => {
            Frame::Write { length, remote, immediate: Some(immediate), asks }
        }
        Operation::Read { remote } => Frame::Read { length, remote },
        Operation::FetchAdd { remote, add } => Frame::FetchAdd { remote, add },
        Operation::CompareSwap { remote, expected, desired } => {
            Frame::CompareSwap { remote, expected, desired }
        }
    }
}
