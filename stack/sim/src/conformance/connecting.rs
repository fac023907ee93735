//! Making, failing and losing connections.

use core::time::Duration;

use ringway_verbs::{
    Access, ConnectError, Device, Endpoint, Operation, PostError, QueuePairConfig, QueuePairNumber,
    QueuePairState, Role, Status,
};

use super::fixture::{Fixture, pattern, request};
use super::{Harness, Side};

/// Longer than any device here takes to connect, and than it waits for a sign of life.
const LONG: Duration = Duration::from_secs(10);

const SEND: Operation = Operation::Send { immediate: None };

/// SENDs are refused in `Init` and wait while `Connecting`.
pub fn sends_before_init_ends_are_refused_and_while_connecting_wait<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let pair = fixture.pair(8);
    let from = fixture.memory(Side::Left, 64, Access::LOCAL);
    let into = fixture.memory(Side::Right, 64, Access::LOCAL);
    from.put(0, &pattern(1, 64));
    let send = request(1, SEND, &[from.slice(0, 64)]);
    assert_eq!(fixture.state(Side::Left, pair[0]), QueuePairState::Init);
    assert_eq!(fixture.device(Side::Left).post_send(pair[0], &send), Err(PostError::WrongState));
    fixture.receive(Side::Right, pair[1], 2, into.slice(0, 64));
    fixture.start_connect(pair);
    fixture.send(Side::Left, pair[0], &send);
    fixture.expect(Side::Right, 2, Status::Success);
    fixture.expect(Side::Left, 1, Status::Success);
    assert_eq!(into.get(0, 64), pattern(1, 64));
}

/// Bytes that are not an endpoint of this device.
pub fn foreign_endpoints_are_refused<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let [left, right] = fixture.pair(4);
    let own = fixture.device(Side::Right).endpoint(right).expect("endpoint");
    let shortened = own.as_bytes().split_last().expect("bytes").1.to_vec();
    let mut longer = own.as_bytes().to_vec();
    longer.push(0);
    let mut changed = own.as_bytes().to_vec();
    changed[0] ^= 0x80;
    for bytes in [vec![], vec![0; 8], vec![0xFF; Endpoint::CAPACITY], shortened, longer, changed] {
        let endpoint = Endpoint::new(&bytes).expect("fits");
        let refused = fixture.device(Side::Left).connect(left, &endpoint, Role::Active);
        assert_eq!(refused, Err(ConnectError::ForeignEndpoint), "{bytes:?}");
    }
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Init);
}

/// A queue pair is connected once.
pub fn connecting_twice_is_refused<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let peer = fixture.device(Side::Right).endpoint(right).expect("endpoint");
    let refused = fixture.device(Side::Left).connect(left, &peer, Role::Active);
    assert_eq!(refused, Err(ConnectError::WrongState));
    fixture.linger();
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Ready);
}

/// Nobody answers: what was posted fails.
pub fn connecting_to_nobody_fails<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let memory = fixture.memory(Side::Left, 64, Access::LOCAL);
    let endpoint = fixture.harness.unreachable_endpoint();
    let config = QueuePairConfig { send_depth: 4, receive_depth: 4 };
    let left = fixture.device(Side::Left).create_queue_pair(config).expect("queue pair");
    fixture.receive(Side::Left, left, 1, memory.slice(0, 64));
    fixture.device(Side::Left).connect(left, &endpoint, Role::Active).expect("started");
    fixture.send(Side::Left, left, &request(2, SEND, &[memory.slice(0, 64)]));
    fixture.send(Side::Left, left, &request(3, SEND, &[memory.slice(0, 64)]));
    let sends = fixture.take_of(Side::Left, left, true, 2);
    assert_eq!((sends[0].id, sends[0].status), (2, Status::TransportLost));
    assert_eq!((sends[1].id, sends[1].status), (3, Status::Flushed));
    let receives = fixture.take_of(Side::Left, left, false, 1);
    assert_eq!((receives[0].id, receives[0].status), (1, Status::Flushed));
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Error);
}

/// Who has not polled for long has as much time to connect as others, and keeps the connections that it has.
pub fn time_to_connect_begins_when_it_is_asked_for<H: Harness>() {
    let (mut fixture, older) = Fixture::<H>::connected();
    fixture.harness.skip(LONG);
    let newer = fixture.connect(4);
    let memory = Side::BOTH.map(|side| fixture.memory(side, 64, Access::ALL));
    for [left, right] in [older, newer] {
        fixture.receive(Side::Right, right, 1, memory[1].slice(0, 64));
        fixture.send(Side::Left, left, &request(2, SEND, &[memory[0].slice(0, 64)]));
        fixture.expect(Side::Right, 1, Status::Success);
        fixture.expect(Side::Left, 2, Status::Success);
    }
}

/// Posts two SENDs that have to wait and a receive on the left side.
fn occupy<H: Harness>(fixture: &mut Fixture<H>, left: QueuePairNumber) {
    let memory = fixture.memory(Side::Left, 1 << 20, Access::LOCAL);
    fixture.receive(Side::Left, left, 1, memory.slice(0, 64));
    fixture.send(Side::Left, left, &request(2, SEND, &[memory.slice(0, 1 << 20)]));
    fixture.send(Side::Left, left, &request(3, SEND, &[memory.slice(0, 64)]));
    fixture.linger();
}

/// Expects what [`occupy`] posted to fail as by a lost connection.
fn expect_lost<H: Harness>(fixture: &mut Fixture<H>, left: QueuePairNumber) {
    let sends = fixture.take_of(Side::Left, left, true, 2);
    assert_eq!((sends[0].id, sends[0].status), (2, Status::TransportLost));
    assert_eq!((sends[1].id, sends[1].status), (3, Status::Flushed));
    let receives = fixture.take_of(Side::Left, left, false, 1);
    assert_eq!((receives[0].id, receives[0].status), (1, Status::Flushed));
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Error);
}

/// The other device is gone.
pub fn the_peers_death_is_noticed<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let [idle, _] = fixture.connect(4);
    occupy(&mut fixture, left);
    fixture.kill(Side::Right);
    expect_lost(&mut fixture, left);
    fixture.until("an idle queue pair notices as well", |fixture| {
        fixture.state(Side::Left, idle) == QueuePairState::Error
    });
}

/// The other queue pair is gone.
pub fn the_peers_destroyed_queue_pair_is_noticed<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    occupy(&mut fixture, left);
    fixture.destroy(Side::Right, right);
    expect_lost(&mut fixture, left);
}

/// The other queue pair was moved to the error state.
pub fn failing_a_queue_pair_is_noticed_by_the_peer<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    occupy(&mut fixture, left);
    fixture.device(Side::Right).fail_queue_pair(right);
    expect_lost(&mut fixture, left);
}

/// Failure is of a queue pair, not of the devices.
pub fn a_queue_pair_can_be_made_again_after_a_failure<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let memory = fixture.memory(Side::Left, 64, Access::LOCAL);
    let into = fixture.memory(Side::Right, 64, Access::LOCAL);
    for round in 0..20 {
        let [left, right] = fixture.connect(4);
        fixture.receive(Side::Right, right, round, into.slice(0, 64));
        fixture.send(Side::Left, left, &request(round, SEND, &[memory.slice(0, 64)]));
        fixture.expect(Side::Right, round, Status::Success);
        fixture.expect(Side::Left, round, Status::Success);
        fixture.device(Side::Left).fail_queue_pair(left);
        fixture
            .until("the peer notices", |fixture| fixture.state(Side::Right, right) == QueuePairState::Error);
        fixture.destroy(Side::Left, left);
        fixture.destroy(Side::Right, right);
    }
}

/// Both queue pairs may be on one device.
pub fn a_connection_within_one_device_works<H: Harness>() {
    let mut fixture = Fixture::<H>::default();
    let side = Side::Left;
    let memory = fixture.memory(side, 8192, Access::ALL);
    memory.put(0, &pattern(2, 4096));
    let config = QueuePairConfig { send_depth: 4, receive_depth: 4 };
    let one = fixture.device(side).create_queue_pair(config).expect("queue pair");
    let two = fixture.device(side).create_queue_pair(config).expect("queue pair");
    let (here, there) = (
        fixture.device(side).endpoint(one).expect("endpoint"),
        fixture.device(side).endpoint(two).expect("endpoint"),
    );
    fixture.device(side).connect(two, &here, Role::Passive).expect("connect");
    fixture.device(side).connect(one, &there, Role::Active).expect("connect");
    fixture.receive(side, two, 1, memory.slice(4096, 4096));
    fixture.send(side, one, &request(2, SEND, &[memory.slice(0, 4096)]));
    assert_eq!(fixture.take_of(side, two, false, 1)[0].status, Status::Success);
    assert_eq!(fixture.take_of(side, one, true, 1)[0].status, Status::Success);
    assert_eq!(memory.get(4096, 4096), pattern(2, 4096));
}
