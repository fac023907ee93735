//! Where everything is in a cell's file, in words of eight bytes. A line is a cache line; whatever two sides write at a
//! time stands on lines of its own.
//!
//! ```text
//! header   verdict | sleepers
//! ranks    for each rank: consumed, called | wanted | inside | bell, armed | state, node, processor | processors
//! records  for each rank and slot: two lines
//! work     for each slot: a line per lane with its claim and done counts, a published line per rank
//! payloads for each rank and slot: INLINE_BYTES, and a line that keeps slots out of each other's cache sets
//! pool     among more than two ranks, POOL_SLOTS times: POOLED_BYTES, and such a line, with how many of them are there
//! ```

use crate::{INLINE_BYTES, POOL_SLOTS, POOLED_BYTES, RANKS_MAX, SLOTS};

/// Words of a cache line.
pub(crate) const LINE: usize = 8;
const HEADER: usize = 8 * LINE;
const RANK: usize = 8 * LINE;
const SLOT_COUNT: usize = SLOTS as usize;
/// Words of a record.
pub(crate) const RECORD: usize = 2 * LINE;
const PAYLOAD: usize = INLINE_BYTES / 8 + LINE;
const POOLED: usize = POOLED_BYTES / 8 + LINE;

/// Segments of a staged operation that may be under way at a time.
pub(crate) const SEGMENTS_AHEAD: u64 = 4;

/// Why the communicator is at its end; zero while it is not. Set once.
pub(crate) const VERDICT: usize = 0;
/// How many ranks sleep, plus [`FENCES`] when a publisher must issue a fence before it reads this.
pub(crate) const SLEEPERS: usize = 2 * LINE;
/// See [`SLEEPERS`].
pub(crate) const FENCES: u64 = 1 << 32;

/// One word of a rank's block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RankWord {
    /// Every call up to this one is over for this rank: it reads nothing of it any more.
    Consumed = 0,
    /// The last call it published.
    Called = 1,
    /// The last call it wants the daemon's help with.
    Wanted = LINE as isize,
    /// Not zero while it works on others' memory.
    Inside = 2 * LINE as isize,
    /// The futex it sleeps on.
    Bell = 3 * LINE as isize,
    /// Not zero while it sleeps, or is about to.
    Armed = 3 * LINE as isize + 1,
    /// The call of which it needs every record before anything else can end its sleep; zero when there is none.
    Awaits = 3 * LINE as isize + 2,
    /// What the daemon knows of it: [`LEFT`], [`EXITED`], [`STOOD_IN`].
    State = 4 * LINE as isize,
    /// The NUMA node it runs on, plus one; zero while it is not known.
    Node = 4 * LINE as isize + 1,
    /// The processor it was on when it last waited, plus one; zero while it is not known.
    Processor = 4 * LINE as isize + 2,
    /// The first of [`SET_WORDS`]: the processors on which it may run; none while it has not said so.
    Processors = 5 * LINE as isize,
}

/// The rank left in order.
pub(crate) const LEFT: u64 = 1;
/// The rank's process has ended.
pub(crate) const EXITED: u64 = 2;
/// The daemon acts for the rank.
pub(crate) const STOOD_IN: u64 = 4;

/// Indices of words for a number of ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    ranks: usize,
    records: usize,
    work: usize,
    payloads: usize,
    pool: usize,
    words: usize,
}

impl Layout {
    pub(crate) const fn new(ranks: u32) -> Option<Self> {
        if ranks == 0 || ranks > RANKS_MAX {
            return None;
        }
        let ranks = ranks as usize;
        let records = HEADER + ranks * RANK;
        let work = records + ranks * SLOT_COUNT * RECORD;
        let payloads = work + SLOT_COUNT * Self::work_words(ranks);
        let pool = payloads + ranks * SLOT_COUNT * PAYLOAD;
        let words = pool + if ranks > 2 { POOL_SLOTS as usize * POOLED } else { 0 };
        Some(Self { ranks, records, work, payloads, pool, words })
    }

    const fn work_words(ranks: usize) -> usize {
        2 * ranks * LINE
    }

    pub(crate) const fn words(&self) -> usize {
        self.words
    }

    #[inline(always)]
    const fn slot(sequence: u64) -> usize {
        (sequence % SLOTS) as usize
    }

    #[inline(always)]
    pub(crate) const fn rank(&self, rank: u32, word: RankWord) -> usize {
        HEADER + rank as usize * RANK + word as usize
    }

    /// The first word of a rank's record of a call.
    #[inline(always)]
    pub(crate) const fn record(&self, rank: u32, sequence: u64) -> usize {
        self.records + (rank as usize * SLOT_COUNT + Self::slot(sequence)) * RECORD
    }

    /// The first word of the payload of a record.
    #[inline(always)]
    pub(crate) const fn payload(&self, rank: u32, sequence: u64) -> usize {
        self.payloads + (rank as usize * SLOT_COUNT + Self::slot(sequence)) * PAYLOAD
    }

    /// The first word of the payload of a call that has it in the pool. One rank puts anything in such a call.
    #[inline(always)]
    pub(crate) const fn pooled(&self, sequence: u64) -> usize {
        self.pool + (sequence % POOL_SLOTS) as usize * POOLED
    }

    /// The word that says how much of that payload is there.
    #[inline(always)]
    pub(crate) const fn pooled_bytes(&self, sequence: u64) -> usize {
        self.pooled(sequence) + POOLED_BYTES / 8
    }

    /// The claim word of a lane, of which there are as many as ranks.
    #[inline(always)]
    pub(crate) const fn claim(&self, sequence: u64, lane: u32) -> usize {
        self.work + Self::slot(sequence) * Self::work_words(self.ranks) + lane as usize * LINE
    }

    /// How many segments a staged rank has published.
    #[inline(always)]
    pub(crate) const fn published(&self, sequence: u64, rank: u32) -> usize {
        self.claim(sequence, rank) + self.ranks * LINE
    }

    /// How many blocks of a lane are done, of the segments that share a count with this one. Beside the claims: who looks
    /// for something to claim sees what is done as well.
    #[inline(always)]
    pub(crate) const fn done(&self, sequence: u64, lane: u32, segment: u64) -> usize {
        self.claim(sequence, lane) + 1 + (segment % SEGMENTS_AHEAD) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processors::SET_WORDS;

    #[test]
    fn no_two_words_are_the_same() {
        let layout = Layout::new(3).expect("three ranks");
        let mut used = vec![VERDICT, SLEEPERS];
        for rank in 0..3 {
            use RankWord::{
                Armed, Awaits, Bell, Called, Consumed, Inside, Node, Processor, Processors, State, Wanted,
            };
            let processors = layout.rank(rank, Processors);
            used.extend(processors..processors + SET_WORDS);
            used.extend(
                [Consumed, Called, Node, Processor, Wanted, Inside, Bell, Armed, Awaits, State]
                    .map(|w| layout.rank(rank, w)),
            );
        }
        for sequence in 0..SLOTS {
            for rank in 0..3 {
                let record = layout.record(rank, sequence);
                used.extend(record..record + RECORD);
                let payload = layout.payload(rank, sequence);
                used.extend(payload..payload + INLINE_BYTES / 8);
                used.extend([layout.claim(sequence, rank), layout.published(sequence, rank)]);
                used.extend((0..SEGMENTS_AHEAD).map(|s| layout.done(sequence, rank, s)));
            }
        }
        for sequence in 0..POOL_SLOTS {
            let pooled = layout.pooled(sequence);
            used.extend(pooled..pooled + POOLED_BYTES / 8);
            used.push(layout.pooled_bytes(sequence));
        }
        let count = used.len();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), count);
        assert!(used.last().is_some_and(|last| *last < layout.words()));
    }
}
