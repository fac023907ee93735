//! Groups, many operations at once, a full ring, pending operations in every state.
#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{Daemon, TIMEOUT};
use ringway_client::{CallError, Error, OperationError, Reduction, TimeoutError};

#[test]
fn a_group_runs_whole_and_in_any_order() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(3, |world| {
            let arena = world.client().arena(1 << 22).expect("arena");
            let peers: Vec<u32> = (0..world.size()).filter(|r| *r != world.rank()).collect();
            let outcome = world.group(|g| {
                let mut sent = Vec::new();
                let mut received = Vec::new();
                for peer in &peers {
                    // Long messages: a send ends with its receive.
                    sent.push(g.send(arena.buffer_from(&vec![world.rank(); 5000])?, *peer, 1)?);
                    received.push(g.recv(arena.buffer::<u32>(5000)?, *peer, 1)?);
                }
                Ok((sent, received))
            });
            let (sent, received) = outcome.expect("group");
            for (peer, pending) in peers.iter().zip(received) {
                assert!(pending.wait().expect("received").message().iter().all(|v| v == peer));
            }
            sent.into_iter().for_each(|p| drop(p.wait().expect("sent")));
        });
    }
}

#[test]
fn a_group_with_counts_runs() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(1 << 16).expect("arena");
            let own = [world.rank()];
            let pending = world.group(|g| {
                let mut pending = Vec::new();
                for _ in 0..5 {
                    pending.push(g.all_gather_v(arena.buffer_from(&own)?, arena.buffer(2)?, &[1, 1])?);
                }
                Ok(pending)
            });
            for pending in pending.expect("group") {
                assert_eq!(&*pending.wait().expect("gathered").1, [0, 1]);
            }
        });
    }
}

#[test]
fn a_group_that_fails_sends_nothing() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(1 << 16).expect("arena");
            let buffer = || arena.buffer::<u32>(1).expect("buffer");
            // One rank's group fails: were anything sent, the allreduce behind would not match.
            if world.rank() == 0 {
                let failed: Result<(), Error> = world.group(|g| {
                    let _kept = g.broadcast_in_place(buffer(), 0)?;
                    g.send(buffer(), 7, 0).map(drop).map_err(Error::from)
                });
                assert!(
                    matches!(failed, Err(Error::Call(CallError::Rank { rank: 7, size: 2 }))),
                    "{failed:?}"
                );
                let max = world.group_max() as u32;
                let failed = world.group(|g| {
                    let mut pending = Vec::new();
                    for _ in 0..=max {
                        pending.push(g.barrier()?);
                    }
                    Ok(pending)
                });
                assert!(matches!(failed, Err(Error::Call(CallError::GroupTooLarge { max: m })) if m == max));
            }
            world.blocking().allreduce_in_place(&mut [1_u8], Reduction::Sum).expect("as before");
        });
    }
}

#[test]
fn inside_a_group_nothing_waits() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(1, |world| {
            let outcome = world.group(|g| {
                let failure = g.barrier()?.wait().expect_err("not sent yet");
                assert_eq!(failure.error, OperationError::InsideGroup);
                assert!(matches!(g.group(|_| Ok(())), Err(Error::Call(CallError::InsideGroup))));
                assert!(matches!(g.blocking().barrier(), Err(Error::Call(CallError::InsideGroup))));
                // Dropped inside the group: taken out of it.
                drop(g.barrier()?);
                g.barrier().map_err(Error::from)
            });
            outcome.expect("group").wait().expect("barrier");
            // A failed closure leaves pending operations that were carried out of it unsent.
            let mut kept = None;
            let failed: Result<(), Error> = world.group(|g| {
                kept = Some(g.barrier()?);
                Err(CallError::Full.into())
            });
            assert!(failed.is_err());
            let failure = kept.expect("carried out").wait().expect_err("never sent");
            assert_eq!(failure.error, OperationError::NotSent);
            assert!(failure.into_buffers().is_some());
            world.blocking().barrier().expect("goes on");
        });
    }
}

#[test]
fn more_operations_than_the_ring_holds() {
    for daemon in Daemon::of_each_kind() {
        let id = daemon.client().unique_id(false).expect("id");
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (daemon, id) = (&daemon, &id);
                scope.spawn(move || {
                    let client = daemon.client();
                    let world = client.communicator(id, rank, 2).ring_size(4).join().expect("join");
                    assert!(world.group_max() <= 8);
                    let arena = client.arena(1 << 20).expect("arena");
                    let mut pending = Vec::new();
                    for i in 0..1000_u32 {
                        let buffer = arena.buffer_from(&[i, rank]).expect("buffer");
                        pending.push(world.allreduce_in_place(buffer, Reduction::Sum).expect("submit"));
                        // Ranks get ahead of each other.
                        if i % 100 == rank * 50 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                    // In another order than they end.
                    for (i, pending) in (0..1000_u32).zip(pending).rev() {
                        assert_eq!(&*pending.wait().expect("sum"), [2 * i, 1]);
                    }
                });
            }
        });
    }
}

#[test]
fn many_calls_with_counts_share_the_slab() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(1 << 20).expect("arena");
            let mut pending = Vec::new();
            for i in 0..3000_u32 {
                let own = arena.buffer_from(&[i + world.rank()]).expect("buffer");
                let all = arena.buffer(2).expect("buffer");
                pending.push(world.all_gather_v(own, all, &[1, 1]).expect("submit"));
            }
            for (i, pending) in (0..3000_u32).zip(pending) {
                assert_eq!(&*pending.wait().expect("gathered").1, [i, i + 1]);
            }
        });
    }
}

#[test]
fn a_wait_that_expires_gives_nothing_back() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            if world.rank() == 1 {
                let mut ready = [0_u8];
                world.blocking().recv(&mut ready, 0, 0).expect("recv");
                return world.blocking().allreduce_in_place(&mut [1_u64; 10], Reduction::Sum).expect("sum");
            }
            let arena = world.client().arena(4096).expect("arena");
            let buffer = arena.buffer_from(&[2_u64; 10]).expect("buffer");
            let mut pending = world.allreduce_in_place(buffer, Reduction::Sum).expect("submit");
            assert!(!pending.test(), "the other rank has not called it");
            let TimeoutError::Expired(pending) =
                pending.wait_timeout(Duration::from_millis(5)).expect_err("too early")
            else {
                panic!("not expired");
            };
            world.blocking().send(&[1_u8], 1, 0).expect("send");
            let mut pending = match pending.wait_timeout(TIMEOUT) {
                Ok(sum) => return assert_eq!(&*sum, [3_u64; 10]),
                Err(TimeoutError::Expired(pending)) => pending,
                Err(TimeoutError::Failed(failure)) => panic!("{failure}"),
            };
            assert!(pending.test());
        });
    }
}

#[test]
fn a_dropped_operation_is_waited_for() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(4096).expect("arena");
            for _ in 0..100 {
                // The next buffer takes the memory of the one before, which nobody may write to any more.
                let mut buffer = arena.buffer::<u32>(1000).expect("the one before is free again");
                buffer.fill(1);
                drop(world.allreduce_in_place(buffer, Reduction::Sum).expect("submit"));
            }
        });
    }
}
