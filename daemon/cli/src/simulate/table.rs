//! What was found, as a table for people and as JSON for machines.

use ringway_plan::simulate::Outcome;
use serde::Serialize;

use super::Row;
use crate::{
    bench::unit,
    output,
    perf::{Measured, round, significant},
};

/// Prints the rows in aligned columns, and below them why others are missing.
pub(super) fn print(rows: &[Row], operation: Measured) {
    let head = [
        "nodes",
        "ranks",
        "size",
        "algorithm",
        "time (us)",
        "busbw (GB/s)",
        "used",
        "busiest link",
        "simulated",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    output::line(&format!("# ringway simulate {}", operation.name()));
    for (number, line) in lines.iter().enumerate() {
        let mut text = String::from(if number == 0 { "#" } else { " " });
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Words stand at the left, numbers at the right.
            text += &if matches!(column, 3 | 7 | 8) {
                format!("  {cell:<width$}")
            } else {
                format!("  {cell:>width$}")
            };
        }
        output::line(text.trim_end());
    }
    for row in rows {
        if let Err(failure) = &row.found {
            output::line(&format!(
                "# {} on {} nodes, {}: {failure}",
                row.algorithm,
                row.nodes,
                unit::size(row.bytes)
            ));
        }
    }
}

fn cells(row: &Row) -> [String; 9] {
    let none = || "-".to_owned();
    let busiest = row.found.as_ref().ok().and_then(|found| found.busiest);
    [
        row.nodes.to_string(),
        row.ranks.to_string(),
        row.bytes.to_string(),
        row.algorithm.to_string(),
        row.us().map_or_else(none, significant),
        row.busbw().map_or_else(none, |busbw| format!("{busbw:.3}")),
        busiest.map_or_else(none, |(_, used)| format!("{:.0} %", used * 100.0)),
        busiest.map_or_else(none, |(wire, _)| wire.to_string()),
        row.found.as_ref().map_or_else(|_| "no, see below".to_owned(), simulated),
    ]
}

/// How much was simulated.
fn simulated(found: &Outcome) -> String {
    let nodes = match found.symmetry {
        Some(symmetry) if found.nodes_run == 1 => format!("1 class ({symmetry})"),
        Some(symmetry) => format!("{} classes ({symmetry})", found.nodes_run),
        None => "all nodes".to_owned(),
    };
    let chunks = if found.chunks_run < found.chunks {
        format!(", {} of {} chunks to {:.1} %", found.chunks_run, found.chunks, found.spread * 100.0)
    } else {
        String::new()
    };
    format!("{nodes}{chunks}, {} events", found.events)
}

/// One row's JSON form.
#[derive(Serialize)]
#[expect(non_snake_case, reason = "units keep their case in the JSON form")]
struct Json<'a> {
    operation: &'a str,
    algorithm: &'a str,
    nodes: u32,
    ranks: u32,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    busbw_GBps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    busiest: Option<Busiest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<Simulated>,
    /// Why it was not simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

#[derive(Serialize)]
struct Busiest {
    link: String,
    used: f64,
}

#[derive(Serialize)]
struct Simulated {
    nodes: u32,
    symmetry: Option<&'static str>,
    chunks: u64,
    of_chunks: u64,
    /// By which share what each more chunk takes went up and down.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<f64>,
    events: u64,
    messages: u64,
}

/// A row as one line of JSON.
pub(super) fn json(row: &Row, operation: Measured) -> String {
    let found = row.found.as_ref().ok();
    let busiest = found.and_then(|found| found.busiest);
    let json = Json {
        operation: operation.name(),
        algorithm: row.algorithm.name(),
        nodes: row.nodes,
        ranks: row.ranks,
        bytes: row.bytes,
        time_us: row.us(),
        busbw_GBps: row.busbw().map(|busbw| round(busbw, 6)),
        busiest: busiest.map(|(wire, used)| Busiest { link: wire.to_string(), used: round(used, 6) }),
        simulated: found.map(|found| Simulated {
            nodes: found.nodes_run,
            symmetry: found.symmetry,
            chunks: found.chunks_run,
            of_chunks: found.chunks,
            spread: (found.chunks_run < found.chunks).then(|| round(found.spread, 6)),
            events: found.events,
            messages: found.messages,
        }),
        failure: row.found.as_ref().err().map(ToString::to_string),
    };
    serde_json::to_string(&json).unwrap_or_default()
}
