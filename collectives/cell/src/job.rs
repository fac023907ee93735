//! A large call as work: lanes of blocks.
//!
//! A lane is what one rank would do if all came at the same time; there are as many as ranks. For operations on one
//! vector it is a part of the vector, for those with a block for each rank one block, for exchanges the pairs of ranks
//! `(l, l), (l, l+1), ...` of which each unordered pair belongs to exactly one lane. Where blocks only go from memory that
//! nobody writes to other memory, and reading them more than once costs little, a lane is all that one rank gets, which
//! it then reads from the others: writing to memory that others have in their caches takes several times as long. Lanes
//! are cut into blocks, which are claimed one by one.
//!
//! When some rank's memory is not registered, the call runs in segments: the same call for some elements of every
//! block at a time, see [`crate::staged`]. Such a rank does its own lane itself, straight from and to its memory. Where
//! all ranks are like that, a lane of a broadcast or all_gather is all that one rank gets as well: they do not write to
//! staging memory that others have read, which takes twice to four times as long where processors have no cache in common.

use core::ops::Range;

use ringway_types::Operation;

use crate::{
    Call,
    cell::{Cell, Contradiction},
    extent::Tables,
    record::Part,
    shape::Shape,
    staged,
};

/// The least and the most bytes of a block of work: of one operand.
const BLOCK_MIN: u64 = 16 << 10;
const BLOCK_MAX: u64 = 64 << 10;
/// Blocks that a lane has at least, where they are not too short then: so that what one worker does not come to, another
/// can take.
const BLOCKS_PER_LANE: u64 = 4;
/// The most bytes of a rank's output that are read from the others. An all_gather reads each input once for every rank:
/// only what stays in caches is worth it, unless writing costs more.
const PULLED_ALL_GATHER: u64 = 512 << 10;
const PULLED_ALL_TO_ALL: u64 = 1 << 30;
/// Where all ranks' memory is ordinary; beyond, a lane would have more blocks than can be counted.
const PULLED_ORDINARY: u64 = 1 << 34;
/// Parts of a vector begin at multiples of this, so that no two workers write to one cache line.
const PART_UNIT: u64 = 64;

/// How an operation is cut into lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Parts of one vector.
    Vector,
    /// A block for each rank.
    Blocks,
    /// Pairs of ranks.
    Pairs,
    /// All that one rank gets, from each rank in turn.
    Pulls,
}

/// Bytes of each rank's part of a vector.
const fn part_bytes(vector: u64, ranks: u32) -> u64 {
    vector.div_ceil(ranks as u64).next_multiple_of(PART_UNIT)
}

/// From so many bytes on one rank alone may combine those of two.
const LONE_BYTES: u64 = 4 << 20;

/// Bytes of a block of work, where the longest lane or block of a rank usually has so many.
fn piece_bytes(usual: u64) -> u64 {
    usual.div_ceil(BLOCKS_PER_LANE).next_multiple_of(BLOCK_MIN).clamp(BLOCK_MIN, BLOCK_MAX)
}

/// The lanes of a large call on one vector that is short enough for lanes of few blocks: what [`Job`] makes of it when
/// every rank's memory is registered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShortLanes {
    vector: u64,
    part: u64,
    piece: u64,
    /// Blocks of each lane; some may be empty.
    pub(crate) blocks: u64,
}

impl ShortLanes {
    /// `None` when the call is another one.
    pub(crate) fn of(shape: &Shape) -> Option<Self> {
        let part = part_bytes(shape.block, shape.ranks);
        let is_short =
            matches!(shape.operation, Operation::Allreduce | Operation::Reduce | Operation::Broadcast)
                && !shape.is_small()
                && part <= BLOCKS_PER_LANE * BLOCK_MIN;
        let piece = piece_bytes(part);
        is_short.then_some(Self { vector: shape.block, part, piece, blocks: part.div_ceil(piece) })
    }

    /// Where a lane's block begins in the vector, and its length: bytes.
    pub(crate) fn block(&self, lane: u32, block: u64) -> (usize, usize) {
        let first = u64::from(lane) * self.part;
        let end = (first + self.part).min(self.vector);
        let start = (first + block * self.piece).min(end);
        (start as usize, self.piece.min(end - start) as usize)
    }
}

/// A rank's input or its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Input,
    Output,
}

/// What one claimed block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The rank whose block it is; for exchanges the other rank of the pair, and whom a lane reads from where it is all that
    /// a rank gets. Zero for vectors.
    pub(crate) rank: u32,
    /// Bytes from the beginning of that block, or of the vector, in this segment.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A call, its ranks' memory, and how it is cut.
#[derive(Debug)]
pub(crate) struct Job {
    /// Zero when there is none.
    pub(crate) sequence: u64,
    pub(crate) shape: Shape,
    pub(crate) parts: Vec<Part>,
    pub(crate) tables: Tables,
    /// Some rank's memory is not registered.
    pub(crate) staged: bool,
    /// A lane is all that one rank gets.
    pub(crate) pulls: bool,
    /// The only rank whose lane has anything.
    lone: Option<u32>,
    /// Bytes of each rank's block in a full segment.
    pub(crate) segment: u64,
    pub(crate) segments: u64,
    /// Bytes of a vector's part in a full segment.
    part: u64,
    /// Bytes of a block of work.
    piece: u64,
    /// Blocks of each lane in each segment; some may be empty.
    lanes: Vec<u64>,
    /// Blocks of all lanes in each segment.
    pub(crate) blocks: u64,
}

impl Job {
    pub(crate) fn new(ranks: u32) -> Self {
        Self {
            sequence: 0,
            shape: Shape::of_call(&Call::BARRIER, ranks),
            parts: Vec::with_capacity(ranks as usize),
            tables: Tables::default(),
            staged: false,
            pulls: false,
            lone: None,
            segment: 0,
            segments: 1,
            part: 0,
            piece: BLOCK_MIN,
            lanes: Vec::with_capacity(ranks as usize),
            blocks: 0,
        }
    }

    /// Takes over a call that every rank has published.
    pub(crate) fn load(&mut self, cell: &Cell, sequence: u64, shape: Shape) -> Result<(), Contradiction> {
        self.sequence = 0;
        self.parts.clear();
        self.parts.extend((0..shape.ranks).map(|rank| cell.part(rank, sequence)));
        let counted = shape.operation.has_counts();
        if counted {
            self.tables.fill(cell, sequence, &shape, |_| true)?;
        }
        let staged = !counted && self.parts.iter().any(|part| part.staged);
        let (pulls, lone) = (self.pays_to_pull(&shape), self.lone(&shape));
        let kind = (shape, staged, pulls, lone);
        // Most calls are like the one before them.
        if counted || self.lanes.is_empty() || (self.shape, self.staged, self.pulls, self.lone) != kind {
            (self.shape, self.staged, self.pulls, self.lone) = kind;
            self.cut_up();
        }
        self.sequence = sequence;
        Ok(())
    }

    fn pays_to_pull(&self, shape: &Shape) -> bool {
        let output = shape.block.saturating_mul(u64::from(shape.ranks));
        let all_staged = || output <= PULLED_ORDINARY && self.parts.iter().all(|part| part.staged);
        match shape.operation {
            Operation::AllGather => output <= PULLED_ALL_GATHER || all_staged(),
            Operation::Broadcast => all_staged(),
            Operation::AllToAll => {
                let is_apart = |part: &Part| part.staged || part.input != part.output;
                output <= PULLED_ALL_TO_ALL && self.parts.iter().all(is_apart)
            }
            _ => false,
        }
    }

    /// A root of two ranks whose memory the other cannot reach combines all: else it would copy half of its input to where the
    /// other can, and the result back, which moves more bytes than to combine that half. The other copies the next segment
    /// meanwhile, so that it takes several. (64 MiB of `f32`: 0.65 of the time in place, 0.97 out of place; of 2 MiB 1.06 and
    /// 1.15.)
    fn lone(&self, shape: &Shape) -> Option<u32> {
        let root_is_staged = || self.parts.get(shape.root as usize).is_some_and(|part| part.staged);
        let pays = shape.operation == Operation::Reduce && shape.ranks == 2 && shape.block >= LONE_BYTES;
        (pays && root_is_staged()).then_some(shape.root)
    }

    /// Where a lane's part of a vector begins in a segment; `None` where it has none.
    fn part_of_vector(&self, lane: u32) -> Option<u64> {
        match self.lone {
            None => Some(u64::from(lane).saturating_mul(self.part)),
            Some(lone) => (lane == lone).then_some(0),
        }
    }

    /// A lane's bytes of a vector's segment of this length.
    fn lane_of_vector(&self, lane: u32, length: u64) -> Range<u64> {
        let first = self.part_of_vector(lane).unwrap_or(length);
        first.min(length)..first.saturating_add(self.part).min(length)
    }

    /// Finds out how long segments, parts and blocks are, and how many.
    fn cut_up(&mut self) {
        let (shape, whole) = (self.shape, self.shape.block);
        (self.segment, self.segments) = if self.staged { staged::segments(&shape) } else { (whole, 1) };
        self.part = part_bytes(self.segment, if self.lone.is_some() { 1 } else { shape.ranks });
        let usual = match self.cut() {
            Cut::Vector => self.part,
            _ if shape.operation.has_counts() => {
                (0..shape.ranks).map(|lane| self.unit(lane, 0)).max().unwrap_or(0)
            }
            _ => self.segment,
        };
        self.piece = piece_bytes(usual);
        let mut lanes = core::mem::take(&mut self.lanes);
        lanes.clear();
        lanes.extend((0..shape.ranks).map(|lane| self.count_blocks(lane)));
        self.blocks = lanes.iter().sum();
        self.lanes = lanes;
    }

    const fn cut(&self) -> Cut {
        match self.shape.operation {
            _ if self.pulls => Cut::Pulls,
            Operation::AllToAll | Operation::AllToAllV => Cut::Pairs,
            Operation::AllGather
            | Operation::AllGatherV
            | Operation::ReduceScatter
            | Operation::ReduceScatterV
            | Operation::Gather
            | Operation::GatherV
            | Operation::Scatter
            | Operation::ScatterV => Cut::Blocks,
            _ => Cut::Vector,
        }
    }

    /// How many pairs a lane has, the one with itself first.
    const fn pairs(&self, lane: u32) -> u32 {
        let ranks = self.shape.ranks;
        let half = ranks / 2;
        // With an even number the pair across belongs to the lower lane.
        half + if ranks.is_multiple_of(2) && lane >= half { 0 } else { 1 }
    }

    /// Bytes of a lane's unit in a full segment: of the lane itself, or of its `nth` pair.
    fn unit(&self, lane: u32, nth: u32) -> u64 {
        let element = self.shape.datatype.size() as u64;
        match self.cut() {
            Cut::Vector => self.part_of_vector(lane).map_or(0, |_| self.part),
            Cut::Blocks if self.shape.operation.has_counts() => {
                self.tables.sent(0, lane).1.saturating_mul(element)
            }
            Cut::Pairs if self.shape.operation.has_counts() => {
                let other = self.partner(lane, nth);
                let (there, back) = (self.tables.sent(lane, other).1, self.tables.sent(other, lane).1);
                there.max(back).saturating_mul(element)
            }
            _ => self.segment,
        }
    }

    /// Whether ranks that copy their only block to staging memory copy it to their own output at the same time.
    pub(crate) fn keeps_while_staging(&self) -> bool {
        self.pulls && self.shape.operation == Operation::AllGather
    }

    /// From how many ranks a lane reads that is all that one rank gets.
    const fn givers(&self) -> u32 {
        if matches!(self.shape.operation, Operation::Broadcast) { 1 } else { self.shape.ranks }
    }

    /// The other rank of a lane's `nth` pair, or the `nth` rank that it reads from.
    const fn partner(&self, lane: u32, nth: u32) -> u32 {
        match self.shape.operation {
            Operation::Broadcast => self.shape.root,
            _ => (lane + nth) % self.shape.ranks,
        }
    }

    /// Blocks of a lane in each segment; some may be empty.
    pub(crate) fn lane_blocks(&self, lane: u32) -> u64 {
        self.lanes.get(lane as usize).copied().unwrap_or(0)
    }

    fn count_blocks(&self, lane: u32) -> u64 {
        match self.cut() {
            Cut::Pairs if self.shape.operation.has_counts() => {
                (0..self.pairs(lane)).map(|nth| self.unit(lane, nth).div_ceil(self.piece)).sum()
            }
            Cut::Pairs => u64::from(self.pairs(lane)) * self.segment.div_ceil(self.piece),
            Cut::Pulls => u64::from(self.givers()) * self.segment.div_ceil(self.piece),
            _ => self.unit(lane, 0).div_ceil(self.piece),
        }
    }

    /// Bytes of each rank's block that a segment has.
    pub(crate) fn segment_length(&self, segment: u64) -> u64 {
        self.shape.block.saturating_sub(segment.saturating_mul(self.segment)).min(self.segment)
    }

    /// Which bytes of a segment of one of a rank's blocks belong to the rank's own lane, where there are no counts.
    pub(crate) fn in_own_lane(&self, (rank, side): (u32, Side), block: u64, segment: u64) -> Range<u64> {
        let length = self.segment_length(segment);
        let (inputs, outputs) = self.shape.blocks(rank);
        let is_only = if side == Side::Input { inputs == 1 } else { outputs == 1 };
        let (own, ranks) = (u64::from(rank), u64::from(self.shape.ranks));
        match self.cut() {
            Cut::Vector => self.lane_of_vector(rank, length),
            Cut::Blocks if is_only || block == own => 0..length,
            // Its input is read in the others' lanes as well, unless it has a block for each of them.
            Cut::Pulls if side == Side::Output || !is_only && block == own => 0..length,
            Cut::Pairs if (block + ranks - own) % ranks < u64::from(self.pairs(rank)) => 0..length,
            _ => 0..0,
        }
    }

    /// What a lane's block is in a segment; `None` when it is empty.
    pub(crate) fn piece(&self, lane: u32, block: u64, segment: u64) -> Option<Piece> {
        let counted = self.shape.operation.has_counts();
        let (rank, start, end) = match self.cut() {
            Cut::Vector => {
                let bytes = self.lane_of_vector(lane, self.segment_length(segment));
                (0, bytes.start + block * self.piece, bytes.end)
            }
            Cut::Blocks => {
                let end = if counted { self.unit(lane, 0) } else { self.segment_length(segment) };
                (lane, block * self.piece, end)
            }
            Cut::Pairs | Cut::Pulls => {
                let (nth, block) = self.pair_of(lane, block)?;
                let end = if counted { self.unit(lane, nth) } else { self.segment_length(segment) };
                (self.partner(lane, nth), block * self.piece, end)
            }
        };
        let length = end.checked_sub(start)?.min(self.piece);
        (length > 0).then_some(Piece { rank, offset: start, length })
    }

    /// Which of a lane's pairs a block belongs to, or which of those it reads from, and its number within.
    fn pair_of(&self, lane: u32, mut block: u64) -> Option<(u32, u64)> {
        if !self.shape.operation.has_counts() {
            let each = self.segment.div_ceil(self.piece).max(1);
            return Some((u32::try_from(block / each).ok()?, block % each));
        }
        for nth in 0..self.pairs(lane) {
            let blocks = self.unit(lane, nth).div_ceil(self.piece);
            match block.checked_sub(blocks) {
                None => return Some((nth, block)),
                Some(rest) => block = rest,
            }
        }
        None
    }
}
