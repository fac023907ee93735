//! All_to_all with one partner at a time and by way of other nodes is proved right for every number of nodes up to 64, and
//! costs what it says.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod count;

use common::{layouts, scenario, small};
use ringway_plan::verify::{Scenario, enumerate, verify};
use ringway_plan::{Action, Algorithm, Ineligible, Step, Tuning};
use ringway_types::Operation;

const PLANS: [(Algorithm, Operation); 4] = [
    (Algorithm::Pairwise, Operation::AllToAll),
    (Algorithm::Pairwise, Operation::AllToAllV),
    (Algorithm::Bruck, Operation::AllToAll),
    (Algorithm::GroupedAllToAll, Operation::AllToAll),
];

fn prove(scenario: &Scenario, algorithm: Algorithm, tuning: &Tuning) {
    if let Err(violation) = verify(scenario, Some(algorithm), tuning) {
        panic!("{algorithm}: {violation}\n{tuning:?}\n{scenario:?}");
    }
}

/// Blocks of nothing and of one element between any number of nodes; of more, in chunks, between fewer.
#[test]
fn all_to_all_between_up_to_64_nodes_is_right() {
    for nodes in 2..=64 {
        let layout: Vec<u32> = (0..nodes).collect();
        let sizes: &[u64] = if nodes <= 20 { &[0, 1, 3] } else { &[1, 2] };
        for (algorithm, operation) in PLANS {
            for size in sizes {
                let scenario = scenario(operation, &layout, *size, 8, 0, |rank| rank % 2 == 0);
                if scenario.offers(algorithm) {
                    prove(&scenario, algorithm, &small(16, 0));
                }
            }
        }
    }
}

#[test]
fn any_layout_is_right() {
    for nodes in 2..=8 {
        for layout in layouts(nodes) {
            for (i, (algorithm, operation)) in PLANS.into_iter().enumerate() {
                let in_place = [|_| true, |rank| rank % 2 == 1][i % 2];
                let scenario = scenario(operation, &layout, 3, 1, 0, in_place);
                if scenario.offers(algorithm) {
                    prove(&scenario, algorithm, &small(64, [0, 2][i % 2]));
                }
            }
        }
    }
}

#[test]
fn any_groups_are_right() {
    for nodes in 4..=24 {
        for group_nodes in (2..nodes).filter(|group| nodes % group == 0) {
            let layout: Vec<u32> = (0..nodes).chain((0..nodes).filter(|it| it % 3 == 0)).collect();
            let scenario = scenario(Operation::AllToAll, &layout, 2, 8, 0, |rank| rank % 3 == 0);
            prove(&scenario, Algorithm::GroupedAllToAll, &Tuning { group_nodes, ..small(64, 0) });
            count_one(Algorithm::GroupedAllToAll, nodes, group_nodes);
        }
    }
}

/// With one rank a node and one chunk.
fn count_one(algorithm: Algorithm, nodes: u32, group_nodes: u32) {
    let layout: Vec<u32> = (0..nodes).collect();
    let scenario = scenario(Operation::AllToAll, &layout, 8, 1, 0, |_| false);
    let tuning = Tuning { group_nodes, ..Tuning::default() };
    if algorithm != Algorithm::GroupedAllToAll || group_nodes > 0 || scenario.offers(algorithm) {
        count::costs_what_it_says(&scenario, algorithm, &tuning, 8 * u64::from(nodes));
    }
}

#[test]
fn all_to_all_costs_what_it_says() {
    for nodes in 2..=64 {
        for algorithm in [Algorithm::Pairwise, Algorithm::Bruck, Algorithm::GroupedAllToAll] {
            count_one(algorithm, nodes, 0);
        }
    }
}

#[test]
fn nodes_that_fall_into_no_groups_are_refused() {
    for (nodes, group) in [(7, 0), (8, 3), (8, 8), (8, 1)] {
        let layout: Vec<u32> = (0..nodes).collect();
        let scenario = scenario(Operation::AllToAll, &layout, 1, 1, 0, |_| false);
        let tuning = Tuning { group_nodes: group, ..Tuning::default() };
        let refused = verify(&scenario, Some(Algorithm::GroupedAllToAll), &tuning).unwrap_err();
        let reason = Ineligible::NoGroups { algorithm: Algorithm::GroupedAllToAll, nodes, group };
        assert_eq!(refused, reason.into());
    }
}

/// In each round of a pairwise exchange a node sends to the node some places on and gets something from the one as many places
/// back, for any number of nodes in as many rounds as there are others; and no message starts before those of the round before
/// are done.
#[test]
fn one_partner_at_a_time_each_way() {
    for nodes in 2..=16 {
        let layout: Vec<u32> = (0..nodes).collect();
        let scenario = scenario(Operation::AllToAll, &layout, 4, 1, 0, |_| false);
        let programs = enumerate(&scenario, Some(Algorithm::Pairwise), &small(64, 0)).unwrap();
        for (me, program) in (0..).zip(programs) {
            let steps = &program.chunks[0];
            let is_message =
                |step: &Step| matches!(step.action, Action::Send { .. } | Action::Receive { .. });
            let messages: Vec<u32> =
                (0u32..).zip(steps).filter(|(_, step)| is_message(step)).map(|(index, _)| index).collect();
            let mut distances = Vec::new();
            for (round, pair) in messages.chunks(2).enumerate() {
                let [from, to] = [0, 1].map(|i: usize| &steps[pair[i] as usize]);
                let (Action::Receive { peer: back, .. }, Action::Send { peer: on, .. }) =
                    (from.action, to.action)
                else {
                    panic!("{from:?} {to:?}");
                };
                let distance = (on + nodes - me) % nodes;
                assert_eq!((me + nodes - back) % nodes, distance);
                distances.push(distance);
                let before = round.checked_sub(1).map_or(&[][..], |before| &messages[2 * before..2 * round]);
                for step in [from, to] {
                    assert!(before.iter().all(|it| step.after.iter().any(|after| after.contains(it))));
                }
            }
            distances.sort_unstable();
            assert_eq!(distances, (1..nodes).collect::<Vec<_>>());
        }
    }
}

#[test]
fn an_odd_number_of_nodes_needs_no_round_more() {
    let rounds = |nodes: u32| {
        let terms = ringway_plan::Terms { nodes, most_local: 1, bytes: 1.0, group_nodes: 0 };
        Algorithm::Pairwise.cost(Operation::AllToAll, &terms).unwrap().rounds
    };
    assert_eq!((rounds(2), rounds(3), rounds(4), rounds(5)), (1.0, 2.0, 3.0, 4.0));
}

/// What one node has to send in all, whatever the way: the direct way is the shortest.
#[test]
fn few_messages_move_more() {
    let layout: Vec<u32> = (0..16).collect();
    let scenario = scenario(Operation::AllToAll, &layout, 4, 1, 0, |_| false);
    let moved = |algorithm| {
        let stats = verify(&scenario, Some(algorithm), &Tuning::default()).unwrap();
        (stats.messages / 16, stats.message_bytes / 64)
    };
    assert_eq!(moved(Algorithm::Pairwise), (15, 15));
    assert_eq!(moved(Algorithm::Bruck), (4, 32));
    assert_eq!(moved(Algorithm::GroupedAllToAll), (6, 24));
}
