//! How payloads are put where others read them.

use ringway_mem::Window;
use ringway_reduce::Stores;

use super::Member;
use crate::{
    Prepared,
    record::{Agreement, History},
    shape::Shape,
    step::{Step, reach},
    tagged::{TAGGED_BYTES, Untagged},
};

/// From so many bytes on payloads are put past the caches to those who are far: a line that they have read takes 27 ns to be
/// written through the caches, where they are 300 ns away, and 3 past them.
pub(super) const PUTS_PAST_BYTES: u64 = 2048;
/// From so many bytes on they are put so to everybody: they do not fit the first cache together with where they come from.
const ALWAYS_PAST_BYTES: u64 = 24 << 10;

impl Member {
    /// Puts a payload of [`PUTS_PAST_BYTES`] or more: to those who are far, past the caches.
    #[inline(never)]
    pub(super) fn put_long(&self, sequence: u64, shape: &Shape, input: Window<'_>) -> Option<()> {
        let past = self.distance.is_far || shape.contribution() >= ALWAYS_PAST_BYTES;
        let stores = if past { Stores::Streaming } else { Stores::Cached };
        let small = self.small(sequence, shape);
        if shape.is_pooled() { small.put_pooled(input, stores) } else { small.put(input, stores) }
    }

    /// Writes the record of a call whose payload is tagged, all but its sequence, and the payload.
    #[inline(always)]
    pub(super) fn write_tagged(
        &self,
        (sequence, history): (u64, History),
        agreement: Agreement,
        shape: &Shape,
        input: Window<'_>,
    ) {
        let mut payload = [0; TAGGED_BYTES];
        self.gather(sequence, shape, input, &mut payload);
        self.cell.write_small(self.rank, sequence, agreement, 0, self.epoch);
        self.cell.tag(self.rank, (sequence, history), (&payload, shape.contribution() as usize));
    }

    #[inline(always)]
    fn gather(&self, sequence: u64, shape: &Shape, input: Window<'_>, payload: &mut Untagged) {
        let gathered = self.small(sequence, shape).gather(input, payload);
        debug_assert!(gathered.is_some(), "the caller's input is too short");
    }

    /// Publishes a call whose payload is tagged, to whoever is near or far.
    #[inline(always)]
    pub(crate) fn publish_tagged(
        &mut self,
        (sequence, history): (u64, History),
        call: &Prepared,
        input: Window<'_>,
    ) {
        if self.distance.streams(sequence) {
            let mut payload = [0; TAGGED_BYTES];
            self.gather(sequence, &call.shape, input, &mut payload);
            self.say_called(sequence, history);
            let says = (call.agreement, history, self.epoch);
            self.cell.stream_tagged(self.rank, sequence, says, (&payload, call.puts));
            reach(Step::Published);
            self.cell.notify();
            return;
        }
        let begun = self.distance.begin(sequence);
        self.write_tagged((sequence, history), call.agreement, &call.shape, input);
        self.publish(sequence, history);
        self.distance.end(begun);
    }

    /// Remembers how much of a payload was copied.
    pub(crate) fn keep_taken(&mut self, sequence: u64, taken: usize) {
        if let Some(call) = self.calls.get_mut(Self::index(sequence)) {
            call.taken = taken;
        }
    }
}
