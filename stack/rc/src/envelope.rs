//! What all packets of a queue pair have in common.

use ringway_wire::{self as wire, DEFAULT_PARTITION};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) destination: wire::QueuePair,
    pub(crate) partition: u16,
    /// Packets that complete a receive have the solicited-event bit.
    pub(crate) solicited: bool,
}

impl Default for Envelope {
    fn default() -> Self {
        Self { destination: wire::QueuePair::default(), partition: DEFAULT_PARTITION, solicited: false }
    }
}
