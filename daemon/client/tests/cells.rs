//! Collectives in memory that the ranks share.
#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use std::{fs, thread, time::Duration};

use common::{Daemon, TIMEOUT};
use ringway_client::{
    CallError, Communicator, Error, OperationError, Pending, Reduction, Returned, Status, TimeoutError,
};

/// Lengths of small and of large calls, of those that need several segments, and none.
const LENGTHS: [usize; 6] = [0, 1, 511, 513, 100_000, 3_000_000];

#[test]
fn ranks_share_memory_unless_the_daemon_forbids_it() {
    for (daemon, shared) in Daemon::of_each_kind().zip([true, false]) {
        daemon.world(2, |world| assert_eq!(world.shares_memory(), shared));
    }
}

#[test]
fn one_call_may_be_made_in_every_way() {
    let daemon = Daemon::start();
    daemon.world(4, |world| {
        let arena = world.client().arena(40 << 20).expect("arena");
        for (round, length) in (0..3).flat_map(|round| LENGTHS.map(|length| (round, length))) {
            let own = vec![world.rank() + 1; length];
            let buffer = || arena.buffer_from(&own).expect("buffer");
            let sum = |values: &[u32]| assert!(values.iter().all(|v| *v == 10), "{length} in round {round}");
            match (world.rank() + round) % 4 {
                0 => {
                    let mut values = own.clone();
                    world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("sum");
                    sum(&values);
                }
                1 => {
                    let to = arena.buffer(length).expect("buffer");
                    let (from, to) = world.run(|w| w.allreduce(buffer(), to, Reduction::Sum)).expect("sum");
                    sum(&to);
                    assert_eq!(&*from, own);
                }
                2 => sum(&world
                    .allreduce_in_place(buffer(), Reduction::Sum)
                    .expect("submit")
                    .wait()
                    .expect("sum")),
                _ => {
                    let mut pending = world.allreduce_in_place(buffer(), Reduction::Sum).expect("submit");
                    while !pending.test() {
                        thread::yield_now();
                    }
                    assert!(pending.test());
                    sum(&pending.wait().expect("sum"));
                }
            }
        }
    });
}

/// Calls of both kinds, more than there are slots; the sum of each rank's values is the number of the call.
fn many<'c>(
    world: &'c Communicator,
    arena: &ringway_client::Arena,
) -> Vec<(u64, Pending<'c, ringway_client::Buffer<u64>>)> {
    (0..200)
        .map(|number| {
            let length = if number % 7 == 0 { 2000 } else { 3 };
            let value = if world.rank() == 0 { number } else { 0 };
            let buffer = arena.buffer_from(&vec![value; length]).expect("buffer");
            (number, world.allreduce_in_place(buffer, Reduction::Sum).expect("submit"))
        })
        .collect()
}

#[test]
fn more_calls_are_outstanding_than_there_are_slots() {
    let daemon = Daemon::start();
    daemon.world(3, |world| {
        let arena = world.client().arena(4 << 20).expect("arena");
        let check = |(number, pending): (u64, Pending<'_, ringway_client::Buffer<u64>>)| {
            assert!(pending.wait().expect("sum").iter().all(|v| *v == number), "call {number}");
        };
        many(world, &arena).into_iter().for_each(check);
        many(world, &arena).into_iter().rev().for_each(check);
        // One rank waits for each call at once, the others later.
        if world.rank() == 1 {
            for number in 0..200 {
                let length = if number % 7 == 0 { 2000 } else { 3 };
                let mut values = vec![0_u64; length];
                world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("sum");
                assert!(values.iter().all(|v| *v == number));
            }
        } else {
            many(world, &arena).into_iter().for_each(check);
        }
        // Dropped in place of being waited for.
        drop(many(world, &arena));
        world.blocking().barrier().expect("all is over");
    });
}

#[test]
fn a_message_can_be_waited_for_while_calls_are_outstanding() {
    let daemon = Daemon::start();
    daemon.world(2, |world| {
        let arena = world.client().arena(4 << 20).expect("arena");
        if world.rank() == 0 {
            let first = world.allreduce_in_place(arena.buffer::<u8>(1).expect("buffer"), Reduction::Sum);
            // The other rank's calls need the slot of the first one before it sends.
            let mut ready = [0_u8];
            world.blocking().recv(&mut ready, 1, 0).expect("recv");
            first.expect("submit").wait().expect("sum");
            for _ in 0..70 {
                world.blocking().broadcast(&mut [0_u8], 1).expect("broadcast");
            }
        } else {
            world.blocking().allreduce_in_place(&mut [1_u8], Reduction::Sum).expect("sum");
            for _ in 0..64 {
                world.blocking().broadcast(&mut [7_u8], 1).expect("broadcast");
            }
            world.blocking().send(&[1_u8], 0, 0).expect("send");
            for _ in 0..6 {
                world.blocking().broadcast(&mut [7_u8], 1).expect("broadcast");
            }
        }
    });
}

#[test]
fn a_group_has_calls_of_both_kinds() {
    let daemon = Daemon::start();
    daemon.world(2, |world| {
        let arena = world.client().arena(8 << 20).expect("arena");
        let peer = 1 - world.rank();
        for _ in 0..5 {
            let given_up: Result<(), Error> = world.group(|g| {
                drop(g.barrier()?);
                let _counted = g.all_gather_v(arena.buffer_from(&[1_u8])?, arena.buffer(2)?, &[1, 1])?;
                Err(CallError::Full.into())
            });
            assert!(given_up.is_err());
            let grouped = world.group(|g| {
                let sums: Vec<_> = (0..100)
                    .map(|n| Ok(g.allreduce_in_place(arena.buffer_from(&[n, 1])?, Reduction::Sum)?))
                    .collect::<Result<_, Error>>()?;
                let sent = g.send(arena.buffer_from(&[world.rank()])?, peer, 1)?;
                let all = g.all_gather_v(arena.buffer_from(&[world.rank()])?, arena.buffer(2)?, &[1, 1])?;
                let received = g.recv(arena.buffer::<u32>(1)?, peer, 1)?;
                let large = g.broadcast_in_place(arena.buffer_from(&vec![world.rank() + 5; 100_000])?, 1)?;
                Ok((sums, sent, all, received, large))
            });
            let (sums, sent, all, received, large) = grouped.expect("group");
            assert!(large.wait().expect("broadcast").iter().all(|v| *v == 6));
            assert_eq!(&*all.wait().expect("gathered").1, [0, 1]);
            assert_eq!(received.wait().expect("received").message(), [peer]);
            sent.wait().expect("sent");
            for (n, mut sum) in (0..100).zip(sums) {
                while !sum.test() {
                    thread::yield_now();
                }
                assert_eq!(&*sum.wait().expect("sum"), [2 * n, 2_u32]);
            }
        }
    });
}

/// Bytes of the arenas that come and go: as no other test of this process has them.
const ARENA: usize = 307 * 4096;

/// How many of them this process has mapped, its own and those of other ranks.
fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let bytes = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        usize::from_str_radix(end, 16).ok()?.checked_sub(usize::from_str_radix(start, 16).ok()?)
    };
    maps.lines().filter(|line| bytes(line) == Some(ARENA)).count()
}

#[test]
fn arenas_come_and_go() {
    let daemon = Daemon::start();
    let most = daemon.world(2, |world| {
        let mut most = 0;
        for round in 0..60_u32 {
            let arena = world.client().arena(ARENA).expect("arena");
            let own = arena.buffer_from(&vec![round + world.rank(); 50_000]).expect("buffer");
            let sum = world.run(|w| w.allreduce_in_place(own, Reduction::Sum)).expect("sum");
            assert!(sum.iter().all(|v| *v == 2 * round + 1));
            // A clone of it is there, the arena not.
            drop(arena);
            let sum = world.allreduce_in_place(sum, Reduction::Max).expect("submit").wait().expect("max");
            assert!(sum.iter().all(|v| *v == 2 * round + 1));
            most = most.max(mapped());
        }
        most
    });
    // Of 120. Each is mapped by both ranks and the daemon, which all are this process.
    assert!(most.iter().all(|most| *most < 30), "regions that are gone stay mapped: {most:?}");
}

#[test]
fn a_wait_may_expire_again_and_again() {
    let daemon = Daemon::start();
    daemon.world(2, |world| {
        let arena = world.client().arena(4 << 20).expect("arena");
        for length in [3, 500_000] {
            if world.rank() == 1 {
                thread::sleep(Duration::from_millis(30));
            }
            let buffer = arena.buffer_from(&vec![1_u64; length]).expect("buffer");
            let mut pending = world.allreduce_in_place(buffer, Reduction::Sum).expect("submit");
            let sum = loop {
                match pending.wait_timeout(Duration::from_millis(2)) {
                    Ok(sum) => break sum,
                    Err(TimeoutError::Expired(again)) => pending = again,
                    Err(TimeoutError::Failed(failure)) => panic!("{failure}"),
                }
            };
            assert!(sum.iter().all(|v| *v == 2));
        }
    });
}

#[test]
fn a_wait_that_never_ends_times_out_in_pieces() {
    let daemon = Daemon::start();
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
                    let mut pending = world.barrier().expect("submit");
                    let failure = loop {
                        match pending.wait_timeout(Duration::from_millis(7)) {
                            Ok(()) => panic!("rank 1 does not come"),
                            Err(TimeoutError::Expired(again)) => pending = again,
                            Err(TimeoutError::Failed(failure)) => break failure,
                        }
                    };
                    assert_eq!(failure.error.status(), Some(Status::TimedOut), "{failure}");
                }
                done.wait();
            });
        }
    });
}

#[test]
fn a_refused_call_gives_its_buffers_back() {
    let daemon = Daemon::start();
    daemon.world(1, |world| {
        let arena = world.client().arena(4096).expect("arena");
        let (a, b) = (arena.buffer::<u8>(3).expect("buffer"), arena.buffer::<u8>(4).expect("buffer"));
        let failure = world.run(|w| w.allreduce(a, b, Reduction::Sum)).expect_err("lengths differ");
        assert!(matches!(failure.error, OperationError::Call(CallError::Length { .. })));
        assert!(failure.error.is_recoverable());
        let Returned::Buffers(buffers) = failure.returned else { panic!("nobody uses them") };
        assert_eq!((buffers.0.len(), buffers.1.len()), (3, 4));
    });
}

/// Ranks that each broadcast need nobody: they learn all the same that they did not call the same.
#[test]
fn roots_that_contradict_each_other_are_found_out() {
    let daemon = Daemon::start();
    let errors = daemon.world(2, |world| {
        let mut values = [world.rank(); 3];
        loop {
            if let Err(error) = world.blocking().broadcast(&mut values, world.rank()) {
                break error;
            }
        }
    });
    for error in errors {
        let Error::Operation(OperationError::Failed { status, message }) = error else { panic!("{error}") };
        assert_eq!(status, Status::Mismatch);
        assert!(message.contains("rank 0") && message.contains("rank 1"), "{message}");
    }
}

#[test]
fn counts_that_contradict_each_other_are_named() {
    let daemon = Daemon::start();
    let texts = daemon.world(2, |world| {
        let arena = world.client().arena(1 << 16).expect("arena");
        let buffer = |n| arena.buffer::<u32>(n).expect("buffer");
        // Rank 1 sends 2 elements where rank 0 expects 3.
        let (sends, receives) = if world.rank() == 0 { ([1, 1], [1, 3]) } else { ([2, 1], [1, 1]) };
        let (from, to) =
            (buffer(if world.rank() == 0 { 2 } else { 3 }), buffer(if world.rank() == 0 { 4 } else { 2 }));
        let failure = world.run(|w| w.all_to_all_v(from, to, &sends, &receives)).expect_err("they differ");
        assert_eq!(failure.error.status(), Some(Status::Count), "{failure}");
        assert!(failure.into_buffers().is_some(), "nobody works on them");
        "named"
    });
    assert_eq!(texts, ["named"; 2]);
}

#[test]
fn communicators_are_apart() {
    let daemon = Daemon::start();
    daemon.world(4, |world| {
        let halves = world.split(Some(world.rank() % 2), 0).expect("split").expect("a half");
        assert!(halves.shares_memory());
        let arena = world.client().arena(4 << 20).expect("arena");
        for length in [5, 70_000] {
            let buffer = || arena.buffer_from(&vec![world.rank(); length]).expect("buffer");
            let outer = world.allreduce_in_place(buffer(), Reduction::Sum).expect("submit");
            let inner = halves.run(|h| h.allreduce_in_place(buffer(), Reduction::Sum)).expect("sum");
            assert!(inner.iter().all(|v| *v == 2 + 2 * (world.rank() % 2)));
            assert!(outer.wait().expect("sum").iter().all(|v| *v == 6));
        }
        drop(halves);
        world.blocking().barrier().expect("goes on");
    });
}

/// Long enough for a test that hangs to be noticed.
#[test]
fn a_rank_that_leaves_is_named_to_whoever_waits_with_buffers() {
    let daemon = Daemon::start();
    let id = daemon.client().unique_id(false).expect("id");
    thread::scope(|scope| {
        for rank in 0..3 {
            let (daemon, id) = (&daemon, &id);
            scope.spawn(move || {
                let client = daemon.client();
                let world = client.communicator(id, rank, 3).timeout(TIMEOUT).join().expect("join");
                let arena = client.arena(1 << 20).expect("arena");
                let buffer = || arena.buffer::<f32>(100_000).expect("buffer");
                world.run(|w| w.allreduce_in_place(buffer(), Reduction::Sum)).expect("all are there");
                if rank == 1 {
                    return;
                }
                let failure =
                    world.run(|w| w.allreduce_in_place(buffer(), Reduction::Sum)).expect_err("left");
                assert_eq!(failure.error.status(), Some(Status::RankFailed), "{failure}");
                assert!(failure.to_string().contains("rank 1"), "{failure}");
                assert!(failure.into_buffers().is_some(), "whoever left works on nothing");
            });
        }
    });
}

/// How an operation failed.
fn status(error: &Error) -> Option<Status> {
    if let Error::Operation(error) = error { error.status() } else { None }
}

/// Operations in which some ranks only give: they need nobody until all slots are taken.
#[test]
fn a_rank_that_leaves_is_named_to_whoever_only_gives() {
    type Call = fn(&Communicator) -> Result<(), Error>;
    let calls: [(&str, u32, Call); 4] = [
        ("broadcast", 1, |world| world.blocking().broadcast(&mut [1_u32], 0)),
        ("reduce", 0, |world| {
            let mut output = [0_u32];
            let output = (world.rank() == 0).then_some(&mut output[..]);
            world.blocking().reduce(&[1], output, 0, Reduction::Sum)
        }),
        ("scan", 2, |world| world.blocking().scan(&[1_u32], &mut [0], Reduction::Sum)),
        ("scatter", 1, |world| {
            let input = [1_u32, 2, 3];
            world.blocking().scatter((world.rank() == 0).then_some(&input[..]), &mut [0], 0)
        }),
    ];
    let daemon = Daemon::start();
    for (name, leaver, call) in calls {
        let id = daemon.client().unique_id(false).expect("id");
        thread::scope(|scope| {
            for rank in 0..3 {
                let (daemon, id) = (&daemon, &id);
                scope.spawn(move || {
                    let client = daemon.client();
                    let world = client.communicator(id, rank, 3).timeout(TIMEOUT).join().expect("join");
                    (0..1000).for_each(|_| call(&world).expect("all are there"));
                    if rank == leaver {
                        return;
                    }
                    let error = (0..1000).find_map(|_| call(&world).err()).expect("one has left");
                    assert_eq!(status(&error), Some(Status::RankFailed), "{name}: {error}");
                    assert!(error.to_string().contains(&format!("rank {leaver}")), "{name}: {error}");
                });
            }
        });
    }
}

/// The communicator fails for whoever asks for more; what the root gave before it left is there for whoever comes late.
#[test]
fn what_was_given_by_a_rank_that_has_left_can_be_had() {
    let failed = std::sync::Barrier::new(2);
    Daemon::start().world(3, |world| {
        let rank = world.rank();
        let call = |given: u32| {
            let mut data = [if rank == 0 { given } else { 0 }];
            world.blocking().broadcast(&mut data, 0).map(|()| data[0])
        };
        (0..9).for_each(|given| assert_eq!(call(given).expect("given"), given));
        if rank == 2 {
            failed.wait();
        }
        assert_eq!(call(9).expect("given before the root left"), 9);
        if rank == 0 {
            return;
        }
        let error = call(10).expect_err("the root has left");
        assert_eq!(status(&error), Some(Status::RankFailed), "{error}");
        assert!(error.to_string().contains("rank 0"), "{error}");
        if rank == 1 {
            failed.wait();
        }
    });
}

/// The same when the rank is there, and calls nothing more.
#[test]
fn a_rank_that_calls_nothing_more_is_named_to_whoever_only_gives() {
    let daemon = Daemon::start();
    let id = daemon.client().unique_id(false).expect("id");
    let over = &std::sync::Barrier::new(2);
    thread::scope(|scope| {
        for rank in 0..2 {
            let (daemon, id) = (&daemon, &id);
            scope.spawn(move || {
                let client = daemon.client();
                let timeout = Duration::from_millis(300);
                let world = client.communicator(id, rank, 2).timeout(timeout).join().expect("join");
                let call = || world.blocking().broadcast(&mut [1_u32], 0);
                (0..500).for_each(|_| call().expect("both are there"));
                if rank == 0 {
                    let error = (0..500).find_map(|_| call().err()).expect("nobody takes any more");
                    assert_eq!(status(&error), Some(Status::TimedOut), "{error}");
                    assert!(error.to_string().contains("rank 1 has not called it"), "{error}");
                }
                over.wait();
            });
        }
    });
}
