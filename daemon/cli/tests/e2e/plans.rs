//! Plans in files: written, changed, proved and shown.

use std::{fs, path::Path};

use crate::harness::{Folder, assert_mentions, run_ringway};

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

#[test]
fn a_plan_that_was_changed_is_proved_again() {
    let folder = Folder::new();
    let changes = [("allreduce-ring", "mine"), ("\"tag\":1", "\"tag\":71")];
    let file = exported(&folder, "3", &changes);
    let verified = run_ringway(&["plan", "verify", &file]).success();
    assert_mentions(&verified.out, &["the plan mine-3 is right: allreduce between 3 nodes", "messages"]);
    let file = exported(&folder, "2", &[("\"finish\":true", "\"finish\":false")]);
    let ended = run_ringway(&["plan", "verify", &file]).failure();
    assert_mentions(&ended.err, &["plan allreduce-ring-2", "finished wrongly"]);
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
}
