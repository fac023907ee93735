//! Whole transport packets: what UDP carries.

use thiserror::Error;

use crate::{
    BTH_LENGTH, Bth, Check, Flow, HEADER_LENGTH_MAX, Header, ICRC_LENGTH, Opcode, PathMtu, bytes::take,
    header::put,
};

/// The most bytes before the payload.
pub const HEADERS_LENGTH_MAX: usize = BTH_LENGTH + HEADER_LENGTH_MAX;

/// The most payload of one packet: the largest path MTU.
pub const PAYLOAD_LENGTH_MAX: usize = PathMtu::Mtu4096.bytes();

/// The most bytes of a packet in UDP. (The longest header belongs to packets without payload.)
pub const TRANSPORT_LENGTH_MAX: usize = HEADERS_LENGTH_MAX + PAYLOAD_LENGTH_MAX + ICRC_LENGTH;

/// Why bytes are not a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseError {
    /// It ends within the headers, the padding or the CRC.
    #[error("the packet is too short by {missing} bytes")]
    TooShort {
        /// How many bytes there should be besides, at least.
        missing: usize,
    },
    /// Payload and padding are longer than any path allows.
    #[error(
        "{length} bytes of payload and padding are more than the {PAYLOAD_LENGTH_MAX} that a packet may have"
    )]
    TooLong {
        /// How many there are.
        length: usize,
    },
    /// Another version of the transport.
    #[error("version {0} of the transport header is not known; only version 0 is")]
    Version(u8),
    /// An opcode of another transport service, or one that is not offered.
    #[error("opcode {0:#04x} is not one of a reliable connection, a datagram or a congestion notification")]
    Opcode(u8),
    /// An acknowledgement that says nothing known.
    #[error("syndrome {0:#04x} is reserved")]
    Syndrome(u8),
    /// Payload behind an opcode that has none.
    #[error("{length} bytes follow the headers of a packet that has no payload")]
    Payload {
        /// How many bytes.
        length: usize,
    },
    /// Payload and padding together are not a multiple of four bytes.
    #[error("{length} bytes of payload and padding are not a multiple of 4")]
    Padding {
        /// How many there are.
        length: usize,
    },
    /// Corrupted on the way, or sent by something that computes the CRC in another way.
    #[error("the invariant CRC is {received:02x?} where the packet gives {computed:02x?}")]
    Icrc {
        /// The bytes that came.
        received: [u8; ICRC_LENGTH],
        /// The bytes that should have.
        computed: [u8; ICRC_LENGTH],
    },
}

/// A transport packet: header values and borrowed payload. One from [`Packet::parse`] has been checked as far as a
/// packet can be by itself; whether its payload suits the path is [`Opcode::allows_payload`]'s to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// The opcode with its extension headers.
    pub header: Header,
    /// The payload without its padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet in these bytes, which are everything behind the UDP header.
    ///
    /// # Errors
    /// When they are no packet of a kind that is known, or the invariant CRC is wrong.
    pub fn parse(bytes: &'a [u8], check: Check) -> Result<Self, ParseError> {
        const LENGTH_MIN: usize = BTH_LENGTH + ICRC_LENGTH;
        let too_short = |present| ParseError::TooShort { missing: LENGTH_MIN.saturating_sub(present) };
        let (covered, received) = bytes.split_last_chunk::<ICRC_LENGTH>().ok_or(too_short(bytes.len()))?;
        let (bth_bytes, behind) = take(covered).map_err(|_| too_short(bytes.len()))?;
        // Before anything is believed: damage may be anywhere, and is to be told from packets that mean nothing.
        let mut icrc = check.start();
        icrc.update_bth(bth_bytes);
        icrc.update(behind);
        if !check.accepts(icrc, *received, bytes.len()) {
            return Err(ParseError::Icrc { received: *received, computed: icrc.to_bytes() });
        }

        let (bth, besides) = Bth::parse(bth_bytes);
        if besides.version != 0 {
            return Err(ParseError::Version(besides.version));
        }
        let opcode = Opcode::from_code(besides.opcode).ok_or(ParseError::Opcode(besides.opcode))?;
        let (header, padded) = Header::parse(opcode, behind)?;
        let payload = without_padding(opcode, padded, usize::from(besides.pad))?;
        Ok(Self { bth, header, payload })
    }

    /// Writes the whole packet, as UDP carries it, to the front of `out` and returns its length.
    ///
    /// # Errors
    /// When it does not fit, or has payload that its kind of packet cannot have.
    pub fn emit(&self, flow: &Flow, identification: u16, out: &mut [u8]) -> Result<usize, EmitError> {
        let parts = emit(&self.bth, &self.header, &[self.payload], flow, identification, out)?;
        let behind = out.get_mut(parts.headers..).ok_or(EmitError::Room)?;
        let written = put(behind, &[self.payload, parts.trailer.as_bytes()]).ok_or(EmitError::Room)?;
        Ok(parts.headers + written)
    }

    /// Bytes that UDP carries for it.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        transport_length(&self.header, self.payload.len())
    }
}

fn without_padding(opcode: Opcode, padded: &[u8], pad: usize) -> Result<&[u8], ParseError> {
    let length = padded.len();
    if !opcode.has_payload() {
        return if length == 0 && pad == 0 { Ok(padded) } else { Err(ParseError::Payload { length }) };
    }
    if length > PAYLOAD_LENGTH_MAX {
        return Err(ParseError::TooLong { length });
    }
    if !length.is_multiple_of(4) {
        return Err(ParseError::Padding { length });
    }
    let payload = length.checked_sub(pad).ok_or(ParseError::TooShort { missing: pad - length.min(pad) })?;
    Ok(padded.get(..payload).unwrap_or_default())
}

const fn padding(payload: usize) -> usize {
    payload.wrapping_neg() & 3
}

const fn transport_length(header: &Header, payload: usize) -> usize {
    BTH_LENGTH + header.length() + payload + padding(payload) + ICRC_LENGTH
}

/// Why a packet was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EmitError {
    /// The memory to write to is too short.
    #[error("there is not enough room for the packet's headers")]
    Room,
    /// The payload is longer than any path allows, or its kind of packet has none.
    #[error("{length} bytes of payload cannot go into a packet of this kind")]
    Payload {
        /// How many bytes.
        length: usize,
    },
}

/// Padding and CRC: what follows the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    bytes: [u8; 3 + ICRC_LENGTH],
    pad: u8,
}

impl Trailer {
    /// The bytes to send behind the payload.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // The padding is right before the CRC, which ends the array.
        self.bytes.get(3 - usize::from(self.pad.min(3))..).unwrap_or_default()
    }
}

/// What [`emit`] made: a packet is the headers, the payload, then the trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// How many bytes of headers were written.
    pub headers: usize,
    /// What follows the payload.
    pub trailer: Trailer,
}

/// Writes a packet's headers to the front of `out`, for payload that lies in these pieces, and computes what follows
/// it. `identification` is what the IPv4 header will have: zero for a lone packet on a Linux socket that does not
/// connect and sets the "don't fragment" bit, the segment's index within one call when the kernel cuts segments.
/// IPv6 has none.
///
/// # Errors
/// When the headers do not fit, or the payload is not one that this kind of packet can have.
pub fn emit(
    bth: &Bth,
    header: &Header,
    payload: &[&[u8]],
    flow: &Flow,
    identification: u16,
    out: &mut [u8],
) -> Result<Parts, EmitError> {
    let length = payload.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.len()));
    let opcode = header.opcode();
    if length > PAYLOAD_LENGTH_MAX || (length > 0 && !opcode.has_payload()) {
        return Err(EmitError::Payload { length });
    }
    let (Ok(pad), Ok(transport)) =
        (u8::try_from(padding(length)), u16::try_from(transport_length(header, length)))
    else {
        return Err(EmitError::Payload { length });
    };
    let bth_bytes = bth.to_bytes(opcode, pad);
    let (bth_out, extensions) = out.split_first_chunk_mut::<BTH_LENGTH>().ok_or(EmitError::Room)?;
    *bth_out = bth_bytes;
    let extensions_length = header.emit(extensions).ok_or(EmitError::Room)?;
    let extensions = extensions.get(..extensions_length).unwrap_or_default();

    let mut icrc = flow.icrc(identification, transport);
    icrc.update_bth(&bth_bytes);
    icrc.update(extensions);
    for piece in payload {
        icrc.update(piece);
    }
    icrc.update([0; 3].get(..usize::from(pad)).unwrap_or_default());
    let [c0, c1, c2, c3] = icrc.to_bytes();
    let trailer = Trailer { bytes: [0, 0, 0, c0, c1, c2, c3], pad };
    Ok(Parts { headers: BTH_LENGTH + extensions_length, trailer })
}
