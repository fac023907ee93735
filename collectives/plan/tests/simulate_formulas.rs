//! Simulated times are the closed ones of the literature where nothing is shared: `a` a message, `b` a byte, `g` a byte that is
//! combined with another one. One line for each algorithm.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small whole numbers")]

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
}

const EXACT: f64 = 1e-9;
const POWERS: &[u32] = &[2, 4, 8, 16, 32];
const ANY: &[u32] = &[2, 3, 5, 8, 12, 17, 32];
/// As many as may be spoken to at once: a direct exchange has two steps with each node, and 65 are looked at.
const AT_ONCE: &[u32] = &[2, 3, 5, 8, 12, 17, 22, 31, 32, 33];
/// More than that: 32 at once.
const MORE: &[u32] = &[34, 40, 64, 65, 66, 70];
/// The same of a two-shot allreduce, which has three steps with each node for the second message.
const AT_ONCE_TWICE: &[u32] = &[2, 3, 5, 8, 12, 17, 21, 22];
const MANY: &[u32] =
    &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 23, 24, 31, 32, 33, 40, 63, 64];
const FROM_3: &[u32] = &[3, 4, 5, 8, 12, 17, 32];
const ODD: &[u32] = &[3, 5, 6, 7, 11, 12, 24];

const fn line(
    algorithm: &'static str,
    operation: Operation,
    nodes: &'static [u32],
    formula: fn(Of) -> (f64, f64, f64),
) -> Line {
    Line { algorithm, operation, nodes, chunks: 1, formula }
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

/// Bruck's all_to_all between any number of nodes. Round `k` takes the bundles for the distances below `p` that have bit `k`,
/// which are half of all between powers of two. It waits for a round `j` before it if there is a distance that has both
/// bits. That is so of all rounds but the last one, with bit `l`: only `r = p - 2^l` distances have that, the highest of them
/// `r - 1` more than `2^l`, so it waits for the rounds with bits below `r` alone, and may be over before the others are.
fn bruck(of: Of) -> (f64, f64, f64) {
    let (p, rounds) = (of.p as u64, of.lg_up as u32);
    let carried = |k: u32| (0..p).filter(|distance| distance >> k & 1 == 1).count() as f64;
    let time = |first: u32, end: u32| {
        (first..end)
            .map(carried)
            .fold((0.0, 0.0), |(messages, bundles), more| (messages + 1.0, bundles + more))
    };
    let last = rounds - 1;
    let needed = (0..last).filter(|bit| 1 << bit < p - (1 << last)).count() as u32;
    let (all, late) = (time(0, last), time(0, needed));
    let late = (late.0 + 1.0, late.1 + carried(last));
    // With as many messages the one with more bytes, and never more of the one and less of the other.
    let longer = if late > all { late } else { all };
    (longer.0, longer.1 * of.n / of.p, 0.0)
}

/// The binomial tree where all links are parallel: the children of a node get what it has at the same time, so that a node
/// waits for as many messages as its label has bits. No label below `p` has more than `2^floor(lg p) - 1`, which is below `p`:
/// `floor(lg p)`. Through one port, which the published formula is of, it is rounded up.
fn binomial(of: Of) -> (f64, f64, f64) {
    (of.lg, of.lg * of.n, 0.0)
}

/// The same upward. A node combines what comes from its subtrees in the order of their heights, each of which is as late as
/// all before it took: `lg p` of everything between powers of two. Otherwise the last subtree is a smaller one, which comes
/// before the others are combined, and is combined after them: one combination more.
fn binomial_reduce(of: Of) -> (f64, f64, f64) {
    let more = if of.lg < of.lg_up { 1.0 } else { 0.0 };
    (of.lg, of.lg * of.n, (of.lg + more) * of.n)
}

/// Of up to as many chunks as may be under way at once (8), half of each along either tree of height `floor(lg p)`, up and down
/// again (Sanders, Speck and Träff 2009, whose two trees these are). The first chunk takes twice the height. Every further
/// one takes one message more where nothing else is sent on the same link; but some node is another one's parent in one tree
/// and its child in the other, so that a link carries two halves of every chunk: one up, one down.
fn double_tree(of: Of) -> (f64, f64, f64) {
    let messages = (2.0 * of.lg + of.chunks - 1.0).max(2.0 * of.chunks);
    (messages, messages * of.n / (2.0 * of.chunks), 0.0)
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
        line("direct", O::AllGather, MORE, waves),
        line("direct", O::AllToAll, MORE, waves),
        line("two-shot", O::Allreduce, AT_ONCE_TWICE, |o| (2.0, 2.0 * o.n / o.p, part(o))),
        line("bruck", O::AllGather, ANY, |o| (o.lg_up, part(o), 0.0)),
        line("bruck", O::ReduceScatter, ANY, |o| (o.lg_up, part(o), part(o))),
        line("bruck", O::AllToAll, POWERS, |o| (o.lg, o.n / 2.0 * o.lg, 0.0)),
        line("bruck", O::AllToAll, MANY, bruck),
        line("pairwise", O::AllToAll, MANY, |o| (o.p - 1.0, part(o), 0.0)),
        line("binomial", O::Broadcast, MANY, binomial),
        line("binomial", O::Reduce, MANY, binomial_reduce),
    ]
}

/// What is exchanged with 32 others at once.
fn waves(of: Of) -> (f64, f64, f64) {
    let waves = ((of.p - 1.0) / 32.0).ceil();
    (waves, waves * of.n / of.p, 0.0)
}

fn time(line: &Line, algorithm: Algorithm, nodes: u32, bytes: u64, latency: u64) -> u64 {
    time_with(line, algorithm, nodes, bytes, (latency, G))
}

fn time_with(
    line: &Line,
    algorithm: Algorithm,
    nodes: u32,
    bytes: u64,
    (latency, reduce): (u64, f64),
) -> u64 {
    let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).expect("a layout");
    let whole =
        !matches!(line.operation, Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll);
    let count = bytes / 4 / if whole { 1 } else { u64::from(nodes) };
    let call = Call { operation: line.operation, element: 4, count, root: 0 };
    let chunk_bytes = if line.chunks == 1 { 1 << 40 } else { bytes / line.chunks };
    let tuning = Tuning {
        chunk_bytes,
        direct_max_bytes: 0,
        depth: 8,
        pack_max_bytes: 0,
        group_nodes: 0,
        eager_write_max_bytes: 0,
    };
    let mut network = mesh(nodes, latency);
    network.costs.reduce = reduce;
    let (detail, limits) = (Detail::Nodes, Limits { whole_steps: u64::MAX, ..Limits::default() });
    let request =
        Request { network: &network, layout: &layout, call, algorithm, tuning: &tuning, detail, limits };
    let outcome = simulate(&request, &mut |_| {}).expect("a time");
    assert_eq!(outcome.chunks, line.chunks, "{} {}", line.algorithm, line.operation);
    outcome.time
}

#[test]
fn a_double_tree_takes_what_its_two_trees_take() {
    for nodes in 3..=64 {
        for chunks in 1..=8 {
            let it = Line { chunks, ..line("double-tree", Operation::Allreduce, &[], double_tree) };
            let bytes = u64::from(nodes) * 4096 * chunks;
            let algorithm = named(it.algorithm).expect("an algorithm");
            let found = time_with(&it, algorithm, nodes, bytes, (0, 0.0)) as f64;
            let (p, n) = (f64::from(nodes), bytes as f64);
            let (messages, moved, _) =
                double_tree(Of { p, lg: p.log2().floor(), lg_up: p.log2().ceil(), n, chunks: chunks as f64 });
            let expected = messages * A as f64 + moved * B;
            assert!(
                (found / expected - 1.0).abs() < EXACT,
                "{nodes} nodes, {chunks} chunks: {found} {expected}"
            );
        }
    }
}

#[test]
fn times_are_those_of_the_closed_formulas() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for line in lines() {
        let algorithm = named(line.algorithm).expect(line.algorithm);
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
                if off > EXACT {
                    let (algorithm, operation) = (line.algorithm, line.operation);
                    wrong.push(format!(
                        "{algorithm} {operation} on {nodes} nodes: {found} ps, not {expected}"
                    ));
                }
                checked += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "not by the formula:\n{}", wrong.join("\n"));
    assert!(checked > 200, "{checked}");
}
