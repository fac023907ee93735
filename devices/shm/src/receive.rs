//! What comes in: the peer's requests, executed in order, and its responses. Everything is checked on a private copy.

use ringway_mem::{RegionTable, Window};
use ringway_verbs::{Access, LocalSlice, Operation, Status};

use crate::ShmFailure;
use crate::channel::{Lane, Telling};
use crate::entry::{Entry, Kind, Source, bytes_of};
use crate::queue_pair::{Incoming, MAX_READS, Piece, QueuePair, Response, Shared, row};

/// Entries and bytes of one queue pair in one turn at most, of either kind.
const ENTRIES_PER_TURN: u32 = 64;
const BYTES_PER_TURN: u64 = 256 << 10;

/// What became of a request.
enum Begun {
    /// It is executed, or its bytes are being copied.
    Yes,
    /// It waits.
    Held,
    /// It makes no sense, or means memory that was not granted.
    Refused(Status),
}

/// Executes what has come; whether that was anything.
pub(crate) fn receive(pair: &mut QueuePair, shared: &mut Shared) -> Result<bool, ShmFailure> {
    let before = pair.executed;
    let mut budget = BYTES_PER_TURN;
    for _ in 0..ENTRIES_PER_TURN {
        if pair.piece.is_some() && !copy_request(pair, shared, &mut budget)? {
            break;
        }
        let Some(entry) = next_request(pair)? else { break };
        if take_short(pair, shared, &entry)? {
            continue;
        }
        match begin(pair, shared, &entry)? {
            Begun::Yes => {}
            Begun::Held => {
                pair.held = Some(entry);
                break;
            }
            // What it asked for before is answered first.
            Begun::Refused(_) if !is_quiet(pair) => {
                pair.held = Some(entry);
                break;
            }
            Begun::Refused(status) => {
                refuse(pair, shared, status);
                return Err(ShmFailure::RefusedPeer);
            }
        }
    }
    Ok(pair.executed != before)
}

/// Executes a SEND that is all in its entry and has a receive with room for it, as most short messages are; whether it was
/// one.
#[inline]
fn take_short(pair: &mut QueuePair, shared: &mut Shared, entry: &Entry) -> Result<bool, ShmFailure> {
    let Source::Inline { words, length } = entry.source else { return Ok(false) };
    let is_whole = entry.kind == Kind::Send && entry.last && entry.total == u32::from(length);
    let (true, None, Some(receive)) = (is_whole, &pair.incoming, pair.receives.front()) else {
        return Ok(false);
    };
    let total = u64::from(length);
    if total > receive.local.length {
        return Ok(false);
    }
    if total > 0 {
        let to = shared.memory.writable(&LocalSlice { length: total, ..receive.local });
        let bytes = bytes_of(&words);
        let from = Window::of(bytes.get(..usize::from(length)).ok_or(ShmFailure::Protocol)?);
        from.copy_to(&to.ok_or(ShmFailure::Local)?);
        shared.counters.copied(entry.source, total);
    }
    release(pair, Lane::Requests, false);
    let message = Incoming { target: None, total, done: total, immediate: entry.immediate };
    pair.complete_receive(shared, Status::Success, &message);
    pair.asked |= entry.asks;
    pair.executed += 1;
    shared.counters.messages_received += 1;
    Ok(true)
}

fn next_request(pair: &mut QueuePair) -> Result<Option<Entry>, ShmFailure> {
    if let Some(entry) = pair.held.take() {
        return Ok(Some(entry));
    }
    next(pair, Lane::Requests)
}

fn next(pair: &mut QueuePair, lane: Lane) -> Result<Option<Entry>, ShmFailure> {
    let Some(channel) = &mut pair.channel else { return Ok(None) };
    match channel.pop(lane)? {
        None => Ok(None),
        Some(raw) => {
            let entry = Entry::parse(&raw).ok_or(ShmFailure::Protocol)?;
            pair.acknowledge(entry.executed);
            Ok(Some(entry))
        }
    }
}

/// Whether nothing that the peer asked for is still to be given.
fn is_quiet(pair: &QueuePair) -> bool {
    pair.responses.is_empty() && pair.granted.is_empty()
}

fn begin(pair: &mut QueuePair, shared: &mut Shared, entry: &Entry) -> Result<Begun, ShmFailure> {
    let total = u64::from(entry.total);
    match entry.kind {
        Kind::More if pair.incoming.is_some() => {
            pair.piece = Some(Piece::of(entry));
            return Ok(Begun::Yes);
        }
        Kind::Send | Kind::Write | Kind::Read | Kind::FetchAdd | Kind::CompareSwap
            if pair.incoming.is_none() => {}
        _ => return Err(ShmFailure::Protocol),
    }
    let immediate = entry.immediate;
    let message = match entry.kind {
        Kind::Send => {
            let Some(receive) = pair.receives.front() else { return Ok(Begun::Held) };
            let message = Incoming { target: None, total, done: 0, immediate };
            if total > receive.local.length {
                if is_quiet(pair) {
                    pair.complete_receive(shared, Status::LocalLength, &message);
                }
                return Ok(Begun::Refused(Status::RemoteInvalidRequest));
            }
            message
        }
        Kind::Write => {
            let Some(target) = remote(&shared.memory, entry, total, |access| access.remote_write) else {
                return Ok(Begun::Refused(Status::RemoteAccess));
            };
            // A READ before it gets what was there before.
            if !is_quiet(pair) || immediate.is_some() && pair.receives.is_empty() {
                return Ok(Begun::Held);
            }
            shared.memory.hold(&target);
            Incoming { target: Some(target), total, done: 0, immediate }
        }
        _ => return answer(pair, shared, entry),
    };
    pair.incoming = Some(message);
    pair.piece = Some(Piece::of(entry));
    Ok(Begun::Yes)
}

/// Executes a READ or an atomic; what it gives goes out later.
fn answer(pair: &mut QueuePair, shared: &mut Shared, entry: &Entry) -> Result<Begun, ShmFailure> {
    if pair.responses.len() >= MAX_READS {
        // No peer that keeps to the rules has so many outstanding.
        return Err(ShmFailure::Protocol);
    }
    let response = if entry.kind == Kind::Read {
        let Some(from) = remote(&shared.memory, entry, entry.total.into(), |access| access.remote_read)
        else {
            return Ok(Begun::Refused(Status::RemoteAccess));
        };
        shared.memory.hold(&from);
        Response::Read { from, given: 0 }
    } else {
        if !entry.remote.offset.is_multiple_of(8) {
            return Ok(Begun::Refused(Status::RemoteInvalidRequest));
        }
        let Some(word) = remote(&shared.memory, entry, 8, |access| access.remote_atomic) else {
            return Ok(Begun::Refused(Status::RemoteAccess));
        };
        if !pair.granted.is_empty() || pair.responses.iter().any(|r| matches!(r, Response::Read { .. })) {
            return Ok(Begun::Held);
        }
        let Source::Inline { words: [one, two, ..], .. } = entry.source else {
            return Err(ShmFailure::Protocol);
        };
        let window = shared.memory.writable(&word).ok_or(ShmFailure::Local)?;
        // One device serves all its queue pairs on one thread, so that this is one step to all of them.
        let mut bytes = [0; 8];
        window.read(&mut bytes);
        let old = u64::from_ne_bytes(bytes);
        let new = match entry.kind {
            Kind::FetchAdd => Some(old.wrapping_add(one)),
            _ => (old == one).then_some(two),
        };
        if let Some(new) = new {
            window.write(&new.to_ne_bytes());
        }
        Response::Word(old)
    };
    pair.responses.push_back(response);
    pair.executed += 1;
    shared.counters.messages_received += 1;
    release(pair, Lane::Requests, false);
    Ok(Begun::Yes)
}

/// The bytes that a request names, when the peer may do this to them. Of no bytes nothing is checked.
fn remote(
    memory: &RegionTable,
    entry: &Entry,
    length: u64,
    allowed: impl Fn(Access) -> bool,
) -> Option<LocalSlice> {
    if length == 0 {
        return Some(LocalSlice::default());
    }
    memory.remote(entry.remote, length, allowed)
}

/// Says why the request that is next was not executed, and that nothing will be any more.
fn refuse(pair: &mut QueuePair, shared: &mut Shared, status: Status) {
    let executed = pair.executed;
    let pulled = pair.pulled;
    if let Some(channel) = &mut pair.channel {
        // Whoever reads the refusal has to know what was executed before.
        channel.tell(executed, pulled);
        // A peer that keeps to the rules has left room; another one hears that the connection is closed.
        let _ = channel.push(Lane::Responses, &Entry::refused(status), executed);
        shared.counters.rang(channel.publish(executed, pulled, Telling::Now));
    }
}

fn release(pair: &mut QueuePair, lane: Lane, staged: bool) {
    if let Some(channel) = &mut pair.channel {
        channel.release(lane, staged);
    }
}

/// Copies bytes of the message under way; whether the piece is done.
fn copy_request(pair: &mut QueuePair, shared: &mut Shared, budget: &mut u64) -> Result<bool, ShmFailure> {
    let (Some(piece), Some(message)) = (pair.piece, pair.incoming) else { return Ok(true) };
    if !is_known(pair, shared, &piece)? {
        return Ok(false);
    }
    let count = (piece.source.length() - piece.taken).min(*budget);
    if count > message.total - message.done {
        return Err(ShmFailure::Protocol);
    }
    let place = match message.target {
        Some(target) => target,
        None => pair.receives.front().ok_or(ShmFailure::Protocol)?.local,
    };
    let into = LocalSlice { key: place.key, offset: place.offset + message.done, length: count };
    fetch(pair, shared, Lane::Requests, &piece, into)?;
    *budget -= count;
    let message = Incoming { done: message.done + count, ..message };
    pair.incoming = Some(message);
    if piece.taken + count < piece.source.length() {
        pair.piece = Some(Piece { taken: piece.taken + count, ..piece });
        return Ok(false);
    }
    pair.piece = None;
    finish_piece(pair, Lane::Requests, &piece)?;
    if !piece.last {
        return Ok(true);
    }
    if message.done != message.total {
        return Err(ShmFailure::Protocol);
    }
    pair.incoming = None;
    if let Some(target) = &message.target {
        shared.memory.release(target);
    }
    if message.target.is_none() || message.immediate.is_some() {
        pair.complete_receive(shared, Status::Success, &message);
    }
    pair.asked |= piece.asks;
    pair.executed += 1;
    shared.counters.messages_received += 1;
    Ok(true)
}

/// Whether the region that a piece is in was heard of, if it is in one. The peer told of it before it named it, but may have said
/// more before than is read in one turn.
fn is_known(pair: &mut QueuePair, shared: &mut Shared, piece: &Piece) -> Result<bool, ShmFailure> {
    match piece.source {
        Source::Shared { key, .. } if !pair.imports.has(key) => {
            let heard_all = pair.listen(shared)?;
            let is_known = pair.imports.has(key);
            if is_known || !heard_all { Ok(is_known) } else { Err(ShmFailure::Protocol) }
        }
        _ => Ok(true),
    }
}

/// Copies bytes of a piece, from what was copied already, to local memory.
fn fetch(
    pair: &mut QueuePair,
    shared: &mut Shared,
    lane: Lane,
    piece: &Piece,
    into: LocalSlice,
) -> Result<(), ShmFailure> {
    if into.length == 0 {
        return Ok(());
    }
    let to = shared.memory.writable(&into).ok_or(ShmFailure::Local)?;
    let Some(channel) = &pair.channel else { return Err(ShmFailure::Closed) };
    let copied = match piece.source {
        Source::Inline { words, .. } => {
            let bytes = bytes_of(&words);
            let from = piece.taken as usize;
            bytes.get(from..from + to.length()).map_or(0, |bytes| to.write(bytes))
        }
        Source::Staged { offset, .. } => {
            let offset = u32::try_from(u64::from(offset) + piece.taken).map_err(|_| ShmFailure::Protocol)?;
            channel.staged_peer(lane, offset, into.length).map_or(0, |from| from.copy_to(&to))
        }
        Source::Shared { key, offset, .. } => {
            let offset = offset.checked_add(piece.taken).ok_or(ShmFailure::Protocol)?;
            let copied = pair.imports.copy_to(key, offset, &to);
            if pair.imports.has_lost_pages(key) {
                return Err(ShmFailure::PagesLost);
            }
            copied
        }
    };
    if copied != to.length() {
        return Err(ShmFailure::Protocol);
    }
    shared.counters.copied(piece.source, into.length);
    Ok(())
}

/// The peer may use again what held a piece, which was all copied.
fn finish_piece(pair: &mut QueuePair, lane: Lane, piece: &Piece) -> Result<(), ShmFailure> {
    if matches!(piece.source, Source::Shared { .. })
        && pair.channel.as_ref().is_none_or(|channel| channel.is_closed_there())
    {
        return Err(ShmFailure::Closed);
    }
    release(pair, lane, matches!(piece.source, Source::Staged { .. }));
    Ok(())
}

/// Takes the responses that have come.
pub(crate) fn take_responses(pair: &mut QueuePair, shared: &mut Shared) -> Result<(), (ShmFailure, Status)> {
    let lost = |failure| (failure, Status::TransportLost);
    let mut budget = BYTES_PER_TURN;
    for _ in 0..ENTRIES_PER_TURN {
        if pair.answer.is_some() && !copy_response(pair, shared, &mut budget).map_err(lost)? {
            break;
        }
        let Some(entry) = next(pair, Lane::Responses).map_err(lost)? else { break };
        if entry.kind == Kind::Refused {
            return Err((ShmFailure::RefusedRequest, entry.refusal()));
        }
        let is_read = expected(pair).ok_or(lost(ShmFailure::Protocol))?;
        let fits = matches!((entry.kind, is_read), (Kind::Data, true) | (Kind::Word, false));
        if !fits {
            return Err(lost(ShmFailure::Protocol));
        }
        pair.answer = Some(Piece::of(&entry));
    }
    Ok(())
}

/// Whether the request that the next response belongs to is a READ; `None` when there is none.
fn expected(pair: &mut QueuePair) -> Option<bool> {
    let number = pair.reads.front().copied()?;
    let request = pair.send_entry(number)?.request;
    Some(matches!(request.operation, Operation::Read { .. }))
}

/// Copies bytes of the response under way; whether the piece is done.
fn copy_response(pair: &mut QueuePair, shared: &mut Shared, budget: &mut u64) -> Result<bool, ShmFailure> {
    let Some(mut piece) = pair.answer else { return Ok(true) };
    if !is_known(pair, shared, &piece)? {
        return Ok(false);
    }
    let number = pair.reads.front().copied().ok_or(ShmFailure::Protocol)?;
    let request = pair.send_entry(number).ok_or(ShmFailure::Protocol)?.request;
    let mut left = (piece.source.length() - piece.taken).min(*budget);
    *budget -= left;
    while left > 0 {
        let place = row(&request, pair.read_done);
        let count = left.min(place.length);
        if count == 0 {
            return Err(ShmFailure::Protocol);
        }
        fetch(pair, shared, Lane::Responses, &piece, LocalSlice { length: count, ..place })?;
        pair.read_done += count;
        piece.taken += count;
        left -= count;
    }
    if piece.taken < piece.source.length() {
        pair.answer = Some(piece);
        return Ok(false);
    }
    pair.answer = None;
    finish_piece(pair, Lane::Responses, &piece)?;
    if matches!(piece.source, Source::Shared { .. }) {
        pair.pulled += 1;
    }
    if !piece.last {
        return Ok(true);
    }
    if pair.read_done != request.length() {
        return Err(ShmFailure::Protocol);
    }
    pair.read_done = 0;
    pair.reads.pop_front();
    if let Some(entry) = pair.send_entry(number) {
        entry.answered = true;
    }
    Ok(true)
}
