//! Large calls whose lanes are one block each: allreduces of a few KiB, of which each rank does its own lane. What calls
//! are made of besides their work takes as long as the work there.
//!
//! For others such a call is as any large one, with the same records, claims and counts. Whatever is unusual (a rank that
//! is late, memory that is not mapped yet, a lane that nobody has claimed) is left to [`Member::poll`].

use arrayvec::ArrayVec;
use core::hint::spin_loop;

use ringway_reduce::{Source, Stores};

use crate::{
    CallMemory, Exchange, Place, Prepared, Regions, job,
    member::Member,
    record::Part,
    shape::{Need, Shape},
    step::{Step, reach},
};

type List<T> = ArrayVec<T, { crate::RANKS_MAX as usize }>;

/// What a rank does of such a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnLane {
    /// Bytes of the vector before it.
    offset: usize,
    length: usize,
}

impl OwnLane {
    /// `None` when the call is another one.
    pub(crate) fn of(shape: &Shape, rank: u32) -> Option<Self> {
        let part = job::one_block_lanes(shape)?;
        let offset = u64::from(rank) * part;
        let length = shape.block.saturating_sub(offset).min(part);
        Some(Self { offset: usize::try_from(offset).ok()?, length: usize::try_from(length).ok()? })
    }
}

impl Member {
    /// As [`Member::exchange`], for a large call.
    #[inline(never)]
    pub(crate) fn exchange_large(
        &mut self,
        (call, lane): (&Prepared, OwnLane),
        memory: &CallMemory<'_>,
        polls: u32,
        regions: &dyn Regions,
    ) -> Exchange {
        let sequence = self.next();
        let history = self.history_and(call.agreement);
        let [input, output] = memory.places;
        let part = Part { input, output, scale: memory.scale, staged: false, epoch: self.epoch };
        self.cell.write_part(self.rank, sequence, call.agreement, &part, &[]);
        self.publish(sequence, history);
        let mut seen = 0;
        if self.meet((sequence, history), &mut seen, Need::All, polls)
            && self.work_on(sequence, (call, lane), memory, regions).is_some()
            && self.see_done(sequence, polls)
        {
            self.finish_unkept(sequence, history, seen);
            self.cell.words.prefetch_for_writing(self.cell.layout.claim(sequence + 1, self.rank));
            return Exchange::Done;
        }
        self.keep(sequence, (call.agreement, history), call.shape, part);
        Exchange::Pending(sequence)
    }

    /// Does this rank's lane, if nobody else has claimed it; `None` when that takes more than is known here.
    fn work_on(
        &self,
        sequence: u64,
        (call, lane): (&Prepared, OwnLane),
        memory: &CallMemory<'_>,
        regions: &dyn Regions,
    ) -> Option<()> {
        if lane.length == 0 {
            return Some(());
        }
        let shape = &call.shape;
        let reduction = shape.reduction?;
        let (mut sources, mut outputs) = (List::new_const(), List::new_const());
        for rank in 0..shape.ranks {
            let (input, output, scale) = if rank == self.rank {
                (memory.input?, memory.output?, memory.scale)
            } else {
                let theirs = self.cell.part(rank, sequence);
                if theirs.staged || self.epochs.get(rank as usize) != Some(&theirs.epoch) {
                    return None;
                }
                let window = |place: Option<Place>| regions.window(rank, place?, shape.block);
                (window(theirs.input)?, window(theirs.output)?, theirs.scale)
            };
            let window = input.sub(lane.offset, lane.length)?;
            sources.try_push(Source { window, scale: shape.scale(|| scale) }).ok()?;
            outputs.try_push(output.sub(lane.offset, lane.length)?).ok()?;
        }
        let cell = &self.cell;
        cell.enter(self.rank, sequence);
        let claimed = cell.verdict().is_none()
            && cell.claim(cell.layout.claim(sequence, self.rank), sequence, 1).is_some();
        if claimed {
            reach(Step::Claimed);
            let divisor = shape.divisor(shape.ranks);
            let done = ringway_reduce::reduce_with(
                Stores::Cached,
                shape.datatype,
                reduction,
                &sources,
                &outputs,
                divisor,
            );
            debug_assert!(done.is_ok(), "{done:?}");
            reach(Step::Worked);
            cell.add_count(cell.layout.done(sequence, self.rank, 0), sequence, 1);
            reach(Step::Reported);
            cell.notify();
        }
        cell.leave(self.rank);
        reach(Step::Left);
        Some(())
    }

    /// Whether all lanes are done, or will soon be.
    fn see_done(&self, sequence: u64, polls: u32) -> bool {
        let cell = &self.cell;
        for lane in (0..cell.ranks()).filter(|lane| *lane != self.rank) {
            let (claim, done) = (cell.layout.claim(sequence, lane), cell.layout.done(sequence, lane, 0));
            let mut polled = 0;
            while cell.count(done, sequence) == 0 {
                if polled == polls || cell.count(claim, sequence) == 0 {
                    return false;
                }
                polled += 1;
                spin_loop();
            }
        }
        true
    }
}
