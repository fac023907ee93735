//! What a terminal shows at the end.

use super::result::{Beside, Costs, Percentiles, Point, Report, Test, Told};
use crate::{output, perf::significant};

/// The tests, with what their operation is.
const TESTS: [(Test, &str); 11] = [
    (Test::BareRing, "bare ring, half round trip"),
    (Test::Ring, "client's ring, half round trip"),
    (Test::CheckedRing, "ring with validation, half round trip"),
    (Test::DaemonNoop, "a call that asks the daemon for nothing"),
    (Test::Latency, "device to device, half round trip"),
    (Test::Bandwidth, "device to device, one way"),
    (Test::MessageRate, "device to device, small messages one way"),
    (Test::ClientLatency, "client to client, half round trip"),
    (Test::Allreduce, "allreduce of two ranks"),
    (Test::AllGather, "all_gather of two ranks"),
    (Test::AllToAll, "all_to_all of two ranks"),
];

/// One line for each point, by test.
pub(super) fn print(report: &Report) {
    let title = [
        "bytes",
        "path",
        "waiting",
        "p50 (us)",
        "p99 (us)",
        "p99.9 (us)",
        "GB/s",
        "CPU (us)",
        "calls",
        "switches",
    ];
    for (test, what) in TESTS {
        let points: Vec<&Point> = report.points.iter().filter(|point| point.test == test).collect();
        if points.is_empty() {
            continue;
        }
        output::line(&format!("# {what}"));
        output::line(&format!("# {}", row(title.map(str::to_owned)).trim_start_matches("  ")));
        for point in points {
            output::line(&row(cells(point)));
        }
    }
    if let Some(line) = report.hand_over_ns {
        output::line(&format!(
            "# a cache line takes {:.0} ns one way ({:.0} to {:.0} during this run)",
            line.median, line.least, line.most
        ));
    }
    for reference in &report.references {
        if let Some(point) = &reference.point {
            output::line(&format!("# beside that: {} ({})", reference.name, reference.description));
            output::line(&row(cells_of_tool(&reference.name, point)));
        }
        for Beside { path, ratio } in &reference.beside {
            output::line(&format!(
                "# {path}, blocking, for as long: {} times {}'s (rounds: {} to {})",
                significant(ratio.median),
                reference.name,
                significant(ratio.least),
                significant(ratio.most)
            ));
        }
    }
    for path in &report.paths {
        if let Some(why) = &path.missing {
            output::line(&format!("# not measured: {}: {why}", path.name));
        }
    }
    for reference in &report.references {
        if let Some(why) = &reference.missing {
            output::line(&format!("# no reference: {}: {why}", reference.name));
        }
    }
    if !report.complete {
        output::line("# interrupted: what was measured until then");
    }
}

fn cells(point: &Point) -> [String; 10] {
    let Costs { cpu_s_per_million, system_calls, context_switches, .. } = point.costs;
    let cost = |value: Option<f64>| value.map_or("-".to_owned(), significant);
    let [p50, p99, p999] = times(point.time_us, point.mean_us);
    let goodput = if point.bytes > 0 { significant(point.goodput_gb_s) } else { "-".to_owned() };
    [
        point.bytes.to_string(),
        point.path.clone(),
        point.polling.name().to_owned(),
        p50,
        p99,
        p999,
        goodput,
        cost(cpu_s_per_million),
        cost(system_calls),
        cost(context_switches),
    ]
}

/// Percentiles, or the mean in the first one's place.
fn times(time_us: Option<Percentiles>, mean_us: Option<f64>) -> [String; 3] {
    let of = |us: Option<f64>| us.map_or("-".to_owned(), significant);
    match (time_us, mean_us) {
        (Some(time), _) => [Some(time.p50), time.p99, time.p999].map(of),
        (None, Some(mean)) => [format!("mean {}", significant(mean)), of(None), of(None)],
        (None, None) => [None; 3].map(of),
    }
}

/// What a tool says: what it costs was not counted.
fn cells_of_tool(name: &str, told: &Told) -> [String; 10] {
    let dash = || "-".to_owned();
    let [p50, p99, p999] = times(told.time_us, told.mean_us);
    let (bytes, waiting) = (told.bytes.to_string(), told.polling.name().to_owned());
    let goodput = significant(told.goodput_gb_s);
    [bytes, name.to_owned(), waiting, p50, p99, p999, goodput, dash(), dash(), dash()]
}

fn row([bytes, path, waiting, p50, p99, p999, goodput, cpu, calls, switches]: [String; 10]) -> String {
    format!(
        "  {bytes:>8} {path:<10} {waiting:<8} {p50:>10} {p99:>10} {p999:>10} {goodput:>9} {cpu:>9} {calls:>7} {switches:>8}"
    )
}

#[cfg(test)]
mod tests {
    use super::{super::result::Polling, *};

    #[test]
    fn a_mean_is_not_shown_as_percentiles() {
        let of = |time_us, mean_us| Told {
            test: Test::Bandwidth,
            polling: Polling::Block,
            bytes: 1 << 20,
            operations: 100,
            time_us,
            mean_us,
            spread_us: [150.0, 170.0],
            goodput_gb_s: 6.5,
        };
        let line =
            |told: &Told| row(cells_of_tool("tool", told)).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line(&of(None, Some(160.0))), "1048576 tool block mean 160.0 - - 6.500 - - -");
        let time = Percentiles { p50: 160.0, p99: Some(170.0), p999: None };
        assert_eq!(line(&of(Some(time), None)), "1048576 tool block 160.0 170.0 - 6.500 - - -");
    }
}
