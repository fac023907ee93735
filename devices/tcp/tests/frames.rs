//! The header parser: total, strict, and the inverse of the encoder.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use ringway_tcp::frame::{Frame, FrameError, HEADER_LENGTH, Header, MAX_MESSAGE, encode, parse};
use ringway_verbs::{RemoteKey, RemoteSlice, Status};

fn remote() -> impl Strategy<Value = RemoteSlice> {
    (any::<u32>(), any::<u64>()).prop_map(|(key, offset)| RemoteSlice { key: RemoteKey(key), offset })
}

fn frame() -> impl Strategy<Value = Frame> {
    let length = 0..=MAX_MESSAGE;
    prop_oneof![
        (length.clone(), any::<Option<u32>>(), any::<bool>())
            .prop_map(|(length, immediate, asks)| Frame::Send { length, immediate, asks }),
        (length.clone(), remote(), any::<Option<u32>>(), any::<bool>())
            .prop_map(|(length, remote, immediate, asks)| Frame::Write { length, remote, immediate, asks }),
        (length.clone(), remote()).prop_map(|(length, remote)| Frame::Read { length, remote }),
        (remote(), any::<u64>()).prop_map(|(remote, add)| Frame::FetchAdd { remote, add }),
        (remote(), any::<u64>(), any::<u64>()).prop_map(|(remote, expected, desired)| Frame::CompareSwap {
            remote,
            expected,
            desired
        }),
        length.prop_map(|length| Frame::ReadResponse { length }),
        any::<u64>().prop_map(|old| Frame::AtomicResponse { old }),
        Just(Frame::Acknowledge),
        prop_oneof![Just(Status::RemoteAccess), Just(Status::RemoteInvalidRequest)]
            .prop_map(|status| Frame::Refuse { status }),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_parsed(frame in frame(), executed: u32, receives: u32) {
        let header = Header { frame, executed, receives };
        prop_assert_eq!(parse(&encode(&header)), Ok(header));
    }

    #[test]
    fn what_is_parsed_gives_the_same_bytes(mut bytes: [u8; HEADER_LENGTH], kind in 0_u8..12, sparse: bool) {
        bytes[0] = kind;
        if sparse {
            bytes[1..4].fill(0);
            bytes[12..16].fill(0);
            bytes[28..40].fill(0);
        }
        if let Ok(header) = parse(&bytes) {
            prop_assert_eq!(encode(&header), bytes);
            prop_assert!(header.frame.payload() <= MAX_MESSAGE);
        }
    }

    #[test]
    fn one_changed_byte_never_goes_unnoticed(frame in frame(), at in 0..HEADER_LENGTH, flip in 1_u8..) {
        let header = Header { frame, executed: 1, receives: 2 };
        let mut bytes = encode(&header);
        bytes[at] ^= flip;
        prop_assert_ne!(parse(&bytes), Ok(header));
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let good = encode(&Header {
        frame: Frame::Send { length: 5, immediate: None, asks: false },
        executed: 0,
        receives: 0,
    });
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        parse(&bytes)
    };
    assert_eq!(with(0, 0), Err(FrameError::Kind(0)));
    assert_eq!(with(0, 200), Err(FrameError::Kind(200)));
    assert_eq!(with(1, 4), Err(FrameError::Flags(4)));
    assert_eq!(with(3, 1), Err(FrameError::Reserved));
    assert_eq!(with(4, 1), Err(FrameError::Reserved), "a SEND has no key");
    assert_eq!(with(15, 0xFF), Err(FrameError::Length(5 | 0xFF << 56)));
    assert_eq!(with(0, 9), Err(FrameError::Status(0)), "a refusal has a status");
}
