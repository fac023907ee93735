//! All_to_all with one other node at a time each way: the direct exchange, but that messages of a round wait until those of the
//! round before are done, so that no node ever gets messages from two others at once: `(N - 1) a + n b` between any
//! number of nodes. Where blocks have different lengths a round takes as long as the longest of its messages:
//! `(N - 1) a + b` times the sum over all distances `k` of the longest block that goes `k` places on.
//!
//! Of nodes with several ranks a block of the second of two rounds waits for the one in its place in the first only, so that
//! latencies do not add up; then messages come from two others at once.

use super::{Frame, Size, exchange};
use crate::{Action, Cost, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (others, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    Cost {
        rounds: others,
        link_bytes: others * part,
        port_bytes: others * part,
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
        step.after[1] = exchange::round_before(frame, index);
    }
    step
}
