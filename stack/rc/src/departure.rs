//! What a queue pair sends next: chosen, written into a frame, and only then counted as sent, so that whoever carries
//! packets may be asked for room in between.

use ringway_verbs::Time;
use ringway_wire::{self as wire, BTH_LENGTH, Bth, Flow, Header, Psn};
use thiserror::Error;

use crate::{
    Failure, Memory, QueuePair, State,
    mutation::Mutation,
    responses::{Acknowledge, Response},
    segment::{self, Outgoing, Payload},
};

/// The frame's length is not the packet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the frame does not have the packet's length, or the packet's memory is gone")]
pub struct NotWritten;

/// A packet that may go out now. It is what it is until the queue pair is given something, posted to or asked for
/// another.
#[derive(Debug, Clone, Copy)]
pub struct Departure {
    outgoing: Outgoing,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The peer's packets met congestion.
    Notification,
    /// What is here of the peer's packets.
    Report,
    Response {
        read: bool,
    },
    Request,
}

impl Departure {
    /// Bytes that UDP carries for it.
    #[must_use]
    pub const fn length(&self) -> usize {
        let payload = self.outgoing.payload.length();
        BTH_LENGTH + self.outgoing.header.length() + payload + trailer_length(payload)
    }
}

const fn trailer_length(payload: usize) -> usize {
    (payload.wrapping_neg() & 3) + wire::ICRC_LENGTH
}

impl QueuePair {
    /// What goes out next; `None` when there is nothing now. Its memory has been looked at: a request whose memory is
    /// gone fails here. `acknowledge` says which acknowledgements may not wait any longer.
    pub fn next_departure<M: Memory>(
        &mut self,
        now: Time,
        memory: &M,
        acknowledge: Acknowledge,
    ) -> Option<Departure> {
        if matches!(self.state, State::Reset | State::Initialized) {
            return None;
        }
        if self.notifier.is_due() {
            let (header, payload, psn) = (Header::Cnp, Payload::None, Psn::ZERO);
            let outgoing = Outgoing { header, psn, end: psn, ack_request: false, receives: false, payload };
            return Some(Departure { outgoing, kind: Kind::Notification });
        }
        // A queue pair that has failed has nothing to wait for.
        let acknowledge = if self.state == State::Error { Acknowledge::All } else { acknowledge };
        let due = self.responder.responses.report.filter(|due| due.goes(now, acknowledge));
        let reports = due.is_some_and(|due| !due.lets_pass() || !self.has_request(now));
        if let Some(reorder) = self.reorder.as_ref().filter(|_| reports) {
            let missing = !reorder.is_empty() && self.responder.mutation.is(Mutation::AcknowledgeMissing);
            let expected = self.responder.expected.plus(missing.into());
            let outgoing = segment::report(reorder.report(expected), expected, self.responder.responses.msn);
            return Some(Departure { outgoing, kind: Kind::Report });
        }
        loop {
            let yields = self.responder.responses.yields(now, acknowledge);
            let response = self.responder.responses.front().filter(|_| !yields);
            let sends = self.state.sends();
            let request = if sends { self.requester.next_packet(self.mtu) } else { None };
            let is_read = response.is_some_and(|response| response.is_read());
            // Acknowledgements are short and wanted; READ responses and requests take turns, at the rate.
            if (is_read || (response.is_none() && request.is_some())) && self.rate.held_until(now).is_some() {
                return None;
            }
            // Nothing goes out when memory is gone; what there is to send may be another thing then.
            match request {
                Some(outgoing) if response.is_none() || is_read && self.requests_first => {
                    if outgoing.payload.check(memory).is_ok() {
                        return Some(Departure { outgoing, kind: Kind::Request });
                    }
                    if let Err(failure) = self.requester.fault(&outgoing) {
                        self.fail(failure);
                    }
                }
                _ => {
                    let outgoing = self.response_packet(response?, memory);
                    if let Some(outgoing) = outgoing {
                        return Some(Departure { outgoing, kind: Kind::Response { read: is_read } });
                    }
                }
            }
        }
    }

    /// Whether a request could go out now.
    fn has_request(&mut self, now: Time) -> bool {
        let sends = self.state.sends() && self.requester.has_more(self.mtu);
        sends && self.rate.held_until(now).is_none()
    }

    /// `None` when the memory of a READ is gone: it is refused after all.
    fn response_packet<M: Memory>(&mut self, response: Response, memory: &M) -> Option<Outgoing> {
        let outgoing = segment::response(&response, self.mtu);
        if outgoing.payload.check(memory).is_err() {
            self.responder.refuse_read(outgoing.psn);
            self.fail(Failure::AccessRefused);
            return None;
        }
        Some(outgoing)
    }

    /// Writes a packet that [`QueuePair::next_departure`] gave into a frame of exactly its length. `identification` is
    /// what the IPv4 header will have (see [`ringway_wire::emit`]).
    ///
    /// # Errors
    /// When the frame has another length.
    pub fn write<M: Memory>(
        &self,
        departure: &Departure,
        memory: &M,
        flow: &Flow,
        identification: u16,
        frame: &mut [u8],
    ) -> Result<(), NotWritten> {
        let Departure { outgoing, kind } = departure;
        let bth = Bth {
            ack_request: outgoing.ack_request,
            solicited: self.envelope.solicited && outgoing.receives,
            partition: self.envelope.partition,
            becn: *kind == Kind::Notification,
            ..Bth::new(self.envelope.destination, outgoing.psn)
        };
        let headers = BTH_LENGTH + outgoing.header.length();
        let (front, behind) = frame.split_at_mut_checked(headers).ok_or(NotWritten)?;
        let length = outgoing.payload.length();
        let (payload, behind) = behind.split_at_mut_checked(length).ok_or(NotWritten)?;
        outgoing.payload.copy(memory, payload).map_err(|_| NotWritten)?;
        let pieces: &[&[u8]] = if length == 0 { &[] } else { &[payload] };
        let parts = wire::emit(&bth, &outgoing.header, pieces, flow, identification, front)
            .map_err(|_| NotWritten)?;
        let trailer = parts.trailer.as_bytes();
        if trailer.len() != behind.len() {
            return Err(NotWritten);
        }
        behind.copy_from_slice(trailer);
        Ok(())
    }

    /// The packet that [`QueuePair::next_departure`] gave is on its way.
    pub fn departed(&mut self, now: Time, departure: &Departure) {
        self.counters.sent += 1;
        let length = departure.length();
        match departure.kind {
            Kind::Notification => {
                self.counters.notifications_sent += 1;
                self.notifier.sent(now);
            }
            Kind::Report => self.responder.responses.report = None,
            Kind::Response { read } => {
                self.counters.count_response(&departure.outgoing.header);
                self.responder.responses.sent(self.mtu);
                if read {
                    self.rate.sent(now, length);
                    self.requests_first = true;
                }
            }
            Kind::Request => {
                let again = departure.outgoing.psn.is_before(self.requester.highest);
                self.counters.retransmitted += u64::from(again);
                self.requester.sent(now, &departure.outgoing);
                self.responder.responses.replied();
                self.rate.sent(now, length);
                self.requests_first = false;
            }
        }
    }

    /// Writes the next packet, as UDP carries it, to the front of `frame`, and returns its length; `None` when there
    /// is none now. `frame` has room for [`ringway_wire::TRANSPORT_LENGTH_MAX`] bytes. `identification` gives what the
    /// IPv4 header will have for a packet of that length (see [`ringway_wire::emit`]).
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Time,
        memory: &M,
        flow: &Flow,
        identification: impl Fn(usize) -> u16,
        frame: &mut [u8],
    ) -> Option<usize> {
        let departure = self.next_departure(now, memory, Acknowledge::All)?;
        let length = departure.length();
        let frame = frame.get_mut(..length)?;
        self.write(&departure, memory, flow, identification(length), frame).ok()?;
        self.departed(now, &departure);
        Some(length)
    }
}
