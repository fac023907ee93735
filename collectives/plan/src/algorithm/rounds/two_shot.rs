//! Every node to every other one at once, as a stage of a hierarchical algorithm: `2 a + 2 n / N b` for an allreduce where
//! every pair of nodes has a link of its own. Blocks are combined in the order of distances between nodes.

use super::{Exchange, Rule, Slots};
use crate::{Cost, Terms};

pub(super) struct TwoShot;

impl Rule for TwoShot {
    fn rounds(&self, nodes: u32) -> u32 {
        nodes - 1
    }

    fn exchange(&self, nodes: u32, me: u32, round: u32) -> Exchange {
        let from = (me + nodes - round - 1) % nodes;
        Exchange {
            to: Some((me + round + 1) % nodes),
            send: Slots::new(me, 1),
            from: Some(from),
            receive: Slots::new(from, 1),
            extra: false,
        }
    }

    fn is_parallel(&self) -> bool {
        true
    }

    fn cost(&self, terms: &Terms) -> Cost {
        super::super::allreduce_two_shot::cost(terms)
    }
}
