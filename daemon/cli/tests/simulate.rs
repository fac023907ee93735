//! `ringway simulate` as it is used.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn ringway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringway")).arg("simulate").args(arguments).output().unwrap()
}

fn told(arguments: &[&str]) -> String {
    let output = ringway(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = ringway(arguments);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_same_arguments_tell_the_same_and_a_seed_decides() {
    let with = |seed| {
        let seed = format!("{seed}");
        told(&[
            "--nodes",
            "48",
            "-b",
            "64K,1M",
            "--straggler",
            "share=0.1,slowdown=3",
            "--seed",
            &seed,
            "--json",
        ])
    };
    assert_eq!(with(7), with(7));
    assert!((1..5).any(|seed| with(seed) != with(7)));
}

#[test]
fn a_table_has_a_row_for_every_algorithm_size_and_number_of_nodes() {
    let table = told(&["--nodes", "2,16", "-b", "4K", "-e", "64K", "--algorithm", "ring,direct"]);
    let rows: Vec<&str> = table.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), 2 * 3 * 2, "{table}");
    assert!(rows.iter().all(|row| row.contains("all nodes") && row.contains("events")), "{table}");
}

#[test]
fn sixteen_thousand_nodes_are_simulated_by_classes() {
    let json = told(&["--nodes", "16384", "-b", "1M", "--algorithm", "ring", "--json"]);
    let row: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!((&row["ranks"], &row["simulated"]["nodes"]), (&131_072.into(), &32.into()));
    assert!(row["time_us"].as_f64().unwrap() > 1000.0, "{json}");
}

/// Groups are the nodes on a leaf switch, of the file or without one, unless the arguments say otherwise.
#[test]
fn groups_are_those_of_the_leaf_switches() {
    let path = std::env::temp_dir().join(format!("ringway-simulate-{}.toml", std::process::id()));
    std::fs::write(&path, "nodes_per_leaf = 4\noversubscription = 4.0\nspines = 2").unwrap();
    let file = ["--topology", path.to_str().unwrap()];
    let time = |more: &[&str]| {
        let pair = ["--nodes", "64", "-b", "1M", "--algorithm", "hierarchical:ring+ring", "--json"];
        let row: serde_json::Value =
            serde_json::from_str(told(&[&pair[..], &file, more].concat()).trim()).unwrap();
        row["time_us"].as_f64().unwrap()
    };
    let (own, leaf, other) = (time(&[]), time(&["--group-nodes", "4"]), time(&["--group-nodes", "0"]));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(own, leaf);
    assert_ne!(own, other);
}

/// The sample is read, and is the cluster that it says.
#[test]
fn the_sample_network_is_a_network() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fat-tree.toml");
    let json = told(&["--topology", sample, "-b", "1M", "--algorithm", "ring", "--json"]);
    let row: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!((&row["ranks"], &row["simulated"]["nodes"]), (&131_072.into(), &64.into()));
}

#[test]
fn a_picture_is_well_formed_and_has_a_line_for_each_algorithm() {
    let path = std::env::temp_dir().join(format!("ringway-simulate-{}.svg", std::process::id()));
    told(&["--nodes", "4,8,16", "-b", "1K", "-e", "1M", "--plot", path.to_str().unwrap()]);
    let drawn = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let document = roxmltree::Document::parse(&drawn).unwrap();
    let lines = document.descendants().filter(|node| node.has_tag_name("polyline")).count();
    // At least direct and ring, over sizes and over nodes.
    assert!(lines >= 4 && lines % 2 == 0, "{lines}");
}

#[test]
fn what_is_wrong_is_told() {
    for (arguments, part) in [
        (vec!["--algorithm", "star"], "there are local, direct, ring"),
        (vec!["--operation", "all_gather_v"], "without counts"),
        (vec!["--topology", "/none"], "cannot read /none"),
        (vec!["--straggler", "node=64,slowdown=2"], "nodes are 0 to 63"),
        (vec!["--fail-link", "leaf=9,spine=0"], "leaf 0 to 1"),
        (vec!["--fail-link", "leaf=0,spine=99"], "no link between leaf 0 and spine 99, rail 0: "),
        (vec!["--fail-link", "spine=0"], "not of the form"),
        (vec!["--chunk", "0"], "--chunk is 0"),
        (vec!["-b", "1K", "-e", "1"], "no size lies between 1024 and 1; give -b at most -e"),
    ] {
        let told = refused(&arguments);
        assert!(told.contains(part), "{arguments:?}: {told}");
    }
}

/// A time that cannot be told is not told.
#[test]
fn what_takes_too_long_says_so() {
    let output = ringway(&["-b", "99999999G", "--algorithm", "ring"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && told.contains("it would take more than 213 days"), "{told}");
}
