//! All_to_all with one partner at a time: the direct exchange, but that messages of a round wait until those of the
//! round before are done, so that no node ever gets messages from two others at once: `(N - 1) a + n b`.
//!
//! Nodes meet as in a tournament (`pattern`): an even number of them in `N - 1` rounds, an odd one in `N`, as one is
//! left out of each. Where blocks have different lengths a round takes as long as the longest of its pairs.

use super::{Frame, Size, exchange};
use crate::{Action, Cost, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (others, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    let rounds = if terms.nodes.is_multiple_of(2) { others } else { terms.n() };
    Cost {
        rounds,
        link_bytes: rounds * part,
        port_bytes: rounds * part,
        messages: 2.0 * others,
        sent: others * part,
        ..Cost::default()
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    exchange::size(frame)
}

/// The steps of the direct exchange.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let mut step = exchange::step(frame, index);
    if matches!(step.action, Action::Send { .. } | Action::Receive { .. }) {
        // A message of the direct exchange has one condition at most.
        step.after[1] = exchange::rounds_before(frame, index);
    }
    step
}
