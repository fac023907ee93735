//! Ranks that do the daemon's local work while they wait, in operations over several nodes.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Daemon, LONG, Program, Rank, assert_mentions, form, ringway, tell_all, two_nodes};

/// Bytes that waiting ranks of a node have read and written for its daemon.
fn rank_bytes(daemon: &Daemon) -> u64 {
    daemon.status()["counters"]["rank_bytes"].as_u64().expect("a counter")
}

/// One rank's answers to a command that all are given.
fn all(ranks: &mut [Rank], command: &str) -> Vec<Result<String, String>> {
    tell_all(ranks, command);
    ranks.iter_mut().map(Rank::answer).collect()
}

#[test]
fn waiting_ranks_do_work_on_every_node_and_results_are_exact() {
    let nodes = two_nodes("");
    let mut ranks = form(&nodes, 2, "");
    // Whether a rank gets a piece before its daemon has done it is a matter of who runs when.
    let deadline = Instant::now() + LONG;
    loop {
        for answer in all(&mut ranks, "call allreduce f64 sum 300007 0") {
            assert_eq!(answer, Ok("10.0".to_owned()));
        }
        for answer in all(&mut ranks, "call broadcast i32 - 700001 1") {
            assert_eq!(answer, Ok("2".to_owned()));
        }
        for (rank, answer) in (1..).zip(all(&mut ranks, "call scan u64 sum 200003 0")) {
            assert_eq!(answer, Ok((rank * (rank + 1) / 2).to_string()));
        }
        assert_eq!(all(&mut ranks, "call reduce u64 max 300007 3")[3], Ok("4".to_owned()));
        if nodes.iter().all(|node| rank_bytes(node) > 0) {
            break;
        }
        assert!(Instant::now() < deadline, "{:?}", [rank_bytes(&nodes[0]), rank_bytes(&nodes[1])]);
    }
    let status = nodes[0].status();
    let communicator = &status["communicators"][0];
    assert_eq!(communicator["rank_bytes"].as_u64(), Some(rank_bytes(&nodes[0])));
    assert_eq!(communicator["path"], "engine");
}

#[test]
fn every_operation_is_exact_where_ranks_help() {
    let operations = "allreduce,reduce,broadcast,all_gather,reduce_scatter,gather,scatter,all_to_all,scan,exscan,all_gather_v,\
                      reduce_scatter_v,gather_v,scatter_v,all_to_all_v";
    let nodes = ["--ranks", "5", "--nodes", "2", "--network", "loopback"];
    let given = ["--sizes", "3M,100000", "-n", "5", "-w", "1", "--in-place", "both", "--json"];
    let mut command = ringway(&[&["perf", operations], &nodes[..], &given[..]].concat());
    let out = Program::start(&mut command).end_within(15 * LONG).success().out;
    for line in out.lines() {
        let row: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(row["errors"], 0, "{row}");
        assert!(row["rank_bytes"].is_u64(), "{row}");
    }
    // In both forms, but the last, which has one.
    assert_eq!(out.lines().count(), 15 * 4 - 2);
}

#[test]
fn ranks_that_are_stopped_at_any_time_are_named_and_nobody_hangs() {
    let nodes = two_nodes("");
    for (number, pause_us) in [(0, 700), (1, 1900), (2, 5300), (3, 11_100)] {
        let mut ranks = form(&nodes, 2, "timeout_ms=1500");
        tell_all(&mut ranks, "loop 700001");
        for rank in &mut ranks {
            assert_eq!(rank.answer().as_deref(), Ok("looping"));
        }
        std::thread::sleep(Duration::from_micros(pause_us));
        ranks[number].process.signal(Signal::STOP);
        for (other, rank) in ranks.iter_mut().enumerate().filter(|(other, _)| *other != number) {
            let error = rank.answer().expect_err("a timeout");
            assert_mentions(&error, &["timed out", &format!("rank {number} has not called it")]);
            assert!(!error.contains("daemon"), "rank {other}: {error}");
        }
        ranks[number].process.signal(Signal::CONT);
        let error = ranks[number].answer().expect_err("a timeout");
        assert_mentions(&error, &["timed out"]);
    }
    // The daemons serve whoever comes next.
    let mut ranks = form(&nodes, 2, "");
    assert!(all(&mut ranks, "call allreduce f32 sum 8 0").iter().all(|a| a.as_deref() == Ok("10.0")));
}
