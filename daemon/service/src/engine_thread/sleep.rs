//! Sleeping without missing anything: one wait for every doorbell, the device, the control thread and the clock.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use ringway_mem::{calls, passing};
use ringway_verbs::Device as _;

use super::{Command, EngineThread, Lane, NodeDevices, ring::Stall};
use crate::poller::{Interest, Poller, Ready};

const COMMANDS: u64 = 0;
const DEVICE: u64 = 1;
const DOORBELL: u64 = 2;

/// How long to sleep at most while something begins or ends that no descriptor tells of.
const TENDING: Duration = Duration::from_millis(2);

/// How long to sleep at most while a client has completions to take before more can be accepted: taking them rings no
/// doorbell.
const STALLED: Duration = Duration::from_millis(1);

/// The same while a GPU is waited for, whose streams write words in memory and wake nobody. What it does next may be as
/// far away as the end of a training step, so the thread does not spin all that time.
const ACCELERATING: Duration = Duration::from_micros(50);

/// Registers what is there from the start. The descriptors returned must live as long as the poller.
pub(super) fn watch(
    poller: &Poller,
    commands: &Arc<Lane<Command>>,
    device: &NodeDevices,
) -> rustix::io::Result<Vec<OwnedFd>> {
    poller.add(commands.as_fd(), COMMANDS, Interest::Read)?;
    let watch = |number| {
        let events = passing::duplicate(number)?;
        poller.add(&events, DEVICE, Interest::Read)?;
        Ok(events)
    };
    device.event_descriptors().map(watch).collect()
}

impl EngineThread {
    /// Watches a client's doorbell. It is never read: each write is a new edge.
    pub(super) fn listen(&mut self, doorbell: &Arc<OwnedFd>) {
        if let Err(errno) = self.poller.add(&**doorbell, DOORBELL, Interest::Edge) {
            tracing::warn!(%errno, "cannot watch a client's doorbell; it is served with delay");
        }
    }

    /// Blocks until something happens. Every client is told to ring first, and everything is looked at once more
    /// after that, so that whatever came in between is not missed.
    pub(super) fn sleep(&mut self, ready: &mut Ready) {
        self.rings.iter_mut().for_each(|(_, ring)| ring.rings.set_need_wakeup(true));
        let asked = self.rings.iter().any(|(_, ring)| ring.has_work());
        // Ranks that want help say so in the cell and then ring as well, and so do ranks that have done a piece of a
        // board; both sides fence in between.
        let helped = self.help();
        let now = self.now();
        let acted = self.stand_in(now);
        let done = self.memory.boards.is_ready();
        self.report_lost();
        if !asked && !helped && !acted && !done && self.commands.is_empty() && self.device.arm() {
            let timeout = self.time_to_sleep();
            self.counters.sleeps = self.counters.sleeps.wrapping_add(1);
            let naps = self.is_waiting_for_gpu();
            let timeout = if naps { Some(nap()) } else { timeout };
            if let Err(errno) = self.poller.wait(ready, timeout) {
                tracing::error!(%errno, "the engine thread cannot sleep");
            }
            if ready.tokens().contains(&COMMANDS) {
                self.commands.quiet();
            }
            // A nap that nothing ended is part of the same wait.
            if !naps || !ready.tokens().is_empty() {
                let now = self.now();
                self.polling.woke(now.0);
            }
        }
        self.rings.iter_mut().for_each(|(_, ring)| ring.rings.set_need_wakeup(false));
    }

    fn time_to_sleep(&self) -> Option<Duration> {
        let now = self.now();
        // Neither do ranks that are done with what was left to them in a cell.
        let stalled = self.held || self.rings.iter().any(|(_, ring)| ring.stall() == Some(Stall::Room));
        let deadlines = [self.engine.deadline(), self.device.deadline()].into_iter().flatten().min();
        let deadlines = deadlines.map(|at| Duration::from_nanos(at.0.saturating_sub(now.0)));
        let tending = self.is_tending().then_some(TENDING);
        let standing_in = self.standins.patience(now);
        let stalled = stalled.then_some(STALLED);
        [deadlines, tending, stalled, standing_in].into_iter().flatten().min()
    }

    /// Whether a GPU has something to do that is waited for.
    pub(super) fn is_waiting_for_gpu(&self) -> bool {
        self.memory.is_accelerating() || self.rings.is_gated()
    }
}

/// Sleeps for less than the millisecond that a wait for descriptors lasts at least; what is left to wait for them then.
fn nap() -> Duration {
    calls::count();
    std::thread::sleep(ACCELERATING);
    Duration::ZERO
}
