//! Small calls from beginning to end: what most of them are when every rank comes at about the same time.

use core::hint::spin_loop;

use ringway_mem::Window;

use crate::{
    Call,
    member::{Member, Seen, look},
    record::{Agreement, Part},
    shape::Shape,
};

/// Polls in a row before the processor is told that this is a loop of polls, which delays each of them.
const EAGER_POLLS: u32 = 64;

/// Pauses between two looks for free slots.
const PAUSES: u32 = 8;

/// What became of a small call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Exchange {
    /// It is over.
    Done,
    /// It was published under this number: go on with [`Member::poll`].
    Pending(u64),
    /// Nothing was published: it is not small, there is no room, or the communicator is at its end. [`Member::begin`] says
    /// more.
    Declined,
}

impl Member {
    /// Makes a small call and polls it at most so many times: the same as [`Member::begin`] and then [`Member::poll`], but
    /// faster, since nothing has to be remembered of a call that is over at once. `input` and `output` are the memory that
    /// the call names.
    pub fn exchange(
        &mut self,
        call: &Call<'_>,
        (input, output): (Option<Window<'_>>, Option<Window<'_>>),
        polls: u32,
    ) -> Exchange {
        let shape = Shape::of_call(call, self.cell.ranks());
        if !shape.is_small() || self.cell.verdict().is_some() || !self.wait_for_room(polls) {
            return Exchange::Declined;
        }
        let sequence = self.next();
        let agreement = Agreement::of(call);
        self.write_small(sequence, agreement, &shape, (call.scale.unwrap_or(0), input));
        self.publish(sequence);
        let need = shape.need(self.rank);
        let mut seen = 0;
        let kept = self.small(sequence, &shape).keep_own(input, output);
        debug_assert!(kept.is_some(), "the caller's memory is not there");
        for poll in 0..polls {
            match look(&self.cell, (sequence, agreement), &mut seen, self.rank, need) {
                Seen::All => {
                    let small = self.small(sequence, &shape);
                    let taken = small.take(input, output);
                    debug_assert!(taken.is_some(), "the caller's memory is not there");
                    if !self.consume_if_seen(sequence, seen) {
                        self.keep(sequence, agreement, shape, Part::of_small(call));
                        self.finish(sequence);
                    }
                    // Calls are often followed by others like them.
                    let bytes = if shape.contributes(self.rank) { shape.contribution() } else { 0 };
                    self.cell.prefetch_for_writing(self.rank, sequence + 1, bytes as usize);
                    return Exchange::Done;
                }
                Seen::NotYet if poll > EAGER_POLLS => spin_loop(),
                Seen::NotYet => {}
                Seen::Other(_) => break,
            }
        }
        self.keep(sequence, agreement, shape, Part::of_small(call));
        Exchange::Pending(sequence)
    }

    /// Whether a slot is free for the next call, polling at most so many times. Whoever fills slots faster than others
    /// empty them waits for several: looking after every call would slow the others down.
    #[inline]
    fn wait_for_room(&mut self, polls: u32) -> bool {
        self.room() || self.wait_for_rooms(polls)
    }

    #[cold]
    fn wait_for_rooms(&mut self, polls: u32) -> bool {
        // With one poll there is no processor to wait on.
        for _ in 1..polls {
            if !self.may_get_room() {
                return false;
            }
            for _ in 0..PAUSES {
                spin_loop();
            }
            if self.room() {
                return true;
            }
        }
        false
    }
}
