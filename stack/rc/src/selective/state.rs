//! What the sending end keeps, and what is lost by it.

use alloc::collections::VecDeque;

use ringway_verbs::Time;
use ringway_wire::Psn;

use super::{Scoreboard, SlotState, Window};

/// A packet is lost when one that went out so many later has arrived: networks reorder a little.
const REORDERING: i32 = 3;
/// A READ request, or an atomic, that is not answered in full, or has an unanswered one before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) first: Psn,
    pub(super) packets: u32,
}

impl Asked {
    const fn contains(&self, psn: Psn) -> bool {
        psn.above(self.first) < self.packets
    }
}

/// What the requester knows besides, when acknowledgement is selective.
#[derive(Debug)]
pub(crate) struct Selective {
    pub(crate) active: bool,
    pub(super) board: Scoreboard,
    pub(super) window: Window,
    pub(super) asked: VecDeque<Asked>,
    /// The peer's expected PSN, as far as is known.
    pub(super) executed: Psn,
    /// Packets that went out, by which each is known.
    pub(super) transmissions: u32,
    /// The last packet to go out of those that the peer is known to have.
    pub(super) newest: u32,
    /// The same of those whose response is here, and the PSN of the latter.
    pub(super) newest_answer: (u32, Psn),
    pub(super) marked: u32,
    /// Responses that came with a mark since the last that was news.
    pub(super) marked_responses: u32,
    pub(super) probes: u32,
    pub(super) probe_at: Option<Time>,
}

impl Selective {
    /// For so many packets outstanding; a power of two.
    pub(crate) fn new(window: u32) -> Self {
        Self {
            active: false,
            board: Scoreboard::new(window),
            window: Window::new(window, 0),
            asked: VecDeque::with_capacity(usize::from(u8::MAX)),
            executed: Psn::ZERO,
            transmissions: 0,
            newest: 0,
            newest_answer: (0, Psn::ZERO),
            marked: 0,
            marked_responses: 0,
            probes: 0,
            probe_at: None,
        }
    }

    pub(crate) fn start(&mut self, first: Psn, window: u32, slack_ns: u64) {
        self.active = true;
        self.window = Window::new(window.min(self.board.room()), slack_ns);
        self.executed = first;
        // Before the first packet, so that none is taken for older than nothing.
        (self.transmissions, self.newest, self.newest_answer) = (1, 0, (0, first));
    }

    pub(crate) fn reset(&mut self) {
        self.board.reset();
        self.asked.clear();
        (self.active, self.marked, self.marked_responses) = (false, 0, 0);
        (self.probes, self.probe_at) = (0, None);
    }

    pub(crate) const fn probe_at(&self) -> Option<Time> {
        self.probe_at
    }

    pub(super) fn asked_with(&self, psn: Psn) -> Option<Asked> {
        self.asked.iter().copied().find(|asked| asked.contains(psn))
    }

    /// A PSN must go out again. As long as a READ request was not executed all of it must, unchanged.
    pub(super) fn lose(&mut self, psn: Psn) {
        let slot = self.board.get(psn);
        if slot.state == SlotState::Done {
            return;
        }
        match self.asked_with(psn).filter(|asked| slot.answered && !asked.first.is_before(self.executed)) {
            Some(asked) => {
                for index in 0..asked.packets {
                    self.board.change(asked.first.plus(index), SlotState::Lost);
                }
            }
            None => self.board.change(psn, SlotState::Lost),
        }
    }

    /// The peer has executed everything before `end`; returns how many packets that is news of.
    pub(super) fn execute_up_to(&mut self, unacknowledged: Psn, end: Psn) -> u32 {
        let mut psn = if self.executed.is_before(unacknowledged) { unacknowledged } else { self.executed };
        let mut news = 0;
        while psn.is_before(end) {
            let slot = self.board.get(psn);
            if !slot.answered && slot.state != SlotState::Done {
                self.arrived(slot.transmission);
                self.board.change(psn, SlotState::Done);
                news += 1;
            }
            psn = psn.next();
        }
        if end.is_after(self.executed) {
            self.executed = end;
        }
        news
    }

    pub(super) const fn arrived(&mut self, transmission: u32) {
        if is_later(transmission, self.newest) {
            self.newest = transmission;
        }
    }
}

/// Whether one transmission was after another.
pub(super) const fn is_later(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

impl Selective {
    /// Marks what later packets have overtaken.
    pub(super) fn find_lost(&mut self, unacknowledged: Psn, next: Psn) {
        let (newest, (newest_answer, answer_psn)) = (self.newest, self.newest_answer);
        let overtaken_by = |newest: u32, transmission: u32| newest.wrapping_sub(transmission).cast_signed();
        let mut lost = 0;
        let mut psn = unacknowledged;
        while psn != next {
            let slot = self.board.get(psn);
            let by_requests = overtaken_by(newest, slot.transmission) >= REORDERING;
            let by_answers = overtaken_by(newest_answer, slot.transmission);
            let is_lost = if slot.answered && psn.is_before(self.executed) {
                by_answers >= REORDERING || (by_answers >= 0 && answer_psn.since(psn) >= REORDERING)
            } else {
                by_requests
            };
            if slot.state == SlotState::InFlight && is_lost {
                self.lose(psn);
                lost += 1;
            }
            psn = psn.next();
        }
        self.window.lost(lost);
    }
}
