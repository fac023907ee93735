//! The shared rings of one communicator as this side uses them: room, faults, doorbell.

use core::time::Duration;
use std::sync::Arc;

use ringway_abi::descriptor::{COMPLETION_WORDS, SUBMISSION_WORDS};
use ringway_mem::Mapping;
use ringway_ring::{ClientRings, Geometry};
use rustix::thread::sched_getcpu;

use crate::Client;

/// One communicator's rings.
#[derive(Debug)]
pub(crate) struct Rings {
    inner: ClientRings,
    client: Client,
    slab_words: u32,
    completions: u32,
    submissions: u32,
    /// The daemon is gone, or wrote into the rings what no daemon writes: nothing there can be relied upon any more.
    broken: bool,
}

impl Rings {
    /// Attaches to the file that this side writes (`ours`) and the one that the daemon writes.
    pub(crate) fn attach(
        client: Client,
        ours: &Arc<Mapping>,
        daemons: &Arc<Mapping>,
        geometry: Geometry,
    ) -> Result<Self, ringway_ring::AttachError> {
        Ok(Self {
            inner: ClientRings::attach(ours, daemons, geometry)?,
            client,
            slab_words: geometry.slab_words(),
            completions: geometry.completions(),
            submissions: geometry.submissions(),
            broken: false,
        })
    }

    pub(crate) const fn submissions(&self) -> u32 {
        self.submissions
    }

    pub(crate) const fn completions(&self) -> u32 {
        self.completions
    }

    pub(crate) const fn slab_words(&self) -> u32 {
        self.slab_words
    }

    /// Whether `wanted` submissions can be put now.
    pub(crate) fn has_room(&mut self, wanted: u64) -> bool {
        if self.broken {
            return false;
        }
        match self.inner.submissions.free_for(wanted) {
            Ok(free) => free >= wanted,
            Err(_) => {
                self.broken = true;
                false
            }
        }
    }

    /// Writes words into the argument slab, where the daemon sees them with the next [`Rings::publish`].
    pub(crate) fn write_slab(&mut self, first: u32, words: &[u64]) {
        // `Slab` gives no range that is not inside.
        let _ = self.inner.write_slab(first, words);
    }

    /// Puts a submission for which [`Rings::has_room`] said that there is room; it is visible after
    /// [`Rings::publish`].
    pub(crate) fn put(&mut self, words: &[u64; SUBMISSION_WORDS]) {
        if self.inner.submissions.push(words).is_err() {
            self.broken = true;
        }
    }

    /// Shows the daemon what was put, and wakes it when it sleeps.
    pub(crate) fn publish(&mut self) {
        self.inner.submissions.publish();
        self.wake();
    }

    /// Tells the daemon on which processor this thread waits; whether that is the one the daemon runs on.
    pub(crate) fn shares_cpu(&self) -> bool {
        let cpu = sched_getcpu();
        self.inner.say_cpu(cpu);
        self.inner.daemon_cpu() == Some(cpu)
    }

    /// Wakes the daemon when it sleeps.
    pub(crate) fn wake(&mut self) {
        if self.inner.need_wakeup() {
            self.client.session().ring();
        }
    }

    /// The next completion.
    pub(crate) fn take(&mut self) -> Option<[u64; COMPLETION_WORDS]> {
        match self.inner.completions.pop() {
            Ok(Some(words)) => Some(words),
            Ok(None) => {
                self.inner.completions.release();
                None
            }
            Err(_) => {
                self.broken = true;
                None
            }
        }
    }

    /// Blocks until there are completions, for at most `timeout`.
    pub(crate) fn block(&mut self, timeout: Duration) {
        self.inner.sleep(Some(timeout));
    }

    /// Whether nothing will come from the daemon any more. A system call.
    pub(crate) fn is_lost(&mut self) -> bool {
        self.broken = self.broken || self.client.is_lost();
        self.broken
    }

    /// Whether that is known without asking.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken
    }
}
