//! What the page consists of.

use super::{
    super::{
        result::{Beside, Machine, Point, Report, Step, Test},
        rings::RING,
        steps::{VALIDATION, WITHIN_NOISE},
    },
    charts,
    document::{Document, Section, Table},
    fields::{self, COSTS, RATES},
    headline, polling, ratios, unit, verdict,
    view::{TESTS, View, cpu_s, is_rate, title},
    wake_up,
};

/// In the order of the page. What has no data gives no section.
const SECTIONS: [fn(&View<'_>) -> Option<Section>; 13] = [
    headline::section,
    over_sizes,
    ratios::section,
    references,
    wake_up::section,
    verdict::section,
    costs,
    message_rate,
    clients,
    steps,
    layers,
    polling::section,
    all_points,
];

/// All that is to be said.
pub(super) fn document(view: &View<'_>) -> Document {
    let sections = SECTIONS.iter().filter_map(|section| section(view)).chain([machine(view), reading()]);
    Document {
        title: "Kernel bypass against sockets".to_owned(),
        subtitle: subtitle(view.report),
        sections: sections.collect(),
    }
}

fn subtitle(report: &Report) -> String {
    let kind = if report.settings.quick { "quick run" } else { "full run" };
    let cpu = &report.machine.cpu;
    let on = if cpu.is_empty() { String::new() } else { format!(" on {cpu}") };
    let (date, took) = (unit::date(report.started_unix_s), unit::time(report.took_s * 1e6));
    let mut text = format!("Ringway {}, {date}, {kind} of {took}{on}.", report.ringway);
    if report.server.is_some() {
        text += &format!(" Between two machines, {}.", report.machine.network);
    }
    if !report.complete {
        text += " It was ended before everything was measured: this is what there is.";
    }
    text
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

/// Median times or rates of a test, a row for each size.
fn numbers(view: &View<'_>, test: Test) -> Table {
    let goodput = |point: &Point| unit::rate(point.goodput_gb_s);
    let p50 = |point: &Point| unit::time(point.us());
    if is_rate(test) {
        fields::by_size(view, test, format!("{}: goodput", title(test)), goodput)
    } else {
        fields::by_size(view, test, format!("{}: p50", title(test)), p50)
    }
}

fn plots_and_numbers(view: &View<'_>, heading: &'static str, tests: &[Test]) -> Section {
    let mut section = Section::new(heading);
    section.figures(tests.iter().filter_map(|test| charts::figure_over_sizes(view, *test)));
    tests.iter().for_each(|test| section.table(numbers(view, *test).folded()));
    section
}

fn over_sizes(view: &View<'_>) -> Option<Section> {
    plots_and_numbers(view, "Time and bandwidth over the size of messages", &[Test::Latency, Test::Bandwidth])
        .if_any()
}

/// What other tools say of the same link, beside the bare sockets, which wait like them.
fn references(view: &View<'_>) -> Option<Section> {
    let mut section = Section::new("Beside other tools");
    let value = |test, gb_s, us| if is_rate(test) { unit::rate(gb_s) } else { unit::time(us) };
    let rows = view.report.references.iter().filter_map(|reference| {
        let point = reference.point.as_ref()?;
        let sockets = view.points(point.test).filter(|p| p.path == "sockets" && p.polling == point.polling);
        let nearest = sockets.min_by_key(|p| p.bytes.abs_diff(point.bytes));
        let ours =
            nearest.map(|p| format!("{} at {}", value(p.test, p.goodput_gb_s, p.us()), unit::size(p.bytes)));
        let kind = if point.time_us.is_none() { " in the mean" } else { "" };
        let theirs = value(point.test, point.goodput_gb_s, point.us());
        Some(vec![
            reference.name.clone(),
            reference.version.clone(),
            reference.description.clone(),
            format!("{theirs} at {}{kind}", unit::size(point.bytes)),
            ours.unwrap_or_else(|| "-".to_owned()),
        ])
    });
    let head = ["tool", "version", "what", "it says", "bare sockets, blocking"];
    section.table(Table::new("", 3, &head).with(rows));
    section.list(beside(view));
    let missing = view.report.references.iter().filter_map(|reference| {
        Some(format!("{} did not measure: {}", reference.name, reference.missing.as_ref()?))
    });
    section.list(missing.collect());
    let mut section = section.if_any()?;
    section.text(
        "The tools took turns with all paths over the same link; they sleep while they wait, and a tool's run takes a second.",
    );
    Some(section)
}

/// How paths compare with the tools that they were measured beside.
fn beside(view: &View<'_>) -> Vec<String> {
    let told = view.report.references.iter().flat_map(|reference| {
        let is_rate = reference.point.as_ref().is_some_and(|point| is_rate(point.test));
        let what = if is_rate { "as much" } else { "as long" };
        reference.beside.iter().map(move |Beside { path, ratio }| {
            let [median, least, most] = [ratio.median, ratio.least, ratio.most].map(unit::number);
            format!("{path} {median} times {what} as {} (rounds: {least} to {most})", reference.name)
        })
    });
    let told: Vec<String> = told.collect();
    let all = unit::list(&told);
    told.first()
        .map(|_| format!("Blocking, with the same memory for every message as the tools have, for as long as the tool and just before or after it: {all}."))
        .into_iter()
        .collect()
}

fn message_rate(view: &View<'_>) -> Option<Section> {
    let mut section = Section::new("Message rate");
    let figures = view.sizes(Test::MessageRate).into_iter().filter_map(|bytes| {
        let of = (Test::MessageRate, bytes);
        charts::costs(view, "Messages a second", of, super::view::millions_a_second, unit::message_rate)
    });
    section.figures(figures);
    let points = fields::in_order(view, Test::MessageRate, None);
    section.table(fields::table(view, title(Test::MessageRate), RATES, points).folded());
    section.if_any()
}

fn clients(view: &View<'_>) -> Option<Section> {
    const TESTS: [Test; 4] = [Test::ClientLatency, Test::Allreduce, Test::AllGather, Test::AllToAll];
    let mut section = plots_and_numbers(view, "Client to client, and collectives", &TESTS).if_any()?;
    section.text(
        "The way of waiting is the daemons': clients look for a moment and then sleep. Where daemons that spin and clients are more than \
         there are processors they take them from each other.",
    );
    if view.report.settings.quick {
        section.text(
            "In a quick run collectives are measured with adaptive daemons alone, and clients of daemons that spin in all rounds of a \
             path before the next path's.",
        );
    }
    Some(section)
}

fn costs(view: &View<'_>) -> Option<Section> {
    const A_GB: &str = "CPU s for 1e9 bytes";
    const A_MILLION: &str = "CPU s for 1e6";
    let told = [
        (Test::Bandwidth, view.large_size(Test::Bandwidth), A_GB),
        (Test::Latency, view.small_size(Test::Latency), A_MILLION),
        (Test::MessageRate, view.small_size(Test::MessageRate), A_MILLION),
        (Test::ClientLatency, view.small_size(Test::ClientLatency), A_MILLION),
    ];
    let told: Vec<(Test, u64, &str)> =
        told.into_iter().filter_map(|(test, bytes, heading)| Some((test, bytes?, heading))).collect();
    let mut section = Section::new("What it costs");
    section.figures(told.iter().filter_map(|(test, bytes, heading)| {
        let operations = match test {
            Test::Bandwidth => "",
            Test::MessageRate => " messages",
            Test::ClientLatency => " operations between clients",
            _ => " operations between devices",
        };
        charts::costs(view, &format!("{heading}{operations}"), (*test, *bytes), cpu_s, unit::number)
    }));
    for (test, bytes, _) in &told {
        let caption = format!("{}, {}", title(*test), unit::size(*bytes));
        section
            .table(fields::table(view, caption, COSTS, fields::in_order(view, *test, Some(*bytes))).folded());
    }
    section.list(view.large_size(Test::Bandwidth).map_or_else(Vec::new, |bytes| without_copy(view, bytes)));
    section.list(in_interrupts(view, &told).into_iter().collect());
    let mut section = section.if_any()?;
    section.text(
        "CPU seconds are those of both ends and their daemons together. System calls, context switches and interrupts are \
         of one operation, interrupts those of the whole machine meanwhile. Copies are of each byte of payload: ours are \
         counted, the kernel's follow from what the path is and how it works here, less what was sent without a copy.",
    );
    uncounted_copies(view).into_iter().for_each(|why| section.text(why));
    Some(section)
}

/// Why copies of clients' bytes are not told.
fn uncounted_copies(view: &View<'_>) -> Option<&'static str> {
    const TESTS: [Test; 4] = [Test::ClientLatency, Test::Allreduce, Test::AllGather, Test::AllToAll];
    let mut points = TESTS.into_iter().flat_map(|test| view.points(test));
    points.any(|point| point.costs.copies.is_none()).then_some(
        "Between clients our copies are not counted: the daemons' devices count theirs, but not the daemons what they copy \
         between buffers and devices, nor ranks what they copy in memory that they share, where copying and reducing are one. \
         The devices' share alone would look like all.",
    )
}

/// Where interrupts kept the machine busiest.
fn in_interrupts(view: &View<'_>, told: &[(Test, u64, &str)]) -> Option<String> {
    let points = told.iter().flat_map(|(test, bytes, _)| fields::in_order(view, *test, Some(*bytes)));
    let busy =
        points.filter_map(|point| Some((point, point.costs.interrupt_cpus.filter(|cpus| *cpus > 0.0)?)));
    let (most, cpus) = busy.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!(
        "Interrupts (irq and softirq) kept {} of a processor of the whole machine busy where most ({}, {}, {}, {}). That is counted \
         in ticks of the clock, and may be in no process's CPU seconds.",
        unit::share(cpus),
        title(most.test),
        most.path,
        most.polling.name(),
        unit::size(most.bytes)
    ))
}

/// Where the kernel was asked to send without a copy, and what it made of that.
fn without_copy(view: &View<'_>, bytes: u64) -> Vec<String> {
    let points = fields::in_order(view, Test::Bandwidth, Some(bytes)).into_iter();
    let told = points.filter_map(|point| {
        let (not, after_all) = (point.costs.sent_without_copy?, point.costs.copied_after_all?);
        let percent = |share: f64| unit::number(share * 100.0);
        (not + after_all > 0.0).then(|| {
            format!(
                "Of messages of {} over {} ({}) the kernel sent {} % of the bytes from where they lay; {} % it copied although it \
                 was asked to send them like that, as it has to where packets stay on the host.",
                unit::size(bytes),
                point.path,
                point.polling.name(),
                percent(not),
                percent(after_all)
            )
        })
    });
    told.collect()
}

/// The paths that have steps, in their order.
fn steps_by_path(report: &Report) -> Vec<(&str, Vec<&Step>)> {
    let mut paths: Vec<(&str, Vec<&Step>)> = Vec::new();
    for step in &report.steps {
        match paths.iter_mut().find(|(path, _)| *path == step.path) {
            Some((_, steps)) => steps.push(step),
            None => paths.push((&step.path, vec![step])),
        }
    }
    paths
}

fn steps(view: &View<'_>) -> Option<Section> {
    let paths = steps_by_path(view.report);
    let mut section = Section::new("A message's way, step by step");
    // Side by side the bypass's steps may be too short to be seen: each path has a picture of its own as well.
    let together = Some(paths.as_slice()).filter(|paths| paths.len() > 1);
    section.figures(together.and_then(|paths| charts::steps(view, "Step by step, on one scale", paths)));
    section.figures(paths.chunks(1).filter_map(|path| charts::steps(view, "Step by step, by number", path)));
    for (path, steps) in &paths {
        let rows = steps.iter().enumerate().map(|(index, step)| {
            let why = if step.is_lost { WITHIN_NOISE } else { "not separable" };
            let time = step.us.map_or_else(|| why.to_owned(), unit::time);
            vec![(index + 1).to_string(), step.name.clone(), time, step.how.clone()]
        });
        let table = Table::new(*path, 2, &["", "step", "time", "how it was measured"]);
        section.table(table.with_words_last().with(rows));
    }
    let mut section = section.if_any()?;
    if view.report.steps.iter().any(|step| step.us.is_none() && !step.is_lost) {
        section.text("What is not separable takes time as well, which is in that of other steps.");
    }
    Some(section)
}

/// What validation adds to a ring: as the steps have it, which comes from pairs of measurements, else what medians differ by.
fn validation_us(view: &View<'_>) -> Option<f64> {
    let is_it = |step: &&Step| (step.path.as_str(), step.name.as_str()) == (RING, VALIDATION);
    if let Some(step) = view.report.steps.iter().find(is_it) {
        return step.us;
    }
    let p50 = |test| Some(view.points(test).next()?.us());
    Some(p50(Test::CheckedRing)? - p50(Test::Ring)?)
}

fn layers(view: &View<'_>) -> Option<Section> {
    const LAYERS: [Test; 4] = [Test::BareRing, Test::Ring, Test::CheckedRing, Test::DaemonNoop];
    let mut section = Section::new("What the layers add");
    let told = view.points(Test::DaemonNoop).filter_map(|noop| {
        let times = |test| {
            let ring = view.points(test).find(|ring| ring.polling == noop.polling)?;
            unit::ratio(noop.us(), 2.0 * ring.us()).map(unit::number)
        };
        Some(format!(
            "A daemon that is asked for nothing answers in {} ({}): {} times the round trip through a bare ring, {} times that through \
             a client's ring alone.",
            unit::time(noop.us()),
            noop.polling.name(),
            times(Test::BareRing)?,
            times(Test::Ring)?
        ))
    });
    let p50 = |test| Some(view.points(test).next()?.us());
    // Where a part is lost in the noise it is not told.
    let ring = p50(Test::Ring).zip(p50(Test::BareRing)).map(|(ring, bare)| ring - bare);
    let protection =
        ring.zip(validation_us(view)).filter(|(ring, validation)| *ring > 0.0 && *validation > 0.0);
    let protection = protection.map(|(ring, validation)| {
        let [ring, validation] = [ring, validation].map(unit::time);
        format!(
            "One way through a bare ring of two threads that trust each other takes {}; that a client's ring holds against a \
             hostile peer and completes what was submitted adds {ring}, validation of what is submitted {validation}.",
            p50(Test::BareRing).map_or_else(String::new, unit::time)
        )
    });
    section.list(protection.into_iter().chain(told).collect());
    let points = LAYERS.into_iter().flat_map(|test| fields::in_order(view, test, None));
    section.table(fields::table(view, "", fields::LAYERS, points));
    section.if_any()
}

fn all_points(view: &View<'_>) -> Option<Section> {
    let mut section = Section::new("Everything that was measured");
    for test in TESTS {
        let points = fields::in_order(view, test, None);
        let caption = format!("{}: {}", title(test), unit::count(points.len(), "point"));
        section.table(fields::table(view, caption, &fields::all(test), points).folded());
    }
    section.if_any()
}

fn of_machine(machine: &Machine) -> Vec<Vec<String>> {
    let Machine { cpu, cpus, kernel, governor, congestion, is_virtual, memory_bytes, .. } = machine;
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    vec![
        row("processor", or_unknown(cpu).to_owned()),
        row("processors used", cpus.to_string()),
        row("virtual machine", if *is_virtual { "yes" } else { "no" }.to_owned()),
        row("frequency governor", or_unknown(governor).to_owned()),
        row("memory", unit::size(*memory_bytes)),
        row("kernel", or_unknown(kernel).to_owned()),
        row("TCP congestion control", or_unknown(congestion).to_owned()),
    ]
}

fn machine(view: &View<'_>) -> Section {
    let Report { machine, server, settings, hand_over_ns, .. } = view.report;
    let mut section = Section::new("Machine, settings, paths");
    let mut rows = of_machine(machine);
    // One column for each machine.
    let head: &[&str] = if server.is_some() { &["", "this machine", "the server's"] } else { &["", ""] };
    if let Some(server) = server {
        rows.iter_mut()
            .zip(of_machine(server))
            .for_each(|(row, other)| row.extend(other.into_iter().skip(1)));
    }
    section.table(Table::new("", 3, head).with(rows));
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let settings = [
        row("network", or_unknown(&machine.network).to_owned()),
        row("MTU", machine.mtu_bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{bytes} B"))),
        row(
            "cache line's hand-over",
            hand_over_ns.as_ref().map_or_else(|| "not measured".to_owned(), unit::hand_over),
        ),
        row("rounds", settings.rounds.to_string()),
        row("each measurement", unit::time(settings.seconds * 1e6)),
        row("connections of tcp and tcp-epoll", settings.tcp_connections.max(1).to_string()),
    ];
    section.table(Table::new("", 2, &["", ""]).with(settings));
    let paths = &view.report.paths;
    let side = |through_kernel: bool| if through_kernel { "through" } else { "past" };
    let measured = paths.iter().filter(|path| path.missing.is_none()).map(|path| {
        let (name, what) = (path.name.clone(), path.description.clone());
        vec![name, side(path.through_kernel).to_owned(), what, unit::number(path.kernel_copies)]
    });
    let head = ["path", "the kernel", "what it is", "kernel's copies"];
    section.table(Table::new("Paths that were measured", 3, &head).with(measured));
    let missing = paths.iter().filter_map(|path| {
        Some(vec![path.name.clone(), side(path.through_kernel).to_owned(), path.missing.clone()?])
    });
    section.table(
        Table::new("Paths that were not measured", 3, &["path", "the kernel", "why not"]).with(missing),
    );
    section
}

fn reading() -> Section {
    let mut section = Section::new("How to read this");
    section.list(
        [
            "Paths take turns in every round, so that whatever changes on the machine meanwhile meets all of them.",
            "A time is the median over rounds of each round's percentile; where many messages are under way at a time it is the mean. \
             There is no p99 of fewer than 100 times in a round, and no p99.9 of fewer than 1000. The spread is from the least to the most of the \
             rounds' medians; two times whose spreads overlap may as well be the same.",
            "Paths are compared with paths that wait in the same way, unless it says otherwise.",
            "Goodput is payload bytes per second: 1 GB is 1e9 bytes, 1 KiB is 1024.",
            "Every number was measured here or follows from numbers measured here, but for the kernel's copies, which follow from \
             what a path is.",
        ]
        .map(str::to_owned)
        .to_vec(),
    );
    section
}
