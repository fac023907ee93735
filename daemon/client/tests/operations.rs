//! Every collective, in and out of place, blocking and not, against what it should give.
#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use common::{Daemon, combined, value};
use ringway_client::{Communicator, Element, Error, F8E4M3, F8E5M2, Reduce, Reduction, bf16, f16};

/// Lengths at and around what is treated specially, and none.
const LENGTHS: &[usize] = &[0, 1, 7, 1000, 70_001];

fn input(world: &Communicator, length: usize) -> Vec<i64> {
    (0..length).map(|index| value(world.rank(), index)).collect()
}

fn sum_of(world: &Communicator, index: usize) -> i64 {
    combined(0..world.size(), index, Reduction::Sum)
}

fn each(sizes: &[u32], body: impl Fn(&Communicator, usize) -> Result<(), Error> + Sync) {
    for daemon in Daemon::of_each_kind() {
        for size in sizes {
            daemon.world(*size, |world| {
                for length in LENGTHS {
                    let shared = world.shares_memory();
                    body(world, *length).unwrap_or_else(|error| {
                        panic!("length {length} of {size}, memory shared: {shared}: {error}")
                    });
                }
            });
        }
    }
}

#[test]
fn allreduce() {
    each(&[1, 2, 3, 4], |world, length| {
        let arena = world.client().arena(2 * (length * 8 + 4096))?;
        let (from, to) = (arena.buffer_from(&input(world, length))?, arena.buffer::<i64>(length)?);
        let (from, to) = world.allreduce(from, to, Reduction::Sum)?.wait()?;
        let expected: Vec<i64> = (0..length).map(|index| sum_of(world, index)).collect();
        assert_eq!(&*to, expected);
        assert_eq!(&*from, input(world, length), "the input is left as it is");
        let buffer = world.allreduce_in_place(from, Reduction::Sum)?.wait()?;
        assert_eq!(&*buffer, expected);
        let mut values = input(world, length);
        let mut output = vec![0; length];
        world.blocking().allreduce(&values, &mut output, Reduction::Sum)?;
        assert_eq!(output, expected);
        world.blocking().allreduce_in_place(&mut values, Reduction::Sum)?;
        assert_eq!(values, expected);
        Ok(())
    });
}

#[test]
fn reduce_and_broadcast() {
    each(&[1, 3], |world, length| {
        let arena = world.client().arena(3 * (length * 8 + 4096))?;
        for root in 0..world.size() {
            let is_root = world.rank() == root;
            let expected: Vec<i64> = (0..length).map(|index| sum_of(world, index)).collect();
            let from = arena.buffer_from(&input(world, length))?;
            let to = if is_root { Some(arena.buffer::<i64>(length)?) } else { None };
            let (from, to) = world.reduce(from, to, root, Reduction::Sum)?.wait()?;
            assert_eq!(to.as_deref(), is_root.then_some(&expected[..]));
            let mut result = world.reduce_in_place(from, root, Reduction::Sum)?.wait()?;
            assert!(!is_root || *result == *expected);
            if !is_root {
                result.fill(-1);
            }
            let result = world.broadcast_in_place(result, root)?.wait()?;
            assert_eq!(&*result, expected);
            let (from, to) =
                if is_root { (Some(result), arena.buffer::<i64>(length)?) } else { (None, result) };
            let (_, to) = world.broadcast(from, to, root)?.wait()?;
            assert_eq!(&*to, expected);

            let mut output = vec![0; length];
            world.blocking().reduce(&input(world, length), Some(&mut output), root, Reduction::Sum)?;
            world.blocking().broadcast(&mut output, root)?;
            assert_eq!(output, expected);
            let mut values = input(world, length);
            world.blocking().reduce_in_place(&mut values, root, Reduction::Sum)?;
            assert_eq!(values, if is_root { expected } else { input(world, length) });
        }
        Ok(())
    });
}

#[test]
fn all_gather_and_reduce_scatter() {
    each(&[1, 2, 3], |world, length| {
        let (size, rank) = (world.size() as usize, world.rank() as usize);
        let arena = world.client().arena((size + 1) * (length * 8 + 4096) * 2)?;
        let all: Vec<i64> = (0..size as u32).flat_map(|r| (0..length).map(move |i| value(r, i))).collect();
        let own = input(world, length);
        let (_, to) = world.all_gather(arena.buffer_from(&own)?, arena.buffer(length * size)?)?.wait()?;
        assert_eq!(&*to, all);
        let mut buffer = to;
        buffer.fill(0);
        buffer[rank * length..][..length].copy_from_slice(&own);
        let buffer = world.all_gather_in_place(buffer)?.wait()?;
        assert_eq!(&*buffer, all);
        let mut output = vec![0; length * size];
        world.blocking().all_gather(&own, &mut output)?;
        assert_eq!(output, all);

        let wide = input(world, length * size);
        let expected: Vec<i64> = (0..length).map(|index| sum_of(world, rank * length + index)).collect();
        drop(buffer);
        let (from, to) = (arena.buffer_from(&wide)?, arena.buffer(length)?);
        let (from, to) = world.reduce_scatter(from, to, Reduction::Sum)?.wait()?;
        assert_eq!(&*to, expected);
        let buffer = world.reduce_scatter_in_place(from, Reduction::Sum)?.wait()?;
        assert_eq!(buffer[rank * length..][..length], expected);
        let mut output = vec![0; length];
        world.blocking().reduce_scatter(&wide, &mut output, Reduction::Sum)?;
        assert_eq!(output, expected);
        Ok(())
    });
}

#[test]
fn gather_and_scatter() {
    each(&[1, 3], |world, length| {
        let (size, rank) = (world.size() as usize, world.rank() as usize);
        let arena = world.client().arena((size + 2) * (length * 8 + 4096) * 2)?;
        let all: Vec<i64> = (0..size as u32).flat_map(|r| (0..length).map(move |i| value(r, i))).collect();
        let own = input(world, length);
        for root in 0..world.size() {
            let is_root = world.rank() == root;
            let to = if is_root { Some(arena.buffer(length * size)?) } else { None };
            let (from, to) = world.gather(arena.buffer_from(&own)?, to, root)?.wait()?;
            assert_eq!(to.as_deref(), is_root.then_some(&all[..]));
            let mut buffer = to.unwrap_or(from);
            if is_root {
                buffer.fill(0);
                buffer[rank * length..][..length].copy_from_slice(&own);
            }
            let buffer = world.gather_in_place(buffer, root)?.wait()?;
            assert_eq!(&*buffer, if is_root { &all[..] } else { &own[..] });

            let (from, to) = if is_root { (Some(buffer), arena.buffer(length)?) } else { (None, buffer) };
            let (from, mut to) = world.scatter(from, to, root)?.wait()?;
            assert_eq!(&*to, own);
            to.fill(0);
            let buffer = world.scatter_in_place(from.unwrap_or(to), root)?.wait()?;
            assert_eq!(&*buffer, if is_root { &all[..] } else { &own[..] });
            drop(buffer);

            let mut output = vec![0; length * size];
            world.blocking().gather(&own, Some(&mut output), root)?;
            assert!(!is_root || output == all);
            let mut part = vec![0; length];
            world.blocking().scatter(is_root.then_some(&output[..]), &mut part, root)?;
            assert_eq!(part, own);
        }
        Ok(())
    });
}

/// What rank `from` sends to rank `to`: its length, and its values.
fn block(from: u32, to: u32, unit: usize) -> Vec<i64> {
    let length = (from as usize + 2 * to as usize) % 3 * unit;
    (0..length).map(|index| i64::from(from) * 1000 + i64::from(to) * 100 + (index % 50) as i64).collect()
}

#[test]
fn all_to_all() {
    each(&[1, 2, 3], |world, length| {
        let (size, rank) = (world.size(), world.rank());
        let arena = world.client().arena(4 * (length * 8 * size as usize + 4096))?;
        let mark = |from: u32, to: u32| vec![i64::from(from) * 10 + i64::from(to); length];
        let own: Vec<i64> = (0..size).flat_map(|to| mark(rank, to)).collect();
        let expected: Vec<i64> = (0..size).flat_map(|from| mark(from, rank)).collect();
        let (from, to) = world.all_to_all(arena.buffer_from(&own)?, arena.buffer(own.len())?)?.wait()?;
        assert_eq!(&*to, expected);
        let buffer = world.all_to_all_in_place(from)?.wait()?;
        assert_eq!(&*buffer, expected);
        let mut output = vec![0; own.len()];
        world.blocking().all_to_all(&own, &mut output)?;
        assert_eq!(output, expected);

        let unit = length.min(5000);
        let own: Vec<i64> = (0..size).flat_map(|to| block(rank, to, unit)).collect();
        let expected: Vec<i64> = (0..size).flat_map(|from| block(from, rank, unit)).collect();
        let sends: Vec<u64> = (0..size).map(|to| block(rank, to, unit).len() as u64).collect();
        let receives: Vec<u64> = (0..size).map(|from| block(from, rank, unit).len() as u64).collect();
        let arena = world.client().arena(2 * (own.len() + expected.len()) * 8 + 16384)?;
        let (from, to) = (arena.buffer_from(&own)?, arena.buffer(expected.len())?);
        let (_, to) = world.all_to_all_v(from, to, &sends, &receives)?.wait()?;
        assert_eq!(&*to, expected);
        let mut output = vec![0; expected.len()];
        world.blocking().all_to_all_v(&own, &mut output, &sends, &receives)?;
        assert_eq!(output, expected);
        Ok(())
    });
}

#[test]
fn counted_forms() {
    each(&[1, 3], |world, length| {
        let (size, rank) = (world.size(), world.rank());
        let counts: Vec<u64> = (0..size).map(|r| ((r as usize + 1) % 3 * length) as u64).collect();
        let own_length = counts[rank as usize] as usize;
        let before: usize = counts[..rank as usize].iter().sum::<u64>() as usize;
        let total: usize = counts.iter().sum::<u64>() as usize;
        let arena = world.client().arena(4 * (total * 8 + 8192))?;
        let all: Vec<i64> =
            (0..size).flat_map(|r| (0..counts[r as usize] as usize).map(move |i| value(r, i))).collect();
        let own = input(world, own_length);
        let (_, mut to) =
            world.all_gather_v(arena.buffer_from(&own)?, arena.buffer(total)?, &counts)?.wait()?;
        assert_eq!(&*to, all);
        to.fill(0);
        to[before..][..own_length].copy_from_slice(&own);
        let to = world.all_gather_v_in_place(to, &counts)?.wait()?;
        assert_eq!(&*to, all);
        drop(to);

        let wide = input(world, total);
        let expected: Vec<i64> = (0..own_length).map(|index| sum_of(world, before + index)).collect();
        let (from, to) = (arena.buffer_from(&wide)?, arena.buffer(own_length)?);
        let (from, to) = world.reduce_scatter_v(from, to, &counts, Reduction::Sum)?.wait()?;
        assert_eq!(&*to, expected);
        let buffer = world.reduce_scatter_v_in_place(from, &counts, Reduction::Sum)?.wait()?;
        assert_eq!(buffer[before..][..own_length], expected);
        drop((to, buffer));

        for root in 0..size {
            let is_root = rank == root;
            let to = if is_root { Some(arena.buffer(total)?) } else { None };
            let (from, to) = world.gather_v(arena.buffer_from(&own)?, to, &counts, root)?.wait()?;
            assert_eq!(to.as_deref(), is_root.then_some(&all[..]));
            let (from, to) = if is_root { (to, from) } else { (None, from) };
            let (from, to) = world.scatter_v(from, to, &counts, root)?.wait()?;
            assert_eq!(&*to, own);
            let buffer = world.scatter_v_in_place(from.unwrap_or(to), &counts, root)?.wait()?;
            let buffer = world.gather_v_in_place(buffer, &counts, root)?.wait()?;
            assert_eq!(&*buffer, if is_root { &all[..] } else { &own[..] });
            drop(buffer);
            let mut output = vec![0; total];
            world.blocking().gather_v(&own, Some(&mut output), &counts, root)?;
            assert!(!is_root || output == all);
            let mut part = vec![0; own_length];
            world.blocking().scatter_v(is_root.then_some(&all[..]), &mut part, &counts, root)?;
            assert_eq!(part, own);
        }
        let mut output = vec![0; total];
        world.blocking().all_gather_v(&own, &mut output, &counts)?;
        assert_eq!(output, all);
        let mut output = vec![0; own_length];
        // A scalar and counts together.
        world.blocking().reduce_scatter_v(&wide, &mut output, &counts, Reduce::premul(2))?;
        assert_eq!(output, expected.iter().map(|v| 2 * v).collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn scans_and_barrier() {
    each(&[1, 3], |world, length| {
        let rank = world.rank();
        let arena = world.client().arena(2 * (length * 8 + 4096))?;
        let upto =
            |ranks: u32| (0..length).map(|i| combined(0..ranks, i, Reduction::Sum)).collect::<Vec<_>>();
        let own = input(world, length);
        let (from, to) = (arena.buffer_from(&own)?, arena.buffer(length)?);
        let (from, mut to) = world.scan(from, to, Reduction::Sum)?.wait()?;
        assert_eq!(&*to, upto(rank + 1));
        to.fill(-7);
        let (from, to) = world.exscan(from, to, Reduction::Sum)?.wait()?;
        assert_eq!(&*to, if rank == 0 { vec![-7; length] } else { upto(rank) }, "rank 0's output is left");
        let buffer = world.scan_in_place(from, Reduction::Sum)?.wait()?;
        assert_eq!(&*buffer, upto(rank + 1));
        drop((buffer, to));
        let buffer = world.exscan_in_place(arena.buffer_from(&own)?, Reduction::Sum)?.wait()?;
        assert_eq!(&*buffer, if rank == 0 { own.clone() } else { upto(rank) });
        let mut output = vec![-7; length];
        world.blocking().exscan(&own, &mut output, Reduction::Sum)?;
        assert_eq!(output, if rank == 0 { vec![-7; length] } else { upto(rank) });
        world.blocking().scan(&own, &mut output, Reduction::Sum)?;
        assert_eq!(output, upto(rank + 1));
        world.barrier()?.wait()?;
        world.blocking().barrier()
    });
}

fn of_type<T: Element>(
    world: &Communicator,
    from: impl Fn(i64) -> T,
    scalar: T::Scalar,
) -> Result<(), Error> {
    let size = world.size();
    let own: Vec<T> = (0..100).map(|index| from(value(world.rank(), index))).collect();
    let expect = |of: &dyn Fn(usize) -> i64| (0..100).map(|index| from(of(index))).collect::<Vec<T>>();
    for reduction in [Reduction::Sum, Reduction::Min, Reduction::Max] {
        let mut values = own.clone();
        world.blocking().allreduce_in_place(&mut values, reduction)?;
        assert_eq!(
            values,
            expect(&|index| combined(0..size, index, reduction)),
            "{reduction} {}",
            T::DATATYPE
        );
    }
    let mut values = own.clone();
    world.blocking().allreduce_in_place(&mut values, Reduce::premul(scalar))?;
    assert_eq!(values, expect(&|index| 2 * combined(0..size, index, Reduction::Sum)), "{}", T::DATATYPE);
    let mut values = vec![from(3); 5];
    world.blocking().allreduce_in_place(&mut values, Reduction::Avg)?;
    assert_eq!(values, vec![from(3); 5]);
    let mut values = vec![from(2); 5];
    world.blocking().allreduce_in_place(&mut values, Reduction::Prod)?;
    assert_eq!(values, vec![from(1 << size); 5]);
    for (reduction, result) in
        [(Reduction::LogicalAnd, 0), (Reduction::LogicalOr, 1), (Reduction::LogicalXor, 1)]
    {
        let mut values = vec![from(i64::from(world.rank() == 0) * 4); 5];
        world.blocking().allreduce_in_place(&mut values, reduction)?;
        assert_eq!(values, vec![from(result); 5], "{reduction} {}", T::DATATYPE);
    }
    let mut values = vec![from(6); 5];
    let bits = world.blocking().allreduce_in_place(&mut values, Reduction::BitAnd);
    if T::DATATYPE.is_float() {
        let error = bits.expect_err("not defined for floats");
        assert!(error.to_string().contains("band is not defined for"), "{error}");
    } else {
        bits?;
        assert_eq!(values, vec![from(6); 5]);
    }
    Ok(())
}

#[test]
fn every_type() {
    for daemon in Daemon::of_each_kind() {
        daemon
            .world(3, |world| {
                of_type::<i8>(world, |v| v as i8, 2)?;
                of_type::<u8>(world, |v| v as u8, 2)?;
                of_type::<i32>(world, |v| v as i32, 2)?;
                of_type::<u32>(world, |v| v as u32, 2)?;
                of_type::<i64>(world, |v| v, 2)?;
                of_type::<u64>(world, |v| v as u64, 2)?;
                of_type::<f16>(world, |v| f16::from_f64(v as f64), 2.0)?;
                of_type::<bf16>(world, |v| bf16::from_f64(v as f64), 2.0)?;
                of_type::<F8E4M3>(world, |v| F8E4M3::from_f32(v as f32), 2.0)?;
                of_type::<F8E5M2>(world, |v| F8E5M2::from_f32(v as f32), 2.0)?;
                of_type::<f32>(world, |v| v as f32, 2.0)?;
                of_type::<f64>(world, |v| v as f64, 2.0)
            })
            .into_iter()
            .for_each(|outcome| outcome.expect("every type"));
    }
}
