//! What it costs that a processor reads what the other one has just written: 64 MiB for each of two threads, copied from one segment
//! to memory past the caches, again and again, where the thread itself wrote the segment just before and where the other one did,
//! each through the caches, in which it then is, and past them. Before that, how far the processors are apart: half a round trip of a cache line. That is what results of
//! ordinary memory, which ranks compute for each other, pay beside registered memory.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway_mem::{Mapping, MemFd, Window};
use ringway_reduce::{Stores, copy_with};

const LENGTH: usize = 64 << 20;
const SEGMENTS: [usize; 2] = [128 << 10, 512 << 10];
/// Hand-overs of a cache line.
const TURNS: u64 = 20_000;

/// Two threads meet by spinning: what one has written is not to leave its cache meanwhile.
#[derive(Default)]
struct Meeting([AtomicU64; 2]);

impl Meeting {
    fn meet(&self, thread: usize, count: u64) {
        self.0[thread].store(count, Ordering::Release);
        while self.0[1 - thread].load(Ordering::Acquire) < count {
            std::hint::spin_loop();
        }
    }
}

/// Half a round trip of a cache line between two threads.
fn apart() -> Duration {
    let line = AtomicU64::new(0);
    let side = |odd: u64| {
        for turn in 0..TURNS {
            while line.load(Ordering::Acquire) != 2 * turn + odd {
                std::hint::spin_loop();
            }
            line.store(2 * turn + odd + 1, Ordering::Release);
        }
    };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| side(1));
        side(0);
    });
    begin.elapsed() / (2 * TURNS as u32)
}

/// What both threads take to copy all of it so many times; each writes a segment by such stores, and copies its own or the other's.
fn time(memory: &Mapping, segment: usize, (other, stores): (bool, Stores), calls: u64) -> Duration {
    let meeting = Meeting::default();
    let work = |thread: usize| {
        let window = |index: usize, length: usize| memory.window((index * LENGTH) as u64, length as u64);
        let whose = if other { 1 - thread } else { thread };
        let (Some(own), Some(from), Some(to)) =
            (window(thread, segment), window(whose, segment), window(2 + thread, LENGTH))
        else {
            return Duration::ZERO;
        };
        let words = vec![0x5a; segment];
        let (mut took, mut met) = (Duration::ZERO, 0);
        for at in (0..calls).flat_map(|_| (0..LENGTH).step_by(segment)) {
            let Some(to) = to.sub(at, segment) else { break };
            let _ = copy_with(stores, Window::of(&words), &[own]);
            meeting.meet(thread, met + 1);
            let begin = Instant::now();
            let _ = black_box(copy_with(Stores::Streaming, black_box(from), &[to]));
            took += begin.elapsed();
            meeting.meet(thread, met + 2);
            met += 2;
        }
        took
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        work(0)
    })
}

#[expect(clippy::print_stdout, reason = "the distance is part of the result")]
fn crossings(c: &mut Criterion) {
    let Ok((_file, memory)) = MemFd::region("bench", 4 * LENGTH as u64) else { return };
    let mut group = c.benchmark_group("crossing");
    group.sample_size(10).throughput(Throughput::Bytes(LENGTH as u64));
    for segment in SEGMENTS {
        println!(
            "a cache line's way from one processor to the other: {} ns (half of what it takes there and back)",
            apart().as_nanos()
        );
        for (name, other, stores) in [
            ("own", false, Stores::Cached),
            ("the_other_ones", true, Stores::Cached),
            ("own_past_the_caches", false, Stores::Streaming),
            ("the_other_ones_past_the_caches", true, Stores::Streaming),
        ] {
            let id = BenchmarkId::new(name, segment);
            let written = (other, stores);
            group.bench_function(id, |b| b.iter_custom(|calls| time(&memory, segment, written, calls)));
        }
    }
    group.finish();
}

criterion_group!(benches, crossings);
criterion_main!(benches);
