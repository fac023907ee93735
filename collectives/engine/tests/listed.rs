//! Plans that list their steps give what they must, and are used for what they are for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use std::sync::Arc;

use common::oracle::{Job, collectives};
use common::{Setup, World, listed};
use ringway_engine::EngineConfig;
use ringway_plan::{Tuning, file::Listed};
use ringway_types::Operation;

/// Plans whose chunks are small.
fn plans(nodes: &[u32]) -> Vec<Arc<Listed>> {
    listed(nodes, &Tuning { chunk_bytes: 4096, ..Tuning::default() })
}

/// The name of what ran last on every node.
fn names(world: &World) -> Vec<String> {
    let name = |node: &common::Node| {
        let status = node.engine.status(node.ids[0]).expect("it is open");
        status.algorithm.map_or_else(String::new, |source| source.name().to_owned())
    };
    world.nodes.iter().map(name).collect()
}

/// Every collective with the plans of a setup; which of them were listed plans.
fn sweep(layout: &[u32], counts: &[u64], configure: fn(&mut EngineConfig)) -> Vec<Operation> {
    let mut world = World::new(&Setup { configure, ..Setup::new(layout) });
    let ranks = layout.len() as u32;
    let mut used = Vec::new();
    for (operation, seed) in collectives().zip(1..) {
        for &count in counts {
            for in_place in [false, true] {
                if in_place && matches!(operation, Operation::AllToAllV | Operation::Barrier) {
                    continue;
                }
                Job { in_place, ..Job::new(operation, count, ranks, seed) }.run(&mut world);
            }
        }
        let names = names(&world);
        assert!(names.iter().all(|name| *name == names[0]), "{operation}: {names:?}");
        if names[0].starts_with(operation.name()) {
            used.push(operation);
        }
    }
    used
}

const LAYOUTS: [&[u32]; 5] =
    [&[0, 1], &[0, 0, 1], &[0, 1, 2], &[0, 0, 1, 2, 2, 2, 1], &[0, 1, 2, 3, 3, 1, 0]];

#[test]
fn listed_rings_give_what_they_must() {
    for layout in LAYOUTS {
        let used = sweep(layout, &[0, 1, 3, 64, 777, 5_001], |config| {
            config.eager_max_bytes = 1024;
            config.plans = plans(&[2, 3, 4]);
        });
        assert_eq!(used.len(), 9, "{used:?}");
    }
}

#[test]
fn listed_direct_exchanges_give_what_they_must() {
    for layout in LAYOUTS {
        let used = sweep(layout, &[1, 64, 5_001], |config| {
            config.eager_max_bytes = 1024;
            config.plans = plans(&[2, 3, 4]);
            config.plans.retain(|plan| plan.name().contains("direct"));
        });
        assert_eq!(used.len(), 9, "{used:?}");
    }
}

#[test]
fn the_last_one_listed_is_used_and_none_for_other_numbers_of_nodes() {
    let configure: fn(&mut EngineConfig) = |config| {
        config.plans = plans(&[3]);
        config.plans.retain(|plan| plan.operation() == Operation::Allreduce);
    };
    for (layout, expected) in [(&[0_u32, 1, 2][..], "allreduce-ring-3"), (&[0, 1], "direct")] {
        let mut world = World::new(&Setup { configure, ..Setup::new(layout) });
        Job::new(Operation::Allreduce, 5, layout.len() as u32, 1).run(&mut world);
        assert_eq!(names(&world), vec![expected; world.nodes.len()]);
    }
}
