//! The queue pairs of a device by number, and those that are no more.

use std::collections::VecDeque;

use ringway_mem::NumberTable;
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
    pub(crate) pairs: NumberTable<Box<Pair>>,
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
        let slot_bits = limit.next_power_of_two().trailing_zeros().max(8);
        Self {
            pairs: NumberTable::with_slot_bits(limit, NUMBER_BITS, slot_bits),
            graves: VecDeque::with_capacity(GRAVES),
            answers: VecDeque::with_capacity(ANSWERS),
        }
    }

    /// A number for a queue pair that is put into the table next.
    pub(crate) fn allot(&mut self) -> Result<QueuePairNumber, QueuePairError> {
        let (random, tags) = (random()?, self.pairs.tags());
        let number = self.pairs.allot_with(|last| {
            // Neither of the last one's, nor one that is next to the numbers with a meaning of their own.
            let tag = 1 + random % (tags - 2);
            if tag == last { 1 + tag % (tags - 2) } else { tag }
        });
        number.map(QueuePairNumber).ok_or(QueuePairError::TableFull { limit: self.pairs.limit() })
    }

    /// Takes a queue pair out. A peer that asks after it is told that it is gone.
    pub(crate) fn remove(&mut self, number: QueuePairNumber) -> Option<Box<Pair>> {
        let pair = self.pairs.remove(number.0)?;
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
