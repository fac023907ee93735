//! One epoll instance, registered with by whoever owns descriptors on the control thread.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use ringway_mem::calls;
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::{self, Errno},
};

/// Tokens from here on belong to the membership module, all below to the rest of the control thread.
pub(crate) const MEMBERSHIP_TOKENS: u64 = 1 << 63;

/// What to wait for on a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Readable.
    Read,
    /// Readable or writable.
    ReadWrite,
    /// A new edge of readability: for descriptors that are never read.
    Edge,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::ReadWrite => EventFlags::IN | EventFlags::OUT,
            Self::Edge => EventFlags::IN | EventFlags::ET,
        }
    }
}

/// Registers descriptors with one epoll instance; clones register with the same one. A hang-up always wakes.
#[derive(Debug, Clone)]
pub(crate) struct Poller {
    epoll: Arc<OwnedFd>,
}

impl Poller {
    /// A fresh epoll instance.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Arc::new(epoll::create(CreateFlags::CLOEXEC)?) })
    }

    /// Starts watching a descriptor.
    pub(crate) fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        calls::count();
        epoll::add(&*self.epoll, fd, EventData::new_u64(token), interest.flags())
    }

    /// Watches a descriptor for something else.
    pub(crate) fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        calls::count();
        epoll::modify(&*self.epoll, fd, EventData::new_u64(token), interest.flags())
    }

    /// Stops watching a descriptor. Must come before it is closed if it has duplicates.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        calls::count();
        let _ = epoll::delete(&*self.epoll, fd);
    }

    /// Waits, for at most `timeout`, and puts the tokens of what is ready into `ready` (cleared first).
    pub(crate) fn wait(&self, ready: &mut Ready, timeout: Option<Duration>) -> io::Result<()> {
        ready.tokens.clear();
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        calls::count();
        match epoll::wait(&*self.epoll, ready.events.as_mut_slice(), timeout.as_ref()) {
            Ok(n) => {
                ready.tokens.extend(ready.events.iter().take(n).map(|e| e.data.u64()));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Room for what one wait returns.
pub(crate) struct Ready {
    events: Vec<Event>,
    tokens: Vec<u64>,
}

impl core::fmt::Debug for Ready {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Ready").field(&self.tokens).finish()
    }
}

impl Ready {
    /// Room for `capacity` events.
    pub(crate) fn new(capacity: usize) -> Self {
        let empty = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Self { events: vec![empty; capacity], tokens: Vec::with_capacity(capacity) }
    }

    /// The tokens of what is ready.
    pub(crate) fn tokens(&self) -> &[u64] {
        &self.tokens
    }
}
