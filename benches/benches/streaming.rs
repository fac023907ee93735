//! An allreduce's arithmetic over operands that no cache holds: sums of two and four `f32` operands, out of place into
//! as many others and in place, in pieces of 64 KiB as the ranks of a node share them out, by one and by two threads,
//! with cached and with streaming stores. Throughput counts every byte read or written. Before that, tables show the
//! slowest and the median rate over the distances of the operands modulo the page size, and short calls.
//!
//! The operands are filled with numbers: processors may store zeroes faster than anything else.

use std::{
    hint::black_box,
    sync::Barrier,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway_mem::{Mapping, MemFd, Window};
use ringway_reduce::{Source, Stores, reduce_with, streaming_pays};
use ringway_types::{DataType, Reduction};

const KIB: usize = 1 << 10;
const LENGTHS: [usize; 6] = [64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 16_384 * KIB, 65_536 * KIB];
const RANKS: [usize; 2] = [2, 4];
const PIECE: usize = 64 * KIB;
const PAGE: usize = 4 * KIB;
/// Distance between operands modulo the page size, as arenas choose it.
const COLOUR: usize = 1408;
const MOST: usize = 4;

/// Operands of one length, each `distance` bytes further modulo the page size than the one before.
struct Operands<'a> {
    mapping: &'a Mapping,
    length: usize,
    ranks: usize,
    distance: usize,
    in_place: bool,
}

impl<'a> Operands<'a> {
    fn operand(&self, index: usize) -> Option<Window<'a>> {
        let room = self.length.next_multiple_of(PAGE) + PAGE;
        self.mapping.window((index * room + index * self.distance % PAGE) as u64, self.length as u64)
    }

    fn fill(&self) {
        let line: Vec<u8> = (0..1024_u16).flat_map(|i| (f32::from(i) * 0.37 + 1.0).to_le_bytes()).collect();
        for operand in (0..2 * self.ranks).filter_map(|index| self.operand(index)) {
            for at in (0..self.length).step_by(line.len()) {
                operand.sub(at, line.len().min(self.length - at)).map(|part| part.write(&line));
            }
        }
    }

    /// Sums a part of the operands, piece by piece.
    fn sum(&self, stores: Stores, start: usize, end: usize) -> Option<()> {
        let shift = if self.in_place { 0 } else { self.ranks };
        let mut sources = [self.operand(0)?; MOST];
        let mut destinations = sources;
        for rank in 0..self.ranks {
            sources[rank] = self.operand(rank)?;
            destinations[rank] = self.operand(rank + shift)?;
        }
        for at in (start..end).step_by(PIECE) {
            let length = PIECE.min(end - at);
            let mut from = [Source::from(sources[0]); MOST];
            let mut to = destinations;
            for rank in 0..self.ranks {
                from[rank] = sources[rank].sub(at, length)?.into();
                to[rank] = destinations[rank].sub(at, length)?;
            }
            let (from, to) = (&from[..self.ranks], &to[..self.ranks]);
            reduce_with(stores, DataType::F32, Reduction::Sum, black_box(from), black_box(to), None).ok()?;
        }
        Some(())
    }

    /// Time of `calls` sums of everything, each thread taking its share.
    fn time(&self, stores: Stores, threads: usize, calls: u64) -> Duration {
        let barrier = Barrier::new(threads);
        let share = (self.length / threads).next_multiple_of(64);
        let work = |thread: usize| {
            let (start, end) = (thread * share, self.length.min((thread + 1) * share));
            barrier.wait();
            let begin = Instant::now();
            for _ in 0..calls {
                black_box(self.sum(stores, start, end));
            }
            barrier.wait();
            begin.elapsed()
        };
        if threads == 1 {
            return work(0);
        }
        std::thread::scope(|scope| {
            (1..threads).for_each(|thread| _ = scope.spawn(move || work(thread)));
            work(0)
        })
    }
}

fn allreduces(c: &mut Criterion) {
    let once = std::env::args().any(|argument| argument == "--test");
    let lengths = if once { &LENGTHS[..2] } else { &LENGTHS[..] };
    let Some(longest) = lengths.last() else { return };
    let Ok((_file, mapping)) = MemFd::region("bench", ((2 * MOST + 1) * (longest + PAGE)) as u64) else {
        return;
    };
    if !once {
        distances(&mapping);
        short_calls(&mapping);
    }
    for ranks in RANKS {
        for in_place in [false, true] {
            let place = if in_place { "in_place" } else { "out_of_place" };
            let mut group = c.benchmark_group(format!("allreduce/{ranks}_{place}"));
            group
                .sample_size(10)
                .warm_up_time(Duration::from_millis(200))
                .measurement_time(Duration::from_millis(500));
            for &length in lengths {
                let operands = Operands { mapping: &mapping, length, ranks, distance: COLOUR, in_place };
                operands.fill();
                group.throughput(Throughput::Bytes(2 * (ranks * length) as u64));
                for stores in [Stores::Cached, Stores::Streaming] {
                    for threads in [1, 2] {
                        let id = BenchmarkId::new(format!("{stores:?}_{threads}_threads"), length);
                        group.bench_function(id, |b| {
                            b.iter_custom(|calls| operands.time(stores, threads, calls))
                        });
                    }
                }
            }
            group.finish();
        }
    }
}

/// Nanoseconds of a sum, the best of some slices.
fn best(operands: &Operands<'_>, stores: Stores, calls: u64) -> f64 {
    let slice = || operands.time(stores, 1, calls).as_secs_f64() * 1e9 / calls as f64;
    (0..5).map(|_| slice()).fold(f64::INFINITY, f64::min)
}

#[expect(clippy::print_stdout, reason = "the table is what this program is run for")]
fn distances(mapping: &Mapping) {
    println!("sums over all distances modulo {PAGE} in steps of 64 and some odd ones, GB/s touched:");
    for (ranks, in_place) in [(2, false), (2, true), (4, false), (4, true)] {
        for length in [16 * KIB, 64 * KIB, 1024 * KIB] {
            for stores in [Stores::Cached, Stores::Streaming] {
                let mut rates: Vec<(f64, usize)> = (0..PAGE)
                    .step_by(64)
                    .chain([4, 20, 36, 1028, PAGE - 4])
                    .map(|distance| {
                        let operands = Operands { mapping, length, ranks, distance, in_place };
                        operands.fill();
                        let calls = (1 << 20) / length as u64;
                        ((2 * ranks * length) as f64 / best(&operands, stores, calls), distance)
                    })
                    .collect();
                rates.sort_by(|a, b| a.0.total_cmp(&b.0));
                if let (Some((slowest, at)), Some((median, _))) = (rates.first(), rates.get(rates.len() / 2))
                {
                    let pays = streaming_pays((2 * ranks * length) as u64, in_place);
                    println!(
                        "{ranks} ranks, in place {in_place:5}, {length:7} bytes, {stores:9?}: slowest {slowest:6.1} \
                         (at {at:4}), median {median:6.1}; streaming pays: {pays}"
                    );
                }
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "as above")]
fn short_calls(mapping: &Mapping) {
    println!("short sums, nanoseconds a call:");
    for ranks in RANKS {
        let times: Vec<String> = [4, 8, 16, 32, 64, 128, 256]
            .into_iter()
            .map(|length| {
                let operands = Operands { mapping, length, ranks, distance: 0, in_place: false };
                operands.fill();
                let (Some(a), Some(b)) = (operands.operand(0), operands.operand(ranks)) else {
                    return String::new();
                };
                let (from, to) = ([Source::from(a); MOST], [b; MOST]);
                let (from, to) = (&from[..ranks], &to[..1]);
                let slice = || {
                    let begin = Instant::now();
                    for _ in 0..100_000 {
                        let sum = Reduction::Sum;
                        let _ = black_box(ringway_reduce::reduce(
                            black_box(DataType::F32),
                            sum,
                            black_box(from),
                            black_box(to),
                            None,
                        ));
                    }
                    begin.elapsed().as_secs_f64() * 1e4
                };
                let best = (0..5).map(|_| slice()).fold(f64::INFINITY, f64::min);
                format!("{length}: {best:.1}")
            })
            .collect();
        println!("{ranks} sources, one destination: {}", times.join(", "));
    }
}

criterion_group!(benches, allreduces);
criterion_main!(benches);
