//! Copies at every distance of source and destination modulo the page size, ours against the C library's: on some
//! processors the latter falls to a tenth of its rate at a few of them. Criterion measures the distance that hurts
//! most and an ordinary one; before that, a table shows the slowest and the median rate over all distances.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway_mem::Mapping;

const LENGTHS: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];
const PAGE: usize = 4096;
const STEP: usize = 16;

/// Time each distance is measured for, three times over; the best of the three counts.
const SLICE: Duration = Duration::from_micros(200);

/// A copy and what it is called.
type Named<'a> = (&'static str, Box<dyn FnMut() + 'a>);

/// Memory to copy between: a mapping, and private memory for the C library's copy to write.
struct Arena {
    mapping: Mapping,
    private: Vec<u8>,
}

impl Arena {
    fn new() -> Option<Self> {
        let room = LENGTHS.iter().max()? + 2 * PAGE;
        Some(Self { mapping: Mapping::private(2 * room).ok()?, private: vec![0; room] })
    }

    /// Both copies of `length` bytes to `distance` bytes past the source modulo the page size.
    fn copies(&mut self, length: usize, distance: usize) -> Option<[Named<'_>; 2]> {
        let from = self.mapping.window(0, length as u64)?;
        let to = self.mapping.window((length + PAGE + distance) as u64, length as u64)?;
        let start = (from.as_ptr().addr() + distance).wrapping_sub(self.private.as_ptr().addr()) % PAGE;
        let private = self.private.get_mut(start..start + length)?;
        let ours = move || {
            let _ = black_box(ringway_reduce::copy(black_box(from), black_box(&[to])));
        };
        // A window is read by the standard library's copy.
        let std = move || {
            black_box(black_box(from).read(black_box(&mut *private)));
        };
        Some([("ours", Box::new(ours)), ("std", Box::new(std))])
    }
}

/// Bytes per second, the best of three slices.
fn rate(copy: &mut dyn FnMut(), length: usize) -> f64 {
    let mut slice = || {
        let start = Instant::now();
        let mut calls = 0_u32;
        while start.elapsed() < SLICE {
            for _ in 0..8 {
                copy();
            }
            calls += 8;
        }
        f64::from(calls) * length as f64 / start.elapsed().as_secs_f64()
    };
    (0..3).map(|_| slice()).fold(0.0, f64::max)
}

#[expect(clippy::print_stdout, reason = "the table is what this program is run for")]
fn table(arena: &mut Arena) {
    println!("copy over all distances modulo {PAGE} in steps of {STEP}, GB/s:");
    for length in LENGTHS {
        let mut rates = [("ours", Vec::new()), ("std", Vec::new())];
        for distance in (0..PAGE).step_by(STEP) {
            for ((_, copy), (_, rates)) in arena.copies(length, distance).iter_mut().flatten().zip(&mut rates)
            {
                rates.push((rate(copy, length) / 1e9, distance));
            }
        }
        for (name, rates) in &mut rates {
            rates.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let (Some((slowest, at)), Some((median, _))) = (rates.first(), rates.get(rates.len() / 2)) {
                println!(
                    "{length:6} bytes, {name:4}: slowest {slowest:6.1} (at {at:4}), median {median:6.1}"
                );
            }
        }
    }
}

fn copies(c: &mut Criterion) {
    let Some(mut arena) = Arena::new() else { return };
    table(&mut arena);
    let mut group = c.benchmark_group("copy");
    for length in LENGTHS {
        group.throughput(Throughput::Bytes(length as u64));
        for distance in [16, 2048] {
            for (name, copy) in arena.copies(length, distance).iter_mut().flatten() {
                let id = BenchmarkId::new(format!("{name}_{distance}_past"), length);
                group.bench_function(id, |b| b.iter(&mut *copy));
            }
        }
    }
    group.finish();
}

criterion_group!(benches, copies);
criterion_main!(benches);
