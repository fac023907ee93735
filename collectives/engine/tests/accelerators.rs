//! Memory of accelerators: touched by the pieces that they do alone, and staged on its way to other nodes and from there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use common::oracle::{Job, collectives};
use common::{Others, Setup, World};
use ringway_engine::{Failure, LocalRank, PointToPoint, RankFailure, Request};
use ringway_types::Operation;

fn setup(layout: &[u32], accelerated: &[u32], seed: u64) -> Setup {
    let others = Some(Others::new(seed));
    Setup { others, accelerated: accelerated.to_vec(), ..Setup::new(layout) }
}

/// All ranks on accelerators, or every second one.
fn halves(layout: &[u32]) -> [Vec<u32>; 2] {
    let ranks = 0..layout.len() as u32;
    [ranks.clone().collect(), ranks.filter(|rank| rank % 2 == 0).collect()]
}

fn had(world: &World) -> u64 {
    world.nodes.iter().map(|node| node.memory.others.as_ref().unwrap().had).sum()
}

const LAYOUTS: [&[u32]; 6] = [&[0], &[0, 0, 0], &[0, 1], &[0, 0, 1], &[0, 1, 0, 1], &[0, 0, 1, 2, 2, 2, 1]];

#[test]
fn every_collective_gives_the_same_on_accelerators() {
    for (seed, layout) in (0..).zip(LAYOUTS) {
        for accelerated in halves(layout) {
            let mut world = World::new(&setup(layout, &accelerated, seed).with_small_chunks());
            for operation in collectives() {
                for (count, in_place) in [(0, false), (1, false), (777, true), (5_001, false), (5_001, true)]
                {
                    if in_place && matches!(operation, Operation::AllToAllV | Operation::Barrier) {
                        continue;
                    }
                    Job { in_place, ..Job::new(operation, count, layout.len() as u32, seed + count) }
                        .run(&mut world);
                }
            }
            assert!(had(&world) > 20, "accelerators had {} pieces", had(&world));
        }
    }
}

#[test]
fn a_vector_on_one_node_is_one_piece() {
    let mut world = World::new(&Setup { region: 16 << 20, ..setup(&[0, 0], &[0, 1], 3) });
    Job::new(Operation::Allreduce, 1_000_000, 2, 5).run(&mut world);
    assert_eq!(had(&world), 1);
}

#[test]
fn chunks_are_staged_with_the_usual_tuning_and_with_little_room() {
    for workspace in [32 << 20, 8 << 20] {
        let setup = setup(&[0, 0, 1, 2], &[0, 1, 3], 8);
        let mut world = World::new(&Setup { region: 16 << 20, workspace, ..setup });
        for operation in collectives() {
            Job::new(operation, 300_000, 4, 5).run(&mut world);
        }
    }
}

fn pattern(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 3) as u8).collect()
}

fn message(world: &mut World, length: u64, at: u64, early: bool) -> [u32; 2] {
    let (from, into) = (world.buffer(0, at, length), world.buffer(1, at, length));
    let send = Request::PointToPoint(PointToPoint::Send { peer: 1, tag: 5, buffer: from });
    let receive = Request::PointToPoint(PointToPoint::Receive { peer: Some(0), tag: 5, buffer: into });
    if early {
        let sent = world.submit(0, send);
        for _ in 0..50 {
            world.round();
        }
        return [sent, world.submit(1, receive)];
    }
    let received = world.submit(1, receive);
    [world.submit(0, send), received]
}

#[test]
fn messages_of_every_length_arrive_in_both_orders() {
    for layout in [&[0_u32, 0][..], &[0, 1]] {
        for accelerated in [&[0_u32][..], &[1], &[0, 1]] {
            let mut world = World::new(&setup(layout, accelerated, 4));
            for length in [0, 1, 192, 193, 8192, 8193, 300_001] {
                for early in [false, true] {
                    world.write(0, 0, &pattern(length, length));
                    world.write(1, 0, &vec![0; length as usize]);
                    let [sent, received] = message(&mut world, length, 0, early);
                    assert_eq!(
                        world.wait(1, received),
                        Ok((0, length)),
                        "{layout:?} {accelerated:?} {length}"
                    );
                    assert_eq!(world.wait(0, sent), Ok((0, 0)));
                    assert!(
                        world.read(1, 0, length) == pattern(length, length),
                        "{layout:?} {accelerated:?} {length}"
                    );
                }
            }
        }
    }
}

#[test]
fn messages_wait_for_room_and_keep_their_order() {
    for accelerated in [&[0_u32][..], &[1], &[0, 1]] {
        let mut world = World::new(&Setup { workspace: 3 << 20, ..setup(&[0, 1], accelerated, 4) });
        let lengths = [700_000_u64, 8, 900_000, 30_000, 700_001, 5];
        let at = |i: u64| i * (600 << 10);
        let tokens: Vec<_> = (0..)
            .zip(lengths)
            .map(|(i, length)| {
                world.write(0, at(i), &pattern(i, length));
                world.write(1, at(i), &vec![0; length as usize]);
                message(&mut world, length, at(i), i % 2 == 0)
            })
            .collect();
        for ((i, length), [sent, received]) in (0..).zip(lengths).zip(tokens) {
            assert_eq!(world.wait(1, received), Ok((0, length)), "message {i}");
            assert_eq!(world.wait(0, sent), Ok((0, 0)), "message {i}");
        }
        // Of those that overlap the later one is what is there.
        assert!(world.read(1, at(5), 5) == pattern(5, 5));
        assert!(world.read(1, at(1), 8) == pattern(1, 8));
    }
}

#[test]
fn short_messages_that_nobody_receives_leave_room_for_others() {
    // One window for each way.
    let mut world = World::new(&Setup { workspace: 3 << 20, ..setup(&[0, 1], &[0, 1], 4) });
    let short = |world: &mut World| {
        let buffer = world.buffer(0, 0, 500);
        world.submit(0, Request::PointToPoint(PointToPoint::Send { peer: 1, tag: 9, buffer }))
    };
    // More than are sent before their receives are there: the others are announced.
    for _ in 0..100 {
        short(&mut world);
    }
    let length = 300_001;
    world.write(0, 1024, &pattern(3, length));
    let [sent, received] = message(&mut world, length, 1024, false);
    assert_eq!(world.wait(1, received), Ok((0, length)));
    assert_eq!(world.wait(0, sent), Ok((0, 0)));
    assert!(world.read(1, 1024, length) == pattern(3, length));
}

#[test]
fn a_communicator_whose_accelerator_is_stuck_leaves_room_for_others() {
    // Four windows for each way, as many as one message has parts under way.
    let setup = Setup { communicators: 2, region: 8 << 20, ..setup(&[0, 0, 1], &[0, 2], 4) };
    let mut world = World::new(&setup);
    world.nodes[0].memory.others.as_mut().unwrap().stopped = true;
    let length = 2 << 20;
    let mut send = |communicator, from, at| {
        let tag = 5;
        world.write(from, at, &pattern(from.into(), length));
        let buffer = world.buffer(from, at, length);
        let send = PointToPoint::Send { peer: 2, tag, buffer };
        let sent = world.submit_on(communicator, from, Request::PointToPoint(send));
        let buffer = world.buffer(2, at, length);
        let receive = PointToPoint::Receive { peer: Some(from), tag, buffer };
        let received = world.submit_on(communicator, 2, Request::PointToPoint(receive));
        world.pass(5);
        (sent, received)
    };
    send(0, 0, 0);
    let (sent, received) = send(1, 1, length);
    assert_eq!(world.wait_on(1, 2, received), Ok((1, length)));
    assert_eq!(world.wait_on(1, 1, sent), Ok((1, 0)));
    assert!(world.read(2, length, length) == pattern(1, length));
}

#[test]
fn a_sender_may_leave_when_its_message_is_there() {
    let mut world = World::new(&setup(&[0, 1], &[1], 4));
    let set_stopped = |world: &mut World, stopped| {
        world.nodes[1].memory.others.as_mut().unwrap().stopped = stopped;
    };
    let length = 100_000;
    world.write(0, 0, &pattern(3, length));
    set_stopped(&mut world, true);
    let [sent, received] = message(&mut world, length, 0, false);
    assert_eq!(world.wait(0, sent), Ok((0, 0)));
    world.until(|world| !world.nodes[1].memory.others.as_ref().unwrap().pieces.is_empty());
    let id = world.nodes[0].ids[0];
    world.nodes[0].engine.leave(id, LocalRank(0));
    world.pass(300);
    set_stopped(&mut world, false);
    assert_eq!(world.wait(1, received), Ok((0, length)));
    assert!(world.read(1, 0, length) == pattern(3, length));
}

#[test]
fn messages_longer_than_the_workspace_pass_each_other() {
    for accelerated in [&[0_u32][..], &[1], &[0, 1]] {
        for room in [3 << 20, 2_500_000] {
            let mut world =
                World::new(&Setup { region: 16 << 20, workspace: 3 << 20, ..setup(&[0, 1], accelerated, 4) });
            let (length, half) = (3 << 20, 8 << 20);
            let mut tokens = Vec::new();
            for rank in 0..2 {
                world.write(rank, 0, &pattern(rank.into(), length));
                let (from, into) = (world.buffer(rank, 0, length), world.buffer(rank, half, room));
                let send = PointToPoint::Send { peer: 1 - rank, tag: 5, buffer: from };
                let receive = PointToPoint::Receive { peer: Some(1 - rank), tag: 5, buffer: into };
                let sent = world.submit(rank, Request::PointToPoint(send));
                tokens.push((rank, sent, world.submit(rank, Request::PointToPoint(receive))));
            }
            for (rank, sent, received) in tokens {
                let whole = if room < length {
                    Err(Failure::Truncated { sent: length, room })
                } else {
                    Ok((1 - rank, length))
                };
                assert_eq!(world.wait(rank, received), whole);
                assert_eq!(world.wait(rank, sent), Ok((rank, 0)));
                assert!(world.read(rank, half, room) == pattern((1 - rank).into(), length)[..room as usize]);
            }
        }
    }
}

#[test]
fn a_failure_waits_for_what_the_accelerator_has_begun() {
    for layout in [&[0_u32, 0][..], &[0, 1]] {
        let mut world = World::new(&Setup { region: 16 << 20, ..setup(layout, &[0, 1], 9) });
        let job = Job::new(Operation::Allreduce, 500_000, 2, 5);
        job.prepare(&world);
        let tokens: Vec<_> = (0..2).map(|rank| job.call(&mut world, 0, rank)).collect();
        let begun = |world: &World| world.nodes[0].memory.others.as_ref().unwrap().pieces.len();
        world.until(|world| begun(world) > 0);
        world.fail(1, Failure::Rank { rank: 1, how: RankFailure::Exited });
        for (rank, token) in (0..).zip(tokens) {
            let failed = world.wait(rank, token);
            assert!(matches!(failed, Err(Failure::Rank { rank: 1, .. })), "{failed:?}");
            assert_eq!(begun(&world), 0, "reported while it worked");
        }
    }
}
