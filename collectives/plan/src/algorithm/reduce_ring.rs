//! Reduce along a chain that ends at the root's node, chunk behind chunk: every node adds its ranks' inputs to the
//! partial result that passes.

use super::{Frame, Size, after, inputs, nothing, outputs, partial_and_inputs, reduce_into_scratch, scratch};
use crate::{Action, Cost, OutputSet, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let hops = terms.n() - 1.0;
    Cost {
        rounds: hops,
        link_bytes: hops * terms.bytes,
        port_bytes: hops * terms.bytes,
        path_reduced: hops * terms.bytes,
        messages: 2.0,
        sent: terms.bytes,
        reduced: terms.bytes,
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    Size { extent: frame.vector(), steps: 3, scratch: frame.slot(frame.vector()) }
}

/// 0: receive, but at the chain's start; 1: add the inputs; 2: send on, but at the root's node.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let (offset, length) = frame.range();
    let (previous, next) = (frame.node_before(1), frame.node_after(1));
    // The chain starts at the node behind the root's.
    let starts = previous == frame.root_node();
    match index {
        0 if !starts => Step::free(Action::Receive { peer: previous, tag: 0, into: scratch(0, length) }),
        1 if starts => Step::free(reduce_into_scratch(inputs(offset), length, 0)),
        1 if frame.is_root_node() => {
            let into = outputs(OutputSet::One(frame.root_local()), offset);
            let sources = partial_and_inputs(0, offset);
            after(Action::Reduce { sources, into, length, finish: true }, 0)
        }
        1 => after(reduce_into_scratch(partial_and_inputs(0, offset), length, 0), 0),
        2 if !frame.is_root_node() => after(Action::Send { peer: next, tag: 0, from: scratch(0, length) }, 1),
        _ => nothing(),
    }
}
