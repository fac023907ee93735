//! Waiting for the daemon: poll, hand the processor over, block, in this order.

use core::{cell::Cell, time::Duration};
use std::time::Instant;

use crate::{
    pace::{Pace, processors},
    queue::Queue,
};

/// How long to poll without giving the processor away, when there is one for everybody who polls.
const SPIN: Duration = Duration::from_micros(4);
/// How long to poll in all before blocking. Handing over costs 1 to 2 us, waking a blocked thread on another core about
/// 80 us, so that blocking only pays for waits that are longer than that.
const POLL: Duration = Duration::from_micros(200);
/// How long to block before looking whether the daemon is still there.
const BLOCK: Duration = Duration::from_millis(50);
/// How long to block for room in the ring: the daemon makes some without a word.
const BLOCK_FOR_ROOM: Duration = Duration::from_millis(1);
/// The least polls before blocking. On a busy machine handing over once may take longer than [`POLL`], without a chance
/// for the daemon to run or for this thread to see what it did; as little of this thread's own time has passed then.
const POLLS_LEAST: u32 = 64;
/// Polls between two looks at the clock, which costs as much as a few of them.
const POLLS_PER_CLOCK: u32 = 16;

/// Polls before this rank looks for work of the daemon's: a small operation is over before that, and pays nothing.
const PRESENT_AFTER: u32 = 16;

/// How long to poll on the daemon's own processor, if waits there are over within that. The daemon wakes a thread there by a
/// switch of 3 us, while whoever polls is given as much of the processor as the daemon, which does the work, however often he
/// hands it over: two that poll take 4 us from it at each turn. Messages by way of two daemons of one host, which take 5 us to
/// 10 us where all poll, take two to three times as long where all sleep.
const BRIEF: Duration = Duration::from_micros(16);

/// Why waiting ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The deadline has passed.
    Expired,
    /// The daemon is gone.
    Lost,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Completions, which the daemon wakes a sleeper for.
    Completion,
    /// Room in the ring.
    Room,
}

/// How to wait: depends on how many threads poll on this node, how many may run, and what was noticed of others.
#[derive(Debug)]
pub(crate) struct Waiting {
    pace: Cell<Pace>,
    /// The last wait on the daemon's own processor was over within [`BRIEF`].
    brief: Cell<bool>,
}

impl Waiting {
    /// For a node where `pollers` threads, the daemon's among them, poll at once.
    pub(crate) fn among(pollers: u32) -> Self {
        Self { pace: Cell::new(Pace::among(pollers, processors())), brief: Cell::new(true) }
    }

    /// Whether it did, and may do it again. `beside` is since when this thread waits on the daemon's own processor.
    fn hand_over(&self, queue: &mut Queue, event: Event, beside: &mut Option<Instant>) -> bool {
        if !queue.rings().shares_cpu() {
            *beside = None;
        } else if event == Event::Completion {
            let since = *beside.get_or_insert_with(Instant::now);
            if !self.brief.get() || since.elapsed() >= BRIEF {
                return false;
            }
        }
        let mut pace = self.pace.get();
        let gave = pace.hand_over_to_the_daemon();
        self.pace.set(pace);
        gave
    }

    /// Polls for a while, doing work of the daemon's where there is some; whether what is waited for came.
    fn poll(
        &self,
        queue: &mut Queue,
        (event, deadline): (Event, Option<Instant>),
        beside: &mut Option<Instant>,
        look: &mut impl FnMut(&mut Queue) -> bool,
    ) -> bool {
        // The clock is looked at later: most waits are over before.
        let mut since = None;
        let mut polls: u32 = 0;
        let mut waited = Duration::ZERO;
        let mut helped = false;
        while waited < POLL || polls < POLLS_LEAST {
            helped |= queue.help();
            if waited < SPIN && self.pace.get().may_spin() {
                Pace::relax();
            } else if !self.hand_over(queue, event, beside) {
                return false;
            }
            if look(queue) {
                return true;
            }
            polls = polls.saturating_add(1);
            if polls == PRESENT_AFTER {
                queue.set_present(true);
            }
            if polls.is_multiple_of(POLLS_PER_CLOCK) {
                let now = Instant::now();
                if core::mem::take(&mut helped) {
                    // Where there was work, there will be more.
                    since = Some(now);
                }
                waited = now.saturating_duration_since(*since.get_or_insert(now));
                if deadline.is_some_and(|deadline| now >= deadline) {
                    break;
                }
            }
        }
        false
    }

    /// Waits until `ready` says so, which an event may lead to, taking completions meanwhile. Without a deadline it waits for as
    /// long as the daemon lives.
    pub(crate) fn until(
        &self,
        queue: &mut Queue,
        event: Event,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut Queue) -> bool,
    ) -> Result<(), Interrupted> {
        let mut look = |queue: &mut Queue| {
            queue.collect();
            ready(queue)
        };
        if look(queue) {
            return Ok(());
        }
        let mut beside = None;
        let came = self.poll(queue, (event, deadline), &mut beside, &mut look);
        queue.set_present(false);
        let outcome = if came { Ok(()) } else { block(queue, event, deadline, look) };
        if let (Ok(()), Some(since)) = (outcome, beside) {
            self.brief.set(since.elapsed() < BRIEF);
        }
        outcome
    }
}

/// Sleeps until it has come, the deadline has passed or the daemon is gone.
fn block(
    queue: &mut Queue,
    event: Event,
    deadline: Option<Instant>,
    mut look: impl FnMut(&mut Queue) -> bool,
) -> Result<(), Interrupted> {
    let most = if event == Event::Room { BLOCK_FOR_ROOM } else { BLOCK };
    let mut lost = queue.rings().is_broken();
    loop {
        // What the daemon did before it left counts.
        if look(queue) {
            return Ok(());
        }
        if lost {
            return Err(Interrupted::Lost);
        }
        let left = deadline.map_or(most, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(Interrupted::Expired);
        }
        queue.rings().block(left.min(most));
        if look(queue) {
            return Ok(());
        }
        lost = queue.rings().is_lost();
    }
}
