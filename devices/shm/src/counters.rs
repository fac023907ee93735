//! What a device has counted.

use crate::entry::Source;

/// What a device has counted since it was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests put into a ring, and those of peers that were executed.
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    /// Bytes that came in entries, from regions of peers, and through staging memory, which takes a copy more.
    pub(crate) bytes_inline: u64,
    pub(crate) bytes_straight: u64,
    pub(crate) bytes_staged: u64,
    /// Times a peer was told of a region, and times one of a peer's was mapped: once for each region and connection.
    pub(crate) regions_told: u64,
    pub(crate) regions_mapped: u64,
    /// Times a peer that slept was woken.
    pub(crate) wake_ups: u64,
    /// System calls, but for those that make connections.
    pub(crate) system_calls: u64,
    /// Queue pairs that failed, but not by their owner's wish.
    pub(crate) failures: u64,
}

impl Counters {
    /// Counts bytes that were copied from where they came.
    #[inline]
    pub(crate) const fn copied(&mut self, from: Source, bytes: u64) {
        let count = match from {
            Source::Inline { .. } => &mut self.bytes_inline,
            Source::Shared { .. } => &mut self.bytes_straight,
            Source::Staged { .. } => &mut self.bytes_staged,
        };
        *count += bytes;
    }

    /// Counts that a peer was woken, if it was.
    #[inline]
    pub(crate) fn rang(&mut self, rang: bool) {
        self.wake_ups += u64::from(rang);
        self.system_calls += u64::from(rang);
    }

    /// Hands over each count with its name.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(&'static str, u64)) {
        for (name, value) in [
            ("messages_sent", self.messages_sent),
            ("messages_received", self.messages_received),
            ("bytes_inline", self.bytes_inline),
            ("bytes_straight", self.bytes_straight),
            ("bytes_staged", self.bytes_staged),
            ("regions_told", self.regions_told),
            ("regions_mapped", self.regions_mapped),
            ("wake_ups", self.wake_ups),
            ("system_calls", self.system_calls),
            ("failures", self.failures),
        ] {
            each(name, value);
        }
    }
}
