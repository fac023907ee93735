//! What a poll does, and in which order: whoever waits for a message hears of it before anything is said about it, what is sent at
//! once is what a socket takes at once, and queue pairs have equal turns.
#![forbid(unsafe_code)]

mod common;

use common::Cuttable;
use ringway_roce::{Link, RoceConfig, RoceDevice, UdpLink};
use ringway_sim::conformance::{Fixture, Harness, Side, pattern, request};
use ringway_verbs::{Access, Completion, Device, Operation};
use ringway_wire::PathMtu;

/// With packets of so many bytes; the other way of sending begins with a window of few.
fn plain(mtu_max: PathMtu) -> RoceConfig {
    RoceConfig { mtu_max, selective: false, ..common::config() }
}

fn udp(_: usize, link: UdpLink) -> Box<dyn Link> {
    Box::new(link)
}

harness!(Usual, common::config(), udp);
harness!(Long, plain(PathMtu::Mtu4096), udp);
harness!(Middling, plain(PathMtu::Mtu1024), udp);
harness!(Short, plain(PathMtu::Mtu256), udp);

const SEND: Operation = Operation::Send { immediate: None };

/// Packets that a side has sent.
fn sent<H: Harness<Device = RoceDevice<Cuttable>>>(fixture: &mut Fixture<H>, side: Side) -> u64 {
    fixture.device(side).link().counters().sent
}

/// Polls one side; how many completions there were.
fn poll<H: Harness<Device = RoceDevice<Cuttable>>>(fixture: &mut Fixture<H>, side: Side) -> usize {
    let now = fixture.harness.now();
    fixture.device(side).poll(now, &mut [Completion::EMPTY; 4])
}

#[test]
fn a_message_is_handed_over_before_it_is_acknowledged() {
    // So many packets that their sender wants to hear of them at once.
    const LENGTH: usize = 3 * 4096;
    let (mut fixture, [left, right]) = Fixture::<Usual>::connected();
    let [from, into] = Side::BOTH.map(|side| fixture.memory(side, LENGTH, Access::ALL));
    fixture.receive(Side::Right, right, 0, into.slice(0, LENGTH as u64));
    fixture.send(Side::Left, left, &request(0, SEND, &[from.slice(0, LENGTH as u64)]));
    loop {
        let before = sent(&mut fixture, Side::Right);
        if poll(&mut fixture, Side::Right) > 0 {
            assert_eq!(sent(&mut fixture, Side::Right), before);
            poll(&mut fixture, Side::Right);
            assert!(sent(&mut fixture, Side::Right) > before, "the next poll sends");
            break;
        }
        poll(&mut fixture, Side::Left);
        assert!(fixture.harness.pause(false), "no message");
    }
}

/// How many packets of a long message one flush sends.
fn sent_at_once<H: Harness<Device = RoceDevice<Cuttable>>>() -> u64 {
    const LENGTH: usize = 128 << 10;
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let [from, into] = Side::BOTH.map(|side| fixture.memory(side, LENGTH, Access::ALL));
    fixture.receive(Side::Right, right, 0, into.slice(0, LENGTH as u64));
    let before = sent(&mut fixture, Side::Left);
    fixture.send(Side::Left, left, &request(0, SEND, &[from.slice(0, LENGTH as u64)]));
    sent(&mut fixture, Side::Left) - before
}

/// The packets that fill one message of a socket, which the kernel cuts: a further one would cost as much as all of them.
#[test]
fn a_turn_sends_what_a_socket_takes_at_once() {
    assert_eq!([sent_at_once::<Long>(), sent_at_once::<Middling>(), sent_at_once::<Short>()], [15, 62, 64]);
}

/// Several queue pairs send messages of one length: when the first of these has come, most of the others has.
fn share_alike<H: Harness<Device = RoceDevice<Cuttable>>>(queue_pairs: u64) {
    const LENGTH: u64 = 1 << 20;
    let mut fixture = Fixture::<H>::default();
    let bytes = (queue_pairs * LENGTH) as usize;
    let [from, into] = Side::BOTH.map(|side| fixture.memory(side, bytes, Access::ALL));
    let message = pattern(1, LENGTH);
    let pairs: Vec<_> = (0..queue_pairs).map(|_| fixture.connect(4)).collect();
    for ([left, right], at) in pairs.iter().zip(0..) {
        from.put(at * LENGTH, &message);
        fixture.receive(Side::Right, *right, at, into.slice(at * LENGTH, LENGTH));
        fixture.post(Side::Left, *left, &request(at, SEND, &[from.slice(at * LENGTH, LENGTH)]));
    }
    fixture.until("a message has come", |fixture| !fixture.seen(Side::Right).is_empty());
    let (at, length) = (LENGTH / 2, 256);
    for which in 0..queue_pairs {
        let (start, end) = (at as usize, (at + length) as usize);
        assert_eq!(into.get(which * LENGTH + at, length), message[start..end], "{which} of {queue_pairs}");
    }
}

#[test]
fn queue_pairs_have_equal_turns() {
    for queue_pairs in [2, 5, 7] {
        share_alike::<Long>(queue_pairs);
        share_alike::<Middling>(queue_pairs);
        share_alike::<Short>(queue_pairs);
    }
}
