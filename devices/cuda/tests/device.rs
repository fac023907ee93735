//! Kernels on the GPU of this machine, against the oracle. Left out where there is none: the stand-in's tests run the same
//! kernels in an interpreter.
#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test panics when something is wrong, and says what it did not try"
)]

use std::{sync::Arc, time::Instant};

use ringway_cuda::{Bytes, Direction, Gpu, Kernel, Mark, Memory, Operand, Stream, Work, Worker, count};
use ringway_reduce::{Scalar, oracle};
use ringway_types::{DataType, Reduction};

/// Elements of each operand: several vectors of 16 bytes, and some that are left.
const ELEMENTS: usize = 1003;
/// Bytes from the start of one operand to that of the next.
const STRIDE: u64 = 16 << 10;

/// The GPU, if there is one.
fn gpu() -> Option<Arc<Gpu>> {
    if count().is_ok_and(|count| count > 0) {
        return Some(Gpu::open(0).expect("the GPU"));
    }
    eprintln!("not tried: this machine has no GPU");
    None
}

struct Bench {
    worker: Worker,
    stream: Stream,
    memory: Memory,
    seed: u64,
}

impl Bench {
    fn new(gpu: &Arc<Gpu>) -> Self {
        gpu.settle_in().expect("a context");
        let (memory, _) = Memory::allocate(gpu, 64 * STRIDE).expect("memory");
        let worker = Worker::new(gpu).expect("a worker");
        Self { worker, stream: Stream::new(gpu).expect("a stream"), memory, seed: 7 }
    }

    /// The bytes of an operand that begins so many elements behind a multiple of 16 bytes.
    fn place(&self, operand: u64, bytes: u64, shift: u64) -> Bytes {
        self.memory.bytes().part(operand * STRIDE + shift, bytes).expect("inside")
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 11 ^ self.seed << 40
    }

    /// Any bits, and every second time those of corner cases or of small numbers.
    fn values(&mut self, datatype: DataType) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..ELEMENTS {
            let random = self.random();
            let bits = match random % 4 {
                0 => special(datatype, random >> 8),
                1 => small(datatype, (random >> 8) % 9),
                _ => random >> 8,
            };
            bytes.extend_from_slice(&bits.to_le_bytes()[..datatype.size()]);
        }
        bytes
    }

    fn run(&mut self, work: &Work<'_>) {
        if let Some(spec) = self.worker.lacks(work) {
            let kernel = Kernel::load(self.worker.gpu(), &spec).expect("a kernel");
            self.worker.install(spec, kernel);
        }
        let mark = self.worker.begin(work).expect("begun");
        self.worker.flush().expect("flushed");
        self.wait(mark);
    }

    fn wait(&self, mark: Mark) {
        let begun = Instant::now();
        while !self.worker.is_reached(mark) {
            self.worker.check().expect("the GPU works");
            assert!(begun.elapsed().as_secs() < 30, "it does not end");
        }
    }

    fn put(&self, bytes: &[u8], place: Bytes) {
        self.stream.upload(bytes, place).expect("upload");
    }

    fn get(&self, place: Bytes) -> Vec<u8> {
        let mut bytes = vec![0; place.length() as usize];
        self.stream.download(place, &mut bytes).expect("download");
        bytes
    }
}

/// Bits at which comparisons and conversions have their corners: zeros, ones, the largest, infinities, NaNs, subnormals.
fn special(datatype: DataType, which: u64) -> u64 {
    let (exponent, fraction) = match datatype {
        DataType::F8E4M3 => (4, 3),
        DataType::F8E5M2 => (5, 2),
        DataType::F16 => (5, 10),
        DataType::Bf16 => (8, 7),
        DataType::F32 => (8, 23),
        DataType::F64 => (11, 52),
        _ => {
            return [0, 1, u64::MAX, 1 << 7, 1 << 31, (1 << 31) - 1, 1 << 63, (1 << 63) - 1]
                [which as usize % 8];
        }
    };
    let infinity = ((1_u64 << exponent) - 1) << fraction;
    let one = ((1_u64 << (exponent - 1)) - 1) << fraction;
    let sign = 1_u64 << (exponent + fraction);
    let all = [
        0,
        1,
        one,
        one + 1,
        infinity,
        infinity - 1,
        infinity + 1,
        infinity | (1 << (fraction - 1)),
        (1 << fraction) - 1,
    ];
    all[which as usize % all.len()] | (sign * (which >> 32 & 1))
}

/// The bits of a small number.
fn small(datatype: DataType, value: u64) -> u64 {
    let float = value as f32 - 4.0;
    match datatype {
        DataType::F32 => float.to_bits().into(),
        DataType::F64 => f64::from(float).to_bits(),
        DataType::Bf16 => (float.to_bits() >> 16).into(),
        DataType::F8E4M3 => ringway_types::F8E4M3::from_f32(float).to_bits().into(),
        DataType::F8E5M2 => ringway_types::F8E5M2::from_f32(float).to_bits().into(),
        _ => value,
    }
}

fn factor(datatype: DataType, random: u64) -> Scalar {
    if datatype.is_float() {
        Scalar::float((random % 7) as f64 / 2.0 - 1.0)
    } else {
        Scalar::unsigned(random)
    }
}

fn is_sum(reduction: Reduction) -> bool {
    matches!(reduction, Reduction::Sum | Reduction::Avg | Reduction::PremulSum)
}

fn pairs() -> impl Iterator<Item = (DataType, Reduction)> {
    let all = DataType::ALL.iter().flat_map(|t| Reduction::ALL.iter().map(move |r| (*t, *r)));
    all.filter(|(datatype, reduction)| datatype.supports(*reduction))
}

#[track_caller]
fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(at.is_none() && found.len() == expected.len(), "{what}: byte {at:?} differs");
}

#[test]
fn every_reduction_is_what_the_oracle_says() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    for (datatype, reduction) in pairs() {
        let size = datatype.size() as u64;
        let bytes = ELEMENTS as u64 * size;
        // Aligned for vectors or not, out of place and in place.
        for (sources, shift, in_place) in [(1, 0, false), (2, 0, true), (3, size, false), (9, 0, false)] {
            let scaled = is_sum(reduction) && sources == 3;
            let divisor = (is_sum(reduction) && sources != 2).then_some(sources as u32 + 1);
            let inputs: Vec<_> = (0..sources).map(|_| bench.values(datatype)).collect();
            let scales: Vec<_> = inputs
                .iter()
                .map(|_| bench.random())
                .map(|random| scaled.then(|| factor(datatype, random)))
                .collect();
            let places: Vec<_> = (0..sources).map(|source| bench.place(source, bytes, shift)).collect();
            for (input, place) in inputs.iter().zip(&places) {
                bench.put(input, *place);
            }
            let apart: Vec<_> = (30..32).map(|operand| bench.place(operand, bytes, shift)).collect();
            let destinations = if in_place { places.clone() } else { apart };
            let operands: Vec<_> = places
                .iter()
                .zip(&scales)
                .map(|(bytes, scale)| Operand { bytes: *bytes, scale: scale.map(Scalar::to_bytes) })
                .collect();
            bench.run(&Work::Reduce {
                datatype,
                reduction,
                sources: &operands,
                destinations: &destinations,
                divisor,
            });
            let given: Vec<_> =
                inputs.iter().zip(&scales).map(|(input, scale)| (input.as_slice(), *scale)).collect();
            let expected = oracle::reduce(datatype, reduction, &given, divisor);
            for place in destinations {
                assert_same(&bench.get(place), &expected, &format!("{datatype} {reduction} of {sources}"));
            }
        }
    }
}

#[test]
fn every_scan_is_what_the_oracle_says() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    for (datatype, reduction) in pairs() {
        let bytes = (ELEMENTS * datatype.size()) as u64;
        for (inclusive, with_carry) in [(true, false), (false, true)] {
            let all: Vec<_> = (0..4).map(|_| bench.values(datatype)).collect();
            let places: Vec<_> = (0..4).map(|operand| bench.place(operand, bytes, 0)).collect();
            let outputs: Vec<_> = (30..33).map(|operand| bench.place(operand, bytes, 0)).collect();
            for (values, place) in all.iter().zip(&places) {
                bench.put(values, *place);
            }
            let (carry, before) = if with_carry { (Some(places[3]), 2) } else { (None, 0) };
            let inputs: Vec<_> =
                places.iter().take(3).map(|bytes| Operand { bytes: *bytes, scale: None }).collect();
            let (inputs, outputs_) = (inputs.as_slice(), outputs.as_slice());
            bench.run(&Work::Scan {
                datatype,
                reduction,
                carry,
                before,
                inputs,
                outputs: outputs_,
                inclusive,
            });
            let given: Vec<_> = all.iter().take(3).map(|values| (values.as_slice(), None)).collect();
            let carried = with_carry.then(|| all[3].as_slice());
            let (expected, _) = oracle::scan(datatype, reduction, carried, &given, inclusive, before);
            for (place, expected) in outputs.into_iter().zip(expected) {
                let what = format!("{datatype} {reduction} inclusive {inclusive}");
                assert_same(&bench.get(place), &expected.expect("a carry or own values"), &what);
            }
        }
    }
}

#[test]
fn copies_and_swaps_move_what_they_are_told_to() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    let bytes = ELEMENTS as u64;
    let [one, two] = [bench.values(DataType::U8), bench.values(DataType::U8)];
    let places: Vec<_> = (0..5).map(|operand| bench.place(operand, bytes, 3)).collect();
    bench.put(&one, places[0]);
    bench.put(&two, places[1]);
    bench.run(&Work::Swap { a: places[0], b: places[1] });
    assert_same(&bench.get(places[0]), &two, "swapped");
    assert_same(&bench.get(places[1]), &one, "swapped");
    for (source, destinations) in [(0, &places[2..3]), (1, &places[2..5])] {
        bench.run(&Work::Copy { source: places[source], destinations, direction: Direction::Within });
        let expected = if source == 0 { &two } else { &one };
        destinations.iter().for_each(|place| assert_same(&bench.get(*place), expected, "copied"));
    }
}
