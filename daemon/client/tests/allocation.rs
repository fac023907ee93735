//! Operations allocate nothing once they have run a few times.
#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use allocation_counter::measure;
use common::Daemon;
use ringway_client::{Communicator, Error, Reduction};

/// A call of each kind, in buffers and in slices; buffers are kept from round to round.
fn round(world: &Communicator, kept: &mut Kept) -> Result<(), Error> {
    let peer = 1 - world.rank();
    let (a, b) = (kept.a.take().expect("kept"), kept.b.take().expect("kept"));
    let (a, b) = world.allreduce(a, b, Reduction::Sum)?.wait()?;
    let (a, received) = world.send_recv((a, peer, 1), (b, peer, 1))?.wait()?;
    let first = world.allreduce_in_place(a, Reduction::Max)?;
    let second = world.broadcast_in_place(received.buffer, 0)?;
    let (a, b) = (first.wait()?, second.wait()?);
    let (a, b) = world.all_to_all_v(a, b, &kept.counts, &kept.counts)?.wait()?;
    let (a, b) = world.group(|g| Ok((g.send(a, peer, 2)?, g.recv(b, peer, 2)?)))?;
    (kept.a, kept.b) = (Some(a.wait()?), Some(b.wait()?.buffer));
    world.blocking().allreduce_in_place(&mut kept.values, Reduction::Sum)?;
    world.blocking().send_recv((&kept.values, peer, 3), (&mut kept.other, peer, 3))?;
    world.blocking().barrier()
}

struct Kept {
    a: Option<ringway_client::Buffer<u64>>,
    b: Option<ringway_client::Buffer<u64>>,
    counts: [u64; 2],
    values: [u32; 100],
    other: [u32; 100],
}

#[test]
fn nothing_is_allocated_after_warm_up() {
    for daemon in Daemon::of_each_kind() {
        daemon.world(2, |world| {
            let arena = world.client().arena(1 << 16).expect("arena");
            let buffer = || Some(arena.buffer::<u64>(100).expect("buffer"));
            let mut kept =
                Kept { a: buffer(), b: buffer(), counts: [50, 50], values: [0; 100], other: [0; 100] };
            // Of this thread: the daemon in this process has threads of its own.
            let mut allocations = |rounds| {
                let all = || (0..rounds).for_each(|_| round(world, &mut kept).expect("round"));
                measure(all).count_total
            };
            // A region of the other rank is mapped when this rank first works on it, which on a busy machine may be late.
            // Both ranks must make as many rounds.
            let warm = (0..10).any(|_| {
                let mut most = [allocations(1000)];
                world.blocking().allreduce_in_place(&mut most, Reduction::Max).expect("agreed");
                most == [0]
            });
            assert!(warm, "every thousand rounds allocate");
            assert_eq!(allocations(1000), 0, "allocations in a thousand rounds");
        });
    }
}
