//! `ringway bench compare`: what changed between two runs, beyond the noise.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde::Serialize;

use super::{
    noise::{self, RULE},
    result::{FORMAT, Point, Polling, Report, Spread, Test},
};
use crate::output;

/// Tell what changed between two runs, beyond the noise.
///
/// Of each point (test, path, way of waiting, size) it compares the time, or goodput, the time's p99 and the processor time, as
/// each round of the two runs found them: a rank test says what is beyond chance, as far as the number of rounds lets it.
/// Of many points some seem to have changed even so: up to one in fifty. Warns when the runs are not comparable: another
/// machine, other settings, or processors that hand a cache line over in another time.
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
    /// Exit with status 1 if something got worse.
    #[arg(long)]
    fail_on_regression: bool,
}

/// Which point.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Key {
    pub(crate) test: Test,
    pub(crate) path: String,
    pub(crate) polling: Polling,
    pub(crate) bytes: u64,
}

/// What is compared of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Aspect {
    /// The median time, in microseconds.
    Time,
    /// In place of it, where many messages are under way at a time: 1e9 bytes a second.
    Goodput,
    /// The time's 99th percentile, in microseconds.
    P99,
    /// Processor time of one operation, in microseconds.
    Cpu,
}

const ASPECTS: [Aspect; 4] = [Aspect::Time, Aspect::Goodput, Aspect::P99, Aspect::Cpu];

impl Aspect {
    /// For the table, with the unit.
    const fn name(self) -> &'static str {
        match self {
            Self::Time => "p50 (us)",
            Self::Goodput => "GB/s",
            Self::P99 => "p99 (us)",
            Self::Cpu => "CPU (us)",
        }
    }

    /// Of each round; `None` where it was not measured.
    fn values(self, point: &Point) -> Option<Vec<f64>> {
        let is_flow = point.test.is_flow();
        match self {
            Self::Time if !is_flow => Some(point.times_us()),
            Self::Goodput if is_flow => {
                Some(point.times_us().into_iter().map(|us| point.bytes as f64 / 1e3 / us).collect())
            }
            Self::P99 => point.rounds.iter().map(|round| round.p99_us).collect(),
            Self::Cpu => point.rounds.iter().map(|round| round.cpu_s_per_million).collect(),
            _ => None,
        }
    }

    /// Whether the second of two medians is better.
    fn is_better(self, [a, b]: [f64; 2]) -> bool {
        if self == Self::Goodput { b > a } else { b < a }
    }
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

/// Something that both runs have measured of a point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    #[serde(flatten)]
    pub(crate) key: Key,
    pub(crate) aspect: Aspect,
    pub(crate) verdict: Verdict,
    /// Of the rounds' values, of A and of B.
    pub(crate) median: [f64; 2],
    /// The least and the most of them, of A and of B.
    pub(crate) spread: [[f64; 2]; 2],
}

/// What changed from one run, A, to another, B.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) warnings: Vec<String>,
    pub(crate) changes: Vec<Change>,
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
    serde_json::from_value(value)
        .map(Report::upgraded)
        .map_err(|error| format!("{name} is no report of `ringway bench`: {error}"))
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
    let has_failed = args.fail_on_regression && comparison.count(Verdict::Regressed) > 0;
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Matches the points of two runs.
pub(crate) fn compare(a: &Report, b: &Report) -> Comparison {
    let (before, after) = (by_key(a), by_key(b));
    let keys: BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
    let mut comparison = Comparison { warnings: warnings(a, b), ..Comparison::default() };
    for key in keys {
        match (before.get(key), after.get(key)) {
            (Some(a), Some(b)) => comparison.changes.extend(changes(key, a, b)),
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

fn changes(key: &Key, a: &Point, b: &Point) -> impl Iterator<Item = Change> {
    ASPECTS.into_iter().filter_map(move |aspect| {
        let known = |point| aspect.values(point).filter(|values| !values.is_empty());
        let (a, b) = (known(a)?, known(b)?);
        let differs = noise::differ(&a, &b);
        let [a, b] = [a, b].map(Spread::of);
        let median = [a.median, b.median];
        let verdict = match (differs, aspect.is_better(median)) {
            (false, _) => Verdict::Same,
            (true, true) => Verdict::Improved,
            (true, false) => Verdict::Regressed,
        };
        let spread = [a, b].map(|of| [of.least, of.most]);
        Some(Change { key: key.clone(), aspect, verdict, median, spread })
    })
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
        && are_apart(a, b)
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

/// Whether the machine did not do the same all the time: this is said too often rather than too seldom.
fn are_apart(a: Spread, b: Spread) -> bool {
    let (less, more) = (a.median.min(b.median), a.median.max(b.median));
    let overlap = a.least <= b.most && b.least <= a.most;
    !overlap && more > less * 1.05
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

impl Comparison {
    fn count(&self, verdict: Verdict) -> usize {
        self.changes.iter().filter(|change| change.verdict == verdict).count()
    }

    /// For people: warnings, a table of what changed or is in one run only, a summary.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.warnings.iter().map(|text| format!("warning: {text}")).collect();
        let rows = self.rows();
        if rows.len() > 1 {
            lines.extend(aligned(&rows));
        }
        lines.push(format!(
            "{} values in both: {} improved, {} regressed, {} within the noise; points: {} only in A, {} only in B",
            self.changes.len(),
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
            ["", "test", "path", "waiting", "what", "bytes", "A", "B", "B/A", "A's rounds", "B's rounds"];
        let mut rows = vec![heads.map(str::to_owned)];
        for (verdict, name) in [(Verdict::Regressed, "regressed"), (Verdict::Improved, "improved")] {
            let mut changes: Vec<&Change> = self.changes.iter().filter(|c| c.verdict == verdict).collect();
            changes.sort_by(|a, b| b.size().total_cmp(&a.size()));
            rows.extend(changes.into_iter().map(|change| {
                let [a, b] = change.median;
                let [a_rounds, b_rounds] = change.spread.map(|[least, most]| format!("{least:.3}-{most:.3}"));
                let numbers =
                    [format!("{a:.3}"), format!("{b:.3}"), format!("{:.2}", b / a), a_rounds, b_rounds];
                row(name, &change.key, change.aspect.name(), numbers)
            }));
        }
        for (keys, name) in [(&self.only_in_a, "only in A"), (&self.only_in_b, "only in B")] {
            rows.extend(keys.iter().map(|key| row(name, key, "", Default::default())));
        }
        rows
    }
}

impl Change {
    /// How much changed, in either direction.
    fn size(&self) -> f64 {
        let [a, b] = self.median;
        (b / a).ln().abs()
    }
}

const COLUMNS: usize = 11;
/// The columns up to here are words, the others numbers.
const WORDS: usize = 5;

fn row(what: &str, key: &Key, aspect: &str, numbers: [String; 5]) -> [String; COLUMNS] {
    let [a, b, ratio, a_rounds, b_rounds] = numbers;
    // What a file says does not reach the terminal's controls.
    let path = key.path.replace(char::is_control, "?");
    let (what, test, polling) = (what.to_owned(), key.test.name().to_owned(), key.polling.name().to_owned());
    let (aspect, bytes) = (aspect.to_owned(), key.bytes.to_string());
    [what, test, path, polling, aspect, bytes, a, b, ratio, a_rounds, b_rounds]
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
