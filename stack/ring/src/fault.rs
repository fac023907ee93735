//! What can go wrong with the other side of a ring.

use thiserror::Error;

/// The other side wrote something that no correct peer writes. Its session should be ended; nothing here depends on
/// what it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PeerFault {
    /// The consumed count went back, or past what was published.
    #[error(
        "the peer says it consumed {claimed} entries, but between {least} and {most} are possible: end its session"
    )]
    Consumed {
        /// What the peer wrote.
        claimed: u64,
        /// The last count it gave.
        least: u64,
        /// What was published.
        most: u64,
    },
    /// An entry's phase is neither that of this lap nor that of the lap before.
    #[error(
        "the entry at position {position} has phase {found}, expected {expected} or an untouched entry: \
         end the peer's session"
    )]
    Phase {
        /// The consumer's position.
        position: u64,
        /// The phase found.
        found: u32,
        /// The phase of a published entry.
        expected: u32,
    },
}

/// Why an entry was not staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PushError {
    /// Every entry is in use: back-pressure.
    #[error("the ring is full: try again when the peer has consumed entries")]
    Full,
    /// The peer broke the protocol.
    #[error(transparent)]
    Peer(#[from] PeerFault),
}
