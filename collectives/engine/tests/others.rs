//! Local work that others do, at any time and in any order, and that is theirs when something fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use std::sync::Arc;

use common::oracle::{Job, collectives};
use common::{Others, Setup, World};
use ringway_engine::{Failure, RankFailure, RegionId};
use ringway_mem::Mapping;
use ringway_types::Operation;
use ringway_verbs::{Access, Device};

fn world(layout: &[u32], seed: u64) -> World {
    World::new(&Setup { others: Some(Others::new(seed)), ..Setup::new(layout).with_small_chunks() })
}

fn had(world: &World) -> u64 {
    world.nodes.iter().map(|node| node.memory.others.as_ref().unwrap().had).sum()
}

/// The scratch memory that [`own_scratch`] gives.
const SCRATCH: u64 = 64 << 10;

/// Every node's communicator gets scratch memory of its own.
fn own_scratch(world: &mut World) -> Vec<RegionId> {
    own_scratch_of(world, SCRATCH)
}

fn own_scratch_of(world: &mut World, bytes: u64) -> Vec<RegionId> {
    let mut regions = Vec::new();
    for node in &mut world.nodes {
        let mapping = Arc::new(Mapping::private(bytes as usize).unwrap());
        let region = RegionId(node.memory.regions.len() as u32);
        let keys = node.device.as_mut().unwrap().register(mapping.clone(), Access::ALL).unwrap();
        node.memory.regions.push(mapping);
        node.engine.add_region(region, keys.local);
        node.engine.set_scratch(node.ids[0], Some((region, bytes)));
        regions.push(region);
    }
    regions
}

#[test]
fn every_collective_gives_the_same_when_others_do_the_local_work() {
    let layouts: [&[u32]; 5] =
        [&[0, 0, 0], &[0, 0, 1], &[0, 1, 0, 1], &[0, 0, 1, 2, 2, 2, 1], &[0, 1, 2, 3, 3, 1, 0]];
    for (seed, layout) in (0..).zip(layouts) {
        let mut world = world(layout, seed);
        own_scratch(&mut world);
        for operation in collectives() {
            for (count, in_place) in [(777, false), (5_001, false), (5_001, true)] {
                if in_place && matches!(operation, Operation::AllToAllV | Operation::Barrier) {
                    continue;
                }
                Job { in_place, ..Job::new(operation, count, layout.len() as u32, seed + count) }
                    .run(&mut world);
            }
        }
        assert!(had(&world) > 100, "others had {} pieces", had(&world));
    }
}

#[test]
fn many_pieces_are_away_at_a_time() {
    let setup = Setup { region: 16 << 20, workspace: 32 << 20, ..Setup::new(&[0, 0, 1, 1]) };
    let mut world = World::new(&Setup { others: Some(Others::new(3)), ..setup });
    own_scratch_of(&mut world, 8 << 20);
    let job = Job::new(Operation::Allreduce, 1_000_000, 4, 5);
    job.prepare(&world);
    let tokens: Vec<_> = (0..4).map(|rank| job.call(&mut world, 0, rank)).collect();
    let mut most = 0;
    for _ in 0..200 {
        world.round();
        most = most.max(world.nodes[0].memory.others.as_ref().unwrap().pieces.len());
    }
    assert!((8..=32).contains(&most), "{most} pieces were away at a time");
    for (rank, token) in (0..).zip(tokens) {
        assert_eq!(world.wait(rank, token), Ok((rank, 0)));
    }
    job.check(&world);
}

#[test]
fn own_scratch_memory_is_used_where_it_is_large_enough_and_can_be_taken_back() {
    let mut world = world(&[0, 1, 1], 4);
    let regions = own_scratch(&mut world);
    for count in [3, 900, 9_000] {
        Job::new(Operation::Allreduce, count, 3, count).run(&mut world);
    }
    for (node, region) in world.nodes.iter_mut().zip(&regions) {
        assert!(!node.engine.remove_region(*region), "the communicator has it");
        node.engine.set_scratch(node.ids[0], None);
        assert!(node.engine.remove_region(*region));
        node.memory.regions[region.0 as usize].window(0, 8).unwrap().write(&[7; 8]);
    }
    Job::new(Operation::Allreduce, 9_000, 3, 2).run(&mut world);
    // What a chunk needs does not fit into so little: the workspace is used instead.
    for node in &mut world.nodes {
        node.engine.set_scratch(node.ids[0], Some((RegionId(99), 64)));
    }
    Job::new(Operation::Allreduce, 9_000, 3, 3).run(&mut world);
}

#[test]
fn a_failure_takes_back_what_nobody_has_begun() {
    let mut world = world(&[0, 0, 1, 1], 9);
    own_scratch(&mut world);
    let job = Job::new(Operation::Allreduce, 100_000, 4, 5);
    job.prepare(&world);
    let tokens: Vec<_> = (0..4).map(|rank| job.call(&mut world, 0, rank)).collect();
    (0..20).for_each(|_| world.round());
    let failure = Failure::Rank { rank: 1, how: RankFailure::Exited };
    world.fail(1, failure.clone());
    for (rank, token) in (0..).zip(tokens) {
        assert_eq!(world.wait(rank, token), Err(failure.clone()));
    }
    for node in &world.nodes {
        assert!(node.memory.others.as_ref().unwrap().pieces.is_empty());
        assert!(node.engine.is_settled(node.ids[0]));
    }
}

#[test]
fn a_failure_does_not_wait_for_whoever_holds_a_piece_but_says_so() {
    let mut world = world(&[0, 0], 9);
    let (before, job) = (world.now, Job::new(Operation::Allreduce, 100_000, 2, 5));
    job.prepare(&world);
    let tokens: Vec<_> = (0..2).map(|rank| job.call(&mut world, 0, rank)).collect();
    (0..5).for_each(|_| world.round());
    world.nodes[0].memory.others.as_mut().unwrap().stopped = true;
    world.pass(100);
    assert!(world.finished.is_empty(), "the operation waits for the pieces that are away");
    let failure = Failure::Rank { rank: 1, how: RankFailure::Exited };
    world.fail(1, failure.clone());
    for (rank, token) in (0..).zip(tokens) {
        assert_eq!(world.wait(rank, token), Err(failure.clone()));
    }
    assert!(world.now - before < 300_000_000);
    let id = world.nodes[0].ids[0];
    assert!(!world.nodes[0].engine.is_settled(id), "somebody may still write");
    assert!(!world.nodes[0].engine.close(id));
    assert!(!world.nodes[0].engine.remove_region(RegionId(1)));
    world.pass(100);
    assert!(!world.nodes[0].engine.is_settled(id));
    world.nodes[0].memory.others.as_mut().unwrap().stopped = false;
    world.pass(100);
    assert!(world.nodes[0].engine.is_settled(id));
    assert!(world.nodes[0].engine.close(id));
    assert!(world.nodes[0].engine.remove_region(RegionId(1)));
}

#[test]
fn what_others_wait_for_is_not_left_to_anybody() {
    let mut world = world(&[0, 0, 1, 1], 2);
    Job::new(Operation::Allreduce, 9_000, 4, 2).run(&mut world);
    assert_eq!(had(&world), 0, "a collective with scratch memory of the workspace hurries");
    own_scratch(&mut world);
    Job::new(Operation::Allreduce, 9_000, 4, 2).run(&mut world);
    assert!(had(&world) > 0);
}

#[test]
fn a_rank_that_stops_with_a_piece_is_named_on_every_node() {
    let setup = Setup { others: Some(Others::new(7)), ..Setup::new(&[0, 0, 1, 1]).with_small_chunks() };
    let mut world = World::new(&Setup { timeout_ms: Some(2_000), ..setup });
    own_scratch(&mut world);
    let job = Job::new(Operation::Allreduce, 100_000, 4, 5);
    job.prepare(&world);
    let tokens: Vec<_> = (0..4).map(|rank| job.call(&mut world, 0, rank)).collect();
    (0..5).for_each(|_| world.round());
    world.nodes[0].memory.others.as_mut().unwrap().stopped = true;
    for (rank, token) in (0..).zip(tokens) {
        let failure = world.wait(rank, token).unwrap_err();
        assert!(matches!(failure, Failure::TimedOut { rank: 1, .. }), "{failure}");
    }
    assert!(world.nodes[0].engine.status(world.nodes[0].ids[0]).is_some());
}
