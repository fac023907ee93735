//! The opcodes that are understood.

use crate::PathMtu;

/// What kind of packet it is (IBA volume 1, 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// The first packet of a SEND of several.
    SendFirst = 0x00,
    /// One in between.
    SendMiddle = 0x01,
    /// The last.
    SendLast = 0x02,
    /// The last, with an immediate.
    SendLastImmediate = 0x03,
    /// A SEND of one packet.
    SendOnly = 0x04,
    /// A SEND of one packet, with an immediate.
    SendOnlyImmediate = 0x05,
    /// The first packet of a WRITE of several.
    WriteFirst = 0x06,
    /// One in between.
    WriteMiddle = 0x07,
    /// The last.
    WriteLast = 0x08,
    /// The last, with an immediate.
    WriteLastImmediate = 0x09,
    /// A WRITE of one packet.
    WriteOnly = 0x0a,
    /// A WRITE of one packet, with an immediate.
    WriteOnlyImmediate = 0x0b,
    /// Asks for the peer's memory.
    ReadRequest = 0x0c,
    /// The first packet of an answer of several.
    ReadResponseFirst = 0x0d,
    /// One in between.
    ReadResponseMiddle = 0x0e,
    /// The last.
    ReadResponseLast = 0x0f,
    /// An answer of one packet.
    ReadResponseOnly = 0x10,
    /// Acknowledges, or says why not.
    Acknowledge = 0x11,
    /// Answers an atomic.
    AtomicAcknowledge = 0x12,
    /// Asks for a compare-and-swap.
    CompareSwap = 0x13,
    /// Asks for a fetch-and-add.
    FetchAdd = 0x14,
    /// An unreliable datagram.
    UdSendOnly = 0x64,
    /// An unreliable datagram with an immediate.
    UdSendOnlyImmediate = 0x65,
    /// Congestion notification (annex A17.9.3): slow down.
    Cnp = 0x81,
    /// Acknowledges packets one by one; between ends that have agreed on it, in the range left to manufacturers.
    SelectiveAcknowledge = 0xc1,
    /// Says something of the connection itself, which the payload holds; in the same range.
    Connection = 0xc2,
}

impl Opcode {
    /// Every opcode, in the order of its code.
    pub const ALL: [Self; 26] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImmediate,
        Self::SendOnly,
        Self::SendOnlyImmediate,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImmediate,
        Self::WriteOnly,
        Self::WriteOnlyImmediate,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::UdSendOnly,
        Self::UdSendOnlyImmediate,
        Self::Cnp,
        Self::SelectiveAcknowledge,
        Self::Connection,
    ];

    /// The byte on the wire.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The opcode with this byte, if it is one that is understood.
    #[inline]
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        // Up to FETCH_ADD the codes are without gaps.
        let at = match code {
            0..=0x14 => usize::from(code),
            0x64 => 21,
            0x65 => 22,
            0x81 => 23,
            0xc1 => 24,
            0xc2 => 25,
            _ => return None,
        };
        Self::ALL.get(at).copied()
    }

    /// Whether it goes to the responder of a reliable connection. The rest go to the requester, but for datagrams,
    /// congestion notifications and what concerns the connection, which belong to neither.
    #[inline]
    #[must_use]
    pub const fn is_request(self) -> bool {
        matches!(self.code(), 0..=0x0c | 0x13 | 0x14)
    }

    /// Whether it goes to the requester of a reliable connection.
    #[inline]
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self.code(), 0x0d..=0x12 | 0xc1)
    }

    /// Whether it may carry payload.
    #[inline]
    #[must_use]
    pub const fn has_payload(self) -> bool {
        matches!(self.code(), 0..=0x0b | 0x0d..=0x10 | 0x64 | 0x65 | 0xc1 | 0xc2)
    }

    /// Whether a message, or the answer to a READ, begins here.
    #[inline]
    #[must_use]
    pub const fn starts_message(self) -> bool {
        !matches!(self.code(), 1..=3 | 7..=9 | 0x0e | 0x0f)
    }

    /// Whether a message, or the answer to a READ, ends here.
    #[inline]
    #[must_use]
    pub const fn ends_message(self) -> bool {
        !matches!(self.code(), 0 | 1 | 6 | 7 | 0x0d | 0x0e)
    }

    /// Whether a packet of this kind may have `length` bytes of payload on a path with this MTU: first and middle
    /// ones have all of it, a last one has some, an only one may have none.
    #[inline]
    #[must_use]
    pub const fn allows_payload(self, length: usize, mtu: PathMtu) -> bool {
        if !self.has_payload() {
            return length == 0;
        }
        match (self.starts_message(), self.ends_message()) {
            (_, false) => length == mtu.bytes(),
            (false, true) => length > 0 && length <= mtu.bytes(),
            (true, true) => length <= mtu.bytes(),
        }
    }
}
