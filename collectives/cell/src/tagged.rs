//! Payloads of few bytes, in words that say by themselves to which call they belong.
//!
//! Who only gives, as the root of a broadcast does, waits for nobody and makes its next call at once. But its stores go to
//! lines that others have read, one after the other, and soon it waits for these: at 300 ns between processors for most of
//! a call. Stores past the caches wait for nobody. They may be seen in any order, and a fence between payload and record would
//! take longer than all the rest: so every word has four bytes of payload and a tag of the call, by which whoever takes it
//! tells whether it is there. (NCCL's protocol `LL` does so too, for another reason.) Tags are made of the digest of all calls
//! so far, so that no earlier payload that was put without them looks like one.
//!
//! Through memory a line takes as long as between processors that are far apart, and three times as long as between
//! such as have a cache in common. How far others are is told by what a store takes that is waited for, now and then.

use arrayvec::ArrayVec;
use ringway_mem::Window;
use ringway_reduce::Source;
use ringway_types::Operation;

use crate::{
    cell::Cell,
    clock::Clock,
    layout::LINE,
    record::{Agreement, History, TINY_BYTES},
    shared::full_fence,
    small::Small,
};

/// The most bytes of such a payload.
pub(crate) const TAGGED_BYTES: usize = 64;
/// Bytes of a word that are payload.
const HALF: usize = 4;

/// Calls between two looks at how far others are: a power of two.
const LOOK_EVERY: u64 = 64;
/// Others are far when a line takes longer from them than through memory, about.
const FAR_NS: u64 = 120;

/// How far those are who read what this rank puts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Distance {
    clock: Option<Clock>,
    pub(crate) is_far: bool,
}

impl Distance {
    pub(crate) const fn by(clock: Clock) -> Self {
        Self { clock: Some(clock), is_far: false }
    }

    /// Whether this call's record is written past the caches.
    #[inline(always)]
    pub(crate) const fn streams(self, sequence: u64) -> bool {
        self.is_far && !sequence.is_multiple_of(LOOK_EVERY)
    }

    /// When a record is about to be written by whose stores it is looked; `None` for most.
    #[inline(always)]
    pub(crate) fn begin(&self, sequence: u64) -> Option<u64> {
        let clock = self.clock.filter(|_| sequence.is_multiple_of(LOOK_EVERY))?;
        // Not what waits already.
        full_fence();
        Some(clock())
    }

    /// The record is written.
    #[inline(always)]
    pub(crate) fn end(&mut self, begun: Option<u64>) {
        if let (Some(begun), Some(clock)) = (begun, self.clock) {
            full_fence();
            self.is_far = clock().saturating_sub(begun) > FAR_NS;
        }
    }
}

/// Where in a record a payload begins that fits into it.
const INSIDE: usize = LINE - TINY_BYTES / 8;

/// What the words of a call have beside its payload, of what its record begins with.
#[inline(always)]
const fn tag_of(mark: u64) -> u32 {
    (mark >> 32) as u32 ^ mark as u32
}

/// Half a word of payload with its tag.
#[inline(always)]
fn tagged(tag: u32, half: &[u8]) -> u64 {
    let half: [u8; HALF] = half.try_into().unwrap_or_default();
    u64::from(tag) << 32 | u64::from(u32::from_le_bytes(half))
}

/// A payload, without its tags.
pub(crate) type Untagged = [u8; TAGGED_BYTES];

impl Cell {
    /// The first word of a tagged payload.
    #[inline(always)]
    fn tagged(&self, rank: u32, sequence: u64, bytes: usize) -> usize {
        // There is as much room for its words as for twice the bytes.
        self.payload(rank, sequence, 2 * bytes.next_multiple_of(HALF))
    }

    /// Copies out a payload that a rank has put, whose record was seen; `None` while some of it is not there.
    #[inline(always)]
    pub(crate) fn untag(&self, rank: u32, sequence: u64, bytes: usize) -> Option<Untagged> {
        let (at, mut payload) = (self.tagged(rank, sequence, bytes), [0; TAGGED_BYTES]);
        let tag = tag_of(self.words.load(self.layout.record(rank, sequence)));
        for (word, half) in (at..).zip(payload.chunks_exact_mut(HALF)).take(bytes.div_ceil(HALF)) {
            let word = self.words.load(word);
            if (word >> 32) as u32 != tag {
                return None;
            }
            half.copy_from_slice(&(word as u32).to_le_bytes());
        }
        Some(payload)
    }

    /// Puts a payload; not its record.
    #[inline(always)]
    pub(crate) fn tag(
        &self,
        rank: u32,
        (sequence, history): (u64, History),
        (payload, bytes): (&Untagged, usize),
    ) {
        let tag = tag_of(history.mark(sequence));
        let at = self.tagged(rank, sequence, bytes);
        for (word, half) in (at..).zip(payload.chunks_exact(HALF)).take(bytes.div_ceil(HALF)) {
            self.words.store(word, tagged(tag, half));
        }
    }

    /// Puts a payload and its record past the caches, in whole lines: of others parts may stay behind.
    #[inline(always)]
    pub(crate) fn stream_tagged(
        &self,
        rank: u32,
        sequence: u64,
        (agreement, history, epoch): (Agreement, History, u16),
        (payload, bytes): (&Untagged, usize),
    ) {
        let (record, at) = (self.layout.record(rank, sequence), self.tagged(rank, sequence, bytes));
        let tag = tag_of(history.mark(sequence));
        let halves = payload.chunks_exact(HALF).map(|half| tagged(tag, half));
        let is_inside = at == record + INSIDE;
        let words = if is_inside { LINE - INSIDE } else { bytes.div_ceil(HALF).next_multiple_of(LINE) };
        (at..).zip(halves).take(words).for_each(|(at, word)| self.words.stream(at, word));
        if !is_inside {
            (record + INSIDE..record + LINE).for_each(|at| self.words.stream(at, 0));
        }
        let [codes, count] = agreement.words(epoch);
        for (word, value) in [(1, codes), (2, count), (3, 0), (0, history.mark(sequence))] {
            self.words.stream(record + word, value);
        }
    }
}

impl Small<'_> {
    /// What others need of this rank's input, in the order in which it is put.
    #[inline(always)]
    pub(crate) fn gather_puts(&self, input: Window<'_>) -> Option<Untagged> {
        let mut payload = [0; TAGGED_BYTES];
        let Self { shape, rank, .. } = *self;
        if !shape.is_split() {
            input.read(payload.get_mut(..shape.block as usize)?);
            return Some(payload);
        }
        let (before, own) = (u64::from(rank) * shape.block, shape.block);
        let after = shape.contribution().checked_sub(before)?;
        input.sub((before + own) as usize, after as usize)?.read(payload.get_mut(..after as usize)?);
        let last = payload.get_mut(after as usize..(after + before) as usize)?;
        input.sub(0, before as usize)?.read(last);
        Some(payload)
    }

    /// As [`Small::take`], of such payloads; whether all of them were there.
    #[inline(always)]
    pub(crate) fn take_tagged(&self, input: Option<Window<'_>>, output: Window<'_>) -> Option<bool> {
        let Self { shape, rank: own, sequence, cell } = *self;
        let (block, bytes) = (shape.block as usize, shape.contribution() as usize);
        match shape.operation {
            Operation::Reduce if shape.ranks <= FEW => self.reduce_tagged::<{ FEW as usize }>(input?, output),
            Operation::Reduce => self.reduce_tagged::<{ crate::RANKS_MAX as usize }>(input?, output),
            Operation::Gather => {
                for rank in (0..shape.ranks).filter(|rank| *rank != own) {
                    let Some(payload) = cell.untag(rank, sequence, bytes) else { return Some(false) };
                    let to = output.sub(rank as usize * block, block)?;
                    Window::of(payload.get(..block)?).copy_to(&to);
                }
                Some(true)
            }
            _ => {
                let Some(payload) = cell.untag(shape.root, sequence, bytes) else { return Some(false) };
                let start = if shape.is_split() { self.position(shape.root) as usize * block } else { 0 };
                Window::of(payload.get(start..start + block)?).copy_to(&output);
                Some(true)
            }
        }
    }

    /// Combines what all ranks have, of which there are at most `N`.
    fn reduce_tagged<const N: usize>(&self, input: Window<'_>, output: Window<'_>) -> Option<bool> {
        let Self { shape, rank: own, sequence, cell } = *self;
        let bytes = shape.block as usize;
        let mut payloads = [[0; TAGGED_BYTES]; N];
        for (rank, payload) in (0..shape.ranks).zip(&mut payloads).filter(|(rank, _)| *rank != own) {
            let Some(untagged) = cell.untag(rank, sequence, bytes) else { return Some(false) };
            *payload = untagged;
        }
        let windows = (0..shape.ranks).zip(&payloads).map(|(rank, payload)| {
            if rank == own { Some(input) } else { payload.get(..bytes).map(Window::of) }
        });
        let sources: ArrayVec<Source<'_>, N> =
            windows.map(|window| window.map(Source::from)).collect::<Option<_>>()?;
        let divisor = shape.divisor(shape.ranks);
        let done = ringway_reduce::reduce(shape.datatype, shape.reduction?, &sources, &[output], divisor);
        debug_assert!(done.is_ok(), "{done:?}");
        Some(true)
    }
}

/// Ranks whose payloads are little to clear.
const FEW: u32 = 4;

#[cfg(test)]
mod tests {
    use core::cell::Cell as Time;
    use std::sync::Arc;

    use ringway_mem::Mapping;

    use super::*;
    use crate::{Call, shared::Words};

    #[test]
    fn a_payload_is_there_when_all_of_its_words_are() {
        let length = crate::bytes(2).expect("two ranks") as usize;
        let cell = Cell::attach(Arc::new(Mapping::private(length).expect("map")), 2).expect("attach");
        let agreement = Agreement::of(&Call { operation: Operation::Broadcast, ..Call::BARRIER });
        let mut history = History::default();
        let mut sequence = 0;
        for bytes in 1..=TAGGED_BYTES {
            let mut payload = [0; TAGGED_BYTES];
            payload.iter_mut().zip(1..).take(bytes).for_each(|(byte, value)| *byte = value);
            for streams in [false, true] {
                (sequence, history) = (sequence + 1, history.and(agreement));
                cell.publish(1, sequence, history);
                assert_eq!(cell.untag(1, sequence, bytes), None, "nothing is there");
                if streams {
                    cell.stream_tagged(1, sequence, (agreement, history, 0), (&payload, bytes));
                } else {
                    cell.tag(1, (sequence, history), (&payload, bytes));
                }
                Words::end_stream();
                assert_eq!(cell.history(1, sequence), Some(history));
                assert_eq!(cell.untag(1, sequence, bytes), Some(payload), "{bytes} bytes");
                let last = cell.tagged(1, sequence, bytes) + bytes.div_ceil(HALF) - 1;
                cell.words.store(last, 1 << 63);
                assert_eq!(cell.untag(1, sequence, bytes), None, "not its last word");
            }
        }
    }

    thread_local! {
        static NOW: Time<u64> = const { Time::new(0) };
    }

    #[test]
    fn others_are_as_far_as_a_store_takes_that_was_looked_at() {
        let mut distance = Distance::by(|| NOW.get());
        let mut write = |sequence, took| {
            let begun = distance.begin(sequence);
            NOW.set(NOW.get() + took);
            distance.end(begun);
            distance.is_far
        };
        assert!(!write(1, 300), "it was not looked");
        assert!(write(LOOK_EVERY, 300));
        assert!(write(LOOK_EVERY + 1, 30));
        assert!(!write(2 * LOOK_EVERY, 30));
        let mut nobody = Distance::default();
        nobody.end(nobody.begin(LOOK_EVERY));
        assert!(!nobody.streams(1), "there is no clock");
    }
}
