//! All_gather around a ring of nodes: in every round each node passes on the blocks it received in the round before,
//! from the output they arrived in: `(N - 1)(a + n b)` for blocks of `n` bytes a node.

use super::{Frame, Size, after, local, nothing, outputs, times};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let (rounds, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    let messages = 2.0 * rounds * f64::from(terms.most_local);
    Cost {
        rounds,
        link_bytes: rounds * part,
        port_bytes: rounds * part,
        messages,
        sent: rounds * part,
        ..Cost::default()
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let width = times(frame.most_local(), 3);
    let steps = frame.locals().saturating_add(times(frame.nodes() - 1, width));
    Size { extent: frame.longest_block(), steps, scratch: 0 }
}

/// The local part; then N - 1 rounds, each with a send, a receive and a copy for every rank a node may have.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let local_part = frame.locals();
    if index < local_part {
        return local::step(frame, index);
    }
    let most = frame.most_local().max(1);
    let width = times(most, 3);
    let at = index - local_part;
    let (round, slot, phase) = (at / width, at % width / 3, at % 3);
    if round >= frame.nodes() - 1 {
        return nothing();
    }
    let distance = if phase == 0 { round } else { round + 1 };
    let Some(rank) = frame.rank(frame.node_before(distance), slot) else { return nothing() };
    let (block, length) = frame.view.block(rank);
    let (start, length) = frame.cut(length);
    if length == 0 {
        return nothing();
    }
    let offset = block.saturating_add(start);
    let span = Span { place: Place::Output(0), offset, length };
    let tag = times(round, most).saturating_add(slot);
    let peer = frame.node_after(1);
    match phase {
        0 if round == 0 => {
            let from = Span { place: Place::Input(slot), offset: start, length };
            Step::free(Action::Send { peer, tag, from })
        }
        0 => after(Action::Send { peer, tag, from: span }, index - width + 1),
        1 => Step::free(Action::Receive { peer: frame.node_before(1), tag, into: span }),
        _ if frame.locals() > 1 => {
            after(Action::Copy { from: span, into: outputs(OutputSet::AllBut(0), offset) }, index - 1)
        }
        _ => nothing(),
    }
}
