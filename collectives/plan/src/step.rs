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

impl OutputSet {
    /// Whether a local rank's is among them.
    #[must_use]
    pub const fn has(self, local: u32) -> bool {
        match self {
            Self::None => false,
            Self::One(one) => one == local,
            Self::All => true,
            Self::AllBut(other) => other != local,
        }
    }
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

impl Targets {
    /// How many places they are on a node with so many ranks.
    #[must_use]
    pub const fn places(&self, locals: u32) -> u64 {
        let outputs = match self.outputs {
            OutputSet::None => 0,
            OutputSet::One(_) => 1,
            OutputSet::All => locals,
            OutputSet::AllBut(_) => locals.saturating_sub(1),
        };
        outputs as u64 + self.scratch.is_some() as u64
    }
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

impl Action {
    /// Bytes that a local step combines on a node with so many ranks, each operand but the first counted, and bytes that it copies
    /// besides: of an only operand, and to every place but the first of a result. None for what is sent and received.
    #[must_use]
    pub fn touched(&self, locals: u32) -> (u64, u64) {
        let combine = |operands: u64, places: u64, length: u64| match operands {
            0 => (0, 0),
            1 => (0, length.saturating_mul(places)),
            _ => (length.saturating_mul(operands - 1), length.saturating_mul(places.saturating_sub(1))),
        };
        match *self {
            Self::Nothing | Self::Send { .. } | Self::Receive { .. } => (0, 0),
            Self::Reduce { sources, into, length, .. } => {
                let inputs = if sources.inputs.is_some() { u64::from(locals) } else { 0 };
                combine(u64::from(sources.partials.count) + inputs, into.places(locals), length)
            }
            Self::Copy { from, into } => (0, from.length.saturating_mul(into.places(locals))),
            Self::Swap { a, b } => (0, a.length.saturating_add(b.length)),
            // Every rank's result is one place; all but a rank's own first one are combinations.
            Self::Scan { carry, locals, length, .. } | Self::Fold { carry, locals, length, .. } => {
                combine(u64::from(locals.count) + u64::from(carry.is_some()), 1, length)
            }
        }
    }
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
