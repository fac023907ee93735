//! Links of several channels: everything is exact in whatever order channels are seen, long messages go over all of them, and
//! one that fails is named.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use common::oracle::{Job, collectives};
use common::{Order, Setup, World};
use ringway_engine::{Failure, PointToPoint, RegionId, Request};
use ringway_plan::{Algorithm, Blocks, Call, Layout, Plan, Preference, Rule, Source, Tuning, View};
use ringway_types::Operation;
use ringway_verbs::Cause;

/// A world with so many channels whose order the seed decides.
fn setup(node_of: &[u32], channels: u32, seed: u64) -> Setup {
    Setup { channels, order: Order::Random(seed), ..Setup::new(node_of).with_small_chunks() }
}

/// The same, with chunks so long that hardly anything is sent with its header.
fn long_chunks(channels: u32, seed: u64) -> Setup {
    let small = setup(&[0, 1], channels, seed);
    Setup { tuning: Tuning { chunk_bytes: 32 << 10, ..small.tuning }, ..small }
}

#[test]
fn every_collective_is_exact_over_several_channels() {
    for (layout, channels) in [(&[0_u32, 1][..], 2), (&[0, 1, 1, 2], 3), (&[0, 1, 2, 3, 3, 1, 0], 8)] {
        for seed in 0..3 {
            let mut world = World::new(&setup(layout, channels, seed));
            for operation in collectives() {
                for count in [1, 777, 5_001] {
                    Job::new(operation, count, layout.len() as u32, seed).run(&mut world);
                }
            }
        }
    }
}

#[test]
fn every_algorithm_is_exact_over_one_to_three_channels() {
    let layouts: [&[u32]; 3] = [&[0, 1, 1], &[0, 1, 2, 1], &[0, 1, 2, 3, 4]];
    for (&algorithm, node_of) in Algorithm::ALL.iter().flat_map(|a| layouts.map(|layout| (a, layout))) {
        let layout = Layout::new(node_of).unwrap();
        let can = |operation: &Operation| {
            let call = Call { operation: *operation, element: 4, count: 1, root: 0 };
            let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
            Plan::with(algorithm, &view, &Tuning::default()).is_ok()
        };
        for channels in 1..=3 {
            let preference = Preference::everywhere(algorithm);
            let seed = u64::from(channels) + 7;
            let mut world = World::new(&Setup { preference, ..setup(node_of, channels, seed) });
            for operation in collectives().filter(can) {
                Job::new(operation, 5_001, layout.ranks(), seed).run(&mut world);
                let ran = world.nodes[0].engine.status(world.nodes[0].ids[0]).unwrap().algorithm;
                assert_eq!(ran, Some(Source::Algorithm(algorithm)), "{operation} on {node_of:?}");
            }
        }
    }
}

/// Bytes that a node of two has written over each channel.
fn written(world: &World, node: usize) -> Vec<u64> {
    let device = world.nodes[node].device.as_ref().unwrap();
    device.made.iter().map(|made| device.written.get(&made.0).copied().unwrap_or(0)).collect()
}

#[test]
fn chunks_go_over_all_channels_by_turns() {
    for channels in [1, 2, 3] {
        let mut world = World::new(&long_chunks(channels, 1));
        // 12 chunks of 32 KiB.
        Job::new(Operation::Allreduce, 98_304, 2, 1).run(&mut world);
        for node in 0..2 {
            let written = written(&world, node);
            let all: u64 = written.iter().sum();
            assert_eq!(written.len(), channels as usize);
            assert!(all >= 98_304 * 4 / 2, "{written:?}");
            let share = all / u64::from(channels);
            assert!(written.iter().all(|bytes| bytes.abs_diff(share) <= share / 10), "{written:?}");
        }
    }
}

/// A rule can leave channels aside: what remains has all of it.
#[test]
fn chunks_go_over_as_many_channels_as_a_rule_says() {
    for of_rule in [1, 2, 3] {
        let rule = Rule {
            operation: Operation::Allreduce,
            bytes_max: u64::MAX,
            algorithm: Algorithm::Ring,
            chunk_bytes: 0,
            channels: of_rule,
        };
        let mut world = World::new(&Setup { rules: vec![rule], ..long_chunks(3, 1) });
        Job::new(Operation::Allreduce, 98_304, 2, 1).run(&mut world);
        for node in 0..2 {
            let written = written(&world, node);
            let (used, others) = written.split_at(of_rule as usize);
            let share = used.iter().sum::<u64>() / u64::from(of_rule);
            assert!(share >= 98_304 * 4 / 2 / u64::from(of_rule), "{written:?}");
            assert!(used.iter().all(|bytes| bytes.abs_diff(share) <= share / 10), "{written:?}");
            assert!(others.iter().all(|bytes| *bytes == 0), "{written:?}");
        }
    }
}

/// Messages from rank 0 to rank 1, and what was written over each channel then.
fn exchange(world: &mut World, length: u64, times: usize) -> Vec<u64> {
    for _ in 0..times {
        let send = PointToPoint::Send { peer: 1, tag: 1, buffer: world.buffer(0, 0, length) };
        let receive = PointToPoint::Receive { peer: Some(0), tag: 1, buffer: world.buffer(1, 0, length) };
        world.write(0, 0, &vec![3; length as usize]);
        let tokens = [(0, send), (1, receive)]
            .map(|(rank, request)| (rank, world.submit(rank, Request::PointToPoint(request))));
        for (rank, token) in tokens {
            world.wait(rank, token).expect("a message");
        }
        assert_eq!(world.read(1, 0, length), vec![3; length as usize]);
    }
    written(world, 0)
}

#[test]
fn long_messages_go_over_all_channels_and_short_ones_over_the_first() {
    let mut world = World::new(&long_chunks(3, 5));
    assert_eq!(exchange(&mut world, 1_000, 4), [0, 0, 0]);
    assert_eq!(exchange(&mut world, 30_000, 6), [60_000, 60_000, 60_000]);
}

/// Long messages come over the network cards that are on the NUMA node of the memory that they go to.
#[test]
fn long_messages_come_over_the_cards_nearest_their_memory() {
    let numa_nodes = vec![0, 1, 1];
    for (region, expected) in [(0, [180_000, 0, 0]), (1, [0, 90_000, 90_000]), (7, [60_000, 60_000, 60_000])]
    {
        let mut world = World::new(&Setup { numa_nodes: numa_nodes.clone(), ..long_chunks(3, 5) });
        world.nodes[1].engine.place_region(RegionId(1), region);
        assert_eq!(exchange(&mut world, 30_000, 6), expected, "memory on node {region}");
        // The chunks of collectives, where they go to the memory of clients.
        for operation in collectives() {
            Job::new(operation, 5_001, 2, 3).run(&mut world);
        }
    }
}

/// The sender's memory says nothing, nor does memory of which nobody knows where it is.
#[test]
fn only_the_memory_that_is_written_decides() {
    let mut world = World::new(&Setup { numa_nodes: vec![0, 1, 1], ..long_chunks(3, 5) });
    world.nodes[0].engine.place_region(RegionId(1), 1);
    assert_eq!(exchange(&mut world, 30_000, 6), [60_000, 60_000, 60_000]);
}

/// Both ends see which of several failed, though the other end may be told before it sees that.
#[test]
fn a_channel_that_breaks_names_its_rail() {
    for (channel, seed) in [0_usize, 1, 2].into_iter().flat_map(|channel| [1, 2].map(|seed| (channel, seed)))
    {
        let mut world = World::new(&long_chunks(3, seed));
        let job = Job::new(Operation::Allreduce, 60_000, 2, 1);
        job.prepare(&world);
        let tokens = [0, 1].map(|rank| job.call(&mut world, 0, rank));
        for _ in 0..10 {
            world.round();
        }
        let device = world.nodes[0].device.as_mut().unwrap();
        let made = device.made[channel];
        ringway_verbs::Device::fail_queue_pair(device, made);
        for (rank, token) in (0..2_u32).zip(tokens) {
            let outcome = world.wait(rank, token);
            let expected = Some(channel as u32);
            let Err(Failure::Node { node, rank: lowest, rail, .. }) = outcome.clone() else {
                panic!("rank {rank}: {outcome:?}")
            };
            assert_eq!((node, lowest, rail), (1 - rank, 1 - rank, expected), "rank {rank}");
            let text = outcome.expect_err("failed").to_string();
            assert!(text.ends_with(&format!("on rail {channel}")), "{text}");
        }
    }
}

#[test]
fn a_channel_that_falls_silent_is_found_and_named() {
    let mut world = World::new(&long_chunks(2, 3));
    for node in &mut world.nodes {
        let device = node.device.as_mut().unwrap();
        device.held = Some(device.made[1]);
    }
    let job = Job::new(Operation::Allreduce, 60_000, 2, 1);
    job.prepare(&world);
    let tokens = [0, 1].map(|rank| job.call(&mut world, 0, rank));
    let start = world.now;
    for (rank, token) in (0..2_u32).zip(tokens) {
        while !world.finished.contains_key(&(0, rank, token)) {
            world.pass(1);
            assert!(world.now - start < 3_000_000_000, "a hang");
        }
        let outcome = world.wait(rank, token);
        assert!(matches!(outcome, Err(Failure::Node { rail: Some(1), .. })), "{outcome:?}");
    }
    let elapsed_ms = (world.now - start) / 1_000_000;
    assert!((900..1_700).contains(&elapsed_ms), "{elapsed_ms} ms");
}

/// What a node's own device ends is told as the loss of that node, by itself and by others.
#[test]
fn a_device_that_fails_names_its_own_node() {
    let causes = [
        (Cause::DeviceLost, "its network device is broken, or was removed"),
        (Cause::QueuePairFatal, "its network device says that a queue pair has failed"),
    ];
    for (cause, words) in causes {
        let mut world = World::new(&long_chunks(3, 1));
        let job = Job::new(Operation::Allreduce, 60_000, 2, 1);
        job.prepare(&world);
        let tokens = [0, 1].map(|rank| job.call(&mut world, 0, rank));
        for _ in 0..10 {
            world.round();
        }
        let device = world.nodes[0].device.as_mut().unwrap();
        device.cause = Some(cause);
        let made = device.made[1];
        ringway_verbs::Device::fail_queue_pair(device, made);
        for (rank, token) in (0..2_u32).zip(tokens) {
            let text = world.wait(rank, token).expect_err("failed").to_string();
            assert_eq!(
                text,
                format!("node 0 (rank 0 and its neighbours) is lost: {words}, on rail 1"),
                "rank {rank}"
            );
        }
    }
}

/// A node with nothing to write over a channel is asked for nothing there that it would not give.
#[test]
fn channels_that_nothing_goes_over_are_not_taken_for_silent() {
    let mut world = World::new(&long_chunks(3, 4));
    let job = Job::new(Operation::Allreduce, 10, 2, 1);
    job.prepare(&world);
    let first = job.call(&mut world, 0, 0);
    world.pass(4_000);
    let second = job.call(&mut world, 0, 1);
    for (rank, token) in [(0, first), (1, second)] {
        assert_eq!(world.wait(rank, token), Ok((rank, 0)));
    }
    job.check(&world);
}

/// The word that a node has left, over the first channel, overtakes the notice of what it wrote over another one.
#[test]
fn a_node_that_left_is_not_missed_before_what_it_wrote_was_seen() {
    for held_ms in [5, 200] {
        let mut world = World::new(&long_chunks(2, 6));
        let device = world.nodes[1].device.as_mut().unwrap();
        device.held = Some(device.made[1]);
        let job = Job { root: 0, ..Job::new(Operation::Broadcast, 16_000, 2, 1) };
        job.prepare(&world);
        let tokens = [0, 1].map(|rank| job.call(&mut world, 0, rank));
        assert_eq!(world.wait(0, tokens[0]), Ok((0, 0)), "all it wrote was acknowledged");
        let id = world.nodes[0].ids[0];
        assert!(!world.nodes[0].engine.close(id));
        world.pass(held_ms);
        world.nodes[1].device.as_mut().unwrap().held = None;
        let outcome = world.wait(1, tokens[1]);
        if held_ms < 20 {
            assert_eq!(outcome, Ok((1, 0)));
            job.check(&world);
        } else {
            assert!(matches!(outcome, Err(Failure::Rank { rank: 0, .. })), "{outcome:?}");
        }
    }
}
