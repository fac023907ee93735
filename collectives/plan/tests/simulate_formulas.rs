//! Simulated times are the closed ones of the literature where nothing is shared: `a` a message, `b` a byte, `g` a byte that is
//! combined with another one. One line for each algorithm; those of algorithms that there are not (yet) are passed over, and
//! counted.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use ringway_plan::simulate::{Costs, Detail, Fabric, Limits, Link, Network, Request, simulate};
use ringway_plan::{Algorithm, Call, Layout, Tuning};
use ringway_types::Operation;

/// Picoseconds: of a message, of a byte, of a byte combined.
const A: u64 = 3_000_000;
const B: f64 = 40.0;
const G: f64 = 25.0;

/// Every pair of nodes has a link of its own. Of a message's time this share is the link's latency, which the next message
/// does not wait for, and the rest its gap, which it does.
fn mesh(nodes: u32, latency: u64) -> Network {
    let link = Link { latency, gap: A - latency, bandwidth: 1e12 / B };
    let costs = Costs { message: 0, reduce: G, copy: 0.0, scratch: u64::MAX, eager: u64::MAX };
    Network::new(nodes, Fabric::Mesh(link), costs)
}

/// Algorithms are found whether their names have `-` or `_`.
fn named(name: &str) -> Option<Algorithm> {
    Algorithm::ALL.iter().copied().find(|algorithm| algorithm.name().replace('_', "-") == name)
}

/// What a formula is made of.
#[derive(Clone, Copy)]
struct Of {
    p: f64,
    /// `lg p`, rounded down and up.
    lg: f64,
    lg_up: f64,
    n: f64,
    chunks: f64,
}

struct Line {
    algorithm: &'static str,
    operation: Operation,
    nodes: &'static [u32],
    chunks: u64,
    /// Messages, bytes and bytes combined one behind the other.
    formula: fn(Of) -> (f64, f64, f64),
    /// The share by which the time may differ.
    within: f64,
}

const EXACT: f64 = 1e-9;
const FROM_8: &[u32] = &[8, 16, 32];
const POWERS: &[u32] = &[2, 4, 8, 16, 32];
const ANY: &[u32] = &[2, 3, 5, 8, 12, 17, 32];
/// As many as may be spoken to at once: a direct exchange has three steps with each node, and 65 are looked at.
const AT_ONCE: &[u32] = &[2, 3, 5, 8, 12, 17];
/// Of an odd number of nodes one has no partner in each round.
const EVEN: &[u32] = &[2, 4, 6, 8, 12, 16, 32];
const FROM_3: &[u32] = &[3, 4, 5, 8, 12, 17, 32];
const ODD: &[u32] = &[3, 5, 6, 7, 11, 12, 24];

const fn line(
    algorithm: &'static str,
    operation: Operation,
    nodes: &'static [u32],
    formula: fn(Of) -> (f64, f64, f64),
) -> Line {
    Line { algorithm, operation, nodes, chunks: 1, formula, within: EXACT }
}

/// What is left of all bytes without a node's own.
fn part(of: Of) -> f64 {
    of.n * (of.p - 1.0) / of.p
}

/// Halving and doubling where nodes beyond a power of two hand what they have to others first and get it back last.
fn folded(of: Of) -> (f64, f64, f64) {
    let q = of.lg.exp2();
    (2.0 * of.lg + 2.0, (2.0 * (q - 1.0) / q + 2.0) * of.n, ((q - 1.0) / q + 1.0) * of.n)
}

/// With `n` bytes: of the vector, or of all blocks together; of all_to_all what a node gives away, its own block included.
fn lines() -> Vec<Line> {
    use Operation as O;
    vec![
        line("ring", O::Allreduce, ANY, |o| (2.0 * (o.p - 1.0), 2.0 * part(o), part(o))),
        line("direct", O::Allreduce, ANY, |o| (1.0, o.n, (o.p - 1.0) * o.n)),
        line("ring", O::ReduceScatter, ANY, |o| (o.p - 1.0, part(o), part(o))),
        line("direct", O::ReduceScatter, ANY, |o| (1.0, o.n / o.p, part(o))),
        line("ring", O::AllGather, FROM_3, |o| (o.p - 1.0, part(o), 0.0)),
        line("direct", O::AllGather, AT_ONCE, |o| (1.0, o.n / o.p, 0.0)),
        line("direct", O::AllToAll, AT_ONCE, |o| (1.0, o.n / o.p, 0.0)),
        line("direct", O::Broadcast, ANY, |o| (1.0, o.n, 0.0)),
        line("direct", O::Reduce, ANY, |o| (1.0, o.n, (o.p - 1.0) * o.n)),
        line("ring", O::Reduce, FROM_3, |o| (o.p - 1.0, (o.p - 1.0) * o.n, (o.p - 1.0) * o.n)),
        line("ring", O::Broadcast, FROM_3, |o| (o.p - 1.0, (o.p - 1.0) * o.n, 0.0)),
        Line {
            chunks: 16,
            ..line("ring", O::Broadcast, FROM_3, |o| {
                let rounds = o.p - 2.0 + o.chunks;
                (rounds, rounds * o.n / o.chunks, 0.0)
            })
        },
        line("recursive-doubling", O::Allreduce, POWERS, |o| (o.lg, o.lg * o.n, o.lg * o.n)),
        line("halving-doubling", O::Allreduce, POWERS, |o| (2.0 * o.lg, 2.0 * part(o), part(o))),
        line("halving-doubling", O::Allreduce, ODD, folded),
        line("halving-doubling", O::ReduceScatter, POWERS, |o| (o.lg, part(o), part(o))),
        line("recursive-doubling", O::AllGather, POWERS, |o| (o.lg, part(o), 0.0)),
        line("nhr", O::Allreduce, ANY, |o| (2.0 * o.lg_up, 2.0 * part(o), part(o))),
        line("nhr", O::ReduceScatter, ANY, |o| (o.lg_up, part(o), part(o))),
        line("nhr", O::AllGather, ANY, |o| (o.lg_up, part(o), 0.0)),
        line("two-shot", O::Allreduce, AT_ONCE, |o| (2.0, 2.0 * o.n / o.p, part(o))),
        line("bruck", O::AllGather, ANY, |o| (o.lg_up, part(o), 0.0)),
        line("bruck", O::ReduceScatter, ANY, |o| (o.lg_up, part(o), part(o))),
        line("bruck", O::AllToAll, POWERS, |o| (o.lg, o.n / 2.0 * o.lg, 0.0)),
        line("pairwise", O::AllToAll, EVEN, |o| (o.p - 1.0, part(o), 0.0)),
        line("binomial", O::Broadcast, POWERS, |o| (o.lg_up, o.lg_up * o.n, 0.0)),
        line("binomial", O::Reduce, POWERS, |o| (o.lg, o.lg * o.n, o.lg * o.n)),
        // Nodes do not get again what the scatter gave them, and some begin to pass on before others have something.
        Line {
            within: 0.35,
            ..line("scatter-all-gather", O::Broadcast, FROM_8, |o| (o.lg + o.p - 1.0, 2.0 * part(o), 0.0))
        },
        Line {
            chunks: 64,
            within: 0.35,
            ..line("double-tree", O::Allreduce, &[31, 63], |o| {
                (2.0 * o.lg, 2.0 * o.lg * o.n / o.chunks + 2.0 * o.n, 0.0)
            })
        },
    ]
}

fn time(line: &Line, algorithm: Algorithm, nodes: u32, bytes: u64, latency: u64) -> u64 {
    let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).expect("a layout");
    let whole =
        !matches!(line.operation, Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll);
    let count = bytes / 4 / if whole { 1 } else { u64::from(nodes) };
    let call = Call { operation: line.operation, element: 4, count, root: 0 };
    let chunk_bytes = if line.chunks == 1 { 1 << 40 } else { bytes / line.chunks };
    let tuning = Tuning { chunk_bytes, direct_max_bytes: 0, depth: 8, pack_max_bytes: 0, group_nodes: 0 };
    let network = mesh(nodes, latency);
    let (detail, limits) = (Detail::Nodes, Limits { whole_steps: u64::MAX, ..Limits::default() });
    let request =
        Request { network: &network, layout: &layout, call, algorithm, tuning: &tuning, detail, limits };
    let outcome = simulate(&request, &mut |_| {}).expect("a time");
    assert_eq!(outcome.chunks, line.chunks, "{} {}", line.algorithm, line.operation);
    outcome.time
}

#[test]
fn times_are_those_of_the_closed_formulas() {
    let (mut checked, mut missing) = (0, std::collections::BTreeSet::new());
    let mut wrong = Vec::new();
    for line in lines() {
        let Some(algorithm) = named(line.algorithm) else {
            missing.insert(line.algorithm);
            continue;
        };
        for &nodes in line.nodes {
            // Evenly divided into blocks of whole cache lines of elements, and into chunks.
            let bytes = u64::from(nodes) * 64 * 4 * 16 * line.chunks;
            let (p, n) = (f64::from(nodes), bytes as f64);
            let of = Of { p, lg: p.log2().floor(), lg_up: p.log2().ceil(), n, chunks: line.chunks as f64 };
            let (messages, moved, combined) = (line.formula)(of);
            let expected = messages * A as f64 + moved * B + combined * G;
            // Chunks behind one another wait for what a message takes of its link; other messages for all of it.
            for latency in if line.chunks == 1 { vec![0, A / 3, A] } else { vec![0] } {
                let found = time(&line, algorithm, nodes, bytes, latency) as f64;
                let off = (found - expected).abs() / expected;
                if off > line.within {
                    let (algorithm, operation) = (line.algorithm, line.operation);
                    wrong.push(format!(
                        "{algorithm} {operation} on {nodes} nodes: {found} ps, not {expected}"
                    ));
                }
                checked += 1;
            }
        }
    }
    println!("{checked} times are those of formulas; there are no algorithms {missing:?}");
    assert!(wrong.is_empty(), "not by the formula:\n{}", wrong.join("\n"));
    assert!(checked > 200, "{checked}");
}
