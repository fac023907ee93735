//! Others that do pieces of local work, and check that no two that are under way at a time touch the same bytes.

use ringway_engine::{BufferRef, LocalMemory, LocalRank, Piece, ReduceSource, RegionId, ScanStep, Ticket};
use ringway_types::{DataType, Reduction};

use super::Memory;

/// Who has a piece, when they have stopped.
pub(crate) const HOLDER: LocalRank = LocalRank(1);

/// Others that take some of the pieces and do them in any order.
#[derive(Debug, Clone)]
pub(crate) struct Others {
    pub(crate) pieces: Vec<(Ticket, Owned)>,
    /// They have stopped: pieces stay with them.
    pub(crate) stopped: bool,
    /// How many pieces they have had.
    pub(crate) had: u64,
    seed: u64,
}

/// A piece, to keep.
#[derive(Debug, Clone)]
pub(crate) enum Owned {
    Reduce(DataType, Reduction, Vec<ReduceSource>, Vec<BufferRef>, Option<u32>),
    Scan(DataType, Reduction, Option<BufferRef>, u32, Vec<ScanStep>, bool),
    Copy(BufferRef, Vec<BufferRef>),
    Swap(BufferRef, BufferRef),
}

impl Owned {
    pub(crate) fn of(piece: &Piece<'_>) -> Self {
        match *piece {
            Piece::Reduce { datatype, reduction, sources, destinations, divisor } => {
                Self::Reduce(datatype, reduction, sources.to_vec(), destinations.to_vec(), divisor)
            }
            Piece::Scan { datatype, reduction, carry, before, steps, inclusive } => {
                Self::Scan(datatype, reduction, carry, before, steps.to_vec(), inclusive)
            }
            Piece::Copy { source, destinations } => Self::Copy(source, destinations.to_vec()),
            Piece::Swap { a, b } => Self::Swap(a, b),
        }
    }

    pub(crate) fn run(&self, memory: &mut Memory) {
        match self {
            Self::Reduce(datatype, reduction, sources, destinations, divisor) => {
                memory.reduce(*datatype, *reduction, sources, destinations, *divisor);
            }
            Self::Scan(datatype, reduction, carry, before, steps, inclusive) => {
                memory.scan(*datatype, *reduction, *carry, *before, steps, *inclusive);
            }
            Self::Copy(source, destinations) => memory.copy(*source, destinations),
            Self::Swap(a, b) => memory.swap(*a, *b),
        }
    }

    /// What is read, and what is written.
    fn touches(&self) -> (Vec<BufferRef>, Vec<BufferRef>) {
        match self {
            Self::Reduce(_, _, sources, destinations, _) => {
                (sources.iter().map(|source| source.buffer).collect(), destinations.clone())
            }
            Self::Scan(_, _, carry, _, steps, _) => {
                let inputs = steps.iter().map(|step| step.input.buffer);
                (inputs.chain(*carry).collect(), steps.iter().map(|step| step.output).collect())
            }
            Self::Copy(source, destinations) => (vec![*source], destinations.clone()),
            Self::Swap(a, b) => (Vec::new(), vec![*a, *b]),
        }
    }

    /// Whether it touches one of these regions.
    pub(crate) fn touches_any(&self, regions: &[RegionId]) -> bool {
        let (reads, writes) = self.touches();
        reads.iter().chain(&writes).any(|buffer| regions.contains(&buffer.region))
    }

    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let overlap = |a: &BufferRef, b: &BufferRef| {
            let apart = a.offset + a.length <= b.offset || b.offset + b.length <= a.offset;
            a.region == b.region && !apart
        };
        let any = |these: &[BufferRef], those: &[BufferRef]| {
            these.iter().any(|a| those.iter().any(|b| overlap(a, b)))
        };
        let ((reads, writes), (other_reads, other_writes)) = (self.touches(), other.touches());
        any(&writes, &other_writes) || any(&reads, &other_writes) || any(&writes, &other_reads)
    }
}

impl Others {
    pub(crate) fn new(seed: u64) -> Self {
        Self { pieces: Vec::new(), stopped: false, had: 0, seed }
    }

    pub(crate) fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) as usize % below
    }
}
