//! Working on a job: claiming blocks and doing them.

use arrayvec::ArrayVec;
use ringway_mem::Window;
use ringway_reduce::{ScanStep, Source, Stores};
use ringway_types::Operation;

use crate::{
    OWN_INPUT, OWN_OUTPUT, Place, Regions,
    cell::Cell,
    job::{Job, Piece, Side},
    layout::SEGMENTS_AHEAD,
    staged,
    step::{Step, reach},
};

/// One entry for each rank.
type List<T> = ArrayVec<T, { crate::RANKS_MAX as usize }>;

/// The memory of a job's ranks while it is worked on, and lists that kernels take.
#[derive(Debug)]
pub(crate) struct Views<'a> {
    /// The rank that works; `None` for the daemon.
    worker: Option<u32>,
    inputs: List<Option<Window<'a>>>,
    outputs: List<Option<Window<'a>>>,
    /// The worker's own input and output where nobody else can reach them, for the lane that it does itself.
    private: [Option<Window<'a>>; 2],
    /// The lane at work is that one.
    is_private: bool,
    destinations: List<Window<'a>>,
    /// Which of the destinations is the worker's own output.
    own: Option<usize>,
    stores: Stores,
    /// Bytes of memory that the whole call touches.
    bytes: u64,
    /// Others' outputs are written past the caches, whatever `stores` says of the worker's own.
    pub(crate) streams_to_others: bool,
    /// The worker's own output is, where nobody else can reach it.
    streams_to_private: bool,
}

/// A region that a rank named and that is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unmapped {
    pub(crate) rank: u32,
    pub(crate) region: u64,
}

/// What a turn of work has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Worked {
    pub(crate) blocks: u64,
    /// Bytes of memory read and written.
    pub(crate) bytes: u64,
}

/// Whether whoever works on a block writes it to several ranks. A worker of an all_to_all moves two blocks between two
/// ranks, which measured better through the caches.
const fn spreads(operation: Operation) -> bool {
    !matches!(operation, Operation::AllToAll | Operation::AllToAllV)
}

impl<'a> Views<'a> {
    /// Without any rank's memory. The lists are long: whoever gives this value on copies them.
    #[inline(always)]
    pub(crate) fn new(worker: Option<u32>) -> Self {
        Self {
            worker,
            inputs: List::new_const(),
            outputs: List::new_const(),
            private: [None; 2],
            is_private: false,
            destinations: List::new_const(),
            own: None,
            stores: Stores::default(),
            bytes: 0,
            streams_to_others: false,
            streams_to_private: false,
        }
    }

    /// Finds the worker's own slices, for the lane that it does itself.
    pub(crate) fn resolve_private(&mut self, job: &Job, regions: &'a impl Regions) {
        let Some(rank) = self.worker else { return };
        let (inputs, outputs) = job.shape.blocks(rank);
        let find = |region, blocks: u64| {
            let bytes = blocks.checked_mul(job.shape.block).filter(|bytes| *bytes > 0)?;
            regions.window(rank, Place { region, offset: 0 }, bytes)
        };
        self.private = [find(OWN_INPUT, inputs), find(OWN_OUTPUT, outputs)];
        self.streams_to_private = staged::stores(job) == Stores::Streaming;
    }

    /// Finds every rank's memory.
    pub(crate) fn resolve(&mut self, job: &Job, regions: &'a impl Regions) -> Result<(), Unmapped> {
        for (rank, part) in (0..).zip(&job.parts) {
            let unknown = |region| Unmapped { rank, region };
            let (input, output) = job.shape.extents(rank, &job.tables).ok_or(unknown(u64::MAX))?;
            let staged = part.staged;
            let find = |place: Option<Place>, bytes: u64| match place {
                _ if bytes == 0 => Ok(None),
                None => Err(unknown(u64::MAX)),
                Some(place) => {
                    let bytes = if staged { staged::BYTES } else { bytes };
                    regions.window(rank, place, bytes).map(Some).ok_or(unknown(place.region))
                }
            };
            // There are no more parts than ranks.
            let _ = self.inputs.try_push(find(part.input, input)?);
            let _ = self.outputs.try_push(find(part.output, output)?);
        }
        self.choose_stores(job);
        Ok(())
    }

    /// Streaming stores pay where the call's memory does not fit the caches.
    fn choose_stores(&mut self, job: &Job) {
        let length = |window: &Option<Window<'_>>| window.map_or(0, |w| w.length() as u64);
        self.bytes = self.inputs.iter().chain(&self.outputs).map(length).sum();
        let streams = !job.staged && ringway_reduce::streaming_pays(self.bytes, false);
        self.stores = if streams { Stores::Streaming } else { Stores::Cached };
    }

    /// Bytes of memory that the whole call touches, when it is a question how others' outputs are written. Outputs that
    /// are inputs as well are written through the caches in any case.
    pub(crate) fn bytes_to_others(&self, job: &Job) -> Option<u64> {
        let in_place = || job.parts.iter().all(|part| part.input == part.output);
        let asks = self.stores == Stores::Cached
            && ringway_reduce::streaming_to_others_matters(self.bytes)
            && !(job.staged || job.pulls)
            && spreads(job.shape.operation)
            && !in_place();
        asks.then_some(self.bytes)
    }

    /// For the destinations as they are now.
    fn stores(&self) -> Stores {
        match self.own {
            Some(own) if self.is_private && self.streams_to_private => Stores::StreamingOnly(own),
            _ if !self.streams_to_others => self.stores,
            None => Stores::Streaming,
            Some(own) => Stores::StreamingBut(own),
        }
    }

    /// A part of a rank's memory: of its only block, or of the one `of` a rank.
    fn at(
        &self,
        job: &Job,
        (rank, side, of): (u32, Side, Option<u32>),
        segment: u64,
        (offset, length): (u64, u64),
    ) -> Option<Window<'a>> {
        let part = job.parts.get(rank as usize)?;
        let is_private = self.is_private && part.staged && self.worker == Some(rank);
        let window = match side {
            Side::Input if is_private => self.private[0],
            Side::Output if is_private => self.private[1],
            Side::Input => *self.inputs.get(rank as usize)?,
            Side::Output => *self.outputs.get(rank as usize)?,
        }?;
        let element = job.shape.datatype.size() as u64;
        let start = if part.staged && !is_private {
            staged::start(job, segment, u64::from(of.unwrap_or(0)), side)
        } else if !job.shape.operation.has_counts() {
            u64::from(of.unwrap_or(0)) * job.shape.block + segment * job.segment
        } else {
            let elements = match of {
                None => 0,
                Some(of) if job.shape.operation != Operation::AllToAllV => job.tables.sent(0, of).0,
                Some(of) if side == Side::Input => job.tables.sent(rank, of).0,
                Some(of) => job.tables.received(rank, of).0,
            };
            elements.checked_mul(element)?
        };
        let start = usize::try_from(start.checked_add(offset)?).ok()?;
        window.sub(start, usize::try_from(length).ok()?)
    }

    fn source(&self, job: &Job, at: (u32, Option<u32>), segment: u64, piece: &Piece) -> Option<Source<'a>> {
        let (rank, of) = at;
        let window = self.at(job, (rank, Side::Input, of), segment, (piece.offset, piece.length))?;
        let bits = job.parts.get(rank as usize)?.scale;
        Some(Source { window, scale: job.shape.scale(|| bits) })
    }

    /// Combines every rank's input into the outputs in `self.destinations`.
    fn reduce(&mut self, job: &Job, of: Option<u32>, segment: u64, piece: &Piece) -> Option<u64> {
        let mut sources = List::new_const();
        for rank in 0..job.shape.ranks {
            sources.try_push(self.source(job, (rank, of), segment, piece)?).ok()?;
        }
        let divisor = job.shape.divisor(job.shape.ranks);
        let reduction = job.shape.reduction?;
        let (datatype, to) = (job.shape.datatype, &self.destinations);
        let done = ringway_reduce::reduce_with(self.stores(), datatype, reduction, &sources, to, divisor);
        debug_assert!(done.is_ok(), "{done:?}");
        Some((sources.len() + self.destinations.len()) as u64 * piece.length)
    }

    fn scan(&mut self, job: &Job, segment: u64, piece: &Piece) -> Option<u64> {
        let inclusive = job.shape.operation == Operation::Scan;
        let mut steps: List<ScanStep<'_>> = List::new_const();
        for rank in 0..job.shape.ranks {
            let input = self.source(job, (rank, None), segment, piece)?;
            let at = (rank, Side::Output, None);
            let output = self.at(job, at, segment, (piece.offset, piece.length))?;
            steps.try_push(ScanStep { input, output: (inclusive || rank > 0).then_some(output) }).ok()?;
        }
        let reduction = job.shape.reduction?;
        let done = ringway_reduce::scan(job.shape.datatype, reduction, None, &steps, inclusive, 0, None);
        debug_assert!(done.is_ok(), "{done:?}");
        Some(2 * steps.len() as u64 * piece.length)
    }

    /// Adds an output to the destinations, unless it is where the data comes from.
    fn deliver(&mut self, rank: u32, to: Option<Window<'a>>, from: Option<&Window<'a>>) -> Option<()> {
        let to = to?;
        if from.is_none_or(|from| from.as_ptr() != to.as_ptr()) {
            if self.worker == Some(rank) {
                self.own = Some(self.destinations.len());
            }
            self.destinations.try_push(to).ok()?;
        }
        Some(())
    }

    /// No outputs yet.
    fn begin_outputs(&mut self) {
        self.destinations.clear();
        self.own = None;
    }

    fn copy(&mut self, from: Window<'a>) -> u64 {
        if self.destinations.is_empty() {
            return 0;
        }
        let done = ringway_reduce::copy_with(self.stores(), from, &self.destinations);
        debug_assert!(done.is_ok(), "{done:?}");
        (self.destinations.len() as u64 + 1) * from.length() as u64
    }

    /// Does one piece; the bytes of memory read and written. `None` when a rank's memory is not as the call needs it.
    fn run(&mut self, job: &Job, lane: u32, piece: &Piece, segment: u64) -> Option<u64> {
        let range = (piece.offset, piece.length);
        let everybody = 0..job.shape.ranks;
        let (root, owner) = (job.shape.root, piece.rank);
        self.is_private = self.worker == Some(lane) && self.private.iter().any(Option::is_some);
        self.begin_outputs();
        match job.shape.operation {
            Operation::Allreduce => {
                for rank in everybody {
                    let to = self.at(job, (rank, Side::Output, None), segment, range);
                    self.deliver(rank, to, None)?;
                }
                self.reduce(job, None, segment, piece)
            }
            Operation::Reduce => {
                let to = self.at(job, (root, Side::Output, None), segment, range);
                self.deliver(root, to, None)?;
                self.reduce(job, None, segment, piece)
            }
            Operation::ReduceScatter | Operation::ReduceScatterV => {
                let to = self.at(job, (owner, Side::Output, None), segment, range);
                self.deliver(owner, to, None)?;
                self.reduce(job, Some(owner), segment, piece)
            }
            Operation::Scan | Operation::Exscan => self.scan(job, segment, piece),
            Operation::AllGather if self.is_private && owner == lane && job.keeps_while_staging() => Some(0),
            Operation::Broadcast | Operation::AllGather | Operation::AllToAll if job.pulls => {
                let to_me = (job.shape.operation == Operation::AllToAll).then_some(lane);
                let of = (job.shape.operation != Operation::Broadcast).then_some(owner);
                let from = self.at(job, (owner, Side::Input, to_me), segment, range)?;
                let to = self.at(job, (lane, Side::Output, of), segment, range);
                self.deliver(lane, to, Some(&from))?;
                Some(self.copy(from))
            }
            Operation::Broadcast => {
                let from = self.at(job, (root, Side::Input, None), segment, range)?;
                for rank in everybody {
                    let to = self.at(job, (rank, Side::Output, None), segment, range);
                    self.deliver(rank, to, Some(&from))?;
                }
                Some(self.copy(from))
            }
            Operation::AllGather | Operation::AllGatherV => {
                let from = self.at(job, (owner, Side::Input, None), segment, range)?;
                for rank in everybody {
                    let to = self.at(job, (rank, Side::Output, Some(owner)), segment, range);
                    self.deliver(rank, to, Some(&from))?;
                }
                Some(self.copy(from))
            }
            Operation::Gather | Operation::GatherV => {
                let from = self.at(job, (owner, Side::Input, None), segment, range)?;
                let to = self.at(job, (root, Side::Output, Some(owner)), segment, range);
                self.deliver(root, to, Some(&from))?;
                Some(self.copy(from))
            }
            Operation::Scatter | Operation::ScatterV => {
                let from = self.at(job, (root, Side::Input, Some(owner)), segment, range)?;
                let to = self.at(job, (owner, Side::Output, None), segment, range);
                self.deliver(owner, to, Some(&from))?;
                Some(self.copy(from))
            }
            Operation::AllToAll | Operation::AllToAllV => self.exchange(job, (lane, owner), segment, piece),
            Operation::Barrier | Operation::Send | Operation::Receive => Some(0),
        }
    }

    /// Exchanges a part of the blocks that two ranks have for each other, either of which may work in place.
    fn exchange(&mut self, job: &Job, (a, b): (u32, u32), segment: u64, piece: &Piece) -> Option<u64> {
        let element = job.shape.datatype.size() as u64;
        let length = |from: u32, to: u32| {
            if !job.shape.operation.has_counts() {
                return piece.length;
            }
            let whole = job.tables.sent(from, to).1.saturating_mul(element);
            whole.saturating_sub(piece.offset).min(piece.length)
        };
        let ends = |from: u32, to: u32, views: &Self| {
            let range = (piece.offset, length(from, to));
            let input = views.at(job, (from, Side::Input, Some(to)), segment, range);
            let output = views.at(job, (to, Side::Output, Some(from)), segment, range);
            if range.1 == 0 { Some(None) } else { Some(Some((input?, output?))) }
        };
        let (there, back) = (ends(a, b, self)?, ends(b, a, self)?);
        if let (Some((from_a, to_b)), Some((from_b, to_a))) = (there, back)
            && a != b
        {
            let (a_in_place, b_in_place) =
                (from_a.as_ptr() == to_a.as_ptr(), from_b.as_ptr() == to_b.as_ptr());
            if a_in_place && b_in_place {
                let done = ringway_reduce::swap(from_a, from_b);
                debug_assert!(done.is_ok(), "{done:?}");
                return Some(4 * piece.length);
            }
            if b_in_place {
                // Its block is read before it is written.
                return Some(self.move_one(a, (from_b, to_a)) + self.move_one(b, (from_a, to_b)));
            }
        }
        let mut bytes = there.map_or(0, |ends| self.move_one(b, ends));
        if a != b {
            bytes += back.map_or(0, |ends| self.move_one(a, ends));
        }
        Some(bytes)
    }

    fn move_one(&mut self, rank: u32, (from, to): (Window<'a>, Window<'a>)) -> u64 {
        self.begin_outputs();
        if self.deliver(rank, Some(to), Some(&from)).is_none() {
            return 0;
        }
        self.copy(from)
    }
}

impl Job {
    /// Segments that every staged rank has published.
    fn published(&self, cell: &Cell) -> u64 {
        if !self.staged {
            return 1;
        }
        let staged = (0..).zip(&self.parts).filter(|(_, part)| part.staged);
        let offered = staged.map(|(rank, _)| cell.offered(rank, self.sequence).segments);
        offered.min().unwrap_or(0).min(self.segments)
    }

    /// Whether a worker may take blocks of a lane: one of a rank that nobody can reach is its own.
    fn may_take(&self, cell: &Cell, worker: Option<u32>, lane: u32) -> bool {
        let is_staged = self.parts.get(lane as usize).is_some_and(|part| part.staged);
        !is_staged || worker == Some(lane) || cell.offered(lane, self.sequence).whole
    }

    /// Whether every block of a lane's segment is done.
    pub(crate) fn is_lane_done(&self, cell: &Cell, lane: u32, segment: u64) -> bool {
        let rounds = segment / SEGMENTS_AHEAD + 1;
        let needed = rounds.saturating_mul(self.lane_blocks(lane));
        needed == 0 || cell.count(cell.layout.done(self.sequence, lane, segment), self.sequence) >= needed
    }

    /// Whether every block of a segment is done.
    pub(crate) fn is_done(&self, cell: &Cell, segment: u64) -> bool {
        (0..self.shape.ranks).all(|lane| self.is_lane_done(cell, lane, segment))
    }

    /// Whether every block of every segment is done. The lanes below `complete` are known to be.
    pub(crate) fn is_complete(&self, cell: &Cell, complete: &mut u32) -> bool {
        let last = self.segments.saturating_sub(1);
        let segments = last.saturating_sub(SEGMENTS_AHEAD - 1)..=last;
        while *complete < self.shape.ranks
            && segments.clone().all(|segment| self.is_lane_done(cell, *complete, segment))
        {
            *complete += 1;
        }
        *complete == self.shape.ranks
    }

    /// Whether there is a block to claim for a worker; looks at a rank's own lane before the others.
    pub(crate) fn is_claimable(&self, cell: &Cell, worker: Option<u32>) -> bool {
        let (published, first) = (self.published(cell), worker.unwrap_or(0));
        (first..self.shape.ranks).chain(0..first).any(|lane| {
            let limit = self.lane_blocks(lane).saturating_mul(published);
            cell.count(cell.layout.claim(self.sequence, lane), self.sequence) < limit
                && self.may_take(cell, worker, lane)
        })
    }

    /// Claims and does blocks, in the order of `lanes`, until none is left, `blocks_max` are done, or `bytes_max` bytes
    /// of memory were read and written. Every claimed block is reported as done.
    pub(crate) fn work<'a>(
        &self,
        cell: &Cell,
        views: &mut Views<'a>,
        lanes: impl Iterator<Item = u32>,
        (blocks_max, bytes_max): (u64, u64),
    ) -> Worked {
        let published = self.published(cell);
        let mut worked = Worked::default();
        let report = |lane, segment, blocks| {
            if blocks > 0 {
                cell.add_count(cell.layout.done(self.sequence, lane, segment), self.sequence, blocks);
            }
        };
        for lane in lanes {
            if !self.may_take(cell, views.worker, lane) {
                continue;
            }
            // Blocks done and not yet reported, of one segment.
            let (mut segment, mut unreported) = (0, 0);
            let each = self.lane_blocks(lane);
            let limit = each.saturating_mul(published);
            while worked.blocks < blocks_max && worked.bytes < bytes_max {
                let Some(block) = cell.claim(cell.layout.claim(self.sequence, lane), self.sequence, limit)
                else {
                    break;
                };
                reach(Step::Claimed);
                let now = block.checked_div(each).unwrap_or(0);
                if now != segment {
                    report(lane, segment, core::mem::take(&mut unreported));
                    segment = now;
                }
                if let Some(piece) = self.piece(lane, block - now * each, now) {
                    let bytes = views.run(self, lane, &piece, now);
                    // A block counts for at least its own length, so that none is free of cost.
                    worked.bytes += bytes.unwrap_or(0).max(piece.length);
                }
                reach(Step::Worked);
                unreported += 1;
                worked.blocks += 1;
            }
            report(lane, segment, unreported);
        }
        if worked.blocks > 0 {
            reach(Step::Reported);
            // Parts of what is not staged are nothing to wait for.
            cell.notify_those(|_| self.staged || self.is_complete(cell, &mut 0));
        }
        worked
    }
}
