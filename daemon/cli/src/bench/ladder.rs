//! What is measured, in which order, and how rounds become points.

use std::{collections::BTreeMap, time::Duration};

use super::{
    end::{TOOL_SECONDS, Tool},
    interrupt::Interrupt,
    pair::{Measured, Task},
    paths::OpenPath,
    progress::Progress,
    result::{Beside, Point, Polling, Spread, Test, Told},
    rings,
    rounds::{difference_us, messages, point, told},
};
use crate::perf::{place, round, round_trip_ns};

/// Operations of the first measurement of a point.
const FIRST_OPERATIONS: u64 = 64;
/// Measurements that warm up and tell how long an operation takes, each of at most so many times the operations of the one
/// before: the first operations may take much longer than others.
const WARM_UPS: u32 = 2;
const GROWTH_MAX: u64 = 64;
/// The most operations of one measurement: the time of each is kept.
pub(super) const OPERATIONS_MAX: u64 = 1 << 20;

/// Paths that are measured beside another tool, in the same way and for as long: the sockets that it has as well, and the device
/// that is to be like them.
const BESIDE: [&str; 2] = ["sockets", "tcp"];

/// How much is measured.
#[derive(Debug, Clone)]
pub(super) struct Amount {
    pub(super) rounds: u32,
    pub(super) seconds: f64,
    sizes: fn(Test) -> &'static [u64],
    /// Collectives are measured with adaptive daemons alone, and clients of daemons that spin one path after the other: starting those
    /// again and again takes long.
    pub(super) is_brief: bool,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Amount {
    /// A picture in less than a minute.
    pub(super) const QUICK: Self = Self { rounds: 3, seconds: 0.02, sizes: quick_sizes, is_brief: true };
    /// Everything in less than 15 minutes.
    pub(super) const FULL: Self = Self { rounds: 5, seconds: 0.15, sizes: full_sizes, is_brief: false };

    /// Whether this is measured where ends wait in this manner.
    const fn has(&self, test: Test, polling: Polling) -> bool {
        let is_collective = matches!(test, Test::Allreduce | Test::AllGather | Test::AllToAll);
        !(self.is_brief && is_collective) || matches!(polling, Polling::Adaptive)
    }
}

fn quick_sizes(test: Test) -> &'static [u64] {
    match test {
        Test::Latency => &[8, 4 * KIB, 64 * KIB],
        Test::Bandwidth => &[16 * KIB, MIB],
        Test::ClientLatency => &[8, 64 * KIB],
        Test::Allreduce => &[8, 64 * KIB, MIB],
        Test::AllGather | Test::AllToAll => &[64 * KIB],
        Test::BareRing | Test::Ring | Test::CheckedRing | Test::MessageRate => &[8],
        Test::DaemonNoop => &[0],
    }
}

fn full_sizes(test: Test) -> &'static [u64] {
    match test {
        Test::Latency => &[8, 64, 512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB],
        Test::Bandwidth => &[KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB],
        Test::ClientLatency => &[8, 512, 4 * KIB, 64 * KIB, 256 * KIB, MIB],
        Test::Allreduce | Test::AllGather | Test::AllToAll => &[8, KIB, 16 * KIB, 256 * KIB, 4 * MIB],
        Test::BareRing | Test::Ring | Test::CheckedRing | Test::MessageRate => &[8],
        Test::DaemonNoop => &[0],
    }
}

/// Tests that are done together: with one group's ends open, those of the other are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Of two threads, and of ends with devices.
    Devices,
    /// Of ends that are clients.
    Clients,
}

impl Group {
    pub(super) const ALL: [Self; 2] = [Self::Devices, Self::Clients];

    const fn tests(self) -> &'static [Test] {
        match self {
            Self::Devices => &[
                Test::BareRing,
                Test::Ring,
                Test::CheckedRing,
                Test::Latency,
                Test::Bandwidth,
                Test::MessageRate,
            ],
            Self::Clients => &[Test::ClientLatency, Test::Allreduce, Test::AllGather, Test::AllToAll],
        }
    }
}

/// Names a point.
pub(super) type Key = (Test, u64, Polling, &'static str);

/// What is counted in cache lines.
const IN_LINES: Key = (Test::Latency, 8, Polling::Spin, "shm");
/// By how much a cache line takes longer when the host of a virtual machine has moved its processors.
const MOVED: f64 = 1.25;

/// Everything that can be measured, opened.
#[derive(Debug)]
pub(super) struct Ladder {
    pub(super) paths: Vec<OpenPath>,
    pub(super) tools: Vec<(&'static Tool, OpenPath)>,
    pub(super) amount: Amount,
    found: BTreeMap<Key, Vec<Measured>>,
    /// How many operations take as long as a measurement is to.
    operations: BTreeMap<Key, u64>,
    operations_beside: BTreeMap<Key, u64>,
    /// By tool and path, of each round: how many times as long or as much.
    ratios: BTreeMap<(&'static str, &'static str), Vec<f64>>,
    /// What a cache line takes one way, in nanoseconds: measured between tests, as the host of a virtual machine moves its
    /// processors about meanwhile.
    pub(super) hand_overs_ns: Vec<f64>,
    /// Of each round in which it stayed the same: how many times that half a round trip over shared memory takes.
    pub(super) lines_of_shm: Vec<f64>,
    /// What could not be measured, once each.
    pub(super) failures: Vec<String>,
}

impl Ladder {
    pub(super) const fn new(amount: Amount) -> Self {
        Self {
            paths: Vec::new(),
            tools: Vec::new(),
            amount,
            found: BTreeMap::new(),
            operations: BTreeMap::new(),
            operations_beside: BTreeMap::new(),
            ratios: BTreeMap::new(),
            hand_overs_ns: Vec::new(),
            lines_of_shm: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Measures every point of these tests once for each round.
    pub(super) fn climb(&mut self, group: Group, interrupt: &Interrupt, progress: &mut Progress) {
        (0..self.amount.rounds).for_each(|round| self.climb_once(group, round, interrupt, progress));
    }

    /// Measures every point of these tests, in one round.
    pub(super) fn climb_once(
        &mut self,
        group: Group,
        round: u32,
        interrupt: &Interrupt,
        progress: &mut Progress,
    ) {
        for test in group.tests().iter().take_while(|_| !interrupt.came()) {
            progress.round(round + 1, self.amount.rounds);
            self.hand_over_ns();
            self.rung(*test, round, interrupt, progress);
        }
    }

    /// One test: at each size and manner of waiting all paths, one after the other.
    fn rung(&mut self, test: Test, round: u32, interrupt: &Interrupt, progress: &Progress) {
        for &bytes in (self.amount.sizes)(test) {
            for polling in [Polling::Spin, Polling::Adaptive, Polling::Block] {
                if !self.amount.has(test, polling) {
                    continue;
                }
                let task = Task::new(test, bytes, FIRST_OPERATIONS, polling);
                if rings::TESTS.contains(&test) {
                    if polling == Polling::Spin && place::processors().len() > 1 {
                        self.measured(&task, rings::RING, interrupt, progress, rings::run);
                    }
                    continue;
                }
                // They are with us again at once.
                let mut paths = std::mem::take(&mut self.paths);
                for path in paths.iter_mut().filter(|path| path.can(polling)) {
                    let key = (test, bytes, polling, path.name);
                    let before = if key == IN_LINES { self.hand_over_ns() } else { None };
                    self.measured(&task, path.name, interrupt, progress, |task| path.ends.run(task));
                    self.count_lines(key, before);
                }
                let mut tools = std::mem::take(&mut self.tools);
                for (tool, path) in tools.iter_mut().filter(|(_, path)| path.can(polling)) {
                    if (tool.test, tool.beside_bytes) == (test, bytes) {
                        self.beside(tool, path, &mut paths, round, interrupt, progress);
                    }
                }
                (self.paths, self.tools) = (paths, tools);
            }
        }
    }

    /// What a cache line takes one way now.
    fn hand_over_ns(&mut self) -> Option<f64> {
        let ns = round_trip_ns(&place::processors())? / 2.0;
        self.hand_overs_ns.push(ns);
        Some(ns)
    }

    /// Compares what was measured last with what a cache line took before and takes now, if that is about the same.
    fn count_lines(&mut self, key: Key, before: Option<f64>) {
        let Some(before) = before else { return };
        let Some(after) = self.hand_over_ns() else { return };
        let Some(measured) = self.found.get(&key).and_then(|rounds| rounds.last()) else { return };
        if before.max(after) < before.min(after) * MOVED {
            self.lines_of_shm.push(measured.time_us.p50 * 1e3 * 2.0 / (before + after));
        }
    }

    /// Measures a point once.
    fn measured(
        &mut self,
        task: &Task,
        path: &'static str,
        interrupt: &Interrupt,
        progress: &Progress,
        mut run: impl FnMut(&Task) -> Result<Measured, String>,
    ) {
        let key = (task.test, task.bytes, task.polling, path);
        if interrupt.came() {
            return;
        }
        progress.point(task.test, task.bytes, task.polling, path);
        let measured = measure(key, self.amount.seconds, &mut self.operations, &mut run);
        self.keep(key, measured, interrupt, progress);
    }

    /// Measures what is like a tool beside it: before it and after it by turns, as the machine gets faster and slower.
    fn beside(
        &mut self,
        tool: &'static Tool,
        end: &mut OpenPath,
        paths: &mut [OpenPath],
        round: u32,
        interrupt: &Interrupt,
        progress: &Progress,
    ) {
        let (mut ours, mut theirs) = (Vec::new(), None);
        if round.is_multiple_of(2) {
            theirs = self.ask(tool, end, interrupt, progress);
        }
        for path in paths.iter_mut().filter(|path| BESIDE.contains(&path.name) && path.can(Polling::Block)) {
            if interrupt.came() {
                return;
            }
            let key = (tool.test, tool.beside_bytes, Polling::Block, path.name);
            progress.line(&format!("{} beside {}", path.name, tool.name));
            // Tools send and receive the same memory again and again.
            let mut run = |task: &Task| path.ends.run(&Task { in_one_place: true, ..*task });
            // What fails here is told of the same measurement without a tool.
            let measured = measure(key, TOOL_SECONDS, &mut self.operations_beside, &mut run);
            ours.extend(measured.ok().map(|measured| (path.name, measured)));
        }
        if !round.is_multiple_of(2) {
            theirs = self.ask(tool, end, interrupt, progress);
        }
        let Some(theirs) = theirs else { return };
        for (name, ours) in ours {
            self.ratios.entry((tool.name, name)).or_default().push(ratio(tool.test, &ours, &theirs));
        }
    }

    /// Has a tool measure once, in the time that it takes.
    fn ask(
        &mut self,
        tool: &Tool,
        path: &mut OpenPath,
        interrupt: &Interrupt,
        progress: &Progress,
    ) -> Option<Measured> {
        let key = (tool.test, tool.bytes, Polling::Block, path.name);
        if interrupt.came() {
            return None;
        }
        progress.line(&format!("{} measures", path.name));
        let (test, bytes, polling, _) = key;
        let measured = path.ends.run(&Task::new(test, bytes, 1, polling));
        let seen = measured.as_ref().ok().copied();
        self.keep(key, measured, interrupt, progress);
        seen
    }

    fn keep(
        &mut self,
        key: Key,
        measured: Result<Measured, String>,
        interrupt: &Interrupt,
        progress: &Progress,
    ) {
        match measured {
            Ok(measured) => self.found.entry(key).or_default().push(measured),
            Err(_) if interrupt.came() => {}
            Err(why) => {
                let (test, bytes, polling, path) = key;
                let text = format!("{} over {path}, {bytes} B, {}: {why}", test.name(), polling.name());
                progress.note(&text);
                self.failures.push(text);
            }
        }
    }

    /// What was found.
    pub(super) fn points(&self) -> Vec<Point> {
        let own = self.found.iter().filter(|(key, _)| Tool::named(key.3).is_none());
        own.map(|(key, rounds)| point(key, rounds)).collect()
    }

    /// How much longer one test of small messages takes than another over the same path, spinning.
    pub(super) fn adds_us(&self, more: Test, less: Test, path: &'static str) -> Option<f64> {
        let rounds = |test| Some(self.found.get(&(test, 8, Polling::Spin, path))?.as_slice());
        difference_us(rounds(more)?, rounds(less)?)
    }

    /// How often the kernel copies each byte on this path, if its ends knew.
    pub(super) fn kernel_copies(&self, path: &str) -> Option<f64> {
        let own = self.found.iter().filter(|(key, _)| key.3 == path);
        own.flat_map(|(_, rounds)| rounds).find_map(|seen| seen.kernel_copies)
    }

    /// What a tool found. What it costs was not counted.
    pub(super) fn reference(&self, tool: &Tool) -> Option<Told> {
        let (key, rounds) = self.found.iter().find(|(key, _)| key.3 == tool.name)?;
        Some(told(point(key, rounds)))
    }

    /// How the paths that were measured beside a tool compare with it.
    pub(super) fn beside_tool(&self, tool: &Tool) -> Vec<Beside> {
        let of_this = self.ratios.iter().filter(|((name, _), _)| *name == tool.name);
        let beside = of_this.map(|((_, path), ratios)| {
            let Spread { least, median, most } = Spread::of(ratios.clone());
            let [least, median, most] = [least, median, most].map(|ratio| round(ratio, 4));
            Beside { path: (*path).to_owned(), ratio: Spread { least, median, most } }
        });
        beside.collect()
    }
}

/// How ours compares with theirs: how many times as much goes through, or as long a message takes.
fn ratio(test: Test, ours: &Measured, theirs: &Measured) -> f64 {
    let each = |seen: &Measured| seen.seconds / seen.operations.max(1) as f64;
    match test {
        Test::Bandwidth | Test::MessageRate => each(theirs) / each(ours),
        _ => ours.time_us.p50 / theirs.time_us.p50,
    }
}

fn measure(
    key: Key,
    seconds: f64,
    known: &mut BTreeMap<Key, u64>,
    run: &mut dyn FnMut(&Task) -> Result<Measured, String>,
) -> Result<Measured, String> {
    let (test, bytes, polling, _) = key;
    let mut task = Task::new(test, bytes, FIRST_OPERATIONS, polling);
    // Whoever comes to its processor late makes the whole take long, but not most operations.
    let wanted = |seen: &Measured| match test {
        Test::Bandwidth | Test::MessageRate => operations_in(seconds, seen),
        _ => operations_of(seconds, seen.time_us.p50 * messages(test) as f64 / 1e6),
    };
    match known.get(&key) {
        Some(operations) => task.operations = *operations,
        None => {
            for _ in 0..WARM_UPS {
                task.operations = wanted(&run(&task)?).min(task.operations * GROWTH_MAX);
            }
        }
    }
    let seen = run(&task)?;
    known.insert(key, wanted(&seen));
    Ok(seen)
}

/// How many operations like those take so long, with all that was between them.
pub(super) fn operations_in(seconds: f64, seen: &Measured) -> u64 {
    operations_of(seconds, seen.seconds / seen.operations.max(1) as f64)
}

/// How many operations that take so long each do it in that time.
fn operations_of(seconds: f64, each: f64) -> u64 {
    let fitting = Duration::from_secs_f64((seconds / each.max(1e-9) * 1e-9).min(1e9)).as_nanos() as u64;
    fitting.clamp(FIRST_OPERATIONS / 2, OPERATIONS_MAX)
}
