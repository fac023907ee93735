//! Reduce_scatter around a ring of nodes: the partial results for the ranks of a node start at the next node and go
//! once around to it, every node adding its ranks' inputs: `(N - 1)(a + n / N b)`.

use super::{
    Frame, Size, align, inputs, nothing, one, outputs, partial_and_inputs, reduce_into_scratch, scratch,
    times,
};
use crate::{Action, Cost, OutputSet, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (rounds, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    Cost {
        rounds,
        link_bytes: rounds * part,
        port_bytes: rounds * part,
        path_reduced: rounds * part,
        messages: 2.0 * rounds,
        sent: rounds * part,
        reduced: rounds * part,
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let nodes = frame.nodes();
    let round = frame.most_local().saturating_add(2);
    Size {
        extent: frame.longest_block(),
        steps: times(nodes, round),
        scratch: stride(frame).saturating_mul(u64::from(nodes)),
    }
}

/// Bytes from the partial results of one round in scratch to those of the next.
fn stride(frame: &Frame<'_>) -> u64 {
    let piece = frame.longest_block().min(frame.unit);
    align(piece.saturating_mul(u64::from(frame.most_local())))
}

/// N rounds. Round `s` handles the node `s + 1` places back: receive its partial results, but in round 0; add the
/// inputs for each of its ranks; send them on, but in the last round, in which they are this node's.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let (nodes, most) = (frame.nodes(), frame.most_local());
    let width = most.saturating_add(2);
    let (round, at) = (index / width, index % width);
    if round >= nodes {
        return nothing();
    }
    let node = frame.node_before(round + 1);
    let last = round + 1 == nodes;
    let length = frame.packed_length(node);
    let slot = stride(frame).saturating_mul(u64::from(round));
    if length == 0 {
        return nothing();
    }
    if at == 0 {
        if round == 0 {
            return nothing();
        }
        let peer = frame.node_before(1);
        return Step::free(Action::Receive { peer, tag: round - 1, into: scratch(slot, length) });
    }
    if at <= most {
        return combine(frame, node, at - 1, round, index - at);
    }
    if last {
        return nothing();
    }
    let action = Action::Send { peer: frame.node_after(1), tag: round, from: scratch(slot, length) };
    Step { action, after: [index - most..index, 0..0] }
}

fn combine(frame: &Frame<'_>, node: u32, local: u32, round: u32, receive: u32) -> Step {
    let Some(rank) = frame.rank(node, local) else { return nothing() };
    let (offset, length) = frame.packed_piece(node, local);
    if length == 0 {
        return nothing();
    }
    let (block, whole) = frame.view.block(rank);
    let start = frame.cut(whole).0;
    let at = stride(frame).saturating_mul(u64::from(round)).saturating_add(offset);
    let input = block.saturating_add(start);
    if round == 0 {
        return Step::free(reduce_into_scratch(inputs(input), length, at));
    }
    let sources = partial_and_inputs(at, input);
    let action = if round + 1 == frame.nodes() {
        Action::Reduce { sources, into: outputs(OutputSet::One(local), start), length, finish: true }
    } else {
        reduce_into_scratch(sources, length, at)
    };
    Step { action, after: [one(receive), 0..0] }
}
