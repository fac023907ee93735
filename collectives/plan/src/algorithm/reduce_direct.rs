//! Reduce and the direct exchange: every node's partial result goes to the root's node, which combines them in node
//! order.

use super::{Frame, Size, after, inputs, nothing, outputs, partials, reduce_into_scratch, scratch};
use crate::{Action, Cost, OutputSet, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let others = terms.n() - 1.0;
    Cost {
        rounds: 1.0,
        link_bytes: terms.bytes,
        port_bytes: others * terms.bytes,
        path_reduced: others * terms.bytes,
        messages: others,
        sent: terms.bytes,
        reduced: others * terms.bytes,
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let (slots, steps) =
        if frame.is_root_node() { (frame.nodes(), frame.nodes().saturating_add(1)) } else { (1, 2) };
    Size {
        extent: frame.vector(),
        steps,
        scratch: frame.slot(frame.vector()).saturating_mul(u64::from(slots)),
    }
}

/// 0: combine the inputs. Elsewhere 1: send. On the root's node 1 to N - 1: receive; N: combine all.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let (offset, length) = frame.range();
    let (nodes, root) = (frame.nodes(), frame.root_node());
    let stride = frame.slot(frame.vector());
    let slot = |node: u32| stride.saturating_mul(u64::from(node));
    if !frame.is_root_node() {
        return match index {
            0 => Step::free(reduce_into_scratch(inputs(offset), length, 0)),
            1 => after(Action::Send { peer: root, tag: 0, from: scratch(0, length) }, 0),
            _ => nothing(),
        };
    }
    if index == 0 {
        return Step::free(reduce_into_scratch(inputs(offset), length, slot(root)));
    }
    if index < nodes {
        let peer = frame.node_before(index);
        return Step::free(Action::Receive { peer, tag: 0, into: scratch(slot(peer), length) });
    }
    if index > nodes {
        return nothing();
    }
    Step {
        action: Action::Reduce {
            sources: partials(0, stride, nodes),
            into: outputs(OutputSet::One(frame.root_local()), offset),
            length,
            finish: true,
        },
        after: [0..nodes, 0..0],
    }
}
