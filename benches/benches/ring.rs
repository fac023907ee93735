//! The shared rings beside a bare single-producer single-consumer ring of 64-byte entries: round trips between two
//! threads, and submissions per second in batches of 32.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot be set up must stop")]

use std::{
    hint::{black_box, spin_loop},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringway_abi::descriptor::{BufferHandle, Completion, Submission};
use ringway_mem::Mapping;
use ringway_ring::{BareCursor, BareRing, ClientRings, DaemonRings, Geometry};
use ringway_types::{DataType, Operation, Reduction};

const CAPACITY: u32 = 256;
const BATCH: usize = 32;

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
    let (there, back) = (BareRing::new(), BareRing::new());
    let server = |stop: &AtomicBool| {
        let (mut input, mut output) = (BareCursor::default(), BareCursor::default());
        while !stop.load(Ordering::Relaxed) {
            there.pop(&mut input, BATCH as u64, |words| back.push(&mut output, &[words]));
        }
    };
    against(server, || {
        let (mut output, mut input) = (BareCursor::default(), BareCursor::default());
        let begun = Instant::now();
        for _ in 0..rounds {
            there.push(&mut output, &[submission()]);
            while back.pop(&mut input, BATCH as u64, |words| _ = black_box(words)) == 0 {
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
    let ring = BareRing::new();
    let server = |stop: &AtomicBool| {
        let mut cursor = BareCursor::default();
        while !stop.load(Ordering::Relaxed) {
            ring.pop(&mut cursor, BATCH as u64, |words| _ = black_box(words));
        }
    };
    against(server, || {
        let mut cursor = BareCursor::default();
        let batch = [submission(); BATCH];
        let begun = Instant::now();
        for _ in 0..count.div_ceil(BATCH as u64) {
            ring.push(&mut cursor, &batch);
        }
        while !ring.is_drained() {
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
