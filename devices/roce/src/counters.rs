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
    /// The same, that they are too long for the way.
    pub too_long: u64,
    /// The same, for either reason, of packets that none here has sent: not believed.
    pub refused_unknown: u64,
    /// Payload bytes copied into frames and out of them, by the link's user and not by the kernel.
    pub copied: u64,
    /// Queue pairs that failed, but not by their owner's wish.
    pub failures: u64,
}

impl RoceCounters {
    /// Hands over each count with its name.
    pub fn for_each(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let Self { transport: rc, link, .. } = self;
        for (name, value) in [
            ("packets_sent", link.sent),
            ("packets_received", link.received),
            ("retransmitted", rc.retransmitted),
            ("timeouts", rc.timeouts),
            ("failures", self.failures),
            ("bad_icrc", self.bad_icrc),
            ("malformed", self.malformed),
            ("unknown_queue_pair", self.unknown_queue_pair),
            ("early", self.early),
            ("strangers", self.strangers),
            ("sequence_naks_sent", rc.sequence_naks_sent),
            ("sequence_naks_received", rc.sequence_naks_received),
            ("rnr_naks_sent", rc.rnr_naks_sent),
            ("rnr_naks_received", rc.rnr_naks_received),
            ("refusals_sent", rc.refusals_sent),
            ("refusals_received", rc.refusals_received),
            ("marked", rc.marked),
            ("notifications_sent", rc.notifications_sent),
            ("notifications_received", rc.notifications_received),
            ("port_unreachable", self.refused),
            ("packet_too_long", self.too_long),
            ("port_unreachable_unknown", self.refused_unknown),
            ("send_refused", link.refused),
            ("system_calls", link.calls),
            ("bytes_copied", self.copied),
        ] {
            each(name, value);
        }
    }
}
