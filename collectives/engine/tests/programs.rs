//! Random programs of collectives and messages.

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
use ringway_engine::{PointToPoint, Request};
use ringway_types::Operation;

#[derive(Debug, Clone)]
enum Item {
    Collective { operation: Operation, count: u64, seed: u64 },
    Message { from: u32, to: u32, length: u64 },
    Pause(u32),
}

fn items(ranks: u32) -> impl Strategy<Value = Vec<Item>> {
    let operation = prop::sample::select(collectives().collect::<Vec<_>>());
    let count = prop_oneof![0..50_u64, 1000..3000_u64];
    let length = prop_oneof![0..300_u64, 5000..20_000_u64];
    let item = prop_oneof![
        3 => (operation, count, any::<u64>())
            .prop_map(|(operation, count, seed)| Item::Collective { operation, count, seed }),
        4 => (0..ranks, 0..ranks, length).prop_map(|(from, to, length)| Item::Message { from, to, length }),
        1 => (0..30_u32).prop_map(Item::Pause),
    ];
    proptest::collection::vec(item, 1..40)
}

/// Where messages are, behind what collectives use.
const MESSAGES: u64 = 2 << 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn random_programs_give_what_they_must(
        program in items(5),
        layout in prop::sample::select(vec![vec![0_u32; 5], vec![0, 1, 0, 1, 2], vec![0, 0, 1, 1, 1]]),
        seed: u64,
        tiny: bool,
        eagerly: bool,
    ) {
        let mut setup = Setup { region: 8 << 20, ..Setup::new(&layout) };
        setup.network.seed = seed;
        setup.configure = if tiny {
            |config| {
                config.credits = 2;
                config.message_pool = 2;
                config.eager_max_bytes = 512;
            }
        } else {
            |_| {}
        };
        if eagerly {
            setup.tuning.eager_write_max_bytes = 64 << 10;
        } else if tiny {
            setup.tuning.chunk_bytes = 1024;
            setup.tuning.direct_max_bytes = 4096;
        }
        let mut world = World::new(&setup);
        let mut messages = Vec::new();
        let mut collective: Option<(Job, Vec<u32>)> = None;
        for (i, item) in program.iter().enumerate() {
            match item {
                // One collective at a time, as their buffers are the same; messages go on beside them.
                Item::Collective { operation, count, seed } => {
                    finish(&mut world, collective.take())?;
                    let job = Job::new(*operation, *count, 5, *seed);
                    job.prepare(&world);
                    let tokens = (0..5).map(|rank| job.call(&mut world, 0, rank)).collect();
                    collective = Some((job, tokens));
                }
                Item::Message { from, to, length } => {
                    let bytes: Vec<u8> = (0..*length).map(|b| (b * 7 + i as u64) as u8).collect();
                    let (source, sink) = (MESSAGES + 40_000 * i as u64, MESSAGES + 40_000 * i as u64 + 20_000);
                    world.write(*from, source, &bytes);
                    let buffer = world.buffer(*from, source, *length);
                    let tag = i as u64;
                    let send = PointToPoint::Send { peer: *to, tag, buffer };
                    let buffer = world.buffer(*to, sink, *length);
                    let peer = (i % 2 == 0).then_some(*from);
                    let receive = PointToPoint::Receive { peer, tag, buffer };
                    let sent = world.submit(*from, Request::PointToPoint(send));
                    let got = world.submit(*to, Request::PointToPoint(receive));
                    messages.push((*from, sent, *to, got, sink, bytes));
                }
                Item::Pause(rounds) => (0..*rounds).for_each(|_| world.round()),
            }
        }
        finish(&mut world, collective)?;
        for (from, sent, to, got, sink, bytes) in messages {
            prop_assert_eq!(world.wait(to, got), Ok((from, bytes.len() as u64)));
            prop_assert_eq!(world.wait(from, sent), Ok((from, 0)));
            prop_assert!(world.read(to, sink, bytes.len() as u64) == bytes);
        }
    }
}

fn finish(world: &mut World, job: Option<(Job, Vec<u32>)>) -> Result<(), TestCaseError> {
    if let Some((job, tokens)) = job {
        for (rank, token) in (0..).zip(tokens) {
            prop_assert_eq!(world.wait(rank, token), Ok((rank, 0)));
        }
        job.check(world);
    }
    Ok(())
}
