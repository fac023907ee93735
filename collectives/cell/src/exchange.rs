//! Short calls from beginning to end: what most of them are when every rank comes at about the same time.

mod large;

use core::hint::spin_loop;

use ringway_mem::Window;

use crate::{
    Place, Prepared, Regions,
    member::{Member, Seen, look},
    record::{History, Part},
    shape::Need,
    worker::CALLS_WEIGHED,
};

/// Polls in a row before the processor is told that this is a loop of polls, which delays each of them.
const EAGER_POLLS: u32 = 64;

/// Pauses between two looks for free slots: about a microsecond, in which others empty several. A look takes their lines from
/// them, at just the moment at which it is they who are behind.
const PAUSES: u32 = 64;
/// The polls that are over in so many pauses, about.
const POLLS_OF_PAUSES: u32 = 8;

/// How many calls before they are read.
const READ_AHEAD: u64 = 8;
/// Calls between two looks at how far others are.
const LOOK_AHEAD_EVERY: u64 = 8;

/// Of a short call, what differs from one to the next.
#[derive(Debug, Clone, Copy)]
pub struct CallMemory<'w> {
    /// What is read, as long as [`Prepared::bytes`] says.
    pub input: Option<Window<'w>>,
    /// What is written, likewise.
    pub output: Option<Window<'w>>,
    /// Where both are, for [`Member::poll`].
    pub places: [Option<Place>; 2],
    /// This rank's scalar for premul_sum, as its eight bytes.
    pub scale: u64,
}

/// What became of a short call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Exchange {
    /// It is over.
    Done,
    /// It was published under this number: go on with [`Member::poll`].
    Pending(u64),
    /// Nothing was published: the call is not short, there is no room, or the communicator is at its end.
    /// [`Member::begin`] says more.
    Declined,
}

impl Member {
    /// Makes a short call and polls it at most so many times: the same as [`Member::begin`] and then [`Member::poll`], but
    /// faster, since nothing has to be remembered of a call that is over at once. `regions` must know others' memory, as
    /// for polling; this rank's own is in `memory`. (Not generic over them: compiled with its callers, calls of 64 B took 1.4
    /// times as long.)
    pub fn exchange(
        &mut self,
        call: &Prepared,
        memory: &CallMemory<'_>,
        polls: u32,
        regions: &dyn Regions,
    ) -> Exchange {
        if !call.is_prompt(polls) || self.cell.verdict().is_some() || !self.wait_for_room(call, polls) {
            return Exchange::Declined;
        }
        if let Some(lanes) = call.short_lanes {
            if memory.places.into_iter().flatten().any(Place::is_private) {
                return Exchange::Declined;
            }
            return self.exchange_large((call, lanes), memory, polls, regions);
        }
        let sequence = self.next();
        let history = self.history_and(call.agreement);
        let puts = memory.input.filter(|_| call.puts > 0);
        match puts {
            Some(input) if call.is_tagged => self.publish_tagged((sequence, history), call, input),
            _ => self.put_and_publish((sequence, history), call.agreement, &call.shape, (memory.scale, puts)),
        }
        if call.keeps {
            let kept = self.small(sequence, &call.shape).keep_own(memory.input, memory.output);
            debug_assert!(kept.is_some(), "the caller's memory is not there");
        }
        if call.is_pooled && call.takes {
            return self.take_pooled(call, (sequence, history), memory, polls);
        }
        let mut seen = 0;
        if self.meet((sequence, history), &mut seen, call.need, polls)
            && (!call.takes || self.take_all(sequence, call, memory))
        {
            // Those it follows look for free slots just as they run out of them, and are told of several calls at a time.
            let seen = if call.follows.is_some() { 0 } else { seen };
            self.finish_unkept(sequence, history, seen);
            self.prefetch_like(sequence, call);
            return Exchange::Done;
        }
        let part = Part::of_small(memory.places, memory.scale);
        self.keep(sequence, (call.agreement, history), call.shape, part);
        Exchange::Pending(sequence)
    }

    /// Computes this rank's output, as soon as all is there for it; whether it soon was.
    #[inline(always)]
    fn take_all(&self, sequence: u64, call: &Prepared, memory: &CallMemory<'_>) -> bool {
        for _ in 0..EAGER_POLLS {
            let taken = self.small(sequence, &call.shape).take(memory.input, memory.output);
            debug_assert!(taken.is_some(), "the caller's memory is not there");
            if taken != Some(false) {
                return true;
            }
        }
        false
    }

    /// The rest of a call whose payload comes by the pool, for a rank that takes it.
    #[inline(never)]
    fn take_pooled(
        &mut self,
        call: &Prepared,
        (sequence, history): (u64, History),
        memory: &CallMemory<'_>,
        polls: u32,
    ) -> Exchange {
        let small = self.small(sequence, &call.shape);
        let (mut seen, mut taken, mut polled) = (0, 0, 0);
        while polled < polls {
            match look(&self.cell, (sequence, history), &mut seen, self.rank, call.need) {
                Seen::All => {
                    let all = small.take_rest(taken, memory.output);
                    debug_assert!(all.is_some(), "the caller's memory is not there");
                    self.finish_unkept(sequence, history, seen);
                    return Exchange::Done;
                }
                Seen::NotYet => {}
                Seen::Other(_) => break,
            }
            let come = small.take_ahead(taken, memory.output).unwrap_or(taken);
            polled = if come > taken { 0 } else { polled + 1 };
            taken = come;
            if polled > EAGER_POLLS {
                spin_loop();
            }
        }
        let part = Part::of_small(memory.places, memory.scale);
        self.keep(sequence, (call.agreement, history), call.shape, part);
        self.keep_taken(sequence, taken);
        Exchange::Pending(sequence)
    }

    /// Polls for the records that are needed, at most so many times; whether they are there and say the same.
    #[inline(always)]
    fn meet(&self, call: (u64, History), seen: &mut u32, need: Need, polls: u32) -> bool {
        for poll in 0..polls {
            match look(&self.cell, call, seen, self.rank, need) {
                Seen::All => return true,
                Seen::NotYet if poll > EAGER_POLLS => spin_loop(),
                Seen::NotYet => {}
                Seen::Other(_) => return false,
            }
        }
        false
    }

    /// Asks for the lines of calls to come: calls are often followed by others like them.
    #[inline(always)]
    fn prefetch_like(&mut self, sequence: u64, call: &Prepared) {
        if !call.writes_ahead && sequence.is_multiple_of(CALLS_WEIGHED) {
            self.asks_ahead = self.worker.asks_ahead(sequence, &call.shape, call.puts);
        }
        if call.writes_ahead || self.asks_ahead {
            self.cell.prefetch_for_writing(self.rank, sequence + call.asks_before, call.puts);
        }
        let Some(bytes) = call.follows else { return };
        let next = sequence + READ_AHEAD;
        let is_needed = |rank: u32| rank != self.rank && call.need.is_for(rank);
        // Loops, as calls of iterators' functions would take longer than what is done here.
        if self.ahead < next && sequence >= self.look_ahead_at {
            // Records that are not there yet are left to those who write them. So is, mostly, the word that says how many
            // are: its writer would have to fetch it back for every call.
            let mut ahead = u64::MAX;
            for rank in 0..self.cell.ranks() {
                if is_needed(rank) {
                    ahead = ahead.min(self.cell.called(rank));
                }
            }
            (self.look_ahead_at, self.ahead) = (sequence + LOOK_AHEAD_EVERY, ahead);
        }
        if self.ahead >= next {
            for rank in 0..self.cell.ranks() {
                if is_needed(rank) {
                    // Tags are as long as what they are of.
                    let twice = call.is_tagged && self.cell.is_streamed(rank, sequence);
                    self.cell.prefetch(rank, next, if twice { 2 * bytes } else { bytes });
                }
            }
        }
    }

    /// Whether there is room for the next call, looking for as long as so many polls take.
    #[inline]
    fn wait_for_room(&mut self, call: &Prepared, polls: u32) -> bool {
        self.room_for(call.is_pooled, call.puts > 0) || self.wait_for_rooms(call, polls)
    }

    #[cold]
    fn wait_for_rooms(&mut self, call: &Prepared, polls: u32) -> bool {
        // With one poll there is no processor to wait on; while somebody else acts for this rank there will be no room.
        let looks = if self.is_away() { 0 } else { polls / POLLS_OF_PAUSES };
        for _ in 0..looks {
            for _ in 0..PAUSES {
                spin_loop();
            }
            if self.room_for(call.is_pooled, call.puts > 0) {
                return true;
            }
        }
        false
    }
}
