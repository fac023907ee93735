//! The memory through which ordinary slices are copied is kept. A program of its own, as it looks at what the process has
//! mapped.
#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

mod common;

use std::{collections::BTreeSet, fs};

use common::Daemon;

/// The memory files of arenas that this process has mapped, the daemon's mappings among them.
fn arenas() -> BTreeSet<String> {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let of_arenas = maps.lines().filter(|line| line.contains("ringway-arena"));
    of_arenas.filter_map(|line| line.split_whitespace().nth(4).map(str::to_owned)).collect()
}

#[test]
fn a_refused_call_costs_no_staging_memory() {
    let daemon = Daemon::start();
    daemon.world(1, |world| {
        let gather = |counts: &[u64]| world.blocking().all_gather_v(&[1_u32; 100], &mut [0; 100], counts);
        gather(&[100]).expect("gathered");
        let before = arenas();
        assert!(!before.is_empty(), "slices are copied");
        for _ in 0..3 {
            gather(&[99]).expect_err("the counts are wrong");
            gather(&[100]).expect("gathered");
        }
        assert_eq!(arenas(), before);
    });
}
