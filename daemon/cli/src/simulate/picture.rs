//! Times by algorithm over sizes and over numbers of nodes, drawn as the pictures of `ringway bench` are.

use std::collections::BTreeSet;

use ringway_plan::Algorithm;

use super::Row;
use crate::{
    bench::{
        axis::Quantity,
        plot::{self, Key, Keys, Line, Look, Mark, Plot, Sample},
        unit,
    },
    perf::Measured,
};

/// The picture; `None` where there is nothing to show.
pub(super) fn draw(rows: &[Row], operation: Measured) -> Option<String> {
    let drawn: Vec<&Row> = rows.iter().filter(|row| row.us().is_some()).collect();
    let most_nodes = drawn.iter().map(|row| row.nodes).max()?;
    let most_bytes = drawn.iter().map(|row| row.bytes).max()?;
    let algorithms: BTreeSet<Algorithm> = drawn.iter().map(|row| row.algorithm).collect();
    let algorithms: Vec<Algorithm> = algorithms.into_iter().collect();
    let lines = |x: fn(&Row) -> f64, is_on: &dyn Fn(&Row) -> bool| {
        let line = |(number, algorithm): (usize, &Algorithm)| {
            let own = drawn.iter().filter(|row| row.algorithm == *algorithm && is_on(row));
            let mut marks: Vec<Mark> = own.filter_map(|row| mark(row, x(row))).collect();
            marks.sort_by(|a, b| a.x.total_cmp(&b.x));
            Line { look: Look::nth(number), marks }
        };
        algorithms.iter().enumerate().map(line).collect::<Vec<_>>()
    };
    let over_bytes = lines(|row| row.bytes as f64, &|row| row.nodes == most_nodes);
    let over_nodes = lines(|row| f64::from(row.nodes), &|row| row.bytes == most_bytes);
    let title = format!("Time over size, {most_nodes} nodes");
    let mut plots: Vec<Plot> =
        Plot::of(&title, over_bytes, Quantity::Bytes, Quantity::Time).into_iter().collect();
    if drawn.iter().any(|row| row.nodes != most_nodes) {
        let title = format!("Time over nodes, {}", unit::size(most_bytes));
        plots.extend(Plot::of(&title, over_nodes, Quantity::Count, Quantity::Time));
    }
    let keys = algorithms.iter().enumerate().map(|(number, algorithm)| Key {
        look: Look::nth(number),
        sample: Sample::Line,
        label: algorithm.name().to_owned(),
    });
    let keys = [Keys { heading: "algorithm", entries: keys.collect() }];
    let heading = format!("{}, simulated", operation.name());
    (!plots.is_empty()).then(|| plot::picture(&heading, &plots, &keys))
}

fn mark(row: &Row, x: f64) -> Option<Mark> {
    let y = row.us()?;
    let told =
        format!("{} on {} nodes, {}: {}", row.algorithm, row.nodes, unit::size(row.bytes), unit::time(y));
    Some(Mark { x, y, spread: None, shape: None, told })
}
