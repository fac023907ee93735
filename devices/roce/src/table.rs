//! The queue pairs of a device by number, and those that are no more.

use std::collections::VecDeque;

use ringway_verbs::{QueuePairError, QueuePairNumber};
use ringway_wire::Psn;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{
    pair::{Pair, Peer},
    signal::{Signal, Word},
};

/// Bits of a queue pair's number.
const NUMBER_BITS: u32 = 24;
/// How many destroyed queue pairs are remembered, so that peers who ask after one get an answer.
const GRAVES: usize = 256;
/// Answers to such questions that wait to be sent.
const ANSWERS: usize = 64;

#[derive(Debug, Default)]
struct Slot {
    /// The upper part of the last number that a queue pair here had.
    tag: u32,
    pair: Option<Box<Pair>>,
}

/// A queue pair that was destroyed: its number, its first PSN and its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grave {
    number: QueuePairNumber,
    first_psn: Psn,
    peer: Peer,
}

/// Queue pairs by number: the lower part is the slot, the upper part random, so that packets for one that is no more, or
/// from somebody who guesses, meet nobody.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: VecDeque<u16>,
    limit: u32,
    /// Bits of the lower part.
    slot_bits: u32,
    graves: VecDeque<Grave>,
    /// Questions after dead queue pairs, to be answered.
    pub(crate) answers: VecDeque<(Signal, Peer)>,
}

/// A random number.
pub(crate) fn random() -> Result<u32, QueuePairError> {
    let mut bytes = [0; 4];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(_) => Ok(u32::from_ne_bytes(bytes)),
        Err(errno) => Err(QueuePairError::System(errno.raw_os_error())),
    }
}

impl Table {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            limit,
            slot_bits: limit.next_power_of_two().trailing_zeros().max(8),
            graves: VecDeque::with_capacity(GRAVES),
            answers: VecDeque::with_capacity(ANSWERS),
        }
    }

    /// How many slots there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A free slot and a number for a queue pair in it.
    pub(crate) fn allot(&mut self) -> Result<(u16, QueuePairNumber), QueuePairError> {
        let full = QueuePairError::TableFull { limit: self.limit };
        if self.free.is_empty() {
            if self.slots.len() >= self.limit as usize {
                return Err(full);
            }
            self.free.push_back(u16::try_from(self.slots.len()).map_err(|_| full)?);
            self.slots.push(Slot::default());
        }
        let index = *self.free.front().ok_or(full)?;
        let slot = self.slots.get_mut(usize::from(index)).ok_or(full)?;
        let tags = 1 << (NUMBER_BITS - self.slot_bits);
        // Neither of the last one's, nor one that is next to the numbers with a meaning of their own.
        let mut tag = 1 + random()? % (tags - 2);
        if tag == slot.tag {
            tag = 1 + tag % (tags - 2);
        }
        slot.tag = tag;
        Ok((index, QueuePairNumber(tag << self.slot_bits | u32::from(index))))
    }

    /// Puts a queue pair into the slot that [`Table::allot`] gave.
    pub(crate) fn insert(&mut self, pair: Box<Pair>) {
        if let Some(slot) = self.slots.get_mut(usize::from(pair.index)) {
            self.free.retain(|index| *index != pair.index);
            slot.pair = Some(pair);
        }
    }

    fn index(&self, number: QueuePairNumber) -> usize {
        (number.0 & ((1 << self.slot_bits) - 1)) as usize
    }

    pub(crate) fn get(&self, number: QueuePairNumber) -> Option<&Pair> {
        let slot = self.slots.get(self.index(number))?;
        slot.pair.as_deref().filter(|pair| pair.number == number)
    }

    pub(crate) fn get_mut(&mut self, number: QueuePairNumber) -> Option<&mut Pair> {
        let index = self.index(number);
        let slot = self.slots.get_mut(index)?;
        slot.pair.as_deref_mut().filter(|pair| pair.number == number)
    }

    pub(crate) fn at(&mut self, index: u16) -> Option<&mut Pair> {
        self.slots.get_mut(usize::from(index))?.pair.as_deref_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.slots.iter().filter_map(|slot| slot.pair.as_deref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pair> {
        self.slots.iter_mut().filter_map(|slot| slot.pair.as_deref_mut())
    }

    /// Takes a queue pair out. A peer that asks after it is told that it is gone.
    pub(crate) fn remove(&mut self, number: QueuePairNumber) -> Option<Box<Pair>> {
        let index = self.index(number);
        let slot = self.slots.get_mut(index)?;
        let pair = slot.pair.take_if(|pair| pair.number == number)?;
        self.free.push_back(pair.index);
        if let Some(peer) = pair.ringway_peer() {
            if self.graves.len() == GRAVES {
                self.graves.pop_front();
            }
            self.graves.push_back(Grave { number, first_psn: pair.first_psn, peer: *peer });
        }
        Some(pair)
    }

    /// Somebody says something about the connection to a queue pair that is not there.
    pub(crate) fn handle_signal(&mut self, number: QueuePairNumber, payload: &[u8]) {
        let Some(signal) = Signal::parse(payload).filter(|signal| signal.word == Word::Hello) else { return };
        let grave = self.graves.iter().rev().find(|grave| {
            let endpoint = grave.peer.endpoint;
            grave.number == number
                && signal.sender == endpoint.queue_pair
                && signal.sender_psn == endpoint.psn
                && signal.receiver_psn == grave.first_psn
        });
        if let Some(grave) = grave
            && self.answers.len() < ANSWERS
            && let Some(sender) = ringway_wire::QueuePair::new(number.0)
        {
            let receiver_psn = grave.peer.endpoint.psn;
            let answer = Signal { word: Word::Gone, sender, sender_psn: grave.first_psn, receiver_psn };
            self.answers.push_back((answer, grave.peer));
        }
    }
}
