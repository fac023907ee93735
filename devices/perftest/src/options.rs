//! What is measured, and how.

use core::{net::IpAddr, str::FromStr};

use ringway_wire::{PathMtu, Psn};
use thiserror::Error;

/// The most messages of a test: each has two times that are kept, of eight bytes.
const MESSAGES_MAX: u64 = 1 << 26;

/// What the messages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// SEND.
    Send,
    /// WRITE.
    Write,
    /// READ.
    Read,
    /// FETCH_ADD of 1.
    FetchAdd,
    /// CMP_SWAP of 0 by 0, as perftest does it.
    CompareSwap,
}

impl Verb {
    /// Both READs and atomics bring something back, and only so many may be outstanding.
    #[must_use]
    pub const fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// Atomics have one size.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }
}

/// A test: one of perftest's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// What the messages are.
    pub verb: Verb,
    /// One at a time, or as many as go.
    pub latency: bool,
}

/// A test that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is none of send-lat, send-bw, write-lat, write-bw, read-lat, read-bw, atomic-lat, atomic-bw")]
pub struct TestError(String);

impl FromStr for Test {
    type Err = TestError;

    fn from_str(name: &str) -> Result<Self, TestError> {
        let unknown = || TestError(name.to_owned());
        let (verb, kind) = name.split_once('-').ok_or_else(unknown)?;
        let verb = match verb {
            "send" => Verb::Send,
            "write" => Verb::Write,
            "read" => Verb::Read,
            "atomic" => Verb::FetchAdd,
            _ => return Err(unknown()),
        };
        let latency = match kind {
            "lat" => true,
            "bw" => false,
            _ => return Err(unknown()),
        };
        Ok(Self { verb, latency })
    }
}

/// A wish that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// A number is out of range.
    #[error("{name} is {value}; it must be between {least} and {most}")]
    Range {
        /// Which.
        name: &'static str,
        /// What it is.
        value: u64,
        /// The least it may be.
        least: u64,
        /// The most it may be.
        most: u64,
    },
    /// Atomics have one size.
    #[error("atomics are of 8 bytes; leave -s and -a out")]
    Atomic,
}

/// Everything a measurement needs. Test, sizes, messages and queue pairs must be the same on
/// both sides, as with perftest.
#[derive(Debug, Clone)]
pub struct Options {
    /// The test.
    pub test: Test,
    /// Bytes of a message; `None` for every power of two from 2 to 8 MiB.
    pub bytes: Option<u64>,
    /// Messages of each queue pair.
    pub iterations: u64,
    /// Queue pairs, which only bandwidth tests have several of.
    pub queue_pairs: usize,
    /// Messages outstanding on a queue pair.
    pub send_depth: u32,
    /// Receives posted on a queue pair.
    pub receive_depth: u32,
    /// READs and atomics outstanding on a queue pair.
    pub reads: u8,
    /// The most payload of a packet; `None` for what the interface carries.
    pub mtu: Option<PathMtu>,
    /// The ACK timeout: 4.096 us * 2^this.
    pub timeout: u8,
    /// The PSN of the first request; `None` for any.
    pub first_psn: Option<Psn>,
    /// Where packets come from; `None` for this side's address of the TCP connection.
    pub address: Option<IpAddr>,
    /// Check that the bytes that come are those that perftest sends. It costs time.
    pub check: bool,
}

impl Options {
    /// What perftest does when it is told nothing else.
    #[must_use]
    pub const fn new(test: Test) -> Self {
        let latency = test.latency;
        Self {
            test,
            bytes: Some(match (test.verb.is_atomic(), latency) {
                (true, _) => 8,
                (false, true) => 2,
                (false, false) => 65_536,
            }),
            iterations: if latency { 1000 } else { 5000 },
            queue_pairs: 1,
            send_depth: if latency { 1 } else { 128 },
            receive_depth: 512,
            reads: 16,
            mtu: None,
            timeout: 14,
            first_psn: None,
            address: None,
            check: false,
        }
    }

    /// Whether all this can be.
    ///
    /// # Errors
    /// When something is out of range.
    pub fn check(&self) -> Result<(), OptionsError> {
        let latency = self.test.latency;
        let messages = self.iterations.saturating_mul(self.queue_pairs as u64);
        for (name, value, least, most) in [
            ("the size", self.bytes.unwrap_or(2), 1, 1 << 30),
            ("the number of messages", self.iterations, 1, MESSAGES_MAX),
            ("the number of queue pairs", self.queue_pairs as u64, 1, if latency { 1 } else { 1024 }),
            ("the number of messages of all queue pairs", messages, 1, MESSAGES_MAX),
            ("the depth of the send queue", self.send_depth.into(), 1, 1 << 14),
            ("the depth of the receive queue", self.receive_depth.into(), 1, 1 << 14),
            ("the number of outstanding READs", self.reads.into(), 1, 128),
            ("the timeout", self.timeout.into(), 0, 31),
        ] {
            if value < least || value > most {
                return Err(OptionsError::Range { name, value, least, most });
            }
        }
        if self.test.verb.is_atomic() && self.bytes != Some(8) {
            return Err(OptionsError::Atomic);
        }
        Ok(())
    }

    /// The sizes to go through.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, count) = match self.bytes {
            Some(bytes) => (bytes, 1),
            None => (2, 23),
        };
        (0..count).map(move |power: u32| first << power)
    }

    /// The longest message.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes.unwrap_or(1 << 23)
    }
}
