//! Pictures of a report.

use std::collections::BTreeSet;

use super::{
    super::result::{Point, Polling, Step, Test},
    axis::Quantity,
    bars::{self, Bar, Part},
    plot::{self, Key, Keys, Line, Look, Mark, Plot, Sample},
    unit,
    view::{Family, POLLINGS, Series, View, is_rate, title},
    wake_up::WakeUp,
};

/// Times or rates of a test over sizes.
fn over_sizes(view: &View<'_>, test: Test, pollings: &[Polling]) -> Option<Plot> {
    let lines =
        view.series(test).iter().filter(|series| pollings.contains(&series.polling)).map(line).collect();
    let quantity = if is_rate(test) { Quantity::Rate } else { Quantity::Time };
    Plot::of(&format!("{}, over size", title(test)), lines, Quantity::Bytes, quantity)
}

fn line(series: &Series<'_>) -> Line {
    let marks = series.points.iter().map(|point| mark(point)).collect();
    Line { look: Look::of(series.route, series.polling), marks }
}

fn mark(point: &Point) -> Mark {
    let x = point.bytes as f64;
    let name = format!("{}, {}, {}", point.path, point.polling.name(), unit::size(point.bytes));
    if is_rate(point.test) {
        let told = format!("{name}: {}", unit::rate(point.goodput_gb_s));
        return Mark { x, y: point.goodput_gb_s, spread: None, shape: None, told };
    }
    let told = format!("{name}: {} ({})", unit::time(point.us()), unit::spread(point.spread_us));
    let spread = point.spread_us.iter().all(|us| Quantity::Time.can_show(*us)).then_some(point.spread_us);
    Mark { x, y: point.us(), spread, shape: None, told }
}

/// What tells the paths and these ways of waiting apart, as far as the tests have them.
fn keys(view: &View<'_>, tests: &[Test], pollings: &[Polling]) -> Vec<Keys> {
    let sample = Sample::Line;
    let mut measured: Vec<Series<'_>> = tests.iter().flat_map(|test| view.series(*test)).collect();
    measured.retain(|series| pollings.contains(&series.polling));
    let paths = |heading, family| {
        let routes = view.routes.iter().filter(|route| route.family == family);
        let routes = routes.filter(|route| measured.iter().any(|series| series.route == *route));
        let key = |route| (Look::of(route, Polling::Spin), route.name.to_owned());
        let entries = routes.map(key).map(|(look, label)| Key { look, sample, label });
        Keys { heading, entries: entries.collect() }
    };
    let used = pollings.iter().filter(|polling| measured.iter().any(|s| s.polling == **polling));
    let waiting = used.map(|p| Key { look: Look::waiting("plain", *p), sample, label: p.name().to_owned() });
    vec![
        paths("bypass", Family::Bypass),
        paths("kernel", Family::Kernel),
        paths("other", Family::Other),
        Keys { heading: "waiting", entries: waiting.collect() },
    ]
}

/// The plot of a test with its legend.
pub(super) fn figure_over_sizes(view: &View<'_>, test: Test) -> Option<String> {
    Some(plot::figure(&over_sizes(view, test, &POLLINGS)?, &keys(view, &[test], &POLLINGS)))
}

/// The picture that stands for the whole report.
pub(super) fn picture(view: &View<'_>, heading: &str) -> String {
    const TESTS: [Test; 2] = [Test::Latency, Test::Bandwidth];
    // Adaptive polling is as fast as the one or the other, so that its lines would hide theirs.
    const SHOWN: [Polling; 2] = [Polling::Spin, Polling::Block];
    let plots: Vec<Plot> = TESTS.iter().filter_map(|test| over_sizes(view, *test, &SHOWN)).collect();
    let cpu = &view.report.machine.cpu;
    let heading = if cpu.is_empty() { heading.to_owned() } else { format!("{heading}, on {cpu}") };
    plot::picture(&heading, &plots, &keys(view, &TESTS, &SHOWN))
}

/// A bar for every path and way of waiting at one size, of what was counted there.
pub(super) fn costs(
    view: &View<'_>,
    heading: &str,
    (test, bytes): (Test, u64),
    value: fn(&Point) -> Option<f64>,
    words: fn(f64) -> String,
) -> Option<String> {
    let mut drawn = Vec::new();
    for series in view.series(test) {
        let Some(point) = series.points.iter().find(|point| point.bytes == bytes) else { continue };
        let Some(length) = value(point) else { continue };
        let label = format!("{}, {}", series.route.name, series.polling.name());
        let (look, told) = (Look::of(series.route, series.polling), format!("{label}: {}", words(length)));
        let parts = vec![Part { length, look, number: None, told }];
        drawn.push(Bar { label, parts, value: words(length) });
    }
    let heading = format!("{heading}, {}", unit::size(bytes));
    bars::figure(&heading, &drawn, &[])
}

/// What times of blocking paths are made of, as far as one adds to the other.
pub(super) fn wake_ups(heading: &str, found: &[WakeUp<'_>]) -> Option<String> {
    let looks =
        ["bypass bypass-0", "kernel kernel-0", "wake"].map(|class| Look::waiting(class, Polling::Spin));
    let names = ["fastest bypass path", "the kernel's path", "wake-up"];
    let bar = |of: &WakeUp<'_>| {
        let lengths = [of.bypass_us?, of.kernel_us()?, of.wake_up_us()];
        let parts = lengths.into_iter().zip(looks.clone()).zip(names).map(|((length, look), name)| {
            let told = format!("{}, {name}: {}", of.path, unit::time(length));
            Part { length, look, number: None, told }
        });
        let all_add = lengths.iter().all(|length| *length >= 0.0);
        all_add.then(|| Bar {
            label: of.path.to_owned(),
            parts: parts.collect(),
            value: unit::time(of.block_us),
        })
    };
    let drawn: Vec<Bar> = found.iter().filter(|of| of.family == Family::Kernel).filter_map(bar).collect();
    let entries = looks.into_iter().zip(names);
    let entries = entries.map(|(look, name)| Key { look, sample: Sample::Bar, label: name.to_owned() });
    bars::figure(heading, &drawn, &[Keys { heading: "", entries: entries.collect() }])
}

/// Steps as a bar shows them, with their places in the table and their lengths. One that is taken off is time in which the
/// two before it go on together: it stands between what is left of them, so that the bar is as long as all take.
fn one_after_another<'a>(steps: &[&'a Step]) -> Vec<(usize, &'a Step, f64)> {
    let mut drawn: Vec<(usize, &Step, f64)> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let Some(us) = step.us else { continue };
        let mut length = us;
        let mut at = drawn.len();
        if let (true, [.., (_, _, first), (_, _, second)]) = (us < 0.0, drawn.as_mut_slice()) {
            let whole = *first + *second + us;
            length = whole.min(-us);
            let alone = (whole - length).max(0.0);
            *second = (*second - length).clamp(0.0, alone);
            *first = alone - *second;
            at -= 1;
        }
        drawn.insert(at, (index, step, length));
    }
    drawn
}

/// The steps of every path that have a time, one after the other.
pub(super) fn steps(view: &View<'_>, heading: &str, paths: &[(&str, Vec<&Step>)]) -> Option<String> {
    let bar = |(path, steps): &(&str, Vec<&Step>)| {
        let route = view.routes.iter().find(|route| route.name == *path);
        let look = route.map_or_else(
            || Look::waiting("other other-0", Polling::Spin),
            |route| Look::of(route, Polling::Spin),
        );
        let parts = one_after_another(steps).into_iter().map(|(index, step, length)| {
            let told = format!("{}: {}", step.name, unit::time(length));
            Part { length, look: look.clone(), number: Some(index + 1), told }
        });
        let parts: Vec<Part> = parts.collect();
        let total = parts.iter().map(|part| part.length).sum();
        Bar { label: (*path).to_owned(), parts, value: unit::time(total) }
    };
    let drawn: Vec<Bar> = paths.iter().map(bar).filter(|bar| !bar.parts.is_empty()).collect();
    bars::figure(heading, &drawn, &[])
}

/// The least share of a processor that the curve of polling shows.
pub(super) const CPU_SHARE_MIN: f64 = 1e-3;

/// Times of calls over what their daemon takes of a processor.
pub(super) fn polling(view: &View<'_>) -> Option<String> {
    let points = &view.report.polling;
    let loads: BTreeSet<u64> =
        points.iter().filter(|p| p.time_us.is_some()).map(|p| load_order(p.load)).collect();
    let shape = |load: f64| loads.iter().position(|other| *other == load_order(load));
    let used = POLLINGS.into_iter().filter(|mode| points.iter().any(|p| p.polling == *mode));
    let looks: Vec<(Polling, Look)> = used
        .enumerate()
        .map(|(index, mode)| (mode, Look::waiting(&format!("bypass bypass-{index}"), mode)))
        .collect();
    let line = |(mode, look): &(Polling, Look)| {
        let mut own: Vec<_> = points.iter().filter(|p| p.polling == *mode).collect();
        own.sort_by(|a, b| a.load.total_cmp(&b.load));
        let marks = own.into_iter().filter_map(|p| {
            let (x, y) = (p.daemon_cpus.max(CPU_SHARE_MIN), p.time_us?.p50);
            let (load, cpus) = (unit::share(p.load), unit::share(p.daemon_cpus));
            let achieved = p.achieved_load.filter(|_| p.is_off());
            let achieved =
                achieved.map_or_else(String::new, |load| format!(" ({} achieved)", unit::share(load)));
            let time = unit::time(y);
            let told = format!("{}, load {load}{achieved}: {time} with {cpus} of a processor", mode.name());
            Some(Mark { x, y, spread: None, shape: shape(p.load), told })
        });
        Line { look: look.clone(), marks: marks.collect() }
    };
    let lines: Vec<Line> = looks.iter().map(line).collect();
    let plot =
        Plot::of("A call's time (p50) over the daemon's processor", lines, Quantity::Share, Quantity::Time)?;
    let modes = looks.into_iter().map(|(mode, look)| Key {
        look,
        sample: Sample::Line,
        label: mode.name().to_owned(),
    });
    let marks = loads.iter().enumerate().map(|(shape, load)| {
        let look = Look::waiting("plain", Polling::Spin).shaped(shape);
        Key { look, sample: Sample::Marker, label: unit::share(f64::from_bits(*load)) }
    });
    let groups = [
        Keys { heading: "waiting", entries: modes.collect() },
        Keys { heading: "load", entries: marks.collect() },
    ];
    Some(plot::figure(&plot, &groups))
}

/// Shares that are not negative are in the order of their bits.
fn load_order(load: f64) -> u64 {
    load.abs().to_bits()
}
