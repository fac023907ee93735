//! What goes out: requests in the order they were posted, and responses.

use std::os::fd::{AsFd, OwnedFd};

use ringway_mem::{RegionTable, Window};
use ringway_ring::{PeerFault, PushError};
use ringway_verbs::{LocalSlice, Operation, WorkRequest};

use crate::ShmFailure;
use crate::channel::{Channel, Lane, Telling};
use crate::control;
use crate::counters::Counters;
use crate::entry::{Entry, INLINE_BYTES, Kind, Source};
use crate::queue_pair::{MAX_READS, QueuePair, Response, Shared, copy, row};
use crate::regions::{Announced, Exports};

impl From<PeerFault> for ShmFailure {
    fn from(_: PeerFault) -> Self {
        Self::Protocol
    }
}

/// Puts into the rings what there is room for, and makes it visible.
pub(crate) fn transmit(
    pair: &mut QueuePair,
    shared: &mut Shared,
    telling: Telling,
) -> Result<(), ShmFailure> {
    while let Some(response) = pair.responses.front().copied() {
        if !respond(pair, shared, response)? {
            break;
        }
    }
    while let Some(entry) = pair.send_entry(pair.built).copied() {
        if entry.request.fence && !pair.reads.is_empty() {
            break;
        }
        if !request(pair, shared, &entry.request)? {
            break;
        }
        pair.built += 1;
        shared.counters.messages_sent += 1;
        pair.partial = 0;
    }
    let (executed, pulled) = (pair.executed, pair.pulled);
    let asked = std::mem::take(&mut pair.asked);
    let telling = if asked && telling == Telling::Later { Telling::Soon } else { telling };
    if let Some(channel) = &mut pair.channel {
        shared.counters.rang(channel.publish(executed, pulled, telling));
    }
    Ok(())
}

/// Puts a SEND into the ring at once when all of it fits into an entry and nothing is before it; whether it did. It is made
/// visible later.
#[inline]
pub(crate) fn send_short(pair: &mut QueuePair, shared: &mut Shared, request: &WorkRequest) -> bool {
    let (Operation::Send { immediate }, [slice, LocalSlice { length: 0, .. }]) =
        (request.operation, request.local)
    else {
        return false;
    };
    let Some(channel) = &mut pair.channel else { return false };
    let waits = request.fence || pair.partial > 0 || pair.built - pair.done < pair.sends.len() as u64;
    if slice.length > INLINE_BYTES as u64 || waits || channel.requests_out.has_room() != Ok(true) {
        return false;
    }
    let mut bytes = [0; INLINE_BYTES];
    if slice.length > 0 {
        let Some(window) = shared.memory.window(&slice) else { return false };
        window.copy_to(&Window::of_mut(&mut bytes));
    }
    let source = Source::inline(&bytes, slice.length as usize);
    let (total, asks) = (slice.length as u32, request.signalled);
    let entry = Entry { total, immediate, source, asks, ..Entry::new(Kind::Send) };
    if channel.push(Lane::Requests, &entry, pair.executed).is_err() {
        return false;
    }
    pair.built += 1;
    shared.counters.messages_sent += 1;
    true
}

/// Puts the rest of a request into the ring; whether all of it is there now.
fn request(pair: &mut QueuePair, shared: &mut Shared, request: &WorkRequest) -> Result<bool, ShmFailure> {
    let (kind, remote, immediate) = match request.operation {
        Operation::Send { immediate } => (Kind::Send, None, immediate),
        Operation::Write { remote } => (Kind::Write, Some(remote), None),
        Operation::WriteWithImmediate { remote, immediate } => (Kind::Write, Some(remote), Some(immediate)),
        Operation::Read { remote } => (Kind::Read, Some(remote), None),
        Operation::FetchAdd { remote, .. } => (Kind::FetchAdd, Some(remote), None),
        Operation::CompareSwap { remote, .. } => (Kind::CompareSwap, Some(remote), None),
    };
    let total = u32::try_from(request.length()).map_err(|_| ShmFailure::Protocol)?;
    let first = Entry { total, immediate, remote: remote.unwrap_or_default(), ..Entry::new(kind) };
    if request.operation.is_answered() {
        return ask(pair, request, first);
    }
    loop {
        let QueuePair { channel, socket, announced, partial, executed, .. } = &mut *pair;
        let (Some(channel), Some(socket)) = (channel, socket) else { return Ok(false) };
        if !channel.requests_out.has_room()? {
            return Ok(false);
        }
        let rest = request.length() - *partial;
        let source = if rest <= INLINE_BYTES as u64 {
            inline(&shared.memory, request, *partial)
        } else {
            let bytes = row(request, *partial);
            let straight = Straight::new(&shared.exports, &mut shared.counters, announced, socket);
            match place(channel, Lane::Requests, &shared.memory, bytes, straight)? {
                Some(source) => source,
                None => return Ok(false),
            }
        };
        let last = source.length() >= rest;
        let begins = *partial == 0;
        *partial += source.length();
        let entry = if begins { first } else { Entry::new(Kind::More) };
        push(channel, Lane::Requests, &Entry { source, last, asks: request.signalled, ..entry }, *executed)?;
        if last {
            return Ok(true);
        }
    }
}

/// Asks for a READ or an atomic.
fn ask(pair: &mut QueuePair, request: &WorkRequest, entry: Entry) -> Result<bool, ShmFailure> {
    let Some(channel) = &mut pair.channel else { return Ok(false) };
    if pair.reads.len() >= MAX_READS || !channel.requests_out.has_room()? {
        return Ok(false);
    }
    let operands = match request.operation {
        Operation::FetchAdd { add, .. } => [add, 0],
        Operation::CompareSwap { expected, desired, .. } => [expected, desired],
        _ => [0, 0],
    };
    let source = Source::Inline { words: [operands[0], operands[1], 0, 0], length: 16 };
    push(channel, Lane::Requests, &Entry { source, ..entry }, pair.executed)?;
    pair.reads.push_back(pair.built);
    Ok(true)
}

/// Gives what there is room for of the response that is next; whether all of it is given.
fn respond(pair: &mut QueuePair, shared: &mut Shared, response: Response) -> Result<bool, ShmFailure> {
    let QueuePair { channel, socket, announced, granted, responses, executed, .. } = &mut *pair;
    let (Some(channel), Some(socket)) = (channel, socket) else { return Ok(false) };
    if !channel.responses_out.has_room()? || granted.len() >= MAX_READS {
        return Ok(false);
    }
    let (from, given) = match response {
        Response::Read { from, given } => (from, given),
        Response::Word(word) => {
            let source = Source::Inline { words: [word, 0, 0, 0], length: 8 };
            push(channel, Lane::Responses, &Entry { source, ..Entry::new(Kind::Word) }, *executed)?;
            responses.pop_front();
            return Ok(true);
        }
    };
    let rest = LocalSlice { key: from.key, offset: from.offset + given, length: from.length - given };
    let source = if rest.length <= INLINE_BYTES as u64 {
        let mut bytes = [0; INLINE_BYTES];
        let count = shared.memory.window(&rest).map_or(0, |window| window.read(&mut bytes));
        Source::inline(&bytes, count)
    } else {
        let straight = Straight::new(&shared.exports, &mut shared.counters, announced, socket);
        match place(channel, Lane::Responses, &shared.memory, rest, straight)? {
            Some(source) => source,
            None => return Ok(false),
        }
    };
    let last = source.length() >= rest.length;
    push(channel, Lane::Responses, &Entry { source, last, ..Entry::new(Kind::Data) }, *executed)?;
    if matches!(source, Source::Shared { .. }) {
        // The peer says when it has fetched them; until then they count as in use.
        shared.memory.hold(&rest);
        granted.push_back(rest);
    }
    if last {
        shared.memory.release(&from);
        responses.pop_front();
    } else if let Some(Response::Read { given, .. }) = responses.front_mut() {
        *given += source.length();
    }
    Ok(true)
}

/// The few bytes that are left of a request.
fn inline(memory: &RegionTable, request: &WorkRequest, from: u64) -> Source {
    let (mut bytes, mut filled) = ([0; INLINE_BYTES], 0);
    for at in [from, from.max(request.local[0].length)] {
        let part = row(request, at);
        let begins = (at - from) as usize;
        if part.length > 0
            && begins == filled
            && let (Some(window), Some(into)) = (memory.window(&part), bytes.get_mut(filled..))
        {
            filled += window.read(into);
        }
    }
    Source::inline(&bytes, filled)
}

/// What it takes for a peer to read straight from a region.
struct Straight<'a> {
    exports: &'a Exports,
    counters: &'a mut Counters,
    announced: &'a mut Announced,
    socket: &'a OwnedFd,
}

impl<'a> Straight<'a> {
    const fn new(
        exports: &'a Exports,
        counters: &'a mut Counters,
        announced: &'a mut Announced,
        socket: &'a OwnedFd,
    ) -> Self {
        Self { exports, counters, announced, socket }
    }

    /// Tells the peer of a region, if it was not told before; whether it knows it. The first use of one takes a system call.
    fn tell(self, key: u32) -> bool {
        if self.announced.has(key) {
            return true;
        }
        let Some((file, bytes)) = self.exports.file(key) else { return false };
        if !self.announced.has_room(key, bytes) {
            return false;
        }
        let told = control::share(self.socket.as_fd(), key, file).is_ok();
        if told {
            self.counters.regions_told += 1;
            self.announced.add(key, bytes);
        }
        told
    }
}

/// Where the peer finds bytes: in their region, which it was told of, or a piece of them in staging memory. `None` when there
/// is no room for that now.
fn place(
    channel: &mut Channel,
    lane: Lane,
    memory: &RegionTable,
    bytes: LocalSlice,
    straight: Straight<'_>,
) -> Result<Option<Source>, ShmFailure> {
    let key = bytes.key.0;
    if straight.tell(key) {
        return Ok(Some(Source::Shared { key, offset: bytes.offset, length: bytes.length }));
    }
    let Some((offset, length)) = channel.outgoing(lane).stage(bytes.length)? else { return Ok(None) };
    let from = memory.window(&LocalSlice { length, ..bytes });
    if !copy(from, channel.staged_own(lane, offset, length)) {
        return Err(ShmFailure::Local);
    }
    Ok(u32::try_from(length).ok().map(|length| Source::Staged { offset, length }))
}

/// Adds an entry to a ring that has room.
fn push(channel: &mut Channel, lane: Lane, entry: &Entry, executed: u64) -> Result<(), ShmFailure> {
    channel.push(lane, entry, executed).map_err(|error| match error {
        PushError::Full => ShmFailure::Memory,
        PushError::Peer(_) => ShmFailure::Protocol,
    })
}
