//! Half round trip and goodput of the shm device beside a cache line handed from thread to thread and bare TCP sockets on
//! loopback, everything spinning, in one run of alternating rounds.
//!
//! `cargo run --release -p ringway-shm --example pingpong`
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use ringway_mem::{Mapping, MemFd};
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_sim::ping_pong::{Amount, PingPong, ping_pong_between, ping_pong_over_tcp};

/// What is measured, how, and with which memory.
type Line = (&'static str, fn(Amount) -> PingPong, Amount);

const ROUNDS: usize = 5;
const HAND_OVERS: u64 = 200_000;

/// Half the time in which a cache line goes to another thread and back, in microseconds.
fn cache_line() -> f64 {
    let [there, back] = [const { AtomicU64::new(0) }; 2];
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=HAND_OVERS {
                while there.load(Ordering::Acquire) < round {}
                back.store(round, Ordering::Release);
            }
        });
        let start = Instant::now();
        for round in 1..=HAND_OVERS {
            there.store(round, Ordering::Release);
            while back.load(Ordering::Acquire) < round {}
        }
        start.elapsed().as_secs_f64() * 1e6 / HAND_OVERS as f64 / 2.0
    })
}

/// Memory that the other device can map.
fn in_file(length: usize) -> Mapping {
    let (file, mapping) = MemFd::region("pingpong", length as u64).unwrap();
    mapping.keep_file(file.as_fd().try_clone_to_owned().unwrap())
}

fn device() -> ShmDevice {
    ShmDevice::new(ShmConfig::default()).unwrap()
}

fn over_shm(amount: Amount) -> PingPong {
    ping_pong_between([device(), device()], amount, |_| ()).0
}

fn over_tcp(amount: Amount) -> PingPong {
    ping_pong_over_tcp(IpAddr::from(Ipv4Addr::LOCALHOST), amount, |_| ())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn main() {
    let private = Amount::default();
    let files = Amount { memory: in_file, ..private };
    let kinds: [Line; 3] = [
        ("tcp sockets", over_tcp, private),
        ("shm, memory files", over_shm, files),
        ("shm, other memory", over_shm, private),
    ];
    let mut rows = vec![(Vec::new(), Vec::new()); kinds.len()];
    let mut lines = Vec::new();
    for _ in 0..ROUNDS {
        lines.push(cache_line());
        for ((_, measure, amount), (times, rates)) in kinds.iter().zip(&mut rows) {
            let found = measure(*amount);
            times.push(found.half_round_trip_us(50));
            rates.push(found.goodput() / 1e9);
        }
    }
    println!("{:<20} {:>16} {:>16}", "", "8 B, half (us)", "1 MiB (GB/s)");
    println!("{:<20} {:>16.3} {:>16}", "a cache line", median(lines), "-");
    for ((name, ..), (times, rates)) in kinds.iter().zip(rows) {
        println!("{name:<20} {:>16.3} {:>16.2}", median(times), median(rates));
    }
}
