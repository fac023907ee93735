//! The kernels. A [`Rule`] says how the elements of one type combine; the loops here run it over blocks of elements
//! held in registers: every source's block is read before any destination's is written, and each byte of every
//! source is read once and of every destination written once.
//!
//! The loops are written for the compiler's vectoriser and compiled twice, for AVX2 with F16C and for the baseline
//! of the architecture ([`level`] chooses); copies are also compiled for AVX-512. The code is generic so that both do the
//! same arithmetic in the same order: Rust never fuses a multiplication with an addition, and NaNs are made canonical when
//! stored, so both give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_f8;
pub(crate) mod copy;
mod dispatch;
mod f8;
mod float;
mod integer;
pub(crate) mod level;
mod logical;
mod order;
pub(crate) mod stream;

pub(crate) use dispatch::{reduce, scan};

use core::ptr::NonNull;

use ringway_mem::Window;

use crate::{Scalar, ScanStep, Source};
use stream::Stage;

/// How elements of one type combine. `Raw` is the element in memory, `Acc` what it is while it is accumulated.
pub(crate) trait Rule: Copy {
    /// An element as it lies in memory; any bytes are one.
    type Raw: Copy + Default;
    /// An element while values are combined.
    type Acc: Copy + Default;
    /// Whether sources may be multiplied by a factor first.
    const SCALES: bool;

    /// Brings an element into the form it is accumulated in.
    fn load(self, raw: Self::Raw) -> Self::Acc;
    /// Combines what came before with the next value.
    fn fold(self, before: Self::Acc, next: Self::Acc) -> Self::Acc;
    /// Divides where the rule does, rounds, and brings the value into the form it has in memory.
    fn store(self, value: Self::Acc) -> Self::Raw;

    /// Multiplies a source's value; only called where [`Rule::SCALES`].
    #[inline(always)]
    fn scale(self, value: Self::Acc, _factor: Scalar) -> Self::Acc {
        value
    }

    /// The same rule with results divided by this many ranks, where the rule divides.
    #[inline(always)]
    fn over(self, _ranks: u32) -> Self {
        self
    }

    /// Loads `N` elements, in any order that [`Rule::finish_block`] of as many undoes.
    ///
    /// # Safety
    /// `from` is valid for reads of `N` elements; it need not be aligned.
    #[inline(always)]
    unsafe fn load_block<const N: usize>(self, from: *const u8, into: &mut [Self::Acc; N]) {
        for (i, value) in into.iter_mut().enumerate() {
            // SAFETY: `i < N`, and the caller vouches for `N` elements from `from`.
            let at = unsafe { from.cast::<Self::Raw>().add(i) };
            // SAFETY: as above; any bytes are a `Raw`, and no alignment is assumed.
            let raw = unsafe { at.read_unaligned() };
            *value = self.load(raw);
        }
    }

    /// Brings `N` values into the form, and the order, they have in memory.
    #[inline(always)]
    fn finish_block<const N: usize>(self, values: &[Self::Acc; N], into: &mut [Self::Raw; N]) {
        for (raw, value) in into.iter_mut().zip(values) {
            *raw = self.store(*value);
        }
    }

    /// Stores `N` elements to every destination, `offset` bytes in.
    ///
    /// # Safety
    /// Every destination is valid for writes of `N` elements from `offset` on; the stage, if there is one, was given
    /// everything before and is used by nobody else.
    #[inline(always)]
    unsafe fn store_block<const N: usize>(
        self,
        values: &[Self::Acc; N],
        destinations: &[Window<'_>],
        stage: Option<NonNull<Stage>>,
        offset: usize,
    ) {
        let mut raw = [Self::Raw::default(); N];
        self.finish_block(values, &mut raw);
        if let Some(mut stage) = stage {
            // SAFETY: the caller vouches that nobody else uses the stage.
            let stage = unsafe { stage.as_mut() };
            if stage.is_direct() {
                // SAFETY: the caller vouches for the destinations.
                return unsafe { stage.send(&raw, destinations, offset) };
            }
            // SAFETY: a stage has room for the largest block.
            unsafe { write_block(stage.next_block(), &raw) };
            // SAFETY: the caller vouches for the destinations, and the block was just written.
            return unsafe { stage.advance(destinations, offset, size_of::<[Self::Raw; N]>()) };
        }
        for destination in destinations {
            // SAFETY: the caller vouches that `offset` is inside the destination.
            let to = unsafe { destination.as_ptr().add(offset) };
            // SAFETY: the caller vouches for `N` writable elements from there.
            unsafe { write_block(to, &raw) };
        }
    }
}

/// Writes a block of elements.
///
/// # Safety
/// `to` is valid for writes of `N` elements; it need not be aligned.
#[inline(always)]
pub(crate) unsafe fn write_block<T: Copy, const N: usize>(to: *mut u8, block: &[T; N]) {
    for (i, value) in block.iter().enumerate() {
        // SAFETY: `i < N`, and the caller vouches for `N` elements from `to`.
        let at = unsafe { to.cast::<T>().add(i) };
        // SAFETY: as above; no alignment is assumed.
        unsafe { at.write_unaligned(*value) };
    }
}

/// Loads a block of a source and multiplies it by the source's factor.
///
/// # Safety
/// The source has `N` elements from `offset` on.
#[inline(always)]
unsafe fn load_source<R: Rule, const N: usize>(
    rule: R,
    source: &Source<'_>,
    offset: usize,
    into: &mut [R::Acc; N],
) {
    // SAFETY: the caller vouches that `offset` is inside the source.
    let from = unsafe { source.window.as_ptr().add(offset) };
    // SAFETY: the caller vouches for `N` elements from there.
    unsafe { rule.load_block(from, into) };
    if R::SCALES
        && let Some(factor) = source.scale
    {
        for value in into.iter_mut() {
            *value = rule.scale(*value, factor);
        }
    }
}

/// A checked request to reduce: every window has `length` bytes, a whole number of elements; every destination is
/// writable.
#[derive(Clone, Copy)]
pub(crate) struct ReduceJob<'a> {
    pub(crate) first: &'a Source<'a>,
    pub(crate) rest: &'a [Source<'a>],
    pub(crate) destinations: &'a [Window<'a>],
    pub(crate) length: usize,
    /// Present where results go to the destinations by way of it.
    pub(crate) stage: Option<NonNull<Stage>>,
    /// Bytes before the first whole line of the destinations that whole lines are sent to: fewer than a line's, and whole
    /// elements.
    pub(crate) head: usize,
}

/// A checked request to scan: every window has `length` bytes, a whole number of elements; every output and
/// `carry_out` is writable.
#[derive(Clone, Copy)]
pub(crate) struct ScanJob<'a> {
    pub(crate) carry_in: Option<Window<'a>>,
    pub(crate) steps: &'a [ScanStep<'a>],
    pub(crate) inclusive: bool,
    pub(crate) ranks_before: u32,
    pub(crate) carry_out: Option<Window<'a>>,
    pub(crate) length: usize,
}

/// A loop body over blocks of `N` elements.
trait Body: Copy {
    /// Handles the `N` elements that start `offset` bytes into every window.
    ///
    /// # Safety
    /// Every window has `N` elements from `offset` on.
    unsafe fn block<R: Rule, const N: usize>(self, rule: R, offset: usize);

    /// Bytes, whole elements and no more than the windows have, to be handled in small blocks before large ones begin.
    #[inline(always)]
    fn head(self) -> usize {
        0
    }
}

impl Body for ReduceJob<'_> {
    #[inline(always)]
    unsafe fn block<R: Rule, const N: usize>(self, rule: R, offset: usize) {
        let mut total = [R::Acc::default(); N];
        // SAFETY: the caller vouches for the block in every window.
        unsafe { load_source(rule, self.first, offset, &mut total) };
        for source in self.rest {
            let mut next = [R::Acc::default(); N];
            // SAFETY: as above.
            unsafe { load_source(rule, source, offset, &mut next) };
            fold_block(rule, &mut total, &next);
        }
        // SAFETY: as above, and destinations are writable.
        unsafe { rule.store_block(&total, self.destinations, self.stage, offset) };
    }

    #[inline(always)]
    fn head(self) -> usize {
        self.head.min(self.length)
    }
}

impl Body for ScanJob<'_> {
    #[inline(always)]
    unsafe fn block<R: Rule, const N: usize>(self, rule: R, offset: usize) {
        let mut total = [R::Acc::default(); N];
        let mut ranks = self.ranks_before;
        let mut has_value = false;
        if let Some(window) = self.carry_in {
            let carry = Source { window, scale: None };
            // SAFETY: the caller vouches for the block in every window.
            unsafe { load_source(rule, &carry, offset, &mut total) };
            has_value = true;
        }
        for step in self.steps {
            let mut next = [R::Acc::default(); N];
            // SAFETY: as above.
            unsafe { load_source(rule, &step.input, offset, &mut next) };
            if !self.inclusive
                && has_value
                && let Some(output) = &step.output
            {
                // SAFETY: as above, and outputs are writable.
                unsafe { rule.over(ranks).store_block(&total, core::slice::from_ref(output), None, offset) };
            }
            if has_value {
                fold_block(rule, &mut total, &next);
            } else {
                total = next;
            }
            has_value = true;
            ranks = ranks.wrapping_add(1);
            if self.inclusive
                && let Some(output) = &step.output
            {
                // SAFETY: as above, and outputs are writable.
                unsafe { rule.over(ranks).store_block(&total, core::slice::from_ref(output), None, offset) };
            }
        }
        if has_value && let Some(output) = &self.carry_out {
            // SAFETY: as above, and the carry's window is writable.
            unsafe { rule.over(1).store_block(&total, core::slice::from_ref(output), None, offset) };
        }
    }
}

#[inline(always)]
fn fold_block<R: Rule, const N: usize>(rule: R, total: &mut [R::Acc; N], next: &[R::Acc; N]) {
    for (total, next) in total.iter_mut().zip(next) {
        *total = rule.fold(*total, *next);
    }
}

/// Covers `length` bytes: after the body's head with blocks of `L` elements, then of `M`, then of `S`, then single elements.
///
/// # Safety
/// Every window of the body has `length` bytes.
#[inline(always)]
unsafe fn run<R: Rule, B: Body, const L: usize, const M: usize, const S: usize>(
    rule: R,
    body: B,
    length: usize,
) {
    let size = size_of::<R::Raw>();
    let mut offset = 0;
    let head = body.head();
    while S > 1 && head - offset >= S * size {
        // SAFETY: the condition leaves `S` elements from `offset` on, as the head is no longer than the windows.
        unsafe { body.block::<R, S>(rule, offset) };
        offset += S * size;
    }
    while offset < head {
        // SAFETY: the head is whole elements, and no longer than the windows.
        unsafe { body.block::<R, 1>(rule, offset) };
        offset += size;
    }
    while length - offset >= L * size {
        // SAFETY: the condition leaves `L` elements from `offset` on.
        unsafe { body.block::<R, L>(rule, offset) };
        offset += L * size;
    }
    while length - offset >= M * size {
        // SAFETY: the condition leaves `M` elements from `offset` on.
        unsafe { body.block::<R, M>(rule, offset) };
        offset += M * size;
    }
    while S > 1 && length - offset >= S * size {
        // SAFETY: the condition leaves `S` elements from `offset` on.
        unsafe { body.block::<R, S>(rule, offset) };
        offset += S * size;
    }
    while length - offset >= size {
        // SAFETY: the condition leaves one element from `offset` on.
        unsafe { body.block::<R, 1>(rule, offset) };
        offset += size;
    }
}
