//! More calls than the cell has slots for: the daemon makes them, in this rank's place.
//!
//! A non-blocking call that finds no slot is not waited for. This rank's calls that are not over, and the new one, are
//! submitted to the communicator's ring, marked as the cell's, and every later one follows them there, blocking ones of
//! registered memory included, until the ring has none of them any more. Then this rank acts by itself again. How its
//! part in the cell changes hands is told at `ringway_cell::StandIn`.
//!
//! What had been published keeps its number for whoever waits for it, and is found by it here: its result comes by the
//! ring. Calls on ordinary slices, which the daemon cannot reach, wait until this rank is back.
//!
//! A full ring holds the caller back, as it does without a cell.

use core::cell::RefCell;
use std::sync::Arc;

use ringway_abi::{
    Status,
    descriptor::{BufferHandle, FLAG_CELL, FLAG_PUBLISHED, Submission},
};
use ringway_cell::{Call, Member, Place, SLOTS, Verdict};

use super::{Calls, NEVER, Own, Ticket};
use crate::{
    CallError, Communicator, Error, OperationError,
    arena::Registered,
    pending::Tickets,
    queue::{self, Progress, Queue},
    wait::{Event, Interrupted},
};

/// Looks at calls under way before the daemon is asked: others may be about to free a slot.
const LOOKS: u32 = 16;

/// What the daemon was asked to do in this rank's place.
#[derive(Debug)]
pub(super) struct Handed {
    /// The daemon acts for this rank.
    away: bool,
    /// The calls that this rank had published, and that nobody has asked for: their numbers, and what they are in the ring.
    tickets: Vec<(u64, queue::Ticket)>,
}

impl Handed {
    pub(super) fn new() -> Self {
        Self { away: false, tickets: Vec::with_capacity(SLOTS as usize) }
    }
}

/// A call of the cell as a submission for it.
fn submission_of(call: &Call<'_>) -> Submission {
    let handle = |at: Place| BufferHandle { region: at.region, offset: at.offset };
    Submission {
        token: 0,
        operation: call.operation,
        datatype: call.datatype,
        reduction: call.reduction,
        flags: FLAG_CELL,
        rank: call.root,
        argument: 0,
        input: call.input.map(handle),
        output: call.output.map(handle),
        count: call.count,
    }
}

impl Calls {
    /// Whether the daemon acts for this rank.
    pub(super) const fn is_away(&self) -> bool {
        self.handed.away
    }

    /// What a call that this rank had published is in the ring, if the daemon sees it through. It is told once.
    pub(crate) fn handed(&mut self, sequence: u64) -> Option<queue::Ticket> {
        let at = self.handed.tickets.iter().position(|(of, _)| *of == sequence)?;
        let (_, ticket) = self.handed.tickets.swap_remove(at);
        self.settle(sequence);
        Some(ticket)
    }

    /// Takes this rank's part back when the daemon has nothing left to do in its place.
    fn come_home(&mut self, queue: &mut Queue) {
        if !self.handed.away || queue.in_cell() > 0 {
            return;
        }
        let mut tickets = core::mem::take(&mut self.handed.tickets);
        tickets.retain(|(sequence, ticket)| match queue.progress(*ticket) {
            Some(Progress::Ended(completion)) if completion.status == Status::Success.code() => {
                queue.take(*ticket);
                self.settle(*sequence);
                false
            }
            _ => true,
        });
        let failed = !tickets.is_empty();
        self.handed.tickets = tickets;
        if self.member.cell().verdict().is_some() {
            // Nothing is published any more; those that failed say so to whoever waits for them.
            return;
        }
        if failed || self.member.resume().is_err() {
            // The daemon does not know the cell as this rank does: somebody has written there who should not.
            let verdict = Verdict { status: Status::BadCall.code(), rank: self.part.rank };
            self.member.cell().fail(verdict);
            return;
        }
        self.handed.away = false;
    }

    /// Gives this rank's part to the daemon, and submits its calls that are not over; `false` when the ring has no room
    /// for all of them and one more.
    fn hand_over(&mut self, queue: &mut Queue) -> bool {
        let wanted = u64::from(self.outstanding).saturating_add(1);
        if !queue.has_room(wanted) {
            return false;
        }
        self.member.hand_over();
        self.handed.away = true;
        for sequence in self.oldest..=self.member.called() {
            let Some(slot) = self.slot(sequence) else { continue };
            let (large, kept) = (slot.large, core::mem::take(&mut slot.kept));
            let Some((signature, input, output)) = self.member.outstanding(sequence) else {
                self.settle(sequence);
                continue;
            };
            let call = Call {
                operation: signature.operation,
                datatype: signature.datatype,
                reduction: signature.reduction,
                root: signature.root,
                count: signature.count,
                input,
                output,
                ..Call::BARRIER
            };
            let mut submission = submission_of(&call);
            submission.flags |= FLAG_PUBLISHED;
            submission.argument = sequence;
            let memory = [kept[0].as_ref(), kept[1].as_ref()];
            let call = queue::Call { submission, scalar: None, counts: [&[], &[]], memory };
            // There is room for all of them.
            if let Some(ticket) = queue.submit_for_cell(&call, large) {
                self.handed.tickets.push((sequence, ticket));
            }
        }
        // They keep their numbers, and are looked at here no more.
        self.outstanding = 0;
        true
    }

    /// Publishes a call when a slot turns up at once, or gives it to the daemon; `None` when the ring has no room now.
    fn submit_by(
        &mut self,
        queue: &mut Queue,
        call: &Call<'_>,
        memory: [Option<&Arc<Registered>>; 2],
        blocking: bool,
    ) -> Option<Tickets> {
        self.come_home(queue);
        if !self.handed.away {
            for _ in 0..LOOKS {
                self.progress_all();
                if let Some(sequence) = self.submit(call, memory, blocking) {
                    return Some(Tickets::Cell(Ticket::Call(sequence)));
                }
            }
            if !self.hand_over(queue) {
                return None;
            }
        }
        let of_ring = queue::Call {
            submission: submission_of(call),
            scalar: call.scale,
            counts: [call.counts, &[]],
            memory,
        };
        let ticket = queue.submit_for_cell(&of_ring, Member::is_large(call, self.ranks))?;
        Some(Tickets::Ring([Some(ticket), None]))
    }

    /// Publishes a call, waiting for a slot.
    fn submit_later(
        &mut self,
        call: &Call<'_>,
        memory: [Option<&Arc<Registered>>; 2],
        blocking: bool,
    ) -> Result<Tickets, CallError> {
        let own = Own::registered(memory.map(|region| region.map(|region| &**region)));
        let sequence = self.begin_later(call, !blocking, &own)?;
        if sequence != NEVER {
            let kept = memory.map(|region| region.map(Arc::clone));
            self.keep(sequence, Member::is_large(call, self.ranks), kept);
        }
        Ok(Tickets::Cell(Ticket::Call(sequence)))
    }

    /// After a failure of a call that the daemon saw through: whether nobody else is at work on anybody's memory.
    fn is_left(&mut self) -> bool {
        if self.member.cell().verdict().is_none() {
            self.look_for_daemon();
        }
        self.member.leave_work();
        self.becomes_quiet()
    }
}

impl Communicator {
    /// Submits a call for which the cell has no slot, or for which the daemon acts for this rank.
    #[cold]
    pub(crate) fn submit_without_slot(
        &self,
        calls: &RefCell<Calls>,
        call: &Call<'_>,
        memory: [Option<&Arc<Registered>>; 2],
        blocking: bool,
    ) -> Result<Tickets, CallError> {
        let words = call.counts.len() + usize::from(call.scale.is_some());
        // Rings that are too short for it exist only where somebody asked for them.
        let fits = {
            let mut queue = self.queue.borrow_mut();
            queue.collect();
            calls.borrow_mut().come_home(&mut queue);
            queue.slab_room() >= words && queue.group_max() as u64 > SLOTS
        };
        if !fits {
            self.wait_until_home(calls)?;
        }
        let home = !calls.borrow().is_away();
        if !home && !fits {
            // The communicator is at its end; waiting for it says why.
            return Ok(Tickets::Cell(Ticket::Call(NEVER)));
        }
        let tickets = if home && (blocking || !fits) {
            calls.borrow_mut().submit_later(call, memory, blocking)?
        } else {
            self.when_room(|queue| calls.borrow_mut().submit_by(queue, call, memory, blocking))?
        };
        if let Tickets::Cell(Ticket::Call(sequence)) = tickets
            && !blocking
            && calls.borrow_mut().wants_help(sequence)
        {
            self.queue.borrow_mut().rings().wake();
        }
        Ok(tickets)
    }

    /// Makes a call on slices and waits for it.
    #[inline]
    pub(crate) fn run_in_cell(
        &self,
        calls: &RefCell<Calls>,
        call: &Call<'_>,
        own: Own<'_>,
    ) -> Result<(), Error> {
        if calls.borrow_mut().run(call, own)? { Ok(()) } else { self.run_when_home(calls, call, own) }
    }

    #[cold]
    fn run_when_home(&self, calls: &RefCell<Calls>, call: &Call<'_>, own: Own<'_>) -> Result<(), Error> {
        self.wait_until_home(calls)?;
        // While this rank acts by itself it waits for a slot where it needs one.
        if calls.borrow_mut().run(call, own)? { Ok(()) } else { Err(calls.borrow().explain().into()) }
    }

    /// Waits until the daemon does not act for this rank, or never will cease to since the communicator is at its end.
    fn wait_until_home(&self, calls: &RefCell<Calls>) -> Result<(), CallError> {
        let mut queue = self.queue.borrow_mut();
        let outcome = self.waiting.until(&mut queue, Event::Completion, None, |queue| queue.in_cell() == 0);
        calls.borrow_mut().come_home(&mut queue);
        match outcome {
            Err(Interrupted::Lost) => Err(CallError::DaemonLost),
            _ => Ok(()),
        }
    }

    /// What a call that was published in the cell is in the ring, if the daemon sees it through.
    pub(crate) fn handed(&self, sequence: u64) -> Option<queue::Ticket> {
        let mut calls = self.calls.as_ref()?.borrow_mut();
        if calls.is_away() { calls.handed(sequence) } else { None }
    }

    /// Whether nobody uses the memory of operations in the ring that failed. The daemon does not, or it is gone; other
    /// ranks may be at work on that of large calls in the cell.
    pub(crate) fn is_left(&self, tickets: [Option<queue::Ticket>; 2], error: &OperationError) -> bool {
        let exposed = {
            let queue = self.queue.borrow();
            tickets.into_iter().flatten().any(|ticket| queue.is_exposed(ticket))
        };
        !exposed
            || error.is_recoverable()
            || self.calls.as_ref().is_none_or(|calls| calls.borrow_mut().is_left())
    }
}
