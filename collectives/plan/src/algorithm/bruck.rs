//! The concatenation of Bruck et al. (1997): in `ceil(log2 N)` rounds a node passes on all that it has, or what is left to
//! send, to nodes at distances 1, 2, 4, ...: `ceil(log2 N) a + n (N - 1) / N b` for an all_gather of `n` bytes, and
//! backwards in time for a reduce_scatter. Blocks lie in scratch memory in the order of their distance from the node, in
//! which every round's are neighbours. What comes in the last rounds comes from far away, and it is the most.

use super::rounds::{Exchange, Rule, Slots};
use crate::{Cost, Terms};

pub(super) struct Bruck;

impl Rule for Bruck {
    fn rounds(&self, nodes: u32) -> u32 {
        u32::BITS - (nodes - 1).leading_zeros()
    }

    fn slot(&self, nodes: u32, me: u32, block: u32) -> u32 {
        (block % nodes + nodes - me) % nodes
    }

    fn block(&self, nodes: u32, me: u32, slot: u32) -> u32 {
        (me + slot) % nodes
    }

    fn exchange(&self, nodes: u32, me: u32, round: u32) -> Exchange {
        let distance = 1 << round;
        let count = distance.min(nodes.saturating_sub(distance));
        Exchange {
            to: Some((me + nodes - distance) % nodes),
            send: Slots::new(0, count),
            from: Some((me + distance) % nodes),
            receive: Slots::new(distance, count),
            extra: false,
        }
    }

    fn is_natural(&self) -> bool {
        false
    }

    /// As much as the other one of `ceil(log2 N)` rounds for any number of nodes.
    fn cost(&self, terms: &Terms) -> Cost {
        super::nhr::Nhr.cost(terms)
    }
}
