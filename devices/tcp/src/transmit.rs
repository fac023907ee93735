//! Sending: what goes into the next batch, and what a finished batch means.

use ringway_verbs::{Operation, Status, WorkRequest};

use crate::buffers::SendBatch;
use crate::connection::{drained, fail, finish};
use crate::error::TcpFailure;
use crate::frame::{self, Frame, Header, MAX_READS};
use crate::queue_pair::{Payload, Phase, QueuePair, Response, Shared};

/// Builds and sends a batch, unless one is on its way or there is nothing to say.
pub(crate) fn transmit(pair: &mut QueuePair, shared: &mut Shared) {
    if pair.connecting || !matches!(pair.phase, Phase::Connecting | Phase::Ready | Phase::Draining) {
        return;
    }
    let Some(mut batch) = pair.batch.take() else { return };
    if batch.is_empty() && pair.phase != Phase::Connecting {
        batch.first_request = pair.built;
        build(pair, shared, &mut batch);
    }
    if batch.is_empty() {
        pair.batch = Some(batch);
        if pair.phase == Phase::Draining && !pair.sends_flushed && pair.lent.is_empty() {
            drained(pair, shared);
        }
        return;
    }
    let Some(socket) = pair.socket.as_ref() else {
        pair.batch = Some(batch);
        return;
    };
    if let Err(batch) = shared.driver.send(socket, pair.number.0, batch) {
        pair.batch = Some(batch);
        fail(pair, shared, TcpFailure::System(libc::EBUSY), Status::TransportLost);
    }
}

/// A batch came back from the kernel, without what has been sent of it.
pub(crate) fn sent(pair: &mut QueuePair, shared: &mut Shared, mut batch: Box<SendBatch>, result: i32) {
    shared.counters.bytes_sent += u64::try_from(result).unwrap_or(0);
    let complete = batch.is_empty();
    if complete {
        // Regions are in use by what is left of it.
        batch.clear();
    }
    pair.batch = Some(batch);
    if pair.phase == Phase::Closing {
        return finish(pair, shared);
    }
    if result < 0 && result != -libc::EINTR && result != -libc::EAGAIN {
        return fail(pair, shared, TcpFailure::from_errno(-result), Status::TransportLost);
    }
    if complete {
        pair.confirmed = pair.built;
        pair.complete_done(shared);
    }
    pair.mark(shared);
}

/// The kernel has let go of what was lent to it under this number.
pub(crate) fn returned(pair: &mut QueuePair, shared: &mut Shared, first_request: u64) {
    if let Some(at) = pair.lent.iter().position(|lent| *lent == first_request) {
        pair.lent.remove(at);
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
        if let Some(response) = pair.responses.pop_front() {
            add_response(pair, batch, response);
        } else if let Some(status) = pair.refusal.take() {
            add_frame(pair, batch, Frame::Refuse { status });
        } else if pair.phase != Phase::Ready || !add_request(pair, shared, batch) {
            break;
        }
    }
    let counts = (pair.executed, pair.receives_posted);
    if pair.phase == Phase::Ready && pair.told != Some(counts) {
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
    batch.add_bytes(&frame::encode(&header));
}

/// Adds more of the message begun last; whether it is complete.
fn continue_payload(pair: &mut QueuePair, shared: &mut Shared, batch: &mut SendBatch) -> bool {
    let Some(payload) = pair.payload.as_mut() else { return true };
    for place in &mut payload.spans {
        let Some(span) = place.as_mut() else { continue };
        let room = batch.room();
        if room == 0 {
            return false;
        }
        if span.length <= room {
            shared.counters.bytes_copied += batch.add_span(span.clone());
            *place = None;
        } else {
            shared.counters.bytes_copied += batch.add_span(span.first(room));
            span.offset += room;
            span.length -= room;
            return false;
        }
    }
    if payload.request {
        pair.built += 1;
    }
    pair.payload = None;
    true
}

fn add_response(pair: &mut QueuePair, batch: &mut SendBatch, response: Response) {
    match response {
        Response::Atomic(old) => add_frame(pair, batch, Frame::AtomicResponse { old }),
        Response::Empty => add_frame(pair, batch, Frame::ReadResponse { length: 0 }),
        Response::Read(span) => {
            add_frame(pair, batch, Frame::ReadResponse { length: span.length });
            pair.payload = Some(Payload { spans: [Some(span), None], request: false });
        }
    }
}

/// Begins the next request, if it may go now.
fn add_request(pair: &mut QueuePair, shared: &Shared, batch: &mut SendBatch) -> bool {
    let number = pair.built;
    let Some(entry) = pair.send_entry(number) else { return false };
    let request = entry.request;
    let answered = request.operation.is_answered();
    if (request.fence && !pair.reads.is_empty()) || (answered && pair.reads.len() >= MAX_READS) {
        return false;
    }
    let uses_receive =
        matches!(request.operation, Operation::Send { .. } | Operation::WriteWithImmediate { .. });
    if uses_receive {
        if pair.credits_used >= pair.credits {
            return false;
        }
        pair.credits_used += 1;
    }
    add_frame(pair, batch, request_frame(&request));
    if answered {
        pair.reads.push_back(number);
        pair.built += 1;
        return true;
    }
    let spans = request.local.map(|slice| (slice.length > 0).then(|| shared.memory.span(&slice)).flatten());
    pair.payload = Some(Payload { spans, request: true });
    true
}

const fn request_frame(request: &WorkRequest) -> Frame {
    let length = request.length();
    match request.operation {
        Operation::Send { immediate } => Frame::Send { length, immediate },
        Operation::Write { remote } => Frame::Write { length, remote, immediate: None },
        Operation::WriteWithImmediate { remote, immediate } => {
            Frame::Write { length, remote, immediate: Some(immediate) }
        }
        Operation::Read { remote } => Frame::Read { length, remote },
        Operation::FetchAdd { remote, add } => Frame::FetchAdd { remote, add },
        Operation::CompareSwap { remote, expected, desired } => {
            Frame::CompareSwap { remote, expected, desired }
        }
    }
}
