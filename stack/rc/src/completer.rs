//! The completer: what acknowledgements and responses of the peer mean for the send queue.

use ringway_verbs::{LocalSlice, Status, Time};
use ringway_wire::{NakCode, PathMtu, Psn, Syndrome};

use crate::{Failure, Memory, completions::Completions, mutation::Mutation, requester::Requester, timer};

impl Requester {
    /// Whether this PSN went out and nothing is known about it yet. Anything else in a response is a duplicate or
    /// was made up.
    pub(crate) fn is_outstanding(&self, psn: Psn) -> bool {
        psn.above(self.unacknowledged) < self.highest.above(self.unacknowledged)
    }

    /// An acknowledgement of either kind.
    pub(crate) fn handle_acknowledge(
        &mut self,
        now: Time,
        psn: Psn,
        syndrome: Syndrome,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        if self.selects() {
            return self.handle_selected_nak(now, psn, syndrome, completions);
        }
        if !self.is_outstanding(psn) {
            return Ok(());
        }
        match syndrome {
            Syndrome::Ack(_) => self.acknowledge(now, psn.next(), completions),
            Syndrome::RnrNak(delay) => {
                self.acknowledge(now, psn, completions)?;
                if self.unacknowledged != psn || self.held_until.is_some() {
                    return Ok(());
                }
                self.count_rnr_retry()?;
                self.go_back();
                self.held_until = Some(timer::after(now, u64::from(delay.delay_us()) * 1_000));
                Ok(())
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                self.acknowledge(now, psn, completions)?;
                // Packets behind one that found no receive are out of sequence as well.
                if self.unacknowledged != psn || self.held_until.is_some() {
                    return Ok(());
                }
                self.count_retry()?;
                self.go_back();
                Ok(())
            }
            Syndrome::Nak(code) => {
                self.acknowledge(now, psn, completions)?;
                // A READ before the refused request that has no answer yet is asked again first.
                let refused = self.queue.front().is_some_and(|front| {
                    psn.above(front.first) < front.packets && self.unacknowledged == psn
                });
                match code {
                    _ if !refused => Ok(()),
                    NakCode::RemoteAccess => Err(Failure::RemoteAccess),
                    NakCode::RemoteOperational => Err(Failure::RemoteOperational),
                    _ => Err(Failure::RemoteInvalidRequest),
                }
            }
        }
    }

    /// Everything before `end` has reached the responder: completes it. When there is a READ or atomic among it whose
    /// response is missing, goes back to that.
    fn acknowledge(&mut self, now: Time, end: Psn, completions: &mut Completions) -> Result<(), Failure> {
        let before = self.unacknowledged;
        let mut lost = false;
        while let Some(front) = self.queue.front() {
            if front.is_answered() && !self.mutation.is(Mutation::CompleteWithoutResponse) {
                lost = end.is_after(front.first.plus(front.answered));
                break;
            }
            if end.is_before(front.end()) {
                if end.is_after(self.unacknowledged) {
                    self.unacknowledged = end;
                }
                break;
            }
            self.unacknowledged = front.end();
            self.complete_front(completions);
        }
        self.catch_up();
        if self.unacknowledged != before {
            self.progressed(now);
        }
        if lost && self.gone_back_for != Some(self.unacknowledged) && self.held_until.is_none() {
            self.count_retry()?;
            self.go_back();
            self.gone_back_for = Some(self.unacknowledged);
        }
        self.check_front()
    }

    /// The oldest request is done.
    pub(crate) fn complete_front(&mut self, completions: &mut Completions) {
        let Some(posted) = self.queue.pop_front() else { return };
        if posted.asked {
            self.outstanding_reads -= 1;
        }
        self.cursor = self.cursor.saturating_sub(1);
        if posted.request.signalled {
            completions.send(posted.request.id, Status::Success, posted.request.length());
        }
    }

    /// What was to go out again and is acknowledged after all need not.
    fn catch_up(&mut self) {
        if self.next.is_before(self.unacknowledged) {
            self.next = self.unacknowledged;
            self.cursor = 0;
        }
    }

    /// A packet of a READ's response: its bytes, and whether it says that it is the last. (One that was asked for again from
    /// its middle on begins there.)
    pub(crate) fn handle_read_response<M: Memory>(
        &mut self,
        now: Time,
        psn: Psn,
        (payload, ends): (&[u8], bool),
        mtu: PathMtu,
        memory: &mut M,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        if self.selects() {
            return self.handle_selected_response(now, psn, Ok(payload), mtu, memory, completions);
        }
        if !self.is_outstanding(psn) {
            return Ok(());
        }
        // It acknowledges what was asked before.
        self.acknowledge(now, psn, completions)?;
        let Some(front) = self.queue.front_mut().filter(|_| self.unacknowledged == psn) else {
            return Ok(());
        };
        if !matches!(front.request.operation, ringway_verbs::Operation::Read { .. }) {
            return Err(Failure::BadResponse);
        }
        let offset = u64::from(front.answered) * mtu.bytes() as u64;
        let expected = front.request.length().saturating_sub(offset).min(mtu.bytes() as u64);
        if payload.len() as u64 != expected || ends != (front.answered + 1 == front.packets) {
            return Err(Failure::BadResponse);
        }
        scatter(&front.request.local, offset, payload, memory)?;
        front.answered += 1;
        let done = front.answered == front.packets;
        self.unacknowledged = psn.next();
        if done {
            self.complete_front(completions);
        }
        self.catch_up();
        self.progressed(now);
        self.check_front()
    }

    /// An atomic's response.
    pub(crate) fn handle_atomic_response<M: Memory>(
        &mut self,
        now: Time,
        psn: Psn,
        old: u64,
        mtu: PathMtu,
        memory: &mut M,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        if self.selects() {
            return self.handle_selected_response(now, psn, Err(old), mtu, memory, completions);
        }
        if !self.is_outstanding(psn) {
            return Ok(());
        }
        self.acknowledge(now, psn, completions)?;
        let Some(front) = self.queue.front().filter(|_| self.unacknowledged == psn) else { return Ok(()) };
        if !front.request.operation.is_atomic() {
            return Err(Failure::BadResponse);
        }
        scatter(&front.request.local, 0, &old.to_ne_bytes(), memory)?;
        self.unacknowledged = psn.next();
        self.complete_front(completions);
        self.catch_up();
        self.progressed(now);
        self.check_front()
    }
}

/// Copies bytes to `offset` of what the segments make up.
pub(crate) fn scatter<M: Memory>(
    segments: &[LocalSlice],
    mut offset: u64,
    mut from: &[u8],
    memory: &mut M,
) -> Result<(), Failure> {
    for segment in segments {
        let Some(room) = segment.length.checked_sub(offset).filter(|room| *room > 0) else {
            offset -= segment.length;
            continue;
        };
        if from.is_empty() {
            break;
        }
        let taken = usize::try_from(room).map_or(from.len(), |room| room.min(from.len()));
        let (part, rest) = from.split_at(taken);
        memory
            .write_local(segment.key, segment.offset.saturating_add(offset), part)
            .map_err(|_| Failure::LocalProtection)?;
        (from, offset) = (rest, 0);
    }
    Ok(())
}
