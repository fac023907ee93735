//! Frames: what one side of a connection says to the other.
//!
//! A frame is a header of [`HEADER_LENGTH`] bytes, all numbers little-endian, and for SEND, WRITE and READ responses
//! the payload of as many bytes as `length` says:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | kind |
//! | 1 | flags: bit 0, an immediate is there; bit 1, of a SEND or WRITE, its sender waits to be told that it is executed |
//! | 2 | status of a refusal |
//! | 3 | zero |
//! | 4..8 | remote key |
//! | 8..16 | length of the message, in bytes |
//! | 16..24 | offset from the start of the remote region |
//! | 24..32 | immediate, addend, expected value, or an atomic's old value |
//! | 32..40 | desired value |
//! | 40..44 | requests of the other side executed so far, modulo 2^32 |
//! | 44..48 | receives posted so far, modulo 2^32 |
//!
//! Fields that a kind does not use are zero, and a frame where they are not is refused.

use ringway_verbs::{RemoteKey, RemoteSlice, Status};
use thiserror::Error;

/// Bytes of a header.
pub const HEADER_LENGTH: usize = 48;
/// The largest message, in bytes.
pub const MAX_MESSAGE: u64 = 1 << 30;
/// The most READs and atomics a requester may have outstanding on one connection.
pub const MAX_READS: usize = 16;

const SEND: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const FETCH_ADD: u8 = 4;
const COMPARE_SWAP: u8 = 5;
const READ_RESPONSE: u8 = 6;
const ATOMIC_RESPONSE: u8 = 7;
const ACKNOWLEDGE: u8 = 8;
const REFUSE: u8 = 9;

const HAS_IMMEDIATE: u8 = 1;
const ASKS: u8 = 2;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A message for the next posted receive. Payload follows.
    Send {
        /// Bytes that follow.
        length: u64,
        /// Delivered with the receive completion.
        immediate: Option<u32>,
        /// The sender waits for its acknowledgement; else that may come with any later one.
        asks: bool,
    },
    /// Bytes for a region; with an immediate a posted receive completes as well. Payload follows.
    Write {
        /// Bytes that follow.
        length: u64,
        /// Where they go.
        remote: RemoteSlice,
        /// Delivered with the receive completion.
        immediate: Option<u32>,
        /// As of a SEND.
        asks: bool,
    },
    /// Asks for bytes of a region.
    Read {
        /// How many.
        length: u64,
        /// From where.
        remote: RemoteSlice,
    },
    /// Adds to a word.
    FetchAdd {
        /// The word.
        remote: RemoteSlice,
        /// What to add.
        add: u64,
    },
    /// Replaces a word that has the expected value.
    CompareSwap {
        /// The word.
        remote: RemoteSlice,
        /// What must be there.
        expected: u64,
        /// What to put there.
        desired: u64,
    },
    /// Answers the oldest READ. Payload follows.
    ReadResponse {
        /// Bytes that follow.
        length: u64,
    },
    /// Answers the oldest atomic.
    AtomicResponse {
        /// The word's value before.
        old: u64,
    },
    /// Nothing but the two counts.
    Acknowledge,
    /// The request after the acknowledged ones is refused; the connection ends.
    Refuse {
        /// Why: [`Status::RemoteInvalidRequest`] or [`Status::RemoteAccess`].
        status: Status,
    },
}

/// A frame with the counts that every frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it says.
    pub frame: Frame,
    /// Requests of the other side executed so far, modulo 2^32.
    pub executed: u32,
    /// Receives posted so far, modulo 2^32.
    pub receives: u32,
}

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// An unknown kind.
    #[error("frame kind {0} is unknown")]
    Kind(u8),
    /// Unknown flags, or flags the kind does not have.
    #[error("frame flags {0:#x} are wrong")]
    Flags(u8),
    /// An unknown status.
    #[error("status {0} of a refusal is unknown")]
    Status(u8),
    /// A message beyond [`MAX_MESSAGE`].
    #[error("a message of {0} bytes is longer than {MAX_MESSAGE}")]
    Length(u64),
    /// A field is set that the kind does not use.
    #[error("a frame has bytes where there should be zeros")]
    Reserved,
}

impl Frame {
    /// Bytes that follow the header.
    #[must_use]
    pub const fn payload(&self) -> u64 {
        match self {
            Self::Send { length, .. } | Self::Write { length, .. } | Self::ReadResponse { length } => *length,
            _ => 0,
        }
    }
}

/// The fields of a header, whatever they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Fields {
    kind: u8,
    flags: u8,
    status: u8,
    key: u32,
    length: u64,
    offset: u64,
    first: u64,
    second: u64,
}

/// Writes a header.
#[must_use]
pub fn encode(header: &Header) -> [u8; HEADER_LENGTH] {
    let fields = fields(&header.frame);
    let mut bytes = [0; HEADER_LENGTH];
    bytes[0] = fields.kind;
    bytes[1] = fields.flags;
    bytes[2] = fields.status;
    bytes[4..8].copy_from_slice(&fields.key.to_le_bytes());
    bytes[8..16].copy_from_slice(&fields.length.to_le_bytes());
    bytes[16..24].copy_from_slice(&fields.offset.to_le_bytes());
    bytes[24..32].copy_from_slice(&fields.first.to_le_bytes());
    bytes[32..40].copy_from_slice(&fields.second.to_le_bytes());
    bytes[40..44].copy_from_slice(&header.executed.to_le_bytes());
    bytes[44..48].copy_from_slice(&header.receives.to_le_bytes());
    bytes
}

fn fields(frame: &Frame) -> Fields {
    let none = Fields::default();
    let at = |remote: RemoteSlice| Fields { key: remote.key.0, offset: remote.offset, ..none };
    let with = |fields: Fields, immediate: Option<u32>, asks: bool| Fields {
        flags: if immediate.is_some() { HAS_IMMEDIATE } else { 0 } | if asks { ASKS } else { 0 },
        first: immediate.map_or(0, u64::from),
        ..fields
    };
    match *frame {
        Frame::Send { length, immediate, asks } => {
            with(Fields { kind: SEND, length, ..none }, immediate, asks)
        }
        Frame::Write { length, remote, immediate, asks } => {
            with(Fields { kind: WRITE, length, ..at(remote) }, immediate, asks)
        }
        Frame::Read { length, remote } => Fields { kind: READ, length, ..at(remote) },
        Frame::FetchAdd { remote, add } => Fields { kind: FETCH_ADD, first: add, ..at(remote) },
        Frame::CompareSwap { remote, expected, desired } => {
            Fields { kind: COMPARE_SWAP, first: expected, second: desired, ..at(remote) }
        }
        Frame::ReadResponse { length } => Fields { kind: READ_RESPONSE, length, ..none },
        Frame::AtomicResponse { old } => Fields { kind: ATOMIC_RESPONSE, first: old, ..none },
        Frame::Acknowledge => Fields { kind: ACKNOWLEDGE, ..none },
        Frame::Refuse { status } => Fields { kind: REFUSE, status: status_code(status), ..none },
    }
}

/// A refusal's status on the wire. Only two are ever sent; anything else is the more general one.
const fn status_code(status: Status) -> u8 {
    match status {
        Status::RemoteAccess => 2,
        _ => 1,
    }
}

/// Reads a header. Total: any bytes give a header or a reason.
///
/// # Errors
/// What is wrong with the bytes.
pub fn parse(bytes: &[u8; HEADER_LENGTH]) -> Result<Header, FrameError> {
    let word = |at: usize| {
        let mut value = [0; 8];
        value.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(value)
    };
    let half = |at: usize| {
        let mut value = [0; 4];
        value.copy_from_slice(&bytes[at..at + 4]);
        u32::from_le_bytes(value)
    };
    let fields = Fields {
        kind: bytes[0],
        flags: bytes[1],
        status: bytes[2],
        key: half(4),
        length: word(8),
        offset: word(16),
        first: word(24),
        second: word(32),
    };
    let frame = frame(&fields)?;
    // Whatever the kind does not use must be zero: what was understood must give the same bytes again.
    if bytes[3] != 0 || self::fields(&frame) != fields {
        return Err(FrameError::Reserved);
    }
    Ok(Header { frame, executed: half(40), receives: half(44) })
}

fn frame(fields: &Fields) -> Result<Frame, FrameError> {
    let remote = RemoteSlice { key: RemoteKey(fields.key), offset: fields.offset };
    let allowed = if matches!(fields.kind, SEND | WRITE) { HAS_IMMEDIATE | ASKS } else { 0 };
    if fields.flags & !allowed != 0 {
        return Err(FrameError::Flags(fields.flags));
    }
    let asks = fields.flags & ASKS != 0;
    let immediate = match fields.flags & HAS_IMMEDIATE {
        0 => None,
        _ => Some(u32::try_from(fields.first).map_err(|_| FrameError::Reserved)?),
    };
    if fields.length > MAX_MESSAGE {
        return Err(FrameError::Length(fields.length));
    }
    let length = fields.length;
    Ok(match fields.kind {
        SEND => Frame::Send { length, immediate, asks },
        WRITE => Frame::Write { length, remote, immediate, asks },
        READ => Frame::Read { length, remote },
        FETCH_ADD => Frame::FetchAdd { remote, add: fields.first },
        COMPARE_SWAP => Frame::CompareSwap { remote, expected: fields.first, desired: fields.second },
        READ_RESPONSE => Frame::ReadResponse { length },
        ATOMIC_RESPONSE => Frame::AtomicResponse { old: fields.first },
        ACKNOWLEDGE => Frame::Acknowledge,
        REFUSE => Frame::Refuse {
            status: match fields.status {
                1 => Status::RemoteInvalidRequest,
                2 => Status::RemoteAccess,
                other => return Err(FrameError::Status(other)),
            },
        },
        other => return Err(FrameError::Kind(other)),
    })
}
