//! Where messages lie in each side's memory: as in perftest's programs, so that either side knows what is where on the
//! other.

/// One side's memory: for each queue pair a piece to send from, then for each a piece to receive in. Short messages
/// cycle through their piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) queue_pairs: u64,
    /// The longest message.
    pub(crate) bytes_max: u64,
    pub(crate) cycle_bytes: u64,
    pub(crate) line_bytes: u64,
}

impl Layout {
    /// Bytes of a piece.
    const fn piece(&self) -> u64 {
        if self.bytes_max < self.cycle_bytes { self.cycle_bytes } else { self.bytes_max }
    }

    /// Bytes of all pieces.
    pub(crate) const fn length(&self) -> u64 {
        self.piece().next_multiple_of(self.line_bytes) * 2 * self.queue_pairs
    }

    /// Where a queue pair sends from.
    pub(crate) const fn sending(&self, index: usize) -> u64 {
        index as u64 * self.piece()
    }

    /// Where a queue pair's peer writes to and reads from, and receives go.
    pub(crate) const fn receiving(&self, index: usize) -> u64 {
        (self.queue_pairs + index as u64) * self.piece()
    }

    /// From one message of this size to the next, and how many of them a piece has.
    pub(crate) const fn steps(&self, bytes: u64) -> Steps {
        let step =
            if bytes > self.line_bytes { bytes.next_multiple_of(self.line_bytes) } else { self.line_bytes };
        if bytes <= self.cycle_bytes / 2 {
            Steps { step, count: self.cycle_bytes / step }
        } else {
            Steps { step, count: 1 }
        }
    }
}

/// How messages of one size cycle through a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    step: u64,
    count: u64,
}

impl Steps {
    /// Only the first place.
    pub(crate) const STILL: Self = Self { step: 0, count: 1 };

    /// Where in its piece a message is, by its number.
    pub(crate) const fn at(&self, number: u64) -> u64 {
        number % self.count * self.step
    }

    /// How many places so many messages take.
    pub(crate) const fn places(&self, messages: u64) -> u64 {
        if messages < self.count { messages } else { self.count }
    }
}

/// Memory for what comes in or is brought, behind all pieces: a place for every message that may be under way, so that
/// each can be looked at before the next lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrivals {
    begin: u64,
    /// Bytes of a queue pair's part.
    part: u64,
    queue_pairs: u64,
    line_bytes: u64,
    depth: u64,
}

impl Arrivals {
    /// The most bytes of all.
    const BYTES_MAX: u64 = 64 << 20;

    /// Room for so many messages at once on each queue pair, or as many as there is memory for.
    pub(crate) fn behind(layout: &Layout, depth: u32) -> Self {
        let Layout { queue_pairs, bytes_max, line_bytes, .. } = *layout;
        let message = bytes_max.max(1).next_multiple_of(line_bytes);
        let wanted = message * u64::from(depth);
        let part =
            wanted.min((Self::BYTES_MAX / queue_pairs.max(1)).next_multiple_of(line_bytes)).max(message);
        Self { begin: layout.length(), part, queue_pairs, line_bytes, depth: depth.into() }
    }

    pub(crate) const fn end(&self) -> u64 {
        self.begin + self.part * self.queue_pairs
    }

    const fn step(&self, bytes: u64) -> u64 {
        if bytes > self.line_bytes { bytes.next_multiple_of(self.line_bytes) } else { self.line_bytes }
    }

    /// How many messages of this size a queue pair has room for.
    pub(crate) fn places(&self, bytes: u64) -> u64 {
        (self.part / self.step(bytes)).clamp(1, self.depth.max(1))
    }

    /// Where the message of this number comes to lie.
    pub(crate) fn at(&self, index: usize, number: u64, bytes: u64) -> u64 {
        self.begin + index as u64 * self.part + number % self.places(bytes) * self.step(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As perftest 4.5 prints them with `-s 100 -q 2` and `-s 20001 -q 2`: the second queue pair's memory comes right behind
    /// the first one's, after those to send from.
    #[test]
    fn pieces_are_where_perftest_has_them() {
        let of = |bytes_max| Layout { queue_pairs: 2, bytes_max, cycle_bytes: 4096, line_bytes: 64 };
        let short = of(100);
        assert_eq!([short.sending(1), short.receiving(0), short.receiving(1)], [4096, 8192, 12_288]);
        assert_eq!(short.length(), 16_384);
        let steps = short.steps(100);
        assert_eq!([0, 1, 31, 32].map(|number| steps.at(number)), [0, 128, 31 * 128, 0]);
        assert_eq!([steps.places(5), steps.places(100)], [5, 32]);
        let long = of(20_001);
        assert_eq!([long.sending(1), long.receiving(0), long.receiving(1)], [20_001, 40_002, 60_003]);
        assert_eq!(long.length(), 4 * 20_032);
        assert_eq!(long.steps(20_001).at(7), 0);
        // Up to half a piece messages cycle.
        assert_eq!([short.steps(2048).at(1), short.steps(2049).at(1)], [2048, 0]);
    }

    #[test]
    fn messages_under_way_have_places_of_their_own() {
        for (bytes, depth) in [(1, 512), (100, 3), (20_001, 512), (8 << 20, 512)] {
            let layout = Layout { queue_pairs: 3, bytes_max: bytes, cycle_bytes: 4096, line_bytes: 64 };
            let arrivals = Arrivals::behind(&layout, depth);
            let count = arrivals.places(bytes);
            assert!(count >= 1 && count <= u64::from(depth));
            let mut places: Vec<u64> =
                (0..3).flat_map(|index| (0..count).map(move |n| arrivals.at(index, n, bytes))).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0] + bytes <= pair[1]));
            assert!(places[0] >= layout.length() && places.last().unwrap() + bytes <= arrivals.end());
        }
    }
}
