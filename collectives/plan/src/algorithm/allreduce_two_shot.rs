//! Two-shot allreduce between nodes that all reach one another: each chunk is cut into a block for each node; every node
//! sends every other one its block's partial result, combines what it gets for its own in node order, and sends the result
//! to all: `2 a + 2 n / N b` where every pair of nodes has a link of its own (HCCL's mesh), with as little traffic as a
//! ring. Each element is finished on one node only.

use super::{
    Frame, Size, after, align, inputs, nothing, one, outputs, partials, reduce_into_scratch, scratch, times,
};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (others, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    Cost {
        rounds: 2.0,
        link_bytes: 2.0 * part,
        port_bytes: 2.0 * others * part,
        path_reduced: others * part,
        messages: 4.0 * others,
        sent: 2.0 * others * part,
        reduced: others * part,
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let nodes = frame.nodes();
    Size {
        extent: frame.vector(),
        steps: times(nodes, 3).saturating_add(1).saturating_add(times(nodes - 1, 3)),
        scratch: stride(frame).saturating_mul(2 * u64::from(nodes)),
    }
}

fn stride(frame: &Frame<'_>) -> u64 {
    align(frame.block_bytes(frame.vector().min(frame.unit)))
}

/// For every distance, zero included, the combination of the inputs for a node; for every distance a receive and a send
/// of partial results; the combination of them; then for every distance but zero a receive, a copy and a send of a result.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let nodes = frame.nodes();
    let combined = times(nodes, 3);
    if index < nodes {
        let node = frame.node_after(index);
        let (offset, length) = frame.node_block(node);
        let action = reduce_into_scratch(inputs(offset), length, prepared(frame, node));
        return if length == 0 { nothing() } else { Step::free(action) };
    }
    if index < combined {
        let (distance, send) = ((index - nodes) / 2, (index - nodes) % 2 == 1);
        return if distance == 0 { nothing() } else { scatter(frame, distance, send) };
    }
    if index == combined {
        return combine(frame, nodes..combined);
    }
    let (distance, phase) = ((index - combined - 1) / 3 + 1, (index - combined - 1) % 3);
    if distance < nodes { gather(frame, distance, phase, index) } else { nothing() }
}

/// Where the message to a node is put together; what stays here is put among the received ones.
fn prepared(frame: &Frame<'_>, node: u32) -> u64 {
    let area = if node == frame.me() { 0 } else { frame.nodes() };
    stride(frame).saturating_mul(u64::from(area) + u64::from(node))
}

fn scatter(frame: &Frame<'_>, distance: u32, send: bool) -> Step {
    let peer = if send { frame.node_after(distance) } else { frame.node_before(distance) };
    let length = frame.node_block(if send { peer } else { frame.me() }).1;
    if length == 0 {
        return nothing();
    }
    if send {
        let from = scratch(prepared(frame, peer), length);
        return after(Action::Send { peer, tag: 0, from }, distance);
    }
    let into = scratch(stride(frame).saturating_mul(u64::from(peer)), length);
    Step::free(Action::Receive { peer, tag: 0, into })
}

fn combine(frame: &Frame<'_>, messages: core::ops::Range<u32>) -> Step {
    let (offset, length) = frame.node_block(frame.me());
    if length == 0 {
        return nothing();
    }
    let sources = partials(0, stride(frame), frame.nodes());
    let into = outputs(OutputSet::All, offset);
    Step { action: Action::Reduce { sources, into, length, finish: true }, after: [one(0), messages] }
}

fn gather(frame: &Frame<'_>, distance: u32, phase: u32, index: u32) -> Step {
    let node = if phase == 2 { frame.me() } else { frame.node_before(distance) };
    let (offset, length) = frame.node_block(node);
    if length == 0 {
        return nothing();
    }
    let span = Span { place: Place::Output(0), offset, length };
    match phase {
        // In place this overwrites inputs: they were read before their partial result was sent, without which this block
        // would not come.
        0 => Step::free(Action::Receive { peer: node, tag: 1, into: span }),
        1 if frame.locals() > 1 => {
            after(Action::Copy { from: span, into: outputs(OutputSet::AllBut(0), offset) }, index - 1)
        }
        1 => nothing(),
        _ => {
            let peer = frame.node_after(distance);
            after(Action::Send { peer, tag: 1, from: span }, times(frame.nodes(), 3))
        }
    }
}
