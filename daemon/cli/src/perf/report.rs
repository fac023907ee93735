//! Rows of results, as a table for people and as JSON for machines.

use serde::{Deserialize, Serialize};

use super::offsets::Offset;

/// One measured point. The names are those of the JSON form.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(non_snake_case, reason = "units keep their case in the JSON form")]
pub(crate) struct Row {
    pub(crate) operation: String,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) datatype: String,
    pub(crate) reduction: String,
    pub(crate) root: i64,
    pub(crate) ranks: u32,
    pub(crate) nodes: u32,
    pub(crate) device: String,
    pub(crate) path: String,
    /// Over several nodes: bytes of memory that waiting ranks of the first node have read and written for its daemon, at
    /// this point and those before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rank_bytes: Option<u64>,
    pub(crate) algorithm: String,
    pub(crate) in_place: bool,
    pub(crate) unregistered: bool,
    pub(crate) iterations: u64,
    pub(crate) time_us: Times,
    pub(crate) algbw_GBps: f64,
    pub(crate) busbw_GBps: f64,
    /// Wrong elements; `None` when results were not checked.
    pub(crate) errors: Option<u64>,
    /// Where the buffers begin, when that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<Offset>,
    /// Microseconds that the bare kernel takes (median), when it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) floor_us: Option<f64>,
    /// The share of the floor's rate that was reached: `floor_us / time_us.p50`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of_floor: Option<f64>,
    /// Nanoseconds that a cache line takes from the first processor to the second and back: before the calls, after them,
    /// and after the floor's, when they were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) round_trip_ns: Vec<f64>,
    /// Where ranks have their buffers, when it is not the host's memory alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,
    /// Microseconds that the first rank takes to put a call into its stream, median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launch_us: Option<f64>,
    /// Bytes per nanosecond that a copy within the GPU's memory moves, read and written, measured in this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copy_GBps: Option<f64>,
    /// The share of that which the operation moves: what all ranks' inputs and outputs are, read and written once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of_copy: Option<f64>,
}

/// Microseconds of one operation: over iterations, each the slowest rank's.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Times {
    /// The percentiles of these nanoseconds.
    pub(crate) fn of(mut nanoseconds: Vec<f64>) -> Self {
        nanoseconds.sort_by(f64::total_cmp);
        let at = |of_thousand| round(percentile(&nanoseconds, of_thousand) / 1e3, 3);
        Self { min: at(0), p50: at(500), p99: at(990), max: at(1000) }
    }
}

/// The value that so many of a thousand do not exceed, of sorted ones; zero of none.
pub(crate) fn percentile(sorted: &[f64], of_thousand: usize) -> f64 {
    let index = (sorted.len() * of_thousand).div_ceil(1000).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}

/// Rounds to `digits` decimals, so that JSON stays readable, or to four significant digits where that is more of them: no quantity is
/// so small that nothing is left of it.
pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let significant = match value.abs() {
        size if size > 0.0 && size.is_finite() => 3 - size.log10().floor() as i32,
        _ => 0,
    };
    let scale = 10_f64.powi(digits.max(significant).min(MOST_DECIMALS));
    (value * scale).round() / scale
}

/// Beyond, the scale itself would be no number any more.
const MOST_DECIMALS: i32 = 300;

/// What a table shows besides the columns of nccl-tests and the percentiles.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Columns {
    pub(crate) offset: bool,
    /// The bare kernel's time and the share of it that was reached.
    pub(crate) floor: bool,
    pub(crate) round_trip: bool,
    /// What a GPU's row has besides.
    pub(crate) gpu: bool,
    /// What was done between nodes; always last, as names have any length.
    pub(crate) algorithm: bool,
}

/// The table's head.
pub(crate) fn header(columns: Columns) -> String {
    let names = format!(
        "{:>12} {:>12} {:>6} {:>9} {:>5} {:>3} {:>11} {:>11} {:>11} {:>11} {:>8} {:>8} {:>7}",
        "size",
        "count",
        "type",
        "redop",
        "root",
        "ip",
        "min",
        "time",
        "p99",
        "max",
        "algbw",
        "busbw",
        "#wrong"
    );
    let units = format!(
        "{:>12} {:>12} {:>6} {:>9} {:>5} {:>3} {:>11} {:>11} {:>11} {:>11} {:>8} {:>8} {:>7}",
        "(B)", "(elements)", "", "", "", "", "(us)", "(us, p50)", "(us)", "(us)", "(GB/s)", "(GB/s)", ""
    );
    let (mut names, mut units) = (format!("# {names}"), format!("# {units}"));
    if columns.offset {
        names += &format!(" {:>9}", "offset");
        units += &format!(" {:>9}", "(B)");
    }
    if columns.floor {
        names += &format!(" {:>11} {:>8}", "floor", "of_floor");
        units += &format!(" {:>11} {:>8}", "(us)", "(%)");
    }
    if columns.round_trip {
        names += &format!(" {:>11}", "round trip");
        units += &format!(" {:>11}", "(ns)");
    }
    if columns.gpu {
        names += &format!(" {:>8} {:>8}", "launch", "of_copy");
        units += &format!(" {:>8} {:>8}", "(us)", "(%)");
    }
    if columns.algorithm {
        names += "  algorithm";
    }
    format!("{names}\n{units}")
}

/// One line of the table.
pub(crate) fn line(row: &Row) -> String {
    let wrong = row.errors.map_or("N/A".to_owned(), |e| e.to_string());
    let root = if row.root < 0 { "-1".to_owned() } else { row.root.to_string() };
    let mut text = format!(
        "  {:>12} {:>12} {:>6} {:>9} {:>5} {:>3} {:>11} {:>11} {:>11} {:>11} {:>8} {:>8} {:>7}",
        row.bytes,
        row.count,
        row.datatype,
        row.reduction,
        root,
        if row.in_place { "in" } else { "out" },
        significant(row.time_us.min),
        significant(row.time_us.p50),
        significant(row.time_us.p99),
        significant(row.time_us.max),
        format!("{:.3}", row.algbw_GBps),
        format!("{:.3}", row.busbw_GBps),
        wrong
    );
    if let Some(Offset { input, output }) = row.offset {
        text += &format!(" {:>9}", format!("{input}+{output}"));
    }
    if let (Some(floor), Some(share)) = (row.floor_us, row.of_floor) {
        text += &format!(" {:>11} {:>8}", significant(floor), format!("{:.0}", share * 100.0));
    }
    if !row.round_trip_ns.is_empty() {
        let trips: Vec<String> = row.round_trip_ns.iter().map(|ns| format!("{ns:.0}")).collect();
        text += &format!(" {:>11}", trips.join("/"));
    }
    if row.memory.is_some() {
        let launch = row.launch_us.map_or("N/A".to_owned(), significant);
        let share = row.of_copy.map_or("N/A".to_owned(), |share| format!("{:.1}", share * 100.0));
        text += &format!(" {launch:>8} {share:>8}");
    }
    if row.nodes > 1 && !row.algorithm.is_empty() {
        text += &format!("  {}", row.algorithm);
    }
    text
}

/// A number with about four significant digits.
pub(crate) fn significant(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_hundred_values() {
        let times = Times::of((1..=100).map(|n| f64::from(n) * 1000.0).collect());
        assert_eq!((times.min, times.p50, times.p99, times.max), (1.0, 50.0, 99.0, 100.0));
        let none = Times::of(Vec::new());
        assert_eq!((none.min, none.max), (0.0, 0.0));
    }

    #[test]
    fn rounding_leaves_something_of_every_quantity() {
        for (value, digits, rounded) in [
            (3.246_128e-6, 5, 3.246e-6),
            (0.012_345_67, 5, 0.012_35),
            (1_234.567_89, 3, 1_234.568),
            (-0.000_123_456, 2, -0.000_123_5),
            (0.0, 4, 0.0),
        ] {
            assert_eq!(round(value, digits), rounded, "{value} to {digits}");
        }
        assert!(round(f64::MIN_POSITIVE, 3).is_finite() && round(f64::NAN, 3).is_nan());
    }
}
