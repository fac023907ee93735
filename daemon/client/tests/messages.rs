//! Messages between two ranks: order, sources, lengths.
#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use common::Daemon;
use ringway_client::{Error, OperationError, Source, Status};

#[test]
fn messages_of_every_length_arrive() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            // Around the 8 KiB that are buffered.
            for length in [0_usize, 1, 8191, 8192, 8193, 1 << 20] {
                let sent: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
                if world.rank() == 0 {
                    world.blocking().send(&sent, 1, length as u64).expect("send");
                } else {
                    let mut received = vec![0; length + 5];
                    let (from, elements) =
                        world.blocking().recv(&mut received, 0, length as u64).expect("recv");
                    assert_eq!((from, elements), (0, length));
                    assert_eq!(received[..length], sent);
                    assert_eq!(received[length..], [0; 5], "nothing is written behind the message");
                }
            }
        });
    }
}

#[test]
fn messages_with_one_tag_keep_their_order_and_tags_keep_apart() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(1 << 16).expect("arena");
            let buffer = |value: u32| arena.buffer_from(&[value]).expect("buffer");
            if world.rank() == 0 {
                let pending: Vec<_> =
                    (0..20_u32).map(|i| world.send(buffer(i), 1, u64::from(i % 2)).expect("send")).collect();
                pending.into_iter().for_each(|p| drop(p.wait().expect("sent")));
            } else {
                for tag in [1_u64, 0] {
                    for i in 0..10 {
                        let received =
                            world.recv(buffer(99), 0, tag).expect("recv").wait().expect("received");
                        assert_eq!(received.message(), [i * 2 + tag as u32]);
                    }
                }
            }
        });
    }
}

#[test]
fn any_source_says_who_it_was() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(4, |world| {
            if world.rank() > 0 {
                return world.blocking().send(&[world.rank()], 0, 5).expect("send");
            }
            let mut seen = Vec::new();
            for _ in 1..4 {
                let mut value = [0];
                let (from, elements) = world.blocking().recv(&mut value, Source::Any, 5).expect("recv");
                assert_eq!((value[0], elements), (from, 1));
                seen.push(from);
            }
            seen.sort_unstable();
            assert_eq!(seen, [1, 2, 3]);
        });
    }
}

#[test]
fn ranks_exchange_at_once() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(3, |world| {
            let (size, rank) = (world.size(), world.rank());
            let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
            for length in [10, 100_000] {
                let arena = world.client().arena(1 << 20).expect("arena");
                let (to, from) = (vec![rank; length], arena.buffer::<u32>(length).expect("buffer"));
                let to = arena.buffer_from(&to).expect("buffer");
                let pending = world.send_recv((to, right, 1), (from, left, 1)).expect("submit");
                let (_, received) = pending.wait().expect("exchanged");
                assert_eq!((received.source(), received.elements()), (left, length));
                assert!(received.message().iter().all(|v| *v == left));
                let mut value = [0_u64];
                let sent = [u64::from(rank)];
                world.blocking().send_recv((&sent, left, 2), (&mut value, right, 2)).expect("exchanged");
                assert_eq!(value, [u64::from(right)]);
            }
        });
    }
}

#[test]
fn a_message_to_oneself_arrives() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(1, |world| {
            let mut value = [0_i32];
            world.blocking().send_recv((&[7_i32], 0, 0), (&mut value, 0, 0)).expect("exchanged");
            assert_eq!(value, [7]);
        });
    }
}

#[test]
fn a_message_that_does_not_fit_is_an_error_and_the_communicator_goes_on() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            for length in [100_usize, 100_000] {
                if world.rank() == 0 {
                    let _ = world.blocking().send(&vec![1_u8; length], 1, 3);
                } else {
                    let mut room = vec![0_u8; length - 1];
                    let error = world.blocking().recv(&mut room, 0, 3).expect_err("it does not fit");
                    let Error::Operation(OperationError::Failed { status, message }) = error else {
                        panic!("{error}");
                    };
                    assert_eq!(status, Status::Truncated);
                    assert!(status.is_recoverable() && message.contains(&length.to_string()), "{message}");
                }
                world.blocking().barrier().expect("the communicator goes on");
            }
        });
    }
}
