//! Waiting on the processor that the daemon has.
#![allow(clippy::expect_used, reason = "these are tests")]

mod common;

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use common::Daemon;
use ringway_client::Communicator;
use ringway_service::Settings;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const MESSAGES: u64 = 30;
/// Whoever polls hands the processor over at least twice as often for each message.
const SWITCHES_MOST: u64 = 32;

/// Runs two ranks, with rings of so many submissions, on the processor of a daemon that polls and does all of their work; gives
/// what they return.
fn beside<R: Send>(ring_size: u32, body: impl Fn(&Communicator) -> R + Sync) -> [R; 2] {
    let all = sched_getaffinity(None).expect("affinity");
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a processor");
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).expect("threads started later stay there as well");
    let daemon = Daemon::start_as(|settings| Settings {
        isolation: Some("strict".to_owned()),
        polling: Some("spin".to_owned()),
        engine_cpu: i64::try_from(cpu).ok(),
        ..settings
    });
    let id = daemon.client().unique_id(false).expect("id");
    let rank = |rank| {
        let client = daemon.client();
        body(&client.communicator(&id, rank, 2).ring_size(ring_size).join().expect("join"))
    };
    thread::scope(|scope| {
        [0, 1].map(|number| scope.spawn(move || rank(number))).map(|rank| rank.join().expect("a rank"))
    })
}

/// How often this thread has given the processor to another without sleeping.
fn switches() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a count")
}

#[test]
fn whoever_waits_for_long_beside_the_daemon_sleeps() {
    let made = beside(256, |world| {
        let before = switches();
        for _ in 0..MESSAGES {
            if world.rank() == 0 {
                thread::sleep(Duration::from_millis(1));
                world.blocking().send(&[1_u8], 1, 0).expect("send");
            } else {
                world.blocking().recv(&mut [0_u8], 0, 0).expect("recv");
            }
        }
        switches() - before
    });
    assert!(made[1] < MESSAGES * SWITCHES_MOST, "{made:?} switches for {MESSAGES} messages");
}

#[test]
fn nobody_waits_long_for_room_in_the_ring() {
    const ROUNDS: u32 = 40;
    let took = beside(64, |world| {
        let arena = world.client().arena(1 << 16).expect("arena");
        let buffer = || arena.buffer::<u8>(1).expect("buffer");
        let mut took = Duration::ZERO;
        for _ in 0..ROUNDS {
            if world.rank() == 0 {
                let begun = Instant::now();
                let receives = [(); 100].map(|()| world.recv(buffer(), 1, 0).expect("recv"));
                took += begun.elapsed();
                thread::sleep(Duration::from_millis(1));
                world.blocking().send(&[1_u8], 1, 1).expect("send");
                receives.into_iter().for_each(|receive| drop(receive.wait().expect("received")));
            } else {
                world.blocking().recv(&mut [0_u8], 0, 1).expect("recv");
                (0..100).for_each(|_| world.blocking().send(&[1_u8], 0, 0).expect("send"));
            }
        }
        took
    });
    // A wait that nobody ends takes 50 ms.
    assert!(took[0] < ROUNDS * Duration::from_millis(25), "{took:?}");
}
