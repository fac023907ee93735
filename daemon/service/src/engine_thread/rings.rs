//! Every rank's rings on this node.

use std::collections::BTreeMap;

use ringway_engine::{CommunicatorId, LocalRank};

use super::ring::{Life, Ring, Stall};
use crate::session::SessionKey;

/// Rings by index, and by what the engine calls them.
#[derive(Debug, Default)]
pub(super) struct Rings {
    slots: Vec<Option<(SessionKey, Ring)>>,
    by_rank: BTreeMap<(CommunicatorId, LocalRank), usize>,
    /// Indices in use, in the order of coming.
    order: Vec<usize>,
    /// Where the next turn begins, so that no ring is always last.
    first: usize,
    /// Rings with completions that the client was not told of.
    pub(super) untold: Vec<usize>,
    /// Rings that are read no more.
    pub(super) leaving: Vec<usize>,
    /// The CPU that was said to the clients last.
    cpu: Option<usize>,
}

impl Rings {
    /// Takes a rank's rings; returns their index.
    pub(super) fn add(&mut self, session: SessionKey, ring: Ring) -> usize {
        ring.rings.say_cpu(self.cpu);
        let rank = (ring.id, ring.local);
        let index = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len().saturating_sub(1)
        });
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some((session, ring));
        }
        self.by_rank.insert(rank, index);
        self.order.push(index);
        // Room for every ring at once, so that the data path never grows these.
        self.untold.reserve(self.order.len());
        self.leaving.reserve(self.order.len());
        index
    }

    /// Forgets rings.
    pub(super) fn remove(&mut self, index: usize) -> Option<(SessionKey, Ring)> {
        let (session, ring) = self.slots.get_mut(index)?.take()?;
        self.by_rank.remove(&(ring.id, ring.local));
        self.order.retain(|i| *i != index);
        self.untold.retain(|i| *i != index);
        Some((session, ring))
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut (SessionKey, Ring)> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// The rings of what the engine calls a rank.
    pub(super) fn find(&self, id: CommunicatorId, local: LocalRank) -> Option<usize> {
        self.by_rank.get(&(id, local)).copied()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Moves the start of the round on; returns it.
    pub(super) fn begin_round(&mut self) -> usize {
        let count = self.order.len();
        let first = self.first.checked_rem(count).unwrap_or(0);
        self.first = first.wrapping_add(1);
        first
    }

    /// The index of the ring that is `nth` in a round that began at `first`.
    pub(super) fn nth(&self, first: usize, nth: usize) -> Option<usize> {
        self.order.get(first.wrapping_add(nth).checked_rem(self.order.len())?).copied()
    }

    /// Every ring, with its session.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(SessionKey, Ring)> {
        self.slots.iter().flatten()
    }

    /// Every ring, with its session.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (SessionKey, Ring)> {
        self.slots.iter_mut().flatten()
    }

    /// The ring a session calls a communicator.
    pub(super) fn named(&self, session: SessionKey, communicator: u32) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|(owner, ring)| {
                *owner == session && ring.communicator == communicator && ring.life == Life::Serving
            })
        })
    }

    /// Whether a rank's next operation waits for its stream, of which nobody tells but a word in memory.
    pub(super) fn is_gated(&self) -> bool {
        self.iter().any(|(_, ring)| ring.stall() == Some(Stall::Stream))
    }

    /// Tells the clients on which CPU this thread runs, when that is another than before.
    pub(super) fn say_cpu(&mut self, cpu: Option<usize>) {
        if cpu != self.cpu {
            self.cpu = cpu;
            self.iter().for_each(|(_, ring)| ring.rings.say_cpu(cpu));
        }
    }

    /// How many ranks may want a CPU besides this thread: each of them computes or polls until it says otherwise by
    /// sleeping, which cannot be seen from here.
    pub(super) fn runnable(&self) -> u32 {
        u32::try_from(self.order.len()).unwrap_or(u32::MAX)
    }
}
