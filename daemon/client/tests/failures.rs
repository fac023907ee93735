//! Calls that are wrong, ranks that disagree, daemons that go.
#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::{Daemon, TIMEOUT};
use ringway_abi::descriptor::{BufferHandle, Submission};
use ringway_client::{
    CallError, DataType, Error, MemoryError, Operation, OperationError, Reduction, RequestError, Status, raw,
};

fn message(error: Error) -> (Status, String) {
    match error {
        Error::Operation(OperationError::Failed { status, message }) => (status, message),
        other => panic!("not a failed operation: {other}"),
    }
}

#[test]
fn wrong_calls_are_refused_with_their_buffers() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(1 << 16).expect("arena");
            let buffer = |n| arena.buffer::<f32>(n).expect("buffer");
            let refused = world.allreduce(buffer(3), buffer(4), Reduction::Sum).expect_err("lengths differ");
            assert_eq!((refused.buffers.0.len(), refused.buffers.1.len()), (3, 4));
            assert_eq!(refused.to_string(), "allreduce: the output has 4 elements where 3 are needed");
            let refused = world.allreduce_in_place(buffer(1), Reduction::BitXor).expect_err("not for floats");
            assert!(matches!(refused.error, CallError::Unsupported { .. }));
            let refused = world.broadcast_in_place(buffer(1), 2).expect_err("no such root");
            assert_eq!(refused.to_string(), "rank 2 is not in the communicator, whose ranks are 0 to 1");
            let refused =
                world.reduce_scatter_in_place(buffer(3), Reduction::Sum).expect_err("not divisible");
            assert!(matches!(refused.error, CallError::Uneven { actual: 3, size: 2, .. }));
            let refused = world.all_gather_v(buffer(1), buffer(2), &[1, 1, 1]).expect_err("three counts");
            assert!(matches!(refused.error, CallError::Counts { actual: 3, expected: 2, .. }));
            let refused = world.all_gather_v(buffer(1), buffer(2), &[u64::MAX, 1]).expect_err("overflow");
            assert!(matches!(refused.error, CallError::TooLarge { .. }));
            let rank = world.rank();
            let refused =
                world.reduce(buffer(1), None, rank, Reduction::Sum).expect_err("the root has no output");
            assert_eq!(refused.to_string(), "reduce: the root needs an output");
            let other = daemon.client().arena(4096).expect("arena");
            let foreign = other.buffer::<f32>(1).expect("buffer");
            let refused = world.allreduce_in_place(foreign, Reduction::Sum).expect_err("another client's");
            assert!(matches!(refused.error, CallError::ForeignBuffer { .. }));
            // Nothing of it was sent.
            world.blocking().barrier().expect("as before");
        });
    }
}

#[test]
fn an_arena_says_when_it_is_full() {
    for daemon in Daemon::of_each_kind() {
        let client = daemon.client();
        let arena = client.arena(8192).expect("arena");
        let kept = arena.buffer::<u8>(8000).expect("buffer");
        let full = arena.buffer::<u8>(1000).expect_err("full");
        assert!(matches!(full, MemoryError::Full { wanted: 1000, size: 8192, .. }), "{full}");
        drop(kept);
        let (mut front, back) =
            arena.buffer::<u64>(1024).expect("room again").split_at(1000).expect("long enough");
        front.fill(3);
        assert_eq!((front.len(), back.len(), back[0]), (1000, 24, 0));
        let whole = front.join(back).expect("adjoining");
        assert_eq!((whole.len(), whole[999], whole[1000]), (1024, 3, 0));
        assert!(whole.split_at(1025).is_err());
        assert!(matches!(arena.buffer::<u64>(usize::MAX), Err(MemoryError::TooLarge)));
    }
}

#[test]
fn ranks_that_call_different_things_are_told_both() {
    for daemon in Daemon::of_each_kind() {
        let messages = daemon.world(2, |world| {
            let mut values = [1.0_f32; 4];
            let outcome = if world.rank() == 0 {
                world.blocking().allreduce_in_place(&mut values, Reduction::Sum)
            } else {
                world.blocking().allreduce_in_place(&mut values[..3], Reduction::Max)
            };
            let (status, text) = message(outcome.expect_err("different calls"));
            assert_eq!(status, Status::Mismatch);
            // The communicator is of no further use, and says why.
            let after = world.blocking().barrier().expect_err("over");
            assert_eq!(message(after).0, Status::Mismatch);
            text
        });
        for text in messages {
            assert!(text.contains("allreduce f32 sum x4") && text.contains("allreduce f32 max x3"), "{text}");
        }
    }
}

#[test]
fn a_rank_that_leaves_ends_the_others_operations() {
    for daemon in Daemon::of_each_kind() {
        let id = daemon.client().unique_id(false).expect("id");
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    let (daemon, id) = (&daemon, &id);
                    scope.spawn(move || {
                        let client = daemon.client();
                        let world = client.communicator(id, rank, 3).join().expect("join");
                        if rank == 1 {
                            return None;
                        }
                        Some(message(world.blocking().barrier().expect_err("rank 1 does not come")))
                    })
                })
                .collect();
            for rank in ranks {
                if let Some((status, text)) = rank.join().expect("the rank") {
                    assert_eq!(status, Status::RankFailed);
                    assert!(text.contains("rank 1"), "{text}");
                }
            }
        });
    }
}

#[test]
fn an_operation_that_takes_too_long_names_who_is_missing() {
    for daemon in Daemon::of_each_kind() {
        let id = daemon.client().unique_id(false).expect("id");
        let done = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            for rank in 0..2 {
                let (daemon, id, done) = (&daemon, &id, &done);
                scope.spawn(move || {
                    let client = daemon.client();
                    let world = client.communicator(id, rank, 2).timeout(Duration::from_millis(100)).join();
                    let world = world.expect("join");
                    if rank == 0 {
                        let (status, text) = message(world.blocking().barrier().expect_err("rank 1 is late"));
                        assert_eq!(status, Status::TimedOut);
                        assert!(text.contains("rank 1") && text.contains("barrier"), "{text}");
                    }
                    done.wait();
                });
            }
        });
    }
}

#[test]
fn an_aborted_communicator_fails_everywhere() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            if world.rank() == 1 {
                world.abort().expect("abort");
            }
            // What was submitted before the daemon's engine learns of it may still succeed.
            let error = loop {
                if let Err(error) = world.blocking().barrier() {
                    break error;
                }
            };
            let (status, text) = message(error);
            assert_eq!(status, Status::Aborted);
            assert!(text.contains("rank 1"), "{text}");
        });
    }
}

#[test]
fn raw_nonsense_is_answered_and_the_communicator_goes_on() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(4096).expect("arena");
            let buffer = arena.buffer::<u8>(64).expect("buffer");
            let here = raw::handle(&buffer);
            let good = Submission {
                token: 0,
                operation: Operation::Allreduce,
                datatype: DataType::U8,
                reduction: Some(Reduction::Sum),
                flags: 0,
                rank: 0,
                argument: 0,
                input: Some(here),
                output: Some(here),
                count: 64,
            };
            let table = [
                (Submission { reduction: None, ..good }, Status::BadReduction),
                (Submission { flags: 0x80, ..good }, Status::BadFlags),
                (
                    Submission { input: Some(BufferHandle { region: 77, offset: 0 }), ..good },
                    Status::BadRegion,
                ),
                (Submission { count: 1 << 40, ..good }, Status::BadRange),
                (Submission { count: u64::MAX, ..good }, Status::TooLarge),
                (
                    Submission { output: Some(BufferHandle { offset: here.offset + 1, ..here }), ..good },
                    Status::Overlap,
                ),
                (Submission { operation: Operation::Reduce, rank: 2, ..good }, Status::BadRank),
                (
                    Submission {
                        operation: Operation::AllGatherV,
                        reduction: None,
                        argument: u64::MAX,
                        ..good
                    },
                    Status::BadCounts,
                ),
            ];
            for (submission, status) in table {
                let token = raw::submit(world, submission, &[]).expect("room");
                let completion = raw::wait(world, token, TIMEOUT).expect("an answer");
                assert_eq!(Status::from_code(completion.status), Some(status), "{submission:?}");
                let error = raw::explain(world, completion);
                assert!(error.is_recoverable() && !error.to_string().is_empty(), "{error}");
            }
            world.blocking().barrier().expect("the communicator goes on");
            drop(buffer);
        });
    }
}

#[test]
fn a_daemon_that_goes_ends_everything() {
    for mut daemon in Daemon::of_each_kind() {
        let client = daemon.client();
        let id = client.unique_id(false).expect("id");
        let second = daemon.client();
        let (world, other) = thread::scope(|scope| {
            let other = scope.spawn(|| second.communicator(&id, 1, 2).join().expect("join"));
            (client.communicator(&id, 0, 2).join().expect("join"), other.join().expect("thread"))
        });
        let arena = client.arena(1 << 16).expect("arena");
        let pending = world
            .allreduce_in_place(arena.buffer::<u8>(10).expect("buffer"), Reduction::Sum)
            .expect("submit");
        let tested = world.allreduce_in_place(arena.buffer::<u8>(10).expect("buffer"), Reduction::Sum);
        let mut tested = tested.expect("submit");
        daemon.stop();
        let failure = pending.wait().expect_err("nobody runs it");
        // In good order the daemon still says that it leaves; killed it says nothing.
        assert!(
            failure.error == OperationError::DaemonLost
                || failure.error.status() == Some(Status::ShuttingDown),
            "{failure}"
        );
        assert!(failure.into_buffers().is_some(), "nobody uses them any more");
        while !tested.test() {
            thread::yield_now();
        }
        assert!(tested.wait().is_err());
        assert!(client.is_lost());
        assert!(matches!(client.unique_id(false), Err(RequestError::DaemonLost)));
        let begun = Instant::now();
        (0..40).for_each(|_| assert!(world.blocking().barrier().is_err()));
        assert!(begun.elapsed() < Duration::from_secs(1), "that it is gone is found out once");
        assert!(client.arena(4096).is_err());
        drop((world, other));
    }
}
