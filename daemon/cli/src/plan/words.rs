//! Parts of steps in words.

use ringway_plan::{
    Action, LocalRange, OutputSet, Place, Span, Targets,
    trace::{Trace, Traced},
};

/// The most runs of blocks that a table's cell has.
const RUNS: usize = 6;

/// What a step does, in a word.
pub(super) const fn what(action: &Action) -> &'static str {
    match action {
        Action::Nothing => "nothing",
        Action::Send { .. } => "send",
        Action::Receive { .. } => "receive",
        Action::Reduce { finish: false, .. } => "reduce",
        Action::Reduce { finish: true, .. } => "finish",
        Action::Copy { .. } => "copy",
        Action::Swap { .. } => "swap",
        Action::Scan { .. } => "scan",
        Action::Fold { .. } => "fold",
    }
}

/// The other node and the tag of a message.
pub(super) const fn message(action: &Action) -> Option<(u32, u32)> {
    match action {
        Action::Send { peer, tag, .. } | Action::Receive { peer, tag, .. } => Some((*peer, *tag)),
        _ => None,
    }
}

/// A block's name: its number, or `0:2` for what rank 0 has for rank 2.
pub(super) fn block(trace: &Trace, block: u32) -> String {
    match trace.pair(block) {
        Some((from, to)) if trace.parts() == 1 => format!("{from}:{to}"),
        Some((from, to)) => format!("{from}:{to}.{}", block % trace.parts()),
        None => block.to_string(),
    }
}

/// The blocks' names, those that follow each other as `3-5`.
fn runs(trace: &Trace, blocks: &[u32]) -> Vec<String> {
    let follows = |a: &u32, b: &u32| trace.pair(0).is_none() && a.checked_add(1) == Some(*b);
    let name = |run: &[u32]| match run {
        [only] => block(trace, *only),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    blocks.chunk_by(follows).map(name).collect()
}

/// The blocks of a step: `3`, `3-5` or `0-1, 4`; of many the first ones.
pub(super) fn blocks(trace: &Trace, blocks: &[u32]) -> String {
    let mut runs = runs(trace, blocks);
    if runs.len() > RUNS {
        runs.truncate(RUNS - 1);
        runs.push(format!("\u{2026} {} in all", blocks.len()));
    }
    runs.join(", ")
}

/// The same where there is room for one.
pub(super) fn first_blocks(trace: &Trace, blocks: &[u32]) -> String {
    match runs(trace, blocks).as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [first, ..] => format!("{first}\u{2026}"),
    }
}

/// What is read.
pub(super) fn from(Traced { step, .. }: &Traced) -> String {
    let with = |carry: Option<u64>, length: u64, locals: LocalRange| {
        let inputs = match locals {
            LocalRange { first: 0, .. } => "inputs".to_owned(),
            LocalRange { first, count } => {
                format!("inputs of local ranks {}", run(u64::from(first), u64::from(count)))
            }
        };
        let carry = carry.map(|at| format!("scratch {}", run(at, length)));
        carry.into_iter().chain([inputs]).collect::<Vec<_>>().join(" + ")
    };
    match step.action {
        Action::Send { from, .. } | Action::Copy { from, .. } => span(from),
        Action::Swap { a, .. } => span(a),
        Action::Scan { carry, length, locals, .. } | Action::Fold { carry, length, locals, .. } => {
            with(carry, length, locals)
        }
        Action::Reduce { sources, length, .. } => {
            let partials = sources.partials;
            let partials = match (partials.count, partials.stride, length) {
                (0, ..) => None,
                (1, _, length) => Some(format!("scratch {}", run(partials.offset, length))),
                (many, 1, 1) => Some(format!("scratch {}", run(partials.offset, u64::from(many)))),
                (many, stride, length) => {
                    Some(format!("{many} times scratch {}, every {stride}", run(partials.offset, length)))
                }
            };
            let inputs = sources.inputs.map(|_| "inputs".to_owned());
            partials.into_iter().chain(inputs).collect::<Vec<_>>().join(" + ")
        }
        Action::Nothing | Action::Receive { .. } => String::new(),
    }
}

/// What is written.
pub(super) fn into(Traced { step, .. }: &Traced) -> String {
    match step.action {
        Action::Receive { into, .. } | Action::Swap { b: into, .. } => span(into),
        Action::Reduce { into, length, .. } => targets(into, length),
        Action::Copy { from, into } => targets(into, from.length),
        Action::Scan { .. } => "outputs".to_owned(),
        Action::Fold { into, length, .. } => format!("scratch {}", run(into, length)),
        Action::Nothing | Action::Send { .. } => String::new(),
    }
}

/// The steps that are waited for: `0, 3-5`.
pub(super) fn waits(runs: &[(u32, u32)]) -> String {
    let run = |&(first, last): &(u32, u32)| run(u64::from(first), u64::from(last - first + 1));
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

/// Of inputs and outputs the blocks say which part.
fn span(Span { place, offset, length }: Span) -> String {
    match place {
        Place::Scratch if length == 0 => String::new(),
        Place::Scratch => format!("scratch {}", run(offset, length)),
        Place::Input(0) => "input".to_owned(),
        Place::Output(0) => "output".to_owned(),
        Place::Input(local) => format!("input of local rank {local}"),
        Place::Output(local) => format!("output of local rank {local}"),
    }
}

fn targets(Targets { outputs, scratch, .. }: Targets, length: u64) -> String {
    let outputs = match outputs {
        OutputSet::None => None,
        OutputSet::All | OutputSet::One(0) => Some("output".to_owned()),
        OutputSet::One(local) => Some(format!("output of local rank {local}")),
        OutputSet::AllBut(0) => Some("others".to_owned()),
        OutputSet::AllBut(local) => Some(format!("outputs but of local rank {local}")),
    };
    let scratch = scratch.map(|at| format!("scratch {}", run(at, length)));
    outputs.into_iter().chain(scratch).collect::<Vec<_>>().join(", ")
}

fn run(first: u64, count: u64) -> String {
    if count == 1 {
        first.to_string()
    } else {
        format!("{first}-{}", first.saturating_add(count).saturating_sub(1))
    }
}
