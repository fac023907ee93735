//! What nodes say to each other: a fixed header of 64 bytes, little-endian, perhaps followed by a payload.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind; of a grant it is in the lower four bits, and above them stands the channel to write over |
//! | 1..4 | operation, datatype, reduction (255: none) of the call |
//! | 4..8 | digest of the communicator's name |
//! | 8..16 | sequence: which collective, counted from 1 |
//! | 16..24 | chunk; the tag of a point-to-point message |
//! | 24..32 | length of the message in bytes |
//! | 32..40 | count of the call |
//! | 40..48 | offset in the receiver's memory; credits given back |
//! | 16..48 | in an answer to a sign of life: the ranks that have not come, a bit each |
//! | 48..52 | tag within the chunk; sending rank |
//! | 52..56 | root of the call; receiving rank |
//! | 56..60 | remote key |
//! | 60..64 | slot, or immediate to answer with; in a sign of life the rank that called first |

use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::{RemoteKey, RemoteSlice};

use crate::{Failure, RankFailure, Signature};

/// Bytes of a header.
pub(crate) const HEADER: usize = 64;
/// Bytes of the failure that follows an abort's header.
pub(crate) const FAILURE: usize = 80;
/// The kinds of grants, and the bits in which they stand.
const GRANT: u8 = 3;
const POINT_GRANT: u8 = 6;
const KIND_BITS: u32 = 4;
const KIND: u8 = (1 << KIND_BITS) - 1;
/// Kinds beyond four bits: none that a grant over some channel has.
const LENT: u8 = 16;
const EAGER_WRITE: u8 = 17;

/// Names one message of a collective between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) sequence: u64,
    pub(crate) chunk: u64,
    pub(crate) tag: u32,
    pub(crate) signature: Signature,
}

/// Names a point-to-point message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) tag: u64,
    pub(crate) length: u64,
}

/// Receive buffers given back to the sender of eager messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Credits {
    pub(crate) collective: u16,
    pub(crate) point: u16,
    /// Places for eager writes, a bit each.
    pub(crate) places: u16,
}

/// Where a long message may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) target: RemoteSlice,
    /// To answer with.
    pub(crate) immediate: u32,
    /// Over which channel, up to 15: the target's key is the one of its device.
    pub(crate) channel: u8,
}

/// The ranks of a node that have not called a collective, so that others can name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) sequence: u64,
    /// One bit for each of the node's ranks, in ascending order; a node's further ranks are not told.
    pub(crate) locals: [u64; 4],
}

impl Absent {
    /// Those local ranks of which `is_absent` says so.
    pub(crate) fn of(sequence: u64, ranks: u32, is_absent: impl Fn(u32) -> bool) -> Self {
        let mut locals = [0; 4];
        for (word, first) in locals.iter_mut().zip((0_u32..).step_by(64)) {
            *word = (first..ranks.min(first + 64))
                .filter(|local| is_absent(*local))
                .fold(0, |bits, local| bits | (1_u64 << (local - first)));
        }
        Self { sequence, locals }
    }

    /// Whether the local rank is one of them.
    pub(crate) fn has(&self, local: usize) -> bool {
        self.locals.get(local / 64).is_some_and(|word| (word >> (local % 64)) & 1 == 1)
    }
}

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// A collective's bytes follow.
    Data { exchange: Exchange, length: u64, credits: Credits },
    /// A collective's bytes wait for a grant.
    Announce { exchange: Exchange, length: u64 },
    /// Where a collective's bytes may be written.
    Grant { exchange: Exchange, length: u64, granted: Granted },
    /// A point-to-point message follows.
    PointData { envelope: Envelope, credits: Credits },
    /// A point-to-point message waits for a grant that names `slot`.
    PointAnnounce { envelope: Envelope, slot: u32 },
    /// Where a point-to-point message may be written, or the next part of one. `last`: that is all of it, else more grants follow.
    PointGrant { slot: u32, length: u64, last: bool, granted: Granted },
    /// Nothing had to be written for a grant.
    Written { immediate: u32 },
    /// Receive buffers are free again.
    Credit { credits: Credits },
    /// Are you there? And the collective that is waited for, if there is one, with the rank that called it first.
    Ping { sequence: u64, signature: Option<Signature>, rank: u32 },
    /// Yes, and who is missing in the collective that was asked about.
    Pong { absent: Absent },
    /// A rank has left after that many collectives; `last` when it was the node's last.
    Left { rank: u32, sequence: u64, last: bool },
    /// The communicator has failed; the failure follows.
    Abort,
    /// Answer at once, with room of so many bytes, for this channel, if there are any: a measurement.
    Probe { length: u64, channel: u8 },
    /// The answer, and the room to write into if some was asked for and there is some.
    Probed { room: Option<RemoteSlice> },
    /// Where a collective's bytes may be written without a grant, if anywhere.
    Lent { room: Option<RemoteSlice> },
    /// A collective's bytes follow, written there.
    EagerWrite { exchange: Exchange, length: u64, credits: Credits },
}

#[derive(Debug, Clone, Copy, Default)]
struct Raw {
    kind: u8,
    call: [u8; 3],
    check: u32,
    sequence: u64,
    chunk: u64,
    length: u64,
    count: u64,
    offset: u64,
    tag: u32,
    root: u32,
    key: u32,
    slot: u32,
}

impl Message {
    /// The header's bytes. `check` is the digest of the communicator's name.
    pub(crate) fn emit(&self, check: u32) -> [u8; HEADER] {
        let mut raw = Raw { check, ..Raw::default() };
        match *self {
            Self::Data { exchange, length, credits } => {
                raw.name(1, exchange);
                (raw.length, raw.offset) = (length, credits.pack());
            }
            Self::Announce { exchange, length } => {
                raw.name(2, exchange);
                raw.length = length;
            }
            Self::Grant { exchange, length, granted } => {
                raw.name(GRANT, exchange);
                raw.grant(length, granted);
            }
            Self::PointData { envelope, credits } => {
                raw.address(4, envelope);
                raw.offset = credits.pack();
            }
            Self::PointAnnounce { envelope, slot } => {
                raw.address(5, envelope);
                raw.slot = slot;
            }
            Self::PointGrant { slot, length, last, granted } => {
                (raw.kind, raw.tag, raw.sequence) = (POINT_GRANT, slot, u64::from(last));
                raw.grant(length, granted);
            }
            Self::Written { immediate } => (raw.kind, raw.slot) = (7, immediate),
            Self::Credit { credits } => (raw.kind, raw.offset) = (8, credits.pack()),
            Self::Ping { sequence, signature, rank } => {
                (raw.kind, raw.sequence, raw.slot) = (9, sequence, rank);
                if let Some(signature) = signature {
                    raw.tag = 1;
                    raw.sign(signature);
                }
            }
            Self::Pong { absent } => {
                (raw.kind, raw.sequence) = (10, absent.sequence);
                [raw.chunk, raw.length, raw.count, raw.offset] = absent.locals;
            }
            Self::Left { rank, sequence, last } => {
                (raw.kind, raw.sequence, raw.tag, raw.slot) = (11, sequence, rank, u32::from(last));
            }
            Self::Abort => raw.kind = 12,
            Self::Probe { length, channel } => {
                (raw.kind, raw.length, raw.slot) = (13, length, channel.into());
            }
            Self::Probed { room } => raw.room(14, room),
            Self::Lent { room } => raw.room(LENT, room),
            Self::EagerWrite { exchange, length, credits } => {
                raw.name(EAGER_WRITE, exchange);
                (raw.length, raw.offset) = (length, credits.pack());
            }
        }
        raw.emit()
    }

    /// The message, or `None` when the bytes are none of this communicator's.
    pub(crate) fn parse(bytes: &[u8; HEADER], check: u32) -> Option<Self> {
        let raw = Raw::parse(bytes);
        if raw.check != check {
            return None;
        }
        let target = RemoteSlice { key: RemoteKey(raw.key), offset: raw.offset };
        let granted = Granted { target, immediate: raw.slot, channel: raw.kind >> KIND_BITS };
        let credits = Credits::unpack(raw.offset);
        Some(match raw.kind {
            1 => Self::Data { exchange: raw.exchange()?, length: raw.length, credits },
            2 => Self::Announce { exchange: raw.exchange()?, length: raw.length },
            4 => Self::PointData { envelope: raw.envelope(), credits },
            5 => Self::PointAnnounce { envelope: raw.envelope(), slot: raw.slot },
            7 => Self::Written { immediate: raw.slot },
            8 => Self::Credit { credits },
            9 => Self::Ping {
                sequence: raw.sequence,
                signature: if raw.tag == 1 { Some(raw.signature()?) } else { None },
                rank: raw.slot,
            },
            10 => {
                let locals = [raw.chunk, raw.length, raw.count, raw.offset];
                Self::Pong { absent: Absent { sequence: raw.sequence, locals } }
            }
            11 => Self::Left { rank: raw.tag, sequence: raw.sequence, last: raw.slot == 1 },
            12 => Self::Abort,
            13 => Self::Probe { length: raw.length, channel: u8::try_from(raw.slot).ok()? },
            14 => Self::Probed { room: (raw.slot == 1).then_some(target) },
            LENT => Self::Lent { room: (raw.slot == 1).then_some(target) },
            EAGER_WRITE => Self::EagerWrite { exchange: raw.exchange()?, length: raw.length, credits },
            kind => match kind & KIND {
                GRANT => Self::Grant { exchange: raw.exchange()?, length: raw.length, granted },
                POINT_GRANT => {
                    let last = raw.sequence != 0;
                    Self::PointGrant { slot: raw.tag, length: raw.length, last, granted }
                }
                _ => return None,
            },
        })
    }
}

impl Credits {
    const fn pack(self) -> u64 {
        (self.collective as u64) | ((self.point as u64) << 16) | ((self.places as u64) << 32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "each field is cut to its 16 bits")]
    const fn unpack(packed: u64) -> Self {
        Self { collective: packed as u16, point: (packed >> 16) as u16, places: (packed >> 32) as u16 }
    }
}

impl Raw {
    fn name(&mut self, kind: u8, exchange: Exchange) {
        self.kind = kind;
        (self.sequence, self.chunk, self.tag) = (exchange.sequence, exchange.chunk, exchange.tag);
        self.sign(exchange.signature);
    }

    fn address(&mut self, kind: u8, envelope: Envelope) {
        (self.kind, self.chunk, self.length) = (kind, envelope.tag, envelope.length);
        (self.tag, self.root) = (envelope.source, envelope.destination);
    }

    fn target(&mut self, length: u64, target: RemoteSlice, immediate: u32) {
        (self.length, self.key, self.offset, self.slot) = (length, target.key.0, target.offset, immediate);
    }

    fn room(&mut self, kind: u8, room: Option<RemoteSlice>) {
        self.kind = kind;
        if let Some(room) = room {
            self.target(0, room, 1);
        }
    }

    fn grant(&mut self, length: u64, granted: Granted) {
        self.target(length, granted.target, granted.immediate);
        self.kind |= granted.channel << KIND_BITS;
    }

    fn sign(&mut self, signature: Signature) {
        self.call = [
            signature.operation.code(),
            signature.datatype.code(),
            signature.reduction.map_or(u8::MAX, Reduction::code),
        ];
        (self.root, self.count) = (signature.root, signature.count);
    }

    fn signature(&self) -> Option<Signature> {
        signature(self.call, self.root, self.count)
    }

    fn exchange(&self) -> Option<Exchange> {
        Some(Exchange {
            sequence: self.sequence,
            chunk: self.chunk,
            tag: self.tag,
            signature: self.signature()?,
        })
    }

    const fn envelope(&self) -> Envelope {
        Envelope { source: self.tag, destination: self.root, tag: self.chunk, length: self.length }
    }

    fn emit(&self) -> [u8; HEADER] {
        let mut writer = Writer { bytes: [0; HEADER], at: 0 };
        writer.put(&[self.kind]);
        writer.put(&self.call);
        writer.put(&self.check.to_le_bytes());
        for word in [self.sequence, self.chunk, self.length, self.count, self.offset] {
            writer.put(&word.to_le_bytes());
        }
        for word in [self.tag, self.root, self.key, self.slot] {
            writer.put(&word.to_le_bytes());
        }
        writer.bytes
    }

    fn parse(bytes: &[u8; HEADER]) -> Self {
        let mut reader = Reader { bytes, at: 0 };
        let [kind, a, b, c] = reader.take();
        Self {
            kind,
            call: [a, b, c],
            check: reader.u32(),
            sequence: reader.u64(),
            chunk: reader.u64(),
            length: reader.u64(),
            count: reader.u64(),
            offset: reader.u64(),
            tag: reader.u32(),
            root: reader.u32(),
            key: reader.u32(),
            slot: reader.u32(),
        }
    }
}

fn signature(call: [u8; 3], root: u32, count: u64) -> Option<Signature> {
    let [operation, datatype, reduction] = call;
    Some(Signature {
        operation: Operation::from_code(operation)?,
        datatype: DataType::from_code(datatype)?,
        reduction: match reduction {
            u8::MAX => None,
            code => Some(Reduction::from_code(code)?),
        },
        root,
        count,
    })
}

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn put(&mut self, from: &[u8]) {
        let end = self.at + from.len();
        if let Some(into) = self.bytes.get_mut(self.at..end) {
            into.copy_from_slice(from);
        }
        self.at = end;
    }

    fn call(&mut self, call: &Signature) {
        self.put(&[
            call.operation.code(),
            call.datatype.code(),
            call.reduction.map_or(u8::MAX, Reduction::code),
            0,
        ]);
        self.put(&call.root.to_le_bytes());
        self.put(&call.count.to_le_bytes());
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        if let Some(from) = self.bytes.get(self.at..self.at + N) {
            out.copy_from_slice(from);
        }
        self.at += N;
        out
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn call(&mut self) -> Option<Signature> {
        let [a, b, c, _] = self.take();
        let root = self.u32();
        signature([a, b, c], root, self.u64())
    }
}

/// Reasons a node is lost, by their code on the wire; what a device says in words of its own is [`BROKE`] to others.
pub(crate) const REASONS: [&str; 7] = [
    "another node lost it",
    "its connection broke",
    "it gave no sign of life",
    "it sent something that is no message of this protocol",
    "its network device is broken, or was removed",
    "its network device says that a queue pair has failed",
    "its GPU has failed, and so has all that was under way on it",
];

/// The place of "its connection broke".
const BROKE: usize = 1;

/// What is said of a node that sent nonsense.
pub(crate) const NONSENSE: &str = REASONS[3];
/// What is said of the node whose own device ended a connection.
pub(crate) const DEVICE_LOST: &str = REASONS[4];
pub(crate) const QUEUE_PAIR_FATAL: &str = REASONS[5];
/// What is said of a node whose accelerator does its work no more.
pub(crate) const ACCELERATOR_FAILED: &str = REASONS[6];

/// A failure as the peers are told it.
pub(crate) fn emit_failure(failure: &Failure) -> [u8; FAILURE] {
    let mut writer = Writer { bytes: [0; FAILURE], at: 0 };
    let mut head = |code: u8, small: u8, rank: u32, other: u32, a: u64, b: u64| {
        writer.put(&[code, small, 0, 0]);
        writer.put(&rank.to_le_bytes());
        writer.put(&other.to_le_bytes());
        writer.put(&[0; 4]);
        writer.put(&a.to_le_bytes());
        writer.put(&b.to_le_bytes());
    };
    match failure {
        Failure::Mismatch { rank, call, other_rank, other, sequence } => {
            head(1, 0, *rank, *other_rank, *sequence, 0);
            writer.call(call);
            writer.call(other);
        }
        Failure::Count { sender, receiver, sent, expected } => {
            head(2, 0, *sender, *receiver, *sent, *expected);
        }
        Failure::Truncated { sent, room } => head(3, 0, 0, 0, *sent, *room),
        Failure::Rank { rank, how } => {
            let how = match how {
                RankFailure::Exited => 0,
                RankFailure::Misbehaved => 1,
                RankFailure::Left => 2,
            };
            head(4, how, *rank, 0, 0, 0);
        }
        Failure::Node { node, rank, reason, rail } => {
            let code = REASONS.iter().position(|known| known == reason).unwrap_or(BROKE);
            let rail = rail.map_or(0, |rail| 1 + u64::from(rail));
            head(5, u8::try_from(code).unwrap_or(0), *rank, *node, rail, 0);
        }
        Failure::TimedOut { call, rank, waited_ms, .. } => {
            head(6, 0, *rank, 0, *waited_ms, 0);
            writer.call(call);
        }
        Failure::Aborted { rank } => head(7, 0, *rank, 0, 0, 0),
        Failure::Memory { needed, available } => head(8, 0, 0, 0, *needed, *available),
    }
    writer.bytes
}

/// What a peer says has failed; `None` when the bytes are no failure.
pub(crate) fn parse_failure(bytes: &[u8; FAILURE]) -> Option<Failure> {
    let mut reader = Reader { bytes, at: 0 };
    let [code, small, _, _] = reader.take();
    let (rank, other_rank, _) = (reader.u32(), reader.u32(), reader.u32());
    let (a, b) = (reader.u64(), reader.u64());
    Some(match code {
        1 => Failure::Mismatch { rank, call: reader.call()?, other_rank, other: reader.call()?, sequence: a },
        2 => Failure::Count { sender: rank, receiver: other_rank, sent: a, expected: b },
        3 => Failure::Truncated { sent: a, room: b },
        4 => {
            let how = match small {
                0 => RankFailure::Exited,
                1 => RankFailure::Misbehaved,
                2 => RankFailure::Left,
                _ => return None,
            };
            Failure::Rank { rank, how }
        }
        5 => Failure::Node {
            node: other_rank,
            rank,
            reason: REASONS.get(usize::from(small)).copied()?,
            rail: a.checked_sub(1).map(u32::try_from).transpose().ok()?,
        },
        6 => Failure::TimedOut { call: reader.call()?, rank, waited_ms: a, others: String::new() },
        7 => Failure::Aborted { rank },
        8 => Failure::Memory { needed: a, available: b },
        _ => return None,
    })
}

/// For the fuzz targets: whether what is understood in a header that a peer sent, if anything, survives being said
/// again.
#[must_use]
pub fn header_comes_back(bytes: &[u8; HEADER]) -> bool {
    let check = Raw::parse(bytes).check;
    Message::parse(bytes, check)
        .is_none_or(|message| Message::parse(&message.emit(check), check) == Some(message))
}

/// For the fuzz targets: the same for the failure behind an abort's header.
#[must_use]
pub fn failure_comes_back(bytes: &[u8; FAILURE]) -> bool {
    parse_failure(bytes)
        .is_none_or(|failure| parse_failure(&emit_failure(&failure)).as_ref() == Some(&failure))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
