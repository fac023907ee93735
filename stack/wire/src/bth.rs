//! The base transport header.

use core::fmt;

use crate::{Opcode, Psn, bytes::low_24};

/// Bytes of the base transport header.
pub const BTH_LENGTH: usize = 12;

/// The partition that every port is a full member of by default.
pub const DEFAULT_PARTITION: u16 = 0xffff;

/// A queue pair's number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QueuePair(u32);

impl QueuePair {
    /// The largest number.
    pub const MAX: u32 = (1 << 24) - 1;

    /// The queue pair with this number; `None` when it has more than 24 bits.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number > Self::MAX { None } else { Some(Self(number)) }
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bytes(bytes: [u8; 3]) -> Self {
        let [a, b, c] = bytes;
        Self(u32::from_be_bytes([0, a, b, c]))
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({:#x})", self.0)
    }
}

/// What the base transport header says (IBA volume 1, 9.2), but for the opcode and the pad count: those follow from
/// the [`Header`](crate::Header) and the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// Whom it is for.
    pub destination: QueuePair,
    /// Its place in the sequence; that of what it answers in a response.
    pub psn: Psn,
    /// The sender wants this packet acknowledged.
    pub ack_request: bool,
    /// The receiver shall wake whoever waits for completions.
    pub solicited: bool,
    /// The "MigReq" bit: hardware usually sets it, rxe does not, and neither looks at it.
    pub migrated: bool,
    /// Forward congestion.
    pub fecn: bool,
    /// Backward congestion.
    pub becn: bool,
    /// The partition key.
    pub partition: u16,
}

impl Bth {
    /// A header with nothing asked for, in the default partition.
    #[inline]
    #[must_use]
    pub const fn new(destination: QueuePair, psn: Psn) -> Self {
        Self {
            destination,
            psn,
            ack_request: false,
            solicited: false,
            migrated: false,
            fecn: false,
            becn: false,
            partition: DEFAULT_PARTITION,
        }
    }

    /// The same with the bit that asks for an acknowledgement.
    #[inline]
    #[must_use]
    pub const fn with_ack_request(self, ack_request: bool) -> Self {
        Self { ack_request, ..self }
    }

    /// The bytes; of `pad` the two lower bits count.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self, opcode: Opcode, pad: u8) -> [u8; BTH_LENGTH] {
        let [p0, p1] = self.partition.to_be_bytes();
        let [q0, q1, q2] = low_24(self.destination.0);
        let [s0, s1, s2] = low_24(self.psn.value());
        let flags = (self.solicited as u8) << 7 | (self.migrated as u8) << 6 | (pad & 3) << 4;
        let congestion = (self.fecn as u8) << 7 | (self.becn as u8) << 6;
        [opcode.code(), flags, p0, p1, congestion, q0, q1, q2, (self.ack_request as u8) << 7, s0, s1, s2]
    }

    /// The header in these bytes, and what it says besides.
    #[inline]
    #[must_use]
    pub const fn parse(bytes: &[u8; BTH_LENGTH]) -> (Self, Besides) {
        let [opcode, flags, p0, p1, congestion, q0, q1, q2, ack, s0, s1, s2] = *bytes;
        let header = Self {
            destination: QueuePair::from_bytes([q0, q1, q2]),
            psn: Psn::new(u32::from_be_bytes([0, s0, s1, s2])),
            ack_request: ack & 0x80 != 0,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            partition: u16::from_be_bytes([p0, p1]),
        };
        (header, Besides { opcode, pad: flags >> 4 & 3, version: flags & 0xf })
    }
}

/// What stands in a base transport header besides what is in [`Bth`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Besides {
    /// The opcode's byte.
    pub opcode: u8,
    /// Bytes of padding behind the payload.
    pub pad: u8,
    /// The version of the transport: 0.
    pub version: u8,
}
