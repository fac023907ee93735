//! Simulated times of algorithms of two levels are the closed ones: of HCCL's pipeline the published one, of hierarchical ones
//! those of both stages one after the other. `a` is a message, `b` a byte; combining takes no time, as in those formulas.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use ringway_plan::simulate::{
    Costs, Detail, Fabric, Limits, Link, Network, Request, Routing, Tree, simulate,
};
use ringway_plan::{Algorithm, Call, Layout, Tuning};
use ringway_types::Operation;

/// Picoseconds: of a message, of a byte.
const A: u64 = 3_000_000;
const B: f64 = 40.0;

const COSTS: Costs = Costs { message: 0, reduce: 0.0, copy: 0.0, scratch: u64::MAX, eager: u64::MAX };
const HALVES: [Operation; 2] = [Operation::AllGather, Operation::ReduceScatter];
/// Nodes, and nodes of a group.
const GROUPS: [(u32, u32); 9] = [(4, 2), (6, 2), (6, 3), (8, 4), (12, 3), (16, 4), (24, 3), (32, 8), (64, 8)];

/// Every pair of nodes has a link of its own. Of a message's time this share is the link's latency.
fn mesh(nodes: u32, latency: u64) -> Network {
    Network::new(nodes, Fabric::Mesh(Link { latency, gap: A - latency, bandwidth: 1e12 / B }), COSTS)
}

/// The time of a call in one chunk of so many bytes: of the vector, or of all blocks together.
fn time(network: &Network, algorithm: Algorithm, operation: Operation, bytes: u64, group: u32) -> f64 {
    time_in_chunks(1, network, algorithm, operation, bytes, group)
}

fn time_in_chunks(
    chunks: u64,
    network: &Network,
    algorithm: Algorithm,
    operation: Operation,
    bytes: u64,
    group_nodes: u32,
) -> f64 {
    let nodes = network.nodes;
    let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).expect("a layout");
    let streams = if HALVES.contains(&operation) { u64::from(nodes) } else { 1 };
    let call = Call { operation, element: 4, count: bytes / 4 / streams, root: 0 };
    let chunk_bytes = if chunks == 1 { 1 << 40 } else { bytes / chunks };
    let tuning = Tuning {
        chunk_bytes,
        direct_max_bytes: 0,
        depth: 8,
        pack_max_bytes: 0,
        group_nodes,
        eager_write_max_bytes: 0,
    };
    let limits = Limits { whole_steps: u64::MAX, ..Limits::default() };
    let (layout, tuning, detail) = (&layout, &tuning, Detail::Nodes);
    let request = Request { network, layout, call, algorithm, tuning, detail, limits };
    let outcome = simulate(&request, &mut |_| {}).expect("a time");
    assert_eq!(outcome.chunks, chunks, "{algorithm} {operation}");
    outcome.time as f64
}

/// Evenly divided into blocks of whole cache lines of elements.
fn bytes(nodes: u32) -> u64 {
    u64::from(nodes) * 64 * 4 * 16
}

fn named(name: &str) -> Algorithm {
    Algorithm::from_name(name).expect("an algorithm")
}

fn assert_near(found: f64, expected: f64, within: f64, what: &str) {
    let off = (found - expected).abs() / expected;
    assert!(off <= within, "{what}: {found} ps, not {expected}");
}

/// `max(s / p b_x + a_x, s / p b_i + a_i) (P_x - 1) + s / p b_i + a_i`, and twice that for an allreduce.
fn pipeline(groups: f64, outer: f64, inner: f64, operation: Operation) -> f64 {
    let half = outer.max(inner) * (groups - 1.0) + inner;
    if operation == Operation::Allreduce { 2.0 * half } else { half }
}

#[test]
fn a_pipeline_takes_what_is_published_where_all_links_are_alike() {
    for (nodes, group) in GROUPS {
        let message = A as f64 + bytes(nodes) as f64 / f64::from(nodes) * B;
        for operation in [HALVES[0], HALVES[1], Operation::Allreduce] {
            for latency in [0, A / 3, A] {
                let found = time(&mesh(nodes, latency), Algorithm::Pipeline, operation, bytes(nodes), group);
                let expected = pipeline(f64::from(nodes / group), message, message, operation);
                assert_near(found, expected, 1e-9, &format!("{operation} on {nodes} nodes by {group}"));
            }
        }
    }
}

/// Groups are on leaf switches. Their ports are so fast that nothing waits for them; nodes of the same place in their groups
/// have spines of their own.
fn leaves(nodes: u32, group: u32) -> Network {
    const FAST: f64 = 1e6;
    let port = Link { latency: A / 8, gap: 0, bandwidth: FAST * 1e12 / B };
    let trunk = Link { latency: A, gap: 0, bandwidth: 1e12 / B };
    let tree =
        Tree { rails: 1, nodes_per_leaf: group, spines: group, port, trunk, routing: Routing::Destination };
    Network::new(nodes, Fabric::Tree(tree), COSTS)
}

#[test]
fn a_pipeline_takes_what_is_published_where_groups_have_fast_links() {
    for (nodes, group) in GROUPS {
        let part = bytes(nodes) as f64 / f64::from(nodes);
        let inner = A as f64 / 4.0;
        let outer = A as f64 / 4.0 + 2.0 * A as f64 + part * B;
        for operation in [HALVES[0], HALVES[1], Operation::Allreduce] {
            let found = time(&leaves(nodes, group), Algorithm::Pipeline, operation, bytes(nodes), group);
            let expected = pipeline(f64::from(nodes / group), outer, inner, operation);
            assert_near(found, expected, 1e-5, &format!("{operation} on {nodes} nodes by {group}"));
        }
    }
}

/// Messages and bytes one behind the other of an all_gather or reduce_scatter of `n` bytes on `p` nodes by an algorithm that
/// may be a stage.
fn stage(name: &str, p: f64, n: f64) -> f64 {
    let (messages, bytes) = match name {
        "two-shot" => (1.0, n / p),
        "ring" => (p - 1.0, n * (p - 1.0) / p),
        _ => (p.log2().ceil(), n * (p - 1.0) / p),
    };
    messages * A as f64 + bytes * B
}

#[test]
fn a_hierarchical_algorithm_takes_what_its_stages_do() {
    for (inner, outer) in [
        ("two-shot", "ring"),
        ("ring", "two-shot"),
        ("ring", "ring"),
        ("nhr", "ring"),
        ("bruck", "nhr"),
        ("halving-doubling", "halving-doubling"),
    ] {
        let algorithm = named(&format!("hierarchical:{inner}+{outer}"));
        let any = inner != "halving-doubling";
        for (nodes, group) in GROUPS.into_iter().filter(|it| any || it.0.is_power_of_two()) {
            let n = bytes(nodes) as f64;
            let (place, groups) = (f64::from(group), f64::from(nodes / group));
            let half = stage(inner, place, n) + stage(outer, groups, n / place);
            for (operation, times) in [(HALVES[0], 1.0), (HALVES[1], 1.0), (Operation::Allreduce, 2.0)] {
                let found = time(&mesh(nodes, A / 3), algorithm, operation, bytes(nodes), group);
                let what = format!("{algorithm} {operation} on {nodes} nodes by {group}");
                assert_near(found, times * half, 1e-9, &what);
            }
        }
    }
}

/// A broadcast and a reduce along trees take as many messages one behind the other as there are levels of both; along chains
/// chunk behind chunk.
#[test]
fn trees_of_two_levels_take_what_their_levels_do() {
    for (nodes, group) in GROUPS {
        let (n, place, groups) = (bytes(nodes) as f64, f64::from(group), f64::from(nodes / group));
        for operation in [Operation::Broadcast, Operation::Reduce] {
            let what = format!("{operation} on {nodes} nodes by {group}");
            let chains = named("hierarchical:ring+ring");
            for chunks in [1, 16] {
                let found = time_in_chunks(chunks, &mesh(nodes, 0), chains, operation, bytes(nodes), group);
                let (hops, c) = (place + groups - 2.0, chunks as f64);
                assert_near(found, (hops - 1.0 + c) * (A as f64 + n / c * B), 1e-9, &what);
            }
            if nodes.is_power_of_two() {
                let binomial = named("hierarchical:binomial+binomial");
                let found = time(&mesh(nodes, A / 3), binomial, operation, bytes(nodes), group);
                assert_near(found, f64::from(nodes).log2() * (A as f64 + n * B), 1e-9, &what);
            }
        }
    }
}

/// In one chunk a pipeline has both kinds of links busy at once, which a hierarchical algorithm has only in several.
#[test]
fn a_pipeline_overlaps_within_a_chunk() {
    let on = |algorithm| time(&mesh(16, A / 3), algorithm, Operation::AllGather, 1 << 24, 4);
    let behind = on(named("hierarchical:two-shot+ring"));
    assert!(on(Algorithm::Pipeline) < 0.6 * behind);
}
