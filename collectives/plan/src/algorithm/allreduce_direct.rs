//! Allreduce and the direct exchange: local ranks are combined, every pair of nodes exchanges partial results, and
//! every node combines all of them in node order. One message each way for each pair of nodes: `a + (N - 1) n b`.

use super::{
    Frame, Size, after, inputs, nothing, one, outputs, partials, reduce_into_scratch, scratch, times,
};
use crate::{Action, Cost, OutputSet, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let others = terms.n() - 1.0;
    Cost {
        rounds: 1.0,
        link_bytes: terms.bytes,
        port_bytes: others * terms.bytes,
        path_reduced: others * terms.bytes,
        messages: 2.0 * others,
        sent: others * terms.bytes,
        reduced: others * terms.bytes,
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let slot = frame.slot(frame.vector());
    let messages = times(frame.nodes() - 1, 2);
    Size {
        extent: frame.vector(),
        steps: messages.saturating_add(2),
        scratch: slot.saturating_mul(u64::from(frame.nodes())),
    }
}

/// 0: combine the inputs; then for every distance a receive and a send, the two ends of a message at the same
/// position; last: combine all.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let (offset, length) = frame.range();
    let nodes = frame.nodes();
    let stride = frame.slot(frame.vector());
    let slot = |node: u32| stride.saturating_mul(u64::from(node));
    let last = times(nodes - 1, 2) + 1;
    if index == 0 {
        return Step::free(reduce_into_scratch(inputs(offset), length, slot(frame.me())));
    }
    if index < last {
        let distance = index.div_ceil(2);
        return if index % 2 == 1 {
            let peer = frame.node_before(distance);
            Step::free(Action::Receive { peer, tag: 0, into: scratch(slot(peer), length) })
        } else {
            let peer = frame.node_after(distance);
            after(Action::Send { peer, tag: 0, from: scratch(slot(frame.me()), length) }, 0)
        };
    }
    if index > last {
        return nothing();
    }
    // With several peers the sends are among those waited for, which costs little: receives are as slow. With one it would
    // be an acknowledgement, which comes after the peer's message.
    let messages = if nodes == 2 { one(1) } else { 1..last };
    Step {
        action: Action::Reduce {
            sources: partials(0, stride, nodes),
            into: outputs(OutputSet::All, offset),
            length,
            finish: true,
        },
        after: [one(0), messages],
    }
}
