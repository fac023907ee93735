//! The memory of this node, as the engine may touch it.

use ringway_types::{DataType, Reduction};

use crate::{CommunicatorId, LocalRank};

/// Names memory known to the daemon: a client's region, or the daemon's own workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RegionId(pub u32);

/// Bytes of a region. Whoever hands one to the engine has checked that they are inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferRef {
    /// The region.
    pub region: RegionId,
    /// Bytes from the region's start.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// One operand of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceSource {
    /// The values.
    pub buffer: BufferRef,
    /// Multiplies the values first (premul_sum of a rank's own input): eight bytes, an `f64` for float types, else an
    /// `i64` or `u64`.
    pub scale: Option<[u8; 8]>,
}

/// One rank's part of a running combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanStep {
    /// The rank's values.
    pub input: ReduceSource,
    /// Where its result goes.
    pub output: BufferRef,
}

/// Names a piece of work while somebody else does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// Whose work it is.
    pub communicator: CommunicatorId,
    /// Which piece; pieces that are under way at a time have different ones.
    pub number: u32,
}

/// A piece of local work: at most 64 KiB per operand (64 MiB where one of them is memory of an accelerator), operands of
/// equal lengths, a multiple of the element size. No two pieces that are under way at a time touch the same bytes, unless
/// both only read them.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// As [`LocalMemory::reduce`].
    Reduce {
        /// The elements' type.
        datatype: DataType,
        /// How values combine.
        reduction: Reduction,
        /// What is combined, in this order.
        sources: &'a [ReduceSource],
        /// Where the result goes.
        destinations: &'a [BufferRef],
        /// Divides the result, for an average.
        divisor: Option<u32>,
    },
    /// As [`LocalMemory::scan`].
    Scan {
        /// The elements' type.
        datatype: DataType,
        /// How values combine.
        reduction: Reduction,
        /// The combination of the ranks that come first.
        carry: Option<BufferRef>,
        /// How many those are.
        before: u32,
        /// The ranks, ascending.
        steps: &'a [ScanStep],
        /// Whether a rank's result has its own values in it.
        inclusive: bool,
    },
    /// As [`LocalMemory::copy`].
    Copy {
        /// What is copied.
        source: BufferRef,
        /// Where to.
        destinations: &'a [BufferRef],
    },
    /// As [`LocalMemory::swap`].
    Swap {
        /// One buffer.
        a: BufferRef,
        /// The other.
        b: BufferRef,
    },
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    /// It is done.
    Done,
    /// [`LocalMemory::collect`] tells when it is.
    Later,
}

/// A piece that was done later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collected {
    /// Which.
    pub ticket: Ticket,
    /// Bytes that [`LocalMemory::collect`] itself touched for it; zero when somebody else did the work.
    pub touched: u64,
}

/// Local copies and arithmetic. Every call handles at most a piece of 64 KiB per operand, so that a turn stays
/// bounded; operands have equal lengths, a multiple of the element size. A call on memory that has gone (a region
/// just withdrawn) does nothing.
///
/// The steps of a collective come as pieces by [`LocalMemory::hand`], which may do them at once, or leave them to
/// others (ranks that wait, a GPU's stream) and report them later. The other calls are done when they return, and never
/// name memory of an accelerator.
pub trait LocalMemory {
    /// Does a piece now.
    fn perform(&mut self, piece: &Piece<'_>) {
        match *piece {
            Piece::Reduce { datatype, reduction, sources, destinations, divisor } => {
                self.reduce(datatype, reduction, sources, destinations, divisor);
            }
            Piece::Scan { datatype, reduction, carry, before, steps, inclusive } => {
                self.scan(datatype, reduction, carry, before, steps, inclusive);
            }
            Piece::Copy { source, destinations } => self.copy(source, destinations),
            Piece::Swap { a, b } => self.swap(a, b),
        }
    }

    /// Does a piece, or has it done. `hurried`: other communicators wait for scratch memory that the collective has, so
    /// that it must not be left to anybody who may never finish it. Without an implementation of its own it is done at
    /// once.
    fn hand(&mut self, ticket: Ticket, piece: &Piece<'_>, hurried: bool) -> Handed {
        let (_, _) = (ticket, hurried);
        self.perform(piece);
        Handed::Done
    }

    /// The pieces that have been done since the last call, as many as `done` takes; how many. May do pieces itself that
    /// nobody has begun, touching about `bytes_max` bytes. Bounded, never blocks. A piece that was withdrawn is not
    /// among them.
    fn collect(&mut self, bytes_max: u64, done: &mut [Collected]) -> usize {
        let (_, _) = (bytes_max, done);
        0
    }

    /// The piece is not wanted any more: nobody may begin it. Whether it is certain that nobody touches its memory from
    /// now on; otherwise somebody is at it, and this is called again.
    fn withdraw(&mut self, ticket: Ticket) -> bool {
        let _ = ticket;
        true
    }

    /// The rank that is at a piece, by its place among those of this node, where that is known.
    fn holder(&self, ticket: Ticket) -> Option<LocalRank> {
        let _ = ticket;
        None
    }

    /// Combines the sources in order and writes the result to every destination. `divisor` is set on the last
    /// combination of an average.
    fn reduce(
        &mut self,
        datatype: DataType,
        reduction: Reduction,
        sources: &[ReduceSource],
        destinations: &[BufferRef],
        divisor: Option<u32>,
    );

    /// Running combination over `steps`; `carry` holds the combination of the `before` ranks that come first.
    fn scan(
        &mut self,
        datatype: DataType,
        reduction: Reduction,
        carry: Option<BufferRef>,
        before: u32,
        steps: &[ScanStep],
        inclusive: bool,
    );

    /// Copies the source to every destination.
    fn copy(&mut self, source: BufferRef, destinations: &[BufferRef]);

    /// Exchanges the bytes of two buffers.
    fn swap(&mut self, a: BufferRef, b: BufferRef);

    /// Copies bytes out into private memory; what cannot be read is left as it is.
    fn read(&self, from: BufferRef, into: &mut [u8]);

    /// Copies private bytes in.
    fn write(&mut self, into: BufferRef, from: &[u8]);
}
