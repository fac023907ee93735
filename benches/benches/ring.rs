//! The shared rings beside a bare single-producer single-consumer ring of 64-byte entries: round trips between two
//! threads, and submissions per second in batches of 32. The bare ring trusts its peer, checks nothing and completes
//! nothing; it is laid out like the fastest known ones (indices 128 bytes apart, the peer's index cached).
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot be set up must stop")]

use std::{
    hint::{black_box, spin_loop},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringway_abi::descriptor::{BufferHandle, Completion, Submission};
use ringway_mem::Mapping;
use ringway_ring::{ClientRings, DaemonRings, Geometry};
use ringway_types::{DataType, Operation, Reduction};

const CAPACITY: u32 = 256;
const BATCH: usize = 32;

#[repr(align(128))]
struct Index(AtomicU64);

#[repr(align(64))]
struct Entry([AtomicU64; 8]);

struct Bare {
    entries: Vec<Entry>,
    head: Index,
    tail: Index,
}

impl Bare {
    fn new() -> Self {
        let entries = (0..CAPACITY).map(|_| Entry([const { AtomicU64::new(0) }; 8])).collect();
        Self { entries, head: Index(AtomicU64::new(0)), tail: Index(AtomicU64::new(0)) }
    }

    fn entry(&self, position: u64) -> &Entry {
        &self.entries[position as usize & (CAPACITY as usize - 1)]
    }
}

#[derive(Default)]
struct Cursor {
    position: u64,
    peer: u64,
}

fn bare_push(ring: &Bare, cursor: &mut Cursor, batch: &[[u64; 8]]) {
    while cursor.position + batch.len() as u64 - cursor.peer > u64::from(CAPACITY) {
        cursor.peer = ring.head.0.load(Ordering::Acquire);
        spin_loop();
    }
    for words in batch {
        let entry = ring.entry(cursor.position);
        for (cell, word) in entry.0.iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
        cursor.position += 1;
    }
    ring.tail.0.store(cursor.position, Ordering::Release);
}

/// Takes what there is, at most `BATCH` entries.
fn bare_pop(ring: &Bare, cursor: &mut Cursor, mut each: impl FnMut([u64; 8])) -> u64 {
    if cursor.peer == cursor.position {
        cursor.peer = ring.tail.0.load(Ordering::Acquire);
    }
    let count = (cursor.peer - cursor.position).min(BATCH as u64);
    for _ in 0..count {
        let entry = ring.entry(cursor.position);
        each(std::array::from_fn(|i| entry.0[i].load(Ordering::Relaxed)));
        cursor.position += 1;
    }
    if count > 0 {
        ring.head.0.store(cursor.position, Ordering::Release);
    }
    count
}

fn submission() -> [u64; 8] {
    Submission {
        token: 1,
        operation: Operation::Allreduce,
        datatype: DataType::F32,
        reduction: Some(Reduction::Sum),
        flags: 0,
        rank: 0,
        argument: 0,
        input: Some(BufferHandle { region: 1, offset: 0 }),
        output: Some(BufferHandle { region: 1, offset: 64 }),
        count: 2,
    }
    .encode()
}

fn rings() -> (ClientRings, DaemonRings) {
    let geometry = Geometry::new(CAPACITY, 2 * CAPACITY, 0).expect("geometry");
    let c = Arc::new(Mapping::private(geometry.client_bytes()).expect("map"));
    let d = Arc::new(Mapping::private(geometry.daemon_bytes()).expect("map"));
    let client = ClientRings::attach(&c, &d, geometry).expect("attach");
    (client, DaemonRings::attach(&c, &d, geometry).expect("attach"))
}

/// Runs `server` on a thread of its own while `client` is timed; the server is told to stop by the flag.
fn against<T>(server: impl FnOnce(&AtomicBool) + Send, client: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| server(&stop));
        let result = client();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn bare_round_trips(rounds: u64) -> Duration {
    let (there, back) = (Bare::new(), Bare::new());
    let server = |stop: &AtomicBool| {
        let (mut input, mut output) = (Cursor::default(), Cursor::default());
        while !stop.load(Ordering::Relaxed) {
            bare_pop(&there, &mut input, |words| bare_push(&back, &mut output, &[words]));
        }
    };
    against(server, || {
        let (mut output, mut input) = (Cursor::default(), Cursor::default());
        let begun = Instant::now();
        for _ in 0..rounds {
            bare_push(&there, &mut output, &[submission()]);
            while bare_pop(&back, &mut input, |words| _ = black_box(words)) == 0 {
                spin_loop();
            }
        }
        begun.elapsed()
    })
}

/// Answers every submission it can parse, as the daemon does.
fn serve(daemon: &mut DaemonRings, stop: &AtomicBool) {
    let mut batch = [[0_u64; 8]; BATCH];
    while !stop.load(Ordering::Relaxed) {
        let count = daemon.submissions.pop_batch(&mut batch).expect("an honest client");
        if count == 0 {
            spin_loop();
            continue;
        }
        daemon.submissions.release();
        for words in &batch[..count] {
            let status = Submission::parse(words).map_or(1, |s| u16::from(s.flags));
            let completion = Completion { token: 1, status, held: false, rank: 0, bytes: 0 };
            while daemon.completions.push(&completion.encode()).is_err() {
                spin_loop();
            }
        }
        daemon.completions.publish();
        daemon.wake();
    }
}

fn shared_round_trips(rounds: u64) -> Duration {
    let (mut client, mut daemon) = rings();
    against(
        move |stop| serve(&mut daemon, stop),
        || {
            let begun = Instant::now();
            for _ in 0..rounds {
                client.submissions.send(&submission()).expect("room");
                black_box(client.need_wakeup());
                while client.completions.pop().expect("an honest daemon").is_none() {
                    spin_loop();
                }
                client.completions.release();
            }
            begun.elapsed()
        },
    )
}

fn bare_batches(count: u64) -> Duration {
    let ring = Bare::new();
    let server = |stop: &AtomicBool| {
        let mut cursor = Cursor::default();
        while !stop.load(Ordering::Relaxed) {
            bare_pop(&ring, &mut cursor, |words| _ = black_box(words));
        }
    };
    against(server, || {
        let mut cursor = Cursor::default();
        let batch = [submission(); BATCH];
        let begun = Instant::now();
        for _ in 0..count.div_ceil(BATCH as u64) {
            bare_push(&ring, &mut cursor, &batch);
        }
        while ring.head.0.load(Ordering::Acquire) != cursor.position {
            spin_loop();
        }
        begun.elapsed()
    })
}

fn shared_batches(count: u64) -> Duration {
    let (mut client, mut daemon) = rings();
    let server = move |stop: &AtomicBool| {
        let mut batch = [[0_u64; 8]; BATCH];
        while !stop.load(Ordering::Relaxed) {
            let taken = daemon.submissions.pop_batch(&mut batch).expect("an honest client");
            if taken > 0 {
                daemon.submissions.release();
            }
            for words in &batch[..taken] {
                black_box(Submission::parse(words).is_ok());
            }
        }
    };
    against(server, || {
        let entry = submission();
        let begun = Instant::now();
        for _ in 0..count.div_ceil(BATCH as u64) {
            while client.submissions.free_for(BATCH as u64).expect("an honest daemon") < BATCH as u64 {
                spin_loop();
            }
            for _ in 0..BATCH {
                let _ = black_box(client.submissions.push(&entry));
            }
            client.submissions.publish();
        }
        while client.submissions.unread().expect("an honest daemon") > 0 {
            spin_loop();
        }
        begun.elapsed()
    })
}

fn benchmark(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring/round_trip");
    group.bench_function("bare", |b| b.iter_custom(bare_round_trips));
    group.bench_function("shared_validated", |b| b.iter_custom(shared_round_trips));
    group.finish();

    let mut group = criterion.benchmark_group("ring/submissions_batch_32");
    group.throughput(Throughput::Elements(1));
    group.bench_function("bare", |b| b.iter_custom(bare_batches));
    group.bench_function("shared_validated", |b| b.iter_custom(shared_batches));
    group.finish();

    let words = submission();
    criterion.bench_function("parse/submission", |b| b.iter(|| Submission::parse(black_box(&words))));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2));
    targets = benchmark
}
criterion_main!(benches);
