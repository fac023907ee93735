//! The memory of this node, as the engine may touch it.

use ringway_types::{DataType, Reduction};

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

/// Local copies and arithmetic. Every call handles at most a piece of 64 KiB per operand, so that a turn stays
/// bounded; operands have equal lengths, a multiple of the element size. A call on memory that has gone (a region
/// just withdrawn) does nothing. The CPU does the work before the call returns.
pub trait LocalMemory {
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
