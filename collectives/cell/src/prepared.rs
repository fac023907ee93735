//! What follows from a call's signature for one rank: worked out once for all calls like it.

use crate::{
    Call, Signature,
    job::ShortLanes,
    record::Agreement,
    shape::{Need, Shape},
};

/// A rank that waits for nobody has no time in which lines could come that it asks for. Of so many bytes they come together: not
/// asking made calls take 1.4 (192 B) to 2.3 times as long. Of fewer it depends on the machine: asking made calls of 64 B take 1.3
/// to 1.7 times as long on one, and 0.6 on another, so that it is learnt ([`crate::worker`]).
const MANY_BYTES: usize = 129;
/// How many calls before such a rank asks. (Two processors 110 ns apart, broadcast of 8, 64 and 192 B: one before 71, 74 and 91 ns,
/// two 59, 62 and 82, eight 65, 69 and 100.)
const GIVER_ASKS_BEFORE: u64 = 2;

/// A call that is made again and again.
#[derive(Debug, Clone, Copy)]
pub struct Prepared {
    signature: Signature,
    pub(crate) agreement: Agreement,
    pub(crate) shape: Shape,
    pub(crate) need: Need,
    is_small: bool,
    /// Its payload is tagged.
    pub(crate) is_tagged: bool,
    /// Its payload goes to the pool.
    pub(crate) is_pooled: bool,
    /// Those of a large call whose lanes are short.
    pub(crate) short_lanes: Option<ShortLanes>,
    /// Bytes that others need of this rank's input.
    pub(crate) puts: usize,
    /// Whether the lines of a later call are asked for, which this rank will write; else that is learnt.
    pub(crate) writes_ahead: bool,
    /// How many calls before they are written.
    pub(crate) asks_before: u64,
    /// Bytes that this rank reads of each of those it waits for, where they wait for nobody and may be calls ahead.
    pub(crate) follows: Option<usize>,
    /// Whether the result has a part that is this rank's own input.
    pub(crate) keeps: bool,
    /// Whether the result has a part of another rank's input.
    pub(crate) takes: bool,
    reads: u64,
    writes: u64,
}

impl Prepared {
    /// `None` when the call has counts, or means nothing to so many ranks. `rank` is one of them.
    #[must_use]
    pub fn new(signature: &Signature, rank: u32, ranks: u32) -> Option<Self> {
        let shape = Shape::of(signature, ranks).filter(|shape| !shape.operation.has_counts())?;
        let Signature { operation, datatype, reduction, root, count } = *signature;
        let call = Call { operation, datatype, reduction, root, count, ..Call::BARRIER };
        let (reads, writes) = shape.blocks(rank);
        let puts = if shape.contributes(rank) { shape.contribution() as usize } else { 0 };
        let waits = !matches!(shape.need(rank), Need::Nobody);
        Some(Self {
            signature: *signature,
            agreement: Agreement::of(&call),
            need: shape.need(rank),
            is_small: shape.is_small(),
            is_tagged: shape.is_tagged(),
            is_pooled: shape.is_pooled(),
            short_lanes: ShortLanes::of(&shape),
            puts,
            writes_ahead: waits || puts >= MANY_BYTES,
            asks_before: if waits { 1 } else { GIVER_ASKS_BEFORE },
            follows: (operation.has_root() && shape.takes(rank)).then_some(shape.contribution() as usize),
            keeps: shape.keeps(rank),
            takes: shape.takes(rank),
            reads: reads * shape.block,
            writes: writes * shape.block,
            shape,
        })
    }

    /// Whether it is such a call.
    #[inline(always)]
    #[must_use]
    pub fn is(&self, signature: &Signature) -> bool {
        self.signature == *signature
    }

    /// Whether its payload travels beside the records, as [`crate::Member::exchange`] needs it.
    #[inline(always)]
    #[must_use]
    pub const fn is_small(&self) -> bool {
        self.is_small
    }

    /// Whether [`crate::Member::exchange`] takes it with so many polls. With one poll there is no processor to wait on,
    /// and a large call goes on later.
    #[inline(always)]
    #[must_use]
    pub const fn is_prompt(&self, polls: u32) -> bool {
        self.is_small || polls > 1 && self.short_lanes.is_some()
    }

    /// Bytes that the rank's input and output have; zero where it has none.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(&self) -> (u64, u64) {
        (self.reads, self.writes)
    }
}
