//! What a rank publishes for one call: eight words, or sixteen with few bytes of payload, and up to [`INLINE_BYTES`] of payload
//! or counts elsewhere.
//!
//! Words: 0 = the low 31 bits of the sequence, a bit for [`STREAMED`], and above them the digest of what this rank has called
//! so far ([`History`]), stored last; 1 = operation, datatype, reduction + 1 (0 for none) and flags, one byte each
//! from the low end, then 16 bits of root and 16 of the rank's region epoch; 2 = count, or a digest of the counts that
//! all ranks must give alike; 3 = the scalar of premul_sum; 4 and 5 = input region and offset; 6 and 7 = output region
//! and offset. A small call has its payload from word 4 on when it fits, else in its slot of payloads, or of the pool.

use ringway_types::{DataType, Operation, Reduction, digest_counts};

use crate::{
    Call, INLINE_BYTES, Place, Signature,
    cell::Cell,
    layout::{LINE, RECORD},
};

const HAS_INPUT: u64 = 1 << 24;
const HAS_OUTPUT: u64 = 1 << 25;
const STAGED: u64 = 1 << 26;
/// The bits of word 1 that all ranks must have alike.
const AGREED: u64 = 0x0000_ffff_00ff_ffff;

/// Where in a record a payload begins that fits into it.
pub(crate) const TINY_WORD: usize = 4;
/// Payload bytes that fit: up to 96 take a line less than in a slot of their own.
pub(crate) const TINY_BYTES: usize = (RECORD - TINY_WORD) * 8;

/// What all ranks must say alike, as words 1 and 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Agreement(u64, u64);

impl Agreement {
    #[inline(always)]
    pub(crate) fn of(call: &Call<'_>) -> Self {
        let operation = call.operation;
        let datatype = if operation == Operation::Barrier { DataType::U8 } else { call.datatype };
        let reduction = call.reduction.filter(|_| operation.reduces());
        let root = if operation.has_root() { u64::from(call.root & 0xffff) } else { 0 };
        let codes = u64::from(operation.code())
            | u64::from(datatype.code()) << 8
            | reduction.map_or(0, |r| u64::from(r.code()) + 1) << 16
            | root << 32;
        let count = match operation {
            Operation::AllGatherV | Operation::ReduceScatterV => digest_counts(call.counts),
            Operation::Barrier | Operation::GatherV | Operation::ScatterV | Operation::AllToAllV => 0,
            _ => call.count,
        };
        Self(codes, count)
    }

    /// The words of a record that say it, with the rank's epoch.
    #[inline(always)]
    pub(crate) const fn words(self, epoch: u16) -> [u64; 2] {
        [self.0 | (epoch as u64) << 48, self.1]
    }

    /// What it says; `None` when a code means nothing.
    pub(crate) fn signature(self) -> Option<Signature> {
        let Self(codes, count) = self;
        let [operation, datatype, reduction, ..] = codes.to_le_bytes();
        let operation = Operation::from_code(operation).filter(|o| o.is_collective())?;
        let datatype = DataType::from_code(datatype)?;
        let reduction = match reduction.checked_sub(1) {
            None => None,
            Some(code) => Some(Reduction::from_code(code)?),
        };
        let fits =
            reduction.is_some() == operation.reduces() && reduction.is_none_or(|r| datatype.supports(r));
        let root = (codes >> 32) as u32 & 0xffff;
        fits.then_some(Signature { operation, datatype, reduction, root, count })
    }
}

/// A digest of what a rank has called, from the first call on: ranks whose digests for a call are alike have called the
/// same all along, so that whoever needed nothing of many calls finds out about all of them by one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct History(u32);

impl History {
    /// With one more call. Mixes as multiplicative hashes do; nobody here has a reason to make two alike.
    #[inline(always)]
    pub(crate) fn and(self, agreement: Agreement) -> Self {
        let Agreement(codes, count) = agreement;
        let mixed = (u64::from(self.0) ^ codes).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ count;
        Self((mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32) as u32)
    }

    #[inline(always)]
    pub(crate) const fn mark(self, sequence: u64) -> u64 {
        (self.0 as u64) << 32 | sequence & LOW
    }
}

/// The bits of word 0 that have the sequence. Slots are used again long before it comes to the same value.
const LOW: u64 = 0x7fff_ffff;

/// The bit of word 0 that says that the record went past the caches, and its payload in words with tags.
pub(crate) const STREAMED: u64 = 1 << 31;

/// What a rank says of its own memory for a large call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) input: Option<Place>,
    pub(crate) output: Option<Place>,
    pub(crate) scale: u64,
    /// Both places name the staging memory, which holds a few segments at a time.
    pub(crate) staged: bool,
    pub(crate) epoch: u16,
}

impl Part {
    /// What is kept of a small call.
    #[inline(always)]
    pub(crate) fn of_small([input, output]: [Option<Place>; 2], scale: u64) -> Self {
        Self { input, output, scale, ..Self::default() }
    }
}

impl Cell {
    /// What a rank published, if it has called this far.
    #[inline(always)]
    pub(crate) fn agreement(&self, rank: u32, sequence: u64) -> Option<Agreement> {
        self.history(rank, sequence)?;
        let at = self.layout.record(rank, sequence);
        Some(Agreement(self.words.load(at + 1) & AGREED, self.words.load(at + 2)))
    }

    /// What a rank published up to and with a call, if it has called this far.
    #[inline(always)]
    pub(crate) fn history(&self, rank: u32, sequence: u64) -> Option<History> {
        let found = self.words.load_acquire(self.layout.record(rank, sequence));
        ((found ^ sequence) & LOW == 0).then_some(History((found >> 32) as u32))
    }

    /// Whether a later call has taken the place of this one in its rank's slot.
    pub(crate) fn is_overwritten(&self, rank: u32, sequence: u64) -> bool {
        let found = self.words.load_acquire(self.layout.record(rank, sequence));
        // Of the bits that have the sequence, as a signed number.
        ((found as u32) << 1).wrapping_sub((sequence as u32) << 1).cast_signed() > 0
    }

    /// Whether a record that was seen went past the caches.
    #[inline(always)]
    pub(crate) fn is_streamed(&self, rank: u32, sequence: u64) -> bool {
        self.words.load(self.layout.record(rank, sequence)) & STREAMED != 0
    }

    /// A copy of what a rank says of its memory. Only after [`Cell::agreement`] has seen the record.
    pub(crate) fn part(&self, rank: u32, sequence: u64) -> Part {
        let at = self.layout.record(rank, sequence);
        let [codes, _, scale, in_region, in_offset, out_region, out_offset] =
            [1, 2, 3, 4, 5, 6, 7].map(|w| self.words.load(at + w));
        let place = |flag, region, offset| (codes & flag != 0).then_some(Place { region, offset });
        Part {
            input: place(HAS_INPUT, in_region, in_offset),
            output: place(HAS_OUTPUT, out_region, out_offset),
            scale,
            staged: codes & STAGED != 0,
            epoch: (codes >> 48) as u16,
        }
    }

    /// The scalar of a rank's record.
    #[inline(always)]
    pub(crate) fn scale(&self, rank: u32, sequence: u64) -> u64 {
        self.words.load(self.layout.record(rank, sequence) + 3)
    }

    /// The first word of a small call's payload.
    #[inline(always)]
    pub(crate) fn payload(&self, rank: u32, sequence: u64, bytes: usize) -> usize {
        if bytes <= TINY_BYTES {
            self.layout.record(rank, sequence) + TINY_WORD
        } else if bytes <= INLINE_BYTES {
            self.layout.payload(rank, sequence)
        } else {
            self.layout.pooled(sequence)
        }
    }

    /// Copies a rank's counts.
    pub(crate) fn counts(&self, rank: u32, sequence: u64, into: &mut [u64]) {
        let at = self.layout.payload(rank, sequence);
        for (index, count) in into.iter_mut().enumerate().take(INLINE_BYTES / 8) {
            *count = self.words.load(at + index);
        }
    }

    /// Writes the record of a large call, all but its first word.
    #[inline(always)]
    pub(crate) fn write_part(&self, rank: u32, sequence: u64, agreement: Agreement, part: &Part) {
        let at = self.layout.record(rank, sequence);
        let flag = |present, flag| if present { flag } else { 0 };
        let codes = agreement.0
            | flag(part.input.is_some(), HAS_INPUT)
            | flag(part.output.is_some(), HAS_OUTPUT)
            | flag(part.staged, STAGED)
            | u64::from(part.epoch) << 48;
        let (input, output) = (part.input.unwrap_or_default(), part.output.unwrap_or_default());
        let words =
            [codes, agreement.1, part.scale, input.region, input.offset, output.region, output.offset];
        for (word, value) in (1..).zip(words) {
            self.words.store(at + word, value);
        }
    }

    /// Writes a rank's counts.
    #[inline(always)]
    pub(crate) fn write_counts(&self, rank: u32, sequence: u64, counts: &[u64]) {
        let payload = self.layout.payload(rank, sequence);
        for (index, count) in counts.iter().enumerate().take(INLINE_BYTES / 8) {
            self.words.store(payload + index, *count);
        }
    }

    /// Writes the record of a small call, all but its first word and the payload.
    #[inline(always)]
    pub(crate) fn write_small(&self, rank: u32, sequence: u64, agreement: Agreement, scale: u64, epoch: u16) {
        let at = self.layout.record(rank, sequence);
        let [codes, count] = agreement.words(epoch);
        self.words.store(at + 1, codes);
        self.words.store(at + 2, count);
        self.words.store(at + 3, scale);
    }

    /// Asks for the lines of a record that this rank will write soon, with so much payload.
    #[inline(always)]
    pub(crate) fn prefetch_for_writing(&self, rank: u32, sequence: u64, bytes: usize) {
        self.each_line(rank, sequence, bytes, |line| self.words.prefetch_for_writing(line));
    }

    /// Asks for the lines of a record that this rank will read soon, with so much payload.
    #[inline(always)]
    pub(crate) fn prefetch(&self, rank: u32, sequence: u64, bytes: usize) {
        self.each_line(rank, sequence, bytes, |line| self.words.prefetch(line));
    }

    /// Where the lines of a record begin.
    #[inline(always)]
    fn each_line(&self, rank: u32, sequence: u64, bytes: usize, ask: impl Fn(usize)) {
        let record = self.layout.record(rank, sequence);
        ask(record);
        if bytes <= TINY_BYTES {
            if bytes > (LINE - TINY_WORD) * 8 {
                ask(record + LINE);
            }
            return;
        }
        // Those of the pool are too many to be under way together.
        if bytes <= INLINE_BYTES {
            let payload = self.layout.payload(rank, sequence);
            for line in 0..bytes.div_ceil(64) {
                ask(payload + line * LINE);
            }
        }
    }

    /// Makes a record visible.
    #[inline(always)]
    pub(crate) fn publish(&self, rank: u32, sequence: u64, history: History) {
        self.words.store_release(self.layout.record(rank, sequence), history.mark(sequence));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringway_mem::Mapping;

    use super::*;

    #[test]
    fn an_agreement_says_what_was_called() {
        let call = Call {
            operation: Operation::Reduce,
            datatype: DataType::Bf16,
            reduction: Some(Reduction::Max),
            root: 77,
            count: 1 << 40,
            ..Call::BARRIER
        };
        let signature = Agreement::of(&call).signature().expect("it means something");
        let expected = Signature {
            operation: Operation::Reduce,
            datatype: DataType::Bf16,
            reduction: Some(Reduction::Max),
            root: 77,
            count: 1 << 40,
        };
        assert_eq!(signature, expected);
        assert_eq!(Agreement(u64::MAX, 0).signature(), None);
        let other = Agreement::of(&Call { root: 78, ..call });
        assert_ne!(Agreement::of(&call), other);
    }

    #[test]
    fn a_history_says_what_was_called_and_in_which_order() {
        let [one, other] = [4, 5]
            .map(|count| Agreement::of(&Call { operation: Operation::Broadcast, count, ..Call::BARRIER }));
        let of =
            |calls: &[Agreement]| calls.iter().fold(History::default(), |so_far, call| so_far.and(*call));
        assert_eq!(of(&[one, other]), of(&[one, other]));
        let all = [of(&[]), of(&[one]), of(&[other]), of(&[one, one]), of(&[one, other]), of(&[other, one])];
        for (index, history) in all.iter().enumerate() {
            assert!(!all.iter().skip(index + 1).any(|later| later == history), "{index}");
        }
    }

    #[test]
    fn a_record_is_overwritten_by_later_ones_also_where_numbers_wrap_and_of_either_kind() {
        let length = crate::bytes(1).expect("a rank") as usize;
        let cell = Cell::attach(Arc::new(Mapping::private(length).expect("map")), 1).expect("attach");
        // Slots of one number come round: the same one, and so many times later.
        for first in [5, (1 << 31) - 3, (1 << 31) + 5, (1 << 32) - 3, 1 << 40] {
            let later = first + crate::SLOTS;
            for kind in [0, STREAMED] {
                let write = |sequence| {
                    let mark = History(0xdead_beef).mark(sequence) | kind;
                    cell.words.store_release(cell.layout.record(0, sequence), mark);
                };
                write(first);
                assert_eq!(cell.history(0, first), Some(History(0xdead_beef)));
                assert_eq!(cell.is_streamed(0, first), kind != 0);
                assert!(!cell.is_overwritten(0, first) && !cell.is_overwritten(0, later), "{first}");
                write(later);
                assert_eq!(cell.history(0, first), None);
                assert!(cell.is_overwritten(0, first) && !cell.is_overwritten(0, later), "{first}");
            }
        }
    }

    #[test]
    fn counts_are_told_apart_by_a_digest() {
        let call = |counts| Call { operation: Operation::AllGatherV, counts, ..Call::BARRIER };
        assert_ne!(Agreement::of(&call(&[1, 2])), Agreement::of(&call(&[2, 1])));
        assert_eq!(Agreement::of(&call(&[1, 2])), Agreement::of(&call(&[1, 2])));
    }
}
