//! Packets that came before one that is missing.

use alloc::{boxed::Box, vec};

use ringway_wire::{Bth, Header, Packet, PathMtu, Psn};

use super::{Report, WINDOW_MAX};

/// A packet that waits, without its payload.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    bth: Bth,
    header: Header,
    length: usize,
}

/// Room for packets that are ahead, and what is to be reported.
#[derive(Debug)]
pub(crate) struct Reorder {
    waiting: Box<[Option<Waiting>]>,
    payloads: Box<[u8]>,
    mtu: usize,
    count: u32,
    latest: Psn,
    marked: u32,
}

impl Reorder {
    /// Room for packets up to `window` after the expected one; a power of two.
    pub(crate) fn new(window: u32, mtu: PathMtu) -> Self {
        let window = window as usize;
        Self {
            waiting: vec![None; window].into_boxed_slice(),
            payloads: vec![0; window * mtu.bytes()].into_boxed_slice(),
            mtu: mtu.bytes(),
            count: 0,
            latest: Psn::ZERO,
            marked: 0,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.waiting.fill(None);
        (self.count, self.marked) = (0, 0);
    }

    /// Whether nothing is kept.
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn index(&self, psn: Psn) -> usize {
        psn.value() as usize & self.waiting.len().wrapping_sub(1)
    }

    /// A request came, whichever it is.
    pub(crate) fn note(&mut self, psn: Psn, congested: bool) {
        self.latest = psn;
        self.marked = self.marked.wrapping_add(u32::from(congested));
    }

    /// Keeps a packet that is ahead of the expected one; one that is too far ahead is forgotten.
    pub(crate) fn keep(&mut self, packet: &Packet<'_>, expected: Psn) {
        let psn = packet.bth.psn;
        let index = self.index(psn);
        let start = index * self.mtu;
        let room = self.payloads.get_mut(start..start + packet.payload.len());
        let fits = packet.payload.len() <= self.mtu && psn.above(expected) < self.waiting.len() as u32;
        let (Some(slot), Some(room), true) = (self.waiting.get_mut(index), room, fits) else { return };
        if slot.is_none() {
            room.copy_from_slice(packet.payload);
            *slot = Some(Waiting { bth: packet.bth, header: packet.header, length: packet.payload.len() });
            self.count += 1;
        }
    }

    /// Takes the packet with this PSN out, if it is here.
    pub(crate) fn take(&mut self, psn: Psn) -> Option<Packet<'_>> {
        if self.count == 0 {
            return None;
        }
        let index = self.index(psn);
        let waiting = self.waiting.get_mut(index)?.take_if(|waiting| waiting.bth.psn == psn)?;
        self.count -= 1;
        let start = index * self.mtu;
        let payload = self.payloads.get(start..start + waiting.length)?;
        Some(Packet { bth: waiting.bth, header: waiting.header, payload })
    }

    /// Forgets what has been passed, because one request took several PSNs.
    pub(crate) fn forget_before(&mut self, from: Psn, to: Psn) {
        let mut psn = from;
        while self.count > 0 && psn.is_before(to) && psn.above(from) < self.waiting.len() as u32 {
            let index = self.index(psn);
            if let Some(slot) = self.waiting.get_mut(index)
                && slot.take_if(|waiting| waiting.bth.psn == psn).is_some()
            {
                self.count -= 1;
            }
            psn = psn.next();
        }
    }

    /// What is here.
    pub(crate) fn report(&self, expected: Psn) -> Report {
        let mut report = Report { latest: self.latest, marked: self.marked, present: Default::default() };
        let mut left = self.count;
        for distance in 1..WINDOW_MAX.min(self.waiting.len() as u32) {
            if left == 0 {
                break;
            }
            let psn = expected.plus(distance);
            let waiting = self.waiting.get(self.index(psn)).copied().flatten();
            if waiting.is_some_and(|waiting| waiting.bth.psn == psn) {
                report.note(distance);
                left -= 1;
            }
        }
        report
    }
}
