//! Memory that others cannot reach, moved through memory that they can.
//!
//! A rank whose buffers are not registered names its staging memory instead: room for [`SEGMENTS_AHEAD`] segments of a
//! call. A segment is the same call for some elements of every block; the rank copies what it contributes to one in,
//! publishes how many segments are there, and copies its results out when the segment is done. A segment can be worked
//! on when every staged rank has published it. Segments are small enough to stay in a core's second-level cache from
//! copying in to copying out.

use ringway_mem::Window;
use ringway_reduce::Stores;

use crate::{
    OWN_INPUT, OWN_OUTPUT, Place, Regions,
    cell::Cell,
    job::Job,
    layout::SEGMENTS_AHEAD,
    record::Part,
    shape::Shape,
    step::{Step, reach},
};

/// Bytes of a segment's input, and of its output.
const HALF: u64 = 1 << 20;
/// Bytes of one segment.
const BUFFER: u64 = 2 * HALF;
/// Bytes of a rank's staging memory.
pub(crate) const BYTES: u64 = BUFFER * SEGMENTS_AHEAD;

/// Bytes of each rank's block that make a full segment, and how many segments a call has.
pub(crate) fn segments(shape: &Shape) -> (u64, u64) {
    let blocks = (0..shape.ranks).map(|rank| {
        let (input, output) = shape.blocks(rank);
        input.max(output)
    });
    // Whole elements of any type, and whole cache lines.
    let most = HALF / blocks.max().unwrap_or(1).max(1);
    let bytes = (most - most % 64).min(shape.block).max(1);
    (bytes, shape.block.div_ceil(bytes))
}

impl Cell {
    /// Whether all wait for a rank in a call that all have published, although it is not at work: of those who move their
    /// memory in segments none has offered fewer, and it has yet to offer some. By what ranks say.
    #[must_use]
    pub fn is_behind(&self, rank: u32, sequence: u64) -> bool {
        let signature = self.signature(rank, sequence);
        let Some(shape) = signature.and_then(|call| Shape::of(&call, self.ranks())) else { return false };
        let offered = |rank| {
            let staged = self.part(rank, sequence).staged;
            if staged { self.count(self.layout.published(sequence, rank), sequence) } else { u64::MAX }
        };
        let least = (0..self.ranks()).map(offered).min().unwrap_or(u64::MAX);
        least < segments(&shape).1 && offered(rank) == least
    }
}

/// Where a block of a segment is in its rank's staging memory.
pub(crate) fn start(job: &Job, segment: u64, block: u64, is_output: bool) -> u64 {
    let half = if is_output && !job.shape.shares_staging() { HALF } else { 0 };
    (segment % SEGMENTS_AHEAD) * BUFFER + half + block * job.segment
}

/// How far a staged rank is with a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Segments copied in and published.
    pub(crate) published: u64,
    /// Segments copied out.
    pub(crate) finished: u64,
}

/// Copies a rank's blocks of a segment between its own memory and its staging memory.
fn move_blocks(
    job: &Job,
    (rank, part): (u32, &Part),
    segment: u64,
    is_output: bool,
    regions: &impl Regions,
) -> Option<()> {
    let (input_blocks, output_blocks) = job.shape.blocks(rank);
    let (blocks, place) = if is_output { (output_blocks, OWN_OUTPUT) } else { (input_blocks, OWN_INPUT) };
    if blocks == 0 {
        return Some(());
    }
    let own = regions.window(rank, Place { region: place, offset: 0 }, blocks * job.shape.block)?;
    let staging = regions.window(rank, part.input.or(part.output)?, BYTES)?;
    let length = usize::try_from(job.segment_length(segment)).ok()?;
    for block in 0..blocks {
        let at = usize::try_from(block * job.shape.block + segment * job.segment).ok()?;
        let staged = usize::try_from(start(job, segment, block, is_output)).ok()?;
        let (own, staged) = (own.sub(at, length)?, staging.sub(staged, length)?);
        if is_output {
            copy(stores(job), staged, own);
        } else {
            copy(Stores::Cached, own, staged);
        }
    }
    Some(())
}

/// Whether a rank's output changes: it takes something, or keeps what lies elsewhere.
fn writes_output(job: &Job, rank: u32, regions: &impl Regions) -> bool {
    let at = |region| {
        let window = regions.window(rank, Place { region, offset: 0 }, job.shape.block);
        window.map(|window| window.as_ptr())
    };
    job.shape.takes(rank) || job.shape.keeps(rank) && at(OWN_INPUT) != at(OWN_OUTPUT)
}

/// How results go to where they belong: past the caches when all ranks' results do not fit them.
fn stores(job: &Job) -> Stores {
    let bytes = job.shape.block.saturating_mul(2 * u64::from(job.shape.ranks));
    if ringway_reduce::streaming_pays(bytes, false) { Stores::Streaming } else { Stores::Cached }
}

fn copy(stores: Stores, from: Window<'_>, to: Window<'_>) {
    let done = ringway_reduce::copy_with(stores, from, &[to]);
    debug_assert!(done.is_ok(), "{done:?}");
}

impl Progress {
    /// Copies in the segments for which there is room; whether there were any.
    pub(crate) fn copy_in(
        &mut self,
        cell: &Cell,
        job: &Job,
        rank: (u32, &Part),
        regions: &impl Regions,
    ) -> bool {
        let before = self.published;
        while self.published < job.segments && self.published < self.finished + SEGMENTS_AHEAD {
            // What is not there cannot be copied, and was checked when the call was made.
            let copied = move_blocks(job, rank, self.published, false, regions);
            debug_assert!(copied.is_some(), "the caller's own memory is not there");
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
        cell: &Cell,
        job: &Job,
        rank: (u32, &Part),
        regions: &impl Regions,
    ) -> bool {
        let before = self.finished;
        while self.finished < self.published && job.is_done(cell, self.finished) {
            reach(Step::Ready);
            if writes_output(job, rank.0, regions) {
                let copied = move_blocks(job, rank, self.finished, true, regions);
                debug_assert!(copied.is_some(), "the caller's own memory is not there");
            }
            reach(Step::CopiedOut);
            self.finished += 1;
        }
        self.finished > before
    }
}
