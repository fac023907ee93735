//! How payloads are put where others read them, and records published.
//!
//! What is not in a record is written before it, and the record in one go: others look at it again and again, and a line that
//! was looked at between two stores must be fetched back.

use ringway_mem::Window;
use ringway_reduce::Stores;

use super::Member;
use crate::{
    Prepared,
    layout::RankWord,
    pooled::Way,
    record::{Agreement, History, Part},
    shape::Shape,
    step::{Step, reach},
    tagged::TAGGED_BYTES,
};

/// From so many bytes on payloads are put past the caches to those who are far: a line that they have read takes 27 ns to be
/// written through the caches, where they are 300 ns away, and 3 past them.
const PUTS_PAST_BYTES: u64 = 2048;

impl Member {
    /// Publishes a small call, through the caches; `puts` is this rank's input where others need any of it.
    #[inline(always)]
    pub(crate) fn put_and_publish(
        &mut self,
        (sequence, history): (u64, History),
        agreement: Agreement,
        shape: &Shape,
        (scale, puts): (u64, Option<Window<'_>>),
    ) {
        debug_assert!(
            puts.is_some() || !shape.contributes(self.rank) || shape.contribution() == 0,
            "the caller's input is not there"
        );
        let is_long = puts.is_some() && shape.contribution() >= PUTS_PAST_BYTES;
        if let Some(input) = puts {
            let put = match is_long {
                true => self.put_long(sequence, shape, input),
                false => self.small(sequence, shape).put(input, Stores::Cached),
            };
            debug_assert!(put.is_some(), "the caller's input is too short");
        }
        let begun = if is_long { self.distance.begin(sequence) } else { None };
        self.publish_small((sequence, history), agreement, scale);
        self.distance.end(begun);
    }

    /// Puts a payload of [`PUTS_PAST_BYTES`] or more: past the caches to those who are far, through them to those who are near. What
    /// goes to the pool is put so to these by halves, unless all of it through the caches was found to be faster, as it is where
    /// both processors are threads of one core.
    #[inline(never)]
    pub(super) fn put_long(&mut self, sequence: u64, shape: &Shape, input: Window<'_>) -> Option<()> {
        let is_far = self.distance.is_far;
        if !shape.is_pooled() {
            let stores = if is_far { Stores::Streaming } else { Stores::Cached };
            return self.small(sequence, shape).put(input, stores);
        }
        let way = match self.worker.puts_past(sequence, shape, shape.contribution()) {
            false => Way::Through,
            true if is_far => Way::Past,
            true => Way::Half,
        };
        self.small(sequence, shape).put_pooled(input, way)
    }

    /// Publishes a call of few bytes, whose payload is tagged for those who are far.
    #[inline(always)]
    pub(crate) fn publish_tagged(
        &mut self,
        (sequence, history): (u64, History),
        call: &Prepared,
        input: Window<'_>,
    ) {
        if self.distance.streams(sequence) {
            let mut payload = [0; TAGGED_BYTES];
            let gathered = self.small(sequence, &call.shape).gather(input, &mut payload);
            debug_assert!(gathered.is_some(), "the caller's input is too short");
            reach(Step::Written);
            let says = (call.agreement, history, self.epoch);
            self.cell.stream_tagged(self.rank, sequence, says, (&payload, call.puts));
            return self.say_called(sequence, history);
        }
        // Before the payload, which may be in the record's line.
        let begun = self.distance.begin(sequence);
        self.put_and_publish((sequence, history), call.agreement, &call.shape, (0, Some(input)));
        self.distance.end(begun);
    }

    /// Publishes a small call whose payload is put.
    #[inline(always)]
    pub(crate) fn publish_small(
        &mut self,
        (sequence, history): (u64, History),
        agreement: Agreement,
        scale: u64,
    ) {
        reach(Step::Written);
        self.cell.write_small(self.rank, sequence, agreement, scale, self.epoch);
        self.cell.publish(self.rank, sequence, history);
        self.say_called(sequence, history);
    }

    /// Publishes a large call.
    #[inline(always)]
    pub(crate) fn publish_large(
        &mut self,
        (sequence, history): (u64, History),
        agreement: Agreement,
        part: &Part,
        counts: &[u64],
    ) {
        self.cell.write_counts(self.rank, sequence, counts);
        reach(Step::Written);
        self.cell.write_part(self.rank, sequence, agreement, part);
        self.cell.publish(self.rank, sequence, history);
        self.say_called(sequence, history);
    }

    /// A record is written: nobody is waiting for this word, so that it comes after what they wait for.
    #[inline(always)]
    fn say_called(&mut self, sequence: u64, history: History) {
        self.called = sequence;
        self.history = history;
        self.cell.words.store(self.cell.layout.rank(self.rank, RankWord::Called), sequence);
        reach(Step::Published);
        self.cell.notify_of_record();
    }

    /// Remembers how much of a payload was copied.
    pub(crate) fn keep_taken(&mut self, sequence: u64, taken: usize) {
        if let Some(call) = self.calls.get_mut(Self::index(sequence)) {
            call.taken = taken;
        }
    }
}
