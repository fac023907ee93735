//! `ringway doctor` on this host, whatever that is.

use serde_json::Value;

use crate::harness::{Daemon, assert_mentions, free_address, run_ringway};

/// Every check, in the order of `--help`.
const CHECKS: [&str; 23] = [
    "kernel",
    "shared_memory",
    "tcp",
    "io_uring",
    "privileges",
    "memlock",
    "huge_pages",
    "cpus",
    "clock",
    "congestion_control",
    "udp_buffers",
    "network",
    "roce_port",
    "af_xdp",
    "rdma_ports",
    "rdma_transport",
    "rdma_access",
    "rdma_gids",
    "rdma_mtu",
    "verbs",
    "cuda",
    "gpu_direct",
    "auto",
];

/// All tests of this program need what the doctor needs for an exit status of zero.
#[test]
fn doctor_says_the_same_to_people_and_programs() {
    // For a moment it has the port of RoCE there, which other tests have at other addresses.
    let address = free_address().ip().to_string();
    let out = run_ringway(&["doctor", "--json", "--listen", &address]).success().out;
    let all: Vec<Value> = serde_json::from_str(&out).expect("an array");
    let names: Vec<&str> = all.iter().map(|one| one["check"].as_str().expect("a name")).collect();
    assert_eq!(names, CHECKS);
    for one in &all {
        let status = one["status"].as_str().expect("a status");
        assert!(["ok", "note", "warn", "absent"].contains(&status), "{one}");
        assert!(!one["found"].as_str().expect("a text").is_empty(), "{one}");
        assert!(one["why"].is_null() || one["why"].is_string(), "{one}");
        assert!(one["mend"].as_array().expect("commands").iter().all(Value::is_string), "{one}");
    }

    let text = run_ringway(&["doctor", "--listen", &address]).success().out;
    let (verdict, checks) = CHECKS.split_last().expect("checks");
    let second = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    let of_checks: Vec<String> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| !line.starts_with(' '))
        .filter_map(second)
        .collect();
    assert_eq!(of_checks, *checks, "{text}");
    let picked = all.last().expect("a verdict")["found"].as_str().expect("a device");
    assert_mentions(&text, &[&format!("Between nodes `{verdict}` would pick {picked}")]);
    assert!(!text.contains('\x1b') && text.lines().count() < 60, "{text}");
}

/// Whatever it opened is closed, so that a daemon can be asked about while it runs.
#[test]
fn doctor_disturbs_no_daemon() {
    let daemon = Daemon::start("");
    let before = daemon.status()["counters"]["sessions"].clone();
    run_ringway(&["doctor"]).success();
    // The first look was a session itself.
    let after = daemon.status()["counters"]["sessions"].as_u64().expect("a count");
    assert_eq!(Some(after), before.as_u64().map(|count| count + 1));
}

#[test]
fn doctor_refuses_what_makes_no_sense() {
    let cases: [(&[&str], &[&str]); 3] = [
        (&["rxe0"], &["rxe0", "Usage: ringway doctor"]),
        (&["--listen", "eth0"], &["eth0", "--listen"]),
        (&["--yaml"], &["--yaml"]),
    ];
    for (arguments, parts) in cases {
        let ended = run_ringway(&[&["doctor"], arguments].concat()).failure();
        assert_mentions(&ended.err, parts);
        assert_eq!(ended.out, "");
    }
    // An address of nobody's is not an error, but told.
    let out = run_ringway(&["doctor", "--listen", "198.51.100.77"]).success().out;
    assert_mentions(&out, &["198.51.100.77 is not an address of this host"]);
}
