//! How many times one thing takes as long as another: of each round by itself, as rounds differ by more than what is in one.

use super::{
    super::result::{Point, Polling, Spread, Test},
    document::{Section, Table},
    unit,
    view::{SMALL_BYTES, View},
};

/// Which point.
#[derive(Debug, Clone, Copy)]
struct Of {
    test: Test,
    bytes: u64,
    path: &'static str,
    polling: Polling,
}

impl Of {
    const fn new(test: Test, bytes: u64, path: &'static str, polling: Polling) -> Self {
        Self { test, bytes, path, polling }
    }

    fn find<'a>(&self, view: &View<'a>) -> Option<&'a Point> {
        view.points(self.test)
            .find(|p| (p.bytes, p.path.as_str(), p.polling) == (self.bytes, self.path, self.polling))
    }

    fn words(&self) -> String {
        format!("{} ({})", self.path, self.polling.name())
    }
}

/// Of each round the time of the one divided by that of the other, which counts so many times; `None` where no round has both.
fn paired(view: &View<'_>, long: Of, short: Of, times: f64) -> Option<Spread> {
    let rounds = |of: Of| Some(of.find(view)?.rounds.iter().map(|round| round.us));
    let ratios: Vec<f64> = rounds(long)?
        .zip(rounds(short)?)
        .filter_map(|(long, short)| unit::ratio(long, short * times))
        .collect();
    (!ratios.is_empty()).then(|| Spread::of(ratios))
}

fn row(what: String, ratio: Spread) -> Vec<String> {
    let [median, least, most] = [ratio.median, ratio.least, ratio.most].map(unit::number);
    vec![what, median, format!("{least} to {most}")]
}

/// Half round trips: paths through the kernel by shared memory's, and that by a cache line's.
fn latencies(view: &View<'_>) -> Vec<Vec<String>> {
    let of = |path, polling| Of::new(Test::Latency, SMALL_BYTES, path, polling);
    let shm = of("shm", Polling::Spin);
    let kernel = ["tcp", "sockets"]
        .into_iter()
        .flat_map(|path| [Polling::Spin, Polling::Block].map(|polling| of(path, polling)));
    let told = kernel.filter_map(|long| {
        let what = format!("half round trip, 8 B: {} by {}", long.words(), shm.words());
        Some(row(what, paired(view, long, shm, 1.0)?))
    });
    let line = view.report.lines_of_shm.map(|ratio| {
        row(format!("half round trip, 8 B: {} by a cache line's hand-over", shm.words()), ratio)
    });
    told.chain(line).collect()
}

/// As much as goes through shared memory in the time of as much through TCP.
fn bandwidths(view: &View<'_>) -> Option<Vec<String>> {
    let bytes = view.large_size(Test::Bandwidth)?;
    let of = |path| Of::new(Test::Bandwidth, bytes, path, Polling::Spin);
    let (long, short) = (of("tcp"), of("shm"));
    let what = format!("goodput, {}: {} by {}", unit::size(bytes), short.words(), long.words());
    Some(row(what, paired(view, long, short, 1.0)?))
}

/// Client to client, as each path's clients were measured.
fn clients(view: &View<'_>) -> Vec<Vec<String>> {
    const WAITING: [Polling; 3] = [Polling::Spin, Polling::Adaptive, Polling::Block];
    let of = |path, polling| Of::new(Test::ClientLatency, SMALL_BYTES, path, polling);
    // Against devices that block where no clients were measured that do.
    let sockets = Of::new(Test::Latency, SMALL_BYTES, "sockets", Polling::Block);
    let long = [of("tcp", Polling::Block), sockets];
    let told = WAITING
        .into_iter()
        .flat_map(|polling| long.map(|long| (long, of("shm", polling))))
        .filter_map(|(long, short)| {
            let between = if long.test == short.test { "between clients" } else { "bare" };
            let what = format!(
                "half round trip, 8 B: {}, {between}, by {} between clients",
                long.words(),
                short.words()
            );
            Some(row(what, paired(view, long, short, 1.0)?))
        });
    told.collect()
}

/// What a daemon takes, by the rings that it is asked through and by how it waits.
fn daemon(view: &View<'_>) -> Vec<Vec<String>> {
    let noop = |polling| Of::new(Test::DaemonNoop, 0, "daemon", polling);
    let ring = |test| Of::new(test, SMALL_BYTES, "ring", Polling::Spin);
    let spin = noop(Polling::Spin);
    let told = [
        ("daemon's no-op (spin) by a round trip through a bare ring", spin, ring(Test::BareRing), 2.0),
        ("daemon's no-op (spin) by a round trip through a client's ring", spin, ring(Test::Ring), 2.0),
        ("daemon's no-op, one after the other: adaptive by spin", noop(Polling::Adaptive), spin, 1.0),
    ];
    let told = told.into_iter();
    told.filter_map(|(what, long, short, times)| {
        Some(row(what.to_owned(), paired(view, long, short, times)?))
    })
    .collect()
}

fn tools(view: &View<'_>) -> Vec<Vec<String>> {
    let all = view.report.references.iter();
    all.flat_map(|tool| {
        tool.beside.iter().map(|beside| row(format!("{} by {}", beside.path, tool.name), beside.ratio))
    })
    .collect()
}

/// All that were measured.
pub(super) fn section(view: &View<'_>) -> Option<Section> {
    let mut section = Section::new("Ratios");
    let rows =
        [latencies(view), bandwidths(view).into_iter().collect(), clients(view), daemon(view), tools(view)];
    section
        .table(Table::new("", 1, &["what by what", "median of rounds", "least to most"]).with(rows.concat()));
    let mut section = section.if_any()?;
    section.text(
        "Each is of the two in the same round, then the median over rounds: the machine gets faster and slower from round to round. \
         Goodput is more by more, times are longer by shorter.",
    );
    Some(section)
}
