//! Messages that are written without asking where to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use common::oracle::{Job, collectives};
use common::{Setup, World};
use ringway_sim::SimConfig;
use ringway_types::Operation;

/// One way over a link.
const WAY_NS: u64 = 1_000_000;

fn setup(nodes: &[u32], eager_write_max_bytes: u64) -> Setup {
    let mut setup = Setup::new(nodes);
    setup.network = SimConfig { latency_ns: WAY_NS, jitter_ns: 0, seed: 3, ..SimConfig::default() };
    setup.tuning.eager_write_max_bytes = eager_write_max_bytes;
    setup
}

/// Nanoseconds of the second of two calls: by then all is lent.
fn time_ns(setup: &Setup, job: &Job) -> u64 {
    let mut world = World::new(setup);
    job.run(&mut world);
    let before = world.now;
    job.run(&mut world);
    world.now - before
}

#[test]
fn neither_grant_nor_acknowledgement_is_waited_for() {
    let exchange = Job::new(Operation::Allreduce, 10_000, 2, 1);
    let [asked, eagerly] = [0, 64 << 10].map(|max| time_ns(&setup(&[0, 1], max), &exchange));
    assert!((3 * WAY_NS..4 * WAY_NS).contains(&asked), "{asked} ns: grant, bytes, acknowledgement");
    assert!((WAY_NS..2 * WAY_NS).contains(&eagerly), "{eagerly} ns: the bytes' way");
}

#[test]
fn longer_ones_are_asked_for() {
    let longer = Job::new(Operation::Allreduce, 20_000, 2, 1);
    let [asked, eagerly] = [0, 64 << 10].map(|max| time_ns(&setup(&[0, 1], max), &longer));
    assert_eq!(asked, eagerly);
}

/// More messages than places, and calls of which some ranks are far ahead of others.
#[test]
fn every_operation_with_more_messages_than_places() {
    for nodes in [&[0_u32, 1][..], &[0, 1, 2], &[0, 0, 0, 1, 1, 1]] {
        let mut setup = setup(nodes, 64 << 10);
        setup.tuning.pack_max_bytes = 0;
        let mut world = World::new(&setup);
        for operation in collectives() {
            for count in [5_000, 3_000] {
                Job::new(operation, count, nodes.len() as u32, 5).run(&mut world);
            }
        }
    }
}

/// Of nodes that have no room to lend any.
fn full(eager_write_max_bytes: u64) -> Setup {
    let mut setup = setup(&[0, 1, 2], eager_write_max_bytes);
    setup.workspace = 1200 << 10;
    setup.configure = |config| {
        config.message_pool = 8;
        config.credits = 4;
    };
    setup
}

/// Where nothing can be lent, receivers say ahead where messages go, as if none were ever written eagerly.
#[test]
fn a_full_workspace_makes_it_slower_and_no_more() {
    let mut world = World::new(&full(64 << 10));
    for operation in collectives() {
        Job::new(operation, 4_000, 3, 5).run(&mut world);
    }
    let exchange = Job::new(Operation::Allreduce, 10_000, 3, 1);
    let [asked, eagerly] = [0, 64 << 10].map(|max| time_ns(&full(max), &exchange));
    assert_eq!(asked, eagerly);
}
