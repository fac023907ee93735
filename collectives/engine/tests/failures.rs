//! What goes wrong reaches every rank, with its reason, and nothing hangs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use common::oracle::{Job, collectives};
use common::{Setup, World};
use proptest::prelude::*;
use ringway_engine::{Failure, LocalRank, PointToPoint, RankFailure, RegionId, Request};
use ringway_sim::SimConfig;
use ringway_types::{DataType, Operation};
use ringway_verbs::LocalKey;

const LAYOUTS: [&[u32]; 4] = [&[0, 0, 0], &[0, 1], &[0, 1, 0, 1], &[0, 1, 2, 2]];

fn exited(rank: u32) -> Failure {
    Failure::Rank { rank, how: RankFailure::Exited }
}

/// Two ranks call different things; every other pair that matters for how they meet.
#[test]
fn different_calls_are_named_everywhere() {
    for layout in LAYOUTS {
        let ranks = layout.len() as u32;
        let base = Job { root: 0, ..Job::new(Operation::Allreduce, 100, ranks, 1) };
        let others = [
            Job { operation: Operation::Barrier, ..base.clone() },
            Job { count: 101, ..base.clone() },
            Job { count: 90_000, ..base.clone() },
            Job { datatype: DataType::I32, ..base.clone() },
            Job { operation: Operation::Broadcast, ..base.clone() },
            Job { operation: Operation::Reduce, ..base.clone() },
            Job { operation: Operation::Broadcast, root: 1, ..base.clone() },
            Job { operation: Operation::Gather, ..base.clone() },
            Job { operation: Operation::Scatter, root: 1, ..base.clone() },
        ];
        for one in std::iter::once(&base).chain(&others) {
            for other in &others {
                if (one.operation, one.count, one.root, one.datatype)
                    == (other.operation, other.count, other.root, other.datatype)
                {
                    continue;
                }
                mismatch(layout, one, other);
            }
        }
    }
}

fn mismatch(layout: &[u32], one: &Job, other: &Job) {
    let ranks = layout.len() as u32;
    let mut world = World::of(layout);
    let tokens: Vec<_> = (0..ranks)
        .map(|rank| {
            let job = if rank + 1 == ranks { other } else { one };
            job.call(&mut world, 0, rank)
        })
        .collect();
    let mut named = 0;
    for (rank, token) in (0..ranks).zip(tokens) {
        // A root may have finished already; its next operation tells.
        let mut outcome = world.wait(rank, token);
        if outcome.is_ok() {
            world.pass(600);
            let token = Job::new(Operation::Barrier, 0, ranks, 1).call(&mut world, 0, rank);
            outcome = world.wait(rank, token);
        }
        match outcome {
            Err(Failure::Mismatch { call, other, .. }) => {
                assert_ne!(call, other);
                named += 1;
            }
            outcome => panic!("{layout:?} {one:?} against {other:?}: rank {rank} got {outcome:?}"),
        }
    }
    assert_eq!(named, ranks);
}

#[test]
fn counts_that_disagree_are_named() {
    // Rank 0 sends rank 1 more than it expects.
    for (layout, goes_on) in [(&[0_u32, 0][..], true), (&[0, 1], false)] {
        for length in [10_u64, 50_000] {
            let mut world = World::of(layout);
            let mut job = Job::new(Operation::AllToAllV, 1, 2, 1);
            job.counts = vec![vec![1, length], vec![1, 1]];
            let first = job.call(&mut world, 0, 0);
            job.counts[0][1] = length - 1;
            let second = job.call(&mut world, 0, 1);
            let (sent, expected) = (4 * length, 4 * (length - 1));
            let failure = Failure::Count { sender: 0, receiver: 1, sent, expected };
            assert_eq!(world.wait(1, second), Err(failure.clone()), "{layout:?}");
            let mut outcome = world.wait(0, first);
            if !goes_on && outcome.is_ok() {
                // A short message is on its way before anybody can know; the next operation tells.
                world.pass(5);
                let next = Job::new(Operation::Barrier, 0, 2, 1).call(&mut world, 0, 0);
                outcome = world.wait(0, next);
            }
            assert_eq!(outcome, Err(failure), "{layout:?}");
            if goes_on {
                Job::new(Operation::Allreduce, 5, 2, 1).run(&mut world);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_rank_that_dies_at_any_moment_fails_everyone(
        layout in prop::sample::select(LAYOUTS.to_vec()),
        which in any::<prop::sample::Index>(),
        operation in prop::sample::select(collectives().collect::<Vec<_>>()),
        count in prop::sample::select(vec![1_u64, 1000, 60_000]),
        rounds in 0..40_u32,
        absent: bool,
    ) {
        let mut world = World::of(layout);
        let ranks = layout.len() as u32;
        let dead = which.index(layout.len()) as u32;
        let jobs: Vec<_> = (0..4).map(|i| Job::new(operation, count, ranks, i)).collect();
        let mut tokens = Vec::new();
        for job in &jobs {
            job.prepare(&world);
            for rank in (0..ranks).filter(|rank| !(absent && *rank == dead)) {
                tokens.push((rank, job.call(&mut world, 0, rank)));
            }
        }
        let pending = world.buffer(0, 0, 8);
        let receive = PointToPoint::Receive { peer: Some(dead), tag: 1, buffer: pending };
        tokens.push((0, world.submit(0, Request::PointToPoint(receive))));
        for _ in 0..rounds {
            world.round();
        }
        world.fail(dead, exited(dead));
        let start = world.now;
        let last = tokens.last().copied().unwrap();
        prop_assert_eq!(world.wait(last.0, last.1), Err(exited(dead)));
        tokens.pop();
        for (rank, token) in tokens {
            let outcome = world.wait(rank, token);
            prop_assert!(outcome == Ok((rank, 0)) || outcome == Err(exited(dead)), "{:?}", outcome);
        }
        prop_assert!(world.now - start < 100_000_000, "the failure took {} ns", world.now - start);
        // Later calls fail as well, and the regions are free.
        for rank in 0..ranks {
            let token = jobs[0].call(&mut world, 0, rank);
            prop_assert_eq!(world.wait(rank, token), Err(exited(dead)));
        }
        for node in &mut world.nodes {
            for region in 1..node.memory.regions.len() as u32 {
                prop_assert!(node.engine.remove_region(RegionId(region)));
            }
        }
        let mut open = world.nodes.len();
        for _ in 0..200 {
            open = world.nodes.iter_mut().filter_map(|n| (!n.engine.close(n.ids[0])).then_some(())).count();
            world.pass(1);
        }
        prop_assert_eq!(open, 0);
        prop_assert!(world.nodes.iter().all(|node| !node.engine.has_work()));
    }

    #[test]
    fn a_lost_connection_is_a_lost_node(
        layout in prop::sample::select(LAYOUTS[1..].to_vec()),
        operation in prop::sample::select(collectives().collect::<Vec<_>>()),
        count in prop::sample::select(vec![1_u64, 60_000]),
        rounds in 0..40_u32,
        dies: bool,
    ) {
        let mut world = World::of(layout);
        let ranks = layout.len() as u32;
        let jobs: Vec<_> = (0..3).map(|i| Job::new(operation, count, ranks, i)).collect();
        let mut tokens = Vec::new();
        for job in &jobs {
            job.prepare(&world);
            for rank in 0..ranks {
                tokens.push((rank, job.call(&mut world, 0, rank)));
            }
        }
        for _ in 0..rounds {
            world.round();
        }
        if dies {
            world.kill(1);
        } else {
            world.break_link(0, 1);
        }
        world.pass(200);
        for rank in 0..ranks {
            let node = world.layout.node_of(rank);
            if !(dies && node == 1) {
                tokens.push((rank, Job::new(Operation::Barrier, 0, ranks, 1).call(&mut world, 0, rank)));
            }
        }
        for (rank, token) in tokens {
            if dies && world.layout.node_of(rank) == 1 {
                continue;
            }
            let outcome = world.wait(rank, token);
            let lost = matches!(outcome, Err(Failure::Node { node: 0 | 1, .. }));
            prop_assert!(outcome == Ok((rank, 0)) || lost, "{:?}", outcome);
        }
    }
}

#[test]
fn a_slow_network_keeps_neither_the_failure_nor_its_reason() {
    const LATENCY_NS: u64 = 150_000_000;
    let network = SimConfig { latency_ns: LATENCY_NS, ..SimConfig::default() };
    let mut world = World::new(&Setup { network, ..Setup::new(&[0, 1, 1]) });
    let job = Job::new(Operation::Allreduce, 60_000, 3, 1);
    job.prepare(&world);
    let tokens = [0, 1].map(|rank| job.call(&mut world, 0, rank));
    let start = world.now;
    world.fail(2, exited(2));
    // Those on its node need not wait until others know; but their buffers are not safe before.
    assert_eq!(world.wait(1, tokens[1]), Err(exited(2)));
    assert!(world.now - start < 100_000_000, "the failure took {} ns", world.now - start);
    let id = world.nodes[1].ids[0];
    assert!(!world.nodes[1].engine.is_settled(id));
    assert!(!world.nodes[1].engine.remove_region(RegionId(1)));
    assert!(!world.nodes[1].engine.close(id));
    assert_eq!(world.wait(0, tokens[0]), Err(exited(2)));
    world.pass(3 * LATENCY_NS / 1_000_000);
    assert!(world.nodes[1].engine.is_settled(id));
    assert!(world.nodes[1].engine.remove_region(RegionId(1)));
    for node in &mut world.nodes {
        assert!(node.engine.close(node.ids[0]));
    }
}

#[test]
fn a_node_that_falls_silent_is_lost_after_the_timeout() {
    let mut world = World::of(&[0, 1]);
    let token = Job::new(Operation::Barrier, 0, 2, 1).call(&mut world, 0, 0);
    // Node 1 has no turns any more, its connection stays.
    let start = world.now;
    while !world.finished.contains_key(&(0, 0, token)) {
        world.turn(0);
        world.now += 1_000_000;
        assert!(world.now - start < 3_000_000_000, "a hang");
    }
    let elapsed_ms = (world.now - start) / 1_000_000;
    assert!((900..1500).contains(&elapsed_ms), "{elapsed_ms} ms");
    assert!(matches!(world.wait(0, token), Err(Failure::Node { node: 1, rank: 1, .. })));
}

#[test]
fn a_node_that_answers_is_not_lost_and_late_ranks_are_reported_once() {
    for layout in [&[0_u32, 0][..], &[0, 1]] {
        let mut world = World::of(layout);
        let job = Job::new(Operation::Allreduce, 10, 2, 1);
        job.prepare(&world);
        let first = job.call(&mut world, 0, 0);
        world.pass(6_000);
        let late = world.nodes[0].engine.next_late().expect("a report");
        assert_eq!((late.sequence, late.missing.as_slice()), (1, &[1][..]));
        assert!(late.waited_ms >= 5_000);
        let status = world.nodes[0].engine.status(world.nodes[0].ids[0]).unwrap();
        assert_eq!((status.outstanding, status.missing), (1, vec![1]));
        world.pass(1_000);
        assert_eq!(world.nodes[0].engine.next_late(), None);
        let second = job.call(&mut world, 0, 1);
        assert_eq!(world.wait(0, first), Ok((0, 0)));
        assert_eq!(world.wait(1, second), Ok((1, 0)));
        job.check(&world);
    }
}

#[test]
fn a_timeout_names_who_has_not_come() {
    for layout in [&[0_u32, 0, 0][..], &[0, 0, 1]] {
        let mut world = World::new(&Setup { timeout_ms: Some(300), ..Setup::new(layout) });
        let job = Job::new(Operation::Allreduce, 10, 3, 1);
        let token = job.call(&mut world, 0, 1);
        match world.wait(1, token) {
            Err(failure @ Failure::TimedOut { rank: 0, waited_ms: 300.., .. }) => {
                let text = failure.to_string();
                assert!(text.contains("allreduce") && text.contains("rank 0 has not called it"), "{text}");
                assert_eq!(text.contains("nor have 2"), layout[2] == 0, "{text}");
            }
            outcome => panic!("{outcome:?}"),
        }
    }
    let mut world = World::new(&Setup { timeout_ms: Some(300), ..Setup::new(&[0, 0, 1]) });
    let job = Job::new(Operation::Allreduce, 10, 3, 1);
    let tokens = [job.call(&mut world, 0, 0), job.call(&mut world, 0, 1)];
    assert!(matches!(world.wait(0, tokens[0]), Err(Failure::TimedOut { rank: 2, .. })));
    let buffer = world.buffer(0, 0, 8);
    let mut world = World::new(&Setup { timeout_ms: Some(300), ..Setup::new(&[0, 0, 1]) });
    let receive = PointToPoint::Receive { peer: Some(2), tag: 1, buffer };
    let token = world.submit(0, Request::PointToPoint(receive));
    assert!(matches!(world.wait(0, token), Err(Failure::TimedOut { rank: 2, .. })));
}

#[test]
fn leaving_is_no_failure_until_somebody_is_missed() {
    for layout in [&[0_u32, 0][..], &[0, 1], &[0, 1, 1, 2]] {
        let ranks = layout.len() as u32;
        let mut world = World::of(layout);
        Job::new(Operation::Allreduce, 10, ranks, 1).run(&mut world);
        let last = ranks - 1;
        let (node, local) = (world.layout.node_of(last) as usize, world.layout.local_index(last));
        let id = world.nodes[node].ids[0];
        world.nodes[node].engine.leave(id, LocalRank(local));
        world.pass(300);
        for rank in 0..last {
            let token = Job::new(Operation::Allreduce, 10, ranks, 1).call(&mut world, 0, rank);
            world.pass(1);
            let left = Failure::Rank { rank: last, how: RankFailure::Left };
            assert_eq!(world.wait(rank, token), Err(left), "{layout:?} rank {rank}");
        }
    }
}

#[test]
fn closing_waits_for_the_peers_and_frees_everything() {
    for layout in [&[0_u32, 0][..], &[0, 1], &[0, 1, 1, 2]] {
        let ranks = layout.len() as u32;
        let mut world = World::of(layout);
        // The root of a broadcast has finished before its bytes have arrived, and leaves at once.
        let job = Job { root: 0, ..Job::new(Operation::Broadcast, 100, ranks, 1) };
        job.prepare(&world);
        let tokens: Vec<_> = (0..ranks).map(|rank| job.call(&mut world, 0, rank)).collect();
        let mut gone = vec![false; world.nodes.len()];
        for _ in 0..2_000 {
            world.round();
            for (number, node) in world.nodes.iter_mut().enumerate() {
                let id = node.ids[0];
                let idle = node.engine.status(id).is_none_or(|status| status.outstanding == 0);
                if !gone[number] && idle {
                    gone[number] = node.engine.close(id);
                }
            }
        }
        assert!(gone.iter().all(|gone| *gone), "{gone:?}");
        for (rank, token) in (0..).zip(tokens) {
            assert_eq!(world.wait(rank, token), Ok((rank, 0)), "{layout:?}");
        }
        job.check(&world);
        world.pass(60);
        for node in &mut world.nodes {
            assert!(!node.engine.has_work());
            assert_eq!(node.engine.deadline(), None);
        }
    }
}

#[test]
fn memory_that_the_device_does_not_know_is_not_granted_and_nobody_hangs() {
    for collective in [false, true] {
        let mut world = World::of(&[0, 1]);
        world.nodes[1].engine.add_region(RegionId(1), LocalKey(0));
        let tokens = [0, 1].map(|rank| {
            if collective {
                return Job { root: 0, ..Job::new(Operation::Broadcast, 90_000, 2, 1) }
                    .call(&mut world, 0, rank);
            }
            let buffer = world.buffer(rank, 0, 90_000);
            let message = match rank {
                0 => PointToPoint::Send { peer: 1, tag: 1, buffer },
                _ => PointToPoint::Receive { peer: Some(0), tag: 1, buffer },
            };
            world.submit(rank, Request::PointToPoint(message))
        });
        for (rank, token) in (0_u32..).zip(tokens) {
            let outcome = world.wait(rank, token);
            assert!(matches!(outcome, Err(Failure::Node { .. })), "{collective}: {outcome:?}");
        }
    }
}
