//! Every algorithm, operation, number of nodes and kind of layout is proved right.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{algorithms, layouts, operations, scenario, small};
use ringway_plan::verify::{Scenario, check, enumerate, verify};
use ringway_plan::{Algorithm, Pair, Tuning};
use ringway_types::Operation;

const IN_PLACE: [fn(u32) -> bool; 3] = [|_| false, |_| true, |rank| rank % 2 == 1];

fn prove(scenario: &Scenario, tuning: &Tuning) {
    for algorithm in algorithms(scenario) {
        if let Err(violation) = verify(scenario, algorithm, tuning) {
            panic!("{algorithm:?} {tuning:?}: {violation}\n{scenario:?}");
        }
    }
}

fn grid(nodes: u32) {
    let tunings = [small(8, 0), small(8, 2), small(16, 16)];
    for layout in layouts(nodes) {
        for operation in operations() {
            for (i, size) in [0_u64, 1, 3, 13].into_iter().enumerate() {
                for (j, in_place) in IN_PLACE.into_iter().enumerate() {
                    let root = u32::try_from(i * 3 + j).unwrap();
                    let scenario = scenario(operation, &layout, size, 1, root, in_place);
                    prove(&scenario, &tunings[(i + j) % 3]);
                }
            }
        }
    }
}

#[test]
fn plans_for_one_and_two_nodes_are_right() {
    grid(1);
    grid(2);
}

#[test]
fn plans_for_three_nodes_are_right() {
    grid(3);
}

#[test]
fn plans_for_four_nodes_are_right() {
    grid(4);
}

#[test]
fn plans_for_five_nodes_are_right() {
    grid(5);
}

#[test]
fn plans_for_six_nodes_are_right() {
    grid(6);
}

#[test]
fn plans_for_seven_nodes_are_right() {
    grid(7);
}

#[test]
fn plans_for_eight_nodes_are_right() {
    grid(8);
}

/// One rank on each of so many nodes. Vectors are empty, have one element, and have more than nodes but no multiple of
/// them, of which the last chunk has fewer than nodes; blocks are empty, of some length, and of several. Pairs, of which there
/// are many, have the last of these sizes alone, which is never a trivial one.
fn any_number(nodes: core::ops::RangeInclusive<u32>) {
    use Operation as O;
    for nodes in nodes {
        let n = u64::from(nodes);
        let layout: Vec<u32> = (0..nodes).collect();
        for operation in [O::Allreduce, O::ReduceScatter, O::ReduceScatterV, O::AllGather, O::AllGatherV] {
            let sizes = match operation {
                O::Allreduce if nodes <= 16 => vec![0, 1, n / 2, n + 1, 2 * n + 3],
                O::Allreduce => vec![0, 1, n + n / 2 + 1],
                O::ReduceScatter | O::AllGather => vec![0, 2],
                _ => vec![3],
            };
            for (i, size) in sizes.iter().enumerate() {
                let scenario = scenario(operation, &layout, *size, 1, 0, IN_PLACE[(i + nodes as usize) % 3]);
                let tuning = small(n.max(8) / 2 * if nodes % 2 == 0 { 1 } else { 8 }, 0);
                // Of each half of an allreduce pairs take turns with the form that carries counts.
                let its_turn = |(j, algorithm): &(usize, Algorithm)| {
                    let turn = j + nodes as usize;
                    let form = match operation {
                        O::Allreduce => true,
                        O::ReduceScatterV | O::AllGather => turn.is_multiple_of(2),
                        _ => !turn.is_multiple_of(2),
                    };
                    !matches!(algorithm, Algorithm::Hierarchical(_)) || form && i + 1 == sizes.len()
                };
                let offered = algorithms(&scenario).into_iter().flatten().enumerate().filter(its_turn);
                for (_, algorithm) in offered {
                    prove_one(&scenario, algorithm, &tuning);
                }
            }
        }
    }
}

/// Of many nodes only in the first order; that no other one matters is part of the proof.
fn prove_one(scenario: &Scenario, algorithm: Algorithm, tuning: &Tuning) {
    let proof = if scenario.layout.nodes() <= 16 {
        verify(scenario, Some(algorithm), tuning)
    } else {
        enumerate(scenario, Some(algorithm), tuning).and_then(|programs| check(scenario, &programs))
    };
    if let Err(violation) = proof {
        panic!("{algorithm} {tuning:?}: {violation}\n{scenario:?}");
    }
}

#[test]
fn any_number_of_nodes_to_40_is_right() {
    any_number(1..=40);
}

#[test]
fn any_number_of_nodes_to_54_is_right() {
    any_number(41..=54);
}

#[test]
fn any_number_of_nodes_to_64_is_right() {
    any_number(55..=64);
}

/// The other operations in the forms that every number of nodes has: an exchange with all at once, and a ring.
#[test]
fn every_operation_is_right_directly_and_around_a_ring_to_64_nodes() {
    use Operation as O;
    let elsewhere = [O::Allreduce, O::ReduceScatter, O::ReduceScatterV, O::AllGather, O::AllGatherV];
    for operation in operations().filter(|operation| !elsewhere.contains(operation)) {
        let mut proved = 0;
        for nodes in 1..=64 {
            let layout: Vec<u32> = (0..nodes).collect();
            let (size, root) = (if operation.has_counts() { 3 } else { 5 }, nodes * 2 / 3);
            let scenario = scenario(operation, &layout, size, 1, root, IN_PLACE[nodes as usize % 3]);
            for algorithm in [Algorithm::Local, Algorithm::Direct, Algorithm::Ring] {
                if scenario.offers(algorithm) {
                    prove_one(&scenario, algorithm, &small(4, 0));
                    proved += 1;
                }
            }
        }
        assert!(proved >= 64, "{operation}: {proved}");
    }
}

/// All ranks on one node: where nothing is sent, and where they have a node's part in what is.
#[test]
fn any_number_of_ranks_on_one_node_to_64_is_right() {
    for operation in operations() {
        for ranks in 1..=64_u32 {
            let (size, root) = (if operation.has_counts() { 3 } else { 5 }, ranks * 2 / 3);
            let alone = vec![0; ranks as usize];
            let in_place = IN_PLACE[ranks as usize % 3];
            prove_one(&scenario(operation, &alone, size, 1, root, in_place), Algorithm::Local, &small(4, 0));
            if ranks.is_multiple_of(9) {
                let beside: Vec<u32> = alone.into_iter().chain([1, 2]).collect();
                let scenario = scenario(operation, &beside, size, 1, root, in_place);
                for algorithm in [Algorithm::Direct, Algorithm::Ring] {
                    if scenario.offers(algorithm) {
                        prove_one(&scenario, algorithm, &small(16, 0));
                    }
                }
            }
        }
    }
}

/// Groups of other sizes than the usual one, of nodes with several ranks. Other operations than allreduce take turns.
#[test]
fn groups_of_any_size_are_right() {
    use Operation as O;
    const HALVES: [O; 4] = [O::ReduceScatter, O::AllGatherV, O::ReduceScatterV, O::AllGather];
    let groups = [(8, 2), (8, 4), (10, 5), (12, 2), (12, 3), (12, 4), (12, 6), (16, 2), (16, 8)];
    for (turn, (nodes, group)) in groups.into_iter().enumerate() {
        for (i, pair) in Pair::ALL.into_iter().enumerate() {
            let layout = &layouts(nodes)[(i + group as usize) % 4];
            let tuning = Tuning { group_nodes: group, ..small(18, 0) };
            for (operation, size) in [(O::Allreduce, 31), (HALVES[(i + turn) % 4], 3)] {
                let scenario = scenario(operation, layout, size, 2, 0, IN_PLACE[i % 3]);
                let algorithm = Algorithm::Hierarchical(pair);
                if scenario.offers(algorithm) {
                    prove_one(&scenario, algorithm, &tuning);
                }
            }
        }
        for (operation, size) in HALVES.into_iter().zip([3; 4]).chain([(O::Allreduce, 31)]) {
            let scenario = scenario(operation, &layouts(nodes)[turn % 4], size, 2, 0, IN_PLACE[turn % 3]);
            let tuning = Tuning { group_nodes: group, ..small(36, 0) };
            prove_one(&scenario, Algorithm::Pipeline, &tuning);
        }
    }
}

#[test]
fn every_root_is_right() {
    for operation in operations().filter(|operation| operation.has_root()) {
        for nodes in 1..=4 {
            let layout = &layouts(nodes)[3];
            for root in 0..u32::try_from(layout.len()).unwrap() {
                for in_place in IN_PLACE {
                    prove(&scenario(operation, layout, 5, 4, root, in_place), &small(8, 8));
                }
            }
        }
    }
}

#[test]
fn plans_for_many_ranks_are_right() {
    let many_nodes: Vec<u32> = (0..40).collect();
    let blocks: Vec<u32> = (0..64).map(|rank| rank / 8).collect();
    let dealt: Vec<u32> = (0..64).map(|rank| rank % 16).collect();
    for operation in operations() {
        for layout in [&many_nodes, &blocks, &dealt] {
            let quadratic = matches!(operation, Operation::AllToAll | Operation::AllToAllV);
            if quadratic && layout.len() > 40 {
                continue;
            }
            prove(&scenario(operation, layout, 2, 1, 37, |rank| rank % 3 == 0), &small(64, 1));
        }
    }
}

/// More rounds than steps may be ahead: a plan that puts all sends before all receives would never end.
#[test]
fn more_nodes_than_the_lookahead_do_not_wait_forever() {
    let layout: Vec<u32> = (0..70).collect();
    for operation in [Operation::Allreduce, Operation::AllGather, Operation::AllToAll, Operation::Barrier] {
        prove(&scenario(operation, &layout, 1, 1, 0, |_| false), &small(64, 0));
    }
}

#[test]
fn the_usual_constants_are_right() {
    for (i, operation) in operations().enumerate() {
        for nodes in [2, 5] {
            let scenario = scenario(operation, &layouts(nodes)[1], 300, 8, 1, IN_PLACE[i % 3]);
            prove(&scenario, &Tuning { chunk_bytes: 1 << 10, depth: 4, ..Tuning::default() });
        }
    }
}

/// A ring moves less than the direct exchange: `2 (N - 1) / N` of the vector for each node.
#[test]
fn rings_move_the_least_there_can_be() {
    let scenario = scenario(Operation::Allreduce, &[0, 1, 2, 3], 256, 4, 0, |_| false);
    let stats = verify(&scenario, Some(Algorithm::Ring), &Tuning::default()).unwrap();
    assert_eq!(stats.message_bytes, 2 * 3 * 1024);
    let stats = verify(&scenario, Some(Algorithm::Direct), &Tuning::default()).unwrap();
    assert_eq!((stats.messages, stats.message_bytes), (12, 12 * 1024));
}

/// Blocks of 32 KiB of a pair of nodes are one message, but where there are more nodes each would need scratch memory.
#[test]
fn longer_blocks_travel_together_between_two_nodes() {
    for (operation, single) in [(Operation::AllToAll, 24), (Operation::AllGather, 12)] {
        for (layout, messages) in [(&[0, 0, 1, 1][..], 2), (&[0, 0, 1, 1, 2, 2], single)] {
            let scenario = scenario(operation, layout, 4, 8 << 10, 0, |_| false);
            let stats = verify(&scenario, Some(Algorithm::Direct), &Tuning::default()).unwrap();
            assert_eq!(stats.messages, messages, "{operation}");
        }
    }
}

/// Small blocks of a pair of nodes are one message.
#[test]
fn small_blocks_travel_together() {
    for operation in
        [Operation::AllToAll, Operation::AllToAllV, Operation::AllGather, Operation::ReduceScatter]
    {
        let layout = [0, 0, 0, 1, 1, 1, 2, 2, 2];
        let scenario = scenario(operation, &layout, 3, 4, 0, |_| false);
        let stats = verify(&scenario, Some(Algorithm::Direct), &Tuning::default()).unwrap();
        assert_eq!(stats.messages, 6, "{operation}");
    }
}
