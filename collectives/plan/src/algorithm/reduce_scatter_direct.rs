//! Reduce_scatter and the direct exchange: a node combines its ranks' inputs for the ranks of every node, sends each
//! node its own in one message, and combines what it gets in node order.

use super::{
    Frame, Size, align, inputs, nothing, one, outputs, partials, reduce_into_scratch, scratch, times,
};
use crate::{Action, Cost, OutputSet, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (others, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    Cost {
        rounds: 1.0,
        link_bytes: part,
        port_bytes: others * part,
        path_reduced: others * part,
        messages: 2.0 * others,
        sent: others * part,
        reduced: others * part,
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let (nodes, most) = (frame.nodes(), frame.most_local());
    let steps = times(nodes, most).saturating_add(times(nodes, 2)).saturating_add(frame.locals());
    let scratch = stride(frame).saturating_mul(2 * u64::from(nodes));
    Size { extent: frame.longest_block(), steps, scratch }
}

/// Bytes from the message of one node in scratch to that of the next.
fn stride(frame: &Frame<'_>) -> u64 {
    let piece = frame.longest_block().min(frame.unit);
    align(piece.saturating_mul(u64::from(frame.most_local())))
}

/// For every node, this one first, the combination of the inputs for its ranks; then for every distance, zero
/// included, a receive and a send; then for every local rank the combination of what all nodes have for it.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let (nodes, most) = (frame.nodes(), frame.most_local().max(1));
    let messages = times(nodes, most);
    let finals = messages.saturating_add(times(nodes, 2));
    if index < messages {
        return combine(frame, index / most, index % most);
    }
    if index >= finals {
        return finish(frame, index - finals, messages..finals);
    }
    let distance = (index - messages) / 2;
    if distance == 0 {
        return nothing();
    }
    if (index - messages).is_multiple_of(2) {
        let peer = frame.node_before(distance);
        let length = frame.packed_length(frame.me());
        if length == 0 {
            return nothing();
        }
        return Step::free(Action::Receive { peer, tag: 0, into: scratch(received(frame, peer), length) });
    }
    let peer = frame.node_after(distance);
    let length = frame.packed_length(peer);
    if length == 0 {
        return nothing();
    }
    let first = times(distance, most);
    Step {
        action: Action::Send { peer, tag: 0, from: scratch(prepared(frame, peer), length) },
        after: [first..first.saturating_add(frame.locals_on(peer)), 0..0],
    }
}

/// Where the message to a node is put together; what stays here is put among the received ones.
fn prepared(frame: &Frame<'_>, node: u32) -> u64 {
    if node == frame.me() {
        return received(frame, node);
    }
    stride(frame).saturating_mul(u64::from(frame.nodes()) + u64::from(node))
}

fn received(frame: &Frame<'_>, node: u32) -> u64 {
    stride(frame).saturating_mul(u64::from(node))
}

fn combine(frame: &Frame<'_>, distance: u32, local: u32) -> Step {
    let node = frame.node_after(distance);
    let Some(rank) = frame.rank(node, local) else { return nothing() };
    let (offset, length) = frame.packed_piece(node, local);
    if length == 0 {
        return nothing();
    }
    let (block, whole) = frame.view.block(rank);
    let sources = inputs(block.saturating_add(frame.cut(whole).0));
    Step::free(reduce_into_scratch(sources, length, prepared(frame, node).saturating_add(offset)))
}

fn finish(frame: &Frame<'_>, local: u32, messages: core::ops::Range<u32>) -> Step {
    let Some(rank) = frame.rank(frame.me(), local) else { return nothing() };
    let (offset, length) = frame.packed_piece(frame.me(), local);
    if length == 0 {
        return nothing();
    }
    let start = frame.cut(frame.view.block(rank).1).0;
    Step {
        action: Action::Reduce {
            sources: partials(offset, stride(frame), frame.nodes()),
            into: outputs(OutputSet::One(local), start),
            length,
            finish: true,
        },
        after: [one(local), messages],
    }
}
