//! Columns of tables of points.

use super::{
    super::result::{Point, Test},
    document::{Align, Column, Table},
    unit,
    view::{View, millions_a_second, title},
};

/// A column: its head, and what stands in it for a point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    name: &'static str,
    align: Align,
    cell: fn(&View<'_>, &Point) -> String,
}

const fn word(name: &'static str, cell: fn(&View<'_>, &Point) -> String) -> Field {
    Field { name, align: Align::Left, cell }
}

const fn field(name: &'static str, cell: fn(&View<'_>, &Point) -> String) -> Field {
    Field { name, align: Align::Right, cell }
}

const TEST: Field = word("test", |_, p| title(p.test).to_owned());
const PATH: Field = word("path", |_, p| p.path.clone());
const WAITING: Field = word("waiting", |_, p| p.polling.name().to_owned());
const SIZE: Field = field("size", |_, p| unit::size(p.bytes));
const P50: Field = field("p50", |_, p| or_dash(p.time_us.map(|time| time.p50), unit::time));
const P99: Field = field("p99", |_, p| or_dash(p.time_us.and_then(|time| time.p99), unit::time));
const P999: Field = field("p99.9", |_, p| or_dash(p.time_us.and_then(|time| time.p999), unit::time));
const SPREAD: Field = field("rounds' p50", |_, p| unit::spread(p.spread_us));
const MEAN: Field = field("mean", |_, p| or_dash(p.mean_us, unit::time));
const MEAN_SPREAD: Field = field("rounds' means", SPREAD.cell);
const GOODPUT: Field = field("goodput", |_, p| unit::rate(p.goodput_gb_s));
const MESSAGES: Field = field("messages", |_, p| or_dash(millions_a_second(p), unit::message_rate));
const CPU_GB: Field = field("CPU s/GB", |_, p| or_dash(p.costs.cpu_s_per_gb, unit::number));
const CPU_MILLION: Field = field("CPU s/million", |_, p| or_dash(p.costs.cpu_s_per_million, unit::number));
const CALLS: Field = field("system calls", |_, p| or_dash(p.costs.system_calls, unit::number));
const SWITCHES: Field = field("context switches", |_, p| or_dash(p.costs.context_switches, unit::number));
const INTERRUPTS: Field = field("interrupts", |_, p| or_dash(p.costs.interrupts, unit::number));
const IN_INTERRUPTS: Field = field("in interrupts", |_, p| or_dash(p.costs.interrupt_cpus, unit::share));
const COPIES: Field = field("our copies", |_, p| or_dash(p.costs.copies, unit::number));
const KERNEL_COPIES: Field = field("kernel's copies", |view, p| {
    let path = view.report.paths.iter().find(|path| path.name == p.path);
    // What it sent from where it lay it did not copy there.
    let saved = p.costs.sent_without_copy.unwrap_or_default();
    or_dash(path.map(|path| (path.kernel_copies - saved).max(0.0)), unit::number)
});
const OPERATIONS: Field = field("operations", |_, p| p.operations.to_string());

/// Everything about a point of a test; of one where many messages are under way at a time the whole was timed.
pub(super) fn all(test: Test) -> Vec<Field> {
    const WHERE: &[Field] = &[PATH, WAITING, SIZE];
    const TIMES: &[Field] = &[P50, P99, P999, SPREAD];
    const TIMES_OF_FLOWS: &[Field] = &[MEAN, MEAN_SPREAD];
    const REST: &[Field] =
        &[GOODPUT, CPU_GB, CPU_MILLION, CALLS, SWITCHES, INTERRUPTS, COPIES, KERNEL_COPIES, OPERATIONS];
    [WHERE, if test.is_flow() { TIMES_OF_FLOWS } else { TIMES }, REST].concat()
}

/// What it costs.
pub(super) const COSTS: &[Field] =
    &[PATH, WAITING, CPU_GB, CPU_MILLION, CALLS, SWITCHES, INTERRUPTS, IN_INTERRUPTS, COPIES, KERNEL_COPIES];
pub(super) const RATES: &[Field] = &[PATH, WAITING, SIZE, MESSAGES, GOODPUT, CPU_MILLION, CALLS];
pub(super) const LAYERS: &[Field] = &[TEST, PATH, WAITING, P50, P99, P999, SPREAD];

/// A value in words, or a dash where it was not counted.
pub(super) fn or_dash(value: Option<f64>, words: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), words)
}

/// A table of points.
pub(super) fn table<'p>(
    view: &View<'_>,
    caption: impl Into<String>,
    fields: &[Field],
    points: impl IntoIterator<Item = &'p Point>,
) -> Table {
    let head = fields.iter().map(|field| Column { name: field.name.to_owned(), align: field.align });
    let row = |point: &Point| fields.iter().map(|field| (field.cell)(view, point)).collect();
    let rows = points.into_iter().map(row).collect();
    Table { caption: caption.into(), head: head.collect(), rows, is_folded: false }
}

/// The points of a test in the order of paths, those of one size only if it is given.
pub(super) fn in_order<'a>(view: &'a View<'a>, test: Test, bytes: Option<u64>) -> Vec<&'a Point> {
    let points = view.series(test).into_iter().flat_map(|series| series.points);
    points.filter(|point| bytes.is_none_or(|bytes| point.bytes == bytes)).collect()
}

/// One number of each point of a test: a row for each size, a column for each path and way of waiting.
pub(super) fn by_size(view: &View<'_>, test: Test, caption: String, cell: fn(&Point) -> String) -> Table {
    let series = view.series(test);
    let names: Vec<String> =
        series.iter().map(|s| format!("{}, {}", s.route.name, s.polling.name())).collect();
    let head: Vec<&str> = ["size"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let rows = view.sizes(test).into_iter().map(|bytes| {
        let cells = series.iter().map(|s| {
            s.points.iter().find(|point| point.bytes == bytes).map_or("-".to_owned(), |point| cell(point))
        });
        [unit::size(bytes)].into_iter().chain(cells).collect()
    });
    Table::new(caption, 0, &head).with(rows)
}
