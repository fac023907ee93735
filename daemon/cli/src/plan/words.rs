//! Parts of steps in words.

use ringway_plan::file::{Entry, Into, Location, Outputs, What};

/// What a step does, in a word.
pub(super) const fn what(what: What) -> &'static str {
    match what {
        What::Nothing => "nothing",
        What::Send { .. } => "send",
        What::Receive { .. } => "receive",
        What::Reduce { finish: false, .. } => "reduce",
        What::Reduce { finish: true, .. } => "finish",
        What::Copy { .. } => "copy",
    }
}

/// The other node and the tag of a message.
pub(super) const fn message(what: What) -> Option<(u32, u32)> {
    match what {
        What::Send { peer, tag, .. } | What::Receive { peer, tag, .. } => Some((peer, tag)),
        _ => None,
    }
}

/// `3`, or `3-5`.
pub(super) fn blocks(entry: &Entry) -> String {
    match entry.what {
        What::Nothing => String::new(),
        _ => run(entry.block, entry.count),
    }
}

/// What is read.
pub(super) fn from(entry: &Entry) -> String {
    match entry.what {
        What::Send { from, .. } | What::Copy { from, .. } => location(from, entry.count),
        What::Reduce { scratch, stride, partials, inputs, .. } => {
            let partials = match (partials, stride, entry.count) {
                (0, ..) => None,
                (1, _, count) => Some(format!("scratch {}", run(scratch, count))),
                (many, 1, 1) => Some(format!("scratch {}", run(scratch, many))),
                (many, stride, count) => {
                    Some(format!("{many} times scratch {}, every {stride}", run(scratch, count)))
                }
            };
            partials.into_iter().chain(inputs.then(|| "inputs".to_owned())).collect::<Vec<_>>().join(" + ")
        }
        What::Nothing | What::Receive { .. } => String::new(),
    }
}

/// What is written.
pub(super) fn into(entry: &Entry) -> String {
    match entry.what {
        What::Receive { into, .. } => location(into, entry.count),
        What::Reduce { into, .. } | What::Copy { into, .. } => places(into, entry.count),
        What::Nothing | What::Send { .. } => String::new(),
    }
}

/// The steps that are waited for: `0, 3-5`.
pub(super) fn after(entry: &Entry) -> String {
    let ranges = entry.after.iter().filter(|range| !range.is_empty());
    ranges.map(|range| run(range.start, range.end - range.start)).collect::<Vec<_>>().join(", ")
}

fn location(location: Location, count: u32) -> String {
    match location {
        Location::Input => "input".to_owned(),
        Location::Output => "output".to_owned(),
        Location::Scratch(at) => format!("scratch {}", run(at, count)),
    }
}

fn places(into: Into, count: u32) -> String {
    let outputs = match into.outputs {
        Outputs::None => None,
        Outputs::All => Some("output".to_owned()),
        Outputs::Others => Some("others".to_owned()),
    };
    let scratch = into.scratch.map(|at| format!("scratch {}", run(at, count)));
    outputs.into_iter().chain(scratch).collect::<Vec<_>>().join(", ")
}

fn run(first: u32, count: u32) -> String {
    if count == 1 { first.to_string() } else { format!("{first}-{}", first.saturating_add(count) - 1) }
}
