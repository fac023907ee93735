//! What peers of the shm device write into their rings.

use ringway_shm::entry::{Entry, INLINE_BYTES, Kind, MAX_MESSAGE, Raw, Source};
use ringway_verbs::{RemoteKey, RemoteSlice, Status};

use crate::Reader;

/// An entry: what is understood gives the same entry again, and never more bytes than a message or a piece may have.
pub fn entry(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let mut raw: Raw = Default::default();
    raw.fill_with(|| u64::from_le_bytes(reader.bytes()));
    if let Some(entry) = Entry::parse(&raw) {
        assert_eq!(Entry::parse(&entry.emit()), Some(entry));
        assert!(u64::from(entry.total) <= MAX_MESSAGE);
        match entry.source {
            Source::Inline { length, .. } => assert!(usize::from(length) <= INLINE_BYTES),
            Source::Staged { length, .. } => assert_eq!(entry.source.length(), u64::from(length)),
            Source::Shared { length, .. } => assert!(length <= MAX_MESSAGE),
        }
    }
}

/// Every kind from every place, the longest message, one that is longer, a kind and a place that there are not.
#[must_use]
pub fn entry_samples() -> Vec<Vec<u8>> {
    let sources = [
        Source::inline(&[0x5a; INLINE_BYTES], INLINE_BYTES),
        Source::Staged { offset: u32::MAX, length: 4096 },
        Source::Shared { key: 7, offset: u64::MAX, length: MAX_MESSAGE },
    ];
    let remote = RemoteSlice { key: RemoteKey(7), offset: 4096 };
    let of = |kind| {
        sources.map(|source| Entry { source, total: 1 << 30, immediate: Some(3), remote, ..Entry::new(kind) })
    };
    let requests = [Kind::Send, Kind::Write, Kind::More].map(of).concat();
    let others = [Kind::Read, Kind::FetchAdd, Kind::CompareSwap, Kind::Data, Kind::Word].map(Entry::new);
    let refused = [Status::RemoteAccess, Status::RemoteInvalidRequest].map(Entry::refused);
    let entries = requests.into_iter().chain(others).chain(refused).map(|entry| entry.emit());
    let changed = |word: usize, value: u64| {
        let mut raw = Entry::new(Kind::Send).emit();
        raw.iter_mut().skip(word).take(1).for_each(|word| *word = value);
        raw
    };
    // A message that is too long, then a tail with an unknown kind, an unknown place, and too many bytes in the entry.
    let wrong = [
        (0, (1 << 30) + 1),
        (7, 1 << 56 | 10 << 32),
        (7, 9 << 56 | 1 << 32),
        (7, 1 << 56 | 33 << 48 | 1 << 32),
    ];
    entries
        .chain(wrong.map(|(word, value)| changed(word, value)))
        .map(|raw| raw.iter().flat_map(|word| word.to_le_bytes()).collect())
        .chain([Vec::new()])
        .collect()
}
