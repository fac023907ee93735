//! Reductions as a daemon calls them, against a plain loop over slices: sums of two and four sources to as many
//! destinations (an allreduce of a node), of 8 bytes, 4 KiB and 64 KiB. Throughput counts the bytes of one window.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway_mem::{Mapping, Window};
use ringway_reduce::{Source, reduce};
use ringway_types::{DataType, Reduction};

const LENGTHS: [usize; 3] = [8, 4 << 10, 64 << 10];
const RANKS: [usize; 2] = [2, 4];

/// Distance between windows: page-aligned, and an odd number of pages so that they do not share cache sets.
const ROOM: u64 = (64 + 4) << 10;

/// Small numbers, so that no sum overflows into slow or special values.
fn fill(window: &Window<'_>) {
    for at in 0..window.length() / 4 {
        if let Some(element) = window.sub(4 * at, 4) {
            element.write(&1.5_f32.to_le_bytes());
        }
    }
}

fn windows(mapping: &Mapping, first: usize, count: usize, length: usize) -> Vec<Window<'_>> {
    (first..first + count).filter_map(|i| mapping.window(i as u64 * ROOM, length as u64)).collect()
}

fn kernels(c: &mut Criterion) {
    let Ok(mapping) = Mapping::private(8 * ROOM as usize) else { return };
    for datatype in
        [DataType::F32, DataType::Bf16, DataType::F16, DataType::F8E4M3, DataType::F8E5M2, DataType::I8]
    {
        let mut group = c.benchmark_group(format!("reduce/{datatype}_sum"));
        for length in LENGTHS {
            for ranks in RANKS {
                let destinations = windows(&mapping, 4, ranks, length);
                let inputs = windows(&mapping, 0, ranks, length);
                inputs.iter().for_each(fill);
                let sources: Vec<_> =
                    inputs.into_iter().map(|window| Source { window, scale: None }).collect();
                group.throughput(Throughput::Bytes(length as u64));
                group.bench_function(BenchmarkId::new(format!("{ranks}_ranks"), length), |b| {
                    b.iter(|| {
                        reduce(
                            black_box(datatype),
                            black_box(Reduction::Sum),
                            black_box(&sources),
                            black_box(&destinations),
                            None,
                        )
                    });
                });
            }
        }
        group.finish();
    }
}

/// One pass over slices for each source and each destination, as a first program would do it.
fn plain_sum(inputs: &[Vec<f32>], outputs: &mut [Vec<f32>]) {
    let (Some((first, rest)), Some((result, others))) = (inputs.split_first(), outputs.split_first_mut())
    else {
        return;
    };
    result.copy_from_slice(first);
    for input in rest {
        for (total, value) in result.iter_mut().zip(input) {
            *total += value;
        }
    }
    for other in others {
        other.copy_from_slice(result);
    }
}

fn plain(c: &mut Criterion) {
    let mut group = c.benchmark_group("reduce/plain_f32_sum");
    for length in LENGTHS {
        for ranks in RANKS {
            let inputs = vec![vec![1.5_f32; length / 4]; ranks];
            let mut outputs = inputs.clone();
            group.throughput(Throughput::Bytes(length as u64));
            group.bench_function(BenchmarkId::new(format!("{ranks}_ranks"), length), |b| {
                b.iter(|| plain_sum(black_box(&inputs), black_box(&mut outputs)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, kernels, plain);
criterion_main!(benches);
