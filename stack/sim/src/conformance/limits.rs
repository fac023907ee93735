//! What a device refuses at once: wrong memory, wrong names, full queues, regions in use.

use ringway_verbs::{
    Access, Device, LocalKey, LocalSlice, Operation, PostError, QueuePairError, QueuePairNumber,
    QueuePairState, ReceiveRequest, RegisterError, RemoteSlice, Role, Status,
};

use super::fixture::{Fixture, pattern, request};
use super::{Harness, Side};

const SEND: Operation = Operation::Send { immediate: None };

/// A wrong key or range is refused when posted, on both queues.
pub fn local_memory_is_checked_when_posted<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let memory = fixture.memory(Side::Left, 4096, Access::ALL);
    let unknown = LocalSlice { key: LocalKey(memory.keys.local.0 ^ 0x0100_0000), offset: 0, length: 1 };
    let wrong = [
        memory.slice(4096, 1),
        memory.slice(0, 4097),
        memory.slice(u64::MAX, 2),
        memory.slice(1 << 63, 1),
        unknown,
    ];
    for slice in wrong {
        for segments in [&[slice][..], &[memory.slice(0, 8), slice], &[slice, memory.slice(0, 8)]] {
            let refused = fixture.device(Side::Left).post_send(left, &request(1, SEND, segments));
            assert_eq!(refused, Err(PostError::Memory), "{segments:?}");
        }
        assert_eq!(fixture.try_receive(Side::Left, left, 1, slice), Err(PostError::Memory));
    }
    fixture.expect_silence();
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Ready);
}

/// Receives, READs and atomics write local memory and need that access.
pub fn local_write_access_is_checked_when_posted<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let constant = fixture.memory(Side::Left, 64, Access { remote_read: true, ..Access::default() });
    let remote = fixture.memory(Side::Right, 64, Access::ALL);
    let slice = constant.slice(0, 8);
    assert_eq!(fixture.try_receive(Side::Left, left, 1, slice), Err(PostError::Memory));
    let read = request(1, Operation::Read { remote: remote.remote(0) }, &[slice]);
    assert_eq!(fixture.device(Side::Left).post_send(left, &read), Err(PostError::Memory));
    // Sending it and letting the peer read it is fine.
    fixture.receive(Side::Right, right, 1, remote.slice(0, 64));
    fixture.send(Side::Left, left, &request(2, SEND, &[slice]));
    fixture.expect(Side::Right, 1, Status::Success);
    fixture.expect(Side::Left, 2, Status::Success);
    let read = request(3, Operation::Read { remote: constant.remote(0) }, &[remote.slice(0, 8)]);
    fixture.send(Side::Right, right, &read);
    fixture.expect(Side::Right, 3, Status::Success);
}

/// Remote write and atomic access need local write access.
pub fn access_combinations_are_checked<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    for access in [
        Access { remote_write: true, ..Access::default() },
        Access { remote_atomic: true, ..Access::default() },
    ] {
        let mapping = std::sync::Arc::new(ringway_mem::Mapping::private(64).expect("memory"));
        let refused = fixture.device(Side::Left).register(mapping, access);
        assert_eq!(refused, Err(RegisterError::AccessCombination));
    }
}

/// A full send queue refuses; what it took arrives, once and in order.
pub fn a_full_send_queue_refuses_and_loses_nothing<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let [left, right] = fixture.connect(8);
    let from = fixture.memory(Side::Left, 1 << 16, Access::LOCAL);
    let into = fixture.memory(Side::Right, 1 << 16, Access::LOCAL);
    from.put(0, &pattern(4, 1 << 16));
    let message = |id: u64| request(id, SEND, &[from.slice(id * 64, 64)]);
    for id in 0..8 {
        fixture.send(Side::Left, left, &message(id));
    }
    assert_eq!(fixture.device(Side::Left).post_send(left, &message(8)), Err(PostError::Full));
    fixture.expect_silence();
    assert_eq!(fixture.device(Side::Left).post_send(left, &message(8)), Err(PostError::Full));
    let (mut posted, mut sent, mut received) = (8, 0, 0);
    let mut receives = 0;
    while received < 200 {
        while receives < 200
            && fixture.try_receive(Side::Right, right, receives, into.slice(receives * 64, 64)).is_ok()
        {
            receives += 1;
        }
        while posted < 200 && fixture.device(Side::Left).post_send(left, &message(posted)).is_ok() {
            posted += 1;
        }
        fixture.device(Side::Left).flush();
        assert!(fixture.turn());
        let count = fixture.seen(Side::Right).len();
        for completion in fixture.take(Side::Right, count) {
            assert_eq!((completion.id, completion.status), (received, Status::Success));
            received += 1;
        }
        let count = fixture.seen(Side::Left).len();
        for completion in fixture.take(Side::Left, count) {
            assert_eq!((completion.id, completion.status), (sent, Status::Success));
            sent += 1;
        }
    }
    assert_eq!(into.get(0, 200 * 64), pattern(4, 200 * 64));
    let rest = fixture.take(Side::Left, usize::try_from(200 - sent).expect("small"));
    assert!(rest.iter().map(|completion| completion.id).eq(sent..200));
}

/// A full receive queue refuses and keeps what it has.
pub fn a_full_receive_queue_refuses_and_loses_nothing<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let [left, right] = fixture.connect(4);
    let into = fixture.memory(Side::Right, 4096, Access::LOCAL);
    for id in 0..4 {
        fixture.receive(Side::Right, right, id, into.slice(0, 8));
    }
    assert_eq!(fixture.try_receive(Side::Right, right, 9, into.slice(0, 8)), Err(PostError::Full));
    for id in 0..4 {
        fixture.send(Side::Left, left, &request(id, SEND, &[]));
        fixture.expect(Side::Right, id, Status::Success);
        fixture.expect(Side::Left, id, Status::Success);
    }
    fixture.receive(Side::Right, right, 10, into.slice(0, 8));
}

/// A region cannot be taken from under a posted request.
pub fn a_region_in_use_is_busy<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 4096, Access::LOCAL);
    let into = fixture.memory(Side::Right, 4096, Access::LOCAL);
    fixture.send(Side::Left, left, &request(1, SEND, &[from.slice(0, 8)]));
    fixture.linger();
    let key = from.keys.local;
    assert_eq!(fixture.device(Side::Left).deregister(key), Err(RegisterError::Busy));
    fixture.receive(Side::Right, right, 1, into.slice(0, 8));
    fixture.receive(Side::Right, right, 2, into.slice(0, 8));
    fixture.expect(Side::Left, 1, Status::Success);
    fixture.expect(Side::Right, 1, Status::Success);
    fixture.device(Side::Left).deregister(key).expect("not in use");
    assert_eq!(fixture.device(Side::Left).deregister(key), Err(RegisterError::UnknownKey));
    let gone = request(3, SEND, &[from.slice(0, 8)]);
    assert_eq!(fixture.device(Side::Left).post_send(left, &gone), Err(PostError::Memory));
    assert_eq!(fixture.device(Side::Right).deregister(into.keys.local), Err(RegisterError::Busy));
    fixture.device(Side::Right).fail_queue_pair(right);
    fixture.expect(Side::Right, 2, Status::Flushed);
    fixture.device(Side::Right).deregister(into.keys.local).expect("flushed");
}

/// Queue pairs that are not there.
pub fn unknown_names_are_refused<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let peer = fixture.device(Side::Right).endpoint(right).expect("endpoint");
    let unknown = QueuePairNumber(left.0 ^ 0x0100_0000);
    let device = fixture.device(Side::Left);
    assert_eq!(device.state(unknown), None);
    assert_eq!(device.endpoint(unknown), Err(QueuePairError::Unknown));
    assert_eq!(device.post_send(unknown, &request(1, SEND, &[])), Err(PostError::Unknown));
    let receive = ReceiveRequest { id: 1, local: LocalSlice::default() };
    assert_eq!(device.post_receive(unknown, &receive), Err(PostError::Unknown));
    assert_eq!(device.destroy_queue_pair(unknown), Err(QueuePairError::Unknown));
    let refused = device.connect(unknown, &peer, Role::Active);
    assert_eq!(refused, Err(ringway_verbs::ConnectError::Unknown));
    device.fail_queue_pair(unknown);
    fixture.expect_silence();
}

/// What a peer calls a region is told for each queue pair, connected or not, and for no name that is not known.
pub fn remote_keys_are_told_for_known_names_only<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let [other, _] = fixture.pair(4);
    let memory = fixture.memory(Side::Left, 64, Access::ALL);
    let from = fixture.memory(Side::Right, 64, Access::LOCAL);
    from.put(0, &pattern(5, 64));
    let key = memory.keys.local;
    let device = fixture.device(Side::Left);
    assert!(device.remote_key(other, key).is_some());
    assert_eq!(device.remote_key(QueuePairNumber(left.0 ^ 0x0100_0000), key), None);
    assert_eq!(device.remote_key(left, LocalKey(key.0 ^ 0x0100_0000)), None);
    // The peer can use it.
    let told = device.remote_key(left, key).expect("both names are known");
    let write = Operation::Write { remote: RemoteSlice { key: told, offset: 0 } };
    fixture.send(Side::Right, right, &request(1, write, &[from.slice(0, 64)]));
    fixture.expect(Side::Right, 1, Status::Success);
    assert_eq!(memory.get(0, 64), pattern(5, 64));
    fixture.destroy(Side::Left, other);
    let device = fixture.device(Side::Left);
    assert_eq!(device.remote_key(other, key), None);
    device.deregister(key).expect("not in use");
    assert_eq!(device.remote_key(left, key), None);
}

/// More bytes than `max_message`, told by the two lengths even where their sum overflows.
pub fn messages_longer_than_the_limit_are_refused<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let memory = fixture.memory(Side::Left, 64, Access::LOCAL);
    let limit = fixture.device(Side::Left).capabilities().max_message;
    for segments in [[memory.slice(0, limit), memory.slice(0, 1)], [memory.slice(0, u64::MAX); 2]] {
        let refused = fixture.device(Side::Left).post_send(left, &request(1, SEND, &segments));
        assert!(matches!(refused, Err(PostError::TooLong | PostError::Memory)), "{refused:?}");
    }
}

/// After a queue pair is destroyed none of its completions is seen and its memory is free.
pub fn a_destroyed_queue_pair_says_nothing_more<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let memory = fixture.memory(Side::Left, 1 << 20, Access::LOCAL);
    for id in 0..8 {
        fixture.receive(Side::Left, left, id, memory.slice(0, 64));
        fixture.send(Side::Left, left, &request(id, SEND, &[memory.slice(0, 1 << 20)]));
    }
    fixture.destroy(Side::Left, left);
    let own = fixture.seen(Side::Left).len();
    assert_eq!(fixture.device(Side::Left).state(left), None);
    fixture.device(Side::Left).deregister(memory.keys.local).expect("nothing uses it any more");
    fixture.linger();
    assert_eq!(fixture.seen(Side::Left).len(), own, "a completion after destroy");
    fixture.until("the peer notices", |fixture| fixture.state(Side::Right, right) == QueuePairState::Error);
    fixture.destroy(Side::Right, right);
}
