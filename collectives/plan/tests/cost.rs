//! What algorithms are said to cost is what their steps cost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use common::scenario;
use ringway_plan::verify::{Counts, Program, Scenario, enumerate};
use ringway_plan::{Action, Algorithm, Call, Cost, Layout, Stage, Step, Terms, Tuning};
use ringway_types::Operation;

const OPERATIONS: [Operation; 3] = [Operation::Allreduce, Operation::ReduceScatter, Operation::AllGather];

/// Operands that a step combines, but the first; what local ranks give is one.
fn operands(step: &Step) -> f64 {
    match step.action {
        Action::Reduce { sources, .. } => {
            f64::from((sources.partials.count + u32::from(sources.inputs.is_some())).saturating_sub(1))
        }
        _ => 0.0,
    }
}

/// When the last step of a chunk ends, if only a message, a byte of a message and a byte combined take time. Every pair of
/// nodes has a link of its own, and messages on it do not wait for one another.
fn path(programs: &[Program], message: f64, byte: f64, combined: f64) -> f64 {
    let mut ends: Vec<Vec<f64>> = programs.iter().map(|it| vec![0.0; it.chunks[0].len()]).collect();
    let mut sent: BTreeMap<(u32, u32, u32), f64> = BTreeMap::new();
    loop {
        let mut changed = false;
        for (node, program) in (0u32..).zip(programs) {
            for (index, step) in program.chunks[0].iter().enumerate() {
                let ends = &mut ends[node as usize];
                let needed = step.after.iter().flat_map(Clone::clone).map(|i| ends[i as usize]);
                let ready = needed.fold(0.0, f64::max);
                let end = match step.action {
                    Action::Send { peer, tag, .. } => {
                        sent.insert((node, peer, tag), ready);
                        ready
                    }
                    Action::Receive { peer, tag, into } => {
                        let sent = sent.get(&(peer, node, tag)).copied().unwrap_or(0.0);
                        ready.max(sent + message + byte * into.length as f64)
                    }
                    Action::Reduce { length, .. } => ready + combined * length as f64 * operands(step),
                    _ => ready,
                };
                changed |= end > ends[index];
                ends[index] = end;
            }
        }
        if !changed {
            return ends.into_iter().flatten().fold(0.0, f64::max);
        }
    }
}

/// What the busiest node does: messages, bytes sent, bytes combined.
fn busiest(programs: &[Program]) -> (f64, f64, f64) {
    let mut most = (0.0_f64, 0.0_f64, 0.0_f64);
    for program in programs {
        let (mut messages, mut sent, mut reduced) = (0.0, 0.0, 0.0);
        for step in &program.chunks[0] {
            match step.action {
                Action::Send { from, .. } => {
                    messages += 1.0;
                    sent += from.length as f64;
                }
                Action::Receive { .. } => messages += 1.0,
                Action::Reduce { length, .. } => reduced += length as f64 * operands(step),
                _ => {}
            }
        }
        most = (most.0.max(messages), most.1.max(sent), most.2.max(reduced));
    }
    most
}

/// What all nodes do: messages, bytes sent, bytes combined.
fn all(programs: &[Program]) -> (f64, f64, f64) {
    let each = programs.iter().map(|program| busiest(core::slice::from_ref(program)));
    each.fold((0.0, 0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1, sum.2 + it.2))
}

/// Bytes that all nodes copy.
fn copied(programs: &[Program]) -> f64 {
    let steps = programs.iter().flat_map(|program| &program.chunks[0]);
    let bytes = steps.map(|step| if let Action::Copy { from, .. } = step.action { from.length } else { 0 });
    bytes.sum::<u64>() as f64
}

/// A call of one chunk in which all blocks of all algorithms are equally long.
fn even(operation: Operation, nodes: u32) -> Scenario {
    let layout: Vec<u32> = (0..nodes).collect();
    use Operation as O;
    let is_vector = matches!(operation, O::Allreduce | O::Reduce | O::Broadcast | O::Scan | O::Exscan);
    let size = 128 * if is_vector { u64::from(nodes) } else { 1 };
    scenario(operation, &layout, size, 1, 0, |_| false)
}

/// Whether the longest path is as long as the published formulas say. Where few nodes are folded into a power of two what
/// they give does not come in time to be on the way that is longest.
fn paths_are_exact(algorithm: Algorithm, nodes: u32, group: u32) -> bool {
    let many_extra = |nodes: u32| nodes.is_power_of_two() || (nodes + 1).is_power_of_two() && nodes > 3;
    let of = |stage: Stage, nodes: u32| stage != Stage::HalvingDoubling || nodes.is_power_of_two();
    match algorithm {
        Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling => many_extra(nodes),
        Algorithm::Hierarchical(pair) => {
            // The largest divisor up to the square root.
            let usual = (2..=nodes.isqrt()).rev().find(|group| nodes.is_multiple_of(*group)).unwrap_or(1);
            let group = if group == 0 { usual } else { group };
            of(pair.inner, group) && of(pair.outer, nodes / group)
        }
        _ => true,
    }
}

fn compare(algorithm: Algorithm, operation: Operation, nodes: u32, group: u32) -> Option<Cost> {
    let tuning = Tuning { chunk_bytes: 1 << 20, group_nodes: group, ..Tuning::default() };
    let programs = enumerate(&even(operation, nodes), Some(algorithm), &tuning).ok()?;
    assert_eq!(programs[0].chunks.len(), 1);
    let terms = Terms { nodes, most_local: 1, bytes: 128.0 * f64::from(nodes), group_nodes: group };
    let cost = algorithm.cost(operation, &terms).unwrap();
    let (messages, sent, reduced) = busiest(&programs);
    let mut counted = vec![
        ("messages", cost.messages, messages),
        ("sent", cost.sent, sent),
        ("reduced", cost.reduced, reduced),
    ];
    if nodes <= 20 && paths_are_exact(algorithm, nodes, group) {
        counted.push(("rounds", cost.rounds, path(&programs, 1.0, 0.0, 0.0)));
        counted.push(("link_bytes", cost.link_bytes, path(&programs, 0.0, 1.0, 0.0)));
        counted.push(("path_reduced", cost.path_reduced, path(&programs, 0.0, 0.0, 1.0)));
    } else if nodes <= 20 {
        assert!(cost.rounds >= path(&programs, 1.0, 0.0, 0.0));
    }
    for (what, said, found) in counted {
        assert!(
            (said - found).abs() <= 1e-9 * found,
            "{what} of {operation} by {algorithm} between {nodes} nodes in groups of {group}: {said} is said, {found} found"
        );
    }
    assert!(cost.port_bytes >= cost.link_bytes && cost.port_bytes >= cost.sent);
    Some(cost)
}

#[test]
fn costs_are_those_of_the_steps() {
    for algorithm in Algorithm::ALL {
        for operation in OPERATIONS {
            for nodes in 2..=64 {
                compare(*algorithm, operation, nodes, 0);
            }
        }
    }
}

#[test]
fn costs_of_groups_are_those_of_the_steps() {
    let in_groups = |it: &&Algorithm| match it {
        Algorithm::Hierarchical(pair) => pair.has_rounds(),
        _ => **it == Algorithm::Pipeline,
    };
    for algorithm in Algorithm::ALL.iter().filter(in_groups) {
        for (nodes, group) in [(12, 2), (12, 3), (12, 4), (12, 6), (20, 10), (15, 5), (64, 16)] {
            assert!(compare(*algorithm, Operation::Allreduce, nodes, group).is_some());
            let power_of_two = nodes.is_power_of_two() || !algorithm.name().contains("halving-doubling");
            for half in [Operation::ReduceScatter, Operation::AllGather] {
                assert_eq!(compare(*algorithm, half, nodes, group).is_some(), power_of_two);
            }
        }
    }
}

/// The formulas of Thakur, Rabenseifner and Gropp, and of HCCL, for some numbers of nodes.
#[test]
fn costs_are_the_published_ones() {
    let of = |name: &str, nodes: u32| {
        let terms = Terms { nodes, most_local: 1, bytes: 1.0, group_nodes: 0 };
        let cost = Algorithm::from_name(name).unwrap().cost(Operation::Allreduce, &terms).unwrap();
        (cost.rounds, cost.link_bytes, cost.path_reduced)
    };
    assert_eq!(of("ring", 8), (14.0, 1.75, 0.875));
    assert_eq!(of("two-shot", 8), (2.0, 0.25, 0.875));
    assert_eq!(of("recursive-doubling", 8), (3.0, 3.0, 3.0));
    assert_eq!(of("halving-doubling", 8), (6.0, 1.75, 0.875));
    assert_eq!(of("nhr", 8), (6.0, 1.75, 0.875));
    assert_eq!(of("halving-doubling", 5), (6.0, 3.5, 1.75));
    assert_eq!(of("nhr", 5), (6.0, 1.6, 0.8));
}

/// `(p - 1) a + b sum_k max_i n(i, i + k)`, with `n(i, j)` bytes from node `i` to `j`: the published time of a pairwise
/// all_to_all_v, in which every round takes as long as its longest message. It does where one node has them all, and never
/// longer.
#[test]
fn a_pairwise_all_to_all_v_takes_the_longest_message_of_every_round() {
    const A: f64 = 1000.0;
    for nodes in 2..=17_u64 {
        let distance = |from: u64, to: u64| (to + nodes - from) % nodes;
        let by_one = |from: u64, to: u64| {
            let longest = 100 + distance(from, to) * 37 % 64;
            if from == 0 || to == 0 { longest } else { longest - 1 - (from * 3 + to) % 90 }
        };
        let any = |from: u64, to: u64| 1 + (from * 31 + to * to * 17) % 120;
        for (bytes, exact) in
            [(&by_one as &dyn Fn(u64, u64) -> u64, true), (&any as &dyn Fn(u64, u64) -> u64, false)]
        {
            let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| bytes(from, to))).collect();
            let layout = Layout::new(&(0..u32::try_from(nodes).unwrap()).collect::<Vec<_>>()).unwrap();
            let call = Call { operation: Operation::AllToAllV, element: 1, count: 0, root: 0 };
            let in_place = vec![false; nodes as usize];
            let scenario = Scenario { layout, call, counts: Counts::PerPair(pairs), in_place };
            let programs = enumerate(&scenario, Some(Algorithm::Pairwise), &Tuning::default()).unwrap();
            let longest = |k: u64| (0..nodes).map(|i| bytes(i, (i + k) % nodes)).max().unwrap();
            let expected = (1..nodes).map(|k| A + longest(k) as f64).sum::<f64>();
            let found = path(&programs, A, 1.0, 0.0);
            assert!(found <= expected && (!exact || found == expected), "{nodes} nodes: {found}, {expected}");
        }
    }
}

/// What all nodes do together is what their steps are; of hierarchical algorithms and scans it is at most what is said.
#[test]
fn totals_are_those_of_the_steps() {
    let mut counted = 0;
    for algorithm in Algorithm::ALL {
        let is_even = |operation: &Operation| operation.is_collective() && !operation.has_counts();
        for operation in Operation::ALL.iter().copied().filter(is_even) {
            for nodes in 2..=17 {
                // Small blocks that are packed are copied whatever the algorithm.
                let tuning = Tuning { chunk_bytes: 1 << 20, pack_max_bytes: 0, ..Tuning::default() };
                let scenario = even(operation, nodes);
                let Ok(programs) = enumerate(&scenario, Some(*algorithm), &tuning) else { continue };
                let terms = Terms { nodes, most_local: 1, bytes: 128.0 * f64::from(nodes), group_nodes: 0 };
                let cost = algorithm.cost(operation, &terms).unwrap();
                let said = algorithm.total(operation, &terms, &cost);
                let found = all(&programs);
                // Every node's own block, to where it belongs in its output.
                let own = if operation == Operation::AllGather { terms.bytes } else { 0.0 };
                let is_hierarchical = matches!(algorithm, Algorithm::Hierarchical(_));
                let known = operation == Operation::Allreduce && !is_hierarchical
                    || operation == Operation::AllGather;
                assert!(
                    !known || (said.copied + own - copied(&programs)).abs() < 1e-6,
                    "{algorithm} {operation}, {nodes} nodes: {} said, {} found",
                    said.copied,
                    copied(&programs)
                );
                for (said, found) in [(said.messages, found.0), (said.sent, found.1), (said.reduced, found.2)]
                {
                    // Scans combine in steps of their own.
                    let at_most = matches!(algorithm, Algorithm::Hierarchical(_))
                        || matches!(operation, Operation::Scan | Operation::Exscan);
                    assert!(
                        said >= found - 1e-6 && (at_most || said <= found + 1e-6),
                        "{operation} by {algorithm} between {nodes} nodes: {said} is said, {found} found"
                    );
                }
                counted += 1;
            }
        }
    }
    assert!(counted > 500, "{counted}");
}
