//! What engines of other nodes send over queue pairs.

use ringway_engine::{failure_comes_back, header_comes_back};
use ringway_types::{DataType, Operation, Reduction};

use crate::Reader;

/// A header of 64 bytes.
pub fn header(bytes: &[u8]) {
    assert!(header_comes_back(&Reader(bytes).bytes()));
}

/// A header of a kind with these bytes of the call behind it and a word that counts up in every field.
fn header_of(kind: u8, call: [u8; 3]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(call);
    bytes.extend((1..=60).map(|n: u8| if n.is_multiple_of(4) { n } else { 0 }));
    bytes
}

/// Every kind of message with a call, without one, with one that means nothing.
#[must_use]
pub fn header_samples() -> Vec<Vec<u8>> {
    let allreduce = [Operation::Allreduce.code(), DataType::F32.code(), Reduction::Sum.code()];
    let broadcast = [Operation::Broadcast.code(), DataType::U8.code(), u8::MAX];
    let mut samples: Vec<_> = (0..=16).map(|kind| header_of(kind, allreduce)).collect();
    samples.extend([1, 2, 3, 9].map(|kind| header_of(kind, broadcast)));
    samples.extend([header_of(1, [0; 3]), header_of(9, [0xff; 3]), vec![0xff; 64], vec![0; 64], Vec::new()]);
    samples
}

/// A failure of 80 bytes.
pub fn failure(bytes: &[u8]) {
    assert!(failure_comes_back(&Reader(bytes).bytes()));
}

/// Every kind of failure, with details that are known and details that are not.
#[must_use]
pub fn failure_samples() -> Vec<Vec<u8>> {
    let call = [Operation::Allreduce.code(), DataType::F32.code(), Reduction::Sum.code(), 0];
    let of = |kind: u8, small: u8| {
        let mut bytes = vec![kind, small, 0, 0];
        bytes.extend((1..=28).map(|n: u8| if n % 4 == 1 { n } else { 0 }));
        for _ in 0..2 {
            bytes.extend(call);
            bytes.extend([1, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    };
    let mut samples: Vec<_> = (0..=9).map(|kind| of(kind, 0)).collect();
    samples.extend([of(4, 2), of(4, 3), of(5, 3), of(5, 4), vec![0xff; 80], Vec::new()]);
    samples
}
