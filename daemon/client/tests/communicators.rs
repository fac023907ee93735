//! Joining, splitting, several communicators and threads at once.
#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use std::{thread, time::Duration};

use common::{Daemon, TIMEOUT};
use ringway_client::{Client, Communicator, JoinError, Reduction, RequestError, UniqueId};

fn sum(world: &Communicator, value: u64) -> u64 {
    let mut values = [value];
    world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("sum");
    values[0]
}

#[test]
fn a_rank_knows_its_place() {
    for daemon in Daemon::of_each_kind() {
        let places = daemon.world(3, |world| {
            assert_eq!((world.size(), world.nodes(), world.device()), (3, 1, ""));
            assert_eq!((world.node_of(2), world.node_of(3)), (Some(0), None));
            world.rank()
        });
        assert_eq!(places, [0, 1, 2]);
    }
}

#[test]
fn several_ranks_of_one_client_join_at_once() {
    for daemon in Daemon::of_each_kind() {
        let client = daemon.client();
        let id = client.unique_id(false).expect("id");
        thread::scope(|scope| {
            for rank in 0..4 {
                let (client, id) = (client.clone(), &id);
                scope.spawn(move || {
                    let world = client.communicator(id, rank, 4).join().expect("join");
                    for _ in 0..100 {
                        assert_eq!(sum(&world, u64::from(rank)), 6);
                    }
                });
            }
        });
    }
}

#[test]
fn a_communicator_moves_to_another_thread() {
    for daemon in Daemon::of_each_kind() {
        let client = daemon.client();
        let id = client.unique_id(false).expect("id");
        let world = client.communicator(&id, 0, 1).join().expect("join");
        assert_eq!(sum(&world, 5), 5);
        thread::spawn(move || assert_eq!(sum(&world, 6), 6)).join().expect("the thread");
    }
}

#[test]
fn ranks_split_and_split_again() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(4, |world| {
            let rank = world.rank();
            // Even and odd ranks, in reverse order.
            let half =
                world.split(Some(rank % 2), -i64::from(rank)).expect("split").expect("a color was given");
            assert_eq!((half.size(), half.rank()), (2, 1 - rank / 2));
            assert_eq!(sum(&half, u64::from(rank)), u64::from(2 + 2 * (rank % 2)));
            // Only ranks 1 and 2.
            let some = world.split((1..3).contains(&rank).then_some(9), 0).expect("split");
            assert_eq!(some.is_some(), (1..3).contains(&rank));
            if let Some(some) = &some {
                assert_eq!((sum(some, 1), sum(&half, 1), some.rank()), (2, 2, rank - 1));
            } else {
                assert_eq!(sum(&half, 1), 2);
            }
            let alone = half.split(Some(half.rank()), 0).expect("split").expect("a color was given");
            assert_eq!((alone.size(), sum(&alone, 3)), (1, 3));
            drop(half);
            assert_eq!(sum(world, 1), 4);
        });
    }
}

#[test]
fn communicators_do_not_wait_for_each_other() {
    for daemon in Daemon::of_each_kind() {
        let ids: Vec<UniqueId> = (0..2).map(|_| daemon.client().unique_id(false).expect("id")).collect();
        thread::scope(|scope| {
            for rank in 0..2_u32 {
                let (daemon, ids) = (&daemon, &ids);
                scope.spawn(move || {
                    let client = daemon.client();
                    let [a, b] = [0, 1].map(|i| client.communicator(&ids[i], rank, 2).join().expect("join"));
                    let arena = client.arena(4096).expect("arena");
                    let buffer = || arena.buffer_from(&[1_u64]).expect("buffer");
                    // The ranks call the two in different orders.
                    let (first, second) = if rank == 0 { (&a, &b) } else { (&b, &a) };
                    let first = first.allreduce_in_place(buffer(), Reduction::Sum).expect("submit");
                    let second = second.allreduce_in_place(buffer(), Reduction::Sum).expect("submit");
                    assert_eq!((second.wait().expect("sum")[0], first.wait().expect("sum")[0]), (2, 2));
                });
            }
        });
    }
}

fn refusal(error: JoinError) -> String {
    match error {
        JoinError::Request(RequestError::Refused { message, .. }) => message,
        other => panic!("not refused: {other}"),
    }
}

#[test]
fn what_cannot_be_joined_says_why() {
    for daemon in Daemon::of_each_kind() {
        let client = daemon.client();
        let id = client.unique_id(false).expect("id");
        assert!(matches!(client.communicator(&id, 2, 2).join(), Err(JoinError::Rank { rank: 2, size: 2 })));
        assert!(matches!(client.communicator(&id, 0, 0).join(), Err(JoinError::Size { .. })));
        // The other rank never comes, and is named.
        let alone = client.communicator(&id, 0, 2).join_timeout(Duration::from_millis(50)).join();
        let message = refusal(alone.expect_err("rank 1 does not come"));
        assert!(
            message.contains("rank 1") || message.contains("ranks 1") || message.contains(": 1"),
            "{message}"
        );

        let id = client.unique_id(false).expect("id");
        thread::scope(|scope| {
            // Of two that want to be rank 0 one is refused, whichever comes second.
            let waiting = scope.spawn(|| {
                loop {
                    match client.communicator(&id, 0, 3).join_timeout(TIMEOUT).join() {
                        Err(JoinError::Request(RequestError::Refused { message, .. }))
                            if message.contains("already") => {}
                        outcome => break outcome,
                    }
                }
            });
            let twice = loop {
                let second = daemon.client();
                let second = second.communicator(&id, 0, 3).join_timeout(Duration::from_millis(20)).join();
                let message = refusal(second.expect_err("nobody else comes"));
                if message.contains("already") {
                    break message;
                }
                assert!(!waiting.is_finished(), "{message}");
            };
            assert!(twice.contains("rank 0"), "{twice}");
            let other_size =
                daemon.client().communicator(&id, 1, 4).join_timeout(Duration::from_millis(200)).join();
            let message = refusal(other_size.expect_err("another size"));
            assert!(message.contains('3') && message.contains('4'), "{message}");
            // The one that waits is told as well, or is joined by the others.
            let others: Vec<_> = (1..3)
                .map(|rank| {
                    let id = &id;
                    let client = daemon.client();
                    scope.spawn(move || {
                        client
                            .communicator(id, rank, 3)
                            .join_timeout(Duration::from_millis(500))
                            .join()
                            .map(drop)
                    })
                })
                .collect();
            let first = waiting.join().expect("the thread").map(drop);
            for other in others {
                let _ = other.join().expect("the thread");
            }
            if let Err(error) = first {
                assert!(!refusal(error).is_empty());
            }
        });
    }
}

#[test]
fn a_place_is_free_again_when_its_rank_has_left() {
    for daemon in Daemon::of_each_kind() {
        let id = daemon.client().unique_id(false).expect("id");
        for _ in 0..3 {
            let sums = daemon.world_of(&id, 2, &|world: &Communicator| sum(world, 1));
            assert_eq!(sums, [2, 2]);
        }
    }
}

#[test]
fn the_daemon_tells_its_state() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let status = world.client().status().expect("status");
            assert!(status.starts_with('{') && status.contains("communicators"), "{status}");
        });
    }
}

#[test]
fn sockets_that_are_none_are_told_apart() {
    let folder = common::folder();
    let missing = Client::builder().socket(folder.join("none.sock")).connect().expect_err("nobody listens");
    assert!(missing.to_string().contains("no daemon answers at"), "{missing}");
    // Something that is not a daemon.
    let path = folder.join("stranger.sock");
    let stranger =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
            .expect("socket");
    rustix::net::bind(&stranger, &rustix::net::SocketAddrUnix::new(&path).expect("path")).expect("bind");
    rustix::net::listen(&stranger, 1).expect("listen");
    let answer = thread::spawn(move || {
        let client = rustix::net::accept(&stranger).expect("accept");
        rustix::io::write(&client, b"HTTP/1.1 400 Bad Request").expect("write");
    });
    let error = Client::builder().socket(&path).connect().expect_err("not a daemon");
    assert!(error.to_string().contains("not a Ringway daemon"), "{error}");
    answer.join().expect("the stranger");
    std::fs::remove_dir_all(folder).expect("remove");
}
