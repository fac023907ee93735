//! Payloads of few bytes, in words that say by themselves to which call they belong.
//!
//! Who only gives, as the root of a broadcast does, waits for nobody and makes its next call at once. But its stores go to
//! lines that others have read, one after the other, and soon it waits for these: at 300 ns between processors for most of
//! a call. Stores past the caches wait for nobody. They may be seen in any order, and a fence between payload and record would
//! take longer than all the rest: so every word has four bytes of payload and a tag of the call, by which whoever takes it
//! tells whether it is there. (NCCL's protocol `LL` does so too, for another reason.) Tags are made of the digest of all calls
//! so far: a word that was left there by an earlier call looks like one of this once in 2^32.
//!
//! Through memory a line takes as long as between processors that are far apart, and three times as long as between
//! such as have a cache in common. How far others are is told by what a store takes that is waited for, now and then. To
//! those who are near nothing is tagged: tags take twice the lines, and untagging as long as a short reduction. A record
//! says which of both it is.

use ringway_mem::Window;
use ringway_reduce::Source;
use ringway_types::Operation;

use crate::{
    cell::Cell,
    clock::Clock,
    layout::LINE,
    record::{Agreement, History, STREAMED, TINY_WORD},
    shared::full_fence,
    small::Small,
};

/// The most bytes of such a payload.
pub(crate) const TAGGED_BYTES: usize = 128;
/// And where whoever takes it takes one of every other rank: untagging more takes longer than it spares.
pub(crate) const TAGGED_FROM_MANY_BYTES: usize = 64;
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

    /// Copies out a payload that a rank has put, whose record was seen; whether all of it was there.
    #[inline(always)]
    pub(crate) fn untag(&self, rank: u32, sequence: u64, payload: &mut [u8], bytes: usize) -> bool {
        let at = self.tagged(rank, sequence, bytes);
        let tag = tag_of(self.words.load(self.layout.record(rank, sequence)));
        for (word, half) in (at..).zip(payload.chunks_exact_mut(HALF)).take(bytes.div_ceil(HALF)) {
            let word = self.words.load(word);
            if (word >> 32) as u32 != tag {
                return false;
            }
            half.copy_from_slice(&(word as u32).to_le_bytes());
        }
        true
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
        let mark = history.mark(sequence) | STREAMED;
        let tag = tag_of(mark);
        let halves = payload.chunks_exact(HALF).map(|half| tagged(tag, half));
        let is_inside = at == record + TINY_WORD;
        let before = if is_inside { TINY_WORD } else { 0 };
        let words = (before + bytes.div_ceil(HALF)).next_multiple_of(LINE) - before;
        (at..).zip(halves).take(words).for_each(|(at, word)| self.words.stream(at, word));
        if !is_inside {
            (record + TINY_WORD..record + LINE).for_each(|at| self.words.stream(at, 0));
        }
        let [codes, count] = agreement.words(epoch);
        for (word, value) in [(1, codes), (2, count), (3, 0), (0, mark)] {
            self.words.stream(record + word, value);
        }
    }
}

impl Small<'_> {
    /// Copies what others need of this rank's input.
    #[inline(always)]
    pub(crate) fn gather(&self, input: Window<'_>, payload: &mut Untagged) -> Option<()> {
        let (first, rest) = self.parts(input)?;
        let length = first.length();
        first.copy_to(&Window::of_mut(payload.get_mut(..length)?));
        if let Some(rest) = rest {
            rest.copy_to(&Window::of_mut(payload.get_mut(length..)?));
        }
        Some(())
    }

    /// Whether any of the payloads that this rank takes is tagged.
    #[inline(always)]
    pub(crate) fn is_any_streamed(&self) -> bool {
        let Self { shape, rank: own, sequence, cell } = *self;
        if shape.is_from_many() {
            (0..shape.ranks).any(|rank| rank != own && cell.is_streamed(rank, sequence))
        } else {
            cell.is_streamed(shape.root, sequence)
        }
    }

    /// What a rank has put, without tags; `None` when not all of it was there.
    #[inline(always)]
    fn untagged<'p>(&'p self, rank: u32, payload: &'p mut [u8]) -> Option<Window<'p>> {
        let bytes = self.shape.contribution() as usize;
        if !self.cell.is_streamed(rank, self.sequence) {
            return self.payload(rank, 0, bytes as u64);
        }
        let is_all = self.cell.untag(rank, self.sequence, payload, bytes);
        if is_all { Some(Window::of(payload.get(..bytes)?)) } else { None }
    }

    /// As [`Small::take`], where any payload is tagged; whether all were there.
    #[inline(never)]
    pub(crate) fn take_tagged(&self, input: Option<Window<'_>>, output: Window<'_>) -> Option<bool> {
        let Self { shape, rank: own, .. } = *self;
        let block = shape.block as usize;
        let mut payload = [0; TAGGED_BYTES];
        match shape.operation {
            Operation::Reduce => match shape.ranks {
                ..=2 => self.reduce_tagged::<2>(input?, output),
                3 | 4 => self.reduce_tagged::<4>(input?, output),
                _ => self.reduce_many_tagged(input?, output),
            },
            Operation::Gather => {
                for rank in (0..shape.ranks).filter(|rank| *rank != own) {
                    let Some(come) = self.untagged(rank, &mut payload) else { return Some(false) };
                    come.copy_to(&output.sub(rank as usize * block, block)?);
                }
                Some(true)
            }
            _ => {
                let Some(come) = self.untagged(shape.root, &mut payload) else { return Some(false) };
                let start = if shape.is_split() { self.position(shape.root) as usize * block } else { 0 };
                come.sub(start, block)?.copy_to(&output);
                Some(true)
            }
        }
    }

    /// (Not compiled into others, whose stack would be larger than a page.)
    #[inline(never)]
    fn reduce_many_tagged(&self, input: Window<'_>, output: Window<'_>) -> Option<bool> {
        self.reduce_tagged::<{ crate::RANKS_MAX as usize }>(input, output)
    }

    /// Combines what all ranks have, of which there are at most `N`.
    #[inline(always)]
    fn reduce_tagged<const N: usize>(&self, input: Window<'_>, output: Window<'_>) -> Option<bool> {
        let Self { shape, rank: own, .. } = *self;
        let mut payloads = [[0; TAGGED_FROM_MANY_BYTES]; N];
        let mut sources = [Source::from(input); N];
        for (rank, (source, payload)) in (0..shape.ranks).zip(sources.iter_mut().zip(&mut payloads)) {
            if rank != own {
                let Some(come) = self.untagged(rank, payload) else { return Some(false) };
                *source = come.into();
            }
        }
        let (sources, divisor) = (sources.get(..shape.ranks as usize)?, shape.divisor(shape.ranks));
        let done = ringway_reduce::reduce(shape.datatype, shape.reduction?, sources, &[output], divisor);
        debug_assert!(done.is_ok(), "{done:?}");
        Some(true)
    }
}

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
            (sequence, history) = (sequence + 1, history.and(agreement));
            cell.publish(1, sequence, history);
            let mut found = [0; TAGGED_BYTES];
            assert!(!cell.is_streamed(1, sequence));
            assert!(!cell.untag(1, sequence, &mut found, bytes), "nothing is there");
            cell.stream_tagged(1, sequence, (agreement, history, 0), (&payload, bytes));
            Words::end_stream();
            assert_eq!(cell.history(1, sequence), Some(history));
            assert!(cell.is_streamed(1, sequence));
            assert!(cell.untag(1, sequence, &mut found, bytes), "{bytes} bytes");
            assert_eq!(found, payload, "{bytes} bytes");
            let last = cell.tagged(1, sequence, bytes) + bytes.div_ceil(HALF) - 1;
            cell.words.store(last, 1 << 63);
            assert!(!cell.untag(1, sequence, &mut found, bytes), "not its last word");
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
