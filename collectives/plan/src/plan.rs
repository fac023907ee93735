//! The choice of an algorithm and the steps it makes.

use std::sync::Arc;

use ringway_types::Operation;
use thiserror::Error;

use crate::algorithm::{self, Frame, Method, Size};
use crate::file::Listed;
use crate::tuner::Problem;
use crate::{Blocks, Call, Cost, Layout, Pair, Shape, Stage, Step, Terms, View, Work};

/// A way to do an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Everything is on one node.
    Local,
    /// Every node exchanges with every other one at once: fewest steps, for small sizes and for few nodes.
    Direct,
    /// Each node sends to the next one only: least traffic, for large sizes on more than two nodes. Of an allreduce and
    /// a reduce_scatter each node finishes a part, which between two nodes is no less traffic but less work.
    Ring,
    /// Along a binomial tree of nodes: few messages one behind the other, for short vectors of a root.
    Binomial,
    /// Along a binary tree of nodes, chunk behind chunk.
    Tree,
    /// Half of each chunk along either of two binary trees, of which a node is a leaf in one at least: as much traffic as
    /// a ring has, nearly, in far fewer messages one behind the other.
    DoubleTree,
    /// A broadcast that scatters blocks along a binomial tree and passes them around a ring.
    ScatterAllGather,
    /// An all_to_all with one other node at a time.
    Pairwise,
    /// An all_to_all within groups of nodes, then between them: fewer messages, for short blocks and many nodes.
    GroupedAllToAll,
    /// Every node sends every other one its block, combines its own and sends it to all: two messages behind one another,
    /// with as little traffic as a ring.
    TwoShot,
    /// A ring in both directions at once, half of the data each way.
    BidirectionalRing,
    /// Every node exchanges all with nodes at distances 1, 2, 4, ...: fewest messages, for small sizes.
    RecursiveDoubling,
    /// Rabenseifner's algorithm: recursive halving, then recursive doubling.
    HalvingDoubling,
    /// Non-uniform hierarchical ring: as few rounds as recursive doubling with as little traffic as a ring, for any number
    /// of nodes.
    Nhr,
    /// Bruck's concatenation, backwards in time its reduce-scatter, and his all_to_all by way of other nodes: fewest rounds
    /// for any number of nodes.
    Bruck,
    /// A ring among groups of nodes and direct exchanges within them at the same time: what came from another group goes on
    /// in this one while the next part comes.
    Pipeline,
    /// One algorithm within groups of nodes, another one among them.
    Hierarchical(Pair),
}

/// The algorithms that are not made of others.
const SIMPLE: &[Algorithm] = &[
    Algorithm::Local,
    Algorithm::Direct,
    Algorithm::Ring,
    Algorithm::Binomial,
    Algorithm::Tree,
    Algorithm::DoubleTree,
    Algorithm::ScatterAllGather,
    Algorithm::Pairwise,
    Algorithm::GroupedAllToAll,
    Algorithm::TwoShot,
    Algorithm::BidirectionalRing,
    Algorithm::RecursiveDoubling,
    Algorithm::HalvingDoubling,
    Algorithm::Nhr,
    Algorithm::Bruck,
    Algorithm::Pipeline,
];

const ALL: [Algorithm; SIMPLE.len() + Pair::ALL.len()] = {
    let mut all = [Algorithm::Local; SIMPLE.len() + Pair::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] =
            if i < SIMPLE.len() { SIMPLE[i] } else { Algorithm::Hierarchical(Pair::ALL[i - SIMPLE.len()]) };
        i += 1;
    }
    all
};

impl Algorithm {
    /// Every algorithm, with every pair of a hierarchical one.
    pub const ALL: &'static [Self] = &ALL;

    /// The name used in configuration and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Direct => "direct",
            Self::Ring => "ring",
            Self::Binomial => "binomial",
            Self::Tree => "tree",
            Self::DoubleTree => "double-tree",
            Self::ScatterAllGather => "scatter-all-gather",
            Self::Pairwise => "pairwise",
            Self::GroupedAllToAll => "grouped",
            Self::TwoShot => "two-shot",
            Self::BidirectionalRing => "bidirectional-ring",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::HalvingDoubling => "halving-doubling",
            Self::Nhr => "nhr",
            Self::Bruck => "bruck",
            Self::Pipeline => "pipeline",
            Self::Hierarchical(pair) => pair.algorithm_name(),
        }
    }

    /// The algorithm with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name)
    }

    /// Whether it combines the contributions of an operation ranks ascending within a node, then nodes ascending, whatever
    /// the size.
    #[must_use]
    pub fn is_strict(self, operation: Operation) -> bool {
        algorithm::method(self, operation).is_some_and(|method| method.strict)
    }

    /// Whether a node sends one message behind the other to the same node, as around a ring. Elsewhere there are one or two.
    #[must_use]
    pub const fn passes_around(self) -> bool {
        match self {
            Self::Ring | Self::BidirectionalRing | Self::ScatterAllGather | Self::Pipeline => true,
            Self::Hierarchical(Pair { inner, outer }) => {
                matches!(inner, Stage::Ring) || matches!(outer, Stage::Ring)
            }
            _ => false,
        }
    }

    /// What one chunk of an operation costs; `None` where the algorithm does not do it between so many nodes.
    #[must_use]
    pub fn cost(self, operation: Operation, terms: &Terms) -> Option<Cost> {
        algorithm::cost(self, operation, terms)
    }

    /// What all nodes together do for one chunk that costs so much. Of what is exact for one node alone, as a hierarchical
    /// algorithm's, it is what the busiest node does, times the nodes.
    #[must_use]
    pub fn total(self, operation: Operation, terms: &Terms, cost: &Cost) -> Work {
        algorithm::total(self, operation, terms, cost)
    }
}

impl core::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// The constants plans are chosen by: saved values, the same on every node, never measured while running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes that one chunk has in one message of one stream.
    pub chunk_bytes: u64,
    /// Up to this many bytes of the whole vector Direct is chosen.
    pub direct_max_bytes: u64,
    /// Chunks that may be under way at once.
    pub depth: u32,
    /// Blocks up to this many bytes are copied together so that a pair of nodes exchanges one message: those beyond 4 KiB
    /// only of an all_gather or all_to_all between two nodes, and where that message has no more than half of `chunk_bytes`.
    pub pack_max_bytes: u64,
    /// Consecutive nodes that are a group where an algorithm has groups; 0 for the divisor of the number of nodes that is
    /// nearest to its square root, which makes fewest messages.
    pub group_nodes: u32,
    /// In calls of one chunk messages up to this many bytes are written into memory that the receiver has lent for good,
    /// instead of where it says when it is asked; at most [`crate::EAGER_WRITE_BYTES`], 0 for none.
    pub eager_write_max_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            chunk_bytes: 512 << 10,
            direct_max_bytes: 128 << 10,
            depth: 4,
            pack_max_bytes: 32 << 10,
            group_nodes: 0,
            eager_write_max_bytes: 0,
        }
    }
}

/// Why an algorithm cannot do an operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Ineligible {
    /// It is for one node.
    #[error("algorithm local is for one node, but the ranks are on {nodes}; use direct or ring")]
    SeveralNodes {
        /// The nodes there are.
        nodes: u32,
    },
    /// It is for more nodes.
    #[error(
        "algorithm {algorithm} needs at least {needed} nodes, but the ranks are on {nodes}; use {instead}"
    )]
    TooFewNodes {
        /// What was asked for.
        algorithm: Algorithm,
        /// The nodes it needs.
        needed: u32,
        /// The nodes there are.
        nodes: u32,
        /// What can be used.
        instead: Algorithm,
    },
    /// It needs a power of two.
    #[error(
        "algorithm {algorithm} does {operation} only between 2, 4, 8, ... nodes, but the ranks are on {nodes}; use nhr"
    )]
    NotPowerOfTwo {
        /// What was asked for.
        algorithm: Algorithm,
        /// The operation.
        operation: Operation,
        /// The nodes there are.
        nodes: u32,
    },
    /// The nodes cannot be cut into groups of equal size.
    #[error(
        "algorithm {algorithm} needs two or more groups of equally many nodes, two or more each, but {nodes} nodes cannot \
         be cut into groups of {}; use nhr",
        if *.group == 0 { "any size".to_owned() } else { .group.to_string() }
    )]
    NoGroups {
        /// What was asked for.
        algorithm: Algorithm,
        /// The nodes there are.
        nodes: u32,
        /// Nodes of a group that [`Tuning::group_nodes`] asks for.
        group: u32,
    },
    /// A listed plan is for something else.
    #[error(
        "the plan {name} is for {operation} between {nodes} nodes with up to {ranks} ranks each, which this is not"
    )]
    NotListed {
        /// The plan.
        name: String,
        /// What it does.
        operation: Operation,
        /// The nodes it is for.
        nodes: u32,
        /// The most ranks of one node that its steps can be numbered for.
        ranks: u32,
    },
    /// It does not exist for this operation.
    #[error("algorithm {algorithm} does not do {operation}; use direct")]
    NotOffered {
        /// What was asked for.
        algorithm: Algorithm,
        /// The operation.
        operation: Operation,
    },
    /// A message between two ranks has no plan.
    #[error("{operation} is not a collective operation and has no plan")]
    NotCollective {
        /// The operation.
        operation: Operation,
    },
}

/// Where a plan's steps come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An algorithm computes them.
    Algorithm(Algorithm),
    /// A file lists them.
    Listed(Arc<Listed>),
}

impl Source {
    /// The name of the algorithm, or of the listed plan.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Algorithm(algorithm) => algorithm.name(),
            Self::Listed(listed) => listed.name(),
        }
    }
}

/// How a collective is done: the same on every node. It computes steps from their positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    source: Source,
    /// Bytes that a chunk has of each stream: of the vector, or of each block.
    unit: u64,
    /// Blocks up to this many bytes travel packed.
    pack: u64,
    depth: u32,
    /// Nodes of a group.
    group: u32,
}

impl Plan {
    /// The plan for a call: a pure function of operation, bytes, layout and tuning.
    #[must_use]
    pub fn choose(view: &View<'_>, tuning: &Tuning) -> Self {
        let nodes = view.layout.nodes();
        let algorithm = if nodes <= 1 {
            Algorithm::Local
        } else if is_offered(Algorithm::Ring, view) && view.bytes() > direct_max(view, tuning) {
            Algorithm::Ring
        } else {
            Algorithm::Direct
        };
        Self::new(algorithm, view, tuning)
    }

    /// The plan that uses the algorithm asked for.
    ///
    /// # Errors
    /// [`Ineligible`] when the algorithm cannot do this operation on this layout.
    pub fn with(algorithm: Algorithm, view: &View<'_>, tuning: &Tuning) -> Result<Self, Ineligible> {
        let (nodes, operation) = (view.layout.nodes(), view.call.operation);
        if !operation.is_collective() {
            return Err(Ineligible::NotCollective { operation });
        }
        let method =
            algorithm::method(algorithm, operation).ok_or(Ineligible::NotOffered { algorithm, operation })?;
        if algorithm == Algorithm::Local && nodes > 1 {
            return Err(Ineligible::SeveralNodes { nodes });
        }
        if nodes < method.nodes {
            let instead = if nodes < 2 { Algorithm::Local } else { Algorithm::Direct };
            return Err(Ineligible::TooFewNodes { algorithm, needed: method.nodes, nodes, instead });
        }
        if method.power_of_two && !nodes.is_power_of_two() {
            return Err(Ineligible::NotPowerOfTwo { algorithm, operation, nodes });
        }
        let group = tuning.group_nodes;
        if method.in_groups && algorithm::group(nodes, group).is_none() {
            return Err(Ineligible::NoGroups { algorithm, nodes, group });
        }
        Ok(Self::new(algorithm, view, tuning))
    }

    fn new(algorithm: Algorithm, view: &View<'_>, tuning: &Tuning) -> Self {
        let method = algorithm::method(algorithm, view.call.operation);
        let unit = method.map_or(0, |method| (method.unit)(view, tuning.chunk_bytes));
        let unit = whole_elements(unit, view);
        let (pack, depth) = (pack_max(view, tuning).min(unit), tuning.depth.max(1));
        let group = algorithm::group(view.layout.nodes(), tuning.group_nodes).unwrap_or(0);
        Self { source: Source::Algorithm(algorithm), unit, pack, depth, group }
    }

    /// The plan that a file lists.
    ///
    /// # Errors
    /// [`Ineligible::NotListed`] when it is for another operation or number of nodes.
    pub fn listed(listed: &Arc<Listed>, view: &View<'_>, tuning: &Tuning) -> Result<Self, Ineligible> {
        Self::listed_in(listed.unit(view, tuning), listed, view, tuning)
    }

    /// The same with this many bytes of each stream in a chunk.
    pub(crate) fn listed_in(
        unit: u64,
        listed: &Arc<Listed>,
        view: &View<'_>,
        tuning: &Tuning,
    ) -> Result<Self, Ineligible> {
        if !listed.is_for(view) {
            return Err(listed.ineligible());
        }
        let (source, unit) = (Source::Listed(Arc::clone(listed)), whole_elements(unit, view));
        Ok(Self { source, unit, pack: 0, depth: tuning.depth.max(1), group: 0 })
    }

    /// The same in one chunk, for operations among the ranks of one node: nothing of theirs is bounded by a chunk.
    #[must_use]
    pub fn in_one_chunk(self, view: &View<'_>) -> Self {
        Self { unit: whole_elements(u64::MAX >> 1, view), ..self }
    }

    /// The algorithm used; `None` where a file lists the steps.
    #[must_use]
    pub const fn algorithm(&self) -> Option<Algorithm> {
        match &self.source {
            Source::Algorithm(algorithm) => Some(*algorithm),
            Source::Listed(_) => None,
        }
    }

    /// Where the steps come from.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Nodes of a group, where the algorithm has groups.
    pub(crate) fn group_nodes(&self, view: &View<'_>) -> Option<u32> {
        method(self.algorithm()?, view)?.in_groups.then_some(self.group)
    }

    /// Bytes that a chunk has of each stream.
    pub(crate) const fn unit(&self) -> u64 {
        self.unit
    }

    /// The size of the plan on the view's node.
    ///
    /// Scratch memory of a chunk is at most twice [`Tuning::chunk_bytes`] for each node, but for many small blocks
    /// that are packed: twice 4 KiB for each pair of a local rank and a rank elsewhere (any node counted as having as many
    /// as the fullest). An all_to_all in place has eight times `chunk_bytes` besides. A piece of a block is one element at
    /// least, however many of them are in one message.
    #[must_use]
    pub fn shape(&self, view: &View<'_>) -> Shape {
        let frame = self.frame(view, 0);
        let size = match &self.source {
            Source::Algorithm(algorithm) => method(*algorithm, view).map(|method| (method.size)(&frame)),
            Source::Listed(listed) => Some(listed.size(&frame)),
        };
        let size = size.unwrap_or(Size { extent: 0, steps: 0, scratch: 0 });
        let chunks = size.extent.div_ceil(self.unit);
        let depth = u64::from(self.depth).min(chunks).max(1);
        Shape { chunks, depth: u32::try_from(depth).unwrap_or(1), steps: size.steps, scratch: size.scratch }
    }

    /// One step of the view's node: number `index` of chunk `chunk`. Beyond the shape there are steps that do
    /// nothing.
    #[must_use]
    pub fn step(&self, view: &View<'_>, chunk: u64, index: u32) -> Step {
        let frame = self.frame(view, chunk);
        match &self.source {
            Source::Algorithm(algorithm) => method(*algorithm, view)
                .map_or_else(algorithm::nothing, |method| (method.step)(&frame, index)),
            Source::Listed(listed) => listed.step(&frame, index),
        }
    }

    const fn frame<'a>(&self, view: &'a View<'a>, chunk: u64) -> Frame<'a> {
        let Self { unit, pack, group, .. } = *self;
        // Listed steps do not ask for it.
        let algorithm = match self.algorithm() {
            Some(algorithm) => algorithm,
            None => Algorithm::Local,
        };
        Frame { view, unit, pack, chunk, algorithm, group }
    }
}

fn method(algorithm: Algorithm, view: &View<'_>) -> Option<Method> {
    algorithm::method(algorithm, view.call.operation)
}

/// Rounds bytes of a chunk to elements, and to a cache line or more of them where possible, so that chunks of aligned
/// buffers stay aligned.
fn whole_elements(unit: u64, view: &View<'_>) -> u64 {
    let element = u64::from(view.call.element.max(1));
    let unit = if unit >= 64 * element { unit - unit % (64 * element) } else { unit - unit % element };
    unit.max(element)
}

/// Blocks up to this many bytes are packed however many there are.
const PACKED_ALWAYS: u64 = 4 << 10;

/// Up to how many bytes blocks are packed; the same on every node. A copy on either side costs less than a message of its own
/// for each block, until caches are too small for what is copied together. Longer blocks only between two nodes, and where
/// all are of one length: what is packed lies in scratch memory, for each peer and as long as the longest may be.
fn pack_max(view: &View<'_>, tuning: &Tuning) -> u64 {
    let most = u64::from(view.layout.most_local()).max(1);
    let blocks = match view.call.operation {
        Operation::AllToAll if view.layout.nodes() == 2 => most.saturating_mul(most),
        Operation::AllGather if view.layout.nodes() == 2 => most,
        _ => 1,
    };
    // One block is a message already.
    let each = if blocks > 1 { tuning.chunk_bytes / 2 / blocks } else { 0 };
    tuning.pack_max_bytes.min(each.max(PACKED_ALWAYS))
}

/// Whether the algorithm does the operation between so many nodes.
fn is_offered(algorithm: Algorithm, view: &View<'_>) -> bool {
    algorithm::method(algorithm, view.call.operation)
        .is_some_and(|method| view.layout.nodes() >= method.nodes)
}

/// Bytes that one chunk has, as [`View::bytes`] counts them; `None` where the algorithm does not do the operation between so
/// many nodes.
pub(crate) fn chunk_bytes(algorithm: Algorithm, problem: &Problem<'_>) -> Option<u64> {
    let layout = problem.layout;
    let method = algorithm::method(algorithm, problem.operation)?;
    let fits = algorithm != Algorithm::Local || layout.nodes() == 1;
    let call = Call { operation: problem.operation, element: 1, count: problem.bytes, root: 0 };
    let view = View { layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
    let unit = (method.unit)(&view, problem.chunk_bytes).max(1);
    fits.then(|| unit.saturating_mul(streams(layout, problem.operation)))
}

/// In how many streams of equal length the bytes of a call lie: a chunk has a unit of each.
fn streams(layout: &Layout, operation: Operation) -> u64 {
    let ranks = u64::from(layout.ranks());
    match operation {
        Operation::AllGather
        | Operation::AllGatherV
        | Operation::ReduceScatter
        | Operation::ReduceScatterV
        | Operation::Gather
        | Operation::GatherV
        | Operation::Scatter
        | Operation::ScatterV => ranks,
        Operation::AllToAll | Operation::AllToAllV => ranks.saturating_mul(u64::from(layout.most_local())),
        _ => 1,
    }
}

/// Up to how many bytes of the whole vector the direct exchange is chosen over the ring.
fn direct_max(view: &View<'_>, tuning: &Tuning) -> u64 {
    match view.call.operation {
        // Between two nodes both have the same messages, and the ring has a pass less: what is this node's own is
        // combined only once, together with what comes.
        Operation::ReduceScatter | Operation::ReduceScatterV if view.layout.nodes() == 2 => 0,
        _ => tuning.direct_max_bytes,
    }
}
