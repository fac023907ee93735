//! The bare kernel: the least that an operation within a node costs here. One thread for each rank, on the rank's
//! processor, does its share of the copies or reductions straight between the ranks' buffers, between two barriers;
//! nobody asks for anything, checks anything or can fail. What an operation reaches of this is its worth.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use ringway_mem::{Mapping, MemFd, Window};
use ringway_reduce::{Source, Stores, copy_with, reduce_with, swap};
use ringway_types::{DataType, Reduction};

use super::{
    pace::Pace,
    place::pin,
    report::Times,
    spec::{Measured, Spec},
};

/// Where a thread's share ends is a multiple of this, so that no two threads write to one cache line.
const LINE: usize = 64;
const PAGE: usize = 4096;
/// From this size on stores that bypass the caches are tried too.
const STREAM_FROM_BYTES: u64 = 8 << 10;

/// Memory for the buffers of all ranks, kept from one point to the next.
#[derive(Debug)]
pub(crate) struct Floor {
    ranks: usize,
    room: usize,
    memory: Mapping,
    processors: Vec<usize>,
}

/// What is measured: an operation that [`Floor::has`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) what: Measured,
    pub(crate) datatype: DataType,
    pub(crate) reduction: Reduction,
    pub(crate) root: usize,
    pub(crate) in_place: bool,
    /// Bytes of a rank's vector, or of its block where it has one for each rank.
    pub(crate) block: usize,
    /// The size as it is reported, which decides how it is timed.
    pub(crate) bytes: u64,
}

/// One piece of a thread's share.
enum Step<'a> {
    Reduce(Vec<Source<'a>>, Vec<Window<'a>>),
    Copy(Window<'a>, Vec<Window<'a>>),
    Swap(Window<'a>, Window<'a>),
}

impl Floor {
    /// For so many ranks on these processors, one after the other, with buffers of at most so many bytes: of the kind that
    /// ranks register.
    pub(crate) fn new(ranks: usize, buffer_bytes: usize, processors: Vec<usize>) -> Result<Self, String> {
        // An odd number of pages keeps buffers out of each other's cache sets.
        let room = (buffer_bytes.div_ceil(PAGE) | 1) * PAGE;
        let bytes = room * 2 * ranks;
        let (_, memory) = MemFd::region("ringway-floor", bytes as u64).map_err(|e| e.to_string())?;
        Ok(Self { ranks, room, memory, processors })
    }

    /// Whether the operation has a bare kernel here.
    pub(crate) const fn has(what: Measured) -> bool {
        use Measured as M;
        matches!(
            what,
            M::Allreduce
                | M::Reduce
                | M::Broadcast
                | M::AllGather
                | M::ReduceScatter
                | M::Gather
                | M::Scatter
                | M::AllToAll
                | M::Barrier
        )
    }

    /// Median microseconds of a call, with ordinary stores or, when that is faster, with those that bypass the caches: all of
    /// them, or those to others' buffers.
    pub(crate) fn time(&self, kernel: &Kernel, spec: &Spec) -> f64 {
        let median = |stores| Times::of(self.samples(kernel, stores, spec)).p50;
        let cached = median(Stores::Cached);
        // For little they make no difference, nor where everything that is written is also read.
        let overwrites = kernel.in_place && kernel.what == Measured::Allreduce;
        if overwrites || kernel.bytes < STREAM_FROM_BYTES {
            return cached;
        }
        cached.min(median(Stores::Streaming)).min(median(Stores::StreamingBut(0)))
    }

    /// Nanoseconds of each sample, the slowest thread's.
    fn samples(&self, kernel: &Kernel, stores: Stores, spec: &Spec) -> Vec<f64> {
        let race = Race::new(self.ranks, self.ranks > self.processors.len());
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.ranks)
                .map(|rank| {
                    let race = &race;
                    scope.spawn(move || {
                        pin(rank, &self.processors);
                        let share = Share::new(self, kernel, stores, rank);
                        race.run(rank, &share, spec, kernel.bytes)
                    })
                })
                .collect();
            let times: Vec<Vec<f64>> = threads.into_iter().filter_map(|t| t.join().ok()).collect();
            let samples = times.iter().map(Vec::len).min().unwrap_or(0);
            let slowest = |at: usize| times.iter().filter_map(|t| t.get(at)).copied().fold(0.0, f64::max);
            (0..samples).map(slowest).collect()
        })
    }
}

/// What one thread does in every call, and its rank's own buffers.
struct Share<'a> {
    steps: Vec<Step<'a>>,
    datatype: DataType,
    reduction: Reduction,
    stores: Stores,
    input: Option<Window<'a>>,
    output: Option<Window<'a>>,
    ones: [u8; PAGE],
}

/// The buffers of all ranks, as a kernel lays them out.
struct Buffers<'a> {
    floor: &'a Floor,
    in_place: bool,
}

impl<'a> Buffers<'a> {
    fn part(&self, buffer: usize, at: usize, length: usize) -> Option<Window<'a>> {
        self.floor.memory.window((buffer * self.floor.room + at) as u64, length as u64)
    }

    fn input(&self, rank: usize, at: usize, length: usize) -> Option<Window<'a>> {
        self.part(if self.in_place { 2 * rank + 1 } else { 2 * rank }, at, length)
    }

    fn output(&self, rank: usize, at: usize, length: usize) -> Option<Window<'a>> {
        self.part(2 * rank + 1, at, length)
    }
}

impl<'a> Share<'a> {
    fn new(floor: &'a Floor, kernel: &Kernel, stores: Stores, rank: usize) -> Self {
        let buffers = Buffers { floor, in_place: kernel.in_place };
        let (input, output) = own(kernel, floor.ranks, rank);
        let mut ones = [0; PAGE];
        let one = kernel.datatype.one_bits().to_le_bytes();
        let fill = |element: &mut [u8]| element.iter_mut().zip(one).for_each(|(to, from)| *to = from);
        // Sums stay ordinary numbers.
        ones.chunks_exact_mut(kernel.datatype.size()).for_each(fill);
        // In place, a gathered block lies in the output already, and a scattered result in the input.
        let within = |at: usize| if kernel.in_place { at * kernel.block } else { 0 };
        let gathers = matches!(kernel.what, Measured::AllGather);
        Self {
            steps: steps(&buffers, kernel, floor.ranks, rank).unwrap_or_default(),
            datatype: kernel.datatype,
            reduction: kernel.reduction,
            stores,
            input: buffers.input(rank, if gathers { within(rank) } else { 0 }, input),
            output: buffers.output(rank, 0, output),
            ones,
        }
    }

    fn run(&self) {
        for step in &self.steps {
            match step {
                Step::Reduce(from, to) => {
                    let _ = reduce_with(self.stores(to), self.datatype, self.reduction, from, to, None);
                }
                Step::Copy(from, to) => {
                    let _ = copy_with(self.stores(to), *from, to);
                }
                Step::Swap(a, b) => {
                    let _ = swap(*a, *b);
                }
            }
        }
    }

    /// The stores for these destinations: which of them is the thread's own, if any, is found out here.
    fn stores(&self, to: &[Window<'_>]) -> Stores {
        let Stores::StreamingBut(_) = self.stores else { return self.stores };
        let own = self.output.map_or(0..0, |own| own.as_ptr().addr()..own.as_ptr().addr() + own.length());
        let place = to.iter().position(|to| own.contains(&to.as_ptr().addr()));
        place.map_or(Stores::Streaming, Stores::StreamingBut)
    }

    /// As ranks do between calls: reads what the rank got, writes what it sends.
    fn touch(&self) {
        let mut read = [0_u8; PAGE];
        let pieces = |window: Window<'a>| {
            let length = window.length();
            (0..length).step_by(PAGE).filter_map(move |at| window.sub(at, PAGE.min(length - at)))
        };
        for piece in self.output.into_iter().flat_map(pieces) {
            piece.read(&mut read);
            black_box(&read);
        }
        for piece in self.input.into_iter().flat_map(pieces) {
            piece.write(&self.ones);
        }
    }
}

/// Bytes of a rank's input and output.
fn own(kernel: &Kernel, ranks: usize, rank: usize) -> (usize, usize) {
    use Measured as M;
    let (block, all) = (kernel.block, kernel.block * ranks);
    let at_root = |bytes: usize| if rank == kernel.root { bytes } else { 0 };
    match kernel.what {
        M::Reduce => (block, at_root(block)),
        M::Broadcast => (at_root(block), block),
        M::AllGather => (block, all),
        M::ReduceScatter => (all, block),
        M::Gather => (block, at_root(all)),
        M::Scatter => (at_root(all), block),
        M::AllToAll => (all, all),
        M::Barrier => (0, 0),
        _ => (block, block),
    }
}

/// The share of one thread of `ranks` in the operation.
fn steps<'a>(buffers: &Buffers<'a>, kernel: &Kernel, ranks: usize, rank: usize) -> Option<Vec<Step<'a>>> {
    use Measured as M;
    let (block, root, in_place) = (kernel.block, kernel.root, kernel.in_place);
    // A slice of a vector for operations whose work is divided evenly, else the rank's own block.
    let per_thread = block.div_ceil(ranks).next_multiple_of(LINE);
    let first = (rank * per_thread).min(block);
    let length = ((rank + 1) * per_thread).min(block) - first;
    let others = |of: usize| (0..ranks).filter(move |r| !in_place || *r != of);
    Some(match kernel.what {
        M::Barrier => Vec::new(),
        M::Broadcast => {
            let from = buffers.input(root, first, length)?;
            let to = others(root).map(|r| buffers.output(r, first, length)).collect::<Option<_>>()?;
            vec![Step::Copy(from, to)]
        }
        M::AllGather => {
            let own = if in_place { rank * block } else { 0 };
            let from = buffers.input(rank, own, block)?;
            let to = others(rank).map(|r| buffers.output(r, rank * block, block)).collect::<Option<_>>()?;
            vec![Step::Copy(from, to)]
        }
        M::Gather | M::Scatter if in_place && rank == root => Vec::new(),
        M::Gather => {
            let from = buffers.input(rank, 0, block)?;
            vec![Step::Copy(from, vec![buffers.output(root, rank * block, block)?])]
        }
        M::Scatter => {
            let from = buffers.input(root, rank * block, block)?;
            vec![Step::Copy(from, vec![buffers.output(rank, 0, block)?])]
        }
        M::AllToAll if in_place => exchanges(buffers, block, ranks, rank)?,
        M::AllToAll => (0..ranks)
            .map(|r| {
                let from = buffers.input(r, rank * block, block)?;
                Some(Step::Copy(from, vec![buffers.output(rank, r * block, block)?]))
            })
            .collect::<Option<_>>()?,
        M::ReduceScatter => {
            let from = (0..ranks).map(|r| buffers.input(r, rank * block, block).map(Into::into));
            let at = if in_place { rank * block } else { 0 };
            vec![Step::Reduce(from.collect::<Option<_>>()?, vec![buffers.output(rank, at, block)?])]
        }
        _ => {
            let from = (0..ranks).map(|r| buffers.input(r, first, length).map(Into::into));
            let to = (0..ranks).filter(|r| kernel.what != M::Reduce || *r == root);
            let to = to.map(|r| buffers.output(r, first, length)).collect::<Option<_>>()?;
            vec![Step::Reduce(from.collect::<Option<_>>()?, to)]
        }
    })
}

/// An all-to-all in place: every pair of ranks exchanges two blocks, each of the two threads one half of them.
fn exchanges<'a>(buffers: &Buffers<'a>, block: usize, ranks: usize, rank: usize) -> Option<Vec<Step<'a>>> {
    let middle = (block / 2).next_multiple_of(LINE).min(block);
    let mut steps = Vec::new();
    for other in (0..ranks).filter(|other| *other != rank) {
        let (at, length) = if rank < other { (0, middle) } else { (middle, block - middle) };
        let mine = buffers.output(rank, other * block + at, length)?;
        steps.push(Step::Swap(mine, buffers.output(other, rank * block + at, length)?));
    }
    Some(steps)
}

/// Alone in its cache lines, neighbouring ones that are fetched together included.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(AtomicU64);

/// The threads of one measurement.
struct Race {
    arrived: Vec<Lane>,
    /// With more threads than processors, waiting threads give theirs away.
    yields: bool,
    samples: AtomicU64,
    calls: AtomicU64,
    over: AtomicBool,
}

impl Race {
    fn new(threads: usize, yields: bool) -> Self {
        let arrived = (0..threads).map(|_| Lane::default()).collect();
        Self {
            arrived,
            yields,
            samples: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Waits for every thread: each says that it has come and looks at all the others, one hop.
    fn barrier(&self, rank: usize, turn: &mut u64) {
        *turn += 1;
        if let Some(own) = self.arrived.get(rank) {
            own.0.store(*turn, Ordering::Release);
        }
        for other in &self.arrived {
            while other.0.load(Ordering::Acquire) < *turn {
                if self.yields { thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
    }

    fn run(&self, rank: usize, share: &Share<'_>, spec: &Spec, bytes: u64) -> Vec<f64> {
        let mut turn = 0;
        let call = |turn: &mut u64| {
            self.barrier(rank, turn);
            share.run();
            self.barrier(rank, turn);
        };
        let mut each = f64::INFINITY;
        for _ in 0..spec.warmup.max(2) {
            share.touch();
            let begun = Instant::now();
            call(&mut turn);
            each = each.min(begun.elapsed().as_nanos() as f64);
        }
        let aligned = Pace::is_aligned(bytes, 1);
        let pace = Pace::of(spec, aligned, each);
        if rank == 0 {
            self.samples.store(u64::from(pace.samples), Ordering::Relaxed);
            self.calls.store(u64::from(pace.calls), Ordering::Relaxed);
        }
        self.barrier(rank, &mut turn);
        let (samples, calls) = (self.samples.load(Ordering::Relaxed), self.calls.load(Ordering::Relaxed));
        let mut times = Vec::new();
        let started = Instant::now();
        for sample in 0..samples {
            if aligned {
                share.touch();
            }
            self.barrier(rank, &mut turn);
            let begun = Instant::now();
            for _ in 0..calls {
                if !aligned {
                    share.touch();
                }
                call(&mut turn);
            }
            times.push(begun.elapsed().as_nanos() as f64 / calls.max(1) as f64);
            // The first thread decides for all.
            let looks = rank == 0 && pace.looks_after(spec, u32::try_from(sample).unwrap_or(u32::MAX));
            if looks && Pace::is_over(spec, started.elapsed().as_nanos() as f64) {
                self.over.store(true, Ordering::Relaxed);
            }
            self.barrier(rank, &mut turn);
            if self.over.load(Ordering::Relaxed) {
                break;
            }
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte that an operation must write is written once by exactly one thread, and by nobody twice.
    #[test]
    fn shares_cover_the_outputs() {
        let all = [
            Measured::Allreduce,
            Measured::Reduce,
            Measured::Broadcast,
            Measured::AllGather,
            Measured::ReduceScatter,
            Measured::Gather,
            Measured::Scatter,
            Measured::AllToAll,
        ];
        for ranks in 1..=5 {
            let block = 1000;
            let floor = Floor::new(ranks, block * ranks, vec![0]).expect("memory");
            for what in all {
                let kernel = Kernel {
                    what,
                    datatype: DataType::U8,
                    reduction: Reduction::Sum,
                    root: ranks - 1,
                    in_place: false,
                    block,
                    bytes: 0,
                };
                let buffers = Buffers { floor: &floor, in_place: false };
                let written: usize = (0..ranks)
                    .flat_map(|rank| steps(&buffers, &kernel, ranks, rank).expect("steps"))
                    .map(|step| match step {
                        Step::Reduce(_, to) | Step::Copy(_, to) => to.iter().map(Window::length).sum(),
                        Step::Swap(a, b) => a.length() + b.length(),
                    })
                    .sum();
                let expected: usize = (0..ranks).map(|rank| own(&kernel, ranks, rank).1).sum();
                assert_eq!(written, expected, "{what:?} of {ranks} ranks");
            }
        }
    }

    #[test]
    fn sums_arrive_and_times_come_back() {
        let floor = Floor::new(3, 4000, crate::perf::place::processors()).expect("memory");
        let kernel = Kernel {
            what: Measured::Allreduce,
            datatype: DataType::F32,
            reduction: Reduction::Sum,
            root: 0,
            in_place: false,
            block: 4000,
            bytes: 4000,
        };
        let times =
            floor.samples(&kernel, Stores::Streaming, &Spec { iterations: 3, warmup: 1, ..Spec::default() });
        assert_eq!(times.len(), 1);
        let buffers = Buffers { floor: &floor, in_place: false };
        let mut value = [0; 4];
        buffers.output(2, 3996, 4).expect("window").read(&mut value);
        assert_eq!(f32::from_ne_bytes(value).to_bits(), 3_f32.to_bits());
    }
}
