//! More calls without waiting than a cell has slots for: the daemon makes them in the rank's place.
#![allow(clippy::expect_used, clippy::panic, reason = "these are tests")]

mod common;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{Daemon, TIMEOUT};
use ringway_client::{
    Arena, Buffer, Communicator, Error, OperationError, Pending, Reduction, Returned, Status, TimeoutError,
};

type Sum<'c> = Pending<'c, Buffer<u64>>;

/// Operations that ranks have submitted to their rings.
fn submitted(world: &Communicator) -> u64 {
    let status = world.client().status().expect("status");
    let (_, rest) = status.split_once("\"submitted\":").expect("the counter");
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// An allreduce whose sum is the number of the call in every element, if nobody mixes calls up.
fn sum<'c>(world: &'c Communicator, arena: &Arena, number: u64, length: usize) -> Sum<'c> {
    let own = if world.rank() == 0 { number } else { 0 };
    let values: Vec<u64> = (0..length as u64).map(|at| own + at * u64::from(world.rank())).collect();
    let buffer = arena.buffer_from(&values).expect("buffer");
    world.allreduce_in_place(buffer, Reduction::Sum).expect("submit")
}

fn check(world: &Communicator, number: u64, sum: &[u64]) {
    let ranks = u64::from(world.size());
    for (at, value) in (0..).zip(sum) {
        assert_eq!(*value, number + at * (ranks * (ranks - 1) / 2), "call {number}, element {at}");
    }
}

/// Lets one rank go on only when another says so, without a word through the daemon.
struct Gate(AtomicBool);

impl Gate {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn pass(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.0.load(Ordering::Acquire) {
            assert!(Instant::now() < deadline, "the other rank waits");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// After all that the cell is the path again: blocking calls reach no ring.
fn is_back(world: &Communicator) {
    // The first one finds out that the daemon has nothing left to do.
    for _ in 0..100 {
        world.blocking().barrier().expect("barrier");
    }
    let before = submitted(world);
    world.blocking().barrier().expect("barrier");
    for number in 0..200_u64 {
        let mut values = [number];
        world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("sum");
        assert_eq!(values, [number * u64::from(world.size())]);
    }
    world.blocking().barrier().expect("barrier");
    assert_eq!(submitted(world), before, "something still goes through the rings");
    world.blocking().barrier().expect("barrier");
}

#[test]
fn whoever_waits_for_nothing_is_not_made_to_wait() {
    let daemon = Daemon::start();
    let gate = Gate::new();
    daemon.world(3, |world| {
        let arena = world.client().arena(4 << 20).expect("arena");
        for round in 0..3 {
            if world.rank() == 1 {
                if round == 0 {
                    gate.pass();
                }
                for number in 0..300 {
                    check(world, number, &sum(world, &arena, number, 3).wait().expect("sum"));
                }
            } else {
                let sums: Vec<_> = (0..300).map(|number| sum(world, &arena, number, 3)).collect();
                if world.rank() == 0 {
                    gate.open();
                }
                for (number, sum) in (0..).zip(sums) {
                    check(world, number, &sum.wait().expect("sum"));
                }
            }
            is_back(world);
        }
    });
}

/// What one of many calls gives.
enum Kind<'c> {
    Sum(Sum<'c>),
    Gathered(Pending<'c, (Buffer<u32>, Buffer<u32>)>),
    Broadcast(Pending<'c, Buffer<u32>>),
    Scattered(Pending<'c, (Buffer<u64>, Buffer<u64>)>),
    Exchanged(Pending<'c, (Buffer<u32>, Buffer<u32>)>),
    Reduced(Pending<'c, (Buffer<f32>, Option<Buffer<f32>>)>),
    Barrier(Pending<'c, ()>),
}

fn make<'c>(world: &'c Communicator, arena: &Arena, number: u64) -> Result<Kind<'c>, Error> {
    let (rank, size) = (world.rank(), world.size());
    let tag = u32::try_from(number).expect("few") * 10;
    Ok(match number % 9 {
        1 => Kind::Sum(sum(world, arena, number, 3000)),
        // Counts go through the argument slab.
        2 => {
            let counts: Vec<u64> = (1..=u64::from(size)).collect();
            let from = arena.buffer_from(&vec![tag + rank; rank as usize + 1])?;
            let to = arena.buffer((size * (size + 1) / 2) as usize)?;
            Kind::Gathered(world.all_gather_v(from, to, &counts)?)
        }
        3 => {
            let root = tag % size;
            let length = if number.is_multiple_of(2) { 5 } else { 20_000 };
            let value = if rank == root { tag } else { 0 };
            Kind::Broadcast(world.broadcast_in_place(arena.buffer_from(&vec![value; length])?, root)?)
        }
        4 => {
            let counts = vec![2; size as usize];
            let values: Vec<u64> = (0..2 * u64::from(size)).map(|at| at + number).collect();
            let (from, to) = (arena.buffer_from(&values)?, arena.buffer(2)?);
            let scaled = ringway_client::Reduce::premul(3_u64);
            Kind::Scattered(world.reduce_scatter_v(from, to, &counts, scaled)?)
        }
        5 => {
            let values: Vec<u32> = (0..size).map(|to| tag + rank * size + to).collect();
            let (from, to) = (arena.buffer_from(&values)?, arena.buffer(size as usize)?);
            Kind::Exchanged(world.all_to_all(from, to)?)
        }
        6 => {
            let from = arena.buffer_from(&[rank as f32 + 1.0])?;
            let to = if rank == 1 { Some(arena.buffer(1)?) } else { None };
            let scaled = ringway_client::Reduce::premul(2.0);
            Kind::Reduced(world.reduce(from, to, 1, scaled)?)
        }
        7 => Kind::Barrier(world.barrier()?),
        _ => Kind::Sum(sum(world, arena, number, 3)),
    })
}

fn verify(world: &Communicator, number: u64, kind: Kind<'_>) {
    let (rank, size) = (world.rank(), world.size());
    let tag = u32::try_from(number).expect("few") * 10;
    match kind {
        Kind::Sum(pending) => check(world, number, &pending.wait().expect("sum")),
        Kind::Gathered(pending) => {
            let (_, all) = pending.wait().expect("gathered");
            let expected: Vec<u32> =
                (0..size).flat_map(|r| std::iter::repeat_n(tag + r, r as usize + 1)).collect();
            assert_eq!(&*all, expected, "call {number}");
        }
        Kind::Broadcast(pending) => {
            assert!(pending.wait().expect("broadcast").iter().all(|v| *v == tag), "call {number}");
        }
        Kind::Scattered(pending) => {
            let (_, own) = pending.wait().expect("scattered");
            let first = 2 * u64::from(rank) + number;
            let scale = 3 * u64::from(size);
            assert_eq!(&*own, [first * scale, (first + 1) * scale], "call {number}");
        }
        Kind::Exchanged(pending) => {
            let (_, from) = pending.wait().expect("exchanged");
            let expected: Vec<u32> = (0..size).map(|r| tag + r * size + rank).collect();
            assert_eq!(&*from, expected, "call {number}");
        }
        Kind::Reduced(pending) => {
            let (_, result) = pending.wait().expect("reduced");
            let expected = (1..=size).map(|v| 2.0 * v as f32).sum::<f32>();
            assert_eq!(result.as_deref(), (rank == 1).then_some(&[expected][..]), "call {number}");
        }
        Kind::Barrier(pending) => pending.wait().expect("barrier"),
    }
}

#[test]
fn calls_of_every_kind_keep_their_order_and_their_results() {
    let daemon = Daemon::start();
    let gates = [Gate::new(), Gate::new()];
    daemon.world(3, |world| {
        let arena = world.client().arena(64 << 20).expect("arena");
        for (gate, ahead) in gates.iter().zip([0, 2]) {
            if world.rank() != ahead {
                gate.pass();
            }
            let mut kinds: Vec<_> =
                (0..250).map(|number| (number, make(world, &arena, number).expect("submit"))).collect();
            if world.rank() == ahead {
                gate.open();
            }
            // Waited for in another order by each rank.
            if world.rank() == 1 {
                kinds.reverse();
            }
            kinds.into_iter().for_each(|(number, kind)| verify(world, number, kind));
            is_back(world);
        }
    });
}

#[test]
fn groups_messages_and_blocking_calls_follow() {
    let daemon = Daemon::start();
    let gate = Gate::new();
    daemon.world(2, |world| {
        let arena = world.client().arena(16 << 20).expect("arena");
        let peer = 1 - world.rank();
        if world.rank() == 1 {
            gate.pass();
        }
        let first: Vec<_> = (0..100).map(|number| sum(world, &arena, number, 3)).collect();
        // A message is behind none of them.
        let sent = world.send(arena.buffer_from(&[7_u8]).expect("buffer"), peer, 0).expect("send");
        let grouped = world.group(|g| {
            let sums: Vec<_> = (100..150).map(|number| sum(g, &arena, number, 600)).collect();
            let received = g.recv(arena.buffer::<u8>(1)?, peer, 0)?;
            Ok((sums, received))
        });
        let (sums, received) = grouped.expect("group");
        if world.rank() == 0 {
            gate.open();
        }
        assert_eq!(received.wait().expect("received").message(), [7]);
        sent.wait().expect("sent");
        // Blocking ones of both kinds of memory, small and large.
        for length in [3, 5000] {
            let buffer = arena.buffer_from(&vec![1_u64; length]).expect("buffer");
            let sum = world.run(|w| w.allreduce_in_place(buffer, Reduction::Sum)).expect("sum");
            assert!(sum.iter().all(|v| *v == 2));
            let mut values = vec![2_u64; length];
            world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("sum");
            assert!(values.iter().all(|v| *v == 4));
        }
        for (number, mut sum) in (0..).zip(first.into_iter().chain(sums)) {
            assert!(sum.test(), "all later calls are over");
            check(world, number, &sum.wait().expect("sum"));
        }
        is_back(world);
    });
}

/// Rank 0 calls Y after more calls on X than there are slots; rank 1 calls X only after Y. Then the same with one that
/// blocks where the other computes.
#[test]
fn one_communicator_does_not_wait_for_another() {
    let daemon = Daemon::start();
    let finished = AtomicU32::new(0);
    daemon.world(2, |x| {
        let y = x.split(Some(0), 0).expect("split").expect("all");
        let arena = x.client().arena(4 << 20).expect("arena");
        for round in 0..4 {
            if x.rank() == 0 {
                let sums: Vec<_> = (0..65 + 20 * round).map(|number| sum(x, &arena, number, 3)).collect();
                y.blocking().barrier().expect("barrier");
                for (number, sum) in (0..).zip(sums) {
                    check(x, number, &sum.wait().expect("sum"));
                }
            } else {
                y.blocking().barrier().expect("barrier");
                for number in 0..65 + 20 * round {
                    check(x, number, &sum(x, &arena, number, 3).wait().expect("sum"));
                }
            }
        }
        // Rank 1 is through with X although rank 0 does nothing for it.
        if x.rank() == 0 {
            let sums: Vec<_> = (0..150).map(|number| sum(x, &arena, number, 3)).collect();
            let deadline = Instant::now() + TIMEOUT;
            while finished.load(Ordering::Acquire) == 0 {
                assert!(Instant::now() < deadline, "rank 1 waits for rank 0");
                thread::sleep(Duration::from_millis(1));
            }
            for (number, sum) in (0..).zip(sums) {
                check(x, number, &sum.wait().expect("sum"));
            }
        } else {
            for number in 0..150 {
                check(x, number, &sum(x, &arena, number, 3).wait().expect("sum"));
            }
            finished.store(1, Ordering::Release);
        }
    });
}

#[test]
fn a_wait_may_expire_and_what_is_dropped_is_waited_for() {
    let daemon = Daemon::start();
    let gate = Gate::new();
    daemon.world(2, |world| {
        let arena = world.client().arena(8 << 20).expect("arena");
        if world.rank() == 1 {
            gate.pass();
            (0..200).for_each(|number| {
                check(world, number, &sum(world, &arena, number, 300).wait().expect("sum"))
            });
        } else {
            let mut sums: Vec<_> = (0..200).map(|number| Some(sum(world, &arena, number, 300))).collect();
            for at in [0, 63, 64, 199] {
                let pending = sums[at].take().expect("there");
                match pending.wait_timeout(Duration::from_millis(5)) {
                    Err(TimeoutError::Expired(mut again)) => {
                        assert!(!again.test());
                        sums[at] = Some(again);
                    }
                    other => panic!("{other:?}"),
                }
            }
            gate.open();
            // One that was published before the others were handed over, and one that was not.
            drop(sums[7].take());
            drop(sums[150].take());
            for (number, sum) in (0..).zip(sums) {
                if let Some(mut sum) = sum {
                    while !sum.test() {
                        thread::yield_now();
                    }
                    check(world, number, &sum.wait().expect("sum"));
                }
            }
        }
        is_back(world);
    });
}

/// Every call of a rank for which the daemon acts fails in time, and says why; buffers come back.
fn fails(how: &str, status: Status, named: &str, end: impl Fn(Communicator) -> Option<Communicator> + Sync) {
    let daemon = Daemon::start();
    let id = daemon.client().unique_id(false).expect("id");
    let (ready, wait) = mpsc::channel::<()>();
    // A rank that is through, or has panicked, drops its end.
    let (over, rest) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (daemon, id) = (&daemon, &id);
        scope.spawn(move || {
            let client = daemon.client();
            let world = client.communicator(id, 0, 2).timeout(TIMEOUT).join().expect("join");
            let arena = client.arena(32 << 20).expect("arena");
            let length = |number: u64| if number.is_multiple_of(5) { 5000 } else { 3 };
            let sums: Vec<_> = (0..200).map(|number| sum(&world, &arena, number, length(number))).collect();
            ready.send(()).expect("the other rank");
            for (number, sum) in (0_u64..).zip(sums) {
                let failure = sum.wait().expect_err("it cannot end well");
                let OperationError::Failed { status: found, message } = &failure.error else {
                    panic!("{how}: {failure}")
                };
                assert_eq!(*found, status, "{how}: {message}");
                assert!(message.contains(named), "{how}: {message}");
                assert!(matches!(failure.returned, Returned::Buffers(_)), "{how}: call {number}");
            }
            let failure = world.run(|w| w.barrier()).expect_err("it is at its end");
            assert!(!failure.error.is_recoverable(), "{failure}");
            assert!(world.blocking().barrier().is_err());
            drop(over);
        });
        let end = &end;
        scope.spawn(move || {
            let client = daemon.client();
            let world = client.communicator(id, 1, 2).timeout(TIMEOUT).join().expect("join");
            wait.recv().expect("the other rank");
            let world = end(world);
            assert!(rest.recv().is_err());
            drop((world, client));
        });
    });
}

#[test]
fn everything_ends_when_a_peer_leaves_aborts_or_calls_something_else() {
    fails("leaves", Status::RankFailed, "rank 1", |world| {
        drop(world);
        None
    });
    fails("aborts", Status::Aborted, "rank 1", |world| {
        world.abort().expect("abort");
        Some(world)
    });
    fails("calls something else", Status::Mismatch, "barrier", |world| {
        assert!(world.blocking().barrier().is_err());
        Some(world)
    });
}

#[test]
fn calls_time_out_although_nobody_waits_for_them() {
    let daemon = Daemon::start();
    let id = daemon.client().unique_id(false).expect("id");
    let (over, rest) = mpsc::channel::<()>();
    let (over, rest) = (Mutex::new(Some(over)), Mutex::new(rest));
    thread::scope(|scope| {
        for rank in 0..2 {
            let (daemon, id, over, rest) = (&daemon, &id, &over, &rest);
            scope.spawn(move || {
                let over = if rank == 0 { over.lock().expect("lock").take() } else { None };
                let client = daemon.client();
                let world = client.communicator(id, rank, 2).timeout(Duration::from_millis(200)).join();
                let world = world.expect("join");
                let arena = client.arena(1 << 20).expect("arena");
                if rank == 0 {
                    let mut sums: Vec<_> = (0..100).map(|number| sum(&world, &arena, number, 3)).collect();
                    let deadline = Instant::now() + TIMEOUT;
                    while !sums.last_mut().expect("some").test() {
                        assert!(Instant::now() < deadline, "no timeout");
                        thread::sleep(Duration::from_millis(5));
                    }
                    for sum in sums {
                        let failure = sum.wait().expect_err("rank 1 does not come");
                        assert_eq!(failure.error.status(), Some(Status::TimedOut), "{failure}");
                        assert!(failure.into_buffers().is_some());
                    }
                } else {
                    assert!(rest.lock().expect("lock").recv().is_err());
                }
                drop(over);
            });
        }
    });
}

#[test]
fn everything_ends_when_the_daemon_does() {
    let mut daemon = Daemon::start();
    let id = daemon.client().unique_id(false).expect("id");
    let (client, other) = (daemon.client(), daemon.client());
    thread::scope(|scope| {
        let id = &id;
        let peer = scope.spawn(move || other.communicator(id, 1, 2).join().expect("join"));
        let world = client.communicator(id, 0, 2).join().expect("join");
        let _peer = peer.join().expect("the peer's thread");
        let arena = client.arena(8 << 20).expect("arena");
        let sums: Vec<_> = (0..150).map(|number| sum(&world, &arena, number, 300)).collect();
        daemon.stop();
        for sum in sums {
            let failure = sum.wait().expect_err("the daemon is gone");
            assert!(!failure.error.is_recoverable(), "{failure}");
            assert!(failure.into_buffers().is_some(), "nobody works on them");
        }
    });
}

/// A ring without room for a cell's worth of calls: the caller waits for a slot, as the documentation says.
#[test]
fn a_short_ring_makes_callers_wait() {
    let daemon = Daemon::start();
    let id = daemon.client().unique_id(false).expect("id");
    thread::scope(|scope| {
        for rank in 0..2 {
            let (daemon, id) = (&daemon, &id);
            scope.spawn(move || {
                let client = daemon.client();
                let world = client.communicator(id, rank, 2).ring_size(16).join().expect("join");
                let arena = client.arena(1 << 20).expect("arena");
                let sums: Vec<_> = (0..200).map(|number| sum(&world, &arena, number, 3)).collect();
                for (number, sum) in (0..).zip(sums) {
                    check(&world, number, &sum.wait().expect("sum"));
                }
            });
        }
    });
}
