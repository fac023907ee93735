//! Waiting on the processor that the daemon has.
#![allow(clippy::expect_used, reason = "these are tests")]

mod common;

use std::{thread, time::Duration};

use common::Daemon;
use ringway_mem::calls;
use ringway_service::Settings;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const MESSAGES: u64 = 30;
/// Polling for a moment makes at least twice as many system calls, all of them hand-overs.
const CALLS_MOST: u64 = 32;

#[test]
fn whoever_waits_for_long_beside_the_daemon_sleeps() {
    let all = sched_getaffinity(None).expect("affinity");
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a processor");
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).expect("threads started later stay there as well");
    let daemon = Daemon::start_as(|settings| Settings {
        isolation: Some("strict".to_owned()),
        // The daemon's own hand-overs would count.
        polling: Some("block".to_owned()),
        engine_cpu: i64::try_from(cpu).ok(),
        ..settings
    });
    let before = calls::made();
    daemon.world(2, |world| {
        for _ in 0..MESSAGES {
            if world.rank() == 0 {
                thread::sleep(Duration::from_millis(1));
                world.blocking().send(&[1_u8], 1, 0).expect("send");
            } else {
                world.blocking().recv(&mut [0_u8], 0, 0).expect("recv");
            }
        }
    });
    let made = calls::made() - before;
    assert!(made < MESSAGES * CALLS_MOST, "{made} calls for {MESSAGES} messages");
}
