//! All ranks on one node: one pass from the inputs to the outputs. Also the local part of exchanges between nodes.

use ringway_types::Operation as O;

use super::{Frame, Size, inputs, nothing, outputs, times};
use crate::{Action, LocalRange, OutputSet, Place, Span, Step};

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let extent = match frame.view.call.operation {
        O::Allreduce | O::Reduce | O::Broadcast | O::Scan | O::Exscan => frame.vector(),
        O::AllToAll | O::AllToAllV => super::pattern::longest_pair(frame),
        O::Barrier | O::Send | O::Receive => 0,
        _ => frame.longest_block(),
    };
    Size { extent, steps: steps(frame), scratch: 0 }
}

/// Steps of the local part.
pub(super) fn steps(frame: &Frame<'_>) -> u32 {
    match frame.view.call.operation {
        O::Allreduce | O::Reduce | O::Broadcast | O::Scan | O::Exscan => 1,
        O::Gather | O::GatherV | O::Scatter | O::ScatterV if !frame.is_root_node() => 0,
        O::AllToAll | O::AllToAllV => times(frame.locals(), frame.locals()),
        O::Barrier | O::Send | O::Receive => 0,
        _ => frame.locals(),
    }
}

/// A step of the local part, which is the first part of every plan that has one.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let action = match frame.view.call.operation {
        O::Allreduce | O::Reduce | O::Broadcast | O::Scan | O::Exscan if index == 0 => vector(frame),
        O::AllToAll | O::AllToAllV => return pair(frame, index),
        O::AllGather | O::AllGatherV | O::Gather | O::GatherV => gather(frame, index),
        O::Scatter | O::ScatterV => scatter(frame, index),
        O::ReduceScatter | O::ReduceScatterV => reduce_scatter(frame, index),
        _ => Action::Nothing,
    };
    Step::free(action)
}

fn vector(frame: &Frame<'_>) -> Action {
    let (offset, length) = frame.range();
    let root = OutputSet::One(frame.root_local());
    let reduce =
        |set| Action::Reduce { sources: inputs(offset), into: outputs(set, offset), length, finish: true };
    match frame.view.call.operation {
        O::Allreduce => reduce(OutputSet::All),
        O::Reduce => reduce(root),
        O::Broadcast => Action::Copy {
            from: Span { place: Place::Input(frame.root_local()), offset, length },
            into: outputs(OutputSet::All, offset),
        },
        _ => Action::Scan {
            carry: None,
            locals: LocalRange { first: 0, count: frame.locals() },
            before: 0,
            offset,
            length,
        },
    }
}

/// The block of one local rank to all outputs, or to the root's.
fn gather(frame: &Frame<'_>, local: u32) -> Action {
    let Some(rank) = frame.rank(frame.me(), local) else { return Action::Nothing };
    let (block, length) = frame.view.block(rank);
    let (offset, length) = frame.cut(length);
    if length == 0 {
        return Action::Nothing;
    }
    let set = match frame.view.call.operation {
        O::Gather | O::GatherV => OutputSet::One(frame.root_local()),
        _ => OutputSet::All,
    };
    Action::Copy {
        from: Span { place: Place::Input(local), offset, length },
        into: outputs(set, block.saturating_add(offset)),
    }
}

/// A block of the root's input to a local rank.
fn scatter(frame: &Frame<'_>, local: u32) -> Action {
    let Some(rank) = frame.rank(frame.me(), local) else { return Action::Nothing };
    let (block, length) = frame.view.block(rank);
    let (offset, length) = frame.cut(length);
    if length == 0 {
        return Action::Nothing;
    }
    let place = Place::Input(frame.root_local());
    Action::Copy {
        from: Span { place, offset: block.saturating_add(offset), length },
        into: outputs(OutputSet::One(local), offset),
    }
}

fn reduce_scatter(frame: &Frame<'_>, local: u32) -> Action {
    let Some(rank) = frame.rank(frame.me(), local) else { return Action::Nothing };
    let (block, length) = frame.view.block(rank);
    let (offset, length) = frame.cut(length);
    if length == 0 {
        return Action::Nothing;
    }
    Action::Reduce {
        sources: inputs(block.saturating_add(offset)),
        into: outputs(OutputSet::One(local), offset),
        length,
        finish: true,
    }
}

/// What a pair of local ranks exchanges in all_to_all. In place a block that is sent lies where the other one
/// arrives: two such ranks swap; where only one of them is in place its block is copied away first.
fn pair(frame: &Frame<'_>, index: u32) -> Step {
    let locals = frame.locals().max(1);
    let (row, column) = (index / locals, index % locals);
    if row >= locals {
        return nothing();
    }
    let (low, high) = (row.min(column), row.max(column));
    let first = row < column;
    let (low_in_place, high_in_place) = (frame.in_place(low), frame.in_place(high));
    if low == high {
        return if low_in_place { nothing() } else { Step::free(move_block(frame, low, low)) };
    }
    let (upward, downward) = (move_block(frame, low, high), move_block(frame, high, low));
    let second = |action| super::after(action, low * locals + high);
    match (low_in_place, high_in_place, first) {
        (true, true, true) => Step::free(swap(frame, low, high)),
        (true, true, false) => nothing(),
        (true, false, false) => second(downward),
        (false, true, true) => Step::free(downward),
        (false, true, false) => second(upward),
        (_, false, true) => Step::free(upward),
        (false, false, false) => Step::free(downward),
    }
}

fn move_block(frame: &Frame<'_>, from: u32, to: u32) -> Action {
    let (Some(source), Some(destination)) = (frame.rank(frame.me(), from), frame.rank(frame.me(), to)) else {
        return Action::Nothing;
    };
    let (send, length) = frame.view.sends(from, destination);
    let (offset, length) = frame.cut(length);
    if length == 0 {
        return Action::Nothing;
    }
    Action::Copy {
        from: Span { place: Place::Input(from), offset: send.saturating_add(offset), length },
        into: outputs(OutputSet::One(to), frame.view.receives(to, source).0.saturating_add(offset)),
    }
}

fn swap(frame: &Frame<'_>, low: u32, high: u32) -> Action {
    let span = |own, other| {
        let rank = frame.rank(frame.me(), other).unwrap_or(0);
        let (block, length) = frame.view.receives(own, rank);
        let (offset, length) = frame.cut(length);
        Span { place: Place::Output(own), offset: block.saturating_add(offset), length }
    };
    let (a, b) = (span(low, high), span(high, low));
    if a.length == 0 || a.length != b.length {
        return Action::Nothing;
    }
    Action::Swap { a, b }
}
