//! What peers of the tcp device send: the first bytes of a data connection, then frames.

use ringway_tcp::{
    DATA_MAGIC, Preface,
    frame::{self, Frame, HEADER_LENGTH, Header, MAX_MESSAGE},
};
use ringway_verbs::{RemoteKey, RemoteSlice, Status};

use crate::Reader;

/// A frame's header: what is understood gives the same bytes again, and never more payload than a message may have.
pub fn header(bytes: &[u8]) {
    let bytes: [u8; HEADER_LENGTH] = Reader(bytes).bytes();
    if let Ok(header) = frame::parse(&bytes) {
        assert_eq!(frame::encode(&header), bytes);
        assert!(header.frame.payload() <= MAX_MESSAGE);
    }
}

/// Every frame, the longest message, one that is longer, fields set that the kind does not use.
#[must_use]
pub fn header_samples() -> Vec<Vec<u8>> {
    let remote = RemoteSlice { key: RemoteKey(7), offset: 4096 };
    let frames = [
        Frame::Send { length: 8, immediate: None, asks: true },
        Frame::Send { length: MAX_MESSAGE, immediate: Some(u32::MAX), asks: true },
        Frame::Write { length: 0, remote, immediate: Some(0), asks: true },
        Frame::Write { length: MAX_MESSAGE + 1, remote, immediate: None, asks: true },
        Frame::Read { length: 64, remote },
        Frame::FetchAdd { remote, add: u64::MAX },
        Frame::CompareSwap { remote, expected: 1, desired: 2 },
        Frame::ReadResponse { length: 64 },
        Frame::AtomicResponse { old: 3 },
        Frame::Acknowledge,
        Frame::Refuse { status: Status::RemoteAccess },
        Frame::Refuse { status: Status::RemoteInvalidRequest },
    ];
    let encoded =
        frames.map(|frame| frame::encode(&Header { frame, executed: 5, receives: u32::MAX }).to_vec());
    let spoiled = encoded.clone().map(|mut bytes| {
        bytes.truncate(HEADER_LENGTH - 16);
        bytes.push(1);
        bytes
    });
    encoded.into_iter().chain(spoiled).chain([vec![0xff; HEADER_LENGTH], Vec::new()]).collect()
}

/// A data connection's first bytes: only exactly a preface of this version is one.
pub fn data_preface(bytes: &[u8]) {
    let bytes = Reader(bytes).bytes();
    if let Some(preface) = Preface::parse(&bytes) {
        assert_eq!(preface.encode(), bytes);
        assert!(preface.connection < preface.connections);
    }
}

/// A preface, one of another version, of a connection that there is not, of too many, one with something behind it, another
/// protocol.
#[must_use]
pub fn data_preface_samples() -> Vec<Vec<u8>> {
    let good = [&DATA_MAGIC[..], &[2, 2, 3, 0, 0, 0, 0, 0], &[0x5a; 32], &[0; 16]].concat();
    let changed = |at: usize| {
        let mut bytes = good.clone();
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 0x0d;
        }
        bytes
    };
    vec![
        good.clone(),
        changed(8),
        changed(9),
        changed(63),
        changed(0),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        Vec::new(),
    ]
}
