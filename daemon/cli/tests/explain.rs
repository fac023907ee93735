//! `ringway explain` as it is used.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::Value;

fn ringway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringway")).arg("explain").args(arguments).output().unwrap()
}

fn told(arguments: &[&str]) -> String {
    let output = ringway(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What is said of each size.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let text = told(&[arguments, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A file that is gone when the test is over.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringway-explain-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The lines about the constants.
fn constants(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("#   ")).collect()
}

fn links(device: &str, hosts: &str) -> String {
    format!(
        "[[links]]\ndevice = '{device}'\n{hosts}\nlatency_ns = 1234000.0\nmessage_ns = 100.0\nbyte_ns = 0.5\n\
         reduce_ns = 0.1\ncopy_ns = 0.1\n"
    )
}

#[test]
fn constants_are_taken_from_the_tuning_file_whatever_hosts_they_were_measured_between() {
    let three = "hosts = ['10.0.0.1', '10.0.0.2', '10.0.0.3']";
    for (device, kind, hosts) in [
        ("tcp", "tcp", ""),
        ("tcp", "tcp-epoll", three),
        ("roce", "roce-udp", ""),
        ("shm:here", "shm", three),
    ] {
        let file = File::new(&format!("{kind}.toml"), &links(device, hosts));
        let text =
            told(&["allreduce", "-b", "64", "--nodes", "3", "--device", kind, "--tuning", file.name()]);
        assert!(text.contains("constants from the tuning file") && text.contains("1234 us"), "{text}");
    }
    let file = File::new("other.toml", &links("tcp", three));
    let text = told(&["allreduce", "-b", "64", "--nodes", "2", "--tuning", file.name()]);
    assert!(text.contains("the tuning file has none for tcp between 2 nodes"), "{text}");
}

#[test]
fn a_rule_of_the_tuning_file_is_what_is_chosen() {
    let rule = "[[rules]]\nnodes = 4\noperation = 'allreduce'\nup_to_bytes = 4096\nalgorithm = 'ring'\n";
    let file = File::new("rule.toml", &format!("{rule}chunk_bytes = 8192\n{}", links("tcp", "")));
    let sizes = ["allreduce", "-b", "64,1M"];
    let with = |more: &[&str]| rows(&[&sizes[..], more].concat());
    let (four, five) = (with(&["--tuning", file.name()]), with(&["--nodes", "5", "--tuning", file.name()]));
    assert_eq!((&four[0]["chosen"], &four[0]["chosen_by"]), (&"ring".into(), &"rule".into()));
    let ring = four[0]["candidates"].as_array().unwrap().iter().find(|it| it["algorithm"] == "ring").unwrap();
    assert_eq!(ring["chunk_bytes"], 8192);
    assert_ne!(four[0]["candidates"][0]["algorithm"], "ring", "nobody would choose it otherwise");
    for by_model in [&four[1], &five[0]] {
        assert_eq!(by_model["chosen_by"], "model");
        assert_eq!(by_model["chosen"], by_model["candidates"][0]["algorithm"]);
    }
    let text = told(&["allreduce", "-b", "64", "--tuning", file.name()]);
    assert!(text.contains("chosen: ring, by a rule of the tuning file"), "{text}");
    // An order that does not allow the rule goes before it.
    let strict = with(&["--order", "strict", "--tuning", file.name()]);
    assert_ne!(strict[0]["chosen"], "ring");
}

/// What is saved is what the next explanation goes by, and the daemons that it starts.
#[test]
fn what_is_saved_is_used() {
    let file = File::new("saved.toml", "");
    let explain = ["allreduce", "-b", "64,64K", "--nodes", "2"];
    let measure = ["--measure", "--rounds", "1"];
    let first = told(&[&explain[..], &measure, &["--save", file.name()]].concat());
    assert!(first.contains("measured between the daemons"), "{first}");
    let again = told(&[&explain[..], &["--tuning", file.name()]].concat());
    assert!(again.contains("constants from the tuning file"), "{again}");
    assert_eq!(constants(&again), constants(&first));
    let daemons = told(&[&explain[..], &measure, &["--tuning", file.name()]].concat());
    assert!(daemons.contains("constants from the tuning file"), "they measured anew: {daemons}");
    assert_eq!(constants(&daemons), constants(&first));
}

/// Nothing takes longer than a million times the best, and nothing less than once.
#[test]
fn a_bound_on_the_choice_is_held_or_missed() {
    let explain =
        ["allreduce", "-b", "64", "--nodes", "2", "--measure", "--rounds", "1", "--seconds", "0.01"];
    let rows = rows(&[&explain[..], &["--within", "1000000"]].concat());
    let measured = rows[0]["candidates"].as_array().unwrap().iter().map(|it| it["measured_us"].as_f64());
    assert!(measured.clone().count() > 1 && measured.flatten().all(|us| us > 0.0), "{rows:?}");
    assert!(rows[0]["chosen_over_best"].as_f64().unwrap() >= 1.0);
    for wrong in [&["--within", "0.5"][..], &["--within", "x"]] {
        let output = ringway(&[&explain[..], wrong].concat());
        assert!(String::from_utf8_lossy(&output.stderr).contains("is not a factor"), "{output:?}");
    }
    let output = ringway(&["allreduce", "--within", "1.25"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--measure"), "{output:?}");
}

/// Where nodes fall into groups of so many, algorithms that have groups are priced with these; where not, there are none.
#[test]
fn groups_are_as_many_nodes_as_are_asked_for() {
    let predicted = |group: &str| {
        let rows = rows(&["allreduce", "-b", "64K", "--nodes", "12", "--group-nodes", group]);
        let all = rows[0]["candidates"].as_array().unwrap();
        let pair = all.iter().find(|it| it["algorithm"] == "hierarchical:ring+ring");
        pair.map(|it| it["predicted_us"].as_f64().unwrap())
    };
    assert_eq!(predicted("0"), predicted("3"));
    assert_ne!(predicted("0"), predicted("6"));
    assert_eq!(predicted("5"), None);
}

/// Of a cluster that is described groups are those of its leaf switches.
#[test]
fn a_clusters_file_says_how_many_nodes_there_are_and_which_are_near_each_other() {
    let file = File::new("cluster.json", "");
    let topo = ["topo", "--hosts", "12", "--leaf", "6", "--write", file.name()];
    assert!(Command::new(env!("CARGO_BIN_EXE_ringway")).args(topo).status().unwrap().success());
    let size = ["allreduce", "-b", "64K"];
    let with = |more: &[&str]| rows(&[&size[..], more].concat());
    let described = with(&["--topology", file.name()]);
    assert_eq!(described, with(&["--nodes", "12", "--group-nodes", "6"]));
    assert_ne!(described, with(&["--nodes", "12"]));
}
