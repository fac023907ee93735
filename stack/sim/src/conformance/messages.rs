//! What each operation moves.

use ringway_verbs::{Access, CompletionKind, Device, Operation, Status};

use super::fixture::{Fixture, pattern, request};
use super::{Harness, Side};

/// SEND delivers its bytes, its length and its immediate.
pub fn send_delivers_length_and_immediate<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 4096, Access::default());
    let into = fixture.memory(Side::Right, 4096, Access::LOCAL);
    from.put(0, &pattern(1, 4096));
    for (id, immediate) in [(1, None), (2, Some(0)), (3, Some(u32::MAX))] {
        fixture.receive(Side::Right, right, id, into.slice(96, 1000));
        fixture.send(Side::Left, left, &request(id, Operation::Send { immediate }, &[from.slice(0, 1000)]));
        let received = fixture.expect(Side::Right, id, Status::Success);
        assert_eq!(received.kind, CompletionKind::Receive);
        assert_eq!((received.length, received.immediate), (1000, immediate));
        assert_eq!(received.queue_pair, right);
        assert_eq!(into.get(96, 1000), pattern(1, 1000));
        let sent = fixture.expect(Side::Left, id, Status::Success);
        assert_eq!((sent.kind, sent.queue_pair), (CompletionKind::Send, left));
    }
}

/// The rest of the receive's buffer stays as it was.
pub fn send_may_be_shorter_than_the_receive<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 4096, Access::default());
    let into = fixture.memory(Side::Right, 4096, Access::LOCAL);
    into.put(0, &[9; 4096]);
    fixture.receive(Side::Right, right, 1, into.slice(0, 4096));
    fixture.send(Side::Left, left, &request(1, Operation::Send { immediate: None }, &[from.slice(0, 10)]));
    assert_eq!(fixture.expect(Side::Right, 1, Status::Success).length, 10);
    assert_eq!(into.get(0, 10), [0; 10]);
    assert_eq!(into.get(10, 4086), [9; 4086]);
}

/// WRITE is silent at the responder and touches nothing else.
pub fn write_changes_only_its_range<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 8192, Access::default());
    let into = fixture.memory(Side::Right, 8192, Access::ALL);
    from.put(0, &pattern(5, 8192));
    into.put(0, &[0xEE; 8192]);
    let write = Operation::Write { remote: into.remote(100) };
    fixture.send(Side::Left, left, &request(1, write, &[from.slice(7, 5000)]));
    fixture.expect(Side::Left, 1, Status::Success);
    assert_eq!(into.get(0, 100), [0xEE; 100]);
    assert_eq!(into.get(100, 5000), pattern(5, 8192)[7..5007]);
    assert_eq!(into.get(5100, 3092), [0xEE; 3092]);
    fixture.expect_silence();
}

/// WRITE_WITH_IMM completes a receive with the length written and the immediate, and leaves its buffer alone.
pub fn write_with_immediate_delivers_length_and_immediate<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 70_000, Access::default());
    let into = fixture.memory(Side::Right, 70_000, Access::ALL);
    let untouched = fixture.memory(Side::Right, 64, Access::LOCAL);
    for (id, length) in [(1, 8), (2, 0), (3, 69_000)] {
        let bytes = pattern(id, length);
        from.put(0, &bytes);
        fixture.receive(Side::Right, right, id, untouched.slice(0, 64));
        let operation = Operation::WriteWithImmediate { remote: into.remote(1000), immediate: 0xABCD };
        fixture.send(Side::Left, left, &request(id, operation, &[from.slice(0, length)]));
        let received = fixture.expect(Side::Right, id, Status::Success);
        assert_eq!(received.kind, CompletionKind::ReceiveWrite);
        assert_eq!((received.length, received.immediate), (length, Some(0xABCD)));
        assert_eq!(into.get(1000, length), bytes);
        assert_eq!(untouched.get(0, 64), [0; 64]);
        fixture.expect(Side::Left, id, Status::Success);
    }
}

/// READ brings the bytes asked for, silently at the responder.
pub fn read_fetches_remote_bytes<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let sides = [(Side::Left, left), (Side::Right, right)];
    for (side, queue_pair) in sides {
        let local = fixture.memory(side, 100_000, Access::LOCAL);
        let remote = fixture.memory(side.other(), 100_000, Access::ALL);
        remote.put(0, &pattern(11, 100_000));
        for (id, offset, length) in [(1, 0, 1), (2, 13, 300), (3, 1, 99_999)] {
            local.put(0, &[0x55; 100_000]);
            let read = Operation::Read { remote: remote.remote(offset) };
            fixture.send(side, queue_pair, &request(id, read, &[local.slice(0, length)]));
            fixture.expect(side, id, Status::Success);
            let all = pattern(11, 100_000);
            assert!(local.get(0, length).iter().eq(all.iter().skip(offset as usize).take(length as usize)));
            assert!(local.get(length, 100_000 - length).iter().all(|byte| *byte == 0x55));
        }
    }
    fixture.expect_silence();
}

/// Two local segments make one message, in order, for every operation.
pub fn two_segments_are_gathered_and_scattered<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 1 << 18, Access::LOCAL);
    let other = fixture.memory(Side::Left, 1 << 18, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 1 << 18, Access::ALL);
    for (first, second) in [(1, 1), (10, 3000), (5000, 7), (0, 12), (12, 0), (90_000, 80_000)] {
        let length = first + second;
        let bytes = pattern(length, length);
        let (head, tail) = bytes.split_at(first as usize);
        local.put(50, head);
        other.put(9, tail);
        let segments = [local.slice(50, first), other.slice(9, second)];
        fixture.receive(Side::Right, right, 1, remote.slice(0, 1 << 18));
        fixture.send(Side::Left, left, &request(1, Operation::Send { immediate: None }, &segments));
        assert_eq!(fixture.expect(Side::Right, 1, Status::Success).length, length);
        assert_eq!(remote.get(0, length), bytes);
        fixture.expect(Side::Left, 1, Status::Success);

        remote.put(0, &vec![0; length as usize]);
        fixture.send(Side::Left, left, &request(2, Operation::Write { remote: remote.remote(3) }, &segments));
        fixture.expect(Side::Left, 2, Status::Success);
        assert_eq!(remote.get(3, length), bytes);

        local.put(50, &vec![0; first as usize]);
        other.put(9, &vec![0; second as usize]);
        other.put(9 + second, &[0x77]);
        fixture.send(Side::Left, left, &request(3, Operation::Read { remote: remote.remote(3) }, &segments));
        fixture.expect(Side::Left, 3, Status::Success);
        assert_eq!(local.get(50, first), head);
        assert_eq!(other.get(9, second), tail);
        assert_eq!(other.get(9 + second, 1), [0x77]);
    }
}

/// Messages of no bytes complete like others.
pub fn zero_length_messages_work<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let remote = fixture.memory(Side::Right, 64, Access::ALL);
    let operations = [
        (Operation::Send { immediate: Some(4) }, true),
        (Operation::Write { remote: remote.remote(0) }, false),
        (Operation::WriteWithImmediate { remote: remote.remote(64), immediate: 4 }, true),
        (Operation::Read { remote: remote.remote(0) }, false),
    ];
    for (operation, received) in operations {
        if received {
            fixture.receive(Side::Right, right, 5, remote.slice(0, 0));
        }
        fixture.send(Side::Left, left, &request(6, operation, &[]));
        fixture.expect(Side::Left, 6, Status::Success);
        if received {
            let completion = fixture.expect(Side::Right, 5, Status::Success);
            assert_eq!((completion.length, completion.immediate), (0, Some(4)));
        }
    }
    fixture.expect_silence();
}

/// Lengths around powers of two, page and buffer boundaries.
pub fn every_length_around_the_interesting_ones_arrives<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 1 << 18, Access::default());
    let into = fixture.memory(Side::Right, 1 << 18, Access::LOCAL);
    let bytes = pattern(99, 1 << 18);
    from.put(0, &bytes);
    let mut id = 0;
    for power in 0..=17 {
        for length in [(1_u64 << power) - 1, 1 << power, (1 << power) + 1, (1 << power) + 40] {
            id += 1;
            let start = id % 64;
            fixture.receive(Side::Right, right, id, into.slice(start, length));
            let send = request(id, Operation::Send { immediate: None }, &[from.slice(id, length)]);
            fixture.send(Side::Left, left, &send);
            assert_eq!(fixture.expect(Side::Right, id, Status::Success).length, length);
            let expected = &bytes[id as usize..(id + length) as usize];
            assert!(into.get(start, length) == expected, "length {length}");
            fixture.expect(Side::Left, id, Status::Success);
        }
    }
}

/// Atomics give the old value back and change the word once.
pub fn atomics_return_the_old_value_and_update<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    if !fixture.device(Side::Left).capabilities().atomics {
        return;
    }
    let local = fixture.memory(Side::Left, 64, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 64, Access::ALL);
    remote.put(8, &41_u64.to_ne_bytes());
    let word = remote.remote(8);
    let steps = [
        (Operation::FetchAdd { remote: word, add: 1 }, 41, 42),
        (Operation::CompareSwap { remote: word, expected: 42, desired: u64::MAX }, 42, u64::MAX),
        (Operation::CompareSwap { remote: word, expected: 42, desired: 7 }, u64::MAX, u64::MAX),
        (Operation::FetchAdd { remote: word, add: 3 }, u64::MAX, 2),
    ];
    for (operation, old, new) in steps {
        fixture.send(Side::Left, left, &request(1, operation, &[local.slice(16, 8)]));
        fixture.expect(Side::Left, 1, Status::Success);
        assert_eq!(local.get(16, 8), old.to_ne_bytes());
        assert_eq!(remote.get(8, 8), new.to_ne_bytes());
    }
    assert_eq!(remote.get(0, 8), [0; 8]);
}
