//! What networks do to messages: sharing, stragglers, failed links; how they are described; and that the same gives the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ringway_plan::simulate::{
    Broken, Description, Detail, Failure, Limits, Network, Outcome, Request, Wire, simulate,
};
use ringway_plan::{Algorithm, Call, Layout, Tuning};
use ringway_types::Operation;

/// Nothing but links takes time: 1 GB/s each, without latency.
const BARE: &str = "link = { latency_us = 0, bandwidth = '1GB/s' }\ntrunk = { latency_us = 0 }\n\
    node = { message_us = 0, reduce_ns_per_byte = 0, copy_ns_per_byte = 0, eager = '1024GiB' }\n";

fn network(nodes: u32, toml: &str, seed: u64) -> Network {
    Description::from_toml(&format!("{toml}\n{BARE}")).unwrap().network(nodes, seed)
}

fn run(
    network: &Network,
    algorithm: Algorithm,
    operation: Operation,
    bytes: u64,
) -> Result<Outcome, Failure> {
    let layout = Layout::new(&(0..network.nodes).collect::<Vec<_>>()).unwrap();
    let parts = if operation == Operation::AllGather { u64::from(network.nodes) } else { 1 };
    let call = Call { operation, element: 1, count: bytes / parts, root: 0 };
    let tuning = Tuning {
        chunk_bytes: 1 << 40,
        direct_max_bytes: 0,
        depth: 4,
        pack_max_bytes: 0,
        group_nodes: 0,
        eager_write_max_bytes: 0,
    };
    let (detail, limits) = (Detail::Auto, Limits::default());
    let layout = &layout;
    simulate(&Request { network, layout, call, algorithm, tuning: &tuning, detail, limits }, &mut |_| {})
}

/// Microseconds; a megabyte takes 1000 of them on a link of its own.
fn us(outcome: &Outcome) -> f64 {
    outcome.time as f64 / 1e6
}

fn near(found: &Outcome, us_expected: f64) {
    assert!((us(found) / us_expected - 1.0).abs() < 0.02, "{} us, not {us_expected}", us(found));
}

const MB: u64 = 1_000_000;

#[test]
fn messages_share_the_ports_and_the_trunks_they_meet_on() {
    let broadcast = |toml| run(&network(9, toml, 0), Algorithm::Direct, Operation::Broadcast, MB).unwrap();
    near(&broadcast("kind = 'mesh'"), 1000.0);
    let found = broadcast("kind = 'ports'");
    near(&found, 8000.0);
    let (wire, used) = found.busiest.unwrap();
    assert_eq!(wire, Wire::Out { node: 0, rail: 0 });
    assert!((used - 1.0).abs() < 0.02, "{used}");
    // Eight times the ports, and bytes are divided over them.
    near(&broadcast("kind = 'rail-optimised'\nrails = 8\nnodes_per_leaf = 9"), 1000.0);
    // Six of eight messages leave the leaf over two trunks with a quarter of a port's bandwidth each, three on either.
    let found = broadcast("nodes_per_leaf = 3\nspines = 2\noversubscription = 6");
    assert!(us(&found) > 12_000.0 * 0.98, "{found:?}");
    assert!(matches!(found.busiest, Some((Wire::Up { leaf: 0, .. }, _))), "{found:?}");
}

#[test]
fn shares_are_max_min_fair() {
    // Node 1 sends to 0 and 2; each of 2 and 3 to all others, and so on: all ports carry three messages both ways.
    let found = run(&network(4, "kind = 'ports'", 0), Algorithm::Direct, Operation::Allreduce, MB).unwrap();
    near(&found, 3000.0);
}

#[test]
fn a_slow_node_slows_a_ring_down() {
    let time = |slow: Option<(u32, f64)>| {
        let mut network = network(8, "kind = 'ports'", 0);
        if let Some((node, factor)) = slow {
            network.slow_down(node, factor).unwrap();
        }
        us(&run(&network, Algorithm::Ring, Operation::Allreduce, 8 * MB).unwrap())
    };
    let (well, slow, slower) = (time(None), time(Some((3, 2.0))), time(Some((3, 4.0))));
    assert!(slow > 1.5 * well && slower > 1.5 * slow, "{well} {slow} {slower}");
    assert!(network(8, "", 0).slow_down(8, 2.0).unwrap_err().to_string().contains("nodes are 0 to 7"));
}

#[test]
fn what_took_a_failed_link_takes_another_one_or_is_told() {
    let toml = "nodes_per_leaf = 4\nspines = 2";
    let allreduce = |network: &Network| run(network, Algorithm::Ring, Operation::Allreduce, 8 * MB);
    let mut network = network(8, toml, 0);
    let well = allreduce(&network).unwrap();
    network.fail(Broken::Trunk { leaf: 0, spine: 0, rail: 0 }).unwrap();
    let rerouted = allreduce(&network).unwrap();
    assert!(rerouted.time >= well.time);
    network.fail(Broken::Trunk { leaf: 1, spine: 1, rail: 0 }).unwrap();
    let told = allreduce(&network).unwrap_err().to_string();
    assert!(told.contains("cannot reach node") && told.contains("no spine"), "{told}");
    let none = network.fail(Broken::Trunk { leaf: 2, spine: 0, rail: 0 }).unwrap_err().to_string();
    assert!(none.contains("leaf 0 to 1 and spine 0 to 1"), "{none}");
    assert!(network.fail(Broken::Pair(0, 1)).is_err());
}

#[test]
fn rails_that_are_left_carry_all() {
    let toml = "kind = 'rail-optimised'\nrails = 2\nnodes_per_leaf = 4\nspines = 2";
    let allreduce = |network: &Network| run(network, Algorithm::Ring, Operation::Allreduce, 8 * MB);
    let mut network = network(4, toml, 0);
    let well = us(&allreduce(&network).unwrap());
    network.fail(Broken::Port { node: 2, rail: 1 }).unwrap();
    let left = us(&allreduce(&network).unwrap());
    assert!((left / well - 2.0).abs() < 0.05, "{well} {left}");
    network.fail(Broken::Port { node: 2, rail: 0 }).unwrap();
    let told = allreduce(&network).unwrap_err().to_string();
    assert!(told.contains("cannot reach node") && told.contains("every port"), "{told}");
}

#[test]
fn a_seed_decides_all() {
    let found = |seed| {
        let mut network = network(64, "nodes_per_leaf = 8\nspines = 4\nrouting = 'hash'", seed);
        network.slow_down_some(0.1, 3.0, seed);
        run(&network, Algorithm::Direct, Operation::AllGather, 64 * MB).unwrap()
    };
    let text = |outcome: &Outcome| format!("{outcome:?}");
    let first = found(1);
    assert_eq!(text(&first), text(&found(1)));
    assert!((2..6).any(|seed| found(seed).time != first.time));
    let mut network = network(20, "", 1);
    network.slow_down_some(0.1, 2.0, 1);
    assert_eq!((0..20).filter(|node| network.slowdown(*node) > 1.0).count(), 2);
}

#[test]
fn errors_name_the_field_and_what_is_allowed() {
    let told = |toml: &str| Description::from_toml(toml).unwrap_err().to_string();
    for (toml, parts) in [
        ("kind = 'torus'", vec!["kind", "torus", "fat-tree", "rail-optimised"]),
        ("nodes_pre_leaf = 3", vec!["nodes_pre_leaf", "nodes_per_leaf"]),
        ("spines = 0", vec!["spines", "1 to 65536"]),
        ("oversubscription = -1", vec!["oversubscription", "0.01"]),
        ("[link]\nbandwidth = '4 furlongs'", vec!["bandwidth", "4 furlongs", "400Gb/s"]),
        ("[link]\nbandwidth = 0", vec!["link.bandwidth", "1 to 1e15"]),
        ("[link]\nlatency_us = -1", vec!["link.latency_us", "0 to 1e9"]),
        ("[node]\nscratch = '1.5B'", vec!["scratch", "1GiB"]),
        ("[node]\nreduce_ns_per_byte = nan", vec!["node.reduce_ns_per_byte", "nanoseconds"]),
        ("nodes = 3000000", vec!["nodes", "1048576"]),
    ] {
        let told = told(toml);
        assert!(parts.iter().all(|part| told.contains(part)), "{toml}: {told}");
    }
    let rates = Description::from_toml("[link]\nbandwidth = '400Gb/s'\n[trunk]\nbandwidth = 1e9").unwrap();
    assert!((rates.link.bandwidth.0 - 50e9).abs() < 1.0 && rates.trunk.bandwidth.unwrap().0 == 1e9);
    assert_eq!(Description::from_toml("[node]\nscratch = '2GiB'").unwrap().node.scratch.0, 2 << 30);
    assert_eq!(Description::from_toml("").unwrap(), Description::default());
}
