//! What two Ringway ends say to each other about a connection itself, beside what the specification has: reliable
//! connections know neither that the peer's queue pair is ready nor that it is gone.
//!
//! ```text
//!  byte 0       1 are you there? 2 I am, and connected to you; 3 my queue pair has failed or is destroyed
//!  byte 1       version
//!  bytes 4..8   the sender's queue pair
//!  bytes 8..12  the first PSN of the sender's requests
//!  bytes 12..16 the same of the receiver's
//! ```
//! All in network byte order. The PSNs are random, and only the two ends were told: whoever does not see the packets
//! cannot end connections.

use ringway_wire::{Psn, QueuePair};

const VERSION: u8 = 1;

/// What is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Word {
    /// Are you there?
    Hello = 1,
    /// I am, and connected to you.
    Here = 2,
    /// My queue pair has failed or is destroyed.
    Gone = 3,
}

/// The payload of a packet that concerns the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) word: Word,
    pub(crate) sender: QueuePair,
    pub(crate) sender_psn: Psn,
    pub(crate) receiver_psn: Psn,
}

impl Signal {
    pub(crate) const LENGTH: usize = 16;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..2].copy_from_slice(&[self.word as u8, VERSION]);
        bytes[4..8].copy_from_slice(&self.sender.number().to_be_bytes());
        bytes[8..12].copy_from_slice(&self.sender_psn.value().to_be_bytes());
        bytes[12..].copy_from_slice(&self.receiver_psn.value().to_be_bytes());
        bytes
    }

    /// What these bytes say; `None` when they are nothing of this kind.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().ok()?;
        let word = match bytes[0] {
            1 => Word::Hello,
            2 => Word::Here,
            3 => Word::Gone,
            _ => return None,
        };
        let number = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let sender = QueuePair::new(number(4)?)?;
        let signal =
            Self { word, sender, sender_psn: Psn::new(number(8)?), receiver_psn: Psn::new(number(12)?) };
        (signal.to_bytes() == *bytes).then_some(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_come_back_and_nothing_else_passes_for_one() {
        for word in [Word::Hello, Word::Here, Word::Gone] {
            let sender = QueuePair::new(0x12_3456).expect("a number");
            let signal = Signal { word, sender, sender_psn: Psn::new(0xff_ffff), receiver_psn: Psn::new(7) };
            let bytes = signal.to_bytes();
            assert_eq!(Signal::parse(&bytes), Some(signal));
            for at in [0, 1, 2, 3, 4, 8, 12] {
                let mut changed = bytes;
                changed[at] ^= 0x80;
                assert_eq!(Signal::parse(&changed), None, "byte {at}");
            }
            assert_eq!(Signal::parse(&bytes[..15]), None);
        }
    }
}
