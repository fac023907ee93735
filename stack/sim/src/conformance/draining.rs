//! Send queues that are drained and resumed, where the device can.

use ringway_verbs::{
    Access, Device, Operation, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, Status,
};

use super::fixture::{Fixture, pattern, request};
use super::{Harness, Side};

const SEND: Operation = Operation::Send { immediate: None };

/// A connected pair of a device that can drain.
fn draining<H: Harness>() -> Option<(Fixture<H>, [QueuePairNumber; 2])> {
    let (mut fixture, pair) = Fixture::<H>::connected();
    fixture.device(Side::Left).capabilities().draining.then_some((fixture, pair))
}

/// Drains the left side and waits until it is.
fn drain<H: Harness>(fixture: &mut Fixture<H>, left: QueuePairNumber) {
    fixture.device(Side::Left).drain(left).expect("it is ready");
    fixture.until("the send queue is drained", |fixture| {
        let state = fixture.state(Side::Left, left);
        assert!(matches!(state, QueuePairState::Draining | QueuePairState::Drained), "{state:?}");
        state == QueuePairState::Drained
    });
}

/// The device's word about it is true, and a queue pair is drained only when it is ready, and resumed only when it was.
pub fn draining_is_offered_or_refused<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let offered = fixture.device(Side::Left).capabilities().draining;
    let config = QueuePairConfig { send_depth: 4, receive_depth: 4 };
    let device = fixture.device(Side::Left);
    let unconnected = device.create_queue_pair(config).expect("queue pair");
    if !offered {
        assert_eq!(device.drain(left), Err(QueuePairError::Unsupported));
        assert_eq!(device.resume(left), Err(QueuePairError::Unsupported));
        return;
    }
    assert_eq!(device.resume(left), Err(QueuePairError::WrongState));
    assert_eq!(device.drain(unconnected), Err(QueuePairError::WrongState));
    assert_eq!(device.drain(QueuePairNumber(0x3f_ffff)), Err(QueuePairError::Unknown));
    drain(&mut fixture, left);
    let device = fixture.device(Side::Left);
    assert_eq!(device.drain(left), Err(QueuePairError::WrongState));
    assert_eq!(device.resume(left), Ok(()));
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Ready);
}

/// Requests that have begun end, all of them and no others, until it is resumed.
pub fn a_drained_send_queue_ends_what_has_begun_and_begins_nothing<H: Harness>() {
    let Some((mut fixture, [left, _])) = draining::<H>() else { return };
    let local = fixture.memory(Side::Left, 1 << 20, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 1 << 20, Access::ALL);
    for round in 0..10 {
        local.put(0, &pattern(round, 1 << 20));
        let write = |id| {
            let part = (id % 16) << 16;
            let operation = Operation::Write { remote: remote.remote(part) };
            request(id, operation, &[local.slice(part, 1 << 16)])
        };
        (0..16).for_each(|id| fixture.send(Side::Left, left, &write(id)));
        (0..round).for_each(|_| assert!(fixture.turn()));
        drain(&mut fixture, left);
        (16..32).for_each(|id| fixture.send(Side::Left, left, &write(id)));
        // What of it has completed is what had begun; nothing follows.
        fixture.linger();
        let ended = fixture.seen(Side::Left).len();
        assert!(ended <= 16, "{ended} requests ended");
        fixture.linger();
        assert_eq!(fixture.seen(Side::Left).len(), ended);
        assert_eq!(fixture.state(Side::Left, left), QueuePairState::Drained);
        fixture.device(Side::Left).resume(left).expect("it was drained");
        fixture.device(Side::Left).flush();
        let done = fixture.take(Side::Left, 32);
        assert!(
            done.iter()
                .map(|completion| (completion.id, completion.status))
                .eq((0..32).map(|id| (id, Status::Success)))
        );
        assert_eq!(remote.get(0, 1 << 20), pattern(round, 1 << 20));
    }
}

/// Only the send queue is drained: what the peer sends comes, and it is answered.
pub fn a_drained_queue_pair_receives<H: Harness>() {
    let Some((mut fixture, [left, right])) = draining::<H>() else { return };
    let here = fixture.memory(Side::Left, 4096, Access::ALL);
    let there = fixture.memory(Side::Right, 4096, Access::LOCAL);
    drain(&mut fixture, left);
    fixture.send(Side::Left, left, &request(1, SEND, &[here.slice(0, 10)]));
    fixture.receive(Side::Left, left, 2, here.slice(0, 4096));
    there.put(0, &pattern(5, 1000));
    fixture.send(Side::Right, right, &request(3, SEND, &[there.slice(0, 1000)]));
    fixture.expect(Side::Left, 2, Status::Success);
    fixture.expect(Side::Right, 3, Status::Success);
    let read = Operation::Read { remote: here.remote(0) };
    fixture.send(Side::Right, right, &request(4, read, &[there.slice(2000, 1000)]));
    fixture.expect(Side::Right, 4, Status::Success);
    assert_eq!(there.get(2000, 1000), pattern(5, 1000));
    fixture.expect_silence();
    fixture.receive(Side::Right, right, 5, there.slice(0, 4096));
    fixture.device(Side::Left).resume(left).expect("it was drained");
    fixture.expect(Side::Right, 5, Status::Success);
    fixture.expect(Side::Left, 1, Status::Success);
}

/// A failure ends what waits as it does everything else.
pub fn what_waits_in_a_drained_queue_pair_is_flushed<H: Harness>() {
    let Some((mut fixture, [left, _])) = draining::<H>() else { return };
    let memory = fixture.memory(Side::Left, 64, Access::LOCAL);
    drain(&mut fixture, left);
    fixture.send(Side::Left, left, &request(1, SEND, &[memory.slice(0, 64)]));
    fixture.device(Side::Left).fail_queue_pair(left);
    fixture.expect(Side::Left, 1, Status::Flushed);
    assert_eq!(fixture.device(Side::Left).resume(left), Err(QueuePairError::WrongState));
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Error);
}
