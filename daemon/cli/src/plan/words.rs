//! Parts of steps in words.

use ringway_plan::{Action, OutputSet, Place, Span, Targets, trace::Trace};

/// The most ranges of blocks that a table's cell has.
const RANGES: usize = 6;

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
        Some((from, to)) if trace.parts == 1 => format!("{from}:{to}"),
        Some((from, to)) => format!("{from}:{to}.{}", block % trace.parts),
        None => block.to_string(),
    }
}

/// The blocks' names, those that follow each other as `3-5`.
fn ranges<'a>(trace: &'a Trace, blocks: &'a [u32]) -> impl Iterator<Item = String> + 'a {
    let follows = |a: &u32, b: &u32| trace.pair(0).is_none() && a.checked_add(1) == Some(*b);
    blocks.chunk_by(follows).map(|range| match range {
        [only] => block(trace, *only),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    })
}

/// The blocks of a step: `3`, `3-5` or `0-1, 4`; of many the first ones.
pub(super) fn blocks(trace: &Trace, blocks: &[u32]) -> String {
    let mut first: Vec<_> = ranges(trace, blocks).take(RANGES + 1).collect();
    if first.len() > RANGES {
        first.truncate(RANGES - 1);
        first.push(format!("\u{2026} {} in all", blocks.len()));
    }
    first.join(", ")
}

/// The same where there is room for one.
pub(super) fn first_blocks(trace: &Trace, blocks: &[u32]) -> String {
    let mut ranges = ranges(trace, blocks);
    let first = ranges.next().unwrap_or_default();
    if ranges.next().is_some() { format!("{first}\u{2026}") } else { first }
}

/// What is read.
pub(super) fn from(action: &Action) -> String {
    match *action {
        Action::Send { from, .. } | Action::Copy { from, .. } => span(from),
        Action::Swap { a, .. } => span(a),
        Action::Scan { carry, length, .. } | Action::Fold { carry, length, .. } => {
            let carry = carry.map(|at| format!("scratch {}", range(at, length)));
            carry.into_iter().chain(["inputs".to_owned()]).collect::<Vec<_>>().join(" + ")
        }
        Action::Reduce { sources, length, .. } => {
            let partials = sources.partials;
            let partials = match (partials.count, partials.stride, length) {
                (0, ..) => None,
                (1, _, length) => Some(format!("scratch {}", range(partials.offset, length))),
                (many, 1, 1) => Some(format!("scratch {}", range(partials.offset, u64::from(many)))),
                (many, stride, length) => {
                    Some(format!("{many} times scratch {}, every {stride}", range(partials.offset, length)))
                }
            };
            let inputs = sources.inputs.map(|_| "inputs".to_owned());
            partials.into_iter().chain(inputs).collect::<Vec<_>>().join(" + ")
        }
        Action::Nothing | Action::Receive { .. } => String::new(),
    }
}

/// What is written.
pub(super) fn into(action: &Action) -> String {
    match *action {
        Action::Receive { into, .. } | Action::Swap { b: into, .. } => span(into),
        Action::Reduce { into, length, .. } => targets(into, length),
        Action::Copy { from, into } => targets(into, from.length),
        Action::Scan { .. } => "outputs".to_owned(),
        Action::Fold { into, length, .. } => format!("scratch {}", range(into, length)),
        Action::Nothing | Action::Send { .. } => String::new(),
    }
}

/// The steps that are waited for: `0, 3-5`.
pub(super) fn waits(steps: &[(u32, u32)]) -> String {
    let said = |&(first, last): &(u32, u32)| range(u64::from(first), u64::from(last - first + 1));
    steps.iter().map(said).collect::<Vec<_>>().join(", ")
}

/// Of inputs and outputs the blocks say which part.
fn span(Span { place, offset, length }: Span) -> String {
    match place {
        Place::Scratch if length == 0 => String::new(),
        Place::Scratch => format!("scratch {}", range(offset, length)),
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
    let scratch = scratch.map(|at| format!("scratch {}", range(at, length)));
    outputs.into_iter().chain(scratch).collect::<Vec<_>>().join(", ")
}

fn range(first: u64, count: u64) -> String {
    if count == 1 {
        first.to_string()
    } else {
        format!("{first}-{}", first.saturating_add(count).saturating_sub(1))
    }
}
