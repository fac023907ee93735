//! Large calls, as one rank takes part in them.

use crate::{
    Poll, Regions,
    member::{Member, Seen, see},
    shape::Need,
    staged::{self, Progress},
    step::{Step, reach},
    work::{Unmapped, Views},
};

/// Bytes of memory read and written between two looks at the verdict: less than a tenth of a millisecond's worth. Then
/// the processor goes to whoever else wants it, such as ranks of a small call beside this one.
const BYTES_PER_ROUND: u64 = 1 << 20;

/// How far a rank is with a large call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Large {
    progress: Progress,
    /// Every block is claimed: nothing is left to do but to wait.
    exhausted: bool,
    /// The lanes below this one are complete.
    complete: u32,
}

impl Member {
    pub(crate) fn poll_large(&mut self, sequence: u64, regions: &impl Regions) -> Poll {
        let index = (sequence % crate::SLOTS) as usize;
        let Some(call) = self.calls.get_mut(index) else { return Poll::Done };
        let first_time = call.seen < self.cell.ranks();
        match see(&self.cell, call, self.rank, Need::All) {
            Seen::All => {}
            seen => return self.wait_for(seen, sequence),
        }
        let (shape, part) = (call.shape, call.part);
        if self.job.sequence != sequence && self.job.load(&self.cell, sequence, shape).is_err() {
            return self.wait_for(Seen::Other(self.rank), sequence);
        }
        if first_time && let Some(rank) = self.stale() {
            return Poll::Stale { rank };
        }
        let mut large = self.calls.get(index).map_or(Large::default(), |call| call.large);
        let outcome = self.advance(&mut large, regions);
        let over = match outcome {
            Ok(true) if part.staged => large.progress.finished == self.job.segments,
            Ok(true) => self.job.is_complete(&self.cell, &mut large.complete),
            _ => false,
        };
        if let Some(call) = self.calls.get_mut(index) {
            call.large = large;
        }
        if let Err(Unmapped { rank, region }) = outcome {
            return Poll::Unmapped { rank, region };
        }
        if !over {
            return self.wait_for(Seen::NotYet, sequence);
        }
        self.job.sequence = 0;
        self.finish(sequence);
        let next = self.cell.layout.claim(sequence + 1, self.rank);
        self.cell.words.prefetch_for_writing(next);
        Poll::Done
    }

    /// Others' memory that [`Poll::Unmapped`] told of cannot be had: whoever can reach it does this rank's part of the work.
    /// Whether that may be; if not, for lack of it this rank cannot go on.
    pub fn leave_lane(&mut self, sequence: u64, regions: &impl Regions) -> bool {
        let Self { cell, job, rank, calls, .. } = self;
        let own = job.parts.get(*rank as usize).filter(|part| part.staged && job.sequence == sequence);
        let (Some(own), Some(call)) = (own, calls.get_mut((sequence % crate::SLOTS) as usize)) else {
            return true;
        };
        call.large.progress.leave_lane(cell, job, (*rank, own), regions)
    }

    /// A rank that has released regions since this was last asked.
    fn stale(&mut self) -> Option<u32> {
        for (rank, (known, part)) in (0..).zip(self.epochs.iter_mut().zip(&self.job.parts)) {
            if rank != self.rank && *known != part.epoch {
                *known = part.epoch;
                // The next poll looks again.
                let call = self.calls.get_mut((self.job.sequence % crate::SLOTS) as usize);
                if let Some(call) = call {
                    call.seen = call.seen.saturating_sub(1);
                }
                return Some(rank);
            }
        }
        None
    }

    /// Works until nothing is left to do now; whether all that is asked of this rank may be over. `Ok(false)` when the
    /// communicator has failed.
    fn advance(&mut self, large: &mut Large, regions: &impl Regions) -> Result<bool, Unmapped> {
        let own = self.job.parts.get(self.rank as usize).copied().unwrap_or_default();
        loop {
            let mut moved = false;
            if own.staged {
                let Self { cell, job, rank, worker, .. } = self;
                if large.progress.published == 0 && !staged::does_own_lane(job, worker.is_roomy()) {
                    large.progress.leave_lane(cell, job, (*rank, &own), regions);
                }
                moved |= large.progress.copy_out(worker, cell, job, (*rank, &own), regions);
                moved |= large.progress.copy_in(worker, cell, job, (*rank, &own), regions);
            }
            if !large.exhausted {
                let does_own_lane = own.staged && !large.progress.whole;
                let (left, worked) = self.work(does_own_lane, regions)?;
                if left {
                    return Ok(false);
                }
                moved |= worked;
                // Without staging, blocks only ever become fewer.
                large.exhausted = !(self.job.staged || self.is_brief && worked);
            }
            if !moved || !self.job.staged || self.is_brief {
                return Ok(true);
            }
        }
    }

    /// Claims and does blocks until there are none, those of its own lane straight from and to memory that nobody else can
    /// reach, if it is to. Whether the communicator has failed, and whether any were done.
    fn work(&mut self, does_own_lane: bool, regions: &impl Regions) -> Result<(bool, bool), Unmapped> {
        if !self.job.is_claimable(&self.cell, self.worker.rank) {
            return Ok((false, false));
        }
        self.order.look(&self.cell, self.job.sequence);
        let mut views = Views::new(self.worker.rank);
        views.resolve(&self.job, regions)?;
        if does_own_lane {
            views.resolve_private(&self.job, regions);
        }
        self.cell.enter(self.rank, self.job.sequence);
        let mut worked = false;
        let failed = loop {
            if self.cell.verdict().is_some() {
                break true;
            }
            let lanes = self.order.lanes();
            let blocks_max = if self.is_brief { 1 } else { u64::MAX };
            let limits = (blocks_max, BYTES_PER_ROUND);
            let done = self.worker.work((&self.cell, &self.job), &mut views, lanes, limits);
            worked |= done.blocks > 0;
            if done.bytes < BYTES_PER_ROUND || self.is_brief {
                break false;
            }
            self.worker.hand_over();
        };
        self.cell.leave(self.rank);
        reach(Step::Left);
        Ok((failed, worked))
    }
}
