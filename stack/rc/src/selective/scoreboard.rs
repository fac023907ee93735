//! What became of every PSN that is outstanding.

use alloc::{boxed::Box, vec};

use ringway_verbs::Time;
use ringway_wire::Psn;

/// What became of a PSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Executed, or its response is here.
    Done,
    /// Sent, and nothing is known.
    InFlight,
    /// The peer has it and waits for another one before it.
    Received,
    /// It must go out again.
    Lost,
}

/// One PSN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) state: SlotState,
    /// It ends with a response, not with an acknowledgement.
    pub(crate) answered: bool,
    /// It went out more than once, so that nobody knows which of them an answer is for.
    pub(crate) again: bool,
    /// Counts packets in the order in which they went out.
    pub(crate) transmission: u32,
    pub(crate) sent_at: Time,
}

const DONE: Slot =
    Slot { state: SlotState::Done, answered: false, again: false, transmission: 0, sent_at: Time(0) };

/// A slot for every PSN that may be outstanding, by its lower bits.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    slots: Box<[Slot]>,
    in_flight: u32,
    lost: u32,
}

impl Scoreboard {
    /// For so many PSNs; a power of two.
    pub(crate) fn new(window: u32) -> Self {
        Self { slots: vec![DONE; window as usize].into_boxed_slice(), in_flight: 0, lost: 0 }
    }

    pub(crate) fn reset(&mut self) {
        self.slots.fill(DONE);
        (self.in_flight, self.lost) = (0, 0);
    }

    /// How many PSNs may be outstanding.
    pub(crate) const fn room(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(crate) const fn lost(&self) -> u32 {
        self.lost
    }

    fn index(&self, psn: Psn) -> usize {
        psn.value() as usize & self.slots.len().wrapping_sub(1)
    }

    pub(crate) fn get(&self, psn: Psn) -> Slot {
        self.slots.get(self.index(psn)).copied().unwrap_or(DONE)
    }

    /// It went out.
    pub(crate) fn sent(&mut self, psn: Psn, answered: bool, transmission: u32, now: Time) {
        let again = self.get(psn).state != SlotState::Done;
        self.change(psn, SlotState::InFlight);
        let index = self.index(psn);
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Slot { state: SlotState::InFlight, answered, again, transmission, sent_at: now };
        }
    }

    /// Its state is another one now.
    pub(crate) fn change(&mut self, psn: Psn, state: SlotState) {
        let index = self.index(psn);
        let Some(slot) = self.slots.get_mut(index) else { return };
        match slot.state {
            SlotState::InFlight => self.in_flight -= 1,
            SlotState::Lost => self.lost -= 1,
            SlotState::Done | SlotState::Received => {}
        }
        match state {
            SlotState::InFlight => self.in_flight += 1,
            SlotState::Lost => self.lost += 1,
            SlotState::Done | SlotState::Received => {}
        }
        slot.state = state;
    }
}
