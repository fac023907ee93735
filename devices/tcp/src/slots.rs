//! What has a number: queue pairs, and the connections that they have beside their first one.

use std::collections::HashMap;

use ringway_mem::NumberTable;
use ringway_verbs::{QueuePairConfig, QueuePairNumber};

use crate::queue_pair::QueuePair;
use crate::{MAX_CONNECTIONS, Token};

#[derive(Debug)]
enum User {
    /// Its number is its first connection's as well.
    Pair(Box<QueuePair>),
    /// The connection at this place of the queue pair of that number.
    Connection { pair: u32, at: usize },
}

impl User {
    fn pair(&self) -> Option<&QueuePair> {
        if let Self::Pair(pair) = self { Some(pair) } else { None }
    }

    fn pair_mut(&mut self) -> Option<&mut QueuePair> {
        if let Self::Pair(pair) = self { Some(pair) } else { None }
    }
}

/// A device's queue pairs. The lower half of a number is the slot.
#[derive(Debug)]
pub(crate) struct Slots {
    users: NumberTable<User>,
    /// The numbers of queue pairs by what names them to peers: anybody may offer connections, which are not to take the longer the
    /// more queue pairs there are.
    by_token: HashMap<Token, u32>,
}

impl Slots {
    /// How many queue pairs there may be is the device's to say: this is how many connections all of them can have.
    pub(crate) fn new() -> Self {
        Self { users: NumberTable::new(1 << u16::BITS, QueuePairNumber::BITS), by_token: HashMap::new() }
    }

    /// How many queue pairs there are.
    pub(crate) fn pairs(&self) -> usize {
        self.by_token.len()
    }

    /// The queue pair with this token.
    pub(crate) fn with_token(&mut self, token: &Token) -> Option<&mut QueuePair> {
        let number = *self.by_token.get(token)?;
        self.pair_mut(number)
    }

    pub(crate) fn pair(&self, number: u32) -> Option<&QueuePair> {
        self.users.get(number)?.pair()
    }

    pub(crate) fn pair_mut(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.users.get_mut(number)?.pair_mut()
    }

    /// The queue pair in this slot.
    pub(crate) fn in_slot(&mut self, index: u16) -> Option<&mut QueuePair> {
        self.users.in_slot(index)?.pair_mut()
    }

    /// The queue pair that has the connection of this number, and its place there.
    pub(crate) fn connection(&mut self, number: u32) -> Option<(&mut QueuePair, usize)> {
        let (pair, at) = match self.users.get(number)? {
            User::Pair(_) => (number, 0),
            User::Connection { pair, at } => (*pair, *at),
        };
        Some((self.pair_mut(pair)?, at))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.users.iter().filter_map(User::pair)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueuePair> {
        self.users.iter_mut().filter_map(User::pair_mut)
    }

    /// Makes a queue pair; `None` when all slots are taken.
    pub(crate) fn add(&mut self, config: QueuePairConfig, token: Token) -> Option<QueuePairNumber> {
        let number = QueuePairNumber(self.users.allot()?);
        self.users.insert(number.0, User::Pair(QueuePair::new(number, config, token)));
        self.by_token.insert(token, number.0);
        Some(number)
    }

    /// Has a queue pair have so many connections; whether there are slots for them.
    pub(crate) fn agree(&mut self, number: u32, connections: usize) -> bool {
        let mut others = [0; MAX_CONNECTIONS];
        let Some(others) = others.get_mut(..connections.saturating_sub(1)) else { return false };
        for (at, other) in (1..).zip(&mut *others) {
            let Some(taken) = self.users.allot() else { break };
            self.users.insert(taken, User::Connection { pair: number, at });
            *other = taken;
        }
        // No number is zero.
        let has_room = others.last() != Some(&0);
        let agreed = self.pair_mut(number).filter(|_| has_room).map(|pair| pair.agree(others)).is_some();
        if !agreed {
            others.iter().for_each(|other| drop(self.users.remove(*other)));
        }
        agreed
    }

    /// Forgets a queue pair and its connections.
    pub(crate) fn remove(&mut self, number: QueuePairNumber) {
        if let Some(User::Pair(pair)) = self.users.remove(number.0) {
            pair.others.iter().for_each(|other| drop(self.users.remove(other.number)));
            self.by_token.remove(&pair.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_found_by_their_tokens_while_they_are_there() {
        let mut slots = Slots::new();
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        let add = |slots: &mut Slots| {
            let token = Token::random().expect("random bytes");
            (slots.add(config, token).expect("a slot"), token)
        };
        let [(one, of_one), (other, of_other)] = [add(&mut slots), add(&mut slots)];
        let found = |slots: &mut Slots, token| slots.with_token(&token).map(|pair| pair.number);
        assert_eq!([found(&mut slots, of_one), found(&mut slots, of_other)], [Some(one), Some(other)]);
        assert_eq!(found(&mut slots, Token::random().expect("random bytes")), None);
        slots.remove(one);
        assert_eq!([found(&mut slots, of_one), found(&mut slots, of_other)], [None, Some(other)]);
        assert_eq!(slots.pairs(), 1);
    }
}
