//! Sending from connected sockets, to peers that take any IPv4 identification and to no others; and receiving on one what is
//! sent steadily.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod common;
mod packets;

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr},
};

use common::{address, drain, link};
use packets::{number, send};
use ringway_roce::{Link, Path, PeerKind, RoceEndpoint, UdpConfig, UdpLink};
use ringway_sim::conformance::{Fixture, Side};
use ringway_verbs::{Device, QueuePairNumber, Role};

/// How many sockets of this address are connected. A table that changes while it is read, as other tests open and close sockets,
/// shows one twice or not at all.
fn connected(address: IpAddr) -> usize {
    let mut before = ends(address);
    loop {
        let now = ends(address);
        if now == before {
            return now.len();
        }
        before = now;
    }
}

/// Both ends of the connected sockets of this address, as the system's table has them.
fn ends(address: IpAddr) -> BTreeSet<(String, String)> {
    let IpAddr::V4(address) = address else { return BTreeSet::new() };
    // As /proc writes the address: the digits of a number of this machine's byte order.
    let own = format!("{:08X}:", u32::from_ne_bytes(address.octets()));
    let table = fs::read_to_string("/proc/self/net/udp").unwrap();
    let ends = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    });
    ends.filter(|(local, peer)| local.starts_with(&own) && !peer.starts_with("00000000:")).collect()
}

/// Packets that are cut from one message and such that are not arrive this way, with the CRC that the receiver expects.
fn everything_arrives(from: &mut UdpLink, to: &mut UdpLink, path: &Path) {
    for (at, length) in [4096, 4096, 4096, 100, 8, 2000, 2000].into_iter().enumerate() {
        send(from, path, at as u32, length);
    }
    assert!(from.flush());
    let mut seen = Vec::new();
    drain(to, 7, &mut |received| {
        assert_eq!(received.flow, path.flow);
        seen.push(number(received));
    });
    assert!(seen.into_iter().eq(0..7));
}

#[test]
fn a_connected_way_is_the_same_to_the_receiver() {
    let (mut from, mut to) = (link(UdpConfig::new(address())), link(UdpConfig::new(address())));
    let own = from.local_address();
    assert!(to.takes_any_identification());
    let path = from.path(to.local_address(), 3, 2).unwrap();
    assert_eq!(connected(own), 0);
    let mut way = path;
    from.connect(&mut way);
    assert_eq!((connected(own), way.flow), (1, path.flow));
    for path in [&way, &path, &way] {
        everything_arrives(&mut from, &mut to, path);
    }
    from.disconnect(&way);
    assert_eq!(connected(own), 0);
    // Whoever still knows the way may use it.
    everything_arrives(&mut from, &mut to, &way);
    assert_eq!(from.counters().refused, 0);
}

#[test]
fn peers_have_sockets_of_their_own_which_their_queue_pairs_share() {
    let (mut from, mut near, mut far) =
        (link(UdpConfig::new(address())), link(UdpConfig::new(address())), link(UdpConfig::new(address())));
    let own = from.local_address();
    let mut way = |to: &UdpLink| {
        let mut path = from.path(to.local_address(), 3, 2).unwrap();
        from.connect(&mut path);
        path
    };
    let (to_near, again, to_far) = (way(&near), way(&near), way(&far));
    assert_eq!((connected(own), to_near), (2, again));
    everything_arrives(&mut from, &mut near, &to_near);
    everything_arrives(&mut from, &mut far, &to_far);
    from.disconnect(&to_near);
    assert_eq!(connected(own), 2, "the other queue pair still sends from it");
    from.disconnect(&again);
    assert_eq!(connected(own), 1);
    // Neither a way that is gone nor one that never was connected takes anything from others.
    from.disconnect(&again);
    let never = from.path(far.local_address(), 3, 2).unwrap();
    from.disconnect(&never);
    assert_eq!(connected(own), 1);
    // The next takes the free place; the old way must not lead to it.
    let mut newest = link(UdpConfig::new(address()));
    let mut to_newest = from.path(newest.local_address(), 3, 2).unwrap();
    from.connect(&mut to_newest);
    assert_eq!(to_newest.via, to_near.via);
    everything_arrives(&mut from, &mut near, &to_near);
    everything_arrives(&mut from, &mut newest, &to_newest);
}

#[test]
fn there_are_only_so_many() {
    let mut from = link(UdpConfig::new(address()));
    let own = from.local_address();
    for at in 1..=70 {
        let path = from.path(Ipv4Addr::new(127, 0, 7, at).into(), 0, 2).unwrap();
        let mut way = path;
        from.connect(&mut way);
        assert_eq!(way != path, at <= 64);
    }
    assert_eq!(connected(own), 64);
}

/// Sends so many packets one by one, and takes them.
fn stream(from: &mut UdpLink, to: &mut UdpLink, path: &Path, packets: u32) {
    for window in 0..packets.div_ceil(10) {
        for at in 0..10 {
            send(from, path, window * 10 + at, 8 + at as usize * 100);
            assert!(from.flush());
        }
        let mut seen = Vec::new();
        drain(to, 10, &mut |received| {
            assert_eq!(received.flow, path.flow);
            seen.push(number(received));
        });
        assert!(seen.into_iter().eq(window * 10..window * 10 + 10), "in their order");
    }
}

#[test]
fn who_sends_steadily_is_received_on_a_socket_of_its_own() {
    let mut links = [(); 3].map(|()| link(UdpConfig::new(address())));
    let [one, other, to] = &mut links;
    let own = to.local_address();
    let (path, from_other) = (one.path(own, 0, 2).unwrap(), other.path(own, 0, 2).unwrap());
    stream(one, to, &path, 500);
    stream(other, to, &from_other, 10);
    stream(one, to, &path, 1000);
    assert_eq!(connected(own), 0, "another has sent meanwhile");
    stream(one, to, &path, 100);
    assert_eq!(connected(own), 1);
    // Nobody else is shut out, and whoever takes turns with the first does not get its place.
    for _ in 0..120 {
        stream(one, to, &path, 10);
        stream(other, to, &from_other, 10);
    }
    assert_eq!(connected(own), 1);
    stream(other, to, &from_other, 1200);
    assert_eq!(connected(own), 1, "only one at a time");
    stream(one, to, &path, 10);
    assert!(UdpLink::new(UdpConfig::new(own)).is_err(), "the port is nobody else's");
}

harness!(Pair, common::config(), |_, link| Box::new(link));

/// Connects the left side to the right one, as if that were of this kind.
fn connect(fixture: &mut Fixture<Pair>, kind: PeerKind) -> QueuePairNumber {
    let [left, right] = fixture.pair(4);
    let endpoint = fixture.device(Side::Right).endpoint(right).unwrap();
    let right = RoceEndpoint { kind, ..RoceEndpoint::decode(&endpoint).unwrap() };
    fixture.device(Side::Left).connect(left, &right.encode(), Role::Active).unwrap();
    left
}

#[test]
fn only_peers_that_take_any_identification_are_sent_to_from_connected_sockets() {
    let mut fixture = Fixture::<Pair>::default();
    let own = fixture.device(Side::Left).link().local_address();
    let strict = PeerKind::Ringway { selective: true, any_identification: false };
    for kind in [PeerKind::Plain, strict] {
        connect(&mut fixture, kind);
        assert_eq!(connected(own), 0, "{kind:?}");
    }
    let pair = fixture.connect(4);
    assert_eq!(connected(own), 1);
    fixture.destroy(Side::Left, pair[0]);
    assert_eq!(connected(own), 0);
}
