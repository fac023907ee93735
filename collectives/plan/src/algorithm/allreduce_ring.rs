//! Allreduce around a ring of nodes: each chunk is cut into a block for each node; partial results go once around
//! (reduce-scatter), every node adding its ranks' inputs, then final blocks go once around (all-gather). Costs
//! `2 (N - 1) a + 2 n (N - 1) / N b` (Patarasuk and Yuan 2009). Each element is finished on one node only.

use super::{
    Frame, Size, after, inputs, nothing, outputs, partial_and_inputs, reduce_into_scratch, scratch, times,
};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms, View};

/// Every node's block in a chunk is a quarter of the usual chunk, because a whole chunk needs twice as many
/// messages behind one another as there are nodes.
pub(super) fn unit(view: &View<'_>, chunk_bytes: u64) -> u64 {
    (chunk_bytes / 4).max(1).saturating_mul(u64::from(view.layout.nodes()))
}

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (n, part) = (terms.n(), terms.bytes / terms.n());
    let (rounds, combined) = (2.0 * (n - 1.0), (n - 1.0) * part);
    Cost {
        rounds,
        link_bytes: rounds * part,
        port_bytes: rounds * part,
        path_reduced: combined,
        messages: 2.0 * rounds,
        sent: rounds * part,
        reduced: combined,
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let block = frame.block_bytes(frame.vector().min(frame.unit));
    Size {
        extent: frame.vector(),
        steps: times(frame.nodes() - 1, 6).saturating_add(1),
        scratch: super::align(block).saturating_mul(u64::from(frame.nodes())),
    }
}

/// 0: combine the inputs of this node's block. Then N - 1 rounds of send, receive, add; then N - 1 rounds of send,
/// receive, copy. Round `s` of the first half receives the block of the node `s + 1` places back, round `s` of the
/// second that of the node `s` places back.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let rounds = frame.nodes() - 1;
    if index == 0 {
        let (offset, length) = frame.node_block(frame.me());
        return if length == 0 {
            nothing()
        } else {
            Step::free(reduce_into_scratch(inputs(offset), length, 0))
        };
    }
    let (round, phase) = ((index - 1) / 3, (index - 1) % 3);
    if round < rounds {
        first_half(frame, round, phase, index)
    } else if round < times(rounds, 2) {
        second_half(frame, round - rounds, phase, index)
    } else {
        nothing()
    }
}

fn first_half(frame: &Frame<'_>, round: u32, phase: u32, index: u32) -> Step {
    let stride = super::align(frame.block_bytes(frame.vector().min(frame.unit)));
    let slot = |round: u32| stride.saturating_mul(u64::from(round));
    let distance = if phase == 0 { round } else { round + 1 };
    let (offset, length) = frame.node_block(frame.node_before(distance));
    if length == 0 {
        return nothing();
    }
    match phase {
        // What was combined in the step before this one.
        0 => after(
            Action::Send { peer: frame.node_after(1), tag: round, from: scratch(slot(round), length) },
            index - 1,
        ),
        1 => Step::free(Action::Receive {
            peer: frame.node_before(1),
            tag: round,
            into: scratch(slot(round + 1), length),
        }),
        _ => {
            let sources = partial_and_inputs(slot(round + 1), offset);
            let action = if round + 2 == frame.nodes() {
                Action::Reduce { sources, into: outputs(OutputSet::All, offset), length, finish: true }
            } else {
                reduce_into_scratch(sources, length, slot(round + 1))
            };
            after(action, index - 1)
        }
    }
}

fn second_half(frame: &Frame<'_>, round: u32, phase: u32, index: u32) -> Step {
    let node =
        if phase == 0 { frame.node_before((round + frame.nodes()) - 1) } else { frame.node_before(round) };
    let (offset, length) = frame.node_block(node);
    if length == 0 {
        return nothing();
    }
    let span = Span { place: Place::Output(0), offset, length };
    let tag = round + frame.nodes() - 1;
    match phase {
        // What was finished in the step before the first round, or received in the round before this one.
        0 => {
            let ready = if round == 0 { index - 1 } else { index - 2 };
            after(Action::Send { peer: frame.node_after(1), tag, from: span }, ready)
        }
        // In place this overwrites inputs: they were read before this block's partial result was sent on, without
        // which it would not come back.
        1 => Step::free(Action::Receive { peer: frame.node_before(1), tag, into: span }),
        _ if frame.locals() > 1 => {
            after(Action::Copy { from: span, into: outputs(OutputSet::AllBut(0), offset) }, index - 1)
        }
        _ => nothing(),
    }
}
