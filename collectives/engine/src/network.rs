//! Who may post bytes to the network, so that tenants share it equally.
//!
//! While one tenant alone has long messages under way, its queue pairs' own windows are the only bound. When several
//! have, so few bytes of all of them together are posted at once that what waits, waits here, where deficit round
//! robin decides what is posted next, and not in the device, which may be fair to queue pairs but knows no tenants.

use ringway_verbs::Time;

use crate::schedule::{QUANTUM, Schedule};

/// Long messages are written in pieces of this many bytes, so that a sign of life is never far behind.
const SEGMENT: u64 = 1 << 20;
/// The same while several tenants write: a round of them is short.
const SHARED_SEGMENT: u64 = QUANTUM.unsigned_abs();
/// Bytes of all long messages together that may be posted while several tenants write: what keeps 100 Gbit/s busy for
/// 80 us, which is more than a round trip.
const SHARED_WINDOW: u64 = 1 << 20;
/// For how long the network counts as shared after it was, in nanoseconds.
const SHARED_NS: u64 = 10_000_000;
/// What is posted and makes no progress for this long in nanoseconds counts no more: a peer that has stopped must not
/// hold up the messages to others. Its queue pair's own window still bounds it.
const STALLED_NS: u64 = 20_000_000;

/// How much a communicator may post.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes; the last piece may go beyond.
    pub(crate) bytes: u64,
    /// The most bytes of one piece.
    pub(crate) segment: u64,
}

/// Bytes posted of long messages, and who waits to post.
#[derive(Debug, Default)]
pub(crate) struct Network {
    schedule: Schedule,
    posted: u64,
    /// The same for each tenant.
    posted_by: Vec<u64>,
    /// Counted up when what is posted is forgotten.
    epoch: u32,
    /// When bytes were last sent, or the first posted.
    progress: Time,
    shared_until: Time,
}

impl Network {
    pub(crate) fn add(&mut self, communicator: u32, tenant: u32) {
        self.schedule.add(communicator, tenant);
        if self.posted_by.len() <= tenant as usize {
            self.posted_by.resize(tenant as usize + 1, 0);
        }
    }

    pub(crate) fn remove(&mut self, communicator: u32) {
        self.schedule.remove(communicator);
    }

    /// A communicator that has nothing posted belongs to another tenant from now on.
    pub(crate) fn move_to(&mut self, communicator: u32, tenant: u32) {
        self.schedule.remove(communicator);
        self.add(communicator, tenant);
    }

    /// A communicator has bytes to post.
    pub(crate) fn wake(&mut self, communicator: u32) {
        self.schedule.wake(communicator);
    }

    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// When bytes were last sent.
    pub(crate) const fn progress(&self) -> Time {
        self.progress
    }

    /// Whether bytes wait to be posted.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.schedule.is_busy()
    }

    /// Which communicator may post, and how much. `None` when none waits, or must go on waiting.
    pub(crate) fn next(&mut self, now: Time) -> Option<(u32, Room)> {
        let communicator = self.schedule.next()?;
        let tenant = self.schedule.tenant_of(communicator);
        let own = self.posted_by.get(tenant as usize).copied().unwrap_or(0);
        if self.schedule.busy_tenants() > 1 || own < self.posted {
            self.shared_until = Time(now.0.saturating_add(SHARED_NS));
        } else if now >= self.shared_until {
            return Some((communicator, Room { bytes: u64::MAX, segment: SEGMENT }));
        }
        if self.posted >= SHARED_WINDOW {
            if now.0.saturating_sub(self.progress.0) < STALLED_NS {
                return None;
            }
            self.posted = 0;
            self.posted_by.fill(0);
            self.epoch = self.epoch.wrapping_add(1);
        }
        let bytes = (SHARED_WINDOW - self.posted).min(SHARED_SEGMENT);
        Some((communicator, Room { bytes, segment: SHARED_SEGMENT }))
    }

    /// A communicator has posted bytes in its turn; `more`: it has more to post, for which there was no room.
    pub(crate) fn posted(&mut self, communicator: u32, bytes: u64, more: bool, now: Time) {
        if self.posted == 0 {
            self.progress = now;
        }
        self.posted += bytes;
        let tenant = self.schedule.tenant_of(communicator) as usize;
        if let Some(by) = self.posted_by.get_mut(tenant) {
            *by += bytes;
        }
        self.schedule.charge(communicator, bytes);
        if !more || bytes == 0 {
            self.schedule.rest(communicator);
        }
    }

    /// Bytes posted in an epoch are sent, or will never be.
    pub(crate) fn sent(&mut self, communicator: u32, bytes: u64, epoch: u32, now: Time) {
        if bytes == 0 || epoch != self.epoch {
            return;
        }
        self.progress = now;
        self.posted = self.posted.saturating_sub(bytes);
        let tenant = self.schedule.tenant_of(communicator) as usize;
        if let Some(by) = self.posted_by.get_mut(tenant) {
            *by = by.saturating_sub(bytes);
        }
    }
}
