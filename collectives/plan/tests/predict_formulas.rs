//! Predicted times are the closed ones of the literature where nodes spend nothing of their own on messages and nothing is
//! shared: `a` a message, `b` a byte, `g` a byte that is combined with another one. One rank on each node.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use ringway_plan::tuner::{Constants, Problem, predict};
use ringway_plan::{Algorithm, Layout};
use ringway_types::Operation;

const A: f64 = 3000.0;
const B: f64 = 0.25;
const G: f64 = 0.125;

/// What a formula is made of; `n` bytes of the vector, or of all blocks together; of all_to_all what a node gives away.
#[derive(Clone, Copy)]
struct Of {
    p: f64,
    /// `lg p`, rounded down and up.
    lg: f64,
    lg_up: f64,
    n: f64,
}

struct Line {
    algorithm: &'static str,
    operation: Operation,
    nodes: &'static [u32],
    /// Every pair of nodes has a link of its own; else all that a node sends leaves by one port.
    mesh: bool,
    /// Messages, bytes and bytes combined one behind the other.
    formula: fn(Of) -> (f64, f64, f64),
}

const POWERS: &[u32] = &[2, 4, 8, 16, 32, 64, 1024];
const ANY: &[u32] = &[2, 3, 4, 5, 6, 7, 8, 12, 17, 32, 33, 63, 64, 100, 1000];
const FROM_3: &[u32] = &[3, 4, 5, 6, 7, 8, 12, 17, 32, 33, 63, 64, 100, 1000];
const FROM_4: &[u32] = &[4, 8, 16, 32, 64, 1024];
const ODD: &[u32] = &[3, 5, 6, 7, 11, 12, 24, 63, 100];

/// What is left of all bytes without a node's own.
fn part(of: Of) -> f64 {
    of.n * (of.p - 1.0) / of.p
}

/// Halving and doubling where nodes beyond a power of two hand what they have to others first and get it back last.
fn folded(of: Of) -> (f64, f64, f64) {
    let q = of.lg.exp2();
    (2.0 * of.lg + 2.0, (2.0 * (q - 1.0) / q + 2.0) * of.n, ((q - 1.0) / q + 1.0) * of.n)
}

fn lines() -> Vec<Line> {
    use Operation as O;
    let port = |algorithm, operation, nodes, formula: fn(Of) -> (f64, f64, f64)| Line {
        algorithm,
        operation,
        nodes,
        mesh: false,
        formula,
    };
    let mesh = |algorithm, operation, nodes, formula: fn(Of) -> (f64, f64, f64)| Line {
        mesh: true,
        ..port(algorithm, operation, nodes, formula)
    };
    vec![
        port("recursive-doubling", O::Allreduce, POWERS, |o| (o.lg, o.lg * o.n, o.lg * o.n)),
        port("halving-doubling", O::Allreduce, POWERS, |o| (2.0 * o.lg, 2.0 * part(o), part(o))),
        port("halving-doubling", O::Allreduce, ODD, folded),
        port("ring", O::Allreduce, ANY, |o| (2.0 * (o.p - 1.0), 2.0 * part(o), part(o))),
        port("nhr", O::Allreduce, ANY, |o| (2.0 * o.lg_up, 2.0 * part(o), part(o))),
        mesh("two-shot", O::Allreduce, ANY, |o| (2.0, 2.0 * o.n / o.p, part(o))),
        mesh("direct", O::Allreduce, ANY, |o| (1.0, o.n, (o.p - 1.0) * o.n)),
        port("ring", O::ReduceScatter, ANY, |o| (o.p - 1.0, part(o), part(o))),
        port("halving-doubling", O::ReduceScatter, POWERS, |o| (o.lg, part(o), part(o))),
        port("nhr", O::ReduceScatter, ANY, |o| (o.lg_up, part(o), part(o))),
        port("bruck", O::ReduceScatter, ANY, |o| (o.lg_up, part(o), part(o))),
        mesh("direct", O::ReduceScatter, ANY, |o| (1.0, o.n / o.p, part(o))),
        port("ring", O::AllGather, FROM_3, |o| (o.p - 1.0, part(o), 0.0)),
        port("bruck", O::AllGather, ANY, |o| (o.lg_up, part(o), 0.0)),
        port("nhr", O::AllGather, ANY, |o| (o.lg_up, part(o), 0.0)),
        port("recursive-doubling", O::AllGather, POWERS, |o| (o.lg, part(o), 0.0)),
        mesh("direct", O::AllGather, ANY, |o| (1.0, o.n / o.p, 0.0)),
        port("bruck", O::AllToAll, POWERS, |o| (o.lg, o.n / 2.0 * o.lg, 0.0)),
        port("pairwise", O::AllToAll, ANY, |o| (o.p - 1.0, part(o), 0.0)),
        mesh("direct", O::AllToAll, ANY, |o| (1.0, o.n / o.p, 0.0)),
        port("binomial", O::Broadcast, POWERS, |o| (o.lg, o.lg * o.n, 0.0)),
        port("binomial", O::Reduce, POWERS, |o| (o.lg, o.lg * o.n, o.lg * o.n)),
        port("scatter-all-gather", O::Broadcast, FROM_4, |o| (o.lg + o.p - 1.0, 2.0 * part(o), 0.0)),
        mesh("direct", O::Broadcast, ANY, |o| (1.0, o.n, 0.0)),
    ]
}

fn constants() -> Constants {
    let none = Constants { message_ns: 0.0, copy_ns: 0.0, ..Constants::default() };
    Constants { latency_ns: A, byte_ns: B, reduce_ns: G, ..none }
}

fn layout(nodes: u32) -> Layout {
    Layout::new(&(0..nodes).collect::<Vec<_>>()).expect("a layout")
}

#[test]
fn times_are_those_of_the_closed_formulas() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for Line { algorithm, operation, nodes, mesh, formula } in lines() {
        let found = Algorithm::from_name(algorithm).expect("an algorithm");
        for &nodes in nodes {
            let (layout, bytes) = (layout(nodes), u64::from(nodes) * 4096);
            let (p, n) = (f64::from(nodes), bytes as f64);
            let (messages, moved, combined) =
                formula(Of { p, lg: p.log2().floor(), lg_up: p.log2().ceil(), n });
            let expected = messages * A + moved * B + combined * G;
            let (chunk_bytes, depth) = (1 << 40, 1);
            let problem = Problem {
                channels: None,
                layout: &layout,
                operation,
                bytes,
                chunk_bytes,
                depth,
                mesh,
                group_nodes: 0,
                asks: false,
                eager_write_max_bytes: 0,
            };
            let time = predict(found, &problem, &constants()).expect("a time").time_ns;
            if (time / expected - 1.0).abs() > 1e-9 {
                wrong.push(format!("{algorithm} {operation} on {nodes} nodes: {time} ns, not {expected}"));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "not by the formula:\n{}", wrong.join("\n"));
    assert!(checked > 200, "{checked}");
}

/// `(p - 2 + c) (a + n b / c)`, where as many of the `c` chunks are under way as the ring has links.
#[test]
fn a_pipelined_ring_takes_a_message_more_for_every_further_chunk() {
    for &nodes in FROM_3 {
        for chunks in [1, 2, 7, 64] {
            let (layout, bytes) = (layout(nodes), 4096 * chunks);
            let problem = Problem {
                layout: &layout,
                operation: Operation::Broadcast,
                bytes,
                chunk_bytes: 4096,
                depth: nodes - 1,
                channels: None,
                mesh: false,
                asks: false,
                eager_write_max_bytes: 0,
                group_nodes: 0,
            };
            let found = predict(Algorithm::Ring, &problem, &constants()).expect("a time");
            let expected = (f64::from(nodes) - 2.0 + chunks as f64) * (A + 4096.0 * B);
            assert_eq!(found.chunks, chunks);
            assert!(
                (found.time_ns / expected - 1.0).abs() < 1e-9,
                "{nodes} nodes, {chunks} chunks: {found:?}"
            );
        }
    }
}

/// `2 lg p (a + n b / c) + 2 n b` of a long vector in many chunks, of which enough are under way: about, as it is published.
#[test]
fn a_double_tree_takes_about_what_is_published() {
    for nodes in [7_u32, 15, 31, 63, 255, 1023] {
        for chunks in [64_u64, 256, 1024] {
            let (layout, bytes) = (layout(nodes), chunks << 20);
            let problem = Problem {
                layout: &layout,
                operation: Operation::Allreduce,
                bytes,
                chunk_bytes: 1 << 20,
                depth: 64,
                channels: None,
                mesh: false,
                asks: false,
                eager_write_max_bytes: 0,
                group_nodes: 0,
            };
            let free = Constants { reduce_ns: 0.0, ..constants() };
            let found = predict(Algorithm::DoubleTree, &problem, &free).expect("a time");
            let (lg, n, c) = (f64::from(nodes + 1).log2(), bytes as f64, found.chunks as f64);
            let expected = 2.0 * lg * (A + n / c * B) + 2.0 * n * B;
            let ratio = found.time_ns / expected;
            assert!((0.8..1.25).contains(&ratio), "{nodes} nodes, {chunks} chunks: {ratio}");
        }
    }
}
