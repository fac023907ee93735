//! The daemon's part in a cell: work on calls for which a rank wants help.

use crate::{
    Clock, Regions, SLOTS, budget, cell::Cell, job::Job, lane_order::LaneOrder, shape::Shape, work::Views,
    worker::Worker,
};

/// The daemon's worker for one cell. It believes nothing of what the cell says: records are copied and parsed, memory is
/// what [`Regions`] finds for a rank, and no call gets more work than its blocks are worth.
#[derive(Debug)]
pub struct Helper {
    cell: Cell,
    /// Calls up to this one need no help any more.
    through: u64,
    /// Blocks done of the calls after that one, by slot.
    spent: Box<[(u64, u64)]>,
    job: Job,
    worker: Worker,
    order: LaneOrder,
    /// How many threads of the ranks and the daemon can run at a time.
    quota: Option<u32>,
}

/// Where a call stands.
enum Standing {
    /// It needs no help: it is small, complete, or over.
    Through,
    /// A rank has not called it.
    Early,
    /// There is nothing to claim in it, or it is not as it should be.
    Nothing,
    /// There are blocks to claim.
    Claimable,
}

impl Helper {
    /// A worker for a cell.
    #[must_use]
    pub fn new(cell: Cell) -> Self {
        cell.prepare_to_sleep();
        let ranks = cell.ranks();
        let job = Job::new(ranks);
        let spent = vec![(0, 0); SLOTS as usize].into_boxed_slice();
        let order = LaneOrder::new(None, ranks);
        Self { cell, through: 0, spent, job, worker: Worker::new(None), order, quota: None }
    }

    /// Lets it learn by this clock how to write outputs: which way costs less depends on the machine.
    #[must_use]
    pub fn learning_by(mut self, clock: Clock) -> Self {
        self.worker.learn_by(clock);
        self
    }

    /// No more than so many threads of the ranks and the daemon can run at a time.
    #[must_use]
    pub const fn within(mut self, quota: u32) -> Self {
        self.quota = Some(quota);
        self
    }

    /// The daemon works on this NUMA node now, if it is known: it takes blocks of ranks there first.
    pub fn set_node(&mut self, node: Option<u32>) {
        self.order.set_daemons_node(node);
    }

    /// The cell.
    #[must_use]
    pub const fn cell(&self) -> &Cell {
        &self.cell
    }

    /// The last call that a rank wants help with; bounded by what can be under way.
    fn wanted(&self) -> u64 {
        (0..self.cell.ranks()).map(|rank| self.cell.wanted(rank)).max().unwrap_or(0)
    }

    /// Whether [`Helper::work`] would find something to do.
    #[must_use]
    pub fn has_work(&mut self) -> bool {
        self.next().is_some()
    }

    /// Works for about `bytes_max` bytes of memory read and written, in blocks of at most 64 KiB of each operand; the
    /// bytes, zero when there is nothing to do now.
    pub fn work(&mut self, regions: &impl Regions, bytes_max: u64) -> u64 {
        let Some(sequence) = self.next() else { return 0 };
        let mut bytes = 0;
        let mut views = Views::new(None);
        if views.resolve(&self.job, regions).is_ok() {
            let slot = (sequence % SLOTS) as usize;
            let spent =
                self.spent.get(slot).filter(|(of, _)| *of == sequence).map_or(0, |(_, blocks)| *blocks);
            let total = self.job.blocks.saturating_mul(self.job.segments);
            let left = total.saturating_sub(spent);
            if self.order.look(&self.cell, sequence) {
                let (together, _) = self.cell.processors();
                self.worker.set_processors(budget(&together, self.quota), self.cell.ranks());
            }
            let lanes = self.order.lanes();
            let worked = self.worker.work((&self.cell, &self.job), &mut views, lanes, (left, bytes_max));
            if let Some(entry) = self.spent.get_mut(slot) {
                *entry = (sequence, spent + worked.blocks);
            }
            // Blocks of no bytes are work as well.
            bytes = worked.bytes.max(worked.blocks);
        }
        bytes
    }

    /// The first call with something to claim, loaded as the job.
    fn next(&mut self) -> Option<u64> {
        let wanted = self.wanted();
        if wanted <= self.through {
            return None;
        }
        // A rank is never further ahead of the slowest than there are slots; whoever says so gets help late.
        let end = wanted.min(self.through.saturating_add(2 * SLOTS));
        let mut all_through = true;
        for sequence in self.through + 1..=end {
            match self.standing(sequence) {
                Standing::Through if all_through => self.through = sequence,
                Standing::Through => {}
                Standing::Early => return None,
                Standing::Nothing => all_through = false,
                Standing::Claimable => return Some(sequence),
            }
        }
        None
    }

    fn standing(&mut self, sequence: u64) -> Standing {
        let ranks = self.cell.ranks();
        if (0..ranks).any(|rank| self.cell.is_overwritten(rank, sequence)) {
            return Standing::Through;
        }
        if self.job.sequence != sequence {
            let mut agreed = None;
            for rank in 0..ranks {
                let Some(agreement) = self.cell.agreement(rank, sequence) else { return Standing::Early };
                if *agreed.get_or_insert(agreement) != agreement {
                    return Standing::Nothing;
                }
            }
            let shape = agreed.and_then(|a| a.signature()).and_then(|s| Shape::of(&s, ranks));
            let Some(shape) = shape else { return Standing::Nothing };
            if shape.is_small() {
                return Standing::Through;
            }
            if self.job.load(&self.cell, sequence, shape).is_err() {
                return Standing::Nothing;
            }
        }
        let spent = self.spent.get((sequence % SLOTS) as usize).filter(|(of, _)| *of == sequence);
        let total = self.job.blocks.saturating_mul(self.job.segments);
        if self.job.is_complete(&self.cell, &mut 0) {
            Standing::Through
        } else if spent.is_none_or(|(_, blocks)| *blocks < total) && self.job.is_claimable(&self.cell, None) {
            Standing::Claimable
        } else {
            Standing::Nothing
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use ringway_mem::{Mapping, Window};
    use ringway_types::{DataType, Operation, Reduction};

    use super::*;
    use crate::{Call, Member, Place};

    const BYTES: u64 = 256 << 10;

    /// Every rank's region, by rank.
    struct Owned(Vec<Arc<Mapping>>);

    impl Regions for Owned {
        fn window(&self, _: u32, place: Place, length: u64) -> Option<Window<'_>> {
            self.0.get(place.region as usize)?.window(place.offset, length)
        }
    }

    #[test]
    fn the_daemon_does_blocks_of_ranks_on_its_node_first() {
        let map = |bytes: u64| Arc::new(Mapping::private(bytes as usize).expect("map"));
        for (node, expected) in [(0, [1, 0, 3, 2]), (1, [3, 2, 1, 0])] {
            let cell = Cell::attach(map(crate::bytes(4).expect("ranks")), 4).expect("attach");
            let regions = Owned((0..4).map(|_| map(BYTES)).collect());
            for (rank, of) in (0..).zip([0, 0, 1, 1]) {
                let mut member = Member::new(cell.clone(), rank);
                member.set_node(of);
                let place = Some(Place { region: u64::from(rank), offset: 0 });
                let (operation, reduction) = (Operation::Allreduce, Some(Reduction::Sum));
                let call = Call {
                    operation,
                    datatype: DataType::U64,
                    reduction,
                    count: BYTES / 8,
                    input: place,
                    output: place,
                    ..Call::BARRIER
                };
                assert_eq!(member.begin(&call, true, &regions), Some(1));
            }
            let mut helper = Helper::new(cell.clone());
            helper.set_node(Some(node));
            let claimed = |lane| cell.count(cell.layout.claim(1, lane), 1);
            let mut order = Vec::new();
            while helper.work(&regions, 1) > 0 {
                order.extend(
                    (0..4).filter(|lane| claimed(*lane) > 0 && !order.contains(lane)).collect::<Vec<_>>(),
                );
            }
            assert_eq!(order, expected, "on node {node}");
        }
    }
}
