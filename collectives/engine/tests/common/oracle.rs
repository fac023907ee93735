//! What every collective must give, computed from all inputs at once.

use ringway_engine::{Collective, Request};
use ringway_types::{DataType, Operation, Reduction};

use super::World;

/// Where inputs and outputs are in every rank's region.
pub(crate) const INPUT: u64 = 4096;

/// A collective on all ranks.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) operation: Operation,
    pub(crate) datatype: DataType,
    pub(crate) reduction: Reduction,
    pub(crate) root: u32,
    pub(crate) count: u64,
    /// For v-operations: rank `i` to or of rank `j`; row 0 alone unless all_to_all_v.
    pub(crate) counts: Vec<Vec<u64>>,
    pub(crate) in_place: bool,
    pub(crate) seed: u64,
}

impl Job {
    pub(crate) fn new(operation: Operation, count: u64, ranks: u32, seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let rows = if operation == Operation::AllToAllV { ranks } else { 1 };
        let counts = (0..rows)
            .map(|_| (0..ranks).map(|_| if next() % 4 == 0 { 0 } else { next() % (2 * count + 1) }).collect())
            .collect();
        Self {
            operation,
            datatype: DataType::U32,
            reduction: Reduction::Sum,
            root: (next() % u64::from(ranks)) as u32,
            count,
            counts,
            in_place: false,
            seed,
        }
    }

    fn element(&self) -> u64 {
        self.datatype.size() as u64
    }

    /// Elements of each rank's block.
    fn blocks(&self, ranks: u32) -> Vec<u64> {
        if self.operation.has_counts() { self.counts[0].clone() } else { vec![self.count; ranks as usize] }
    }

    fn total(&self, ranks: u32) -> u64 {
        self.blocks(ranks).iter().sum()
    }

    fn start(&self, ranks: u32, rank: u32) -> u64 {
        self.blocks(ranks)[..rank as usize].iter().sum()
    }

    /// Elements that `from` sends to `to`.
    fn pair(&self, from: u32, to: u32) -> u64 {
        if self.operation == Operation::AllToAllV {
            self.counts[from as usize][to as usize]
        } else {
            self.count
        }
    }

    /// Elements of a rank's input and output; `None` where it has none.
    pub(crate) fn lengths(&self, ranks: u32, rank: u32) -> (Option<u64>, Option<u64>) {
        use Operation as O;
        let root = rank == self.root;
        let own = self.blocks(ranks)[rank as usize];
        let total = self.total(ranks);
        match self.operation {
            O::Allreduce | O::Scan | O::Exscan => (Some(self.count), Some(self.count)),
            O::Reduce => (Some(self.count), root.then_some(self.count)),
            O::Broadcast => (root.then_some(self.count), Some(self.count)),
            O::AllGather | O::AllGatherV => (Some(own), Some(total)),
            O::ReduceScatter | O::ReduceScatterV => (Some(total), Some(own)),
            O::Gather | O::GatherV => (Some(own), root.then_some(total)),
            O::Scatter | O::ScatterV => (root.then_some(total), Some(own)),
            O::AllToAll | O::AllToAllV => (
                Some((0..ranks).map(|to| self.pair(rank, to)).sum()),
                Some((0..ranks).map(|from| self.pair(from, rank)).sum()),
            ),
            O::Barrier | O::Send | O::Receive => (None, None),
        }
    }

    /// What this rank's call says of counts.
    pub(crate) fn call_counts(&self, ranks: u32, rank: u32) -> Vec<u64> {
        use Operation as O;
        match self.operation {
            O::AllGatherV | O::ReduceScatterV => self.counts[0].clone(),
            O::GatherV | O::ScatterV if rank == self.root => self.counts[0].clone(),
            O::GatherV | O::ScatterV => vec![self.counts[0][rank as usize]],
            O::AllToAllV => {
                let sends = (0..ranks).map(|to| self.pair(rank, to));
                sends.chain((0..ranks).map(|from| self.pair(from, rank))).collect()
            }
            _ => Vec::new(),
        }
    }

    fn input_bytes(&self, ranks: u32, rank: u32) -> Vec<u8> {
        let elements = self.lengths(ranks, rank).0.unwrap_or(0);
        let length = elements * self.element();
        let mut state = self.seed.wrapping_mul(31).wrapping_add(u64::from(rank) * 7919 + 1);
        let mut bytes = Vec::with_capacity(length as usize);
        for i in 0..elements {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match self.datatype {
                // Small whole numbers, so that sums are exact in any order.
                DataType::F32 => bytes.extend(((state >> 60) as f32).to_le_bytes()),
                DataType::F64 => bytes.extend(((state >> 58) as f64).to_le_bytes()),
                _ => bytes.extend((0..self.element()).map(|b| (state >> (24 + 8 * (b % 5))) as u8 ^ i as u8)),
            }
        }
        bytes
    }

    fn combine(&self, inputs: &[Vec<u8>], from: u64, elements: u64, divisor: u32) -> Vec<u8> {
        let range = (from * self.element()) as usize..((from + elements) * self.element()) as usize;
        let inputs: Vec<_> = inputs.iter().map(|input| (&input[range.clone()], None)).collect();
        let divisor = (self.reduction == Reduction::Avg).then_some(divisor);
        ringway_reduce::oracle::reduce(self.datatype, self.reduction, &inputs, divisor)
    }

    /// What each rank's output must hold; `None` where it has none or it is left alone.
    pub(crate) fn expected(&self, ranks: u32) -> Vec<Option<Vec<u8>>> {
        use Operation as O;
        let inputs: Vec<_> = (0..ranks).map(|rank| self.input_bytes(ranks, rank)).collect();
        let all: Vec<u8> = inputs.concat();
        let part = |bytes: &[u8], start: u64, length: u64| {
            bytes[(start * self.element()) as usize..((start + length) * self.element()) as usize].to_vec()
        };
        let output = |rank: u32| -> Option<Vec<u8>> {
            let elements = self.lengths(ranks, rank).1?;
            Some(match self.operation {
                O::Allreduce | O::Reduce => self.combine(&inputs, 0, self.count, ranks),
                O::Broadcast => inputs[self.root as usize].clone(),
                O::AllGather | O::AllGatherV | O::Gather | O::GatherV => all.clone(),
                O::ReduceScatter | O::ReduceScatterV => {
                    self.combine(&inputs, self.start(ranks, rank), elements, ranks)
                }
                O::Scatter | O::ScatterV => {
                    part(&inputs[self.root as usize], self.start(ranks, rank), elements)
                }
                O::AllToAll | O::AllToAllV => (0..ranks)
                    .flat_map(|from| {
                        let before = (0..rank).map(|to| self.pair(from, to)).sum();
                        part(&inputs[from as usize], before, self.pair(from, rank))
                    })
                    .collect(),
                O::Scan => self.combine(&inputs[..=rank as usize], 0, self.count, rank + 1),
                O::Exscan if rank == 0 => return None,
                O::Exscan => self.combine(&inputs[..rank as usize], 0, self.count, rank),
                O::Barrier | O::Send | O::Receive => return None,
            })
        };
        (0..ranks).map(output).collect()
    }

    /// Offsets of a rank's input and output.
    fn offsets(&self, ranks: u32, rank: u32) -> (u64, u64) {
        use Operation as O;
        let block = self.start(ranks, rank) * self.element();
        match self.operation {
            _ if !self.in_place => {
                let input = self.lengths(ranks, rank).0.unwrap_or(0) * self.element();
                (INPUT, (INPUT + input).next_multiple_of(64) + 8)
            }
            O::AllGather | O::AllGatherV | O::Gather | O::GatherV => (INPUT + block, INPUT),
            O::ReduceScatter | O::ReduceScatterV | O::Scatter | O::ScatterV => (INPUT, INPUT + block),
            _ => (INPUT, INPUT),
        }
    }

    /// Writes the inputs.
    pub(crate) fn prepare(&self, world: &World) {
        let ranks = world.layout.ranks();
        for rank in 0..ranks {
            let (input, output) = self.offsets(ranks, rank);
            if let Some(elements) = self.lengths(ranks, rank).1 {
                world.write(rank, output, &vec![0xEE; (elements * self.element()) as usize]);
            }
            world.write(rank, input, &self.input_bytes(ranks, rank));
        }
    }

    /// One rank calls.
    pub(crate) fn call(&self, world: &mut World, communicator: usize, rank: u32) -> u32 {
        let ranks = world.layout.ranks();
        let (input, output) = self.offsets(ranks, rank);
        let (reads, writes) = self.lengths(ranks, rank);
        let counts = self.call_counts(ranks, rank);
        let buffer = |at, elements: u64| world.buffer(rank, at, elements * self.element());
        let call = Collective {
            operation: self.operation,
            datatype: self.datatype,
            reduction: self.operation.reduces().then_some(self.reduction),
            scale: None,
            root: self.root,
            count: if self.operation.has_counts() { 0 } else { self.count },
            counts: &counts,
            input: reads.map(|elements| buffer(input, elements)),
            output: writes.map(|elements| buffer(output, elements)),
        };
        world.submit_on(communicator, rank, Request::Collective(call))
    }

    /// Compares every output, and every input that must be as it was.
    pub(crate) fn check(&self, world: &World) {
        let ranks = world.layout.ranks();
        for (rank, expected) in (0..).zip(self.expected(ranks)) {
            let (input, output) = self.offsets(ranks, rank);
            if let Some(expected) = expected {
                let got = world.read(rank, output, expected.len() as u64);
                if let Some(at) = got.iter().zip(&expected).position(|(a, b)| a != b) {
                    panic!(
                        "{self:?} on {:?}: rank {rank} differs at byte {at} of {}: {} instead of {}",
                        world.layout,
                        expected.len(),
                        got[at],
                        expected[at]
                    );
                }
            }
            if !self.in_place {
                let before = self.input_bytes(ranks, rank);
                assert!(world.read(rank, input, before.len() as u64) == before, "{self:?}: input changed");
            }
        }
    }

    /// All of it.
    pub(crate) fn run(&self, world: &mut World) {
        let ranks = world.layout.ranks();
        self.prepare(world);
        let tokens: Vec<_> = (0..ranks).map(|rank| self.call(world, 0, rank)).collect();
        for (rank, token) in (0..).zip(tokens) {
            assert_eq!(world.wait(rank, token), Ok((rank, 0)), "{self:?} on {:?}", world.layout);
        }
        self.check(world);
    }
}

/// Every collective.
pub(crate) fn collectives() -> impl Iterator<Item = Operation> {
    Operation::ALL.iter().copied().filter(|operation| operation.is_collective())
}
