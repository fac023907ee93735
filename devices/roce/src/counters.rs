//! What a device has counted.

use crate::link::Counters as LinkCounters;

/// What a device has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoceCounters {
    /// Packets, retransmissions, refusals and notifications of all queue pairs there ever were.
    pub transport: ringway_rc::Counters,
    /// What the link has counted.
    pub link: LinkCounters,
    /// Packets whose invariant CRC is wrong: dropped.
    pub bad_icrc: u64,
    /// Packets that are none, or of a kind nobody knows: dropped.
    pub malformed: u64,
    /// Packets for queue pairs that are not there: dropped.
    pub unknown_queue_pair: u64,
    /// Packets for queue pairs that are not connected yet: dropped, and sent again by the peer.
    pub early: u64,
    /// Packets from another address than the peer's: dropped.
    pub strangers: u64,
    /// Times the network said, of packets that queue pairs here have sent, that nobody takes them there.
    pub refused: u64,
    /// The same of packets that none here has sent: not believed.
    pub refused_unknown: u64,
    /// Queue pairs that failed, but not by their owner's wish.
    pub failures: u64,
}
