//! Plans in files: written, changed, proved and run by daemons.

use std::{fs, path::Path};

use crate::harness::{Folder, KEY, Rank, assert_mentions, form, node, run_ringway, tell_all};

/// Writes an algorithm as a file in a folder, with some words replaced.
fn exported(folder: &Folder, nodes: &str, changes: &[(&str, &str)]) -> String {
    let file = folder.join("plan.json").display().to_string();
    let ring = ["--operation", "allreduce", "--algorithm", "ring", "--nodes", nodes];
    run_ringway(&[&["plan", "export", "--output", &file], &ring[..]].concat()).success();
    let mut text = fs::read_to_string(&file).expect("the file");
    for (from, to) in changes {
        assert!(text.contains(from), "no `{from}` in {text}");
        text = text.replace(from, to);
    }
    fs::write(&file, text).expect("the file");
    file
}

/// What makes of a ring a plan of another name, with other tags and short chunks.
const CHANGES: [(&str, &str); 3] = [
    ("allreduce-ring", "mine"),
    ("\"tag\":1", "\"tag\":71"),
    ("\"chunk_bytes\": 393216", "\"chunk_bytes\": 12288"),
];

#[test]
fn daemons_run_a_plan_that_was_written_and_changed() {
    let folder = Folder::new();
    let file = exported(&folder, "3", &CHANGES);
    let verified = run_ringway(&["plan", "verify", &file]).success();
    assert_mentions(&verified.out, &["the plan mine-3 is right: allreduce between 3 nodes", "messages"]);
    let settings = format!("plans = [{file:?}]\n");
    let daemons = [(); 3].map(|()| node(KEY, &settings).0);
    let mut ranks = form(&daemons, 2, "");
    for count in [1, 5, 3000, 200_000] {
        tell_all(&mut ranks, &format!("call allreduce u64 sum {count} 0"));
        for rank in &mut ranks {
            assert_eq!(rank.answer(), Ok("21".to_owned()), "{count} elements");
        }
        for daemon in &daemons {
            assert_eq!(daemon.status()["communicators"][0]["algorithm"], "mine-3");
        }
    }
    // Another operation has no such plan.
    tell_all(&mut ranks, "call broadcast i32 - 5 1");
    ranks.iter_mut().for_each(|rank| assert!(rank.answer().is_ok()));
    assert_ne!(daemons[0].status()["communicators"][0]["algorithm"], "mine-3");
}

#[test]
fn nodes_with_different_plans_are_told_so() {
    let folder = Folder::new();
    let file = exported(&folder, "2", &CHANGES[..1]);
    let daemons = [node(KEY, &format!("plans = [{file:?}]\n")).0, node(KEY, "").0];
    let mut ranks = [Rank::start(&daemons[0]), Rank::start(&daemons[1])];
    let id = ranks[0].must("id several");
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.tell(&format!("join {id} {number} 2"));
    }
    for rank in &mut ranks {
        let error = rank.answer().expect_err("refused");
        assert_mentions(
            &error,
            &["allreduce between 2 nodes", "rank 0", "the plan mine-2", "rank 1 no plan", "`plans`"],
        );
    }
}

#[test]
fn a_daemon_does_not_start_with_a_wrong_plan() {
    let folder = Folder::new();
    let file = exported(&folder, "2", &[("\"finish\":true", "\"finish\":false")]);
    let ended = run_ringway(&["daemon", "--plans", &file]).failure();
    let parts = ["setting `plans`", &file, "plan allreduce-ring-2", "element 0", "finished wrongly"];
    assert_mentions(&ended.err, &parts);
    let ended = run_ringway(&["plan", "verify", &file]).failure();
    assert_mentions(&ended.err, &["plan allreduce-ring-2", "finished wrongly"]);
    let ended = run_ringway(&["daemon", "--plans", "/nowhere/plan.json"]).failure();
    assert_mentions(&ended.err, &["setting `plans`", "/nowhere/plan.json", "No such file"]);
}

#[test]
fn a_plan_that_combines_otherwise_does_not_start_under_strict() {
    let folder = Folder::new();
    let file = exported(&folder, "3", &[]);
    let ended = run_ringway(&["daemon", "--order", "strict", "--plans", &file]).failure();
    assert_mentions(&ended.err, &["setting `plans`", &file, "strict", "allreduce-ring-3"]);
}

#[test]
fn a_plan_is_shown_as_table_picture_and_json() {
    let folder = Folder::new();
    let picture = folder.join("ring.svg").display().to_string();
    let ring = ["--operation", "reduce", "--algorithm", "ring", "--nodes", "3"];
    let table = run_ringway(&[&["plan", "show", "--svg", &picture], &ring[..]].concat()).success();
    assert_mentions(&table.out, &["reduce-ring-3", "waits for", "scratch 0 + inputs"]);
    assert!(fs::read_to_string(Path::new(&picture)).expect("a picture").starts_with("<svg"));
    let json = run_ringway(&[&["plan", "show", "--json"], &ring[..]].concat()).success();
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!((&json["operation"], &json["nodes"]), (&"reduce".into(), &3.into()));
    let ended =
        run_ringway(&["plan", "export", "--operation", "scan", "--algorithm", "direct", "--nodes", "2"]);
    assert_mentions(&ended.failure().err, &["plans in files are for allreduce", "scan is not among them"]);
    for nothing in [&["plan", "show"][..], &["plan", "show", "--nodes", "3"]] {
        let ended = run_ringway(nothing).failure();
        assert_mentions(&ended.err, &["give a file, or --algorithm, --operation and --nodes"]);
    }
    // What no file says is shown as well.
    let scan = ["plan", "show", "--operation", "scan", "--algorithm", "direct", "--nodes", "2"];
    assert_mentions(&run_ringway(&scan).success().out, &["scan-direct-2", "fold", "scratch 0 + inputs"]);
    let file = exported(&folder, "3", &[]);
    assert_mentions(&run_ringway(&["plan", "show", &file]).success().out, &["allreduce-ring-3", "waits for"]);
}
