//! Around a ring in both directions at once, half of the data each way: as many rounds as a ring, with messages of half the
//! length, which takes half as long where a node's links to its two neighbours do not share a port.

use super::rounds::{Exchange, Rule, Slots};
use crate::{Cost, Terms, View};

pub(super) struct BidirectionalRing;

/// Each way has messages of the length that a ring's have.
pub(super) fn unit(view: &View<'_>, chunk_bytes: u64) -> u64 {
    super::allreduce_ring::unit(view, chunk_bytes).saturating_mul(2)
}

impl Rule for BidirectionalRing {
    fn blocks(&self, nodes: u32) -> u32 {
        nodes.saturating_mul(2)
    }

    fn rounds(&self, nodes: u32) -> u32 {
        (nodes - 1).saturating_mul(2)
    }

    fn own(&self, nodes: u32, me: u32, lane: u32) -> Option<u32> {
        Some(me + if lane == 0 { 0 } else { nodes })
    }

    fn exchange(&self, nodes: u32, me: u32, round: u32) -> Exchange {
        let (next, last) = ((me + 1) % nodes, (me + nodes - 1) % nodes);
        let far = round / 2;
        if round.is_multiple_of(2) {
            return Exchange {
                to: Some(next),
                send: Slots::new((me + nodes - far) % nodes, 1),
                from: Some(last),
                receive: Slots::new((last + nodes - far) % nodes, 1),
                extra: false,
            };
        }
        Exchange {
            to: Some(last),
            send: Slots::new(nodes + (me + far) % nodes, 1),
            from: Some(next),
            receive: Slots::new(nodes + (next + far) % nodes, 1),
            extra: false,
        }
    }

    fn lanes(&self) -> u32 {
        2
    }

    fn cost(&self, terms: &Terms) -> Cost {
        let ring = super::allreduce_ring::cost(terms);
        Cost {
            link_bytes: ring.link_bytes / 2.0,
            path_reduced: ring.path_reduced / 2.0,
            messages: 2.0 * ring.messages,
            ..ring
        }
    }
}
