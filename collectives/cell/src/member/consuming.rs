//! Calls that are over for a rank, and when it is through with them: others may then use their slots again.

use super::Member;
use crate::{
    layout::RankWord,
    record::History,
    step::{Step, reach},
};

impl Member {
    /// A call is over for this rank.
    #[inline]
    pub(crate) fn finish(&mut self, sequence: u64) {
        let Some(call) = self.calls.get_mut(Self::index(sequence)) else { return };
        call.over = true;
        let seen = call.seen;
        self.consume_if_seen(sequence, seen);
    }

    /// Consumes a call that is over if every record of it was looked at and all earlier calls are consumed, which is the
    /// usual case; whether it was.
    #[inline(always)]
    pub(crate) fn consume_if_seen(&mut self, sequence: u64, seen: u32) -> bool {
        let usual = seen == self.cell.ranks() && self.consumed + 1 == sequence;
        if usual {
            self.consume(sequence);
        }
        usual
    }

    #[inline(always)]
    fn consume(&mut self, sequence: u64) {
        self.consumed = sequence;
        reach(Step::Taken);
        self.cell.words.store_release(self.cell.layout.rank(self.rank, RankWord::Consumed), sequence);
        reach(Step::Consumed);
        self.cell.notify_of_record();
    }

    /// Consumes calls that are over: looks at what was not needed for the results, so that ranks that call different
    /// things are found out in any case. One look at a rank is enough for all its calls up to that one.
    pub(super) fn sweep(&mut self) {
        let over = (self.consumed + 1..=self.called)
            .find(|sequence| self.calls.get(Self::index(*sequence)).is_none_or(|call| !call.over))
            .map_or(self.called, |sequence| sequence - 1);
        let mut through = over;
        for rank in (0..self.cell.ranks()).filter(|rank| *rank != self.rank) {
            let said = over.min(self.cell.called(rank));
            // One that went past the caches may not be there yet when the rank already says so.
            let mut last = [said, said.saturating_sub(1)].into_iter().filter(|last| *last > self.consumed);
            match last.find_map(|last| Some((last, self.cell.history(rank, last)?))) {
                None => through = self.consumed,
                Some((last, theirs)) if self.history_of(last) == Some(theirs) => through = through.min(last),
                Some((last, _)) => {
                    self.dispute = Some((rank, self.first_difference(rank, last)));
                    return;
                }
            }
        }
        if through > self.consumed {
            self.consume(through);
        }
    }

    fn history_of(&self, sequence: u64) -> Option<History> {
        self.calls.get(Self::index(sequence)).map(|call| call.history)
    }

    /// The first call up to this one that another rank did not call alike, as far as the records tell.
    #[cold]
    pub(super) fn first_difference(&self, rank: u32, last: u64) -> u64 {
        let differs = |sequence: &u64| {
            let [own, other] = [self.rank, rank].map(|rank| self.cell.agreement(rank, *sequence));
            own.is_some() && other.is_some() && own != other
        };
        (self.consumed + 1..last).find(differs).unwrap_or(last)
    }

    /// A call that was over for this rank before it turned out that another had called something else.
    #[must_use]
    pub fn dispute(&self) -> Option<u64> {
        self.dispute.map(|(_, sequence)| sequence)
    }
}
