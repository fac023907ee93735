//! Writing packets into frames.

use ringway_wire::{self as wire, BTH_LENGTH, Bth, DEFAULT_PARTITION, Flow, Header, Psn};
use thiserror::Error;

use crate::{Memory, segment::Outgoing};

/// What all packets of a queue pair have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) destination: wire::QueuePair,
    pub(crate) partition: u16,
    /// Packets that complete a receive have the solicited-event bit.
    pub(crate) solicited: bool,
}

impl Default for Envelope {
    fn default() -> Self {
        Self { destination: wire::QueuePair::default(), partition: DEFAULT_PARTITION, solicited: false }
    }
}

/// The payload's memory is gone, or the frame is too short for the packet.
#[derive(Debug, Clone, Copy, Error)]
#[error("the packet's memory is gone or the frame is too short")]
pub(crate) struct NotWritten;

/// Writes a packet as UDP carries it; returns its length.
pub(crate) fn packet<M: Memory>(
    envelope: &Envelope,
    outgoing: &Outgoing,
    memory: &M,
    flow: &Flow,
    identification: &impl Fn(usize) -> u16,
    frame: &mut [u8],
) -> Result<usize, NotWritten> {
    let bth = Bth {
        ack_request: outgoing.ack_request,
        solicited: envelope.solicited && outgoing.receives,
        partition: envelope.partition,
        ..Bth::new(envelope.destination, outgoing.psn)
    };
    let headers = BTH_LENGTH + outgoing.header.length();
    let (front, behind) = frame.split_at_mut_checked(headers).ok_or(NotWritten)?;
    let length = outgoing.payload.length();
    let (payload, behind) = behind.split_at_mut_checked(length).ok_or(NotWritten)?;
    outgoing.payload.copy(memory, payload).map_err(|_| NotWritten)?;
    let total = headers + length + trailer_length(length);
    let pieces: &[&[u8]] = if length == 0 { &[] } else { &[payload] };
    let parts = wire::emit(&bth, &outgoing.header, pieces, flow, identification(total), front)
        .map_err(|_| NotWritten)?;
    let trailer = parts.trailer.as_bytes();
    behind.get_mut(..trailer.len()).ok_or(NotWritten)?.copy_from_slice(trailer);
    Ok(total)
}

const fn trailer_length(payload: usize) -> usize {
    (payload.wrapping_neg() & 3) + wire::ICRC_LENGTH
}

/// Writes a congestion notification.
pub(crate) fn notification(
    envelope: &Envelope,
    flow: &Flow,
    identification: &impl Fn(usize) -> u16,
    frame: &mut [u8],
) -> Option<usize> {
    let bth = Bth { becn: true, partition: envelope.partition, ..Bth::new(envelope.destination, Psn::ZERO) };
    let packet = wire::Packet { bth, header: Header::Cnp, payload: &[] };
    packet.emit(flow, identification(packet.length()), frame).ok()
}
