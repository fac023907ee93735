//! Links are measured, and what is measured is what the network does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use common::{Setup, World};
use ringway_engine::Measured;
use ringway_sim::SimConfig;

fn measure(world: &mut World, communicator: usize) -> Vec<Measured> {
    for node in &mut world.nodes {
        node.engine.measure(node.ids[communicator]);
    }
    let mut found: Vec<Option<Measured>> = vec![None; world.nodes.len()];
    for _ in 0..100_000 {
        world.round();
        for (node, found) in world.nodes.iter_mut().zip(&mut found) {
            *found = found.or_else(|| node.engine.take_measured(node.ids[communicator]));
        }
        if found.iter().all(Option::is_some) {
            assert!(world.nodes.iter().all(|node| !node.engine.is_measuring(node.ids[communicator])));
            return found.into_iter().flatten().collect();
        }
    }
    panic!("measuring does not end: {found:?}");
}

fn setup(node_of: &[u32], latency_ns: u64) -> Setup {
    let network = SimConfig { latency_ns, ..SimConfig::default() };
    Setup { network, ..Setup::new(node_of) }
}

#[test]
fn the_latency_of_the_network_is_measured() {
    for latency_ns in [10_000, 200_000] {
        let mut world = World::new(&setup(&[0, 1, 2], latency_ns));
        for measured in measure(&mut world, 0) {
            // Time goes on by a microsecond from turn to turn, and every message takes a turn or two at either end.
            let least = latency_ns as f64;
            assert!((least..least + 4_000.0).contains(&measured.latency_ns), "{measured:?}");
            assert!(measured.byte_ns.is_some(), "{measured:?}");
            assert!(measured.message_ns < 2_000.0, "several messages are under way at once: {measured:?}");
        }
    }
}

/// What messages wait for on their way, their receiver's processor say, is no part of it. The middle one takes 150 us here.
#[test]
fn the_latency_is_that_of_the_fastest_message() {
    let network = SimConfig { latency_ns: 50_000, jitter_ns: 200_000, seed: 5, ..SimConfig::default() };
    let mut world = World::new(&Setup { network, ..Setup::new(&[0, 1, 2]) });
    for measured in measure(&mut world, 0) {
        assert!((50_000.0..120_000.0).contains(&measured.latency_ns), "{measured:?}");
    }
}

/// Over several channels bytes are timed over one and over all of them, until all have arrived.
#[test]
fn what_one_channel_carries_is_measured_and_what_all_carry() {
    for channels in [1, 2, 5] {
        let mut world = World::new(&Setup { channels, ..setup(&[0, 1, 2], 20_000) });
        for measured in measure(&mut world, 0) {
            assert_eq!(measured.channels, channels);
            let (all, one) = (measured.byte_ns.unwrap(), measured.channel_byte_ns.unwrap());
            assert!(one >= all, "{measured:?}");
        }
        let written = |at: usize| {
            let device = world.nodes[0].device.as_ref().unwrap();
            device.made.get(at).and_then(|made| device.written.get(&made.0)).copied().unwrap_or(0)
        };
        // To the next node, the first of the links.
        let shares: Vec<u64> = (0..channels as usize).map(written).collect();
        assert!(shares.iter().all(|bytes| *bytes > 0), "{shares:?}");
    }
}

/// Every communicator can be measured, as often as it is asked for, and its memory comes back with it.
#[test]
fn measuring_leaves_nothing_behind() {
    let mut world = World::new(&setup(&[0, 1], 1_000));
    for _ in 0..20 {
        assert_eq!(measure(&mut world, 0).len(), 2);
    }
}

#[test]
fn one_node_has_nothing_to_measure() {
    let mut world = World::new(&setup(&[0, 0], 1_000));
    let node = &mut world.nodes[0];
    node.engine.measure(node.ids[0]);
    assert!(!node.engine.is_measuring(node.ids[0]));
    assert_eq!(node.engine.take_measured(node.ids[0]), None);
}

/// A peer that is gone answers nothing, and the communicator fails as at any other time.
#[test]
fn a_peer_that_dies_while_it_is_measured_is_noticed() {
    let mut world = World::new(&setup(&[0, 1], 50_000));
    for node in &mut world.nodes {
        node.engine.measure(node.ids[0]);
    }
    (0..20).for_each(|_| world.round());
    world.break_link(0, 1);
    world.kill(1);
    world.until(|world| {
        let node = &world.nodes[0];
        let readiness = node.engine.readiness(node.ids[0], node.device.as_ref().unwrap());
        matches!(readiness, ringway_engine::Readiness::Failed(_))
    });
}

/// Where measuring takes too long it ends with what is known, and answers that come later do no harm.
#[test]
fn a_slow_link_is_not_measured_for_ever() {
    let mut world = World::new(&setup(&[0, 1], 40_000_000));
    for node in &mut world.nodes {
        node.engine.measure(node.ids[0]);
    }
    let mut left = 2;
    for _ in 0..200 {
        world.pass(10);
        for node in &mut world.nodes {
            let Some(measured) = node.engine.take_measured(node.ids[0]) else { continue };
            assert!((4e7..6e7).contains(&measured.latency_ns), "{measured:?}");
            assert_eq!(measured.byte_ns, None);
            left -= 1;
        }
    }
    assert_eq!(left, 0);
    for node in &world.nodes {
        let readiness = node.engine.readiness(node.ids[0], node.device.as_ref().unwrap());
        assert_eq!(readiness, ringway_engine::Readiness::Ready);
    }
}
