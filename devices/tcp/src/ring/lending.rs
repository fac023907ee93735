//! Sends without a copy: `IORING_OP_SEND_ZC` out of one piece of memory, `IORING_OP_SENDMSG_ZC` out of several.

use std::os::fd::OwnedFd;

use io_uring::opcode;
use ringway_mem::Span;

use super::{LOANS, Operation, Ring, SEND, slot, user_data};
use crate::buffers::SendBatch;
use crate::driver::Event;
use crate::pinned::Place;

/// `IORING_SEND_ZC_REPORT_USAGE`: have the second answer say whether it was copied after all.
const REPORT_USAGE: u16 = 8;
/// `IORING_NOTIF_USAGE_ZC_COPIED`: it was.
const COPIED: i32 = i32::MIN;

impl Ring {
    /// Sends a batch without a copy.
    pub(super) fn lend(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        mut batch: Box<SendBatch>,
        place: usize,
    ) -> Result<(), Box<SendBatch>> {
        let (fd, fixed) = self.target(socket, number);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let pinned = batch.only_span().filter(|_| self.loans.pays(number)).cloned();
        let pinned = pinned.and_then(|span| self.pinned_place(&span));
        let vectors = batch.vectors();
        let entry = match vectors.single() {
            Some((base, length)) => {
                let send = opcode::SendZc::new(fd, base, length).buf_index(pinned);
                send.flags(flags).zc_flags(REPORT_USAGE).build()
            }
            None => {
                let message = opcode::SendMsgZc::new(fd, vectors.message());
                message.flags(flags as u32).ioprio(REPORT_USAGE).build()
            }
        };
        let entry = entry.flags(fixed).user_data(user_data(number, LOANS + place));
        match self.launch(&entry, slot(number, SEND), Operation::Lend(batch, place)) {
            Err(Operation::Lend(batch, place)) => {
                self.loans.end(place);
                Err(batch)
            }
            _ => Ok(()),
        }
    }

    /// The place in the table of registered buffers that has this, which is put there if it is not.
    fn pinned_place(&mut self, span: &Span) -> Option<u16> {
        match self.pinned.find(span)? {
            Place::Registered(at) => Some(at),
            Place::Free(at, part) => {
                let registered = self.register(at, &part);
                self.pinned.put(at, part, registered);
                registered.is_ok().then_some(at)
            }
        }
    }

    /// Empties the table of registered buffers for good; whether that leaves less pinned. Sends that name it and were not handed
    /// over yet are refused, and made with a copy.
    fn stop_pinning(&mut self) -> bool {
        if self.pinned.bytes == 0 {
            return false;
        }
        self.calls += 1;
        let emptied = self.ring.submitter().unregister_buffers().is_ok();
        if emptied {
            self.pinned.close();
        }
        emptied
    }

    /// The first answer to a send without a copy; a second one follows if there is `more`.
    pub(super) fn lent(&mut self, number: u32, place: usize, result: i32, more: bool) -> Event {
        let flight = self.flights.get_mut(slot(number, SEND));
        let Some(Operation::Lend(batch, _)) = flight.and_then(Option::as_mut) else { return Event::Other };
        let sent = u64::try_from(result).unwrap_or(0);
        if more && sent < batch.rest() {
            self.loans.withhold(place, result);
            return Event::Other;
        }
        let lent = more.then_some(batch.first_request);
        if more {
            self.loans.lend(place, batch, sent);
            // The loan is in flight in place of the operation.
            self.in_flight += 1;
        } else {
            self.loans.end(place);
        }
        self.sent_by_loan(number, result, lent)
    }

    /// The second answer.
    pub(super) fn give_back(&mut self, number: u32, place: usize, result: i32) -> Event {
        let Some(returned) = self.loans.give_back(place, result & COPIED != 0) else { return Event::Other };
        if let Some(result) = returned.withheld {
            return self.sent_by_loan(number, result, None);
        }
        self.in_flight -= 1;
        Event::Returned { number, first_request: returned.first_request }
    }

    /// Ends the operation of a send without a copy; its batch is another by now if it was lent.
    fn sent_by_loan(&mut self, number: u32, result: i32, lent: Option<u64>) -> Event {
        let operation = self.flights.get_mut(slot(number, SEND)).and_then(Option::take);
        let Some(Operation::Lend(mut batch, _)) = operation else { return Event::Other };
        self.in_flight -= 1;
        let result = if result == -libc::ENOMEM && self.stop_pinning() {
            // What this user may lock is left for sends from now on, also for this one.
            -libc::EAGAIN
        } else {
            self.loans.refused(number, result)
        };
        if lent.is_none() {
            batch.advance(u64::try_from(result).unwrap_or(0));
        }
        Event::Sent { number, batch, result, lent }
    }
}
