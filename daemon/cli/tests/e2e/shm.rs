//! Nodes of one host, joined by memory that they share.

use serde_json::Value;

use crate::harness::{
    Daemon, KEY, LONG, Program, assert_mentions, form, has_namespaces, node, ringway, run_ringway, tell_all,
    two_nodes,
};

const LOOPBACK: [&str; 4] = ["--nodes", "2", "--network", "loopback"];

fn rows(arguments: &[&str]) -> Vec<Value> {
    let mut command = ringway(&[&["perf"], arguments, &["--json"]].concat());
    let out = Program::start(&mut command).end_within(5 * LONG).success().out;
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// An allreduce of two ranks, of many messages.
#[track_caller]
fn assert_works(nodes: &[Daemon]) -> Vec<crate::harness::Rank> {
    let mut ranks = form(nodes, 1, "");
    tell_all(&mut ranks, "call allreduce f32 sum 400000 0");
    assert!(ranks.iter_mut().all(|rank| rank.answer().as_deref() == Ok("3.0")));
    ranks
}

#[test]
fn collectives_and_messages_are_exact() {
    for (operation, ranks) in
        [("allreduce", "4"), ("all_to_all", "4"), ("scan", "4"), ("allreduce", "2"), ("send_recv", "2")]
    {
        let given = ["--ranks", ranks, "--sizes", "8,1000,100K,3M", "-n", "2", "-w", "0"];
        let rows = rows(&[&[operation], &given[..], &LOOPBACK, &["--device", "shm"]].concat());
        assert_eq!(rows.len(), 4, "{operation}: {rows:?}");
        for row in &rows {
            assert_eq!((&row["errors"], &row["device"]), (&0.into(), &"shm".into()), "{row}");
        }
    }
}

#[test]
fn auto_takes_it_among_daemons_of_one_host_and_it_copies_once() {
    let nodes = two_nodes("device = \"auto\"");
    let _ranks = assert_works(&nodes);
    for node in &nodes {
        let status = node.status();
        assert_eq!(
            (&status["device"], &status["communicators"][0]["device"]),
            (&"shm".into(), &"shm".into())
        );
        let counters = &status["devices"][0]["counters"];
        let count = |name: &str| counters[name].as_u64().unwrap_or_else(|| panic!("{name}: {counters}"));
        // Half of 1.6 million bytes goes each way at least, straight from regions, each of which was told of once.
        assert!(count("bytes_straight") >= 800_000 && count("bytes_staged") == 0, "{counters}");
        assert!((1..10).contains(&count("regions_told")), "{counters}");
        assert_eq!(count("failures"), 0, "{counters}");
    }
    let socket = nodes[0].socket.display().to_string();
    let shown = run_ringway(&["status", "--socket", &socket]).success().out;
    assert_mentions(&shown, &["device shm: ", "bytes straight", "messages sent"]);
}

#[test]
fn auto_goes_on_to_the_next_where_a_node_cannot_share_memory_and_says_why() {
    let nodes = ["device = \"auto\"", "device = \"tcp\""].map(|device| node(KEY, device).0);
    let _ranks = assert_works(&nodes);
    for node in &nodes {
        assert_eq!(node.status()["communicators"][0]["device"], "tcp");
    }
    assert_mentions(&nodes[0].log(), &["device `shm` is not used", "on this host", "using `tcp`"]);
    assert!(!nodes[1].log().contains("`shm`"), "it was not asked for");
}

/// What `auto` chooses there is in the tests of the RoCE devices.
#[test]
fn nodes_in_different_network_namespaces_do_not_have_it_in_common() {
    if !has_namespaces() {
        return;
    }
    let given = ["perf", "allreduce", "--ranks", "2", "--nodes", "2", "--network", "namespaces"];
    let ended = run_ringway(&[&given[..], &["--device", "shm"]].concat()).failure();
    assert_mentions(&(ended.out + &ended.err), &["no device in common", "`shm:", "place"]);
}
