//! Around a ring: in every round a node passes on what it received in the round before. `2 (N - 1) a + 2 n (N - 1) / N b`
//! for an allreduce (Patarasuk and Yuan 2009).

use super::{Exchange, Rule, Slots};
use crate::{Cost, Terms};

pub(super) struct Ring;

impl Rule for Ring {
    fn rounds(&self, nodes: u32) -> u32 {
        nodes - 1
    }

    fn exchange(&self, nodes: u32, me: u32, round: u32) -> Exchange {
        Exchange {
            to: Some((me + 1) % nodes),
            send: Slots::new((me + nodes - round) % nodes, 1),
            from: Some((me + nodes - 1) % nodes),
            receive: Slots::new((me + nodes - round - 1) % nodes, 1),
            extra: false,
        }
    }

    fn cost(&self, terms: &Terms) -> Cost {
        super::super::allreduce_ring::cost(terms)
    }
}
