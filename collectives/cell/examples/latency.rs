//! Times small and large allreduces between threads: what the cell itself costs, without client or daemon.
//! `cargo run --release -p ringway-cell --example latency -- RANKS`

use std::{hint::spin_loop, sync::Arc, thread, time::Instant};

use ringway_cell::{Call, Cell, Member, Place, Poll, Regions};
use ringway_mem::{Mapping, Window};
use ringway_types::{DataType, Operation, Reduction};

struct Arenas(Vec<Arc<Mapping>>);

impl Regions for Arenas {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        self.0.get(rank as usize)?.window(place.offset, length)
    }
}

const MOST: u64 = 64 << 20;

fn rank(cell: Cell, rank: u32, arenas: &Arenas, crowded: bool) -> Vec<(u64, f64)> {
    let mut member = Member::new(cell, rank);
    let mut times = Vec::new();
    let mut size = 4;
    while size <= MOST {
        let iterations = (200_000_000 / (size + 3000)).clamp(10, 30_000);
        let call = Call {
            operation: Operation::Allreduce,
            datatype: DataType::F32,
            reduction: Some(Reduction::Sum),
            scale: None,
            root: 0,
            count: size / 4,
            counts: &[],
            input: Some(Place { region: 0, offset: 0 }),
            output: Some(Place { region: 0, offset: MOST }),
            staging: None,
        };
        let mut begun = Instant::now();
        for iteration in 0..iterations + 5 {
            if iteration == 5 {
                begun = Instant::now();
            }
            let sequence = loop {
                if let Some(sequence) = member.begin(&call, false, arenas) {
                    break sequence;
                }
                thread::yield_now();
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

fn main() {
    let ranks: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let crowded = ranks as usize > thread::available_parallelism().map_or(1, |n| n.get());
    let map = |bytes: u64| Arc::new(Mapping::private(bytes as usize).expect("memory"));
    let cell = Cell::attach(map(ringway_cell::bytes(ranks).expect("ranks")), ranks).expect("attach");
    let arenas = Arenas((0..ranks).map(|_| map(2 * MOST)).collect());
    for arena in &arenas.0 {
        arena.window(0, 2 * MOST).expect("room").write(&vec![1; 2 * MOST as usize]);
    }
    let all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|r| {
                let (cell, arenas) = (cell.clone(), &arenas);
                scope.spawn(move || rank(cell, r, arenas, crowded))
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
