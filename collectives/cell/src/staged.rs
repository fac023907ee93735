//! Memory that others cannot reach, moved through memory that they can.
//!
//! A rank whose buffers are not registered names its staging memory instead: room for [`SEGMENTS_AHEAD`] segments of a
//! call. A segment is the same call for some elements of every block; the rank copies what it contributes to one in,
//! publishes how many segments are there, and copies its results out when the segment is done. A segment can be worked
//! on when every staged rank has published it. Segments are small enough to stay in a core's second-level cache from
//! copying in to copying out; whether they are copied in through the caches or past them is learnt from what that took
//! ([`crate::worker`]).
//!
//! Nobody but the rank itself gets its calls on, so what of a segment is in its own lane is not moved: it does that lane
//! alone, from and to its own memory. Between two ranks that spares half of all copies. A rank to which other ranks'
//! memory is refused moves all of its own, and leaves its lane to whoever can do it.

use core::ops::Range;

use ringway_mem::Window;
use ringway_reduce::Stores;

use crate::{
    OWN_INPUT, OWN_OUTPUT, Place, Regions,
    cell::Cell,
    claim::COUNT_BITS,
    job::{Job, Side},
    layout::SEGMENTS_AHEAD,
    record::Part,
    shape::Shape,
    step::{Step, reach},
    worker::Worker,
};

/// Bytes of a segment's input, and of its output.
const HALF: u64 = 1 << 20;
/// Bytes of one segment.
const BUFFER: u64 = 2 * HALF;
/// Bytes of a rank's staging memory.
pub(crate) const BYTES: u64 = BUFFER * SEGMENTS_AHEAD;

/// Up to so many bytes of a rank's a call is short.
const LEAST_ALONE: u64 = 256 << 10;

/// Blocks of the rank that has most, in its input or its output.
fn most_blocks(shape: &Shape) -> u64 {
    let blocks = (0..shape.ranks).map(|rank| {
        let (input, output) = shape.blocks(rank);
        input.max(output)
    });
    blocks.max().unwrap_or(1).max(1)
}

/// Bytes of each rank's block that make a full segment, and how many segments a call has.
pub(crate) fn segments(shape: &Shape) -> (u64, u64) {
    // Whole elements of any type, and whole cache lines.
    let most = HALF / most_blocks(shape);
    let bytes = (most - most % 64).min(shape.block).max(1);
    (bytes, shape.block.div_ceil(bytes))
}

impl Cell {
    /// The ranks without which a call that all have published cannot go on, although they are not at work: they have yet to
    /// offer a segment for which there is room, or to do their own lane of what all have offered. By what ranks say.
    #[must_use]
    pub fn behind(&self, sequence: u64) -> Vec<u32> {
        let mut job = Job::new(self.ranks());
        let shape = self.signature(0, sequence).and_then(|call| Shape::of(&call, self.ranks()));
        if shape.is_none_or(|shape| job.load(self, sequence, shape).is_err()) {
            return Vec::new();
        }
        let staged = (0..).zip(&job.parts).filter(|(_, part)| part.staged);
        let offered: Vec<(u32, Offered)> =
            staged.map(|(rank, _)| (rank, self.offered(rank, sequence))).collect();
        let under_way = under_way(offered.iter().map(|(_, offered)| offered.segments));
        let done = |lane| {
            let done = under_way.clone().take_while(|segment| job.is_lane_done(self, lane, *segment));
            under_way.start + done.count() as u64
        };
        let done: Vec<u64> = (0..self.ranks()).map(done).collect();
        let room = done.iter().min().map_or(0, |all| job.segments.min(all + SEGMENTS_AHEAD));
        let is_behind = |(rank, offered): &(u32, Offered)| {
            let lane = done.get(*rank as usize).copied().unwrap_or(0);
            offered.segments < room || !offered.whole && lane < under_way.end
        };
        offered.into_iter().filter(is_behind).map(|(rank, _)| rank).collect()
    }

    /// What a staged rank has published.
    pub(crate) fn offered(&self, rank: u32, sequence: u64) -> Offered {
        let count = self.count(self.layout.published(sequence, rank), sequence);
        Offered { segments: count % WHOLE, whole: count >= WHOLE }
    }
}

/// The segments that all staged ranks have published, so many each, and that may not be done yet: those before them have left
/// the staging memory of the rank that has published most. Few, whatever ranks say.
fn under_way(published: impl Iterator<Item = u64> + Clone) -> Range<u64> {
    let (least, most) = (published.clone().min().unwrap_or(0), published.max().unwrap_or(0));
    most.saturating_sub(SEGMENTS_AHEAD)..least
}

/// What a staged rank has published of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offered {
    pub(crate) segments: u64,
    /// With what is in the rank's own lane, which others may do.
    pub(crate) whole: bool,
}

/// Added to the number of published segments, which is always less, when they are whole.
const WHOLE: u64 = 1 << (COUNT_BITS - 1);

/// Whether a rank with memory that nobody else can reach does its own lane. Where ranks share processors each lane has to
/// wait for its rank's turn then, which costs more than it spares in short calls: a fifth of the time up to 256 KiB.
pub(crate) fn does_own_lane(job: &Job, is_roomy: bool) -> bool {
    is_roomy || job.shape.block.saturating_mul(most_blocks(&job.shape)) > LEAST_ALONE
}

/// Where a block of a segment is in its rank's staging memory.
pub(crate) fn start(job: &Job, segment: u64, block: u64, side: Side) -> u64 {
    let half = if side == Side::Output && !job.shape.shares_staging() { HALF } else { 0 };
    (segment % SEGMENTS_AHEAD) * BUFFER + half + block * job.segment
}

/// How far a staged rank is with a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Segments copied in and published.
    pub(crate) published: u64,
    /// Segments copied out.
    pub(crate) finished: u64,
    /// What is in its own lane is moved as well, and others may do that lane.
    pub(crate) whole: bool,
}

/// Which bytes of every block of a segment are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    All,
    /// Those in the rank's own lane.
    OwnLane,
    OtherLanes,
}

/// Which bytes of a segment of one of a rank's blocks are moved.
fn ranges(job: &Job, at: (u32, Side), (segment, block): (u64, u64), moved: Moved) -> [Range<u64>; 2] {
    let (length, lane) = (job.segment_length(segment), job.in_own_lane(at, block, segment));
    match moved {
        Moved::All => [0..length, 0..0],
        Moved::OwnLane => [lane, 0..0],
        Moved::OtherLanes => [0..lane.start, lane.end..length],
    }
}

/// Bytes of a segment that a rank copies to its staging memory.
fn bytes_in(job: &Job, rank: u32, segment: u64, moved: Moved) -> u64 {
    let blocks = 0..job.shape.blocks(rank).0;
    let moved = blocks.flat_map(|block| ranges(job, (rank, Side::Input), (segment, block), moved));
    moved.map(|range| range.end - range.start).sum()
}

/// Copies a rank's blocks of a segment between its own memory and its staging memory.
fn move_blocks(job: &Job, rank: (u32, &Part), what: (u64, Side, Moved, Stores), regions: &impl Regions) {
    // What is not there cannot be copied, and was checked when the call was made.
    let copied = try_move_blocks(job, rank, what, regions);
    debug_assert!(copied.is_some(), "the caller's own memory is not there");
}

/// As [`move_blocks`]; `None` when the memory is not there.
fn try_move_blocks(
    job: &Job,
    (rank, part): (u32, &Part),
    (segment, side, moved, stores): (u64, Side, Moved, Stores),
    regions: &impl Regions,
) -> Option<()> {
    let (input_blocks, output_blocks) = job.shape.blocks(rank);
    let (blocks, place) = match side {
        Side::Input => (input_blocks, OWN_INPUT),
        Side::Output => (output_blocks, OWN_OUTPUT),
    };
    if blocks == 0 {
        return Some(());
    }
    let own = regions.window(rank, Place { region: place, offset: 0 }, blocks * job.shape.block)?;
    let staging = regions.window(rank, part.input.or(part.output)?, BYTES)?;
    let keeps = side == Side::Input && moved == Moved::OtherLanes && job.keeps_while_staging();
    let kept = if keeps { kept(job, rank, own, regions)? } else { None };
    for block in 0..blocks {
        let ranges = ranges(job, (rank, side), (segment, block), moved);
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            let length = usize::try_from(range.end - range.start).ok()?;
            let at = usize::try_from(block * job.shape.block + segment * job.segment + range.start).ok()?;
            let own = own.sub(at, length)?;
            let staged_at = start(job, segment, block, side) + range.start;
            let staged = staging.sub(usize::try_from(staged_at).ok()?, length)?;
            match (side, kept) {
                (Side::Input, Some(kept)) => {
                    copy(stores_to_both(stores, job), own, &[staged, kept.sub(at, length)?]);
                }
                (Side::Input, None) => copy(stores, own, &[staged]),
                (Side::Output, _) => copy(stores, staged, &[own]),
            }
        }
    }
    Some(())
}

/// Where a rank's only block, which lies there now, belongs in its own output, unless that is the same place: copied there
/// while it is staged, it is read once and written twice. `None` when the memory is not there.
fn kept<'a>(job: &Job, rank: u32, now: Window<'_>, regions: &'a impl Regions) -> Option<Option<Window<'a>>> {
    let blocks = job.shape.blocks(rank).1;
    let output = regions.window(rank, Place { region: OWN_OUTPUT, offset: 0 }, blocks * job.shape.block)?;
    let block = usize::try_from(job.shape.block).ok()?;
    let kept = output.sub(block * rank as usize, block)?;
    Some((kept.as_ptr() != now.as_ptr()).then_some(kept))
}

/// Whether a rank's own input and output begin at the same place.
fn is_in_place(job: &Job, rank: u32, regions: &impl Regions) -> bool {
    let at = |region| {
        let window = regions.window(rank, Place { region, offset: 0 }, job.shape.block);
        window.map(|window| window.as_ptr())
    };
    at(OWN_INPUT) == at(OWN_OUTPUT)
}

/// Whether a rank's output changes: it takes something, or keeps what lies elsewhere.
fn writes_output(job: &Job, rank: u32, regions: &impl Regions) -> bool {
    job.shape.takes(rank) || job.shape.keeps(rank) && !is_in_place(job, rank, regions)
}

/// How results are copied out: through the caches where the rank, which has a processor for itself, has just read from there what
/// it gave.
fn stores_out(worker: &Worker, job: &Job, rank: u32, regions: &impl Regions) -> Stores {
    let is_near = worker.is_roomy() && job.shape.contributes(rank) && is_in_place(job, rank, regions);
    if is_near { Stores::Cached } else { stores(job) }
}

/// How results go to where they belong: past the caches when all ranks' results do not fit them.
pub(crate) fn stores(job: &Job) -> Stores {
    let bytes = job.shape.block.saturating_mul(2 * u64::from(job.shape.ranks));
    if ringway_reduce::streaming_pays(bytes, false) { Stores::Streaming } else { Stores::Cached }
}

/// How a block goes to staging memory, with these stores, and to its own rank's output.
fn stores_to_both(staging: Stores, job: &Job) -> Stores {
    match (staging, stores(job)) {
        (Stores::Cached, Stores::Streaming) => Stores::StreamingOnly(1),
        (Stores::Streaming, Stores::Cached) => Stores::StreamingBut(1),
        (both, _) => both,
    }
}

fn copy(stores: Stores, from: Window<'_>, to: &[Window<'_>]) {
    let done = ringway_reduce::copy_with(stores, from, to);
    debug_assert!(done.is_ok(), "{done:?}");
}

impl Progress {
    const fn moved(&self) -> Moved {
        if self.whole { Moved::All } else { Moved::OtherLanes }
    }

    /// Leaves this rank's own lane to others, unless it has begun with it; whether it is left to them.
    pub(crate) fn leave_lane(
        &mut self,
        cell: &Cell,
        job: &Job,
        rank: (u32, &Part),
        regions: &impl Regions,
    ) -> bool {
        if self.whole || cell.count(cell.layout.claim(job.sequence, rank.0), job.sequence) > 0 {
            return self.whole;
        }
        for segment in 0..self.published {
            move_blocks(job, rank, (segment, Side::Input, Moved::OwnLane, Stores::Cached), regions);
        }
        self.whole = true;
        cell.add_count(cell.layout.published(job.sequence, rank.0), job.sequence, WHOLE);
        cell.notify();
        true
    }

    /// Copies in the segments for which there is room; whether there were any.
    pub(crate) fn copy_in(
        &mut self,
        worker: &mut Worker,
        cell: &Cell,
        job: &Job,
        rank: (u32, &Part),
        regions: &impl Regions,
    ) -> bool {
        let before = self.published;
        while self.published < job.segments && self.published < self.finished + SEGMENTS_AHEAD {
            let bytes = bytes_in(job, rank.0, self.published, self.moved());
            worker.stage(job, (self.published, bytes), |stores| {
                move_blocks(job, rank, (self.published, Side::Input, self.moved(), stores), regions);
            });
            reach(Step::CopiedIn);
            self.published += 1;
            cell.add_count(cell.layout.published(job.sequence, rank.0), job.sequence, 1);
            reach(Step::Offered);
            cell.notify();
            if self.finished + 1 < self.published {
                // Others can begin with what is there: work with them before copying in all that fits.
                break;
            }
        }
        self.published > before
    }

    /// Copies out the segments that are done; whether there were any.
    pub(crate) fn copy_out(
        &mut self,
        worker: &Worker,
        cell: &Cell,
        job: &Job,
        rank: (u32, &Part),
        regions: &impl Regions,
    ) -> bool {
        let before = self.finished;
        while self.finished < self.published && job.is_done(cell, self.finished) {
            reach(Step::Ready);
            if writes_output(job, rank.0, regions) {
                let stores = stores_out(worker, job, rank.0, regions);
                move_blocks(job, rank, (self.finished, Side::Output, self.moved(), stores), regions);
            }
            reach(Step::CopiedOut);
            self.finished += 1;
        }
        self.finished > before
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn few_segments_are_under_way_whatever_ranks_say() {
        let counts = [0, 1, SEGMENTS_AHEAD, SEGMENTS_AHEAD + 1, WHOLE - 1];
        for published in counts.into_iter().flat_map(|one| counts.map(|other| [one, other])) {
            let range = under_way(published.into_iter());
            assert!(range.end.saturating_sub(range.start) <= SEGMENTS_AHEAD, "{published:?}: {range:?}");
        }
        assert_eq!(under_way([7, 5].into_iter()), 3..5);
    }
}
