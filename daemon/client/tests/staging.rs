//! The memory through which ordinary slices are copied is kept. A program of its own, as it looks at what the process has
//! mapped.
#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

mod common;

use std::{
    collections::BTreeSet,
    fs,
    sync::{Mutex, PoisonError},
};

use common::Daemon;
use ringway_client::{Error, OperationError, Reduction, Status};

/// Held by each test: what the others map is not its own.
static MAPPED: Mutex<()> = Mutex::new(());

/// The memory files of arenas that this process has mapped, the daemon's mappings among them.
fn arenas() -> BTreeSet<String> {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let of_arenas = maps.lines().filter(|line| line.contains("ringway-arena"));
    of_arenas.filter_map(|line| line.split_whitespace().nth(4).map(str::to_owned)).collect()
}

#[test]
fn a_refused_call_costs_no_staging_memory() {
    let _alone = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The first call of a size makes memory for it, long enough for another rank to die meanwhile: it is not gone on with.
#[test]
fn memory_for_a_call_that_cannot_succeed_is_not_made() {
    /// Its pages take longer than what passes between two questions.
    const BYTES: usize = 512 << 20;
    let _alone = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::start_as(|settings| ringway_service::Settings {
        isolation: Some("strict".to_owned()),
        ..settings
    });
    daemon.world(2, |world| {
        if world.rank() == 1 {
            world.abort().expect("abort");
            return;
        }
        while world.blocking().barrier().is_ok() {}
        let mut values = vec![0_u64; BYTES / 8];
        let error = world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect_err("aborted");
        let Error::Operation(OperationError::Failed { status: Status::Aborted, message }) = error else {
            panic!("{error}")
        };
        assert!(message.contains("rank 1"), "{message}");
        assert_eq!(arenas(), BTreeSet::new());
    });
}
