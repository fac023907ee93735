//! Scan and exscan between nodes. Ranks may lie on the nodes in any order, so they are taken as runs of consecutive
//! ranks on one node: each run's combination goes to every node that has a later rank, and every node combines what
//! comes before each of its runs, always in rank order.

use super::{Frame, Size, into_scratch, nothing, one, partials, scratch, times};
use crate::{Action, Cost, LocalRange, Run, Step, Terms, View};

/// One partial result is kept for every run.
pub(super) fn unit(view: &View<'_>, chunk_bytes: u64) -> u64 {
    let runs = view.layout.runs().len() as u64;
    chunk_bytes.saturating_mul(u64::from(view.layout.nodes())) / runs.max(1)
}

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
    let runs = frame.view.layout.runs().len();
    let own = own_runs(frame);
    let all = u32::try_from(runs).unwrap_or(u32::MAX);
    let messages = times(own, frame.nodes()).saturating_add(all - own);
    Size {
        extent: frame.vector(),
        steps: times(own, 3).saturating_add(messages),
        scratch: frame.slot(frame.vector()).saturating_mul(runs as u64),
    }
}

fn own_runs(frame: &Frame<'_>) -> u32 {
    u32::try_from(frame.view.layout.runs_on(frame.me()).len()).unwrap_or(u32::MAX)
}

/// The `number`-th of this node's runs: which of all runs it is, and the run.
fn own_run(frame: &Frame<'_>, number: u32) -> Option<(u32, Run)> {
    let at = *frame.view.layout.runs_on(frame.me()).get(number as usize)?;
    Some((at, *frame.view.layout.runs().get(at as usize)?))
}

/// For each of this node's runs its combination; then for all runs in order a send to every node, or a receive;
/// then for each of this node's runs what comes before it, and its outputs.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let own = own_runs(frame);
    let all = u32::try_from(frame.view.layout.runs().len()).unwrap_or(u32::MAX);
    let scans = own.saturating_add(times(own, frame.nodes())).saturating_add(all - own);
    if index < own {
        fold(frame, index, all)
    } else if index < scans {
        message(frame, index - own, own)
    } else if (index - scans).is_multiple_of(2) {
        carry(frame, (index - scans) / 2, index, own)
    } else {
        scan(frame, (index - scans) / 2, index)
    }
}

fn slot(frame: &Frame<'_>, run: u32) -> u64 {
    frame.slot(frame.vector()).saturating_mul(u64::from(run))
}

fn fold(frame: &Frame<'_>, number: u32, all: u32) -> Step {
    let Some((at, run)) = own_run(frame, number) else { return nothing() };
    if at + 1 >= all {
        return nothing();
    }
    let (offset, length) = frame.range();
    let locals = LocalRange { first: run.first_local, count: run.count };
    Step::free(Action::Fold { carry: None, locals, offset, length, into: slot(frame, at) })
}

/// How many message steps come before those of a run: one for each run elsewhere, `nodes` for each own one.
fn messages_before(frame: &Frame<'_>, run: u32) -> u32 {
    let own = frame.view.layout.runs_on(frame.me()).partition_point(|at| *at < run);
    let own = u32::try_from(own).unwrap_or(u32::MAX);
    times(own, frame.nodes() - 1).saturating_add(run)
}

fn message(frame: &Frame<'_>, at: u32, own: u32) -> Step {
    let length = frame.range().1;
    // The last own run whose messages start at or before this step.
    let runs = frame.view.layout.runs_on(frame.me());
    let number = runs.partition_point(|run| messages_before(frame, *run) <= at);
    let Some(number) = number.checked_sub(1) else { return receive(frame, at, own, length) };
    let Some(&run) = runs.get(number) else { return nothing() };
    let distance = at - messages_before(frame, run);
    if distance >= frame.nodes() {
        return receive(frame, run + 1 + (distance - frame.nodes()), own, length);
    }
    let peer = frame.node_after(distance);
    let later = frame.view.layout.runs_on(peer).last().is_some_and(|last| *last > run);
    if distance == 0 || !later {
        return nothing();
    }
    let number = u32::try_from(number).unwrap_or(0);
    super::after(Action::Send { peer, tag: run, from: scratch(slot(frame, run), length) }, number)
}

fn receive(frame: &Frame<'_>, run: u32, own: u32, length: u64) -> Step {
    let Some((last, _)) = own.checked_sub(1).and_then(|number| own_run(frame, number)) else {
        return nothing();
    };
    let Some(from) = frame.view.layout.runs().get(run as usize) else { return nothing() };
    if run > last {
        return nothing();
    }
    Step::free(Action::Receive { peer: from.node, tag: run, into: scratch(slot(frame, run), length) })
}

/// The first partial result that is combined into the carry of an own run: the carry of the own run before it, which
/// has taken the place of the last partial result before that.
fn carry_from(frame: &Frame<'_>, number: u32) -> u32 {
    let before = number.checked_sub(1).and_then(|number| own_run(frame, number));
    before.map_or(0, |(at, _)| at.saturating_sub(1))
}

fn carry(frame: &Frame<'_>, number: u32, index: u32, own: u32) -> Step {
    let Some((at, _)) = own_run(frame, number) else { return nothing() };
    let from = carry_from(frame, number);
    let count = at - from;
    if count < 2 {
        return nothing();
    }
    let before = if number == 0 { 0..0 } else { one(index - 2) };
    Step {
        action: Action::Reduce {
            sources: partials(slot(frame, from), frame.slot(frame.vector()), count),
            into: into_scratch(slot(frame, at - 1)),
            length: frame.range().1,
            finish: false,
        },
        after: [0..own.saturating_add(messages_before(frame, at)), before],
    }
}

fn scan(frame: &Frame<'_>, number: u32, index: u32) -> Step {
    let Some((at, run)) = own_run(frame, number) else { return nothing() };
    let (offset, length) = frame.range();
    let action = Action::Scan {
        carry: at.checked_sub(1).map(|before| slot(frame, before)),
        locals: LocalRange { first: run.first_local, count: run.count },
        before: run.first_rank,
        offset,
        length,
    };
    if at == 0 {
        // Nothing comes before rank 0; but in place the inputs, which were to be combined first, are overwritten.
        let in_place = (0..run.count).any(|local| frame.in_place(run.first_local + local));
        let combined = if in_place { one(number) } else { 0..0 };
        return Step { action, after: [combined, 0..0] };
    }
    // A carry that is one partial result alone is ready when all messages of earlier runs are.
    let received = 0..own_runs(frame).saturating_add(messages_before(frame, at));
    Step { action, after: [received, one(index - 1)] }
}
