//! An opcode with its extension headers.

use crate::{Aeth, AtomicEth, Deth, Opcode, ParseError, Reth, bytes::take};

/// The most bytes of extension headers.
pub const HEADER_LENGTH_MAX: usize = 28;

/// Reserved bytes of a congestion notification.
const CNP_RESERVED: usize = 16;

/// What a packet is, with the extension headers that its opcode calls for and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Header {
    /// The first packet of a SEND of several.
    SendFirst,
    /// One in between.
    SendMiddle,
    /// The last.
    SendLast,
    /// The last, with an immediate.
    SendLastImmediate(u32),
    /// A SEND of one packet.
    SendOnly,
    /// A SEND of one packet, with an immediate.
    SendOnlyImmediate(u32),
    /// The first packet of a WRITE of several.
    WriteFirst(Reth),
    /// One in between.
    WriteMiddle,
    /// The last.
    WriteLast,
    /// The last, with an immediate.
    WriteLastImmediate(u32),
    /// A WRITE of one packet.
    WriteOnly(Reth),
    /// A WRITE of one packet, with an immediate.
    WriteOnlyImmediate(Reth, u32),
    /// Asks for the peer's memory.
    ReadRequest(Reth),
    /// The first packet of an answer of several.
    ReadResponseFirst(Aeth),
    /// One in between.
    ReadResponseMiddle,
    /// The last.
    ReadResponseLast(Aeth),
    /// An answer of one packet.
    ReadResponseOnly(Aeth),
    /// Acknowledges, or says why not.
    Acknowledge(Aeth),
    /// Answers an atomic with the word's old value.
    AtomicAcknowledge(Aeth, u64),
    /// Asks for a compare-and-swap.
    CompareSwap(AtomicEth),
    /// Asks for a fetch-and-add.
    FetchAdd(AtomicEth),
    /// An unreliable datagram.
    UdSendOnly(Deth),
    /// An unreliable datagram with an immediate.
    UdSendOnlyImmediate(Deth, u32),
    /// Congestion notification.
    Cnp,
    /// Acknowledges packets one by one, which the payload names.
    SelectiveAcknowledge(Aeth),
    /// Says something of the connection itself, which the payload holds.
    Connection,
}

impl Header {
    /// The opcode.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::SendFirst => Opcode::SendFirst,
            Self::SendMiddle => Opcode::SendMiddle,
            Self::SendLast => Opcode::SendLast,
            Self::SendLastImmediate(_) => Opcode::SendLastImmediate,
            Self::SendOnly => Opcode::SendOnly,
            Self::SendOnlyImmediate(_) => Opcode::SendOnlyImmediate,
            Self::WriteFirst(_) => Opcode::WriteFirst,
            Self::WriteMiddle => Opcode::WriteMiddle,
            Self::WriteLast => Opcode::WriteLast,
            Self::WriteLastImmediate(_) => Opcode::WriteLastImmediate,
            Self::WriteOnly(_) => Opcode::WriteOnly,
            Self::WriteOnlyImmediate(..) => Opcode::WriteOnlyImmediate,
            Self::ReadRequest(_) => Opcode::ReadRequest,
            Self::ReadResponseFirst(_) => Opcode::ReadResponseFirst,
            Self::ReadResponseMiddle => Opcode::ReadResponseMiddle,
            Self::ReadResponseLast(_) => Opcode::ReadResponseLast,
            Self::ReadResponseOnly(_) => Opcode::ReadResponseOnly,
            Self::Acknowledge(_) => Opcode::Acknowledge,
            Self::AtomicAcknowledge(..) => Opcode::AtomicAcknowledge,
            Self::CompareSwap(_) => Opcode::CompareSwap,
            Self::FetchAdd(_) => Opcode::FetchAdd,
            Self::UdSendOnly(_) => Opcode::UdSendOnly,
            Self::UdSendOnlyImmediate(..) => Opcode::UdSendOnlyImmediate,
            Self::Cnp => Opcode::Cnp,
            Self::SelectiveAcknowledge(_) => Opcode::SelectiveAcknowledge,
            Self::Connection => Opcode::Connection,
        }
    }

    /// The immediate, if there is one.
    #[inline]
    #[must_use]
    pub const fn immediate(&self) -> Option<u32> {
        match *self {
            Self::SendLastImmediate(value)
            | Self::SendOnlyImmediate(value)
            | Self::WriteLastImmediate(value)
            | Self::WriteOnlyImmediate(_, value)
            | Self::UdSendOnlyImmediate(_, value) => Some(value),
            _ => None,
        }
    }

    /// The memory it names, if it names some.
    #[inline]
    #[must_use]
    pub const fn reth(&self) -> Option<Reth> {
        match *self {
            Self::WriteFirst(reth)
            | Self::WriteOnly(reth)
            | Self::WriteOnlyImmediate(reth, _)
            | Self::ReadRequest(reth) => Some(reth),
            _ => None,
        }
    }

    /// The acknowledgement in it, if there is one.
    #[inline]
    #[must_use]
    pub const fn aeth(&self) -> Option<Aeth> {
        match *self {
            Self::ReadResponseFirst(aeth)
            | Self::ReadResponseLast(aeth)
            | Self::ReadResponseOnly(aeth)
            | Self::Acknowledge(aeth)
            | Self::SelectiveAcknowledge(aeth)
            | Self::AtomicAcknowledge(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    /// Bytes of the extension headers.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        match self {
            Self::SendFirst | Self::SendMiddle | Self::SendLast | Self::SendOnly => 0,
            Self::WriteMiddle | Self::WriteLast | Self::ReadResponseMiddle | Self::Connection => 0,
            Self::SendLastImmediate(_) | Self::SendOnlyImmediate(_) | Self::WriteLastImmediate(_) => 4,
            Self::WriteFirst(_) | Self::WriteOnly(_) | Self::ReadRequest(_) => Reth::LENGTH,
            Self::WriteOnlyImmediate(..) => Reth::LENGTH + 4,
            Self::ReadResponseFirst(_) | Self::ReadResponseLast(_) | Self::ReadResponseOnly(_) => {
                Aeth::LENGTH
            }
            Self::Acknowledge(_) | Self::SelectiveAcknowledge(_) => Aeth::LENGTH,
            Self::AtomicAcknowledge(..) => Aeth::LENGTH + 8,
            Self::CompareSwap(_) | Self::FetchAdd(_) => AtomicEth::LENGTH,
            Self::UdSendOnly(_) => Deth::LENGTH,
            Self::UdSendOnlyImmediate(..) => Deth::LENGTH + 4,
            Self::Cnp => CNP_RESERVED,
        }
    }

    /// Writes the extension headers to the front of `out` and returns their length; `None` when there is no room.
    #[inline]
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        match *self {
            Self::SendFirst | Self::SendMiddle | Self::SendLast | Self::SendOnly => Some(0),
            Self::WriteMiddle | Self::WriteLast | Self::ReadResponseMiddle | Self::Connection => Some(0),
            Self::SendLastImmediate(value)
            | Self::SendOnlyImmediate(value)
            | Self::WriteLastImmediate(value) => put(out, &[&value.to_be_bytes()]),
            Self::WriteFirst(reth) | Self::WriteOnly(reth) | Self::ReadRequest(reth) => {
                put(out, &[&reth.to_bytes()])
            }
            Self::WriteOnlyImmediate(reth, value) => put(out, &[&reth.to_bytes(), &value.to_be_bytes()]),
            Self::ReadResponseFirst(aeth)
            | Self::ReadResponseLast(aeth)
            | Self::ReadResponseOnly(aeth)
            | Self::Acknowledge(aeth)
            | Self::SelectiveAcknowledge(aeth) => put(out, &[&aeth.to_bytes()]),
            Self::AtomicAcknowledge(aeth, old) => put(out, &[&aeth.to_bytes(), &old.to_be_bytes()]),
            Self::CompareSwap(atomic) | Self::FetchAdd(atomic) => put(out, &[&atomic.to_bytes()]),
            Self::UdSendOnly(deth) => put(out, &[&deth.to_bytes()]),
            Self::UdSendOnlyImmediate(deth, value) => put(out, &[&deth.to_bytes(), &value.to_be_bytes()]),
            Self::Cnp => put(out, &[&[0; CNP_RESERVED]]),
        }
    }

    /// The extension headers of a packet with this opcode at the front of `bytes`, and the bytes behind them.
    ///
    /// # Errors
    /// When the bytes are too few or a syndrome is reserved.
    #[inline]
    pub fn parse(opcode: Opcode, bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        Ok(match opcode {
            Opcode::SendFirst => (Self::SendFirst, bytes),
            Opcode::SendMiddle => (Self::SendMiddle, bytes),
            Opcode::SendLast => (Self::SendLast, bytes),
            Opcode::SendLastImmediate => with(bytes, |b| Self::SendLastImmediate(u32::from_be_bytes(*b)))?,
            Opcode::SendOnly => (Self::SendOnly, bytes),
            Opcode::SendOnlyImmediate => with(bytes, |b| Self::SendOnlyImmediate(u32::from_be_bytes(*b)))?,
            Opcode::WriteFirst => with(bytes, |b| Self::WriteFirst(Reth::parse(b)))?,
            Opcode::WriteMiddle => (Self::WriteMiddle, bytes),
            Opcode::WriteLast => (Self::WriteLast, bytes),
            Opcode::WriteLastImmediate => with(bytes, |b| Self::WriteLastImmediate(u32::from_be_bytes(*b)))?,
            Opcode::WriteOnly => with(bytes, |b| Self::WriteOnly(Reth::parse(b)))?,
            Opcode::WriteOnlyImmediate => {
                let (reth, rest) = with(bytes, Reth::parse)?;
                with(rest, |b| Self::WriteOnlyImmediate(reth, u32::from_be_bytes(*b)))?
            }
            Opcode::ReadRequest => with(bytes, |b| Self::ReadRequest(Reth::parse(b)))?,
            Opcode::ReadResponseFirst => with_aeth(bytes, Self::ReadResponseFirst)?,
            Opcode::ReadResponseMiddle => (Self::ReadResponseMiddle, bytes),
            Opcode::ReadResponseLast => with_aeth(bytes, Self::ReadResponseLast)?,
            Opcode::ReadResponseOnly => with_aeth(bytes, Self::ReadResponseOnly)?,
            Opcode::Acknowledge => with_aeth(bytes, Self::Acknowledge)?,
            Opcode::SelectiveAcknowledge => with_aeth(bytes, Self::SelectiveAcknowledge)?,
            Opcode::Connection => (Self::Connection, bytes),
            Opcode::AtomicAcknowledge => {
                let (aeth, rest) = with_aeth(bytes, |aeth| aeth)?;
                with(rest, |b| Self::AtomicAcknowledge(aeth, u64::from_be_bytes(*b)))?
            }
            Opcode::CompareSwap => with(bytes, |b| Self::CompareSwap(AtomicEth::parse(b)))?,
            Opcode::FetchAdd => with(bytes, |b| Self::FetchAdd(AtomicEth::parse(b)))?,
            Opcode::UdSendOnly => with(bytes, |b| Self::UdSendOnly(Deth::parse(b)))?,
            Opcode::UdSendOnlyImmediate => {
                let (deth, rest) = with(bytes, Deth::parse)?;
                with(rest, |b| Self::UdSendOnlyImmediate(deth, u32::from_be_bytes(*b)))?
            }
            Opcode::Cnp => with(bytes, |_: &[u8; CNP_RESERVED]| Self::Cnp)?,
        })
    }
}

fn with<const N: usize, T>(bytes: &[u8], make: impl FnOnce(&[u8; N]) -> T) -> Result<(T, &[u8]), ParseError> {
    let (taken, rest) = take(bytes).map_err(|present| ParseError::TooShort { missing: N - present })?;
    Ok((make(taken), rest))
}

fn with_aeth<T>(bytes: &[u8], make: impl FnOnce(Aeth) -> T) -> Result<(T, &[u8]), ParseError> {
    let (aeth, rest) = with(bytes, Aeth::parse)?;
    Ok((make(aeth.map_err(ParseError::Syndrome)?), rest))
}

/// Writes the parts one after the other to the front of `out`; returns how many bytes these are.
pub(crate) fn put(out: &mut [u8], parts: &[&[u8]]) -> Option<usize> {
    let mut at = 0;
    for part in parts {
        out.get_mut(at..)?.get_mut(..part.len())?.copy_from_slice(part);
        at += part.len();
    }
    Some(at)
}
