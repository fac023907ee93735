//! A made-up report of every test, with numbers as they may be.

use std::{fs, path::PathBuf};

use super::{
    super::result::{
        Beside, Costs, FORMAT, Machine, Path, Percentiles, Point, Polling, PollingPoint, Reference, Report,
        Round, Settings, Spread, Step, Test, Told,
    },
    view::{POLLINGS, is_rate},
};

/// A folder that is gone when this is.
pub(in super::super) struct Folder(pub(in super::super) PathBuf);

impl Folder {
    pub(in super::super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringway-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a path behaves: microseconds of a small message spinning and blocking, 1e9 bytes per second of large ones.
struct Model {
    name: &'static str,
    description: &'static str,
    through_kernel: bool,
    kernel_copies: f64,
    spin_us: f64,
    block_us: f64,
    gb_s: f64,
}

#[rustfmt::skip]
const MODELS: [Model; 7] = [
    Model { name: "cell", description: "Memory that the ranks of one host share.", through_kernel: false, kernel_copies: 0.0, spin_us: 0.15, block_us: 49.0, gb_s: 30.0 },
    Model { name: "shm", description: "Memory that the daemons of one host share.", through_kernel: false, kernel_copies: 0.0, spin_us: 0.19, block_us: 51.0, gb_s: 60.0 },
    Model { name: "roce-xdp", description: "RoCEv2 over AF_XDP, past the kernel's network stack.", through_kernel: false, kernel_copies: 0.0, spin_us: 2.9, block_us: 53.0, gb_s: 4.1 },
    Model { name: "roce-udp", description: "RoCEv2 over UDP sockets.", through_kernel: true, kernel_copies: 2.0, spin_us: 5.5, block_us: 58.0, gb_s: 2.5 },
    Model { name: "tcp", description: "Kernel TCP, driven by io_uring.", through_kernel: true, kernel_copies: 2.0, spin_us: 4.3, block_us: 55.0, gb_s: 6.7 },
    Model { name: "tcp-epoll", description: "Kernel TCP, driven by epoll.", through_kernel: true, kernel_copies: 2.0, spin_us: 4.8, block_us: 57.0, gb_s: 5.9 },
    Model { name: "sockets", description: "Bare TCP sockets.", through_kernel: true, kernel_copies: 2.0, spin_us: 3.7, block_us: 52.0, gb_s: 6.9 },
];

/// A round in which an operation took so long.
pub(in super::super) fn round(test: Test, us: f64) -> Round {
    Round { us, p99_us: (!test.is_flow()).then_some(us * 1.7), cpu_s_per_million: Some(us * 2.0) }
}

/// A point of which only the size and the time matter.
pub(in super::super) fn point(test: Test, path: &str, polling: Polling, bytes: u64, p50_us: f64) -> Point {
    Point {
        test,
        path: path.to_owned(),
        polling,
        bytes,
        operations: 10_000,
        samples: 2_000,
        time_us: (!test.is_flow()).then_some(Percentiles {
            p50: p50_us,
            p99: Some(p50_us * 1.7),
            p999: Some(p50_us * 3.1),
        }),
        mean_us: test.is_flow().then_some(p50_us),
        spread_us: [p50_us * 0.96, p50_us * 1.05],
        goodput_gb_s: bytes as f64 / p50_us / 1e3,
        costs: Costs {
            cpu_s_per_million: Some(p50_us * if polling == Polling::Block { 0.3 } else { 2.0 }),
            cpu_s_per_gb: (bytes > 0).then(|| p50_us * 1e3 / bytes as f64 * 1.6),
            system_calls: Some(if path.contains("tcp") { 2.0 } else { 0.001 }),
            context_switches: Some(if polling == Polling::Block { 2.0 } else { 0.02 }),
            interrupts: Some(0.13),
            interrupt_cpus: Some(if path == "tcp" { 0.21 } else { 0.04 }),
            copies: None,
            sent_without_copy: path.starts_with("tcp").then_some(0.0),
            copied_after_all: (path == "tcp").then_some(0.001),
        },
        rounds: [0.97, 0.96, 1.0, 1.02, 1.05].map(|of| round(test, p50_us * of)).to_vec(),
    }
}

fn points(model: &Model, test: Test, into: &mut Vec<Point>) {
    let sizes: Vec<u64> = match test {
        Test::MessageRate => vec![8],
        Test::Bandwidth => (8..=22).step_by(2).map(|shift| 1 << shift).collect(),
        Test::Latency | Test::ClientLatency => (3..=20).step_by(1).map(|shift| 1 << shift).collect(),
        _ => (10..=24).step_by(2).map(|shift| 1 << shift).collect(),
    };
    for polling in POLLINGS {
        let base_us = match polling {
            Polling::Spin => model.spin_us,
            Polling::Adaptive => model.spin_us * 1.08,
            Polling::Block => model.block_us,
        };
        for bytes in &sizes {
            let copied_us = *bytes as f64 / model.gb_s / 1e3;
            let p50_us = match test {
                Test::Latency => base_us + copied_us,
                Test::Bandwidth | Test::MessageRate => base_us / 12.0 + copied_us,
                Test::ClientLatency => base_us + 0.9 + copied_us,
                _ => 2.0 * base_us + 3.0 * copied_us,
            };
            into.push(point(test, model.name, polling, *bytes, p50_us));
        }
    }
}

fn layers() -> Vec<Point> {
    let layers = [
        (Test::BareRing, 0.05, "ring"),
        (Test::Ring, 0.08, "ring"),
        (Test::CheckedRing, 0.11, "ring"),
        (Test::DaemonNoop, 0.27, "daemon"),
    ];
    let bytes = |test| if test == Test::DaemonNoop { 0 } else { 8 };
    layers.map(|(test, p50_us, path)| point(test, path, Polling::Spin, bytes(test), p50_us)).to_vec()
}

fn polling_points() -> Vec<PollingPoint> {
    let time = |p50| Percentiles { p50, p99: Some(p50 * 1.4), p999: Some(p50 * 4.0) };
    let of = |polling, load, p50: Option<f64>, daemon_cpus| PollingPoint {
        polling,
        load,
        achieved_load: p50.map(|p50: f64| load.min(0.27 / p50)),
        time_us: p50.map(time),
        daemon_cpus,
    };
    vec![
        of(Polling::Spin, 0.0, None, 1.0),
        of(Polling::Spin, 0.01, Some(0.31), 1.0),
        of(Polling::Spin, 0.1, Some(0.28), 1.0),
        of(Polling::Spin, 1.0, Some(0.27), 1.0),
        of(Polling::Adaptive, 0.0, None, 0.003),
        of(Polling::Adaptive, 0.01, Some(41.0), 0.012),
        of(Polling::Adaptive, 0.1, Some(9.0), 0.22),
        of(Polling::Adaptive, 1.0, Some(0.29), 0.98),
        of(Polling::Block, 0.0, None, 0.000_1),
        of(Polling::Block, 0.01, Some(61.0), 0.004),
        of(Polling::Block, 0.1, Some(57.0), 0.04),
        of(Polling::Block, 1.0, Some(54.0), 0.31),
    ]
}

fn references() -> Vec<Reference> {
    let of = |name: &str, missing: Option<&str>, point| Reference {
        name: name.to_owned(),
        description: format!("what {name} does"),
        version: format!("{name} 3.12"),
        missing: missing.map(str::to_owned),
        point,
        beside: Vec::new(),
    };
    let told = Told {
        test: Test::Bandwidth,
        polling: Polling::Block,
        bytes: 1 << 20,
        operations: 10_000,
        time_us: None,
        mean_us: Some(160.0),
        spread_us: [150.0, 171.0],
        goodput_gb_s: 6.55,
    };
    let iperf = of("iperf3", None, Some(told));
    let ratio = Spread { least: 0.91, median: 1.02, most: 1.2 };
    vec![
        Reference { beside: vec![Beside { path: "tcp".to_owned(), ratio }], ..iperf },
        of("sockperf", Some("sockperf is not installed"), None),
    ]
}

fn steps() -> Vec<Step> {
    let of = |path: &str, name: &str, us, how: &str| Step {
        path: path.to_owned(),
        name: name.to_owned(),
        us,
        is_lost: false,
        how: how.to_owned(),
    };
    vec![
        of("sockets", "system call to send", Some(1.6), "time of send() on a socket whose peer reads"),
        of("sockets", "TCP, loopback, softirq", None, "is done within send()"),
        of("sockets", "wake-up of the receiver", Some(48.3), "blocking less spinning"),
        of("sockets", "system call to receive", Some(0.9), "time of recv() with data there"),
        of("sockets", "copy to the receiver", Some(0.02), "a copy of as many bytes"),
        of("shm", "entry written", Some(0.03), "time of post() alone"),
        of("shm", "cache line to the other processor", Some(0.07), "bare hand-over"),
        of("shm", "entry checked and copied", Some(0.05), "what is left of half a round trip"),
        Step { is_lost: true, ..of("ring", "validation", None, "of each round the one less the other") },
        of("shm", "completion taken", Some(0.04), "time of poll() with one there"),
    ]
}

/// A run in which everything was measured but a path that this machine does not have.
pub(in super::super) fn full() -> Report {
    let path = |m: &Model| Path {
        name: m.name.to_owned(),
        description: m.description.to_owned(),
        through_kernel: m.through_kernel,
        kernel_copies: m.kernel_copies,
        missing: None,
    };
    let mut paths: Vec<Path> = MODELS.iter().map(path).collect();
    paths.push(Path {
        name: "verbs".to_owned(),
        description: "An RDMA adapter.".to_owned(),
        missing: Some("there is no RDMA adapter in this machine".to_owned()),
        ..Path::default()
    });
    let mut points = layers();
    for model in &MODELS {
        let collectives = [Test::Allreduce, Test::AllGather, Test::AllToAll];
        let tests = [Test::Latency, Test::Bandwidth, Test::MessageRate, Test::ClientLatency];
        let of_devices = tests.into_iter().filter(|_| model.name != "cell");
        let of_daemons = collectives.into_iter().filter(|_| model.name != "sockets");
        of_devices.chain(of_daemons).for_each(|test| self::points(model, test, &mut points));
    }
    debug_assert!(points.iter().any(|p| is_rate(p.test)), "rates as well");
    Report {
        format: FORMAT,
        ringway: "0.1.0".to_owned(),
        started_unix_s: 1_767_225_599,
        took_s: 703.4,
        complete: true,
        machine: Machine {
            cpu: "Example CPU at 2.9 GHz".to_owned(),
            cpus: 2,
            kernel: "Linux 6.12.0".to_owned(),
            governor: String::new(),
            congestion: "cubic".to_owned(),
            is_virtual: true,
            memory_bytes: 16 << 30,
            network: "loopback of one machine".to_owned(),
            mtu_bytes: Some(65_536),
        },
        server: None,
        settings: Settings { quick: false, rounds: 5, seconds: 0.25, tcp_connections: 2 },
        hand_over_ns: Some(Spread { least: 66.0, median: 70.0, most: 81.0 }),
        lines_of_shm: Some(Spread { least: 1.9, median: 2.25, most: 5.5 }),
        paths,
        points,
        references: references(),
        polling: polling_points(),
        steps: steps(),
    }
}
