//! A plan as a table, and as JSON for programs.

use ringway_plan::file::{Entry, Listed};
use serde_json::{Value, json};

use super::{levels::Levels, words};

const TITLES: [&str; 10] =
    ["node", "step", "time", "what", "peer", "tag", "blocks", "from", "into", "waits for"];
/// Which columns are numbers, and end at the right.
const NUMBERS: [bool; 10] = [true, true, true, false, true, true, false, false, false, false];

/// An aligned table under a line about the plan, the nodes one after the other.
pub(super) fn text(plan: &Listed, levels: &Levels) -> String {
    let mut rows = vec![TITLES.map(str::to_owned)];
    for node in 0..plan.nodes() {
        let steps = plan.steps(node).iter().enumerate();
        rows.extend(steps.map(|(step, entry)| row(node, step, levels.level(node, step), entry)));
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
    let mut text = vec![headline(plan, levels), String::new()];
    for row in rows {
        let cells = row.iter().zip(&widths).zip(NUMBERS).map(|((cell, width), is_number)| {
            if is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_owned());
    }
    text.join("\n")
}

/// The plan in a line.
pub(super) fn headline(plan: &Listed, levels: &Levels) -> String {
    let (blocks, scratch) = (count(plan.blocks(), "block"), count(plan.scratch(), "block"));
    format!(
        "{}: {} between {} nodes; a chunk of up to {} bytes has {blocks}, scratch memory holds {scratch}; {} in {}",
        plan.name(),
        plan.operation(),
        plan.nodes(),
        plan.chunk_bytes(),
        count(u32::try_from(levels.messages.len()).unwrap_or(u32::MAX), "message"),
        count(levels.end(), "step"),
    )
}

fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn row(node: u32, step: usize, level: u32, entry: &Entry) -> [String; 10] {
    let message = words::message(entry.what);
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    [
        node.to_string(),
        step.to_string(),
        level.to_string(),
        words::what(entry.what).to_owned(),
        number(message.map(|message| message.0)),
        number(message.map(|message| message.1)),
        words::blocks(entry),
        words::from(entry),
        words::into(entry),
        words::after(entry),
    ]
}

/// The plan as `--json` prints it.
pub(super) fn json(plan: &Listed, levels: &Levels) -> Value {
    let step = |node: u32, step: usize, entry: &Entry| {
        let message = words::message(entry.what);
        let after = entry.after.iter().filter(|range| !range.is_empty());
        json!({
            "node": node,
            "step": step,
            "time": levels.level(node, step),
            "what": words::what(entry.what),
            "peer": message.map(|message| message.0),
            "tag": message.map(|message| message.1),
            "block": entry.block,
            "count": entry.count,
            "from": words::from(entry),
            "into": words::into(entry),
            "after": after.map(|range| [range.start, range.end - 1]).collect::<Vec<_>>(),
        })
    };
    let steps = (0..plan.nodes()).flat_map(|node| {
        plan.steps(node).iter().enumerate().map(move |(number, entry)| step(node, number, entry))
    });
    json!({
        "name": plan.name(),
        "operation": plan.operation().name(),
        "nodes": plan.nodes(),
        "blocks": plan.blocks(),
        "scratch": plan.scratch(),
        "chunk_bytes": plan.chunk_bytes(),
        "digest": format!("{:016x}", plan.digest()),
        "steps": steps.collect::<Vec<_>>(),
    })
}
