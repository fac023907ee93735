//! Every collective gives what it must, on many layouts, at many sizes, in place and out of place.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use common::oracle::{Job, collectives};
use common::{Setup, World};
use ringway_plan::{Algorithm, Blocks, Call, Layout, Plan, Preference, Source, Tuning, View};
use ringway_types::{DataType, Operation, Reduction};

const LAYOUTS: [&[u32]; 9] = [
    &[0],
    &[0, 0],
    &[0, 0, 0, 0, 0],
    &[0, 1],
    &[0, 0, 1],
    &[0, 1, 0, 1],
    &[0, 1, 2],
    &[0, 0, 1, 2, 2, 2, 1],
    &[0, 1, 2, 3, 3, 1, 0],
];

fn sweep(layout: &[u32], counts: &[u64]) {
    let mut world = World::new(&Setup::new(layout).with_small_chunks());
    let ranks = layout.len() as u32;
    let mut seed = 0;
    for operation in collectives() {
        for &count in counts {
            for in_place in [false, true] {
                seed += 1;
                // all_to_all_v has no in-place form unless what is sent and received has the same lengths.
                if in_place && matches!(operation, Operation::AllToAllV | Operation::Barrier) {
                    continue;
                }
                Job { in_place, ..Job::new(operation, count, ranks, seed) }.run(&mut world);
            }
        }
    }
}

#[test]
fn every_collective_on_every_layout() {
    for layout in LAYOUTS {
        sweep(layout, &[0, 1, 3, 64, 777]);
    }
}

#[test]
fn every_algorithm_that_is_asked_for_runs_where_it_can() {
    let layouts: [&[u32]; 5] = [&[0], &[0, 1], &[0, 1, 1], &[0, 1, 2, 1], &[0, 1, 2, 3, 4]];
    for (&algorithm, node_of) in Algorithm::ALL.iter().flat_map(|a| layouts.map(|layout| (a, layout))) {
        let preference = Preference::everywhere(algorithm);
        let mut world = World::new(&Setup { preference, ..Setup::new(node_of).with_small_chunks() });
        let layout = Layout::new(node_of).unwrap();
        for operation in collectives() {
            let call = Call { operation, element: 4, count: 1, root: 0 };
            let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
            let can = Plan::with(algorithm, &view, &Tuning::default()).is_ok();
            for count in [1, 20, 5_001] {
                Job::new(operation, count, layout.ranks(), 3).run(&mut world);
                for node in &world.nodes {
                    let ran = node.engine.status(node.ids[0]).unwrap().algorithm;
                    assert_eq!(
                        ran == Some(Source::Algorithm(algorithm)),
                        can,
                        "{operation} by {algorithm} on {node_of:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn collectives_of_many_chunks() {
    for layout in LAYOUTS {
        sweep(layout, &[5_001]);
    }
}

#[test]
fn collectives_with_the_usual_tuning() {
    for layout in [&[0_u32, 0][..], &[0, 1, 1], &[0, 1, 2, 2]] {
        let setup = Setup { region: 16 << 20, workspace: 32 << 20, ..Setup::new(layout) };
        let mut world = World::new(&setup);
        for operation in collectives() {
            Job::new(operation, 300_000, layout.len() as u32, 5).run(&mut world);
        }
    }
}

#[test]
fn scratch_memory_for_one_chunk_is_enough() {
    let setup = Setup { configure: |c| c.message_pool = 8, workspace: 5 << 18, ..Setup::new(&[0, 1, 2]) };
    let mut world = World::new(&Setup {
        configure: |c| {
            c.eager_max_bytes = 1024;
            c.message_pool = 8;
            c.credits = 4;
        },
        workspace: 512 << 10,
        ..setup.with_small_chunks()
    });
    for operation in collectives() {
        Job::new(operation, 9_000, 3, 5).run(&mut world);
    }
}

#[test]
fn types_and_reductions() {
    for layout in [&[0_u32, 0, 0][..], &[0, 1, 1, 2]] {
        let mut world = World::new(&Setup::new(layout).with_small_chunks());
        for datatype in
            [DataType::I8, DataType::U8, DataType::I32, DataType::U64, DataType::F32, DataType::F64]
        {
            for &reduction in Reduction::ALL {
                // The order between nodes is free, and only sums of these inputs are exact in any order.
                let exact = !datatype.is_float() || reduction != Reduction::Prod;
                if !datatype.supports(reduction) || reduction == Reduction::PremulSum || !exact {
                    continue;
                }
                for operation in
                    [Operation::Allreduce, Operation::Reduce, Operation::ReduceScatter, Operation::Scan]
                {
                    let job = Job::new(operation, 1_111, layout.len() as u32, 3);
                    Job { datatype, reduction, ..job }.run(&mut world);
                }
            }
        }
    }
}

#[test]
fn operations_follow_each_other_without_waiting() {
    // Ranks call many collectives at once; a broadcast's root runs ahead of the others.
    for layout in [&[0_u32, 0][..], &[0, 1, 1, 2]] {
        let mut world = World::new(&Setup::new(layout).with_small_chunks());
        let ranks = layout.len() as u32;
        for count in [1_u64, 900] {
            let jobs: Vec<_> = (0..100)
                .map(|i| Job { root: 0, in_place: true, ..Job::new(Operation::Broadcast, count, ranks, i) })
                .collect();
            let last = jobs.last().unwrap();
            last.prepare(&world);
            let mut tokens = Vec::new();
            for rank in 0..ranks {
                for job in &jobs {
                    tokens.push((rank, job.call(&mut world, 0, rank)));
                }
                world.pass(1);
            }
            for (rank, token) in tokens {
                assert_eq!(world.wait(rank, token), Ok((rank, 0)));
            }
            last.check(&world);
        }
    }
}

#[test]
fn communicators_do_not_wait_for_each_other_and_are_served_fairly() {
    let setup = Setup { communicators: 2, region: 16 << 20, ..Setup::new(&[0, 0]) };
    let mut world = World::new(&setup);
    let large = Job::new(Operation::Allreduce, 1_500_000, 2, 1);
    large.prepare(&world);
    let bulk: Vec<_> = (0..2).map(|rank| large.call(&mut world, 0, rank)).collect();
    world.round();
    let barrier = Job::new(Operation::Barrier, 0, 2, 1);
    let small: Vec<_> = (0..2).map(|rank| barrier.call(&mut world, 1, rank)).collect();
    world.nodes[0].memory.touched = 0;
    world.round();
    for (rank, token) in (0..).zip(small) {
        assert!(world.finished.contains_key(&(1, rank, token)), "the barrier waits for the bulk operation");
    }
    let touched = world.nodes[0].memory.touched;
    assert!(touched <= (256 + 128) << 10, "a turn touched {touched} bytes");
    for (rank, token) in (0..).zip(bulk) {
        assert_eq!(world.wait_on(0, rank, token), Ok((rank, 0)));
    }
    large.check(&world);
}

#[test]
fn a_local_collective_finishes_in_the_turn_it_is_called() {
    let mut world = World::of(&[0, 0]);
    let job = Job::new(Operation::Allreduce, 2, 2, 1);
    job.prepare(&world);
    let tokens: Vec<_> = (0..2).map(|rank| job.call(&mut world, 0, rank)).collect();
    world.round();
    for (rank, token) in (0..).zip(tokens) {
        assert_eq!(world.finished.get(&(0, rank, token)), Some(&Ok((rank, 0))));
    }
    job.check(&world);
}

#[test]
fn a_barrier_on_one_node_is_over_when_the_last_has_come() {
    let mut world = World::of(&[0, 0]);
    let barrier = Job::new(Operation::Barrier, 0, 2, 1);
    barrier.call(&mut world, 0, 0);
    assert!(world.nodes[0].engine.next_finished().is_none(), "rank 1 has not come");
    barrier.call(&mut world, 0, 1);
    let ranks: Vec<_> = core::iter::from_fn(|| world.nodes[0].engine.next_finished())
        .map(|finished| (finished.local.0, finished.outcome))
        .collect();
    assert_eq!(ranks, [(0, Ok((0, 0))), (1, Ok((1, 0)))]);
    assert!(!world.nodes[0].engine.has_work());

    // Not before what was called before it, though all are there.
    let large = Job::new(Operation::Allreduce, 100, 2, 1);
    large.prepare(&world);
    let before: Vec<_> = (0..2).map(|rank| large.call(&mut world, 0, rank)).collect();
    let after: Vec<_> = (0..2).map(|rank| barrier.call(&mut world, 0, rank)).collect();
    assert!(world.nodes[0].engine.next_finished().is_none(), "the allreduce comes first");
    for (rank, token) in [before, after].iter().flat_map(|tokens| (0..).zip(tokens)) {
        assert_eq!(world.wait_on(0, rank, *token), Ok((rank, 0)));
    }
    large.check(&world);
}
