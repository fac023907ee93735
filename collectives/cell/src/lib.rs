//! Collectives among the ranks of one node, in memory they share: whoever waits does the work.
//!
//! A cell is the shared memory of one communicator whose ranks are all on one node and trust each other. For every
//! collective each rank publishes a record: what it calls, and where its buffers are. Then
//!
//! - a **small** call has its payload beside its record, and every rank computes its own result from all of them: one
//!   cache-line hop, and nobody waits for more than the records;
//! - a **large** call is cut into lanes of blocks, which are claimed one by one from shared counters by the ranks that
//!   wait and by the daemon ([`Helper`]), read straight from all inputs and written straight to all outputs. That moves
//!   2pS bytes for an allreduce of S bytes on p ranks: each input is read once, each output written once.
//!
//! Everything is a state machine that never blocks: [`Member::begin`] publishes, [`Member::poll`] does what can be done.
//! How to wait between polls is the caller's business; [`Member::arm`] and [`Member::sleep`] block without missing
//! anything.
//!
//! # Trust
//! The ranks of a cell trust each other: they write to each other's buffers. The daemon trusts none of them: it works
//! on private, parsed copies of the records, asks [`Regions`] for memory, which knows only what each rank registered,
//! and bounds its work by its own count.
//!
//! # Bits
//! Values are combined in ascending order of ranks, widened where the type is a half one and rounded once, whoever does
//! it: results do not depend on who took which block, nor on whether the call was small.

pub mod board;
mod cell;
mod claim;
mod clock;
mod courtesy;
mod exchange;
mod extent;
#[cfg(all(test, not(loom)))]
mod failure_tests;
mod helper;
mod job;
mod lane_order;
mod large;
mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod member;
mod pooled;
mod prepared;
mod processors;
mod quota;
mod record;
mod shape;
mod shared;
mod sleep;
mod small;
mod staged;
pub mod step;
mod tagged;
mod ways;
mod work;
mod worker;

use ringway_mem::Window;
use ringway_types::{DataType, Operation, Reduction};

pub use cell::{AttachError, Cell, Contradiction, Verdict, bytes};
pub use clock::{Clock, monotonic_ns};
pub use courtesy::{Courtesy, Rest, TAKEN_NS};
pub use exchange::{CallMemory, Exchange};
pub use helper::Helper;
pub use member::{Awaited, Member, Poll, Refusal, StandIn};
pub use prepared::Prepared;
pub use processors::{NumaNodes, ProcessorSet, budget, current_processor, online_processors};
pub use quota::processor_quota;

/// Calls of one rank that may be under way at a time.
pub const SLOTS: u64 = if cfg!(loom) { 2 } else { 128 };
/// The most bytes a rank contributes to a small call.
pub const INLINE_BYTES: usize = if cfg!(loom) { 128 } else { 8192 };
/// The same of a rooted operation between two ranks: of more than this, copying costs more than waiting for the other.
const BETWEEN_TWO_BYTES: usize = INLINE_BYTES / 2;
/// The same where both of two ranks combine what the other contributes: beyond it, what is copied for that costs more than meeting.
const COMBINED_BY_TWO_BYTES: usize = INLINE_BYTES / 8 * 3;
/// The same where every rank needs what the others contribute: shared out, the work is less.
const NEEDED_BY_ALL_BYTES: usize = INLINE_BYTES / 4;
/// The most bytes of a broadcast among more than two ranks that is small: beyond [`INLINE_BYTES`] its payload is in one
/// of [`POOL_SLOTS`] longer slots, which all roots share. (Every rank doing a part of it instead has all of them come to the
/// call first: with four ranks on two processors 16 KiB took 7.5 times as long.)
const POOLED_BYTES: usize = if cfg!(loom) { 128 } else { 64 << 10 };
/// How many of them there are: what a root may be ahead of those who take.
const POOL_SLOTS: u64 = if cfg!(loom) { 1 } else { 16 };
/// The most ranks of a cell.
pub const RANKS_MAX: u32 = 128;

/// Bytes of the staging memory through which a rank moves data that is not registered.
pub const STAGING_BYTES: u64 = staged::BYTES;
/// In a call's input: the caller's own memory, which others cannot reach; see [`Call::staging`].
pub const OWN_INPUT: u64 = u64::MAX - 1;
/// As [`OWN_INPUT`], for the output.
pub const OWN_OUTPUT: u64 = u64::MAX - 2;

/// Where bytes begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The region, by the daemon's handle; or [`OWN_INPUT`] or [`OWN_OUTPUT`].
    pub region: u64,
    /// Bytes from its start.
    pub offset: u64,
}

impl Place {
    /// Whether it is memory that others cannot reach.
    #[inline(always)]
    const fn is_private(self) -> bool {
        matches!(self.region, OWN_INPUT | OWN_OUTPUT)
    }
}

/// One rank's call of a collective, checked: buffers are as long as the operation needs (see `ringway_abi::extent`), do
/// not overlap other than in the operation's in-place form, counts are as many as it needs.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What to do; never a message.
    pub operation: Operation,
    /// The elements' type.
    pub datatype: DataType,
    /// How values combine, for operations that reduce.
    pub reduction: Option<Reduction>,
    /// This rank's scalar for premul_sum, as its eight bytes.
    pub scale: Option<u64>,
    /// The root; zero where there is none.
    pub root: u32,
    /// Elements: of the whole vector for allreduce, reduce, broadcast, scan and exscan, of one rank's block for the others.
    pub count: u64,
    /// Counts, for operations that carry them.
    pub counts: &'a [u64],
    /// What is read.
    pub input: Option<Place>,
    /// What is written.
    pub output: Option<Place>,
    /// [`STAGING_BYTES`] of a registered region, for large calls whose buffers are [`OWN_INPUT`] and [`OWN_OUTPUT`].
    /// Not for operations that carry counts.
    pub staging: Option<Place>,
}

impl Call<'static> {
    /// A barrier: the call that has nothing but itself.
    pub const BARRIER: Self = Self {
        operation: Operation::Barrier,
        datatype: DataType::U8,
        reduction: None,
        scale: None,
        root: 0,
        count: 0,
        counts: &[],
        input: None,
        output: None,
        staging: None,
    };
}

/// What all ranks of a collective must call alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// What to do.
    pub operation: Operation,
    /// The elements' type; `U8` for a barrier.
    pub datatype: DataType,
    /// How values combine, for operations that reduce.
    pub reduction: Option<Reduction>,
    /// The root; zero where there is none.
    pub root: u32,
    /// Elements; a digest of the counts for all_gather_v and reduce_scatter_v; zero for a barrier and the others with
    /// counts.
    pub count: u64,
}

/// The memory that ranks name in their records.
pub trait Regions {
    /// The bytes from a place on of a region that this rank registered; `None` when it is not known, or they are not
    /// all inside.
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>>;
}
