//! The bits that `order = "strict"` and `order = "stable"` promise come out of engines over a simulated network.
//!
//! Values are such that sums and products depend on the order and the association in which they are combined. What must come
//! out is reckoned by the scalar oracle of `ringway_reduce`, which widens half types and rounds them once for each call:
//! - under `strict`, one call for the inputs of each node's ranks, ascending, and one for what these gave, nodes ascending,
//!   in which an average is divided; on one node a single call. So half types are rounded once on each node and once more
//!   over all of them. Of a scan a part is that of consecutive ranks on one node.
//! - under `stable`, one call for each combination that the verifier found the plan to make.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::oracle::INPUT;
use common::{Others, Setup, World};
use ringway_engine::{Collective, RegionId, Request};
use ringway_mem::Mapping;
use ringway_plan::verify::{Counts, Order, Scenario, Term, associations, enumerate};
use ringway_plan::{Algorithm, Call, Layout, Preference, Source, Tuning};
use ringway_reduce::Scalar;
use ringway_reduce::oracle::reduce;
use ringway_sim::SimConfig;
use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::{Access, Device};

const FLOATS: [DataType; 6] =
    [DataType::F32, DataType::F16, DataType::Bf16, DataType::F64, DataType::F8E4M3, DataType::F8E5M2];
const SUMS: [Reduction; 4] = [Reduction::Sum, Reduction::Avg, Reduction::PremulSum, Reduction::Prod];

fn reducing() -> impl Iterator<Item = Operation> {
    Operation::ALL.iter().copied().filter(|operation| operation.reduces())
}

/// Bits that look random.
fn mixed(rank: u32, element: u64) -> u64 {
    let mut bits = (u64::from(rank) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (element + 7);
    for _ in 0..2 {
        bits = (bits ^ (bits >> 29)).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    }
    bits ^ (bits >> 32)
}

/// A reduction of all ranks. Each rank's values depend on rank, element and type only, not on how many there are.
#[derive(Debug, Clone, Copy)]
struct Job {
    operation: Operation,
    datatype: DataType,
    reduction: Reduction,
    /// Elements, or about so many of each rank's block.
    count: u64,
    root: u32,
    in_place: bool,
}

impl Job {
    fn new(operation: Operation, datatype: DataType, reduction: Reduction, count: u64) -> Self {
        Self { operation, datatype, reduction, count, root: 0, in_place: false }
    }

    /// One element: of a float a sign, all of the mantissa, and one of few exponents, so that nothing overflows.
    fn value(&self, rank: u32, element: u64) -> Vec<u8> {
        let (mixed, size) = (mixed(rank, element), self.datatype.size());
        let exponents = if self.reduction == Reduction::Prod { 2 } else { 8 };
        let exponent = (mixed >> 58) % exponents;
        // Bits of the mantissa, and the exponent of a half.
        let bits = match self.datatype {
            DataType::F16 => Some((10, 15)),
            DataType::Bf16 => Some((7, 127)),
            DataType::F8E4M3 => Some((3, 7)),
            DataType::F8E5M2 => Some((2, 15)),
            DataType::F32 => Some((23, 127)),
            DataType::F64 => Some((52, 1023)),
            _ => None,
        };
        let bits = bits.map_or(mixed, |(mantissa, one)| {
            let sign = (mixed >> 57 & 1) << (8 * size - 1);
            sign | (one + exponent - exponents / 2) << mantissa | mixed & ((1 << mantissa) - 1)
        });
        bits.to_le_bytes()[..size].to_vec()
    }

    fn scale(&self, rank: u32) -> Option<Scalar> {
        let factor = if self.datatype.is_float() {
            Scalar::float(1.0 + f64::from(rank) / 3.0)
        } else {
            Scalar::unsigned(u64::from(rank) + 2)
        };
        (self.reduction == Reduction::PremulSum).then_some(factor)
    }

    /// Elements of each rank's block of a reduce_scatter.
    fn blocks(&self, ranks: u32) -> Vec<u64> {
        let uneven = |rank| (u64::from(rank) * 5 + 1) * self.count % (2 * self.count + 1);
        let one = |rank| if self.operation.has_counts() { uneven(rank) } else { self.count };
        (0..ranks).map(one).collect()
    }

    fn is_scatter(&self) -> bool {
        matches!(self.operation, Operation::ReduceScatter | Operation::ReduceScatterV)
    }

    /// Elements of a rank's input, and the part of all elements that its output is of, if it has one.
    fn parts(&self, ranks: u32, rank: u32) -> (u64, Option<core::ops::Range<u64>>) {
        if self.is_scatter() {
            let blocks = self.blocks(ranks);
            let start: u64 = blocks[..rank as usize].iter().sum();
            return (blocks.iter().sum(), Some(start..start + blocks[rank as usize]));
        }
        let has = self.operation != Operation::Reduce || rank == self.root;
        (self.count, has.then_some(0..self.count))
    }

    fn input(&self, ranks: u32, rank: u32) -> Vec<u8> {
        (0..self.parts(ranks, rank).0).flat_map(|element| self.value(rank, element)).collect()
    }

    /// Runs it; what every rank's output holds.
    fn run(&self, world: &mut World) -> Vec<Vec<u8>> {
        let (ranks, size) = (world.layout.ranks(), self.datatype.size() as u64);
        let counts = if self.operation.has_counts() { self.blocks(ranks) } else { Vec::new() };
        let mut calls = Vec::new();
        for rank in 0..ranks {
            let (input, output) = self.parts(ranks, rank);
            let at = match (self.in_place, self.is_scatter(), &output) {
                (true, true, Some(part)) => INPUT + part.start * size,
                (true, ..) => INPUT,
                _ => (INPUT + input * size).next_multiple_of(64) + 8,
            };
            let output = output.map(|part| (at, (part.end - part.start) * size));
            if let Some((at, length)) = output {
                world.write(rank, at, &vec![0xEE; length as usize]);
            }
            world.write(rank, INPUT, &self.input(ranks, rank));
            let call = Collective {
                operation: self.operation,
                datatype: self.datatype,
                reduction: Some(self.reduction),
                scale: self.scale(rank).map(Scalar::to_bytes),
                root: self.root,
                count: if self.operation.has_counts() { 0 } else { self.count },
                counts: &counts,
                input: Some(world.buffer(rank, INPUT, input * size)),
                output: output.map(|(at, length)| world.buffer(rank, at, length)),
            };
            calls.push((rank, world.submit(rank, Request::Collective(call)), output));
        }
        for (rank, token, _) in &calls {
            assert_eq!(world.wait(*rank, *token), Ok((*rank, 0)), "{self:?}");
        }
        let read = |(rank, _, output): &(u32, u32, Option<(u64, u64)>)| match output {
            // Nobody says what rank 0 has of an exclusive scan.
            Some((at, length)) if self.operation != Operation::Exscan || *rank > 0 => {
                world.read(*rank, *at, *length)
            }
            _ => Vec::new(),
        };
        calls.iter().map(read).collect()
    }

    /// One combination by the oracle: of partial results, then of ranks' inputs. `finish` says of how many ranks it is.
    fn combined(&self, partials: &[Vec<u8>], inputs: &[(u32, Vec<u8>)], finish: Option<u32>) -> Vec<u8> {
        let partials = partials.iter().map(|bytes| (bytes.as_slice(), None));
        let inputs = inputs.iter().map(|(rank, bytes)| (bytes.as_slice(), self.scale(*rank)));
        let divisor = finish.filter(|_| self.reduction == Reduction::Avg);
        reduce(self.datatype, self.reduction, &partials.chain(inputs).collect::<Vec<_>>(), divisor)
    }

    /// What strict promises of every rank's output.
    fn strict(&self, layout: &Layout) -> Vec<Vec<u8>> {
        let ranks = layout.ranks();
        let inputs: Vec<(u32, Vec<u8>)> = (0..ranks).map(|rank| (rank, self.input(ranks, rank))).collect();
        if matches!(self.operation, Operation::Scan | Operation::Exscan) {
            return self.strict_scan(layout, &inputs);
        }
        let of = |node| layout.local(node).iter().map(|rank| inputs[*rank as usize].clone()).collect();
        let of_nodes: Vec<Vec<(u32, Vec<u8>)>> = (0..layout.nodes()).map(of).collect();
        let all = match of_nodes.as_slice() {
            [one] => self.combined(&[], one, Some(ranks)),
            several => {
                let parts: Vec<_> = several.iter().map(|part| self.combined(&[], part, None)).collect();
                self.combined(&parts, &[], Some(ranks))
            }
        };
        let size = self.datatype.size();
        let part = |rank| {
            let part = self.parts(ranks, rank).1.unwrap_or(0..0);
            all[part.start as usize * size..part.end as usize * size].to_vec()
        };
        (0..ranks).map(part).collect()
    }

    fn strict_scan(&self, layout: &Layout, inputs: &[(u32, Vec<u8>)]) -> Vec<Vec<u8>> {
        let runs = layout.runs();
        let within = |run: usize| {
            let (first, count) = (runs[run].first_rank, runs[run].count);
            inputs[first as usize..(first + count) as usize].to_vec()
        };
        let mut outputs = Vec::new();
        // What comes before the last run on each node, and which run that was.
        let mut last: BTreeMap<u32, (usize, Vec<Vec<u8>>)> = BTreeMap::new();
        for (at, run) in runs.iter().enumerate() {
            let (from, mut parts) = last.remove(&run.node).unwrap_or_default();
            parts.extend((from..at).map(|run| self.combined(&[], &within(run), None)));
            let before: Vec<_> =
                (!parts.is_empty()).then(|| self.combined(&parts, &[], None)).into_iter().collect();
            for rank in run.first_rank..run.first_rank + run.count {
                let end = if self.operation == Operation::Scan { rank + 1 } else { rank };
                let own = &inputs[run.first_rank as usize..end as usize];
                outputs.push(if end == 0 { Vec::new() } else { self.combined(&before, own, Some(end)) });
            }
            last.insert(run.node, (at, before));
        }
        outputs
    }

    /// What the combinations that an algorithm makes give, as the verifier sees them.
    fn by_plan(&self, layout: &Layout, algorithm: Algorithm, tuning: &Tuning) -> Vec<Vec<u8>> {
        let ranks = layout.ranks();
        let (element, v) = (self.datatype.size() as u32, self.operation.has_counts());
        let call = Call {
            operation: self.operation,
            element,
            count: if v { 0 } else { self.count },
            root: self.root,
        };
        let counts = if v { Counts::PerRank(self.blocks(ranks)) } else { Counts::Uniform };
        let in_place = vec![self.in_place; ranks as usize];
        let scenario = Scenario { layout: layout.clone(), call, counts, in_place };
        let programs = enumerate(&scenario, Some(algorithm), tuning).unwrap();
        let found = associations(&scenario, &programs, Order::Forward).unwrap();
        // The ranks of each term, and its value.
        let mut values: Vec<(u32, Vec<u8>)> = Vec::new();
        for term in found.terms() {
            values.push(match term {
                Term::Input { rank, element } => (1, self.value(*rank, *element)),
                Term::Combined { operands, finish } => {
                    let ranks = operands.iter().map(|at| values[*at].0).sum();
                    let operand = |at: &usize| match found.terms()[*at] {
                        Term::Input { rank, .. } => (values[*at].1.as_slice(), self.scale(rank)),
                        Term::Combined { .. } => (values[*at].1.as_slice(), None),
                    };
                    let operands: Vec<_> = operands.iter().map(operand).collect();
                    let divisor = (*finish && self.reduction == Reduction::Avg).then_some(ranks);
                    (ranks, reduce(self.datatype, self.reduction, &operands, divisor))
                }
            });
        }
        let element = |at: &Option<usize>| values[at.expect("written")].1.clone();
        (0..ranks).map(|rank| found.output(rank).iter().flat_map(element).collect()).collect()
    }
}

/// The outputs are these; or the first difference is named.
#[track_caller]
fn same(got: &[Vec<u8>], expected: &[Vec<u8>], what: &dyn core::fmt::Debug) {
    assert_eq!(got.len(), expected.len(), "{what:?}");
    for (rank, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{what:?} rank {rank}");
        let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{what:?}: the first byte of rank {rank} that is wrong");
    }
}

/// A world that asks for an algorithm.
fn world(layout: &[u32], algorithm: Algorithm, tuning: Tuning, seed: u64) -> World {
    let network = SimConfig { latency_ns: 2_000, jitter_ns: 20_000, seed, ..SimConfig::default() };
    let preference = Preference::everywhere(algorithm);
    World::new(&Setup { network, preference, tuning, region: 1 << 20, ..Setup::new(layout) })
}

/// The same with others that do local work, in any order.
fn busy_world(layout: &[u32], algorithm: Algorithm, tuning: Tuning, seed: u64) -> World {
    let network = SimConfig { latency_ns: 2_000, jitter_ns: 20_000, seed, ..SimConfig::default() };
    let preference = Preference::everywhere(algorithm);
    let others = Some(Others::new(seed));
    let setup = Setup { network, preference, tuning, others, region: 1 << 20, ..Setup::new(layout) };
    let mut world = World::new(&setup);
    // Pieces are left to others where a communicator has scratch memory of its own.
    for node in &mut world.nodes {
        let bytes = 256 << 10;
        let mapping = Arc::new(Mapping::private(bytes as usize).unwrap());
        let region = RegionId(node.memory.regions.len() as u32);
        let keys = node.device.as_mut().unwrap().register(mapping.clone(), Access::ALL).unwrap();
        node.memory.regions.push(mapping);
        node.engine.add_region(region, keys.local);
        node.engine.set_scratch(node.ids[0], Some((region, bytes)));
    }
    world
}

fn ran(world: &World) -> Option<Algorithm> {
    match world.nodes[0].engine.status(world.nodes[0].ids[0]).unwrap().algorithm? {
        Source::Algorithm(algorithm) => Some(algorithm),
        Source::Listed(_) => None,
    }
}

/// Whether an algorithm does an operation on a layout.
fn offers(algorithm: Algorithm, operation: Operation, layout: &Layout) -> bool {
    let call = Call { operation, element: 4, count: 1, root: 0 };
    let counts = if operation.has_counts() {
        Counts::PerRank(vec![1; layout.ranks() as usize])
    } else {
        Counts::Uniform
    };
    Scenario { layout: layout.clone(), call, counts, in_place: Vec::new() }.offers(algorithm)
}

const LAYOUTS: [&[u32]; 6] =
    [&[0], &[0, 0, 0, 0], &[0, 1], &[0, 0, 1, 2], &[0, 0, 1, 2, 2, 2, 1], &[0, 1, 2, 3, 3, 1, 0]];

fn tunings() -> [Tuning; 3] {
    let with = |chunk_bytes, depth| Tuning { chunk_bytes, depth, ..Tuning::default() };
    [with(512, 1), with(4 << 10, 3), Tuning::default()]
}

#[test]
fn strict_bits_are_those_of_the_oracle_whatever_the_size_chunk_and_algorithm() {
    for layout in LAYOUTS {
        let known = Layout::new(layout).unwrap();
        for (i, &algorithm) in Algorithm::ALL.iter().enumerate() {
            let strict = |it: &Operation| algorithm.is_strict(*it) && offers(algorithm, *it, &known);
            let operations: Vec<_> = reducing().filter(strict).collect();
            if operations.is_empty() {
                continue;
            }
            for (j, tuning) in tunings().into_iter().enumerate() {
                let mut world = world(layout, algorithm, tuning, j as u64 + 1);
                for (k, &operation) in operations.iter().enumerate() {
                    for (l, count) in [1, 7, 1_500].into_iter().enumerate() {
                        let turn = i + j + k + l;
                        let root = turn as u32 % known.ranks();
                        for datatype in FLOATS {
                            let job = Job::new(operation, datatype, SUMS[turn % 4], count);
                            let job = Job { root, in_place: turn % 3 == 0, ..job };
                            let got = job.run(&mut world);
                            same(&got, &job.strict(&known), &(algorithm, job, layout));
                            assert_eq!(ran(&world), Some(algorithm));
                        }
                    }
                }
            }
        }
    }
}

/// What a short vector gives is how a long one begins, whatever cuts them into chunks, with every strict algorithm.
#[test]
fn strict_bits_of_leading_elements_are_the_same_in_vectors_of_all_sizes() {
    for layout in [&[0, 0, 1, 2][..], &[0, 1, 2, 3, 3, 1, 0]] {
        for datatype in FLOATS {
            for operation in [Operation::Allreduce, Operation::Scan] {
                let mut longest: Option<Vec<Vec<u8>>> = None;
                for count in [40_000, 9_999, 64, 3, 1] {
                    let strict = |it: &Algorithm| it.is_strict(operation) && *it != Algorithm::Local;
                    for algorithm in Algorithm::ALL.iter().copied().filter(strict) {
                        let tuning = tunings()[count as usize % 3];
                        let mut world = world(layout, algorithm, tuning, count);
                        let job = Job::new(operation, datatype, Reduction::Sum, count);
                        let got = job.run(&mut world);
                        let longest = longest.get_or_insert_with(|| got.clone());
                        let begins: Vec<_> =
                            longest.iter().zip(&got).map(|(all, got)| all[..got.len()].to_vec()).collect();
                        same(&got, &begins, &(algorithm, job));
                    }
                }
            }
        }
    }
}

/// The oracle is one that notices: the other order, or the other association, gives other bits.
#[test]
fn values_are_such_that_order_and_association_matter() {
    let whole = |datatype, layout: &[u32]| {
        let job = Job::new(Operation::Allreduce, datatype, Reduction::Sum, 500);
        job.strict(&Layout::new(layout).unwrap()).swap_remove(0)
    };
    let differing = |datatype: DataType, a: &[u8], b: &[u8]| {
        let size = datatype.size();
        a.chunks(size).zip(b.chunks(size)).filter(|(a, b)| a != b).count()
    };
    for datatype in FLOATS {
        let of = [&[0, 1, 2, 3][..], &[0, 0, 1, 1], &[0, 1, 0, 1]].map(|layout| whole(datatype, layout));
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            let count = differing(datatype, &of[a], &of[b]);
            assert!(count > 50, "{datatype}: only {count} of 500 differ between layouts {a} and {b}");
        }
    }
    // Left to right is left to right: so `f32` is the same wherever only the first node has several ranks. Narrower types are not
    // where those are rounded once more; a rank alone on its node is not.
    for datatype in FLOATS {
        let of = [&[0, 0, 0, 0][..], &[0, 1, 2, 3], &[0, 0, 0, 1]].map(|layout| whole(datatype, layout));
        assert_eq!(differing(datatype, &of[0], &of[1]), 0, "{datatype}");
        let is_widened = datatype.size() < 4;
        assert_eq!(differing(datatype, &of[0], &of[2]) > 0, is_widened, "{datatype}");
    }
}

/// Where no association matters the layout does not either: integers, least and greatest; and `f32` where only the first node
/// has several ranks.
#[test]
fn strict_bits_are_the_same_across_layouts_as_far_as_that_can_be() {
    let layouts: [&[u32]; 4] = [&[0, 0, 0, 0], &[0, 1, 2, 3], &[0, 0, 0, 1], &[0, 1, 0, 1]];
    let pairs = [
        (DataType::I32, Reduction::Sum, 4),
        (DataType::U8, Reduction::Prod, 4),
        (DataType::F16, Reduction::Max, 4),
        (DataType::F32, Reduction::Min, 4),
        (DataType::F32, Reduction::Sum, 3),
        (DataType::F64, Reduction::Prod, 3),
    ];
    for (datatype, reduction, layouts_alike) in pairs {
        for operation in reducing() {
            let mut first: Option<Vec<Vec<u8>>> = None;
            for layout in &layouts[..layouts_alike] {
                let one = layout.iter().all(|node| *node == 0);
                let algorithm = if one { Algorithm::Local } else { Algorithm::Direct };
                let mut world = world(layout, algorithm, tunings()[1], 3);
                let job = Job::new(operation, datatype, reduction, 700);
                let got = job.run(&mut world);
                same(&got, first.get_or_insert_with(|| got.clone()), &(job, layout));
            }
        }
    }
}

/// Every algorithm gives every rank the same bits in every run, however messages and local work are delayed: those of the
/// combinations that the verifier finds in its plan.
#[test]
fn stable_bits_do_not_depend_on_timing() {
    let layouts: [&[u32]; 3] = [&[0, 0, 1], &[0, 1, 2, 2, 1], &[0, 1, 2, 3, 3, 1, 0]];
    let tuning = Tuning { chunk_bytes: 1 << 10, depth: 2, ..Tuning::default() };
    for layout in layouts {
        let known = Layout::new(layout).unwrap();
        for (i, &algorithm) in Algorithm::ALL.iter().enumerate() {
            let operations: Vec<_> = reducing().filter(|it| offers(algorithm, *it, &known)).collect();
            if operations.is_empty() {
                continue;
            }
            let mut worlds = vec![world(layout, algorithm, tuning, 11)];
            worlds.extend([12, 13].map(|seed| busy_world(layout, algorithm, tuning, seed)));
            for (j, &operation) in operations.iter().enumerate() {
                let (datatype, reduction) = (FLOATS[(i + j) % 3], SUMS[(i + j / 2) % 4]);
                let root = (i + j) as u32 % known.ranks();
                let job = Job { root, ..Job::new(operation, datatype, reduction, 600) };
                let expected = job.by_plan(&known, algorithm, &tuning);
                for world in &mut worlds {
                    let got = job.run(world);
                    if operation == Operation::Allreduce {
                        assert!(got.iter().all(|output| *output == got[0]), "{algorithm} {job:?}");
                    }
                    same(&got, &expected, &(algorithm, job, layout));
                    assert_eq!(ran(world), Some(algorithm));
                }
            }
        }
    }
}
