//! A plan as a table, and as JSON for programs.

use ringway_plan::trace::Traced;
use serde_json::{Value, json};

use super::{shown::Shown, words};

const TITLES: [&str; 10] =
    ["node", "step", "time", "what", "peer", "tag", "blocks", "from", "into", "waits for"];
/// Which columns are numbers, and end at the right.
const NUMBERS: [bool; 10] = [true, true, true, false, true, true, false, false, false, false];

/// An aligned table under a line about the plan, the nodes one after the other.
pub(super) fn text(plan: &Shown) -> String {
    let mut rows = vec![TITLES.map(str::to_owned)];
    for node in 0..plan.nodes() {
        rows.extend(plan.steps(node).map(|(step, traced)| row(plan, (node, step), traced)));
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
    let mut text = vec![plan.headline(), String::new()];
    for row in rows {
        let cells = row.iter().zip(&widths).zip(NUMBERS).map(|((cell, width), is_number)| {
            if is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_owned());
    }
    text.join("\n")
}

fn row(plan: &Shown, (node, step): (u32, usize), traced: &Traced) -> [String; 10] {
    let action = &traced.step.action;
    let message = words::message(action);
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    [
        node.to_string(),
        step.to_string(),
        traced.time.to_string(),
        words::what(action).to_owned(),
        number(message.map(|message| message.0)),
        number(message.map(|message| message.1)),
        words::blocks(&plan.trace, &traced.blocks),
        words::from(action),
        words::into(action),
        words::waits(&plan.waits(node, traced)),
    ]
}

/// The plan as `--json` prints it.
pub(super) fn json(plan: &Shown) -> Value {
    let trace = &plan.trace;
    let step = |node: u32, step: usize, traced: &Traced| {
        let action = &traced.step.action;
        let message = words::message(action);
        json!({
            "node": node,
            "step": step,
            "time": traced.time,
            "what": words::what(action),
            "peer": message.map(|message| message.0),
            "tag": message.map(|message| message.1),
            "blocks": traced.blocks.iter().map(|block| words::block(trace, *block)).collect::<Vec<_>>(),
            "from": words::from(action),
            "into": words::into(action),
            "after": plan.waits(node, traced),
        })
    };
    let steps = (0..plan.nodes())
        .flat_map(|node| plan.steps(node).map(move |(number, traced)| step(node, number, traced)));
    json!({
        "name": trace.name,
        "operation": trace.operation.name(),
        "nodes": plan.nodes(),
        "named_blocks": trace.blocks,
        "parts": trace.parts,
        "scratch": trace.scratch,
        "chunk_bytes": trace.chunk_bytes,
        "digest": plan.digest.map(|digest| format!("{digest:016x}")),
        "steps": steps.collect::<Vec<_>>(),
    })
}
