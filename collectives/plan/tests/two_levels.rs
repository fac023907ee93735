//! Broadcast and reduce along trees of two levels are proved right for every number of nodes up to 64 that fall into groups,
//! and cost what they say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod count;

use common::{layouts, scenario, small};
use ringway_plan::verify::{enumerate, verify};
use ringway_plan::{Action, Algorithm, Pair, Tuning};
use ringway_types::Operation;

const OPERATIONS: [Operation; 2] = [Operation::Broadcast, Operation::Reduce];

fn trees() -> impl Iterator<Item = Algorithm> {
    Pair::ALL.into_iter().filter(|pair| pair.is_tree()).map(Algorithm::Hierarchical)
}

/// All sizes of groups that there are of so many nodes.
fn groups(nodes: u32) -> impl Iterator<Item = u32> {
    (2..=nodes / 2).filter(move |group| nodes.is_multiple_of(*group))
}

fn prove(algorithm: Algorithm, operation: Operation, layout: &[u32], size: u64, root: u32, group: u32) {
    let scenario = scenario(operation, layout, size, 2, root, |rank| rank % 2 == 0);
    let tuning = Tuning { group_nodes: group, ..small(10, 0) };
    if let Err(violation) = verify(&scenario, Some(algorithm), &tuning) {
        panic!("{algorithm} {operation} in groups of {group}: {violation}\n{scenario:?}");
    }
}

/// One rank a node, and several chunks of which the last is a short one; of some groups nothing at all and one element as well.
#[test]
fn any_number_of_nodes_to_64_is_right() {
    for nodes in 4..=64 {
        let layout: Vec<u32> = (0..nodes).collect();
        for group in groups(nodes) {
            for (i, algorithm) in trees().enumerate() {
                for operation in OPERATIONS {
                    let (turn, root) = (i + group as usize, group * 3 + u32::try_from(i).unwrap());
                    prove(algorithm, operation, &layout, [13, 7][turn % 2], root, group);
                    if turn.is_multiple_of(8) {
                        prove(algorithm, operation, &layout, [0, 1][turn / 8 % 2], root, group);
                    }
                }
            }
        }
    }
}

/// Several ranks a node, next to each other or not, and every root.
#[test]
fn any_layout_and_root_is_right() {
    for nodes in [4, 6, 9, 12] {
        for (i, layout) in layouts(nodes).into_iter().enumerate() {
            let group = groups(nodes).nth(i % groups(nodes).count()).unwrap();
            for algorithm in trees() {
                for root in 0..u32::try_from(layout.len()).unwrap() {
                    prove(algorithm, OPERATIONS[root as usize % 2], &layout, 11, root, group);
                }
            }
        }
    }
}

#[test]
fn costs_are_those_of_the_steps() {
    for nodes in 4..=64 {
        let layout: Vec<u32> = (0..nodes).collect();
        for group_nodes in groups(nodes) {
            for algorithm in trees() {
                for operation in OPERATIONS {
                    let scenario = scenario(operation, &layout, 128, 1, nodes / 3, |_| false);
                    let tuning = Tuning { group_nodes, ..Tuning::default() };
                    count::costs_what_it_says(&scenario, algorithm, &tuning, 128);
                }
            }
        }
    }
}

/// The vector goes into every group but the root's once.
#[test]
fn as_little_as_there_can_be_goes_between_groups() {
    let layout: Vec<u32> = (0..24).collect();
    for algorithm in trees() {
        for operation in OPERATIONS {
            let scenario = scenario(operation, &layout, 64, 1, 13, |_| false);
            let tuning = Tuning { group_nodes: 6, ..Tuning::default() };
            let mut between = 0;
            for (node, program) in (0_u32..).zip(enumerate(&scenario, Some(algorithm), &tuning).unwrap()) {
                for step in program.chunks.iter().flatten() {
                    if let Action::Send { peer, from, .. } = step.action
                        && peer / 6 != node / 6
                    {
                        between += from.length;
                    }
                }
            }
            assert_eq!(between, 3 * 64, "{algorithm} {operation}");
        }
    }
}
