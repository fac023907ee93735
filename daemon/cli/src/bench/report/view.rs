//! A report as its readers ask for it: by test, by path, by size.

use std::collections::{BTreeMap, BTreeSet};

use super::super::result::{Point, Polling, Report, Test};

/// On which side of the kernel's network stack a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    Bypass,
    Kernel,
    /// The report has points of it, but does not say what it is.
    Other,
}

/// A path that was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route<'a> {
    pub(super) name: &'a str,
    pub(super) family: Family,
    /// How many of its family come before it.
    pub(super) index: usize,
}

/// The points of one test over one path, polled in one way, by size.
#[derive(Debug, Clone)]
pub(super) struct Series<'a> {
    pub(super) route: &'a Route<'a>,
    pub(super) polling: Polling,
    pub(super) points: Vec<&'a Point>,
}

/// A report with its paths in order.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) report: &'a Report,
    pub(super) routes: Vec<Route<'a>>,
}

pub(super) const POLLINGS: [Polling; 3] = [Polling::Spin, Polling::Adaptive, Polling::Block];

/// The size at which latencies are told.
pub(super) const SMALL_BYTES: u64 = 8;
/// The size at which bandwidths are told.
const LARGE_BYTES: u64 = 1 << 20;

impl<'a> View<'a> {
    pub(super) fn of(report: &'a Report) -> Self {
        let described: BTreeMap<&str, Family> = report
            .paths
            .iter()
            .map(|path| {
                (path.name.as_str(), if path.through_kernel { Family::Kernel } else { Family::Bypass })
            })
            .collect();
        let mut routes: Vec<Route<'_>> = Vec::new();
        let names = report.paths.iter().map(|path| &path.name);
        for name in names.chain(report.points.iter().map(|point| &point.path)) {
            if routes.iter().all(|route| route.name != name) {
                let family = described.get(name.as_str()).copied().unwrap_or(Family::Other);
                let index = routes.iter().filter(|route| route.family == family).count();
                routes.push(Route { name, family, index });
            }
        }
        Self { report, routes }
    }

    pub(super) fn points(&self, test: Test) -> impl Iterator<Item = &'a Point> {
        self.report.points.iter().filter(move |point| point.test == test)
    }

    pub(super) fn sizes(&self, test: Test) -> BTreeSet<u64> {
        self.points(test).map(|point| point.bytes).collect()
    }

    /// What was measured, in the order of paths.
    pub(super) fn series(&'a self, test: Test) -> Vec<Series<'a>> {
        let mut found = Vec::new();
        for route in &self.routes {
            for polling in POLLINGS {
                let mut points: Vec<&Point> =
                    self.points(test).filter(|p| p.path == route.name && p.polling == polling).collect();
                points.sort_by_key(|point| point.bytes);
                if !points.is_empty() {
                    found.push(Series { route, polling, points });
                }
            }
        }
        found
    }

    pub(super) fn family(&self, path: &str) -> Family {
        self.routes.iter().find(|route| route.name == path).map_or(Family::Other, |route| route.family)
    }

    /// The points of a test at a size on one side of the kernel, the fastest first.
    pub(super) fn ranking(
        &self,
        test: Test,
        bytes: u64,
        family: Family,
        polling: Option<Polling>,
    ) -> Vec<&'a Point> {
        let mut found: Vec<&Point> = self
            .points(test)
            .filter(|p| p.bytes == bytes && polling.is_none_or(|polling| p.polling == polling))
            .filter(|p| self.family(&p.path) == family)
            .collect();
        found.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
        found
    }

    /// The size at which to tell of a test: the usual one if both sides of the kernel were measured there.
    fn size_of_interest(&self, test: Test, usual: u64) -> Option<u64> {
        let sizes = self.sizes(test);
        let has_both = |bytes: &u64| {
            let measured = |family| !self.ranking(test, *bytes, family, None).is_empty();
            measured(Family::Bypass) && measured(Family::Kernel)
        };
        let nearest = |sizes: &mut dyn Iterator<Item = u64>| sizes.min_by_key(|bytes| bytes.abs_diff(usual));
        nearest(&mut sizes.iter().copied().filter(has_both)).or_else(|| nearest(&mut sizes.iter().copied()))
    }

    pub(super) fn small_size(&self, test: Test) -> Option<u64> {
        self.size_of_interest(test, SMALL_BYTES)
    }

    pub(super) fn large_size(&self, test: Test) -> Option<u64> {
        self.size_of_interest(test, LARGE_BYTES)
    }
}

/// Whether a test is about rates rather than about times.
pub(super) const fn is_rate(test: Test) -> bool {
    matches!(test, Test::Bandwidth | Test::MessageRate)
}

/// The more the better: operations per microsecond, or in tests of rates bytes per nanosecond.
pub(super) fn speed(point: &Point) -> f64 {
    if is_rate(point.test) { point.goodput_gb_s } else { point.us().recip() }
}

/// Processor time as it is told of a test: seconds for 1e9 bytes of bandwidth, else for a million operations.
pub(super) const fn cpu_s(point: &Point) -> Option<f64> {
    match point.test {
        Test::Bandwidth => point.costs.cpu_s_per_gb,
        _ => point.costs.cpu_s_per_million,
    }
}

/// Millions of messages a second.
pub(super) fn millions_a_second(point: &Point) -> Option<f64> {
    (point.bytes > 0).then(|| point.goodput_gb_s * 1e3 / point.bytes as f64)
}

/// What a test measures, for people.
pub(super) const fn title(test: Test) -> &'static str {
    match test {
        Test::BareRing => "Bare ring, half round trip",
        Test::Ring => "Client's ring, half round trip",
        Test::CheckedRing => "Ring with validation, half round trip",
        Test::DaemonNoop => "Daemon that is asked for nothing, round trip",
        Test::Latency => "Device to device, half round trip",
        Test::Bandwidth => "Device to device, bandwidth",
        Test::MessageRate => "Device to device, message rate",
        Test::ClientLatency => "Client to client, half round trip",
        Test::Allreduce => "Allreduce among clients",
        Test::AllGather => "All-gather among clients",
        Test::AllToAll => "All-to-all among clients",
    }
}

pub(super) const TESTS: [Test; 11] = [
    Test::BareRing,
    Test::Ring,
    Test::CheckedRing,
    Test::DaemonNoop,
    Test::Latency,
    Test::Bandwidth,
    Test::MessageRate,
    Test::ClientLatency,
    Test::Allreduce,
    Test::AllGather,
    Test::AllToAll,
];
