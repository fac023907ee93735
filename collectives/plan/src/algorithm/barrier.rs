//! Barrier by dissemination: in round `k` every node tells the one `2^k` places on that it and all it has heard of
//! have come; after `ceil(log2 N)` rounds everyone has heard of everyone (Hensgen, Finkel and Manber 1988).

use super::{Frame, Size, nothing, scratch, times};
use crate::{Action, Cost, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    Cost { rounds: terms.log2_up(), messages: 2.0 * terms.log2_up(), ..Cost::default() }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    // One chunk: it has no bytes, but there must be one for the messages.
    let extent = u64::from(frame.nodes() > 1);
    Size { extent, steps: times(rounds(frame), 2), scratch: 0 }
}

/// For each round a send, after all earlier receives, and a receive.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let round = index / 2;
    if round >= rounds(frame) {
        return nothing();
    }
    let distance = 1 << round;
    if index % 2 == 1 {
        let peer = frame.node_before(distance);
        return Step::free(Action::Receive { peer, tag: round, into: scratch(0, 0) });
    }
    let peer = frame.node_after(distance);
    Step { action: Action::Send { peer, tag: round, from: scratch(0, 0) }, after: [0..index, 0..0] }
}

fn rounds(frame: &Frame<'_>) -> u32 {
    u32::BITS - (frame.nodes() - 1).leading_zeros()
}
