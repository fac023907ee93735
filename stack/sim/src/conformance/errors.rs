//! Failures: who learns what, in which order, and what stays untouched.

use ringway_verbs::{
    Access, Device, Operation, QueuePairNumber, QueuePairState, RemoteKey, RemoteSlice, Status,
};

use super::fixture::{Fixture, request};
use super::{Harness, Side};

const SEND: Operation = Operation::Send { immediate: None };

/// The receiver sees `LocalLength`, the sender `RemoteInvalidRequest`, and both queue pairs fail.
pub fn a_send_longer_than_the_receive_fails_both_sides<H: Harness>() {
    for length in [101, 100_000] {
        let (mut fixture, [left, right]) = Fixture::<H>::connected();
        let from = fixture.memory(Side::Left, 100_000, Access::LOCAL);
        let into = fixture.memory(Side::Right, 4096, Access::LOCAL);
        from.put(0, &[1; 4096]);
        fixture.receive(Side::Right, right, 1, into.slice(0, 100));
        fixture.receive(Side::Right, right, 2, into.slice(0, 100));
        fixture.send(Side::Left, left, &request(3, SEND, &[from.slice(0, length)]));
        fixture.expect(Side::Right, 1, Status::LocalLength);
        fixture.expect(Side::Right, 2, Status::Flushed);
        fixture.expect(Side::Left, 3, Status::RemoteInvalidRequest);
        assert_eq!(into.get(100, 3996), [0; 3996]);
        assert_eq!(fixture.state(Side::Left, left), QueuePairState::Error);
        assert_eq!(fixture.state(Side::Right, right), QueuePairState::Error);
    }
}

/// Sends one request that the peer must refuse with `RemoteAccess` and checks that both sides end in error.
fn refused<H: Harness>(
    fixture: &mut Fixture<H>,
    [left, right]: [QueuePairNumber; 2],
    operation: Operation,
    length: u64,
    expected: Status,
) {
    let local = fixture.memory(Side::Left, 8192, Access::LOCAL);
    local.put(0, &[0xAA; 8192]);
    fixture.send(Side::Left, left, &request(1, operation, &[local.slice(0, length)]));
    let completion = fixture.take_of(Side::Left, left, true, 1)[0];
    assert_eq!((completion.id, completion.status), (1, expected), "{operation:?}");
    assert_eq!(local.get(0, 8192), [0xAA; 8192], "a refused request brings no bytes");
    fixture.until("the responder's queue pair fails", |fixture| {
        fixture.state(Side::Right, right) == QueuePairState::Error
    });
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Error);
}

/// Ranges that leave the region, also by overflow.
pub fn a_remote_range_outside_the_region_is_refused<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let remote = fixture.memory(Side::Right, 4096, Access::ALL);
    for (offset, length) in [(4096, 1), (0, 4097), (4000, 97), (u64::MAX, 8), (u64::MAX - 7, 8), (1 << 63, 1)]
    {
        for read in [false, true] {
            let pair = fixture.connect(4);
            let target = remote.remote(offset);
            let operation =
                if read { Operation::Read { remote: target } } else { Operation::Write { remote: target } };
            refused(&mut fixture, pair, operation, length, Status::RemoteAccess);
        }
    }
    let pair = fixture.connect(4);
    fixture.receive(Side::Right, pair[1], 4, remote.slice(0, 0));
    let operation = Operation::WriteWithImmediate { remote: remote.remote(4090), immediate: 0 };
    refused(&mut fixture, pair, operation, 7, Status::RemoteAccess);
    fixture.expect(Side::Right, 4, Status::Flushed);
    assert_eq!(remote.get(0, 4096), [0; 4096]);
}

/// Keys that were never given out.
pub fn a_remote_key_nobody_has_is_refused<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let memory = fixture.memory(Side::Right, 4096, Access::ALL);
    for key in [RemoteKey(0), RemoteKey(u32::MAX), RemoteKey(memory.keys.remote.0 ^ 0x0100_0000)] {
        let pair = fixture.connect(4);
        let remote = RemoteSlice { key, offset: 0 };
        refused(&mut fixture, pair, Operation::Write { remote }, 8, Status::RemoteAccess);
    }
}

/// Keys that are no more.
pub fn a_deregistered_remote_key_is_refused<H: Harness>() {
    let (mut fixture, pair) = Fixture::<H>::connected();
    let memory = fixture.memory(Side::Right, 4096, Access::ALL);
    fixture.device(Side::Right).deregister(memory.keys.local).expect("not in use");
    // A region that takes the old one's place does not answer to its key.
    let next = fixture.memory(Side::Right, 4096, Access::ALL);
    assert_ne!(next.keys.remote, memory.keys.remote);
    refused(&mut fixture, pair, Operation::Write { remote: memory.remote(0) }, 8, Status::RemoteAccess);
    assert_eq!(next.get(0, 4096), [0; 4096]);
}

/// Each kind of access must have been granted.
pub fn remote_access_that_was_not_granted_is_refused<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let only_read = Access { remote_read: true, ..Access::LOCAL };
    let only_write = Access { remote_write: true, ..Access::LOCAL };
    let readable = fixture.memory(Side::Right, 4096, only_read);
    let writable = fixture.memory(Side::Right, 4096, only_write);
    let atomics = fixture.device(Side::Right).capabilities().atomics;
    let mut cases = vec![
        (Operation::Write { remote: readable.remote(0) }, 8),
        (Operation::Read { remote: writable.remote(0) }, 8),
    ];
    if atomics {
        cases.push((Operation::FetchAdd { remote: writable.remote(0), add: 1 }, 8));
        cases.push((Operation::CompareSwap { remote: readable.remote(0), expected: 0, desired: 1 }, 8));
    }
    for (operation, length) in cases {
        let pair = fixture.connect(4);
        refused(&mut fixture, pair, operation, length, Status::RemoteAccess);
    }
    assert_eq!(readable.get(0, 4096), [0; 4096]);
    assert_eq!(writable.get(0, 4096), [0; 4096]);
}

/// Atomics work on aligned words only.
pub fn a_misaligned_atomic_is_refused<H: Harness>() {
    let (mut fixture, pair) = Fixture::<H>::connected();
    if !fixture.device(Side::Left).capabilities().atomics {
        return;
    }
    let remote = fixture.memory(Side::Right, 64, Access::ALL);
    let operation = Operation::FetchAdd { remote: remote.remote(4), add: 1 };
    refused(&mut fixture, pair, operation, 8, Status::RemoteInvalidRequest);
    assert_eq!(remote.get(0, 64), [0; 64]);
}

/// A failure is told even when success would not have been.
pub fn an_unsignalled_failure_completes<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 64, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 64, Access::LOCAL);
    let mut write = request(8, Operation::Write { remote: remote.remote(0) }, &[local.slice(0, 8)]);
    write.signalled = false;
    fixture.send(Side::Left, left, &write);
    fixture.expect(Side::Left, 8, Status::RemoteAccess);
}

/// What was posted before the failing request succeeds, what was posted after it is flushed.
pub fn completions_before_a_failure_are_successes<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 1 << 16, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 1 << 16, Access::ALL);
    local.put(0, &[3; 1 << 16]);
    fixture.receive(Side::Right, right, 50, remote.slice(0, 0));
    let mut expected = Vec::new();
    for id in 0..12 {
        let operation = match id {
            5 => SEND,
            7 => Operation::Write { remote: remote.remote(1 << 16) },
            id if id % 2 == 0 => Operation::Read { remote: remote.remote(0) },
            _ => Operation::Write { remote: remote.remote(id) },
        };
        let length = if id == 5 { 0 } else { 1 };
        let post = request(id, operation, &[local.slice(id, length)]);
        fixture.device(Side::Left).post_send(left, &post).expect("posted");
        let status = match id {
            0..7 => Status::Success,
            7 => Status::RemoteAccess,
            _ => Status::Flushed,
        };
        expected.push((id, status));
    }
    fixture.device(Side::Left).flush();
    let done = fixture.take(Side::Left, 12);
    let done: Vec<_> = done.iter().map(|completion| (completion.id, completion.status)).collect();
    assert_eq!(done, expected);
    fixture.expect(Side::Right, 50, Status::Success);
    assert_eq!(remote.get(9, 1), [0], "what follows a refused request is not executed");
}

/// Everything outstanding on both queues is flushed in post order.
pub fn failure_flushes_both_queues_in_order<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 4096, Access::LOCAL);
    for id in 0..20 {
        fixture.receive(Side::Left, left, id, local.slice(0, 64));
        let mut send = request(100 + id, SEND, &[local.slice(0, 64)]);
        send.signalled = id % 2 == 0;
        fixture.send(Side::Left, left, &send);
    }
    fixture.linger();
    fixture.device(Side::Left).fail_queue_pair(left);
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Error);
    let sends = fixture.take_of(Side::Left, left, true, 20);
    let receives = fixture.take_of(Side::Left, left, false, 20);
    assert!(sends.iter().map(|completion| completion.id).eq(100..120), "{sends:?}");
    assert!(receives.iter().map(|completion| completion.id).eq(0..20), "{receives:?}");
    assert!(sends.iter().chain(&receives).all(|completion| completion.status == Status::Flushed));
    fixture.expect_silence();
}

/// A failed queue pair takes requests and gives them back flushed.
pub fn requests_posted_after_failure_are_flushed<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 4096, Access::LOCAL);
    fixture.device(Side::Left).fail_queue_pair(left);
    for id in 0..5 {
        let mut send = request(id, SEND, &[local.slice(0, 64)]);
        send.signalled = false;
        fixture.send(Side::Left, left, &send);
        fixture.expect(Side::Left, id, Status::Flushed);
        fixture.receive(Side::Left, left, id, local.slice(0, 64));
        fixture.expect(Side::Left, id, Status::Flushed);
    }
    fixture.device(Side::Left).deregister(local.keys.local).expect("nothing uses it any more");
}

/// Other queue pairs between the same devices go on.
pub fn a_failed_queue_pair_leaves_the_others_alone<H: Harness>() {
    let (mut fixture, failing) = Fixture::<H>::connected();
    let [left, right] = fixture.connect(8);
    let remote = fixture.memory(Side::Right, 64, Access::LOCAL);
    let local = fixture.memory(Side::Left, 64, Access::LOCAL);
    refused(&mut fixture, failing, Operation::Write { remote: remote.remote(0) }, 8, Status::RemoteAccess);
    fixture.receive(Side::Right, right, 1, remote.slice(0, 64));
    fixture.send(Side::Left, left, &request(2, SEND, &[local.slice(0, 64)]));
    fixture.expect(Side::Right, 1, Status::Success);
    fixture.expect(Side::Left, 2, Status::Success);
}
