//! For what and for whom a call waits.

use super::{Member, Outstanding};
use crate::{layout::RankWord, shape::Need};

/// Payloads that take so long to copy that it is worth looking whether somebody is at it.
const LONG_BYTES: u64 = 4096;

/// For what a call under way waits, as far as it matters to how long it is polled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// For a rank that was on this processor when it last waited: it cannot come before this one makes room.
    Neighbour,
    /// For so many ranks, all elsewhere, that have not come to a call which needs everybody's record.
    Ranks(usize),
    /// For one rank's payload, which takes a moment to copy; of which so many bytes were copied here.
    Payload(usize),
    /// For something else.
    Other,
}

impl Member {
    /// Says on which processor this rank waits: one for which others wait there cannot run meanwhile.
    #[inline]
    pub fn set_processor(&mut self, processor: usize) {
        let said = processor as u64 + 1;
        if core::mem::replace(&mut self.processor, said) != said {
            self.cell.words.store(self.cell.layout.rank(self.rank, RankWord::Processor), said);
        }
    }

    /// Whether a rank last waited on the processor on which this one does.
    fn is_neighbour(&self, rank: u32) -> bool {
        self.processor > 0 && self.cell.rank_word(rank, RankWord::Processor) == self.processor
    }

    /// The ranks that are waited for: those whose records of a call are needed and not there. Of a call that is over here,
    /// whose slot is to be used again, those that are not through with it.
    pub fn missing(&self, sequence: u64) -> impl Iterator<Item = u32> {
        let need = self.under_way(sequence).map(|(_, need)| need);
        (0..self.cell.ranks()).filter(move |rank| {
            *rank != self.rank
                && match need {
                    Some(need) => need.is_for(*rank) && self.cell.history(*rank, sequence).is_none(),
                    None => self.cell.consumed(*rank) < sequence,
                }
        })
    }

    /// A call that is not over, and whose records it needs.
    fn under_way(&self, sequence: u64) -> Option<(&Outstanding, Need)> {
        let call = self.calls.get(Self::index(sequence))?;
        let need = if call.small { call.shape.need(self.rank) } else { Need::All };
        (call.sequence == sequence && !call.over).then_some((call, need))
    }

    /// Whether a call needs the record of every rank, and not all are there.
    pub(super) fn needs_more_records(&self, sequence: u64) -> bool {
        let needs_all = matches!(self.under_way(sequence), Some((_, Need::All)));
        needs_all && self.missing(sequence).next().is_some()
    }

    /// For what a call waits.
    #[must_use]
    pub fn awaits(&self, sequence: u64) -> Awaited {
        let call = self.under_way(sequence);
        if call.is_some() && self.missing(sequence).any(|rank| self.is_neighbour(rank)) {
            return Awaited::Neighbour;
        }
        match call {
            Some((_, Need::All)) => Awaited::Ranks(self.missing(sequence).count()),
            Some((call, Need::One(_))) if call.shape.contribution() >= LONG_BYTES => {
                Awaited::Payload(call.taken)
            }
            _ => Awaited::Other,
        }
    }
}
