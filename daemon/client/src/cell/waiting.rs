//! Waiting in a cell: poll, hand the processor over, sleep, in this order; and what is done about ranks that do not
//! come.

use core::{mem, time::Duration};
use std::{thread, time::Instant};

use ringway_abi::{Status, control::Request};
use ringway_cell::{Awaited, Call, Poll, Verdict, current_processor};
use ringway_mem::calls;

use super::{
    Calls, NEVER,
    memory::{Own, own_of},
};
use crate::{CallError, OperationError, pace::Pace, queue};

/// How long to poll before sleeping. Handing over costs 1 to 2 us, waking a sleeping thread on another core about 80 us,
/// so that sleeping only pays for waits that are longer than that.
const POLL: Duration = Duration::from_micros(200);
/// The least hand-overs before sleeping. On a busy machine one of them may take longer than [`POLL`].
const HAND_OVERS_LEAST: u32 = 64;
/// Hand-overs before sleeping again, after having been woken for something else.
const HAND_OVERS_AGAIN: u32 = 16;
/// Hand-overs between two looks at the clock.
const HAND_OVERS_PER_CLOCK: u32 = 16;
/// How long to sleep before looking whether the daemon is still there.
const SLEEP: Duration = Duration::from_millis(50);
/// How much later than the communicator's timeout the daemon may end a call.
const GRACE: Duration = Duration::from_secs(15);
/// How long the daemon may take to hear of a rank that does not come.
const HEARING: Duration = Duration::from_secs(1);
/// How long others may take to leave the memory of a call that failed.
const QUIET: Duration = Duration::from_millis(50);

/// Why waiting ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// The deadline has passed.
    Expired,
    /// The daemon is gone.
    Lost,
    /// The timeout passed long ago, and the daemon has not ended the call.
    Unresponsive { waited_ms: u64 },
}

/// Why a call was not waited for to its good end.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The caller's deadline has passed; the call goes on.
    Expired,
    /// The daemon sees it through: its result comes by the ring.
    Handed(queue::Ticket),
    /// It failed. `unused`: nobody else reads or writes its memory any more.
    Over { error: OperationError, unused: bool },
}

/// For how long a call has been waited for, and what the daemon was told of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attention {
    since: Instant,
    late: bool,
    over: bool,
    left: bool,
}

impl Attention {
    fn new() -> Self {
        Self { since: Instant::now(), late: false, over: false, left: false }
    }
}

impl Calls {
    /// Waits until a call that [`Calls::submit`] gave is over.
    #[inline]
    pub(crate) fn wait(&mut self, sequence: u64, deadline: Option<Instant>) -> Result<(), Stopped> {
        if self.slot(sequence).is_none() && sequence != NEVER {
            return Ok(());
        }
        self.wait_for_kept(sequence, deadline)
    }

    fn wait_for_kept(&mut self, sequence: u64, deadline: Option<Instant>) -> Result<(), Stopped> {
        if self.is_away()
            && let Some(ticket) = self.handed(sequence)
        {
            return Err(Stopped::Handed(ticket));
        }
        let Some(slot) = self.slot(sequence) else { return Err(self.over(None, false)) };
        let kept = mem::take(&mut slot.kept);
        let outcome = self.complete(sequence, &own_of(&kept), deadline);
        if let (Err(Stopped::Expired), Some(slot)) = (&outcome, self.slot(sequence)) {
            slot.kept = kept;
        }
        outcome
    }

    /// Waits until a call that is kept is over, and settles it unless the deadline passes first.
    pub(super) fn complete(
        &mut self,
        sequence: u64,
        own: &Own<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Stopped> {
        let (large, attention) =
            self.slot(sequence).map_or((true, None), |slot| (slot.large, slot.attention));
        let mut attention = attention;
        let outcome =
            self.until(sequence, &mut attention, deadline, |calls| match calls.look(sequence, own, false) {
                Poll::Done => Some(Ok(())),
                Poll::Failed(verdict) => Some(Err(verdict)),
                _ => None,
            });
        let interrupted = match outcome {
            Ok(Ok(())) => {
                self.settle(sequence);
                return Ok(());
            }
            Ok(Err(_)) => None,
            Err(Interrupted::Expired) => {
                if let Some(slot) = self.slot(sequence) {
                    slot.attention = attention;
                }
                return Err(Stopped::Expired);
            }
            Err(other) => Some(other),
        };
        self.settle(sequence);
        Err(self.over(interrupted, large))
    }

    /// The end of a call that failed; `exposed` when others may be at work on its memory.
    fn over(&mut self, interrupted: Option<Interrupted>, exposed: bool) -> Stopped {
        self.member.leave_work();
        let error = match interrupted {
            Some(Interrupted::Lost) => OperationError::DaemonLost,
            Some(Interrupted::Unresponsive { waited_ms }) => {
                return Stopped::Over { error: OperationError::Unresponsive { waited_ms }, unused: !exposed };
            }
            _ => self.explain(),
        };
        Stopped::Over { error, unused: !exposed || self.becomes_quiet() }
    }

    /// Waits for a short while until nobody who lives is at work on others' memory; whether that is so.
    pub(super) fn becomes_quiet(&self) -> bool {
        let started = Instant::now();
        loop {
            if self.member.is_quiet() {
                return true;
            }
            let waited = started.elapsed();
            if waited >= QUIET {
                return false;
            }
            // Whoever is at work needs microseconds to finish its block; a process that was killed, some milliseconds
            // to be gone.
            if waited < POLL { calls::yield_now() } else { thread::sleep(POLL) }
        }
    }

    /// Why the communicator failed, in the daemon's words.
    pub(super) fn explain(&self) -> OperationError {
        self.part.client.failure_of(self.part.number).unwrap_or_else(|| {
            let code = self.member.cell().verdict().map_or(0, |verdict| verdict.status);
            Status::from_code(code).map_or(OperationError::UnknownStatus { code }, OperationError::of_status)
        })
    }

    /// Publishes a call when there is a slot for it, working on earlier ones meanwhile.
    #[cold]
    pub(super) fn begin_later(
        &mut self,
        call: &Call<'_>,
        help: bool,
        own: &Own<'_>,
    ) -> Result<u64, CallError> {
        // Some rank is not through with this one.
        let blocking = self.member.room_after();
        let mut attention = None;
        let outcome = self.until(blocking, &mut attention, None, |calls| {
            calls.progress(NEVER);
            calls.begin(call, help, own)
        });
        match outcome {
            Ok(sequence) => Ok(sequence),
            // Nothing is published any more; waiting for it says why.
            Err(Interrupted::Lost) => Ok(NEVER),
            // The daemon should have ended it.
            Err(_) => Err(CallError::Full),
        }
    }

    /// Waits until `ready` says so; `sequence` is the call for which it is. Without a deadline it waits for as long as
    /// the daemon lives, and ends what the daemon should have ended long ago.
    fn until<R>(
        &mut self,
        sequence: u64,
        attention: &mut Option<Attention>,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut Self) -> Option<R>,
    ) -> Result<R, Interrupted> {
        for _ in 0..self.pace.polls() {
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            Pace::relax();
        }
        if self.unsaid {
            // They do when they join, which not all had when this rank did.
            self.learn_processors();
        }
        let attention = attention.get_or_insert_with(Attention::new);
        let mut hand_overs_least = HAND_OVERS_LEAST;
        let mut poll_until = Instant::now().checked_add(POLL);
        loop {
            if let Some(found) =
                self.hand_over_until((sequence, hand_overs_least), poll_until, deadline, &mut ready)
            {
                return Ok(found);
            }
            (hand_overs_least, poll_until) = (HAND_OVERS_AGAIN, None);
            let now = Instant::now();
            let left = deadline.map_or(SLEEP, |deadline| deadline.saturating_duration_since(now));
            if left.is_zero() {
                return Err(Interrupted::Expired);
            }
            if self.part.client.is_lost() {
                // What was done before the daemon left counts.
                let found = ready(self);
                self.look_for_daemon();
                return found.ok_or(Interrupted::Lost);
            }
            if let Some(waited_ms) = self.attend(sequence, attention, now) {
                return Err(Interrupted::Unresponsive { waited_ms });
            }
            self.wake_stand_ins();
            let expected = self.member.arm(sequence);
            let found = ready(self);
            if found.is_none() {
                self.member.sleep(expected, left.min(SLEEP));
            }
            self.member.disarm();
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// Whom this rank waits for may be the daemon in a rank's place, which does not sleep in the cell.
    fn wake_stand_ins(&self) {
        if self.member.cell().has_stand_in() {
            self.part.client.session().ring();
        }
    }

    /// Polls, handing the processor over in between, for at least so many hand-overs and until that time.
    fn hand_over_until<R>(
        &mut self,
        (sequence, least): (u64, u32),
        until: Option<Instant>,
        deadline: Option<Instant>,
        ready: &mut impl FnMut(&mut Self) -> Option<R>,
    ) -> Option<R> {
        let mut hand_overs: u32 = 0;
        loop {
            self.progress(sequence);
            self.member.set_processor(current_processor());
            let mut awaited = self.member.awaits(sequence);
            loop {
                for _ in 0..self.pace.polls_between(awaited) {
                    if let Some(found) = ready(self) {
                        return Some(found);
                    }
                    Pace::relax();
                }
                // While a payload comes, more of it may.
                let before = mem::replace(&mut awaited, self.member.awaits(sequence));
                if !matches!(awaited, Awaited::Payload(_)) || awaited == before {
                    break;
                }
            }
            if !self.pace.hand_over() {
                return None;
            }
            hand_overs = hand_overs.saturating_add(1);
            if hand_overs.is_multiple_of(HAND_OVERS_PER_CLOCK) {
                let now = Instant::now();
                let polled = hand_overs >= least && until.is_none_or(|until| now >= until);
                if polled || deadline.is_some_and(|deadline| now >= deadline) {
                    return None;
                }
            }
        }
    }

    /// Tells the daemon what it should know of a call that does not end. Gives for how long it has been waited for, in
    /// milliseconds, when the daemon should have ended it long ago.
    fn attend(&mut self, sequence: u64, attention: &mut Attention, now: Instant) -> Option<u64> {
        let waited = now.saturating_duration_since(attention.since);
        let timeout = Some(self.part.timeout).filter(|timeout| !timeout.is_zero());
        // A call that needed nobody's record may be over here although others called something else.
        if !self.disputed
            && let Some(disputed) = self.member.dispute()
        {
            self.disputed = true;
            self.inspect(disputed, waited);
        }
        let cell = self.member.cell();
        // A rank leaves after its last call: one that is missing then does not come any more, nor frees a slot.
        if !attention.left && self.member.missing(sequence).any(|rank| cell.has_left(rank)) {
            attention.left = true;
            self.inspect(sequence, waited);
        }
        if !attention.late && waited >= self.part.late_after {
            attention.late = true;
            self.inspect(sequence, waited);
        }
        if !attention.over && timeout.is_some_and(|timeout| waited >= timeout) {
            attention.over = true;
            self.inspect(sequence, waited);
        }
        timeout.filter(|timeout| waited >= timeout.saturating_add(GRACE)).map(|_| milliseconds(waited))
    }

    /// Whether the daemon is gone. Then the communicator is at its end, and nobody needs to find out for themselves.
    #[cold]
    pub(super) fn look_for_daemon(&mut self) -> bool {
        self.unlooked = 0;
        let lost = self.part.client.is_lost();
        if lost {
            let status = Status::ShuttingDown.code();
            self.member.cell().fail(Verdict { status, rank: self.part.rank });
        }
        lost
    }

    /// Looks after a call that was tested in vain for a while; whether that ended it.
    pub(crate) fn look_after(&mut self, sequence: u64) -> bool {
        if self.look_for_daemon() {
            return true;
        }
        let Some(slot) = self.slot(sequence) else { return true };
        let mut attention = slot.attention.unwrap_or_else(Attention::new);
        self.attend(sequence, &mut attention, Instant::now());
        self.wake_stand_ins();
        if let Some(slot) = self.slot(sequence) {
            slot.attention = Some(attention);
        }
        self.progress(sequence);
        false
    }

    /// Asks the daemon to look at a call.
    pub(super) fn inspect(&self, sequence: u64, waited: Duration) {
        let waited_ms = milliseconds(waited);
        let request = Request::Inspect { communicator: self.part.number, sequence, waited_ms };
        // What it finds stands in the cell.
        let _ = self.part.client.session().control.request(request, &[], HEARING);
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
