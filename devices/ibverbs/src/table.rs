//! The queue pairs of a device by number: the lower part is the slot, the upper part tells those apart that were there one
//! after the other.

use ringway_verbs::{QueuePairError, QueuePairNumber};

use crate::pair::Pair;

/// The last generation of queue pairs in one slot.
const GENERATION_MAX: u16 = (1 << (QueuePairNumber::BITS - u16::BITS)) - 1;

#[derive(Debug, Default)]
struct Slot {
    generation: u16,
    pair: Option<Box<Pair>>,
}

#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u16>,
    limit: u32,
}

const fn index(number: QueuePairNumber) -> usize {
    number.0 as u16 as usize
}

impl Table {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit }
    }

    /// A number for a queue pair, which [`Table::insert`] takes.
    pub(crate) fn allot(&mut self) -> Result<QueuePairNumber, QueuePairError> {
        let full = QueuePairError::TableFull { limit: self.limit };
        if self.free.is_empty() {
            if self.slots.len() >= self.limit as usize {
                return Err(full);
            }
            self.free.push(u16::try_from(self.slots.len()).map_err(|_| full)?);
            self.slots.push(Slot::default());
        }
        let index = *self.free.last().ok_or(full)?;
        let slot = self.slots.get_mut(usize::from(index)).ok_or(full)?;
        slot.generation = slot.generation % GENERATION_MAX + 1;
        Ok(QueuePairNumber(u32::from(slot.generation) << 16 | u32::from(index)))
    }

    pub(crate) fn insert(&mut self, pair: Box<Pair>) {
        let at = index(pair.number);
        self.free.retain(|free| usize::from(*free) != at);
        if let Some(slot) = self.slots.get_mut(at) {
            slot.pair = Some(pair);
        }
    }

    pub(crate) fn remove(&mut self, number: QueuePairNumber) -> Option<Box<Pair>> {
        self.get(number)?;
        let pair = self.slots.get_mut(index(number))?.pair.take()?;
        self.free.push(number.0 as u16);
        Some(pair)
    }

    pub(crate) fn get(&self, number: QueuePairNumber) -> Option<&Pair> {
        self.slots.get(index(number))?.pair.as_deref().filter(|pair| pair.number == number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: QueuePairNumber) -> Option<&mut Pair> {
        self.slots.get_mut(index(number))?.pair.as_deref_mut().filter(|pair| pair.number == number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.slots.iter().filter_map(|slot| slot.pair.as_deref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pair> {
        self.slots.iter_mut().filter_map(|slot| slot.pair.as_deref_mut())
    }
}
