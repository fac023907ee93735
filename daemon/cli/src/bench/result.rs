//! What `ringway bench` found: the form of `bench.json`, from which every page and comparison is made.

use serde::{Deserialize, Serialize};

/// The form of this version's files.
pub(crate) const FORMAT: u32 = 3;

/// One run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    /// Version of Ringway.
    pub(crate) ringway: String,
    /// When it began, in seconds since 1970 (UTC).
    pub(crate) started_unix_s: u64,
    pub(crate) took_s: f64,
    /// Everything was measured; not so after Ctrl-C.
    pub(crate) complete: bool,
    /// Where the end that leads ran, and whatever needs no other machine.
    pub(crate) machine: Machine,
    /// Where the other end ran, if on another machine.
    #[serde(default)]
    pub(crate) server: Option<Machine>,
    pub(crate) settings: Settings,
    /// A cache line from one processor to another, one way: the least that any hand-over between two processes can take.
    pub(crate) hand_over_ns: Option<Spread>,
    /// How many times what it took just before and after half a spinning round trip of 8 bytes over `shm` took, by rounds.
    #[serde(default)]
    pub(crate) lines_of_shm: Option<Spread>,
    pub(crate) paths: Vec<Path>,
    pub(crate) points: Vec<Point>,
    /// What other tools found over the same link, by turns with all paths.
    #[serde(default)]
    pub(crate) references: Vec<Reference>,
    pub(crate) polling: Vec<PollingPoint>,
    pub(crate) steps: Vec<Step>,
}

/// Where it ran. Empty where the system does not tell.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Processors that this process may use.
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    /// The frequency governor.
    pub(crate) governor: String,
    /// TCP's congestion control, of all paths and tools that let it be chosen.
    #[serde(default)]
    pub(crate) congestion: String,
    /// Runs under a hypervisor, where wake-ups take several times as long as on bare metal.
    pub(crate) is_virtual: bool,
    pub(crate) memory_bytes: u64,
    /// What the network between the two ends is.
    pub(crate) network: String,
    pub(crate) mtu_bytes: Option<u32>,
}

/// How it was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) quick: bool,
    /// How often each point was measured, all paths by turns.
    pub(crate) rounds: u32,
    /// Seconds of each measurement.
    pub(crate) seconds: f64,
    /// Of the paths over TCP; 0 in files of older versions, which had one.
    #[serde(default)]
    pub(crate) tcp_connections: u32,
}

/// A way for bytes to take.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Path {
    /// Its name in [`Point::path`].
    pub(crate) name: String,
    /// One sentence for people.
    pub(crate) description: String,
    /// The kernel's network stack is on the data path.
    pub(crate) through_kernel: bool,
    /// Copies of every payload byte that the kernel makes, both ends together: from the path's definition, or what its device knows
    /// of how it works here; not measured. Less [`Costs::sent_without_copy`].
    pub(crate) kernel_copies: f64,
    /// Why it was not measured; `None` when it was.
    pub(crate) missing: Option<String>,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Test {
    /// An entry through a bare ring, which checks nothing, to another thread and back: half of that.
    BareRing,
    /// The same through a client's ring, which holds against a hostile peer; entries are not looked at.
    Ring,
    /// The same with validation: each entry is parsed as a daemon does.
    CheckedRing,
    /// A client's call that asks its daemon for nothing: the whole round trip.
    DaemonNoop,
    /// A message from device to device and back, no daemon between: half of that.
    Latency,
    /// Messages one way, many under way at a time.
    Bandwidth,
    /// Small messages one way, many under way at a time.
    MessageRate,
    /// A message from client to client through their daemons and back: half of that.
    ClientLatency,
    /// A collective among clients.
    Allreduce,
    /// A collective among clients.
    AllGather,
    /// A collective among clients.
    AllToAll,
}

/// How waiting is done.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Polling {
    /// Looking again and again.
    Spin,
    /// Looking for a moment, then sleeping.
    Adaptive,
    /// Sleeping until the kernel wakes it.
    Block,
}

/// One test over one path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) test: Test,
    pub(crate) path: String,
    pub(crate) polling: Polling,
    /// Of one message, or of one rank's vector.
    pub(crate) bytes: u64,
    /// Operations measured, in all rounds.
    pub(crate) operations: u64,
    /// Times from which each round's percentiles are, of rounds the fewest: 0 where there are none, and up to format 2.
    #[serde(default)]
    pub(crate) samples: u64,
    /// Time of one operation: of each round the percentile, of rounds the median. `None` where many are under way at a time; up to
    /// format 2 the mean stood in its place there.
    pub(crate) time_us: Option<Percentiles>,
    /// There the mean: the time of all, divided; of rounds the median.
    #[serde(default)]
    pub(crate) mean_us: Option<f64>,
    /// The least and the most of the rounds' medians, or means.
    #[serde(alias = "p50_spread_us")]
    pub(crate) spread_us: [f64; 2],
    /// Payload bytes per second / 1e9.
    pub(crate) goodput_gb_s: f64,
    pub(crate) costs: Costs,
    /// What each round found, in their order; nothing up to format 2.
    #[serde(default)]
    pub(crate) rounds: Vec<Round>,
}

/// What one round found at a point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Round {
    /// The median, or the mean where many operations are under way at a time.
    pub(crate) us: f64,
    pub(crate) p99_us: Option<f64>,
    /// As in [`Costs`].
    pub(crate) cpu_s_per_million: Option<f64>,
}

/// Of times, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    /// `None` of fewer than 100 times.
    pub(crate) p99: Option<f64>,
    /// `None` of fewer than 1000 times.
    pub(crate) p999: Option<f64>,
}

/// A median with the least and the most of what it is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

/// What one operation costs, both ends (and their daemons) together: medians over rounds. `None` where it was not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Costs {
    /// Seconds of processor time for a million operations, so microseconds for one.
    pub(crate) cpu_s_per_million: Option<f64>,
    /// Seconds of processor time for 1e9 bytes of payload.
    pub(crate) cpu_s_per_gb: Option<f64>,
    /// Those that our code makes while it works, each counted where it is made.
    pub(crate) system_calls: Option<f64>,
    pub(crate) context_switches: Option<f64>,
    /// On the whole machine while it ran.
    pub(crate) interrupts: Option<f64>,
    /// Processors that the machine with the end that leads kept busy with interrupts (irq and softirq) while it ran, by the clock's
    /// ticks: of all rounds together, as a tick is as long as a short round.
    #[serde(default)]
    pub(crate) interrupt_cpus: Option<f64>,
    /// Bytes that our own code copied for each byte of payload. What the kernel copies is in [`Path::kernel_copies`].
    pub(crate) copies: Option<f64>,
    /// Bytes that the kernel sent from where they lay, for each byte of payload.
    #[serde(default)]
    pub(crate) sent_without_copy: Option<f64>,
    /// The same of those that it copied although it was asked to send them like that.
    #[serde(default)]
    pub(crate) copied_after_all: Option<f64>,
}

/// Another tool that measures sockets.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    /// What it measures.
    pub(crate) description: String,
    /// As it says it.
    pub(crate) version: String,
    /// Why it did not measure; `None` when it did.
    pub(crate) missing: Option<String>,
    pub(crate) point: Option<Told>,
    /// What was measured beside it.
    #[serde(default)]
    pub(crate) beside: Vec<Beside>,
}

/// What another tool found in all rounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) test: Test,
    pub(crate) polling: Polling,
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    /// As in [`Point::time_us`]; `None` where it tells no more than the mean.
    pub(crate) time_us: Option<Percentiles>,
    /// Mean time of one operation, of rounds the median; `None` where it tells percentiles.
    #[serde(default)]
    pub(crate) mean_us: Option<f64>,
    /// The least and the most of the rounds' medians, or means.
    #[serde(alias = "p50_spread_us")]
    pub(crate) spread_us: [f64; 2],
    /// Payload bytes per second / 1e9.
    pub(crate) goodput_gb_s: f64,
}

/// A path beside another tool: both wait by sleeping, on the same processors, for as long, by turns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub(crate) path: String,
    /// Of each round the path's time divided by the tool's, or the path's goodput by the tool's.
    pub(crate) ratio: Spread,
}

/// A client that calls its daemon now and then.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PollingPoint {
    pub(crate) polling: Polling,
    /// The share of as many calls as a spinning daemon answers one after the other, 0 to 1; 0 where nobody calls, 1 where one call
    /// follows the other. Up to format 2 it was the share of time in which a call was under way.
    pub(crate) load: f64,
    /// The share that there were; `None` where nobody calls, and up to format 2.
    #[serde(default)]
    pub(crate) achieved_load: Option<f64>,
    /// Time of one call; `None` where nobody calls.
    pub(crate) time_us: Option<Percentiles>,
    /// Processors that the daemon keeps busy, 1 for a whole one.
    pub(crate) daemon_cpus: f64,
}

/// A part of a message's way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Which path it is of.
    pub(crate) path: String,
    pub(crate) name: String,
    /// Negative where it is taken off: time in which the two before it go on together. `None` where it cannot be told from the others.
    pub(crate) us: Option<f64>,
    /// It is a difference that is within the noise.
    #[serde(default)]
    pub(crate) is_lost: bool,
    /// How it was measured, or derived from what.
    pub(crate) how: String,
}

/// By how much of it a load may be missed.
const LOAD_MISSED_MAX: f64 = 0.2;

impl PollingPoint {
    /// There were far fewer calls, or more, than there were to be.
    pub(crate) fn is_off(&self) -> bool {
        self.achieved_load.is_some_and(|achieved| (achieved / self.load - 1.0).abs() > LOAD_MISSED_MAX)
    }
}

impl Report {
    /// As this version has it, whatever wrote it.
    pub(crate) fn upgraded(mut self) -> Self {
        for point in self.points.iter_mut().filter(|point| self.format < 3 && point.test.is_flow()) {
            point.mean_us = point.time_us.take().map(|time| time.p50);
        }
        self
    }
}

impl Point {
    /// The time to compare with: the median, or the mean where there is none.
    pub(crate) fn us(&self) -> f64 {
        self.time_us.map(|time| time.p50).or(self.mean_us).unwrap_or(f64::NAN)
    }

    /// The same of each round. Of files of format 2 at most three are known: the least, the median and the most.
    pub(crate) fn times_us(&self) -> Vec<f64> {
        let [least, most] = self.spread_us;
        if self.rounds.is_empty() {
            return vec![least, self.us(), most];
        }
        self.rounds.iter().map(|round| round.us).collect()
    }
}

impl Told {
    /// The time to compare with: the median, or what there is in its place.
    pub(crate) fn us(&self) -> f64 {
        self.time_us.map(|time| time.p50).or(self.mean_us).unwrap_or(f64::NAN)
    }
}

impl Test {
    /// Whether many messages are under way at a time.
    pub(crate) const fn is_flow(self) -> bool {
        matches!(self, Self::Bandwidth | Self::MessageRate)
    }

    /// Its name in `bench.json`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::BareRing => "bare_ring",
            Self::Ring => "ring",
            Self::CheckedRing => "checked_ring",
            Self::DaemonNoop => "daemon_noop",
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::MessageRate => "message_rate",
            Self::ClientLatency => "client_latency",
            Self::Allreduce => "allreduce",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
        }
    }
}

impl Polling {
    /// Its name in `bench.json` and on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Adaptive => "adaptive",
            Self::Block => "block",
        }
    }
}
