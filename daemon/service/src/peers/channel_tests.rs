use proptest::prelude::*;

use super::*;

fn key(byte: u8) -> PresharedKey {
    PresharedKey::new(&ClusterKey::new([byte; 32])).expect("BLAKE2s is there")
}

/// What one side received, and how it ended.
type End = (Vec<Vec<u8>>, Result<(), ChannelError>);

/// Moves bytes both ways, `step` at a time, until nothing moves; returns what each side received and how it ended.
fn converse(a: &mut Channel, b: &mut Channel, step: usize) -> [End; 2] {
    let mut ends: [End; 2] = [(Vec::new(), Ok(())), (Vec::new(), Ok(()))];
    loop {
        let mut moved = false;
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            let bytes: Vec<u8> = from.output().iter().copied().take(step).collect();
            from.written(bytes.len());
            let end = &mut ends[1 - turn];
            if !bytes.is_empty() {
                moved = true;
                if end.1.is_ok() {
                    end.1 = to.received(&bytes, &mut end.0);
                }
            }
        }
        if !moved {
            return ends;
        }
    }
}

#[test]
fn daemons_with_the_same_key_talk() {
    for step in [1, 7, 100_000] {
        let (mut a, mut b) = (Channel::dial(key(1)), Channel::accept(key(1)));
        let [(_, first), (proof, second)] = converse(&mut a, &mut b, step);
        assert_eq!((first, second), (Ok(()), Ok(())));
        assert_eq!(proof, [Vec::<u8>::new()]);
        assert!(a.is_open() && b.is_open());
        let big = vec![7; MESSAGE_BYTES_MAX];
        a.send(&big).expect("the largest message fits");
        b.send(b"back").expect("send");
        let [(at_a, _), (at_b, _)] = converse(&mut a, &mut b, step);
        assert_eq!(at_b, [big]);
        assert_eq!(at_a, [b"back".to_vec()]);
        assert_eq!(a.send(&vec![0; MESSAGE_BYTES_MAX + 1]), Err(ChannelError::Corrupt));
    }
}

#[test]
fn another_key_is_seen_by_both_sides() {
    let (mut a, mut b) = (Channel::dial(key(1)), Channel::accept(key(2)));
    let [(_, first), (_, second)] = converse(&mut a, &mut b, 100);
    assert_eq!((first, second), (Err(ChannelError::OtherKey), Err(ChannelError::OtherKey)));
    assert!(!a.is_open() && !b.is_open());
}

#[test]
fn another_version_is_seen_by_both_sides() {
    let (mut a, mut b) = (Channel::dial_as(key(1), 9), Channel::accept(key(1)));
    let [(_, first), (_, second)] = converse(&mut a, &mut b, 100);
    assert_eq!(first, Err(ChannelError::OtherVersion(VERSION)));
    assert_eq!(second, Err(ChannelError::OtherVersion(9)));
}

#[test]
fn a_replayed_dialer_is_not_taken_for_genuine() {
    let (mut a, mut b) = (Channel::dial(key(1)), Channel::accept(key(1)));
    let mut said = Vec::new();
    let mut messages = Vec::new();
    for _ in 0..2 {
        let bytes = a.output().to_vec();
        said.extend_from_slice(&bytes);
        a.written(bytes.len());
        b.received(&bytes, &mut messages).expect("genuine");
        let bytes = b.output().to_vec();
        b.written(bytes.len());
        a.received(&bytes, &mut messages).expect("genuine");
    }
    said.extend_from_slice(a.output());
    let mut c = Channel::accept(key(1));
    assert_eq!(c.received(&said, &mut Vec::new()), Err(ChannelError::OtherKey));
    assert!(!c.is_open());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rubbish_never_panics_and_never_opens(bytes in proptest::collection::vec(any::<u8>(), 0..400), real in 0_usize..3) {
        for mut channel in [Channel::dial(key(1)), Channel::accept(key(1))] {
            let mut input = preface(VERSION)[..[0, 8, 16][real]].to_vec();
            input.extend_from_slice(&bytes);
            let mut messages = Vec::new();
            let _ = channel.received(&input, &mut messages);
            prop_assert!(!channel.is_open());
            prop_assert!(messages.is_empty());
        }
    }

    #[test]
    fn a_changed_bit_is_noticed(at in any::<proptest::sample::Index>(), bit in 0_u8..8) {
        let (mut a, mut b) = (Channel::dial(key(1)), Channel::accept(key(1)));
        let opened = converse(&mut a, &mut b, 100);
        prop_assert!(opened.iter().all(|(_, result)| result.is_ok()));
        a.send(b"a message").expect("send");
        let mut bytes = a.output().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let mut messages = Vec::new();
        let _ = b.received(&bytes, &mut messages);
        prop_assert!(messages.is_empty());
    }
}
