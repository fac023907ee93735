//! Ranks as threads, with memory of their own.

#![allow(dead_code, reason = "each test uses a part")]

use std::{sync::Arc, thread, time::Duration};

use ringway_cell::{
    Call, CallMemory, Cell, Exchange, Member, OWN_INPUT, OWN_OUTPUT, Place, Poll, Prepared, Regions,
    STAGING_BYTES, Signature, bytes,
};
use ringway_mem::{Mapping, Window};
use ringway_reduce::{Scalar, Source};
use ringway_types::{DataType, F8E4M3, F8E5M2, Operation, Reduction};

pub(crate) fn mapping(length: u64) -> Arc<Mapping> {
    Arc::new(Mapping::private(usize::try_from(length.max(1)).expect("fits")).expect("map"))
}

pub(crate) fn cell(ranks: u32) -> Cell {
    Cell::attach(mapping(bytes(ranks).expect("ranks")), ranks).expect("attach")
}

/// Memory of every rank: region `r` of rank `r`, region `100 + r` its staging, and its own slices.
pub(crate) struct Memory {
    pub(crate) arenas: Vec<Arc<Mapping>>,
    pub(crate) staging: Vec<Arc<Mapping>>,
    pub(crate) own: Vec<(Arc<Mapping>, Arc<Mapping>)>,
}

impl Memory {
    pub(crate) fn new(ranks: u32, length: u64, staged: impl Fn(u32) -> bool) -> Self {
        let all = 0..ranks;
        let staging = |r| if staged(r) { STAGING_BYTES } else { 1 };
        Self {
            arenas: all.clone().map(|_| mapping(length)).collect(),
            staging: all.clone().map(|r| mapping(staging(r))).collect(),
            own: all.map(|_| (mapping(length), mapping(length))).collect(),
        }
    }
}

/// What one rank, or the daemon, may reach.
pub(crate) struct Reach<'m> {
    pub(crate) memory: &'m Memory,
    /// The rank; `None` for the daemon.
    pub(crate) rank: Option<u32>,
}

impl Regions for Reach<'_> {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        let at = rank as usize;
        let mapping = match place.region {
            OWN_INPUT | OWN_OUTPUT => {
                assert_eq!(self.rank, Some(rank), "own memory is asked for by its owner only");
                let (input, output) = self.memory.own.get(at)?;
                if place.region == OWN_INPUT { input } else { output }
            }
            region if region == u64::from(rank) => self.memory.arenas.get(at)?,
            region if region == 100 + u64::from(rank) => self.memory.staging.get(at)?,
            _ => return None,
        };
        mapping.window(place.offset, length)
    }
}

/// Polls until the call is over.
pub(crate) fn wait(member: &mut Member, sequence: u64, regions: &impl Regions) -> Poll {
    let mut polls: u32 = 0;
    loop {
        match member.poll(sequence, regions) {
            Poll::Pending | Poll::Stale { .. } => {}
            other => return other,
        }
        polls += 1;
        if polls < 200 {
            thread::yield_now();
            continue;
        }
        let expected = member.arm(sequence);
        let again = member.poll(sequence, regions);
        if again == Poll::Pending {
            member.sleep(expected, Duration::from_millis(200));
        }
        member.disarm();
        if again == Poll::Done {
            return again;
        }
    }
}

/// Bits that look random, of a number.
pub(crate) fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number whose sums with others like it depend on the order in which they are combined, of bits that look random: either
/// sign, and a mantissa and one of few exponents or, of four, one power of two, beside which `f32` has no place for the
/// others. Half types are widened to that, and sums of theirs would else be exact.
pub(crate) fn ordered_float(mixed: u64) -> f64 {
    let (sign, kind, mantissa) = (mixed & 1 << 63, (mixed >> 52) % 32, mixed & ((1 << 52) - 1));
    let (exponent, mantissa) = if kind < 8 { (1023 + 14, 0) } else { (1023 - 10 + kind % 8, mantissa) };
    f64::from_bits(sign | exponent << 52 | mantissa)
}

/// A call of all ranks, and what it must give.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) operation: Operation,
    pub(crate) datatype: DataType,
    pub(crate) reduction: Reduction,
    pub(crate) ranks: u32,
    pub(crate) root: u32,
    pub(crate) count: u64,
    /// For operations with counts: `counts[i][j]` elements from rank i to rank j; the first row where there is one.
    pub(crate) counts: Vec<Vec<u64>>,
    pub(crate) in_place: Vec<bool>,
    pub(crate) staged: Vec<bool>,
    pub(crate) seed: u64,
}

impl Case {
    fn element(&self) -> u64 {
        self.datatype.size() as u64
    }

    fn reduction(&self) -> Option<Reduction> {
        self.operation.reduces().then_some(self.reduction)
    }

    fn scale(&self, rank: u32) -> Option<u64> {
        let premul = self.reduction() == Some(Reduction::PremulSum);
        let value =
            if self.datatype.is_float() { f64::from(rank + 1).to_bits() } else { u64::from(rank + 1) };
        premul.then_some(value)
    }

    fn row(&self, i: u32) -> &[u64] {
        &self.counts[i as usize]
    }

    pub(crate) fn counts_of(&self, rank: u32) -> Vec<u64> {
        match self.operation {
            Operation::AllGatherV | Operation::ReduceScatterV => self.row(0).to_vec(),
            Operation::GatherV | Operation::ScatterV if rank == self.root => self.row(0).to_vec(),
            Operation::GatherV | Operation::ScatterV => vec![self.row(0)[rank as usize]],
            Operation::AllToAllV => {
                let receives = (0..self.ranks).map(|i| self.row(i)[rank as usize]);
                self.row(rank).iter().copied().chain(receives).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Elements of a rank's input and output.
    pub(crate) fn extents(&self, rank: u32) -> (u64, u64) {
        let (n, all, root) = (self.count, self.count * u64::from(self.ranks), rank == self.root);
        let at_root = |n| if root { n } else { 0 };
        let own = || self.row(0)[rank as usize];
        let total = || self.row(0).iter().sum::<u64>();
        match self.operation {
            Operation::Allreduce | Operation::Scan | Operation::Exscan => (n, n),
            Operation::Reduce => (n, at_root(n)),
            Operation::Broadcast => (at_root(n), n),
            Operation::AllGather => (n, all),
            Operation::ReduceScatter => (all, n),
            Operation::Gather => (n, at_root(all)),
            Operation::Scatter => (at_root(all), n),
            Operation::AllToAll => (all, all),
            Operation::AllGatherV => (own(), total()),
            Operation::ReduceScatterV => (total(), own()),
            Operation::GatherV => (own(), at_root(total())),
            Operation::ScatterV => (at_root(total()), own()),
            Operation::AllToAllV => {
                (self.row(rank).iter().sum(), (0..self.ranks).map(|i| self.row(i)[rank as usize]).sum())
            }
            _ => (0, 0),
        }
    }

    /// Where the input lies in the output, or the output in the input, of a rank that works in place: elements.
    fn in_place_at(&self, rank: u32) -> Option<(bool, u64)> {
        let uniform = u64::from(rank) * self.count;
        let before = || self.row(0)[..rank as usize].iter().sum::<u64>();
        let root = rank == self.root;
        match self.operation {
            Operation::Allreduce | Operation::Scan | Operation::Exscan | Operation::AllToAll => {
                Some((true, 0))
            }
            Operation::Reduce | Operation::Broadcast if root => Some((true, 0)),
            Operation::AllGather => Some((true, uniform)),
            Operation::Gather if root => Some((true, uniform)),
            Operation::ReduceScatter => Some((false, uniform)),
            Operation::Scatter if root => Some((false, uniform)),
            Operation::AllGatherV => Some((true, before())),
            Operation::GatherV if root => Some((true, before())),
            Operation::ReduceScatterV => Some((false, before())),
            Operation::ScatterV if root => Some((false, before())),
            _ => None,
        }
    }

    /// Byte offsets of input and output in the rank's region.
    fn places(&self, rank: u32) -> (u64, u64) {
        let (input, output) = self.extents(rank);
        let e = self.element();
        let misaligned = u64::from(rank) * e + 64;
        match self.in_place_at(rank).filter(|_| self.in_place[rank as usize]) {
            Some((true, at)) => (misaligned + at * e, misaligned),
            Some((false, at)) => (misaligned, misaligned + at * e),
            None => (misaligned, misaligned + (input.max(output) + 17) * e),
        }
    }

    pub(crate) fn room(&self) -> u64 {
        let most = (0..self.ranks).map(|r| self.extents(r).0 + self.extents(r).1 + 40).max().unwrap_or(0);
        let most = most.max(
            (0..self.ranks).map(|r| 2 * self.extents(r).0.max(self.extents(r).1) + 40).max().unwrap_or(0),
        );
        (most + u64::from(self.ranks)) * self.element() + 4096
    }

    fn is_staged(&self, rank: u32) -> bool {
        self.staged[rank as usize] && !self.operation.has_counts()
    }

    /// What is at a place of a rank's input: small integers, and floats whose order matters.
    fn value(&self, rank: u32, index: u64) -> Vec<u8> {
        use half::{bf16, f16};
        let mixed = mixed(self.seed ^ (u64::from(rank) << 32) ^ index);
        let (integer, float) = (mixed & 7, ordered_float(mixed));
        match self.datatype {
            DataType::I8 | DataType::U8 => vec![integer as u8],
            DataType::I32 | DataType::U32 => (integer as u32).to_le_bytes().to_vec(),
            DataType::I64 | DataType::U64 => integer.to_le_bytes().to_vec(),
            DataType::F16 => f16::from_f64(float).to_le_bytes().to_vec(),
            DataType::Bf16 => bf16::from_f64(float).to_le_bytes().to_vec(),
            DataType::F8E4M3 => vec![F8E4M3::from_f32(float as f32).to_bits()],
            DataType::F8E5M2 => vec![F8E5M2::from_f32(float as f32).to_bits()],
            DataType::F32 => (float as f32).to_le_bytes().to_vec(),
            DataType::F64 => float.to_le_bytes().to_vec(),
        }
    }

    pub(crate) fn input(&self, rank: u32) -> Vec<u8> {
        // A pattern that repeats, at a length that divides nothing.
        let pattern: Vec<u8> = (0..1021).flat_map(|i| self.value(rank, i)).collect();
        let bytes = (self.extents(rank).0 * self.element()) as usize;
        let mut input = pattern.repeat(bytes / pattern.len() + 1);
        input.truncate(bytes);
        input
    }

    fn block(&self, from: u32, start: u64, length: u64) -> Vec<u8> {
        let e = self.element();
        self.input(from)[(start * e) as usize..((start + length) * e) as usize].to_vec()
    }

    /// Elements of these ranks' inputs, combined in the order in which the ranks are given.
    pub(crate) fn combine(&self, ranks: impl IntoIterator<Item = u32>, start: u64, length: u64) -> Vec<u8> {
        let bytes = length * self.element();
        let operand = |rank| (filled(&self.block(rank, start, length)), self.scale(rank));
        let operands: Vec<_> = ranks.into_iter().map(operand).collect();
        let sources: Vec<_> = operands
            .iter()
            .map(|(operand, scale)| Source {
                window: operand.window(0, bytes).expect("inside"),
                scale: scale.map(|scale| Scalar::from_bytes(scale.to_le_bytes())),
            })
            .collect();
        let out = mapping(bytes);
        let to = out.window(0, bytes).expect("inside");
        let divisor = (self.reduction == Reduction::Avg).then_some(sources.len() as u32);
        ringway_reduce::reduce(self.datatype, self.reduction, &sources, &[to], divisor).expect("reduce");
        read(&to)
    }

    /// What a rank's output holds at the end; `None` where it is not touched.
    pub(crate) fn expected(&self, rank: u32) -> Option<Vec<u8>> {
        let (_, output) = self.extents(rank);
        if output == 0 {
            return Some(Vec::new());
        }
        let block = |from: u32, start: u64, length: u64| self.block(from, start, length);
        let n = self.count;
        let before = |row: &[u64], to: u32| row[..to as usize].iter().sum::<u64>();
        let combine = |ranks, start, length| self.combine(ranks, start, length);
        Some(match self.operation {
            Operation::Allreduce | Operation::Reduce => combine(0..self.ranks, 0, n),
            Operation::Scan => combine(0..rank + 1, 0, n),
            Operation::Exscan if rank == 0 => return None,
            Operation::Exscan => combine(0..rank, 0, n),
            Operation::Broadcast => block(self.root, 0, n),
            Operation::AllGather | Operation::Gather => {
                (0..self.ranks).flat_map(|r| block(r, 0, n)).collect()
            }
            Operation::ReduceScatter => combine(0..self.ranks, u64::from(rank) * n, n),
            Operation::Scatter => block(self.root, u64::from(rank) * n, n),
            Operation::AllToAll => (0..self.ranks).flat_map(|r| block(r, u64::from(rank) * n, n)).collect(),
            Operation::AllGatherV | Operation::GatherV => {
                (0..self.ranks).flat_map(|r| block(r, 0, self.row(0)[r as usize])).collect()
            }
            Operation::ReduceScatterV => {
                combine(0..self.ranks, before(self.row(0), rank), self.row(0)[rank as usize])
            }
            Operation::ScatterV => block(self.root, before(self.row(0), rank), self.row(0)[rank as usize]),
            Operation::AllToAllV => (0..self.ranks)
                .flat_map(|r| block(r, before(self.row(r), rank), self.row(r)[rank as usize]))
                .collect(),
            _ => Vec::new(),
        })
    }

    /// Fills the rank's memory and publishes its call; without `help` it may even be over then.
    pub(crate) fn begin(&self, member: &mut Member, rank: u32, memory: &Memory, help: bool) -> Option<u64> {
        let staged = self.is_staged(rank);
        let (input_at, output_at) = self.places(rank);
        let (input, output) = self.extents(rank);
        let e = self.element();
        let (arena, own) = (&memory.arenas[rank as usize], &memory.own[rank as usize]);
        let (to, at) = if staged { (&own.0, 0) } else { (arena, input_at) };
        let in_place = self.in_place[rank as usize] && self.in_place_at(rank).is_some();
        if !in_place || staged {
            let (out, out_at) = if staged { (&own.1, 0) } else { (arena, output_at) };
            out.window(out_at, output * e).expect("room").write(&vec![0xa5; (output * e) as usize]);
        }
        to.window(at, input * e).expect("room").write(&self.input(rank));
        let place = |own, offset| {
            if staged { Place { region: own, offset: 0 } } else { Place { region: u64::from(rank), offset } }
        };
        let counts = self.counts_of(rank);
        let call = Call {
            operation: self.operation,
            datatype: self.datatype,
            reduction: self.reduction(),
            scale: self.scale(rank),
            root: self.root,
            count: self.count,
            counts: &counts,
            input: (input > 0).then_some(place(OWN_INPUT, input_at)),
            output: (output > 0).then_some(place(OWN_OUTPUT, output_at)),
            staging: staged.then_some(Place { region: 100 + u64::from(rank), offset: 0 }),
        };
        let reach = Reach { memory, rank: Some(rank) };
        if help {
            return member.begin(&call, help, &reach);
        }
        // As a rank does that waits at once, for a few polls.
        let signature = Signature {
            operation: call.operation,
            datatype: call.datatype,
            reduction: call.reduction,
            root: call.root,
            count: call.count,
        };
        let Some(prepared) = Prepared::new(&signature, rank, member.cell().ranks()) else {
            return member.begin(&call, help, &reach);
        };
        let window = |place: Option<Place>, elements: u64| reach.window(rank, place?, elements * e);
        let memory = CallMemory {
            input: window(call.input, input),
            output: window(call.output, output),
            places: [call.input, call.output],
            scale: call.scale.unwrap_or(0),
        };
        match member.exchange(&prepared, &memory, 20, &reach) {
            Exchange::Done => Some(member.called()),
            Exchange::Pending(sequence) => Some(sequence),
            Exchange::Declined => member.begin(&call, help, &reach),
        }
    }

    /// Checks a rank's output.
    pub(crate) fn check(&self, rank: u32, memory: &Memory) {
        let (_, output) = self.extents(rank);
        let (_, output_at) = self.places(rank);
        let bytes = output * self.element();
        let staged = self.is_staged(rank);
        let found = if staged {
            read(&memory.own[rank as usize].1.window(0, bytes).expect("room"))
        } else {
            read(&memory.arenas[rank as usize].window(output_at, bytes).expect("room"))
        };
        match self.expected(rank) {
            Some(expected) => {
                assert_eq!(found.len(), expected.len());
                let wrong = || found.iter().zip(&expected).position(|(a, b)| a != b);
                assert!(found == expected, "rank {rank} differs from byte {:?} on: {self:?}", wrong());
            }
            None if self.in_place[rank as usize] && !staged => assert_eq!(found, self.input(rank)),
            None => assert!(found.iter().all(|b| *b == 0xa5), "rank {rank} touched its output"),
        }
    }
}

pub(crate) fn filled(bytes: &[u8]) -> Arc<Mapping> {
    let mapping = mapping(bytes.len() as u64);
    mapping.window(0, bytes.len() as u64).expect("room").write(bytes);
    mapping
}

pub(crate) fn read(window: &Window<'_>) -> Vec<u8> {
    let mut bytes = vec![0; window.length()];
    window.read(&mut bytes);
    bytes
}
