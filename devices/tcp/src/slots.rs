//! What has a number: queue pairs, and the connections that they have beside their first one.

use ringway_verbs::{QueuePairConfig, QueuePairNumber};

use crate::queue_pair::QueuePair;
use crate::{MAX_CONNECTIONS, Token};

/// The last generation of one slot.
const GENERATION_MAX: u16 = (1 << (QueuePairNumber::BITS - u16::BITS)) - 1;

#[derive(Debug, Default)]
struct Slot {
    /// The upper part of the number, so that numbers of what is gone do not match.
    generation: u16,
    user: User,
}

#[derive(Debug, Default)]
enum User {
    #[default]
    Nobody,
    /// Its number is its first connection's as well.
    Pair(Box<QueuePair>),
    /// The connection at this place of the queue pair in that slot.
    Connection { pair: u16, at: usize },
}

impl Slot {
    fn pair(&self) -> Option<&QueuePair> {
        if let User::Pair(pair) = &self.user { Some(pair) } else { None }
    }

    fn pair_mut(&mut self) -> Option<&mut QueuePair> {
        if let User::Pair(pair) = &mut self.user { Some(pair) } else { None }
    }
}

/// A device's queue pairs. The lower half of a number is the slot.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    pairs: usize,
}

impl Slots {
    /// How many queue pairs there are.
    pub(crate) const fn pairs(&self) -> usize {
        self.pairs
    }

    pub(crate) fn pair(&self, number: u32) -> Option<&QueuePair> {
        let slot = self.slots.get(usize::from(number as u16))?;
        slot.pair().filter(|pair| pair.number.0 == number)
    }

    pub(crate) fn pair_mut(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.in_slot(number as u16).filter(|pair| pair.number.0 == number)
    }

    /// The queue pair in this slot.
    pub(crate) fn in_slot(&mut self, index: u16) -> Option<&mut QueuePair> {
        self.slots.get_mut(usize::from(index))?.pair_mut()
    }

    /// The queue pair that has the connection of this number, and its place there.
    pub(crate) fn connection(&mut self, number: u32) -> Option<(&mut QueuePair, usize)> {
        let index = number as u16;
        let slot = self.slots.get(usize::from(index))?;
        if u32::from(slot.generation) != number >> u16::BITS {
            return None;
        }
        let (pair, at) = if let User::Connection { pair, at } = slot.user { (pair, at) } else { (index, 0) };
        Some((self.in_slot(pair)?, at))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.slots.iter().filter_map(Slot::pair)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueuePair> {
        self.slots.iter_mut().filter_map(Slot::pair_mut)
    }

    /// Takes a slot that nobody has; a number for it.
    fn take(&mut self) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot::default());
                index
            }
        };
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.generation = slot.generation % GENERATION_MAX + 1;
        Some(u32::from(slot.generation) << u16::BITS | u32::from(index))
    }

    fn give(&mut self, number: u32, user: User) {
        if let Some(slot) = self.slots.get_mut(usize::from(number as u16)) {
            slot.user = user;
        }
    }

    /// Makes a queue pair; `None` when all slots are taken.
    pub(crate) fn add(&mut self, config: QueuePairConfig, token: Token) -> Option<QueuePairNumber> {
        let number = QueuePairNumber(self.take()?);
        self.give(number.0, User::Pair(QueuePair::new(number, config, token)));
        self.pairs += 1;
        Some(number)
    }

    /// Has a queue pair have so many connections; whether there are slots for them.
    pub(crate) fn agree(&mut self, number: u32, connections: usize) -> bool {
        let mut others = [0; MAX_CONNECTIONS];
        for at in 1..connections {
            let (Some(other), Some(taken)) = (others.get_mut(at - 1), self.take()) else { return false };
            *other = taken;
            self.give(taken, User::Connection { pair: number as u16, at });
        }
        let numbers = others.get(..connections.saturating_sub(1));
        let agreed = self.pair_mut(number).zip(numbers).map(|(pair, numbers)| pair.agree(numbers));
        agreed.is_some()
    }

    /// Forgets a queue pair and its connections.
    pub(crate) fn remove(&mut self, number: QueuePairNumber) {
        let index = number.0 as u16;
        for (at, slot) in (0..).zip(&mut self.slots) {
            let is_of_it = matches!(slot.user, User::Connection { pair, .. } if pair == index);
            if at == index || is_of_it {
                slot.user = User::Nobody;
                self.free.push(at);
            }
        }
        self.pairs -= 1;
    }
}
