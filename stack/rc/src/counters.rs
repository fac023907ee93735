//! What a queue pair has counted.

use ringway_wire::{Header, NakCode, Syndrome};

/// Counts since the queue pair was made, and through resets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets written, acknowledgements and notifications included.
    pub sent: u64,
    /// Packets taken.
    pub received: u64,
    /// Packets of requests written again.
    pub retransmitted: u64,
    /// Times the local ACK timeout ran out.
    pub timeouts: u64,
    /// Refusals because a packet before is missing.
    pub sequence_naks_sent: u64,
    /// The same, received.
    pub sequence_naks_received: u64,
    /// Refusals because no receive was posted.
    pub rnr_naks_sent: u64,
    /// The same, received.
    pub rnr_naks_received: u64,
    /// Other refusals: of what makes no sense or is not permitted.
    pub refusals_sent: u64,
    /// The same, received.
    pub refusals_received: u64,
    /// Congestion notifications written.
    pub notifications_sent: u64,
    /// Congestion notifications taken.
    pub notifications_received: u64,
    /// Packets that came with a mark of congestion.
    pub marked: u64,
}

impl Counters {
    /// Adds another queue pair's.
    pub const fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.retransmitted += other.retransmitted;
        self.timeouts += other.timeouts;
        self.sequence_naks_sent += other.sequence_naks_sent;
        self.sequence_naks_received += other.sequence_naks_received;
        self.rnr_naks_sent += other.rnr_naks_sent;
        self.rnr_naks_received += other.rnr_naks_received;
        self.refusals_sent += other.refusals_sent;
        self.refusals_received += other.refusals_received;
        self.notifications_sent += other.notifications_sent;
        self.notifications_received += other.notifications_received;
        self.marked += other.marked;
    }
}

impl Counters {
    /// A response goes out.
    pub(crate) fn count_response(&mut self, header: &Header) {
        if let Header::Acknowledge(aeth) = header {
            let [sequence, rnr, other] = kinds(aeth.syndrome);
            self.sequence_naks_sent += sequence;
            self.rnr_naks_sent += rnr;
            self.refusals_sent += other;
        }
    }

    /// A packet came in.
    pub(crate) fn count_received(&mut self, header: &Header, congested: bool) {
        self.received += 1;
        self.marked += u64::from(congested);
        if let Header::Acknowledge(aeth) = header {
            let [sequence, rnr, other] = kinds(aeth.syndrome);
            self.sequence_naks_received += sequence;
            self.rnr_naks_received += rnr;
            self.refusals_received += other;
        }
    }
}

/// Whether it is a NAK for a sequence error, for want of a receive, or for something else.
const fn kinds(syndrome: Syndrome) -> [u64; 3] {
    match syndrome {
        Syndrome::Ack(_) => [0, 0, 0],
        Syndrome::Nak(NakCode::SequenceError) => [1, 0, 0],
        Syndrome::RnrNak(_) => [0, 1, 0],
        Syndrome::Nak(_) => [0, 0, 1],
    }
}
