//! Broadcast: from the root's node to every other one at once, or along a chain of all nodes, chunk behind chunk
//! (`(N - 2 + c)(a + n/c b)` for `c` chunks).

use super::{Frame, Size, after, local, nothing, outputs};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};

/// What a chunk costs.
pub(super) fn direct_cost(terms: &Terms) -> Cost {
    let others = terms.n() - 1.0;
    Cost {
        rounds: 1.0,
        link_bytes: terms.bytes,
        port_bytes: others * terms.bytes,
        messages: others,
        sent: others * terms.bytes,
        ..Cost::default()
    }
}

pub(super) fn direct_size(frame: &Frame<'_>) -> Size {
    let steps = if frame.is_root_node() { frame.nodes() } else { 2 };
    Size { extent: frame.vector(), steps, scratch: 0 }
}

/// On the root's node 0 to N - 2: send; N - 1: copy. Elsewhere 0: receive; 1: copy.
pub(super) fn direct_step(frame: &Frame<'_>, index: u32) -> Step {
    let sends = frame.nodes() - 1;
    if !frame.is_root_node() {
        return receive_and_copy(frame, frame.root_node(), index);
    }
    match index {
        index if index < sends => {
            let (offset, length) = frame.range();
            let from = Span { place: Place::Input(frame.root_local()), offset, length };
            Step::free(Action::Send { peer: frame.node_after(index + 1), tag: 0, from })
        }
        index if index == sends => local::step(frame, 0),
        _ => nothing(),
    }
}

/// What a chunk costs.
pub(super) fn ring_cost(terms: &Terms) -> Cost {
    let hops = terms.n() - 1.0;
    Cost {
        rounds: hops,
        link_bytes: hops * terms.bytes,
        port_bytes: hops * terms.bytes,
        messages: 2.0,
        sent: terms.bytes,
        ..Cost::default()
    }
}

pub(super) fn ring_size(frame: &Frame<'_>) -> Size {
    let steps = if frame.is_root_node() { 2 } else { 3 };
    Size { extent: frame.vector(), steps, scratch: 0 }
}

/// On the root's node 0: send to the next; 1: copy. Elsewhere 0: receive; 1: copy; 2: send on, but for the last.
pub(super) fn ring_step(frame: &Frame<'_>, index: u32) -> Step {
    let (offset, length) = frame.range();
    let next = frame.node_after(1);
    if frame.is_root_node() {
        let from = Span { place: Place::Input(frame.root_local()), offset, length };
        return match index {
            0 => Step::free(Action::Send { peer: next, tag: 0, from }),
            1 => local::step(frame, 0),
            _ => nothing(),
        };
    }
    if index != 2 {
        return receive_and_copy(frame, frame.node_before(1), index);
    }
    if next == frame.root_node() {
        return nothing();
    }
    let from = Span { place: Place::Output(0), offset, length };
    after(Action::Send { peer: next, tag: 0, from }, 0)
}

fn receive_and_copy(frame: &Frame<'_>, peer: u32, index: u32) -> Step {
    let (offset, length) = frame.range();
    let into = Span { place: Place::Output(0), offset, length };
    match index {
        0 => Step::free(Action::Receive { peer, tag: 0, into }),
        1 if frame.locals() > 1 => {
            after(Action::Copy { from: into, into: outputs(OutputSet::AllBut(0), offset) }, 0)
        }
        _ => nothing(),
    }
}
