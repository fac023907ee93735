//! What all queue pairs of a device share.

use core::cell::Cell;

use ringway_verbs::{Completions, Time};

use crate::{
    Choice, IbverbsConfig,
    connector::Connector,
    counters::Counters,
    hardware::{Limits, PortAttributes},
    regions::Regions,
};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: IbverbsConfig,
    pub(crate) choice: Choice,
    pub(crate) limits: Limits,
    pub(crate) port: PortAttributes,
    pub(crate) max_message: u64,
    pub(crate) connector: Connector,
    pub(crate) regions: Regions,
    pub(crate) completions: Completions,
    pub(crate) counters: Counters,
    /// Somebody has asked for memory that is in use, since this was last looked at.
    pub(crate) memory_wanted: Cell<bool>,
    /// A state changed since [`Device::arm`](ringway_verbs::Device::arm) last looked.
    pub(crate) changed: bool,
    pub(crate) now: Time,
}

impl Shared {
    /// READs and atomics that a queue pair answers at once.
    pub(crate) fn rd_atomic_answered(&self) -> u8 {
        self.config.rd_atomic.min(self.limits.rd_atomic_answered).max(1)
    }
}
