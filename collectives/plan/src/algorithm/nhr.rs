//! Non-uniform hierarchical ring (Huawei's HCCL, `coll_algo_intro`): `ceil(log2 N)` rounds with half the distance each
//! time, so that after the round with distance `d` node `i` has the blocks `i - m d` for all `m d < N`. Any number of nodes
//! moves the least there can be: `2 ceil(log2 N) a + 2 n (N - 1) / N b + n (N - 1) / N g` for an allreduce.
//!
//! Blocks of a round are not neighbours in the vector. A node keeps them in scratch memory in the order in which they come,
//! with the block that is farthest away always last, for it is the only one that may be left out of the next message:
//! where it is, what comes is put before what is there, else behind it. So each round is one message, as few as there can
//! be; what it costs is a copy between scratch memory and outputs, which has to be made for all but one local rank anyway.

use super::rounds::{Exchange, Rule, Slots};
use crate::{Cost, Terms};

pub(super) struct Nhr;

/// The slots of the round with distance `2^j`.
struct Level {
    distance: u32,
    /// Blocks a node has before the round, and how many of them it sends.
    held: u32,
    sent: u32,
}

impl Level {
    fn new(nodes: u32, j: u32) -> Self {
        let distance = 1 << j;
        let twice = 2 * u64::from(distance);
        let count = |bytes: u64| u32::try_from(bytes.div_ceil(twice)).unwrap_or(u32::MAX);
        let nodes = u64::from(nodes);
        Self { distance, held: count(nodes), sent: count(nodes.saturating_sub(u64::from(distance))) }
    }

    /// How many slots what is there moves up, because as much is put before it.
    const fn shift(&self) -> u32 {
        if self.sent < self.held { self.sent } else { 0 }
    }
}

impl Rule for Nhr {
    fn rounds(&self, nodes: u32) -> u32 {
        u32::BITS - (nodes - 1).leading_zeros()
    }

    fn slot(&self, nodes: u32, me: u32, block: u32) -> u32 {
        let back = (me + nodes - block % nodes) % nodes;
        let mut slot = 0;
        for j in (0..self.rounds(nodes)).rev() {
            let level = Level::new(nodes, j);
            let comes = back & level.distance != 0;
            slot += match (comes, level.shift()) {
                (true, 0) => level.held,
                (true, _) => 0,
                (false, shift) => shift,
            };
        }
        slot
    }

    fn block(&self, nodes: u32, me: u32, slot: u32) -> u32 {
        let (mut slot, mut back) = (slot, 0);
        // The other way round than it was put together: what came last is at either end.
        for j in 0..self.rounds(nodes) {
            let level = Level::new(nodes, j);
            let shift = level.shift();
            let came = if shift > 0 { slot < shift } else { slot >= level.held };
            back |= if came { level.distance } else { 0 };
            slot -= match (came, shift) {
                (true, 0) => level.held,
                (true, _) => 0,
                (false, shift) => shift,
            };
        }
        (me + nodes - back) % nodes
    }

    fn exchange(&self, nodes: u32, me: u32, round: u32) -> Exchange {
        let j = self.rounds(nodes) - 1 - round;
        let level = Level::new(nodes, j);
        let below: u32 = (0..j).map(|j| Level::new(nodes, j).shift()).sum();
        let there = below + level.shift();
        let comes = if level.shift() > 0 { below } else { there + level.held };
        Exchange {
            to: Some((me + level.distance) % nodes),
            send: Slots::new(there, level.sent),
            from: Some((me + nodes - level.distance) % nodes),
            receive: Slots::new(comes, level.sent),
            extra: false,
        }
    }

    fn is_natural(&self) -> bool {
        false
    }

    fn cost(&self, terms: &Terms) -> Cost {
        let rounds = 2.0 * terms.log2_up();
        let once = terms.bytes * (terms.n() - 1.0) / terms.n();
        Cost {
            rounds,
            link_bytes: 2.0 * once,
            port_bytes: 2.0 * once,
            path_reduced: once,
            messages: 2.0 * rounds,
            sent: 2.0 * once,
            reduced: once,
        }
    }
}
