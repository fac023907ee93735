//! Kinds of calls that ranks make again and again, and what happens to one of the ranks.

use ringway_cell::step::Step;
use ringway_client::{
    Buffer, Communicator, Error, Failure, Operation, OperationError, Reduction, Returned, Submitted,
};

/// Calls that ranks make again and again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) operation: Operation,
    pub(crate) ranks: u32,
    /// Of the longest buffer, about.
    pub(crate) bytes: usize,
    pub(crate) root: u32,
    /// The one to which it happens. The last of three is not the rank that somebody would name who only knows that it is not
    /// the one that waits.
    pub(crate) victim: u32,
    /// With [`Communicator::run`] or on slices; else submitted, then waited for.
    pub(crate) blocking: bool,
    pub(crate) slices: Slices,
}

/// Whose buffers are passed as ordinary slices, which nobody else can reach: in segments, if they are large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slices {
    Nobodys,
    TheVictims,
    Everybodys,
}

impl Slices {
    pub(crate) const ALL: [Self; 3] = [Self::Nobodys, Self::TheVictims, Self::Everybodys];
}

const SMALL: Kind = Kind {
    operation: Operation::Allreduce,
    ranks: 3,
    bytes: 64,
    root: 0,
    victim: 2,
    blocking: true,
    slices: Slices::Nobodys,
};
/// Done from beginning to end in one place where every rank has a processor.
const SHORT: Kind = Kind { ranks: 2, victim: 1, bytes: 64 << 10, ..SMALL };
const LARGE: Kind = Kind { bytes: 1 << 20, ..SMALL };
/// Its payload is in the cell's pool.
const POOLED: Kind = Kind { operation: Operation::Broadcast, bytes: 32 << 10, ..SMALL };
/// Of three segments, the last a short one.
const SLICES: Kind = Kind { bytes: 9 << 18, slices: Slices::Everybodys, ..SMALL };
const MIXED: Kind = Kind { slices: Slices::TheVictims, ..SLICES };
/// What happens to the root.
const ROOT: Kind = Kind { victim: 0, ..POOLED };
const LARGE_ROOT: Kind = Kind { bytes: LARGE.bytes, ..ROOT };
const SLICES_ROOT: Kind = Kind { bytes: SLICES.bytes, slices: Slices::Everybodys, ..ROOT };
const KINDS: [Kind; 9] = [SMALL, SHORT, LARGE, POOLED, SLICES, MIXED, ROOT, LARGE_ROOT, SLICES_ROOT];

pub(crate) const OPERATIONS: [Operation; 10] = [
    Operation::Allreduce,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::Scatter,
    Operation::Gather,
    Operation::Scan,
    Operation::Barrier,
];

/// What happens to the victim at every step of some kinds of calls, and of others at one, drawn by this seed: each operation
/// small and large, one of them blocking, and once to the first rank, which is the root.
pub(crate) fn scenes(seed: u64) -> Vec<(Kind, Step)> {
    let mut scenes: Vec<_> =
        KINDS.into_iter().flat_map(|kind| kind.steps().map(move |s| (kind, s))).collect();
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for operation in OPERATIONS {
        let mut blocking = draw(2) == 0;
        for bytes in [SMALL.bytes, LARGE.bytes] {
            let root = draw(SMALL.ranks as usize) as u32;
            let kind = Kind { operation, bytes, root, blocking, ..SMALL };
            let steps: Vec<_> = kind.steps().collect();
            scenes.push((kind, steps[draw(steps.len())]));
            blocking = !blocking;
        }
        let (bytes, blocking) = ([SMALL.bytes, LARGE.bytes][draw(2)], draw(2) == 0);
        let kind = Kind { operation, bytes, blocking, victim: 0, ..SMALL };
        let steps: Vec<_> = kind.steps().collect();
        scenes.push((kind, steps[draw(steps.len())]));
    }
    scenes
}

impl Kind {
    /// All but the victim.
    pub(crate) fn survivors(self) -> impl Iterator<Item = u32> {
        (0..self.ranks).filter(move |rank| *rank != self.victim)
    }

    /// Whether a rank passes slices.
    pub(crate) fn has_slices(self, rank: u32) -> bool {
        self.slices == Slices::Everybodys || self.slices == Slices::TheVictims && rank == self.victim
    }

    /// Whether a rank has its buffers back when the victim stays stopped at a step; `None` where it may be either.
    ///
    /// They are not back where the victim has a block in hand, which it would write when it goes on. Where it is at work
    /// without one the others do all the rest, and what fails is the next call, which is small, unless the victim moves its
    /// memory in segments: then they cannot go on, and cannot know that it writes nothing more.
    pub(crate) fn returns_buffers(self, rank: u32, step: Step) -> Option<bool> {
        match step {
            _ if rank == self.victim || self.has_slices(rank) => Some(true),
            Step::Claimed | Step::Worked => Some(false),
            Step::Entered | Step::Reported if self.has_slices(self.victim) => None,
            _ => Some(true),
        }
    }

    /// Steps that the victim reaches. Whether it gets a block of a large call is left to chance, and to the daemon when
    /// nobody waits for it at once.
    fn steps(self) -> impl Iterator<Item = Step> {
        let is_of_segments =
            |step: &Step| matches!(step, Step::CopiedIn | Step::Offered | Step::Ready | Step::CopiedOut);
        let segments = self.has_slices(self.victim);
        let is_of_work = |step: &Step| {
            matches!(step, Step::Entered | Step::Claimed | Step::Worked | Step::Reported | Step::Left)
        };
        let works = self.bytes > POOLED.bytes && self.operation != Operation::Barrier && self.blocking;
        let reached = Step::ALL.into_iter().filter(move |step| works || !is_of_work(step));
        // The allreduce by which ranks agree puts all it has at once.
        let pooled = self.operation == Operation::Broadcast && self.bytes == POOLED.bytes && !segments;
        let pours = pooled && self.root == self.victim;
        reached.filter(move |step| (segments || !is_of_segments(step)) && (pours || *step != Step::PartPut))
    }

    /// Blocks of a rank's buffer.
    pub(crate) fn blocks(self, rank: u32) -> u32 {
        match self.operation {
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => self.ranks,
            Operation::Scatter | Operation::Gather if rank == self.root => self.ranks,
            _ => 1,
        }
    }

    /// Elements of a block.
    pub(crate) fn length(self) -> usize {
        let most = (0..self.ranks).map(|rank| self.blocks(rank)).max().expect("ranks");
        self.bytes / size_of::<u32>() / most as usize
    }

    /// What rank `rank` fills a block of its buffer with.
    pub(crate) const fn given(call: u32, rank: u32, block: u32) -> u32 {
        call + (rank << 24) + (block << 28)
    }

    /// What is in blocks of a rank's buffer then.
    pub(crate) fn expected(self, call: u32, rank: u32) -> Vec<(u32, u32)> {
        let Self { operation, ranks, root, .. } = self;
        let given = |rank, block| Self::given(call, rank, block);
        let sum = |ranks: std::ops::Range<u32>, block| ranks.map(|rank| given(rank, block)).sum::<u32>();
        match operation {
            Operation::Allreduce => vec![(0, sum(0..ranks, 0))],
            Operation::Reduce if rank == root => vec![(0, sum(0..ranks, 0))],
            Operation::Scan => vec![(0, sum(0..rank + 1, 0))],
            Operation::ReduceScatter => vec![(rank, sum(0..ranks, rank))],
            Operation::Broadcast => vec![(0, given(root, 0))],
            Operation::Scatter if rank == root => vec![(root, given(root, root))],
            Operation::Scatter => vec![(0, given(root, rank))],
            Operation::AllGather => (0..ranks).map(|from| (from, given(from, from))).collect(),
            Operation::AllToAll => (0..ranks).map(|from| (from, given(from, rank))).collect(),
            Operation::Gather if rank == root => {
                (0..ranks).map(|from| (from, given(from, if from == root { root } else { 0 }))).collect()
            }
            _ => Vec::new(),
        }
    }

    fn submit(self, world: &Communicator, buffer: Buffer<u32>) -> Submitted<'_, Buffer<u32>> {
        let Self { operation, root, .. } = self;
        match operation {
            Operation::Broadcast => world.broadcast_in_place(buffer, root),
            Operation::Reduce => world.reduce_in_place(buffer, root, Reduction::Sum),
            Operation::AllGather => world.all_gather_in_place(buffer),
            Operation::ReduceScatter => world.reduce_scatter_in_place(buffer, Reduction::Sum),
            Operation::AllToAll => world.all_to_all_in_place(buffer),
            Operation::Scatter => world.scatter_in_place(buffer, root),
            Operation::Gather => world.gather_in_place(buffer, root),
            Operation::Scan => world.scan_in_place(buffer, Reduction::Sum),
            _ => world.allreduce_in_place(buffer, Reduction::Sum),
        }
    }

    /// Makes the call, unless it is a barrier, which [`Self::agree`] is as well.
    pub(crate) fn make(
        self,
        world: &Communicator,
        buffer: Buffer<u32>,
    ) -> Result<Buffer<u32>, (OperationError, bool)> {
        match (self.operation, self.blocking) {
            _ if self.has_slices(world.rank()) => self.make_on_slice(world, buffer),
            (Operation::Barrier, true) => world.run(Communicator::barrier).map(|()| buffer).map_err(failed),
            (Operation::Barrier, false) => {
                world.barrier().expect("as it must be").wait().map(|()| buffer).map_err(failed)
            }
            (_, true) => world.run(|world| self.submit(world, buffer)).map_err(failed),
            (_, false) => self.submit(world, buffer).expect("as it must be").wait().map_err(failed),
        }
    }

    /// As [`Self::make`], of the slice that a buffer is as well: whatever happens, that is its owner's alone.
    fn make_on_slice(
        self,
        world: &Communicator,
        mut buffer: Buffer<u32>,
    ) -> Result<Buffer<u32>, (OperationError, bool)> {
        let made = match self.operation {
            Operation::Broadcast => world.blocking().broadcast(&mut buffer, self.root),
            _ => world.blocking().allreduce_in_place(&mut buffer, Reduction::Sum),
        };
        match made {
            Ok(()) => Ok(buffer),
            Err(Error::Operation(error)) => Err((error, true)),
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether any rank says that it has happened, the same for all: all make as many calls as the victim needs to come to
    /// its step. And whoever only gives would be through with many calls before anything happens.
    pub(crate) fn agree(
        self,
        world: &Communicator,
        mut flag: Buffer<u32>,
        happened: bool,
    ) -> Result<Buffer<u32>, (OperationError, bool)> {
        flag.fill(u32::from(happened));
        match self.blocking {
            true => world.run(|world| world.allreduce_in_place(flag, Reduction::Max)).map_err(failed),
            false => {
                world.allreduce_in_place(flag, Reduction::Max).expect("as it must be").wait().map_err(failed)
            }
        }
    }
}

/// What an operation failed with, and whether its buffers are back.
fn failed<B>(failure: Failure<B>) -> (OperationError, bool) {
    let Failure { error, returned } = failure;
    (error, matches!(returned, Returned::Buffers(_)))
}
