//! Times small and large calls between threads: what the cell itself costs, without client or daemon.
//! `cargo run --release -p ringway-cell --example cell_latency -- RANKS [OPERATION] [slices]`; the operation is allreduce,
//! reduce or broadcast; with `slices` the buffers are not registered.
#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "it measures, and may stop"
)]

use std::{hint::spin_loop, sync::Arc, thread, time::Instant};

use ringway_cell::{
    Call, CallMemory, Cell, Exchange, Member, OWN_INPUT, OWN_OUTPUT, Place, Poll, Prepared, Regions,
    STAGING_BYTES, Signature,
};
use ringway_mem::{Mapping, Window};
use ringway_types::{DataType, Operation, Reduction};

struct Arenas(Vec<Arc<Mapping>>);

impl Regions for Arenas {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        let start = if place.region == OWN_OUTPUT { MOST } else { 0 };
        self.0.get(rank as usize)?.window(start + place.offset, length)
    }
}

const MOST: u64 = 64 << 20;

/// What is measured.
#[derive(Clone, Copy)]
struct Plan {
    operation: Operation,
    /// There are more ranks than processors.
    crowded: bool,
    slices: bool,
}

fn rank(cell: Cell, rank: u32, arenas: &Arenas, plan: Plan) -> Vec<(u64, f64)> {
    let Plan { operation, crowded, slices } = plan;
    let mut member = Member::new(cell, rank);
    let mut times = Vec::new();
    let mut size = 4;
    while size <= MOST {
        let iterations = (200_000_000 / (size + 3000)).clamp(10, 30_000);
        let call = Call {
            operation,
            datatype: DataType::F32,
            reduction: operation.reduces().then_some(Reduction::Sum),
            scale: None,
            root: 0,
            count: size / 4,
            counts: &[],
            input: Some(Place { region: OWN_INPUT, offset: 0 }),
            output: Some(Place { region: OWN_OUTPUT, offset: 0 }),
            staging: slices.then_some(Place { region: 0, offset: 2 * MOST }),
        };
        let Call { datatype, reduction, count, .. } = call;
        let signature = Signature { operation, datatype, reduction, root: 0, count };
        let prepared = Prepared::new(&signature, rank, arenas.0.len() as u32);
        let mut begun = Instant::now();
        for iteration in 0..iterations + 5 {
            if iteration == 5 {
                begun = Instant::now();
            }
            touch(arenas, rank, size);
            let window = |place: Option<Place>| place.and_then(|at| arenas.window(rank, at, size));
            let polls = if crowded { 1 } else { 200 };
            let memory = CallMemory {
                input: window(call.input),
                output: window(call.output),
                places: [call.input, call.output],
                scale: 0,
            };
            let sequence = match prepared.map(|prepared| member.exchange(&prepared, &memory, polls, arenas)) {
                Some(Exchange::Done) => continue,
                Some(Exchange::Pending(sequence)) => sequence,
                None | Some(Exchange::Declined) => loop {
                    if let Some(sequence) = member.begin(&call, false, arenas) {
                        break sequence;
                    }
                    thread::yield_now();
                },
            };
            while member.poll(sequence, arenas) != Poll::Done {
                if crowded { thread::yield_now() } else { spin_loop() }
            }
        }
        times.push((size, begun.elapsed().as_nanos() as f64 / iterations as f64));
        size *= 4;
    }
    times
}

/// What an application does between operations: it reads what it got and writes what it sends.
fn touch(arenas: &Arenas, rank: u32, size: u64) {
    let arena = &arenas.0[rank as usize];
    let (input, output) = (arena.window(0, size).expect("room"), arena.window(MOST, size).expect("room"));
    let mut line = [0; 64];
    for at in (0..size as usize).step_by(64) {
        let length = line.len().min(size as usize - at);
        output.sub(at, length).expect("inside").read(&mut line);
        line.fill(1);
        input.sub(at, length).expect("inside").write(line.get(..length).unwrap_or_default());
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let slices = words.iter().any(|word| word == "slices");
    let operation = match words.iter().find(|word| *word != "slices").map(String::as_str) {
        None | Some("allreduce") => Operation::Allreduce,
        Some("reduce") => Operation::Reduce,
        Some("broadcast") => Operation::Broadcast,
        Some(other) => panic!("operation {other}: allreduce, reduce or broadcast"),
    };
    let ranks: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let crowded = ranks as usize > thread::available_parallelism().map_or(1, |n| n.get());
    let map = |bytes: u64| Arc::new(Mapping::private(bytes as usize).expect("memory"));
    let cell = Cell::attach(map(ringway_cell::bytes(ranks).expect("ranks")), ranks).expect("attach");
    let arenas = Arenas((0..ranks).map(|_| map(2 * MOST + STAGING_BYTES)).collect());
    for arena in &arenas.0 {
        arena.window(0, 2 * MOST).expect("room").write(&vec![1; 2 * MOST as usize]);
    }
    let all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|r| {
                let (cell, arenas) = (cell.clone(), &arenas);
                scope.spawn(move || rank(cell, r, arenas, Plan { operation, crowded, slices }))
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    for (size, ns) in &all[0] {
        println!(
            "{size:>10} B  {:>10.2} us  {:>7.2} GB/s touched",
            ns / 1e3,
            2.0 * ranks as f64 * *size as f64 / ns
        );
    }
}
