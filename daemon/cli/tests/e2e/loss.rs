//! Processes that are killed: everybody else gets an error that names them, soon, and nobody hangs.
//!
//! The bounds here allow for a machine that does much else meanwhile; what was measured is printed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Daemon, Rank, assert_mentions, eventually, form, tell_all, two_nodes};

/// What moves data between the nodes, one after the other.
const DEVICES: [&str; 4] =
    ["device = \"tcp\"", "device = \"tcp-epoll\"", "device = \"roce-udp\"", "device = \"shm\""];

/// The most that a loss may take to be told.
const SOON: Duration = Duration::from_secs(10);

/// Gives every rank's error and prints how long the slowest took since `since`.
fn errors(what: &str, since: Instant, ranks: &mut [Rank]) -> Vec<String> {
    let errors: Vec<String> = ranks.iter_mut().map(|rank| rank.answer().expect_err("a loss")).collect();
    let took = since.elapsed();
    eprintln!("{what}: every rank knows after {:.1} ms", took.as_secs_f64() * 1e3);
    assert!(took < SOON, "{what} took {took:?}");
    errors
}

/// Every rank runs collectives without pause.
fn start_loops(ranks: &mut [Rank], count: usize) {
    tell_all(ranks, &format!("loop {count}"));
    for rank in ranks {
        assert_eq!(rank.answer().as_deref(), Ok("looping"));
    }
}

#[test]
fn a_client_killed_in_the_middle_of_a_collective_is_named_on_its_node() {
    let daemon = Daemon::start("");
    for count in [2, 400_000] {
        let mut ranks = form(std::slice::from_ref(&daemon), 3, "");
        start_loops(&mut ranks, count);
        let since = Instant::now();
        ranks.remove(1).kill();
        for error in errors("client killed in a collective, one node", since, &mut ranks) {
            assert_mentions(&error, &["rank 1 failed", "process ended"]);
        }
        assert_mentions(&ranks[0].must_fail("call barrier u8 - 0 0"), &["rank 1 failed"]);
    }
    // The daemon serves whoever comes next.
    let mut ranks = form(std::slice::from_ref(&daemon), 2, "");
    tell_all(&mut ranks, "call allreduce f32 sum 8 0");
    assert!(ranks.iter_mut().all(|r| r.answer().as_deref() == Ok("3.0")));
}

#[test]
fn a_client_killed_before_its_call_is_named_to_those_that_wait() {
    let daemon = [Daemon::start("")];
    let mut ranks = form(&daemon, 3, "");
    let mut killed = ranks.remove(2);
    tell_all(&mut ranks, "call allreduce f32 sum 8 0");
    std::thread::sleep(Duration::from_millis(300));
    let since = Instant::now();
    killed.kill();
    for error in errors("client killed before its call, one node", since, &mut ranks) {
        assert_mentions(&error, &["rank 2 failed", "process ended"]);
    }
}

#[test]
fn a_client_killed_on_another_node_is_named() {
    for device in DEVICES {
        let nodes = two_nodes(device);
        for count in [2, 400_000] {
            let mut ranks = form(&nodes, 2, "");
            start_loops(&mut ranks, count);
            let since = Instant::now();
            ranks.remove(3).kill();
            for error in errors("client killed in a collective, two nodes", since, &mut ranks) {
                assert_mentions(&error, &["rank 3 failed", "process ended"]);
            }
        }
        let mut ranks = form(&nodes, 1, "");
        tell_all(&mut ranks, "call allreduce f32 sum 8 0");
        assert!(ranks.iter_mut().all(|r| r.answer().as_deref() == Ok("3.0")));
    }
}

#[test]
fn a_client_killed_while_joining_is_named() {
    let daemon = Daemon::start("");
    let [mut first, mut second] = [(); 2].map(|()| Rank::start(&daemon));
    let id = first.must("id");
    first.tell(&format!("join {id} 0 3 join_ms=60000"));
    second.tell(&format!("join {id} 2 3 join_ms=60000"));
    eventually("both joining", || daemon.status()["joining"].as_array().is_some_and(|j| j.len() == 2));
    second.kill();
    assert_mentions(&first.answer().expect_err("rank 2 is gone"), &["rank 2 was lost"]);
}

#[test]
fn clients_of_a_killed_daemon_get_an_error() {
    let mut daemon = Daemon::start("");
    let mut ranks = form(std::slice::from_ref(&daemon), 2, "");
    start_loops(&mut ranks, 1000);
    let since = Instant::now();
    daemon.kill();
    for error in errors("daemon killed, its own clients", since, &mut ranks) {
        assert_mentions(&error, &["daemon is gone"]);
    }
    assert_mentions(&ranks[0].must_fail("call barrier u8 - 0 0"), &["daemon is gone"]);
    assert_mentions(&ranks[0].must_fail("status"), &["daemon is gone", "connect again"]);
}

#[test]
fn clients_that_wait_for_a_killed_daemon_get_an_error() {
    let mut daemon = Daemon::start("");
    let mut ranks = form(std::slice::from_ref(&daemon), 2, "");
    let mut other = ranks.remove(1);
    ranks[0].tell("call allreduce f32 sum 8 0");
    std::thread::sleep(Duration::from_millis(300));
    let since = Instant::now();
    daemon.kill();
    for error in errors("daemon killed, a sleeping client", since, &mut ranks) {
        assert_mentions(&error, &["daemon is gone"]);
    }
    assert_mentions(&other.must_fail("call barrier u8 - 0 0"), &["daemon is gone"]);
}

#[test]
fn a_killed_peer_daemon_is_named_to_the_other_nodes_clients() {
    for device in DEVICES {
        let mut nodes = two_nodes(device);
        let mut ranks = form(&nodes, 2, "");
        start_loops(&mut ranks, 1000);
        let since = Instant::now();
        nodes[1].kill();
        let (mine, theirs) = ranks.split_at_mut(2);
        for error in errors("peer daemon killed", since, mine) {
            assert_mentions(&error, &["node 1", "rank 2", "lost"]);
        }
        for error in errors("daemon killed, its own clients", since, theirs) {
            assert_mentions(&error, &["daemon is gone"]);
        }
    }
}

#[test]
fn a_killed_peer_daemon_is_named_to_those_that_wait_for_its_ranks() {
    for device in DEVICES {
        let mut nodes = two_nodes(device);
        let mut ranks = form(&nodes, 1, "");
        ranks.truncate(1);
        ranks[0].tell("call allreduce f32 sum 400000 0");
        std::thread::sleep(Duration::from_millis(300));
        let since = Instant::now();
        nodes[1].kill();
        let error = errors("peer daemon killed, a waiting rank", since, &mut ranks).remove(0);
        assert!(error.contains("node 1") || error.contains("rank 1"), "{error}");
    }
}

#[test]
fn a_silent_peer_daemon_is_found() {
    for device in DEVICES {
        let nodes = two_nodes(&format!("{device}\npeer_timeout_ms = 1000"));
        let mut ranks = form(&nodes, 1, "");
        let mut other = ranks.remove(1);
        ranks[0].tell("call allreduce f32 sum 8 0");
        nodes[1].process.signal(Signal::STOP);
        let since = Instant::now();
        let error = errors("peer daemon stopped", since, &mut ranks).remove(0);
        assert_mentions(&error, &["node 1", "rank 1"]);
        nodes[1].process.signal(Signal::CONT);
        other.must_fail("call allreduce f32 sum 8 0");
    }
}
