//! The requester and completer with selective acknowledgement.

use ringway_verbs::{Operation, Time};
use ringway_wire::{NakCode, PathMtu, Psn, Syndrome};

use super::{
    Report, Selective, SlotState,
    state::{Asked, is_later},
};
use crate::{
    Failure, Memory,
    completer::scatter,
    completions::Completions,
    mutation::Mutation,
    requester::{Posted, Requester},
    segment::{self, Outgoing},
    timer,
};

/// The most response packets that one READ request asks for.
const READ_PACKETS: u32 = 64;

impl Requester {
    /// The mode's state, if this is the mode.
    fn selected(&self) -> Option<&Selective> {
        self.selective.as_ref().filter(|selective| selective.active)
    }

    fn selected_mut(&mut self) -> Option<&mut Selective> {
        self.selective.as_mut().filter(|selective| selective.active)
    }

    /// Whether acknowledgement is selective.
    pub(crate) fn selects(&self) -> bool {
        self.selected().is_some()
    }

    /// A response came with a mark of congestion.
    pub(crate) fn note_marked_response(&mut self) {
        if let Some(selective) = self.selected_mut() {
            selective.marked_responses = selective.marked_responses.saturating_add(1);
        }
    }

    /// Starts to wait for news, after the peer wanted none of its packets.
    pub(crate) fn resume_selected(&mut self, now: Time) {
        let outstanding = self.unacknowledged != self.next;
        if let Some(selective) = self.selected_mut() {
            let after = selective.window.probe_after_ns(selective.probes);
            selective.probe_at = outstanding.then(|| timer::after(now, after));
            self.restart_timer(now);
        }
    }

    /// Whether this PSN went out and may still be outstanding.
    fn is_tracked(&self, psn: Psn) -> bool {
        psn.above(self.unacknowledged) < self.next.above(self.unacknowledged)
    }

    /// What goes out next.
    pub(crate) fn next_selected(&self, mtu: PathMtu) -> Option<Outgoing> {
        let selective = self.selected()?;
        if self.held_until.is_some() {
            return None;
        }
        let within = selective.board.in_flight() < selective.window.packets();
        if selective.board.lost() > 0 && (within || selective.probes > 0) {
            return self.lost_packet(selective, mtu);
        }
        if self.holds_back() {
            return None;
        }
        let posted = self.queue.get(self.cursor)?;
        let outstanding = self.next.above(self.unacknowledged);
        let room = self.window().min(selective.board.room()).checked_sub(outstanding)?;
        let unanswered = selective.asked.len();
        let fenced = posted.request.fence && self.next == posted.first && unanswered > 0;
        let many = posted.is_answered() && unanswered >= self.reads();
        if posted.faulty || room == 0 || !within || fenced || many {
            return None;
        }
        let within = selective.window.packets() - selective.board.in_flight();
        let limit = room.min(within).min(READ_PACKETS);
        let mut outgoing = segment::packet(posted, self.next, mtu, limit)?;
        outgoing.ack_request |= limit == 1 || self.asks_for_acknowledgement();
        Some(outgoing)
    }

    /// The oldest lost packet, or the READ request for all that is lost in one piece.
    fn lost_packet(&self, selective: &Selective, mtu: PathMtu) -> Option<Outgoing> {
        let outstanding = self.next.above(self.unacknowledged);
        let is_lost = |psn: Psn| selective.board.get(psn).state == SlotState::Lost;
        let psn = (0..outstanding).map(|at| self.unacknowledged.plus(at)).find(|psn| is_lost(*psn))?;
        let posted = self.queue.get(self.entry_with(psn)?).filter(|posted| !posted.faulty)?;
        let limit = match selective.asked_with(psn) {
            Some(asked) if selective.board.get(psn).answered => {
                let rest = asked.packets - psn.above(asked.first);
                (1..rest).take_while(|at| is_lost(psn.plus(*at))).count() as u32 + 1
            }
            _ => 1,
        };
        let mut outgoing = segment::packet(posted, psn, mtu, limit)?;
        outgoing.ack_request = true;
        Some(outgoing)
    }

    /// The entry that a PSN that went out, or goes out next, lies in. All that was posted may be longer than PSNs last;
    /// up to the cursor it is not.
    pub(crate) fn entry_with(&self, psn: Psn) -> Option<usize> {
        let first = self.queue.front()?.first;
        let distance = psn.above(first);
        let (mut low, mut high) = (0, self.queue.len().min(self.cursor + 1));
        while low < high {
            let middle = low.midpoint(high);
            if self.queue.get(middle)?.first.above(first) <= distance {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let entry = low.checked_sub(1)?;
        self.queue.get(entry).filter(|posted| psn.above(posted.first) < posted.packets).map(|_| entry)
    }

    /// The packet that [`Requester::next_selected`] gave is on its way.
    pub(crate) fn sent_selected(&mut self, now: Time, outgoing: &Outgoing) {
        let fresh = outgoing.psn == self.next;
        let cursor = self.cursor;
        let (answered, end) =
            self.queue.get(cursor).map_or((false, self.next), |posted| (posted.is_answered(), posted.end()));
        let Some(selective) = self.selected_mut() else { return };
        let packets = outgoing.end.above(outgoing.psn);
        let answered = if fresh { answered } else { selective.board.get(outgoing.psn).answered };
        for index in 0..packets {
            let psn = outgoing.psn.plus(index);
            selective.board.sent(psn, answered, selective.transmissions, now);
        }
        selective.transmissions = selective.transmissions.wrapping_add(1);
        selective.probe_at = Some(timer::after(now, selective.window.probe_after_ns(selective.probes)));
        if fresh {
            if answered {
                selective.asked.push_back(Asked { first: outgoing.psn, packets });
            }
            self.next = outgoing.end;
            self.highest = self.next;
            self.cursor += usize::from(self.next == end);
        }
        self.count_ack_request(outgoing.ack_request);
        if self.deadline.is_none() {
            self.restart_timer(now);
        }
    }

    /// A report of the peer's responder, which has executed everything up to `last`.
    pub(crate) fn handle_report(
        &mut self,
        now: Time,
        last: Psn,
        report: &Report,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        let (unacknowledged, next) = (self.unacknowledged, self.next);
        let outstanding = next.above(unacknowledged);
        let expected = last.next();
        // An old one, or one that nobody can have sent.
        if expected.above(unacknowledged) > outstanding {
            return Ok(());
        }
        let latest = report.latest.above(unacknowledged) < outstanding;
        let broken = self.mutation.is(Mutation::CompleteReceived);
        let kept = if broken { SlotState::Done } else { SlotState::Received };
        let Some(selective) = self.selected_mut() else { return Ok(()) };
        let latest = latest.then(|| selective.board.get(report.latest));
        let mut news = selective.execute_up_to(unacknowledged, expected);
        for distance in report.distances() {
            let psn = expected.plus(distance);
            if psn.above(unacknowledged) >= outstanding {
                break;
            }
            let slot = selective.board.get(psn);
            if !slot.answered && matches!(slot.state, SlotState::InFlight | SlotState::Lost) {
                selective.arrived(slot.transmission);
                selective.board.change(psn, kept);
                news += 1;
            }
        }
        // The peer had it and could not use it, for want of a receive.
        if expected != next && selective.board.get(expected).state == SlotState::Received {
            selective.lose(expected);
        }
        let marked = report.marked.wrapping_sub(selective.marked);
        if marked.cast_signed() > 0 {
            selective.marked = report.marked;
        }
        if news > 0 {
            if let Some(slot) = latest.filter(|slot| !slot.again) {
                selective.window.measured(now, now.0.saturating_sub(slot.sent_at.0));
            }
            selective.window.acknowledged(now, news, if marked.cast_signed() > 0 { marked } else { 0 });
        }
        let gap = report.present.iter().any(|word| *word != 0);
        self.settle(now, news, gap, completions)
    }

    /// An acknowledgement of the plain kind, which says no to something.
    pub(crate) fn handle_selected_nak(
        &mut self,
        now: Time,
        psn: Psn,
        syndrome: Syndrome,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        if !self.is_tracked(psn) {
            return Ok(());
        }
        let (unacknowledged, next, held) = (self.unacknowledged, self.next, self.held_until.is_some());
        let end = if matches!(syndrome, Syndrome::Ack(_)) { psn.next() } else { psn };
        let Some(selective) = self.selected_mut() else { return Ok(()) };
        let news = selective.execute_up_to(unacknowledged, end);
        match syndrome {
            Syndrome::RnrNak(_) => selective.lose(psn),
            // The peer keeps nothing that is ahead after all.
            Syndrome::Nak(NakCode::SequenceError) => {
                for index in 0..next.above(psn) {
                    selective.lose(psn.plus(index));
                }
            }
            Syndrome::Ack(_) | Syndrome::Nak(_) => {}
        }
        self.settle(now, news, false, completions)?;
        match syndrome {
            Syndrome::Ack(_) => Ok(()),
            Syndrome::Nak(NakCode::SequenceError) => self.count_retry(),
            Syndrome::RnrNak(_) if held => Ok(()),
            Syndrome::RnrNak(delay) => {
                self.count_rnr_retry()?;
                // Nothing is waited for meanwhile.
                self.deadline = None;
                self.held_until = Some(timer::after(now, u64::from(delay.delay_us()) * 1_000));
                Ok(())
            }
            Syndrome::Nak(_) if self.unacknowledged != psn => Ok(()),
            Syndrome::Nak(NakCode::RemoteAccess) => Err(Failure::RemoteAccess),
            Syndrome::Nak(NakCode::RemoteOperational) => Err(Failure::RemoteOperational),
            Syndrome::Nak(_) => Err(Failure::RemoteInvalidRequest),
        }
    }

    /// A response packet: bytes of a READ, or the old value of an atomic's word.
    pub(crate) fn handle_selected_response<M: Memory>(
        &mut self,
        now: Time,
        psn: Psn,
        response: Result<&[u8], u64>,
        mtu: PathMtu,
        memory: &mut M,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        if !self.is_tracked(psn) {
            return Ok(());
        }
        let entry = self.entry_with(psn).and_then(|entry| self.queue.get(entry)).copied();
        let unacknowledged = self.unacknowledged;
        let Some(selective) = self.selected_mut() else { return Ok(()) };
        let slot = selective.board.get(psn);
        let (Some(asked), Some(posted)) = (selective.asked_with(psn), entry) else { return Ok(()) };
        if !slot.answered || slot.state == SlotState::Done {
            return Ok(());
        }
        place(&posted, psn, response, mtu, memory)?;
        // It was executed, and so was all before it.
        let end = asked.first.plus(asked.packets);
        let news = selective.execute_up_to(unacknowledged, end) + 1;
        selective.board.change(psn, SlotState::Done);
        let (newest, newest_psn) = selective.newest_answer;
        if is_later(slot.transmission, newest) || (slot.transmission == newest && psn.is_after(newest_psn)) {
            selective.newest_answer = (slot.transmission, psn);
        }
        selective.arrived(slot.transmission);
        if !slot.again && psn == asked.first {
            selective.window.measured(now, now.0.saturating_sub(slot.sent_at.0));
        }
        let marked = core::mem::take(&mut selective.marked_responses);
        selective.window.acknowledged(now, news, marked);
        // A response that was asked for again says what else should be here by now.
        let gap = psn != unacknowledged || slot.again;
        self.settle(now, news, gap, completions)
    }

    /// Completes what is done, after news. What is lost is looked for where something came after a `gap`.
    fn settle(
        &mut self,
        now: Time,
        news: u32,
        gap: bool,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        let (mut unacknowledged, next) = (self.unacknowledged, self.next);
        let Some(selective) = self.selected_mut() else { return Ok(()) };
        while unacknowledged != next && selective.board.get(unacknowledged).state == SlotState::Done {
            unacknowledged = unacknowledged.next();
        }
        if gap {
            selective.find_lost(unacknowledged, next);
        }
        while let Some(asked) = selective.asked.front() {
            if unacknowledged.is_before(asked.first.plus(asked.packets)) {
                break;
            }
            selective.asked.pop_front();
        }
        if news > 0 {
            selective.probes = 0;
            let after = selective.window.probe_after_ns(0);
            selective.probe_at = (unacknowledged != next).then(|| timer::after(now, after));
        }
        self.unacknowledged = unacknowledged;
        while let Some(front) = self.queue.front() {
            if unacknowledged.is_before(front.end()) {
                break;
            }
            self.complete_front(completions);
        }
        if news > 0 {
            self.progressed(now);
        }
        self.check_front()
    }

    /// Does what is due, but for the end of a hold.
    pub(crate) fn expire_selected(&mut self, now: Time) -> Result<(), Failure> {
        let (unacknowledged, next) = (self.unacknowledged, self.next);
        let outstanding = next.above(unacknowledged);
        let timed_out = self.deadline.is_some_and(|deadline| deadline <= now);
        if timed_out {
            self.count_retry()?;
            self.deadline = None;
        }
        let Some(selective) = self.selected_mut() else { return Ok(()) };
        if timed_out {
            selective.window.timed_out();
            for index in 0..outstanding {
                let psn = unacknowledged.plus(index);
                if selective.board.get(psn).state == SlotState::InFlight {
                    selective.lose(psn);
                }
            }
            selective.lose(unacknowledged);
        }
        if selective.probe_at.is_some_and(|at| at <= now) {
            selective.probes = selective.probes.saturating_add(1);
            let after = selective.window.probe_after_ns(selective.probes);
            selective.probe_at = (outstanding > 0).then(|| timer::after(now, after));
            // The last packet, whose report says what else is missing; and the oldest, in case it is only that.
            let in_flight = |psn: &Psn| selective.board.get(*psn).state == SlotState::InFlight;
            let last = (0..outstanding).rev().map(|at| unacknowledged.plus(at)).find(in_flight);
            if outstanding > 0 && selective.board.lost() == 0 {
                selective.lose(last.unwrap_or(unacknowledged));
                selective.lose(unacknowledged);
            }
        }
        if timed_out {
            self.restart_timer(now);
        }
        Ok(())
    }
}

/// Puts a response where its request wants it.
fn place<M: Memory>(
    posted: &Posted,
    psn: Psn,
    response: Result<&[u8], u64>,
    mtu: PathMtu,
    memory: &mut M,
) -> Result<(), Failure> {
    let is_read = matches!(posted.request.operation, Operation::Read { .. });
    match response {
        Ok(payload) if is_read => {
            let offset = u64::from(psn.above(posted.first)) * mtu.bytes() as u64;
            let expected = posted.request.length().saturating_sub(offset).min(mtu.bytes() as u64);
            if payload.len() as u64 != expected {
                return Err(Failure::BadResponse);
            }
            scatter(&posted.request.local, offset, payload, memory)
        }
        Err(old) if !is_read => scatter(&posted.request.local, 0, &old.to_ne_bytes(), memory),
        _ => Err(Failure::BadResponse),
    }
}
