//! Local steps, handed over piece by piece to whoever does them.
//!
//! Several steps are under way at a time, and several pieces of each. Steps that touch the same bytes are ordered by
//! the plan's dependencies (its verifier proves that they are), and pieces of one step touch different bytes.

use ringway_verbs::Device;

use super::local::Work;
use super::queue::LocalCall;
use super::run::{Run, Scene};
use super::staging::STAGED_TICKET;
use crate::point::POINT_TICKET;
use crate::turn::Turn;
use crate::{Failure, Handed, LocalMemory, LocalRank, Signature, Ticket};

/// Local steps under way at once. A power of two that fits the bits it has in a ticket.
pub(super) const WORKS: usize = 1 << WORK_BITS;
const WORK_BITS: u32 = 3;
/// Pieces of local work that others may have at once.
pub(super) const PIECES: usize = 32;
/// What a piece costs that somebody else does, in bytes of the turn's budget.
const HANDED: u64 = 1 << 10;
/// A local step under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Active {
    pub(super) slot: u32,
    pub(super) step: u32,
    pub(super) work: Work,
    /// Pieces that others have.
    pub(super) away: u32,
    /// Which was begun first.
    pub(super) order: u32,
}

impl Run {
    /// The oldest local step of which a piece can be handed over.
    pub(super) fn next_work(&self) -> Option<usize> {
        if self.away.len() >= PIECES {
            return None;
        }
        let works = self.works.iter().enumerate();
        let open = works.filter_map(|(at, active)| active.filter(|a| !a.work.is_done()).map(|a| (at, a)));
        // The numbers wrap; none is later than the last one given.
        open.max_by_key(|(_, active)| self.serial.wrapping_sub(active.order)).map(|(at, _)| at)
    }

    /// Hands over the next piece of a local step; returns what it costs.
    pub(super) fn hand<D: Device + ?Sized>(
        &mut self,
        at: usize,
        signature: &Signature,
        calls: &[LocalCall],
        scene: &Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<u64, Failure> {
        let Some(mut active) = self.works.get(at).copied().flatten() else { return Ok(0) };
        let ground = self.ground(active.slot, signature, calls, scene.layout);
        self.serial = self.serial.wrapping_add(1);
        let number =
            ((self.serial << WORK_BITS) | u32::try_from(at).unwrap_or(0)) & !(POINT_TICKET | STAGED_TICKET);
        let ticket = Ticket { communicator: self.id, number };
        let (bytes, handed) =
            active.work.piece(&ground, (scene.rank, ticket, self.scratch.is_some()), turn)?;
        let cost = match handed {
            Handed::Done => bytes,
            Handed::Later => {
                active.away += 1;
                self.away.push(number);
                HANDED
            }
        };
        if let Some(place) = self.works.get_mut(at) {
            *place = Some(active);
        }
        self.settle(at);
        Ok(cost)
    }

    /// Ends a local step when all of its pieces are done.
    fn settle(&mut self, at: usize) {
        let Some(place) = self.works.get_mut(at) else { return };
        let Some(Active { slot, step, .. }) = place.take_if(|a| a.work.is_done() && a.away == 0) else {
            return;
        };
        self.done(slot, step);
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.wants_work) {
            (chunk.wants_work, chunk.dirty) = (false, true);
        }
    }

    /// A piece that somebody else had is done.
    pub(crate) fn collected(&mut self, number: u32) {
        let Some(place) = self.away.iter().position(|other| *other == number) else { return };
        self.away.swap_remove(place);
        if number & STAGED_TICKET != 0 {
            return self.collected_staged(number);
        }
        let at = (number & ((1 << WORK_BITS) - 1)) as usize;
        if let Some(active) = self.works.get_mut(at).and_then(Option::as_mut) {
            active.away = active.away.saturating_sub(1);
        }
        self.settle(at);
    }

    /// Takes back what others have not begun. Whether nobody touches this collective's memory any more.
    pub(crate) fn withdraw(&mut self, memory: &mut dyn LocalMemory) -> bool {
        let communicator = self.id;
        self.away.retain(|number| !memory.withdraw(Ticket { communicator, number: *number }));
        self.away.is_empty()
    }

    /// A piece that somebody else has, and the rank of this node that is at it.
    pub(crate) fn holder(&self, memory: &dyn LocalMemory) -> Option<(u32, LocalRank)> {
        let communicator = self.id;
        let holder = |number: &u32| memory.holder(Ticket { communicator, number: *number });
        self.away.iter().find_map(|number| holder(number).map(|rank| (*number, rank)))
    }
}
