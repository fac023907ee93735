//! Ranks that live but do not come.

use std::time::Duration;

use crate::harness::{Daemon, Rank, assert_mentions, eventually, form, run_ringway, two_nodes};

/// Rank `late` stays away while the others call: it is named in the status and in the log of the waiting ranks' node,
/// and when it comes everything goes on.
fn the_late_rank_is_named(daemons: &[Daemon], mut ranks: Vec<Rank>, late: usize) {
    for (number, rank) in ranks.iter_mut().enumerate() {
        if number != late {
            rank.tell("call allreduce f32 sum 8 0");
        }
    }
    let socket = daemons[0].socket.display().to_string();
    let status = || {
        let text = run_ringway(&["status", "--json", "--socket", &socket]).success().out;
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    eventually("naming the late rank in the status", || {
        status()["communicators"][0]["late_ranks"] == serde_json::json!([late])
    });
    let communicator = status()["communicators"][0].clone();
    assert_mentions(communicator["current"].as_str().expect("text"), &["allreduce f32 sum x8"]);
    eventually("naming the late rank in the log", || {
        daemons[0].log().lines().any(|l| l.contains(&format!("rank {late}")) && l.contains("allreduce"))
    });
    let table = run_ringway(&["status", "--socket", &socket]).success().out;
    assert_mentions(&table, &[&format!("waits for rank {late}"), "allreduce f32 sum x8"]);
    assert!(!ranks[0].has_answered_within(Duration::ZERO), "the others still wait");
    ranks[late].must("call allreduce f32 sum 8 0");
    for (number, rank) in ranks.iter_mut().enumerate() {
        if number != late {
            rank.answer().expect("it came");
        }
    }
    assert_eq!(status()["communicators"][0]["late_ranks"], serde_json::json!([]));
}

#[test]
fn a_late_rank_is_named_on_one_node() {
    let daemons = [Daemon::start("late_after_s = 1")];
    let ranks = form(&daemons, 3, "");
    the_late_rank_is_named(&daemons, ranks, 1);
}

#[test]
fn a_late_rank_is_named_on_another_node() {
    let daemons = two_nodes("late_after_s = 1");
    let ranks = form(&daemons, 2, "");
    the_late_rank_is_named(&daemons, ranks, 3);
}

#[test]
fn an_operation_that_takes_too_long_names_who_has_not_called_it() {
    let daemon = [Daemon::start("")];
    let mut ranks = form(&daemon, 3, "timeout_ms=800");
    ranks[0].tell("call allreduce f32 sum 8 0");
    ranks[2].tell("call allreduce f32 sum 8 0");
    for rank in [0, 2] {
        let error = ranks[rank].answer().expect_err("rank 1 does not come");
        assert_mentions(&error, &["`allreduce f32 sum x8`", "timed out", "rank 1 has not called it"]);
    }
    assert_mentions(&ranks[1].must_fail("call allreduce f32 sum 8 0"), &["timed out"]);
}

#[test]
fn an_operation_that_takes_too_long_names_the_rank_of_another_node() {
    let nodes = two_nodes("");
    let mut ranks = form(&nodes, 1, "timeout_ms=1500");
    let error = ranks[0].must_fail("call allreduce f32 sum 8 0");
    assert_mentions(&error, &["`allreduce f32 sum x8`", "timed out", "rank 1 has not called it"]);
}
