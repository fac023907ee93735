//! The steps plans are made of.

use core::ops::Range;

/// How many steps past the first unfinished one of a chunk may be under way.
pub const LOOKAHEAD: u32 = 64;

/// The size of a plan on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Chunks the operation is cut into; zero when there is nothing to do.
    pub chunks: u64,
    /// Chunks that may be under way at once, at least 1.
    pub depth: u32,
    /// Steps of each chunk.
    pub steps: u32,
    /// Bytes of scratch memory each chunk under way needs.
    pub scratch: u64,
}

/// Where bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The input of a local rank (an index among the node's ranks).
    Input(u32),
    /// The output of a local rank.
    Output(u32),
    /// The chunk's scratch memory.
    Scratch,
}

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Which memory.
    pub place: Place,
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// What a reduction reads, in the order it combines: first the partial results, then the local inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources {
    /// Partial results in scratch: `count` blocks, the `i`-th at `offset + i * stride`.
    pub partials: Partials,
    /// Every local rank's input at this offset, ranks ascending.
    pub inputs: Option<u64>,
}

/// Evenly spaced blocks in scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Partials {
    /// The first block's first byte.
    pub offset: u64,
    /// Bytes from one block's start to the next one's.
    pub stride: u64,
    /// Blocks.
    pub count: u32,
}

/// Outputs of local ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputSet {
    /// None.
    None,
    /// One local rank's.
    One(u32),
    /// Every local rank's.
    All,
    /// Every local rank's but this one's.
    AllBut(u32),
}

/// Where a result is written: some outputs, all at the same offset, and perhaps scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Targets {
    /// Which outputs.
    pub outputs: OutputSet,
    /// The first byte in each of them.
    pub offset: u64,
    /// The first byte in scratch, when a copy goes there as well.
    pub scratch: Option<u64>,
}

/// What a step does. A zero-length span moves nothing, except that a message of no bytes is still a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the step exists only to keep positions regular.
    Nothing,
    /// Bytes to a node.
    Send {
        /// The destination node.
        peer: u32,
        /// Tells this message from others of the same chunk between the same two nodes.
        tag: u32,
        /// The bytes.
        from: Span,
    },
    /// Bytes from a node.
    Receive {
        /// The source node.
        peer: u32,
        /// As in the matching `Send`.
        tag: u32,
        /// Where they go.
        into: Span,
    },
    /// Combine values.
    Reduce {
        /// What is combined.
        sources: Sources,
        /// Where the result goes.
        into: Targets,
        /// Bytes of each source and target.
        length: u64,
        /// The result is final, so that an average is divided here.
        finish: bool,
    },
    /// Copy bytes. Copying a range onto itself does nothing.
    Copy {
        /// What is copied.
        from: Span,
        /// Where to.
        into: Targets,
    },
    /// Exchange the bytes of two ranges of equal length.
    Swap {
        /// One range.
        a: Span,
        /// The other.
        b: Span,
    },
    /// Running combination over consecutive local ranks: each rank's output at `offset` gets the combination of what
    /// comes before it and, for an inclusive scan, its own input.
    Scan {
        /// The partial result of all ranks before the first, in scratch; `None` when the first local rank of the run
        /// is rank 0.
        carry: Option<u64>,
        /// Local ranks, as indices among the node's ranks.
        locals: LocalRange,
        /// How many ranks the carry combines.
        before: u32,
        /// First byte in inputs and outputs.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// The combination of consecutive local ranks' inputs into scratch, with the carry first.
    Fold {
        /// A partial result in scratch that comes first.
        carry: Option<u64>,
        /// Local ranks, as indices among the node's ranks.
        locals: LocalRange,
        /// First byte in the inputs.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Where the result goes in scratch.
        into: u64,
    },
}

/// Consecutive local ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRange {
    /// The first, as an index among the node's ranks.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// One step and what must be done before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub action: Action,
    /// Steps of the same chunk, all of lower index, that must be done first.
    pub after: [Range<u32>; 2],
}

impl Step {
    /// A step that waits for nothing.
    #[must_use]
    pub const fn free(action: Action) -> Self {
        Self { action, after: [0..0, 0..0] }
    }
}
