//! UDP links over real sockets of this host's loopback interface.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

mod common;
mod namespaces;
mod packets;

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{BorrowedFd, OwnedFd},
};

use common::{address, drain, link};
use packets::{number, send};
use ringway_roce::{Link, LinkError, RefusalReason, SendError, UdpConfig, UdpLink};
use ringway_verbs::Time;
use ringway_wire::{Addresses, Datagram, Ecn, Flow, Packet, PathMtu, ROCE_PORT};

fn config(segmentation: bool) -> UdpConfig {
    UdpConfig { segmentation, ..UdpConfig::new(address()) }
}

/// Lengths of what a message of 20 packets has, and some of no pattern at all.
fn lengths() -> impl Iterator<Item = usize> {
    let message = (0..20).map(|at| if at == 19 { 1001 } else { 4096 });
    let odd = (0..40).map(|at: usize| (at * 389) % 4097);
    message.chain(odd).chain([0; 12]).chain([8; 70])
}

fn everything_arrives(from: UdpConfig, to: UdpConfig) -> (UdpLink, UdpLink) {
    let (mut from, mut to) = (link(from), link(to));
    let paths = [0, 1, 2].map(|entropy| from.path(to.local_address(), entropy, 0).unwrap());
    let mut sent = 0;
    let mut seen = Vec::new();
    let lengths: Vec<_> = lengths().collect();
    // Less at a time than the smallest socket buffers hold.
    for window in lengths.chunks(10).cycle().take(60) {
        for length in window {
            send(&mut from, &paths[sent as usize / 7 % 3], sent, *length);
            sent += 1;
        }
        assert!(from.flush());
        drain(&mut to, window.len(), &mut |received| {
            assert!(paths.iter().any(|path| path.flow == received.flow), "{:?}", received.flow);
            assert_eq!(received.ecn, Ecn::NotCapable);
            seen.push(number(received));
        });
    }
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..sent), "each packet came once");
    assert_eq!((from.counters().sent, from.counters().refused), (u64::from(sent), 0));
    assert_eq!(to.counters().received, u64::from(sent));
    (from, to)
}

#[test]
fn packets_arrive_whether_or_not_the_kernel_cuts_and_joins_them() {
    for (cutting, joining) in [(true, true), (true, false), (false, true), (false, false)] {
        everything_arrives(config(cutting), config(joining));
    }
}

#[test]
fn packets_arrive_over_ipv6() {
    let localhost = IpAddr::V6(Ipv6Addr::LOCALHOST);
    for segmentation in [true, false] {
        // There is one such address only, and maybe none. A port that was just given up may be taken for a moment longer.
        let port = 14_791 + u16::from(segmentation);
        let mut one = match UdpLink::new(UdpConfig { segmentation, port, ..UdpConfig::new(localhost) }) {
            Ok(link) => link,
            Err(error @ LinkError::NotLocal { .. }) => return eprintln!("not tried: {error}"),
            Err(error) => panic!("{error}"),
        };
        let path = one.path(localhost, 3, Ecn::Capable0 as u8).unwrap();
        for at in 0..12 {
            send(&mut one, &path, at, 4096);
        }
        send(&mut one, &path, 12, 1);
        assert!(one.flush());
        let mut seen = Vec::new();
        drain(&mut one, 13, &mut |received| {
            assert_eq!((received.flow, received.ecn), (path.flow, Ecn::Capable0));
            seen.push(number(received));
        });
        assert!(seen.iter().copied().eq(0..13));
    }
}

#[test]
fn a_run_is_one_message_both_ways() {
    let (mut from, mut to) = (link(config(true)), link(config(true)));
    if !from.segments() {
        return eprintln!("not tried: this kernel does not cut UDP messages");
    }
    let path = from.path(to.local_address(), 0, 0).unwrap();
    assert_eq!(path.mtu, PathMtu::Mtu4096, "loopback carries the largest packets");
    for at in 0..15 {
        send(&mut from, &path, at, if at < 14 { 4096 } else { 5 });
    }
    assert!(from.flush());
    let mut guesses = Vec::new();
    drain(&mut to, 15, &mut |received| {
        number(received);
        guesses.push(received.identification);
    });
    assert_eq!(guesses, (0..15).collect::<Vec<_>>(), "the kernel numbers the packets of a message");
    assert_eq!((from.counters().calls, to.counters().calls), (1, 1));
}

#[test]
fn congestion_marks_are_sent_and_seen() {
    let (mut from, mut to) = (link(config(true)), link(config(true)));
    for (class, ecn) in [
        (0, Ecn::NotCapable),
        (1, Ecn::Capable1),
        (2, Ecn::Capable0),
        (3, Ecn::CongestionExperienced),
        (0x68 | 2, Ecn::Capable0),
    ] {
        let path = from.path(to.local_address(), 0, class).unwrap();
        for at in 0..3 {
            send(&mut from, &path, at, 100);
        }
        assert!(from.flush());
        drain(&mut to, 3, &mut |received| assert_eq!(received.ecn, ecn));
    }
}

#[test]
fn queue_pairs_send_from_different_ports() {
    let mut one = link(UdpConfig { senders: 4, ..config(true) });
    let to = one.local_address();
    let mut ports: Vec<_> = (0..8).map(|qp| one.path(to, qp, 0).unwrap().flow.source_port).collect();
    assert_eq!(ports[..4], ports[4..]);
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4);
    assert!(!ports.contains(&ROCE_PORT) && !ports.contains(&0));
}

#[test]
fn what_is_no_packet_is_handed_over_all_the_same() {
    let mut to = link(config(true));
    let stranger = UdpSocket::bind((address(), 0)).unwrap();
    let at = (to.local_address(), ROCE_PORT);
    for rubbish in [&b""[..], b"hello", &[0; 2000], &[0xff; 60_000]] {
        stranger.send_to(rubbish, at).unwrap();
        // An empty message has nothing to hand over.
        let mut seen = 0;
        drain(&mut to, usize::from(!rubbish.is_empty()), &mut |received| {
            assert_eq!(received.transport, rubbish);
            assert_eq!(received.flow.source_port, stranger.local_addr().unwrap().port());
            assert!(Packet::parse(received.transport, received.check).is_err());
            seen += 1;
        });
        assert_eq!(seen, usize::from(!rubbish.is_empty()));
    }
}

#[test]
fn a_full_link_says_so_and_recovers() {
    let (mut from, mut to) = (link(config(true)), link(config(true)));
    let path = from.path(to.local_address(), 0, 0).unwrap();
    let mut taken = 0_u32;
    let refusal = loop {
        match from.send(&path, 4000, &mut |_, memory| memory.fill(1)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refusal, SendError::Full);
    assert!(taken > 100);
    let too_long = from.send(&path, 70_000, &mut |_, _| unreachable!("it is not taken"));
    assert_eq!(too_long, Err(SendError::TooLong));
    // The receiver's buffer is smaller than all that: most is lost, as on any network, and nothing waits for ever.
    while !from.flush() {}
    assert_eq!(from.counters().sent + from.counters().refused, u64::from(taken));
    while to.poll(Time(0), &mut |_| ()) > 0 {}
    send(&mut from, &path, 1, 100);
    assert!(from.flush());
    drain(&mut to, 1, &mut |received| assert_eq!(number(received), 1));
}

#[test]
fn the_descriptor_says_that_there_is_something() {
    use rustix::event::{PollFd, PollFlags, poll};
    let (mut from, mut to) = (link(config(true)), link(config(true)));
    let path = from.path(to.local_address(), 0, 0).unwrap();
    let readable = |link: &UdpLink| {
        // SAFETY: the link owns the descriptor and outlives this use of it.
        let descriptor = unsafe { BorrowedFd::borrow_raw(link.event_descriptor().unwrap()) };
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    assert!(!readable(&to));
    send(&mut from, &path, 1, 100);
    assert!(from.flush());
    drain_when(&mut to, readable);
    assert!(!readable(&to));
}

fn drain_when(to: &mut UdpLink, readable: impl Fn(&UdpLink) -> bool) {
    for _ in 0..1_000_000 {
        if readable(to) {
            return drain(to, 1, &mut |_| ());
        }
    }
    panic!("the descriptor never became readable");
}

#[test]
fn errors_say_what_is_wrong() {
    let first = link(config(true));
    let taken = UdpLink::new(UdpConfig::new(first.local_address())).unwrap_err();
    assert!(matches!(taken, LinkError::PortTaken { port: ROCE_PORT, .. }), "{taken}");
    assert!(taken.to_string().contains("4791"), "{taken}");

    // TEST-NET-3, which nobody has.
    let foreign = UdpLink::new(UdpConfig::new("203.0.113.77".parse().unwrap())).unwrap_err();
    assert!(matches!(foreign, LinkError::NotLocal { .. }), "{foreign}");
    assert!(foreign.to_string().contains("127.0.0.1 (lo)"), "{foreign}");

    let nowhere = UdpConfig { interface: Some("nowhere7".to_owned()), ..config(true) };
    let nowhere = UdpLink::new(nowhere).unwrap_err();
    assert!(matches!(nowhere, LinkError::NoInterface { .. }), "{nowhere}");

    let here = UdpConfig { interface: Some("lo".to_owned()), ..config(true) };
    assert!(UdpLink::new(here).is_ok());

    for senders in [0, 257] {
        let limit = UdpLink::new(UdpConfig { senders, ..config(true) }).unwrap_err();
        assert_eq!(limit, LinkError::Limit { limit: "senders", most: 256 });
    }

    let mut one = link(config(true));
    let other_family = one.path(IpAddr::V6(Ipv6Addr::LOCALHOST), 0, 0).unwrap_err();
    assert!(matches!(other_family, LinkError::Family { .. }), "{other_family}");
    // From a loopback address nothing leaves the host.
    let away = one.path("203.0.113.77".parse().unwrap(), 0, 0).unwrap_err();
    assert!(matches!(away, LinkError::Unreachable { .. }), "{away}");
}

#[test]
fn an_address_of_another_interface_is_named() {
    let mut names: Vec<_> = std::fs::read_dir("/sys/class/net")
        .map(|all| all.filter_map(|one| one.ok()?.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    names.retain(|name| name != "lo");
    let wrong = names.into_iter().find_map(|name| {
        let config = UdpConfig { interface: Some(name), ..config(true) };
        // An interface without an address counts as none.
        UdpLink::new(config).err().filter(|error| !matches!(error, LinkError::NoInterface { .. }))
    });
    if let Some(wrong) = wrong {
        assert!(matches!(&wrong, LinkError::WrongInterface { found, .. } if found == "lo"), "{wrong}");
    }
}

/// A socket that sees every IPv4 packet of every interface; `None` without the privilege.
fn sniffer() -> Option<OwnedFd> {
    use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with, sockopt};
    // ETH_P_IP, in the network's byte order.
    let protocol = Protocol::from_raw(u32::from(0x0800_u16.to_be()).try_into().unwrap());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(protocol)).ok()?;
    // Other tests' packets shall not push ours out.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20);
    Some(socket)
}

#[test]
fn the_wire_carries_the_identification_that_the_crc_covers() {
    let Some(sniffer) = sniffer() else {
        return ringway_sim::not_tried("only root sees packets on the wire; run the tests as root");
    };
    let (mut from, mut to) = (link(config(false)), link(config(true)));
    let path = from.path(to.local_address(), 0, Ecn::Capable0 as u8).unwrap();
    const PACKETS: u32 = 10;
    for at in 0..PACKETS {
        send(&mut from, &path, at, at as usize * 400);
    }
    assert!(from.flush());
    drain(&mut to, PACKETS as usize, &mut |received| assert!(number(received) < PACKETS));
    let mut bytes = vec![0; 65_536];
    let mut seen = Vec::new();
    while let Ok((length, _)) = rustix::net::recv(&sniffer, &mut bytes[..], rustix::net::RecvFlags::empty()) {
        let Ok(datagram) = Datagram::parse(&bytes[..length]) else { continue };
        if datagram.flow == path.flow {
            let packet = Packet::parse(datagram.transport, datagram.check());
            seen.push(packet.unwrap_or_else(|error| panic!("{error}")).bth.psn.value());
        }
    }
    // Loopback shows each packet twice, leaving and arriving.
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.into_iter().eq(0..PACKETS));
}

/// Why packets were refused since the last look, and on which way.
fn refusals(link: &mut UdpLink) -> Vec<(RefusalReason, Flow)> {
    let mut heard = Vec::new();
    link.refusals(&mut |refusal| heard.push((refusal.reason, refusal.flow)));
    heard
}

/// Says to the sender of a packet that it was too long for the way, as anybody may who is privileged; `None` without that.
fn forge_too_long(flow: &Flow) -> Option<()> {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
    let Addresses::V4 { source, destination } = flow.addresses else { panic!("of IPv4") };
    let socket =
        socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP)).ok()?;
    let (udp_bytes, bth) = (4128_u16, [4, 0, 0xff, 0xff, 0, 1, 2, 3, 0, 0, 0, 0]);
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(600_u16.to_be_bytes());
    message.extend([0x45, 0]);
    message.extend((udp_bytes + 20).to_be_bytes());
    message.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend(source.octets());
    message.extend(destination.octets());
    for field in [flow.source_port, flow.destination_port, udp_bytes, 0] {
        message.extend(field.to_be_bytes());
    }
    message.extend(bth);
    let sum = message.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    sendto(&socket, &message, SendFlags::empty(), &SocketAddr::from((source, 0))).ok()?;
    Some(())
}

#[test]
fn forged_news_of_a_narrow_way_holds_nothing_back() {
    let (mut from, mut to) = (link(config(true)), link(config(true)));
    let path = from.path(to.local_address(), 0, 0).unwrap();
    let segments = from.segments();
    if forge_too_long(&path.flow).is_none() {
        return ringway_sim::not_tried("only root can forge ICMP messages; run the tests as root");
    }
    for round in 0..3 {
        for at in 0..8 {
            send(&mut from, &path, 8 * round + at, 4096);
        }
        assert!(from.flush());
        drain(&mut to, 8, &mut |received| assert_eq!(number(received) / 8, round));
    }
    assert_eq!((from.counters().refused, from.segments()), (0, segments));
    assert_eq!(refusals(&mut from), [(RefusalReason::TooLong, path.flow)], "it is told");
}

#[test]
fn an_interface_that_carries_less_than_it_did_refuses_long_packets_until_it_carries_them_again() {
    let Some([one, other]) = namespaces::network(9000, 1) else { return };
    let [mut from, mut to] =
        [&one, &other].map(|node| node.inside(|| link(UdpConfig::new(node.address(false)))));
    let path = one.inside(|| from.path(other.address(false), 0, 0)).unwrap();
    let segments = from.segments();
    let send_all = |from: &mut UdpLink| {
        for at in 0..8 {
            send(from, &path, at, 4096);
        }
        assert!(from.flush());
    };
    one.ip("link set rw0 mtu 1500");
    send_all(&mut from);
    assert_eq!(from.counters().refused, 8);
    assert_eq!(refusals(&mut from), [(RefusalReason::TooLong, path.flow)]);
    one.ip("link set rw0 mtu 9000");
    send_all(&mut from);
    drain(&mut to, 8, &mut |_| ());
    assert_eq!((from.counters().refused, from.segments()), (8, segments), "the kernel still cuts");
}
