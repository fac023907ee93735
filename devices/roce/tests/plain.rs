//! Connections to peers of which nothing is known but address, number, first PSN and path MTU, as verbs programs make
//! them: here another of our devices, which is treated like any other.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod common;

use ringway_roce::{Link, RoceConfig, RoceEndpoint, UdpLink};
use ringway_sim::conformance::{Fixture, Harness, Side, pattern, request};
use ringway_verbs::{
    Access, Completion, Device, Operation, PacketBytes, QueuePairNumber, QueuePairState, RemoteKey,
    RemoteSlice, Role, Status, Time,
};
use ringway_wire::{PathMtu, Psn};
use ringway_wrap::{FaultSpec, Faulty};

/// As perftest has it, with PSNs just below the wrap.
fn config() -> RoceConfig {
    RoceConfig { mtu_max: PathMtu::Mtu1024, first_psn: Some(Psn::new(0xff_fff0)), ..common::config() }
}

fn marking(side: usize, link: UdpLink) -> Box<dyn Link> {
    let seed = side as u64;
    Box::new(Faulty::new(link, FaultSpec { ecn: 0.2, loss: 0.002, seed, ..FaultSpec::default() }))
}

harness!(Clean, config(), |_, link| Box::new(link));
harness!(Marking, RoceConfig { line_rate: 1 << 30, ..config() }, marking);

/// Connects with what perftest's handshake would have told.
fn connect<H: Harness>(fixture: &mut Fixture<H>) -> [QueuePairNumber; 2] {
    let pair = fixture.pair(16);
    let told = Side::BOTH.map(|side| {
        let endpoint = fixture.device(side).endpoint(pair[side as usize]).unwrap();
        let own = RoceEndpoint::decode(&endpoint).unwrap();
        let (number, psn) = (own.queue_pair.number(), own.psn.value());
        RoceEndpoint::plain(own.address, number, psn, own.mtu, own.rd_atomic).unwrap()
    });
    for side in Side::BOTH {
        let peer = told[side.other() as usize].encode();
        fixture.device(side).connect(pair[side as usize], &peer, Role::Active).unwrap();
        assert_eq!(fixture.state(side, pair[side as usize]), QueuePairState::Ready);
    }
    pair
}

/// Either end's packets are known as soon as the peer has been named.
#[test]
fn ends_whose_packets_differ_are_known_by_both_sizes() {
    let mut fixture = Fixture::<Clean>::default();
    let [left, right] = fixture.pair(16);
    assert_eq!(fixture.device(Side::Left).packet_bytes(left), None);
    let endpoint = fixture.device(Side::Right).endpoint(right).unwrap();
    let peer = RoceEndpoint::decode(&endpoint).unwrap();
    let (number, psn) = (peer.queue_pair.number(), peer.psn.value());
    let narrow = RoceEndpoint::plain(peer.address, number, psn, PathMtu::Mtu512, peer.rd_atomic).unwrap();
    fixture.device(Side::Left).connect(left, &narrow.encode(), Role::Active).unwrap();
    assert_eq!(fixture.device(Side::Left).packet_bytes(left), Some(PacketBytes { own: 1024, peer: 512 }));
}

#[test]
fn every_operation_works_toward_a_plain_peer() {
    let mut fixture = Fixture::<Clean>::default();
    let [left, right] = connect(&mut fixture);
    let from = fixture.memory(Side::Left, 1 << 16, Access::ALL);
    let into = fixture.memory(Side::Right, 1 << 16, Access::ALL);
    let bytes = pattern(1, 30_000);
    from.put(0, &bytes);
    let slice = from.slice(0, 30_000);
    fixture.receive(Side::Right, right, 1, into.slice(0, 30_000));
    fixture.send(Side::Left, left, &request(2, Operation::Send { immediate: Some(7) }, &[slice]));
    assert_eq!(fixture.expect(Side::Right, 1, Status::Success).immediate, Some(7));
    fixture.expect(Side::Left, 2, Status::Success);
    // Keys and addresses are sent as they are given.
    let remote = RemoteSlice { key: RemoteKey(into.keys.remote.0), offset: 30_001 };
    fixture.send(Side::Left, left, &request(3, Operation::Write { remote }, &[slice]));
    fixture.expect(Side::Left, 3, Status::Success);
    assert_eq!(into.get(30_001, 30_000), bytes);
    let read = Operation::Read { remote: into.remote(30_001) };
    fixture.send(Side::Left, left, &request(4, read, &[from.slice(30_000, 30_000)]));
    fixture.expect(Side::Left, 4, Status::Success);
    assert_eq!(from.get(30_000, 30_000), bytes);
    let add = Operation::FetchAdd { remote: into.remote(0), add: 1 };
    fixture.send(Side::Left, left, &request(5, add, &[from.slice(60_000, 8)]));
    fixture.expect(Side::Left, 5, Status::Success);
    assert_eq!(from.get(60_000, 8), bytes[..8]);
    let counters = fixture.device(Side::Left).counters();
    assert_eq!((counters.bad_icrc, counters.malformed, counters.failures), (0, 0, 0), "{counters:?}");
    // Each byte once at either end: of the send, the write and the read, and what the atomic operation answered.
    let copied = Side::BOTH.map(|side| fixture.device(side).counters().copied);
    assert_eq!(copied, [90_008, 90_000]);
}

#[test]
fn a_plain_peer_that_is_not_ready_yet_gets_it_again() {
    let mut fixture = Fixture::<Clean>::default();
    let [left, right] = fixture.pair(4);
    let from = fixture.memory(Side::Left, 64, Access::LOCAL);
    let into = fixture.memory(Side::Right, 64, Access::LOCAL);
    let told = |fixture: &mut Fixture<Clean>, side, number| {
        let own = RoceEndpoint::decode(&fixture.device(side).endpoint(number).unwrap()).unwrap();
        let plain =
            RoceEndpoint::plain(own.address, own.queue_pair.number(), own.psn.value(), own.mtu, 1).unwrap();
        plain.encode()
    };
    let (here, there) = (told(&mut fixture, Side::Left, left), told(&mut fixture, Side::Right, right));
    fixture.device(Side::Left).connect(left, &there, Role::Active).unwrap();
    let send = request(1, Operation::Send { immediate: None }, &[from.slice(0, 64)]);
    fixture.send(Side::Left, left, &send);
    fixture.expect_silence();
    fixture.receive(Side::Right, right, 2, into.slice(0, 64));
    fixture.device(Side::Right).connect(right, &here, Role::Passive).unwrap();
    fixture.expect(Side::Right, 2, Status::Success);
    fixture.expect(Side::Left, 1, Status::Success);
    assert!(fixture.device(Side::Right).counters().early > 0);
    assert!(fixture.device(Side::Left).counters().transport.retransmitted > 0);
}

#[test]
fn what_was_taken_is_acknowledged_before_its_queue_pair_is_gone() {
    let mut fixture = Fixture::<Clean>::default();
    let [left, right] = connect(&mut fixture);
    let from = fixture.memory(Side::Left, 64, Access::LOCAL);
    let into = fixture.memory(Side::Right, 64, Access::LOCAL);
    fixture.receive(Side::Right, right, 1, into.slice(0, 64));
    let send = request(2, Operation::Send { immediate: None }, &[from.slice(0, 64)]);
    fixture.send(Side::Left, left, &send);
    let mut completions = [Completion::EMPTY; 4];
    while fixture.device(Side::Right).poll(Time(0), &mut completions) == 0 {}
    fixture.device(Side::Right).destroy_queue_pair(right).unwrap();
    fixture.expect(Side::Left, 2, Status::Success);
}

#[test]
fn marked_packets_are_told_of_and_slow_the_sender_down() {
    let mut fixture = Fixture::<Marking>::default();
    let [left, _] = connect(&mut fixture);
    let from = fixture.memory(Side::Left, 1 << 20, Access::ALL);
    let into = fixture.memory(Side::Right, 1 << 20, Access::ALL);
    from.put(0, &pattern(2, 1 << 20));
    for id in 0..4 {
        let write = Operation::Write { remote: into.remote(0) };
        fixture.send(Side::Left, left, &request(id, write, &[from.slice(0, 1 << 20)]));
        fixture.expect(Side::Left, id, Status::Success);
    }
    assert!(into.get(0, 1 << 20) == pattern(2, 1 << 20));
    let [left, right] = Side::BOTH.map(|side| fixture.device(side).counters().transport);
    assert!(right.marked > 100 && right.notifications_sent > 0, "{right:?}");
    assert!(left.notifications_received > 0 && left.retransmitted > 0, "{left:?}");
}
