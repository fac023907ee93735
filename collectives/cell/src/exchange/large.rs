//! Large calls on one vector whose lanes are short: allreduces, reduces and broadcasts of some KiB, of which each rank does
//! its own lane, then what is left of others', of near ones first. What calls are made of besides their work takes as long as
//! the work there.
//!
//! For others such a call is as any large one, with the same records, claims and counts. Whatever is unusual (a rank that
//! is late, memory that is not mapped yet) is left to [`Member::poll`].

use arrayvec::ArrayVec;
use core::hint::spin_loop;

use ringway_mem::Window;
use ringway_reduce::{Source, Stores};

use crate::{
    CallMemory, Exchange, Place, Prepared, Regions,
    job::ShortLanes,
    member::Member,
    record::Part,
    shape::{Need, Shape},
    step::{Step, reach},
    worker::Weighed,
};

/// The most bytes of another's output whose lines are asked for at once: more are too many to be under way together.
const FETCHED_MAX: usize = 8 << 10;

type List<T> = ArrayVec<T, { crate::RANKS_MAX as usize }>;

/// A block of every input, scaled, and of every output.
struct Block<'w> {
    sources: List<Source<'w>>,
    outputs: List<Window<'w>>,
    /// Which of the outputs is this rank's own.
    own: Option<usize>,
    /// Every rank's input is its output.
    in_place: bool,
}

impl Block<'_> {
    /// Asks for the lines of others' outputs, which are in their caches, unless the inputs are there as well: reading those
    /// brings them.
    #[inline(always)]
    fn fetch_outputs(&self, stores: Stores) {
        if stores == Stores::Cached && !self.in_place {
            let others = self.outputs.iter().enumerate().filter(|(at, _)| self.own != Some(*at));
            let short = others.filter(|(_, output)| output.length() <= FETCHED_MAX);
            short.for_each(|(_, output)| output.prefetch_for_writing());
        }
    }

    /// Combines the sources into the outputs, or copies the only one; the bytes of memory read and written.
    #[inline(always)]
    fn run(&self, shape: &Shape, stores: Stores) -> u64 {
        let Self { sources, outputs, .. } = self;
        let Some(first) = sources.first() else { return 0 };
        let windows = match shape.reduction {
            Some(reduction) => {
                let (datatype, divisor) = (shape.datatype, shape.divisor(shape.ranks));
                let done =
                    ringway_reduce::reduce_with(stores, datatype, reduction, sources, outputs, divisor);
                debug_assert!(done.is_ok(), "{done:?}");
                sources.len() + outputs.len()
            }
            None => {
                let done = ringway_reduce::copy_with(stores, first.window, outputs);
                debug_assert!(done.is_ok(), "{done:?}");
                1 + outputs.len()
            }
        };
        (windows * first.window.length()) as u64
    }
}

impl Member {
    /// As [`Member::exchange`], for a large call.
    #[inline(never)]
    pub(crate) fn exchange_large(
        &mut self,
        (call, lanes): (&Prepared, ShortLanes),
        memory: &CallMemory<'_>,
        polls: u32,
        regions: &dyn Regions,
    ) -> Exchange {
        let sequence = self.next();
        let history = self.history_and(call.agreement);
        let [input, output] = memory.places;
        let part = Part { input, output, scale: memory.scale, staged: false, epoch: self.epoch };
        self.publish_large((sequence, history), call.agreement, &part, &[]);
        let mut seen = 0;
        if self.meet((sequence, history), &mut seen, Need::All, polls)
            && self.work_on(sequence, (call, lanes), memory, regions).is_some()
            && self.see_done((sequence, lanes.blocks), polls)
        {
            self.finish_unkept(sequence, history, seen);
            self.cell.words.prefetch_for_writing(self.cell.layout.claim(sequence + 1, self.rank));
            return Exchange::Done;
        }
        self.keep(sequence, (call.agreement, history), call.shape, part);
        Exchange::Pending(sequence)
    }

    /// Does what nobody else has claimed, of this rank's lane first; `None` when that takes more than is known here.
    fn work_on(
        &mut self,
        sequence: u64,
        (call, lanes): (&Prepared, ShortLanes),
        memory: &CallMemory<'_>,
        regions: &dyn Regions,
    ) -> Option<()> {
        let shape = &call.shape;
        self.order.look(&self.cell, sequence);
        // The lists are long: whoever returned them would copy them.
        let (sources, outputs) = (List::new_const(), List::new_const());
        let mut block = Block { sources, outputs, own: None, in_place: true };
        let mut found = lanes.block(self.rank, 0);
        self.find(&mut block, (sequence, shape, found), memory, regions)?;
        let windows = block.sources.len() + block.outputs.len();
        let (stores, weighed) = self.choose_stores(sequence, (shape, windows as u64 * shape.block), &block);
        block.fetch_outputs(stores);
        let cell = &self.cell;
        cell.enter(self.rank, sequence);
        let mut bytes = 0;
        for lane in self.order.lanes() {
            let mut blocks = 0;
            while cell.verdict().is_none()
                && let Some(claimed) = cell.claim(cell.layout.claim(sequence, lane), sequence, lanes.blocks)
            {
                reach(Step::Claimed);
                let at = lanes.block(lane, claimed);
                // Found where the first was, unless a rank has changed what it said: its own loss.
                if at == found || self.find(&mut block, (sequence, shape, at), memory, regions).is_some() {
                    bytes += block.run(shape, stores);
                }
                found = at;
                reach(Step::Worked);
                blocks += 1;
            }
            if blocks > 0 {
                cell.add_count(cell.layout.done(sequence, lane, 0), sequence, blocks);
            }
        }
        reach(Step::Reported);
        cell.notify();
        cell.leave(self.rank);
        reach(Step::Left);
        if let Some(weighed) = weighed {
            self.worker.learn(weighed, bytes);
        }
        Some(())
    }

    /// Finds a block of every rank's vectors.
    #[inline(always)]
    fn find<'w>(
        &self,
        block: &mut Block<'w>,
        (sequence, shape, (offset, length)): (u64, &Shape, (usize, usize)),
        memory: &CallMemory<'w>,
        regions: &'w dyn Regions,
    ) -> Option<()> {
        block.sources.clear();
        block.outputs.clear();
        for rank in 0..shape.ranks {
            let own = rank == self.rank;
            let (places, scale) = if own {
                (memory.places, memory.scale)
            } else {
                let theirs = self.cell.part(rank, sequence);
                if theirs.staged || self.epochs.get(rank as usize) != Some(&theirs.epoch) {
                    return None;
                }
                ([theirs.input, theirs.output], theirs.scale)
            };
            let window = |place: Option<Place>| regions.window(rank, place?, shape.block);
            let in_place = places[0] == places[1];
            let (reads, writes) = shape.blocks(rank);
            if reads > 0 {
                let whole = if own { memory.input } else { window(places[0]) };
                let scale = shape.scale(|| scale);
                block.sources.try_push(Source { window: whole?.sub(offset, length)?, scale }).ok()?;
            }
            // What is copied is there already.
            if writes > 0 && !(in_place && shape.reduction.is_none()) {
                let whole = if own { memory.output } else { window(places[1]) };
                if own {
                    block.own = Some(block.outputs.len());
                }
                block.outputs.try_push(whole?.sub(offset, length)?).ok()?;
            }
            block.in_place &= in_place;
        }
        Some(())
    }

    /// How outputs are written in a call that touches so many bytes in all.
    fn choose_stores(
        &mut self,
        sequence: u64,
        (shape, touched): (&Shape, u64),
        block: &Block<'_>,
    ) -> (Stores, Option<Weighed>) {
        if block.in_place || !ringway_reduce::streaming_to_others_matters(touched) {
            return (Stores::Cached, None);
        }
        let (past, weighed) = self.worker.goes_past(sequence, shape, touched);
        let stores = match block.own {
            _ if !past => Stores::Cached,
            Some(own) => Stores::StreamingBut(own),
            None => Stores::Streaming,
        };
        (stores, Some(weighed))
    }

    /// Whether all lanes, of so many blocks each, are done soon: this rank's too, of which others may have taken blocks.
    fn see_done(&self, (sequence, blocks): (u64, u64), polls: u32) -> bool {
        let done = |lane| self.cell.count(self.cell.layout.done(sequence, lane, 0), sequence) >= blocks;
        (0..self.cell.ranks()).all(|lane| {
            (0..polls).any(|poll| {
                if poll > 0 {
                    spin_loop();
                }
                done(lane)
            })
        })
    }
}
