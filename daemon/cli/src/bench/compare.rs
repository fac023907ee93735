//! `ringway bench compare`: what changed between two runs, beyond the noise.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde::Serialize;

use super::result::{FORMAT, Point, Polling, Report, Spread, Test};
use crate::output;

/// Ratios of medians up to this are noise, however little rounds differ.
const RATIO_MIN: f64 = 1.05;
/// The rule, for people.
const RULE: &str = "A point has changed if its medians differ by more than 5 % and the rounds' medians of the two runs do not overlap.";

/// Tell what changed between two runs, beyond the noise.
///
/// A point (test, path, way of waiting, size) has changed if its medians differ by more than 5 % and the medians of the
/// two runs' rounds do not overlap. Warns when the runs are not comparable: another machine, other settings, or
/// processors that hand a cache line over in another time.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    /// The bench.json of the run before.
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// The bench.json of the run after.
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Which point.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Key {
    pub(crate) test: Test,
    pub(crate) path: String,
    pub(crate) polling: Polling,
    pub(crate) bytes: u64,
}

/// What became of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Improved,
    Regressed,
    /// Nothing beyond the noise.
    Same,
}

/// A point that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    #[serde(flatten)]
    pub(crate) key: Key,
    pub(crate) verdict: Verdict,
    /// Median, in microseconds, of A and of B.
    pub(crate) p50_us: [f64; 2],
    /// Least and most of the rounds' medians, of A and of B.
    pub(crate) p50_spread_us: [[f64; 2]; 2],
}

/// What changed from one run, A, to another, B.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) warnings: Vec<String>,
    pub(crate) points: Vec<Change>,
    pub(crate) only_in_a: Vec<Key>,
    pub(crate) only_in_b: Vec<Key>,
}

/// Reads a report.
///
/// # Errors
/// When the file cannot be read, is no report, or is of a newer form, as a sentence.
pub(crate) fn load(path: &Path) -> Result<Report, String> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("{name} is not JSON: {error}"))?;
    let form = value.get("format").and_then(serde_json::Value::as_u64);
    let form = form.ok_or_else(|| {
        format!("{name} is no report of `ringway bench`: it has no format; give the bench.json that it wrote")
    })?;
    if form > u64::from(FORMAT) {
        return Err(format!(
            "{name} is of format {form}, which a newer Ringway wrote; this one reads up to format {FORMAT}"
        ));
    }
    serde_json::from_value(value).map_err(|error| format!("{name} is no report of `ringway bench`: {error}"))
}

/// Compares the two files and prints what changed.
///
/// # Errors
/// When one cannot be read, as a sentence.
pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode, String> {
    let comparison = compare(&load(&args.before)?, &load(&args.after)?);
    if args.json {
        output::line(&serde_json::to_string_pretty(&comparison).map_err(|error| error.to_string())?);
    } else {
        comparison.lines().iter().for_each(|line| output::line(line));
    }
    Ok(ExitCode::SUCCESS)
}

/// Matches the points of two runs.
pub(crate) fn compare(a: &Report, b: &Report) -> Comparison {
    let (before, after) = (by_key(a), by_key(b));
    let keys: BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
    let mut comparison = Comparison { warnings: warnings(a, b), ..Comparison::default() };
    for key in keys {
        match (before.get(key), after.get(key)) {
            (Some(a), Some(b)) => comparison.points.push(change(key, a, b)),
            (Some(_), None) => comparison.only_in_a.push(key.clone()),
            _ => comparison.only_in_b.push(key.clone()),
        }
    }
    comparison
}

fn by_key(report: &Report) -> BTreeMap<Key, &Point> {
    let key = |p: &Point| Key { test: p.test, path: p.path.clone(), polling: p.polling, bytes: p.bytes };
    report.points.iter().map(|point| (key(point), point)).collect()
}

fn change(key: &Key, a: &Point, b: &Point) -> Change {
    let spread =
        |p: &Point| Spread { least: p.p50_spread_us[0], median: p.time_us.p50, most: p.p50_spread_us[1] };
    let verdict = match (differ(spread(a), spread(b)), b.time_us.p50 < a.time_us.p50) {
        (false, _) => Verdict::Same,
        (true, true) => Verdict::Improved,
        (true, false) => Verdict::Regressed,
    };
    let (p50_us, p50_spread_us) = ([a.time_us.p50, b.time_us.p50], [a.p50_spread_us, b.p50_spread_us]);
    Change { key: key.clone(), verdict, p50_us, p50_spread_us }
}

/// The rule: medians are further apart than noise takes them.
fn differ(a: Spread, b: Spread) -> bool {
    let (less, more) = (a.median.min(b.median), a.median.max(b.median));
    let overlap = a.least <= b.most && b.least <= a.most;
    !overlap && more > less * RATIO_MIN
}

/// Why times of the two may not compare.
fn warnings(a: &Report, b: &Report) -> Vec<String> {
    let bytes = |mtu: Option<u32>| mtu.map_or_else(String::new, |bytes| bytes.to_string());
    let connections = |report: &Report| report.settings.tcp_connections.max(1).to_string();
    let (m, n) = (&a.machine, &b.machine);
    let facts = [
        ("processor", m.cpu.clone(), n.cpu.clone()),
        ("number of processors", m.cpus.to_string(), n.cpus.to_string()),
        ("kernel", m.kernel.clone(), n.kernel.clone()),
        ("frequency governor", m.governor.clone(), n.governor.clone()),
        ("TCP congestion control", m.congestion.clone(), n.congestion.clone()),
        ("virtual machine", m.is_virtual.to_string(), n.is_virtual.to_string()),
        ("network", m.network.clone(), n.network.clone()),
        ("MTU", bytes(m.mtu_bytes), bytes(n.mtu_bytes)),
        ("quick run", a.settings.quick.to_string(), b.settings.quick.to_string()),
        ("number of rounds", a.settings.rounds.to_string(), b.settings.rounds.to_string()),
        ("number of TCP connections", connections(a), connections(b)),
        ("seconds of a measurement", a.settings.seconds.to_string(), b.settings.seconds.to_string()),
    ];
    let differing = facts.into_iter().filter(|(_, a, b)| a != b);
    let mut found: Vec<String> = differing
        .map(|(what, a, b)| {
            format!("the runs differ in the {what}: {} and {}", or_unknown(&a), or_unknown(&b))
        })
        .collect();
    if let (Some(a), Some(b)) = (a.hand_over_ns, b.hand_over_ns)
        && differ(a, b)
    {
        found.push(format!(
            "a cache line took {:.0} ns from one processor to another in A and {:.0} ns in B: the processors were not equally \
             far apart, so that short times do not compare",
            a.median, b.median
        ));
    }
    let ended = [("A", a), ("B", b)].into_iter().filter(|(_, report)| !report.complete);
    found.extend(ended.map(|(name, _)| format!("{name} was ended before everything was measured")));
    found
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

impl Comparison {
    fn count(&self, verdict: Verdict) -> usize {
        self.points.iter().filter(|change| change.verdict == verdict).count()
    }

    /// For people: warnings, a table of what changed or is in one run only, a summary.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.warnings.iter().map(|text| format!("warning: {text}")).collect();
        let rows = self.rows();
        if rows.len() > 1 {
            lines.extend(aligned(&rows));
        }
        lines.push(format!(
            "{} points in both: {} improved, {} regressed, {} within the noise; {} only in A, {} only in B",
            self.points.len(),
            self.count(Verdict::Improved),
            self.count(Verdict::Regressed),
            self.count(Verdict::Same),
            self.only_in_a.len(),
            self.only_in_b.len()
        ));
        lines.push(RULE.to_owned());
        lines
    }

    /// The table with its head, what changed most first.
    fn rows(&self) -> Vec<[String; COLUMNS]> {
        let heads =
            ["", "test", "path", "waiting", "bytes", "A (us)", "B (us)", "B/A", "A's rounds", "B's rounds"];
        let mut rows = vec![heads.map(str::to_owned)];
        for (verdict, name) in [(Verdict::Regressed, "regressed"), (Verdict::Improved, "improved")] {
            let mut changes: Vec<&Change> = self.points.iter().filter(|c| c.verdict == verdict).collect();
            changes.sort_by(|a, b| b.size().total_cmp(&a.size()));
            rows.extend(changes.into_iter().map(|change| {
                let [a, b] = change.p50_us;
                let [a_rounds, b_rounds] =
                    change.p50_spread_us.map(|[least, most]| format!("{least:.3}-{most:.3}"));
                let numbers =
                    [format!("{a:.3}"), format!("{b:.3}"), format!("{:.2}", b / a), a_rounds, b_rounds];
                row(name, &change.key, numbers)
            }));
        }
        for (keys, name) in [(&self.only_in_a, "only in A"), (&self.only_in_b, "only in B")] {
            rows.extend(keys.iter().map(|key| row(name, key, Default::default())));
        }
        rows
    }
}

impl Change {
    /// How much changed, in either direction.
    fn size(&self) -> f64 {
        let [a, b] = self.p50_us;
        (b / a).ln().abs()
    }
}

const COLUMNS: usize = 10;
/// The columns up to here are words, the others numbers.
const WORDS: usize = 4;

fn row(what: &str, key: &Key, numbers: [String; 5]) -> [String; COLUMNS] {
    let [a, b, ratio, a_rounds, b_rounds] = numbers;
    // What a file says does not reach the terminal's controls.
    let path = key.path.replace(char::is_control, "?");
    let (what, test, polling) = (what.to_owned(), key.test.name().to_owned(), key.polling.name().to_owned());
    [what, test, path, polling, key.bytes.to_string(), a, b, ratio, a_rounds, b_rounds]
}

fn aligned(rows: &[[String; COLUMNS]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column < WORDS { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
