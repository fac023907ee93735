//! How payloads are put where others read them.

use ringway_mem::Window;
use ringway_reduce::Stores;

use super::Member;
use crate::shape::Shape;

/// From so many bytes on it matters how payloads are put.
pub(super) const PUTS_PAST_BYTES: u64 = 1024;

impl Member {
    /// Puts a payload the way that costs less: others have read the lines that it goes to, and may be far away.
    #[inline(never)]
    pub(super) fn put_weighed(&mut self, sequence: u64, shape: &Shape, input: Window<'_>) -> Option<()> {
        let bytes = shape.contribution();
        let (past, begun) = match &mut self.puts {
            None => (false, None),
            Some(ways) => (ways.go_past(sequence, shape.operation, bytes, false), ways.begin()),
        };
        let stores = if past { Stores::Streaming } else { Stores::Cached };
        let small = self.small(sequence, shape);
        let put = if shape.is_pooled() { small.put_pooled(input, stores) } else { small.put(input, stores) };
        if let Some(ways) = &mut self.puts {
            ways.end(begun, bytes);
        }
        put
    }

    /// Remembers how much of a payload was copied.
    pub(crate) fn keep_taken(&mut self, sequence: u64, taken: usize) {
        if let Some(call) = self.calls.get_mut(Self::index(sequence)) {
            call.taken = taken;
        }
    }
}
