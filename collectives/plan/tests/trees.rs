//! Trees and what is made of them are proved right for every number of nodes up to 64, and cost what they say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod count;

use common::{layouts, scenario, small};
use ringway_plan::verify::verify;
use ringway_plan::{Algorithm, Tuning};
use ringway_types::Operation;

const PLANS: [(Algorithm, Operation, u32); 9] = [
    (Algorithm::Binomial, Operation::Broadcast, 2),
    (Algorithm::Binomial, Operation::Reduce, 2),
    (Algorithm::Tree, Operation::Broadcast, 2),
    (Algorithm::Tree, Operation::Reduce, 2),
    (Algorithm::Tree, Operation::Allreduce, 2),
    (Algorithm::DoubleTree, Operation::Broadcast, 3),
    (Algorithm::DoubleTree, Operation::Reduce, 3),
    (Algorithm::DoubleTree, Operation::Allreduce, 3),
    (Algorithm::ScatterAllGather, Operation::Broadcast, 3),
];

fn prove(plan: (Algorithm, Operation, u32), layout: &[u32], size: u64, root: u32, tuning: &Tuning) {
    let (algorithm, operation, _) = plan;
    let scenario = scenario(operation, layout, size, 8, root, |rank| rank % 2 == 0);
    if let Err(violation) = verify(&scenario, Some(algorithm), tuning) {
        panic!("{algorithm} {operation}: {violation}\n{scenario:?}");
    }
}

/// One rank a node: nothing at all, one element, fewer elements than nodes, and a number that nothing divides, in chunks.
#[test]
fn trees_between_up_to_64_nodes_are_right() {
    for nodes in 1..=64 {
        let layout: Vec<u32> = (0..nodes).collect();
        for plan in PLANS.into_iter().filter(|plan| nodes >= plan.2) {
            let odd = u64::from(nodes) + 3;
            for (i, size) in [0, 1, u64::from(nodes / 2), odd].into_iter().enumerate() {
                let chunk = if plan.0 == Algorithm::ScatterAllGather { 16 } else { 8 * (odd / 2) };
                prove(plan, &layout, size, u32::try_from(i).unwrap() * 17, &small(chunk, 0));
            }
        }
    }
}

#[test]
fn every_root_is_right() {
    for nodes in 2..=17 {
        let layout: Vec<u32> = (0..nodes).collect();
        for plan in PLANS.into_iter().filter(|plan| nodes >= plan.2 && plan.1.has_root()) {
            for root in 0..nodes {
                prove(plan, &layout, u64::from(nodes) + 1, root, &small(64, 0));
            }
        }
    }
}

/// Several ranks a node, next to each other or not, and roots anywhere.
#[test]
fn any_layout_is_right() {
    for nodes in 2..=8 {
        for layout in layouts(nodes) {
            for plan in PLANS.into_iter().filter(|plan| nodes >= plan.2) {
                for root in [0, 3, u32::try_from(layout.len()).unwrap() - 1] {
                    prove(plan, &layout, 19, root, &small(40, 0));
                }
            }
        }
    }
}

#[test]
fn trees_cost_what_they_say() {
    for nodes in 2..=64 {
        let layout: Vec<u32> = (0..nodes).collect();
        let bytes = 128 * u64::from(nodes);
        for (algorithm, operation, _) in PLANS.into_iter().filter(|plan| nodes >= plan.2) {
            let scenario = scenario(operation, &layout, bytes, 1, nodes / 3, |_| false);
            let tuning = Tuning { chunk_bytes: 1 << 20, ..Tuning::default() };
            count::costs_what_it_says(&scenario, algorithm, &tuning, bytes);
        }
    }
}

/// Both directions of every port are full: with two trees no node sends more than twice what is combined, and none combines
/// more than that; with one tree inner nodes have half as much again.
#[test]
fn two_trees_share_the_work() {
    let terms = ringway_plan::Terms { nodes: 64, most_local: 1, bytes: 1024.0, group_nodes: 0 };
    let cost = |algorithm: Algorithm| algorithm.cost(Operation::Allreduce, &terms).unwrap();
    let (one, two) = (cost(Algorithm::Tree), cost(Algorithm::DoubleTree));
    assert_eq!((one.sent, two.sent), (3072.0, 2048.0));
    assert_eq!((one.reduced, two.reduced), (2048.0, 1024.0));
    assert_eq!((one.rounds, two.rounds), (12.0, 12.0));
}
