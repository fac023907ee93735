//! Cutting messages into packets: which header and which bytes the packet with a given PSN has. A packet is made from
//! the request alone, so that one that is sent again is the same.

use ringway_verbs::{LocalKey, LocalSlice, MAX_SEGMENTS, Operation, RemoteSlice};
use ringway_wire::{Aeth, AtomicEth, Header, PathMtu, Psn, Reth, Syndrome};

use crate::{
    Denied, Memory, RemoteAccess,
    requester::Posted,
    responses::{RemoteBytes, Response},
    selective::Report,
};

/// A packet to be sent, without what the queue pair adds to all of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) header: Header,
    pub(crate) psn: Psn,
    /// The PSN of what comes after it.
    pub(crate) end: Psn,
    pub(crate) ack_request: bool,
    /// It completes a receive of the peer.
    pub(crate) receives: bool,
    pub(crate) payload: Payload,
}

/// Where a packet's payload comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Payload {
    None,
    /// From the segments of a posted request.
    Local {
        segments: [LocalSlice; MAX_SEGMENTS],
        offset: u64,
        length: usize,
    },
    /// Bytes that the peer READs.
    Remote(RemoteBytes),
    /// What is here of what the peer sent.
    Report(Report),
}

impl Payload {
    pub(crate) const fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Local { length, .. } => *length,
            Self::Remote(bytes) => bytes.length as usize,
            Self::Report(report) => report.length(),
        }
    }

    /// Whether it can be copied.
    pub(crate) fn check<M: Memory>(&self, memory: &M) -> Result<(), Denied> {
        match self {
            Self::None | Self::Report(_) => Ok(()),
            Self::Local { segments, offset, length } => {
                each_part(segments, *offset, *length, |key, offset, part| {
                    memory.check_local(key, offset, part as u64)
                })
            }
            Self::Remote(bytes) if bytes.length == 0 => Ok(()),
            Self::Remote(bytes) => {
                memory.check_remote(bytes.key, bytes.address, bytes.length.into(), RemoteAccess::Read)
            }
        }
    }

    /// Copies it into a frame; `into` has its length.
    pub(crate) fn copy<M: Memory>(&self, memory: &M, into: &mut [u8]) -> Result<(), Denied> {
        match self {
            Self::None => Ok(()),
            Self::Local { segments, offset, .. } => gather(segments, *offset, into, memory),
            Self::Remote(bytes) if bytes.length == 0 => Ok(()),
            Self::Remote(bytes) => memory.read_remote(bytes.key, bytes.address, into),
            Self::Report(report) => {
                let bytes = report.to_bytes();
                into.copy_from_slice(bytes.get(..into.len()).ok_or(Denied)?);
                Ok(())
            }
        }
    }
}

/// Copies what the segments make up, from `offset` on.
fn gather<M: Memory>(
    segments: &[LocalSlice],
    offset: u64,
    mut into: &mut [u8],
    memory: &M,
) -> Result<(), Denied> {
    each_part(segments, offset, into.len(), |key, offset, length| {
        let (part, rest) = core::mem::take(&mut into).split_at_mut_checked(length).ok_or(Denied)?;
        into = rest;
        memory.read_local(key, offset, part)
    })
}

/// Goes through the `length` bytes that follow the first `offset` ones of what the segments make up.
fn each_part(
    segments: &[LocalSlice],
    mut offset: u64,
    mut length: usize,
    mut part: impl FnMut(LocalKey, u64, usize) -> Result<(), Denied>,
) -> Result<(), Denied> {
    for segment in segments {
        if length == 0 {
            break;
        }
        let Some(room) = segment.length.checked_sub(offset).filter(|room| *room > 0) else {
            offset -= segment.length;
            continue;
        };
        let taken = usize::try_from(room).map_or(length, |room| room.min(length));
        part(segment.key, segment.offset.checked_add(offset).ok_or(Denied)?, taken)?;
        (length, offset) = (length - taken, 0);
    }
    if length == 0 { Ok(()) } else { Err(Denied) }
}

/// Where in its message a packet is.
#[derive(Debug, Clone, Copy)]
struct Place {
    first: bool,
    last: bool,
}

/// The packet of a posted request that has this PSN. For a READ it asks for everything from that PSN on, but for no more
/// than `limit` packets.
pub(crate) fn packet(posted: &Posted, psn: Psn, mtu: PathMtu, limit: u32) -> Option<Outgoing> {
    let index = psn.above(posted.first);
    let place = Place { first: index == 0, last: index + 1 >= posted.packets };
    let total = posted.request.length();
    let offset = u64::from(index) * mtu.bytes() as u64;
    let rest = total.checked_sub(offset)?;
    let one = |header, receives| {
        let length = usize::try_from(rest.min(mtu.bytes() as u64)).unwrap_or_default();
        let payload = Payload::Local { segments: posted.request.local, offset, length };
        Outgoing { header, psn, end: psn.next(), ack_request: place.last, receives, payload }
    };
    let reth = |remote: RemoteSlice, offset: u64, length: u64| {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Reth { address: remote.offset.wrapping_add(offset), key: remote.key.0, length }
    };
    let asking = |header, end| Outgoing {
        header,
        psn,
        end,
        ack_request: true,
        receives: false,
        payload: Payload::None,
    };
    Some(match posted.request.operation {
        Operation::Send { immediate } => one(send_header(place, immediate), place.last),
        Operation::Write { remote } => one(write_header(place, reth(remote, 0, total), None), false),
        Operation::WriteWithImmediate { remote, immediate } => {
            one(write_header(place, reth(remote, 0, total), Some(immediate)), place.last)
        }
        Operation::Read { remote } => {
            let packets = limit.min(posted.packets.checked_sub(index)?);
            let length = rest.min(u64::from(packets) * mtu.bytes() as u64);
            asking(Header::ReadRequest(reth(remote, offset, length)), psn.plus(packets))
        }
        Operation::FetchAdd { remote, add } => {
            let (address, key) = (remote.offset, remote.key.0);
            asking(Header::FetchAdd(AtomicEth { address, key, swap_or_add: add, compare: 0 }), posted.end())
        }
        Operation::CompareSwap { remote, expected, desired } => {
            let (address, key) = (remote.offset, remote.key.0);
            let atomic = AtomicEth { address, key, swap_or_add: desired, compare: expected };
            asking(Header::CompareSwap(atomic), posted.end())
        }
    })
}

const fn send_header(place: Place, immediate: Option<u32>) -> Header {
    match (place, immediate) {
        (Place { first: true, last: true }, None) => Header::SendOnly,
        (Place { first: true, last: true }, Some(immediate)) => Header::SendOnlyImmediate(immediate),
        (Place { first: true, last: false }, _) => Header::SendFirst,
        (Place { first: false, last: false }, _) => Header::SendMiddle,
        (Place { first: false, last: true }, None) => Header::SendLast,
        (Place { first: false, last: true }, Some(immediate)) => Header::SendLastImmediate(immediate),
    }
}

const fn write_header(place: Place, reth: Reth, immediate: Option<u32>) -> Header {
    match (place, immediate) {
        (Place { first: true, last: true }, None) => Header::WriteOnly(reth),
        (Place { first: true, last: true }, Some(immediate)) => Header::WriteOnlyImmediate(reth, immediate),
        (Place { first: true, last: false }, _) => Header::WriteFirst(reth),
        (Place { first: false, last: false }, _) => Header::WriteMiddle,
        (Place { first: false, last: true }, None) => Header::WriteLast,
        (Place { first: false, last: true }, Some(immediate)) => Header::WriteLastImmediate(immediate),
    }
}

/// A report of what is here, where `expected` is the next PSN to be executed.
pub(crate) fn report(report: Report, expected: Psn, msn: u32) -> Outgoing {
    let header = Header::SelectiveAcknowledge(Aeth { syndrome: Syndrome::ACK, msn });
    let payload = Payload::Report(report);
    Outgoing { header, psn: expected.minus(1), end: expected, ack_request: false, receives: false, payload }
}

/// The next packet of a response.
pub(crate) fn response(response: &Response, mtu: PathMtu) -> Outgoing {
    let well = |msn| Aeth { syndrome: Syndrome::ACK, msn };
    let (header, psn, payload) = match *response {
        Response::Acknowledge { psn, aeth } => (Header::Acknowledge(aeth), psn, Payload::None),
        Response::Atomic { psn, msn, old, .. } => {
            (Header::AtomicAcknowledge(well(msn), old), psn, Payload::None)
        }
        Response::Read { psn, msn, memory, first, .. } => {
            let mtu_bytes = u32::try_from(mtu.bytes()).unwrap_or(u32::MAX);
            let header = match (first, memory.length <= mtu_bytes) {
                (true, true) => Header::ReadResponseOnly(well(msn)),
                (true, false) => Header::ReadResponseFirst(well(msn)),
                (false, false) => Header::ReadResponseMiddle,
                (false, true) => Header::ReadResponseLast(well(msn)),
            };
            let length = memory.length.min(mtu_bytes);
            (header, psn, Payload::Remote(RemoteBytes { length, ..memory }))
        }
    };
    Outgoing { header, psn, end: psn.next(), ack_request: false, receives: false, payload }
}
