//! Collectives over one node and over two: results, and calls that do not match.

use crate::harness::{Daemon, Rank, assert_mentions, form, tell_all, two_nodes};

/// Every rank's answer to the same command.
fn all(ranks: &mut [Rank], command: &str) -> Vec<Result<String, String>> {
    tell_all(ranks, command);
    ranks.iter_mut().map(Rank::answer).collect()
}

fn results_are_exact(mut ranks: Vec<Rank>) {
    let n = ranks.len();
    let sum = n * (n + 1) / 2;
    // Nothing, odd lengths, more than a chunk.
    for count in [1, 3, 1000, 300_007] {
        for answer in all(&mut ranks, &format!("call allreduce f64 sum {count} 0")) {
            assert_eq!(answer, Ok(format!("{sum}.0")));
        }
        for answer in all(&mut ranks, &format!("call broadcast i32 - {count} 1")) {
            assert_eq!(answer, Ok("2".to_owned()));
        }
        let last = n - 1;
        let answers = all(&mut ranks, &format!("call reduce u64 max {count} {last}"));
        assert_eq!(answers[last], Ok(n.to_string()));
        for (rank, answer) in all(&mut ranks, &format!("call scan u8 sum {count} 0")).into_iter().enumerate()
        {
            assert_eq!(answer, Ok(((rank + 1) * (rank + 2) / 2).to_string()));
        }
        assert!(all(&mut ranks, "call barrier u8 - 0 0").iter().all(Result::is_ok));
    }
    assert!(all(&mut ranks, "call allreduce f32 sum 0 0").iter().all(|a| a.as_deref() == Ok("nothing")));
}

#[test]
fn results_are_exact_on_one_node() {
    let daemon = [Daemon::start("")];
    results_are_exact(form(&daemon, 3, ""));
}

#[test]
fn results_are_exact_on_two_nodes() {
    for device in ["tcp", "shm"] {
        let nodes = two_nodes(&format!("device = {device:?}"));
        results_are_exact(form(&nodes, 2, ""));
    }
}

/// Pairs of calls that must not match, and what stands in the error for each.
const MISMATCHES: [[&str; 4]; 7] = [
    ["allreduce f32 sum 8 0", "broadcast f32 - 8 0", "`allreduce f32 sum x8`", "`broadcast f32 x8 root 0`"],
    ["allreduce f32 sum 8 0", "allreduce f32 sum 9 0", "`allreduce f32 sum x8`", "`allreduce f32 sum x9`"],
    ["allreduce f32 sum 8 0", "allreduce f64 sum 8 0", "`allreduce f32 sum x8`", "`allreduce f64 sum x8`"],
    ["allreduce f32 sum 8 0", "allreduce f32 max 8 0", "`allreduce f32 sum x8`", "`allreduce f32 max x8`"],
    [
        "broadcast u8 - 100 0",
        "broadcast u8 - 100 1",
        "`broadcast u8 x100 root 0`",
        "`broadcast u8 x100 root 1`",
    ],
    ["barrier u8 - 0 0", "allreduce i32 min 1 0", "`barrier`", "`allreduce i32 min x1`"],
    // Beyond what is sent without asking.
    ["reduce f32 sum 400000 0", "reduce f32 sum 400001 0", "x400000 root 0`", "x400001 root 0`"],
];

fn mismatches_name_both_calls(form: impl Fn() -> Vec<Rank>) {
    for [first, second, is, other] in MISMATCHES {
        let mut ranks = form();
        let last = ranks.len() - 1;
        for (number, rank) in ranks.iter_mut().enumerate() {
            rank.tell(&format!("call {}", if number == last { second } else { first }));
        }
        for (number, rank) in ranks.iter_mut().enumerate() {
            // A rank that only sends may have finished: it learns it from its next call.
            let error = match rank.answer() {
                Err(error) => error,
                Ok(_) => rank.must_fail("call barrier u8 - 0 0"),
            };
            assert_mentions(&error, &[is, other, "ranks called different operations"]);
            assert_mentions(&error, &[&format!("rank {last} called")]);
            assert!(!error.contains("not joined"), "rank {number}: {error}");
        }
    }
}

#[test]
fn calls_that_differ_on_one_node_are_both_named() {
    let daemon = [Daemon::start("")];
    mismatches_name_both_calls(|| form(&daemon, 2, ""));
}

#[test]
fn calls_that_differ_between_nodes_are_both_named() {
    let nodes = two_nodes("");
    mismatches_name_both_calls(|| form(&nodes, 1, ""));
}

#[test]
fn calls_that_differ_are_both_named_to_every_rank_of_every_node() {
    let nodes = two_nodes("");
    mismatches_name_both_calls(|| form(&nodes, 2, ""));
}

fn a_root_that_had_finished_learns_it(mut ranks: Vec<Rank>) {
    // Small enough that a root may send and go on.
    ranks[0].tell("call broadcast u8 - 16 0");
    std::thread::sleep(std::time::Duration::from_millis(200));
    let error = ranks[1].must_fail("call allreduce u8 sum 16 0");
    let both = ["`broadcast u8 x16 root 0`", "`allreduce u8 sum x16`", "rank 0 called", "rank 1 called"];
    assert_mentions(&error, &both);
    if let Err(error) = ranks[0].answer() {
        assert_mentions(&error, &both);
    }
    let error = ranks[0].must_fail("call barrier u8 - 0 0");
    assert_mentions(&error, &both);
}

#[test]
fn a_root_that_had_finished_learns_it_on_one_node() {
    let daemon = [Daemon::start("")];
    a_root_that_had_finished_learns_it(form(&daemon, 2, ""));
}

#[test]
fn a_root_that_had_finished_learns_it_on_two_nodes() {
    let nodes = two_nodes("");
    a_root_that_had_finished_learns_it(form(&nodes, 1, ""));
}

#[test]
fn an_abort_reaches_every_rank_and_names_its_author() {
    let nodes = two_nodes("");
    let mut ranks = form(&nodes, 2, "");
    for rank in &mut ranks[..3] {
        rank.tell("call allreduce f32 sum 8 0");
    }
    ranks[3].must("abort");
    for rank in &mut ranks[..3] {
        assert_mentions(&rank.answer().expect_err("aborted"), &["rank 3 aborted"]);
    }
    assert_mentions(&ranks[3].must_fail("call barrier u8 - 0 0"), &["aborted"]);
}
