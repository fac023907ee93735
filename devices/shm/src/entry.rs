//! What stands in the rings: a cache line for a request, a response, or a further piece of either's bytes.
//!
//! Words: 0 = the message's length, and its immediate above; 1 = the remote key, and above it how many of the reader's requests
//! were executed; 2 = the remote offset; 3 to 6 = bytes, or where they are; 7 = the ring's phase, and above it kind, flags,
//! how many bytes stand in words 3 to 6, and what those words are.

use ringway_verbs::{RemoteKey, RemoteSlice, Status};

/// Words of an entry.
pub const WORDS: usize = 8;
/// An entry as it stands in a ring.
pub type Raw = [u64; WORDS];

/// Words of an entry that carry bytes.
const INLINE_WORDS: usize = 4;
/// Bytes that fit into an entry.
pub const INLINE_BYTES: usize = INLINE_WORDS * 8;
/// The longest message, in bytes.
pub const MAX_MESSAGE: u64 = 1 << 30;

const LAST: u8 = 1;
const IMMEDIATE: u8 = 2;
const ASKS: u8 = 4;

const INLINE: u8 = 1;
const STAGED: u8 = 2;
const SHARED: u8 = 3;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A SEND.
    Send,
    /// A WRITE.
    Write,
    /// Further bytes of the message before it.
    More,
    /// A READ.
    Read,
    /// A FETCH_ADD.
    FetchAdd,
    /// A CMP_SWAP.
    CompareSwap,
    /// Bytes of a READ's response.
    Data,
    /// An atomic's response.
    Word,
    /// The request that is next was refused, and nothing comes after this.
    Refused,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Send,
        Self::Write,
        Self::More,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::Data,
        Self::Word,
        Self::Refused,
    ];

    fn code(self) -> u8 {
        Self::ALL.iter().position(|kind| *kind == self).map_or(0, |index| index as u8 + 1)
    }

    fn of(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code.checked_sub(1)?)).copied()
    }
}

/// Where an entry's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the entry.
    Inline {
        /// The words that carry them, the first byte in the lowest place.
        words: [u64; INLINE_WORDS],
        /// How many bytes.
        length: u8,
    },
    /// In the staging memory that belongs to the ring.
    Staged {
        /// Where they begin there.
        offset: u32,
        /// How many bytes.
        length: u32,
    },
    /// In a region of the sender, which the receiver has mapped.
    Shared {
        /// The region's key, as it was shared.
        key: u32,
        /// Where they begin in it.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
}

impl Source {
    /// No bytes.
    pub const EMPTY: Self = Self::Inline { words: [0; INLINE_WORDS], length: 0 };

    /// The first bytes of these, so many.
    #[inline]
    pub fn inline(bytes: &[u8; INLINE_BYTES], length: usize) -> Self {
        let (eights, _) = bytes.as_chunks();
        let mut words = [0; INLINE_WORDS];
        for (word, eight) in words.iter_mut().zip(eights) {
            *word = u64::from_le_bytes(*eight);
        }
        Self::Inline { words, length: length.min(INLINE_BYTES) as u8 }
    }

    /// How many bytes.
    pub fn length(&self) -> u64 {
        match *self {
            Self::Inline { length, .. } => length.into(),
            Self::Staged { length, .. } => length.into(),
            Self::Shared { length, .. } => length,
        }
    }
}

/// The bytes of inline words.
#[inline]
pub fn bytes_of(words: &[u64; INLINE_WORDS]) -> [u8; INLINE_BYTES] {
    let mut bytes = [0; INLINE_BYTES];
    for (chunk, word) in bytes.chunks_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// An entry, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// The whole message's bytes; of [`Kind::Refused`] the reason.
    pub total: u32,
    /// The immediate of a SEND or WRITE.
    pub immediate: Option<u32>,
    /// The memory of the reader's that a WRITE, READ or atomic is about.
    pub remote: RemoteSlice,
    /// Where its bytes are.
    pub source: Source,
    /// No further piece follows.
    pub last: bool,
    /// The writer wants to know soon that it was executed.
    pub asks: bool,
    /// How many of the reader's requests the writer had executed: the lower half of that number.
    pub executed: u32,
}

impl Entry {
    /// An entry of a kind, with nothing else said.
    pub const fn new(kind: Kind) -> Self {
        let remote = RemoteSlice { key: RemoteKey(0), offset: 0 };
        let source = Source::EMPTY;
        Self { kind, total: 0, immediate: None, remote, source, last: true, asks: false, executed: 0 }
    }

    /// That the next request was refused.
    pub fn refused(status: Status) -> Self {
        let code = if status == Status::RemoteAccess { 1 } else { 0 };
        Self { total: code, ..Self::new(Kind::Refused) }
    }

    /// Why a request was refused.
    pub const fn refusal(&self) -> Status {
        if self.total == 1 { Status::RemoteAccess } else { Status::RemoteInvalidRequest }
    }

    /// The entry, all but the phase.
    #[inline]
    pub fn emit(&self) -> Raw {
        let (tag, inline, places) = match self.source {
            Source::Inline { words, length } => (INLINE, length, words),
            Source::Staged { offset, length } => (STAGED, 0, [offset.into(), length.into(), 0, 0]),
            Source::Shared { key, offset, length } => (SHARED, 0, [key.into(), offset, length, 0]),
        };
        let said = [(self.last, LAST), (self.immediate.is_some(), IMMEDIATE), (self.asks, ASKS)];
        let flags = said.iter().fold(0, |flags, (is, flag)| if *is { flags | flag } else { flags });
        let tail = u32::from_le_bytes([self.kind.code(), flags, inline, tag]);
        let [a, b, c, d] = places;
        let first = u64::from(self.total) | u64::from(self.immediate.unwrap_or(0)) << 32;
        let second = u64::from(self.remote.key.0) | u64::from(self.executed) << 32;
        [first, second, self.remote.offset, a, b, c, d, u64::from(tail) << 32]
    }

    /// Reads an entry; `None` when it means nothing. Where bytes are is not checked against any memory.
    #[inline]
    pub fn parse(raw: &Raw) -> Option<Self> {
        let [first, second, offset, a, b, c, d, tail] = *raw;
        let [kind, flags, inline, tag] = ((tail >> 32) as u32).to_le_bytes();
        let source = match tag {
            INLINE if usize::from(inline) <= INLINE_BYTES => {
                Source::Inline { words: [a, b, c, d], length: inline }
            }
            STAGED => Source::Staged { offset: u32::try_from(a).ok()?, length: u32::try_from(b).ok()? },
            SHARED if c <= MAX_MESSAGE => {
                Source::Shared { key: u32::try_from(a).ok()?, offset: b, length: c }
            }
            _ => return None,
        };
        let total = first as u32;
        (u64::from(total) <= MAX_MESSAGE).then_some(Self {
            kind: Kind::of(kind)?,
            total,
            immediate: (flags & IMMEDIATE != 0).then_some((first >> 32) as u32),
            remote: RemoteSlice { key: RemoteKey(second as u32), offset },
            source,
            last: flags & LAST != 0,
            asks: flags & ASKS != 0,
            executed: (second >> 32) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source() -> impl Strategy<Value = Source> {
        prop_oneof![
            (any::<[u8; INLINE_BYTES]>(), 0..=INLINE_BYTES)
                .prop_map(|(bytes, length)| Source::inline(&bytes, length)),
            (any::<u32>(), any::<u32>()).prop_map(|(offset, length)| Source::Staged { offset, length }),
            (any::<u32>(), any::<u64>(), 0..=MAX_MESSAGE).prop_map(|(key, offset, length)| Source::Shared {
                key,
                offset,
                length
            }),
        ]
    }

    proptest! {
        #[test]
        fn entries_come_back(
            kind in prop::sample::select(Kind::ALL.to_vec()),
            total in 0..=1_u32 << 30,
            immediate in any::<Option<u32>>(),
            (key, offset) in any::<(u32, u64)>(),
            source in source(),
            (last, asks, executed) in any::<(bool, bool, u32)>(),
        ) {
            let remote = RemoteSlice { key: RemoteKey(key), offset };
            let entry = Entry { kind, total, immediate, remote, source, last, asks, executed };
            prop_assert_eq!(Entry::parse(&entry.emit()), Some(entry));
        }

        #[test]
        fn nothing_that_stands_in_a_ring_is_a_panic(raw in any::<Raw>()) {
            if let Some(entry) = Entry::parse(&raw) {
                prop_assert!(entry.source.length() <= u64::from(u32::MAX));
            }
        }
    }
}
