//! How both threads name a client.

/// One client's connection; never used twice by a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionKey(pub(crate) u64);
