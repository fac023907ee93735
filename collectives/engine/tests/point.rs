//! Messages between ranks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use common::{Setup, World};
use proptest::prelude::*;
use ringway_engine::{Failure, PointToPoint, Refused, Request};

fn send(world: &mut World, from: u32, to: u32, tag: u64, at: u64, length: u64) -> u32 {
    let buffer = world.buffer(from, at, length);
    world.submit(from, Request::PointToPoint(PointToPoint::Send { peer: to, tag, buffer }))
}

fn receive(world: &mut World, rank: u32, from: Option<u32>, tag: u64, at: u64, room: u64) -> u32 {
    let buffer = world.buffer(rank, at, room);
    world.submit(rank, Request::PointToPoint(PointToPoint::Receive { peer: from, tag, buffer }))
}

fn pattern(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 3) as u8).collect()
}

const LAYOUTS: [&[u32]; 3] = [&[0, 0], &[0, 1], &[0, 1, 0, 1, 2]];

#[test]
fn every_length_arrives_in_both_orders() {
    for layout in LAYOUTS {
        let mut world = World::of(layout);
        for length in [0, 1, 7, 192, 193, 8191, 8192, 8193, 65_536, 65_537, 300_001] {
            for early in [false, true] {
                world.write(0, 0, &pattern(length, length));
                world.write(1, 0, &vec![0; length as usize + 1]);
                let (sent, got) = if early {
                    let sent = send(&mut world, 0, 1, 5, 0, length);
                    for _ in 0..50 {
                        world.round();
                    }
                    (sent, receive(&mut world, 1, Some(0), 5, 0, length + 1))
                } else {
                    let got = receive(&mut world, 1, Some(0), 5, 0, length + 1);
                    (send(&mut world, 0, 1, 5, 0, length), got)
                };
                assert_eq!(world.wait(1, got), Ok((0, length)));
                assert_eq!(world.wait(0, sent), Ok((0, 0)));
                assert!(world.read(1, 0, length) == pattern(length, length), "{layout:?} {length}");
            }
        }
    }
}

#[test]
fn a_truncated_receive_fails_alone() {
    for layout in LAYOUTS {
        for length in [100, 100_000] {
            let mut world = World::of(layout);
            world.write(0, 0, &pattern(1, length));
            let got = receive(&mut world, 1, None, 5, 0, 60);
            let sent = send(&mut world, 0, 1, 5, 0, length);
            assert_eq!(world.wait(1, got), Err(Failure::Truncated { sent: length, room: 60 }));
            assert_eq!(world.wait(0, sent), Ok((0, 0)));
            let got = receive(&mut world, 1, None, 5, 0, length);
            let sent = send(&mut world, 0, 1, 5, 0, length);
            assert_eq!(world.wait(1, got), Ok((0, length)));
            assert_eq!(world.wait(0, sent), Ok((0, 0)));
        }
    }
}

#[test]
fn a_flood_without_receives_is_held_back_and_nothing_is_lost() {
    for layout in LAYOUTS {
        let mut world = World::of(layout);
        let count = 250;
        let lengths: Vec<u64> = (0..count).map(|i| [8, 300, 3000][i % 3]).collect();
        let sent: Vec<u32> = (0..count)
            .map(|i| {
                world.write(0, 4000 * i as u64, &pattern(i as u64, lengths[i]));
                send(&mut world, 0, 1, 9, 4000 * i as u64, lengths[i])
            })
            .collect();
        world.pass(2);
        // Another tag gets through the flood.
        let other = receive(&mut world, 0, Some(1), 1, 1_000_100, 10);
        let back = send(&mut world, 1, 0, 1, 0, 10);
        assert_eq!(world.wait(0, other), Ok((1, 10)));
        assert_eq!(world.wait(1, back), Ok((1, 0)));
        for (i, &length) in lengths.iter().enumerate() {
            let got = receive(&mut world, 1, Some(0), 9, 0, 4000);
            assert_eq!(world.wait(1, got), Ok((0, length)), "message {i}");
            assert!(world.read(1, 0, length) == pattern(i as u64, lengths[i]), "message {i}");
        }
        for token in sent {
            assert_eq!(world.wait(0, token), Ok((0, 0)));
        }
    }
}

#[test]
fn too_many_operations_are_refused_and_can_be_tried_again() {
    let mut world = World::new(&Setup { configure: |c| c.operations_per_rank = 4, ..Setup::new(&[0, 0]) });
    let tokens: Vec<_> = (0..4).map(|_| receive(&mut world, 1, None, 1, 0, 8)).collect();
    let request = PointToPoint::Receive { peer: None, tag: 1, buffer: world.buffer(1, 0, 8) };
    let node = &mut world.nodes[0];
    let now = ringway_verbs::Time(world.now);
    let (local, token) = (ringway_engine::LocalRank(1), ringway_engine::Token(1000));
    let refused = node.engine.submit(node.ids[0], local, token, Request::PointToPoint(request), now);
    assert_eq!(refused, Err(Refused::Full));
    send(&mut world, 0, 1, 1, 0, 8);
    assert_eq!(world.wait(1, tokens[0]), Ok((0, 8)));
    receive(&mut world, 1, None, 1, 0, 8);
}

/// What the messages of a random program are, by sender, receiver and tag, in order.
#[derive(Debug, Clone)]
struct Message {
    from: u32,
    to: u32,
    tag: u64,
    length: u64,
    any: bool,
    receive_first: bool,
}

fn messages(ranks: u32) -> impl Strategy<Value = Vec<Message>> {
    let length = prop_oneof![0..300_u64, Just(8192), 8193..40_000_u64];
    let message = (0..ranks, 0..ranks, 0..3_u64, length, any::<bool>(), any::<bool>()).prop_map(
        |(from, to, tag, length, any, receive_first)| Message { from, to, tag, length, any, receive_first },
    );
    proptest::collection::vec(message, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn messages_of_one_sender_with_one_tag_keep_their_order(
        program in messages(5), layout in prop::sample::select(vec![vec![0_u32; 5], vec![0, 1, 0, 1, 2]]), jitter: u64
    ) {
        let mut setup = Setup { region: 16 << 20, ..Setup::new(&layout) };
        setup.network.seed = jitter;
        let mut world = World::new(&setup);
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for pass in [true, false] {
            for (i, m) in program.iter().enumerate() {
                if m.receive_first == pass {
                    // A receive from any rank uses a tag of its own, so that it cannot take another's message.
                    let (tag, peer) = if m.any { (m.tag + 100, None) } else { (m.tag, Some(m.from)) };
                    let at = (8 << 20) + 40_000 * i as u64;
                    receives.push((m.to, receive(&mut world, m.to, peer, tag, at, 40_000), at));
                }
            }
            if pass {
                for (i, m) in program.iter().enumerate() {
                    let tag = if m.any { m.tag + 100 } else { m.tag };
                    let at = 40_000 * i as u64;
                    let mut bytes = pattern(i as u64, m.length);
                    if m.length >= 8 {
                        bytes[..8].copy_from_slice(&(i as u64).to_le_bytes());
                    }
                    world.write(m.from, at, &bytes);
                    sends.push((m.from, send(&mut world, m.from, m.to, tag, at, m.length)));
                    if i % 7 == 3 {
                        world.round();
                    }
                }
            }
        }
        let mut last = std::collections::BTreeMap::new();
        for (rank, token, at) in receives {
            let (source, length) = world.wait(rank, token).expect("received");
            if length >= 8 {
                let head = world.read(rank, at, 8);
                let index = u64::from_le_bytes(head.try_into().unwrap()) as usize;
                let m = &program[index];
                prop_assert_eq!((m.from, m.to, m.length), (source, rank, length));
                let tail = world.read(rank, at + 8, length - 8);
                prop_assert!(tail[..] == pattern(index as u64, length)[8..]);
                // Receives were posted in two passes, each in program order; in each the order must be kept.
                let before = last.insert((source, rank, m.tag, m.any), (token, index));
                if let Some((token_before, index_before)) = before {
                    prop_assert_eq!(token_before < token, index_before < index);
                }
            }
        }
        for (rank, token) in sends {
            prop_assert_eq!(world.wait(rank, token), Ok((rank, 0)));
        }
    }
}
