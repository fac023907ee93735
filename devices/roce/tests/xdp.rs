//! AF_XDP links between network namespaces of this host. They need root; without it they say so and check what an
//! ordinary user is told.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

mod common;
mod namespaces;
mod packets;

use std::{
    env,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::BorrowedFd,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{drain, link as udp_link};
use namespaces::{INTERFACE, Node, network, way};
use packets::{number, send};
use ringway_roce::{Link, LinkError, SendError, UdpConfig, XdpConfig, XdpLink, XdpMode, ZeroCopy};
use ringway_verbs::Time;
use ringway_wire::{Ecn, Packet, PathMtu, ROCE_PORT};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

fn config(address: IpAddr) -> XdpConfig {
    // Little memory: several of these tests may run at a time.
    XdpConfig { frames: 512, ..XdpConfig::new(address) }
}

/// Opens a link. What another thread has just forked holds a closed link's descriptors for a moment.
fn open(node: &Node, config: XdpConfig) -> XdpLink {
    let start = Instant::now();
    loop {
        match try_open(node, config.clone()) {
            Ok(link) => return link,
            Err(
                LinkError::PortTaken { .. }
                | LinkError::ProgramAttached { .. }
                | LinkError::QueueTaken { .. },
            ) if start.elapsed() < Duration::from_secs(5) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn try_open(node: &Node, config: XdpConfig) -> Result<XdpLink, LinkError> {
    node.inside(|| XdpLink::new(config))
}

/// Sends packets of many lengths over several ways; all must arrive, once and unharmed.
fn everything_arrives(node: &Node, from: &mut dyn Link, to: &mut dyn Link) {
    let peer = to.local_address();
    let paths =
        [0, 1, 2, 3].map(|entropy| node.inside(|| way(from, peer, entropy, Ecn::Capable0 as u8)).unwrap());
    let most = from.mtu().min(to.mtu()).bytes();
    let lengths = (0..200).map(|at: usize| if at.is_multiple_of(3) { most } else { (at * 389) % (most + 1) });
    let lengths: Vec<_> = lengths.collect();
    let mut sent = 0;
    let mut seen = Vec::new();
    for window in lengths.chunks(20) {
        for length in window {
            send(from, &paths[sent as usize / 7 % 4], sent, *length);
            sent += 1;
        }
        while !from.flush() {}
        drain(to, window.len(), &mut |received| {
            assert!(paths.iter().any(|path| path.flow == received.flow), "{:?}", received.flow);
            assert_eq!(received.ecn, Ecn::Capable0);
            seen.push(number(received));
        });
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..sent), "each packet came once");
}

#[test]
fn packets_arrive() {
    for (mtu, path_mtu) in [(1500, PathMtu::Mtu1024), (9000, PathMtu::Mtu2048)] {
        let Some(nodes) = network(mtu, 1) else { return an_ordinary_user_is_told() };
        for (v6, mode) in [(false, XdpMode::Native), (true, XdpMode::Native), (false, XdpMode::Generic)] {
            let [mut one, mut other] = nodes
                .each_ref()
                .map(|node| open(node, XdpConfig { mode: Some(mode), ..config(node.address(v6)) }));
            assert_eq!((one.mtu(), one.mode()), (path_mtu, mode), "{}", one.describe());
            println!("{}", one.describe());
            everything_arrives(&nodes[0], &mut one, &mut other);
            everything_arrives(&nodes[1], &mut other, &mut one);
            let counters = one.counters();
            assert_eq!((counters.sent, counters.received, counters.refused), (200, 200, 0));
            assert_eq!((one.dropped(), other.dropped()), (0, 0));
        }
    }
}

#[test]
fn a_peer_with_sockets_is_like_any_other() {
    let Some(nodes) = network(9000, 1) else { return };
    for (v6, segmentation) in [(false, true), (true, true), (false, false)] {
        let addresses = nodes.each_ref().map(|node| node.address(v6));
        let mut one = open(&nodes[0], config(addresses[0]));
        let mut other =
            nodes[1].inside(|| udp_link(UdpConfig { segmentation, ..UdpConfig::new(addresses[1]) }));
        everything_arrives(&nodes[0], &mut one, &mut other);
        everything_arrives(&nodes[1], &mut other, &mut one);
    }
}

fn is_readable(link: &dyn Link) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    // SAFETY: the link owns the descriptor and outlives this use of it.
    let descriptor = unsafe { BorrowedFd::borrow_raw(link.event_descriptor().unwrap()) };
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn every_queue_is_served() {
    let Some(nodes) = network(1500, 2) else { return };
    let [mut one, mut other] = nodes.each_ref().map(|node| open(node, config(node.address(false))));
    assert_eq!((one.queues(), other.queues()), (2, 2), "{}", one.describe());
    everything_arrives(&nodes[0], &mut one, &mut other);
    for entropy in 0..4 {
        let path = way(&mut one, other.local_address(), entropy, 0).unwrap();
        assert_eq!(path.via & 0xff, entropy % 2, "ways alternate between the queues");
        assert!(!is_readable(&other));
        send(&mut one, &path, entropy, 100);
        assert!(one.flush());
        let start = Instant::now();
        while !is_readable(&other) {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        drain(&mut other, 1, &mut |received| assert_eq!(number(received), entropy));
        assert!(!is_readable(&other));
    }
    drop(one);
    // Of two queues the second alone.
    let second = XdpConfig { queues: Some(1..2), ..config(nodes[0].address(false)) };
    let mut one = open(&nodes[0], second.clone());
    let path = way(&mut one, other.local_address(), 7, 0).unwrap();
    send(&mut one, &path, 7, 100);
    assert!(one.flush());
    drain(&mut other, 1, &mut |received| assert_eq!(number(received), 7));
    drop(one);
    let third = try_open(&nodes[0], XdpConfig { queues: Some(1..3), ..second }).unwrap_err();
    assert!(matches!(third, LinkError::NoQueue { queue: 2, .. }), "{third}");
}

#[test]
fn a_link_without_copies_is_refused_where_the_driver_copies() {
    let Some(nodes) = network(1500, 1) else { return };
    let without = XdpConfig { zero_copy: ZeroCopy::Required, ..config(nodes[0].address(false)) };
    for try_it in [XdpLink::check, |config: &XdpConfig| XdpLink::new(config.clone()).map(drop)] {
        let error = nodes[0].inside(|| try_it(&without)).unwrap_err();
        assert!(matches!(&error, LinkError::Copies { interface, .. } if interface == INTERFACE), "{error}");
    }
}

#[test]
fn a_check_attaches_nothing_and_sees_what_is_attached() {
    let Some(nodes) = network(1500, 1) else { return };
    let check = |address| nodes[0].inside(|| XdpLink::check(&config(address)));
    let address = nodes[0].address(false);
    for _ in 0..2 {
        check(address).unwrap();
    }
    let _link = open(&nodes[0], config(address));
    let error = check(nodes[0].address(true)).unwrap_err();
    assert!(matches!(error, LinkError::ProgramAttached { id: Some(_), .. }), "{error}");
}

#[test]
fn the_kernels_other_traffic_is_left_alone() {
    let Some(nodes) = network(1500, 1) else { return };
    nodes[0].ip(&format!("addr add 10.77.0.11/24 dev {INTERFACE}"));
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let links = nodes
            .each_ref()
            .map(|node| open(node, XdpConfig { mode: Some(mode), ..config(node.address(false)) }));
        let address = nodes[0].address(false);
        // TCP.
        let listener = nodes[0].inside(|| TcpListener::bind((address, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let mut client = nodes[1].inside(|| TcpStream::connect(to).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        let text = vec![b'x'; 100_000];
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&text).unwrap());
            let mut got = vec![0; text.len()];
            server.read_exact(&mut got).unwrap();
            assert_eq!(got, text);
        });
        // Echo requests, if there is a program to send them.
        if let Ok(ping) = nodes[1].inside(|| {
            Command::new("ping")
                .args(["-c", "1", "-W", "5", &address.to_string()])
                .stdout(Stdio::null())
                .status()
        }) {
            assert!(ping.success());
        }
        // The same port of another address of the interface, which another daemon may have.
        let mut one = nodes[0].inside(|| udp_link(UdpConfig::new("10.77.0.11".parse().unwrap())));
        let socket = nodes[1].inside(|| UdpSocket::bind((nodes[1].address(false), 0)).unwrap());
        socket.send_to(b"hello", (one.local_address(), ROCE_PORT)).unwrap();
        drain(&mut one, 1, &mut |received| assert_eq!(received.transport, b"hello"));
        assert_eq!(links[0].counters().received, 0);
    }
}

#[test]
fn whatever_comes_to_the_port_is_handed_over() {
    let Some(nodes) = network(9000, 1) else { return };
    let mut to = open(&nodes[0], config(nodes[0].address(false)));
    let stranger = nodes[1].inside(|| UdpSocket::bind((nodes[1].address(false), 0)).unwrap());
    let mut random = 1_u32;
    for length in (0..3780).step_by(37) {
        let rubbish: Vec<u8> = (0..length)
            .map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 24) as u8
            })
            .collect();
        stranger.send_to(&rubbish, (to.local_address(), ROCE_PORT)).unwrap();
        drain(&mut to, 1, &mut |received| {
            assert_eq!(received.transport, rubbish);
            assert!(Packet::parse(received.transport, received.check).is_err());
        });
    }
    // What is longer than a chunk is dropped, and counted.
    stranger.send_to(&[0; 8000], (to.local_address(), ROCE_PORT)).unwrap();
    assert_eq!(to.poll(Time(0), &mut |_| ()), 0);
    assert_eq!(to.dropped(), 1);
}

#[test]
fn a_full_link_says_so_and_recovers() {
    let Some(nodes) = network(1500, 1) else { return };
    let [mut from, mut to] =
        nodes.each_ref().map(|node| open(node, XdpConfig { frames: 64, ..config(node.address(false)) }));
    let path = way(&mut from, to.local_address(), 0, 0).unwrap();
    let mut taken = 0;
    let refusal = loop {
        match from.send(&path, 1000, &mut |_, memory| memory.fill(1)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refusal, taken), (SendError::Full, 64));
    let too_long = from.send(&path, 4000, &mut |_, _| unreachable!("it is not taken"));
    assert_eq!(too_long, Err(SendError::TooLong));
    for _ in 0..10 {
        while !from.flush() {}
        // What the receiver has no room for is lost, as on any network.
        while from.send(&path, 1000, &mut |_, memory| memory.fill(1)).is_ok() {}
    }
    while !from.flush() {}
    assert_eq!(from.counters().sent, 11 * 64);
    while to.poll(Time(0), &mut |_| ()) > 0 {}
    assert!(to.dropped() > 0);
    send(&mut from, &path, 1, 100);
    assert!(from.flush());
    drain(&mut to, 1, &mut |received| assert_eq!(number(received), 1));
}

#[test]
fn a_neighbour_that_moves_is_followed() {
    let Some(nodes) = network(1500, 1) else { return };
    let mut from = open(&nodes[0], config(nodes[0].address(false)));
    let mut to = nodes[1].inside(|| udp_link(UdpConfig::new(nodes[1].address(false))));
    let path = way(&mut from, to.local_address(), 0, 0).unwrap();
    let mut deliver = |from: &mut XdpLink, number: u32| {
        send(from, &path, number, 100);
        assert!(from.flush());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if to.poll(Time(0), &mut |_| ()) > 0 {
                return true;
            }
        }
        false
    };
    assert!(deliver(&mut from, 0));
    nodes[1].ip(&format!("link set {INTERFACE} address 02:00:00:00:77:77"));
    nodes[0]
        .ip(&format!("neigh replace {} lladdr 02:00:00:00:77:77 dev {INTERFACE}", nodes[1].address(false)));
    // The news are read when it is time, not before.
    from.poll(Time(1_000_000_000), &mut |_| ());
    assert!(deliver(&mut from, 1));
}

#[test]
fn a_neighbour_that_the_administrator_has_given_stays() {
    let Some(nodes) = network(1500, 1) else { return };
    let given = "10.77.0.99 dev rw0 lladdr 02:00:00:00:00:99 PERMANENT";
    nodes[0].ip(&format!("neigh add {}", given.replace("PERMANENT", "nud permanent")));
    let mut link = open(&nodes[0], config(nodes[0].address(false)));
    way(&mut link, "10.77.0.99".parse().unwrap(), 0, 0).unwrap();
    for tick in 0..250 {
        link.poll(Time(tick * 100_000_000), &mut |_| ());
    }
    let shown =
        nodes[0].inside(|| Command::new("ip").args(["neigh", "show", "10.77.0.99"]).output().unwrap());
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), given.split_whitespace().collect::<Vec<_>>());
}

/// Not a test by itself: the process that [`what_is_killed_leaves_nothing_behind`] kills.
#[test]
fn a_process_to_be_killed() {
    let Ok(namespace) = env::var("RINGWAY_TEST_NAMESPACE") else { return };
    let file = std::fs::File::open(namespace).unwrap();
    rustix::thread::move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&file),
        Some(rustix::thread::LinkNameSpaceType::Network),
    )
    .unwrap();
    let _link = XdpLink::new(config("10.77.0.1".parse().unwrap())).unwrap();
    println!("attached");
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn what_is_killed_leaves_nothing_behind() {
    let Some(nodes) = network(1500, 1) else { return };
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_process_to_be_killed", "--nocapture"])
        .env("RINGWAY_TEST_NAMESPACE", nodes[0].path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("attached") {
        let mut some = [0; 100];
        let length = output.read(&mut some).unwrap();
        assert!(length > 0, "it ended: {}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&some[..length]);
    }
    nodes[0].ip(&format!("addr add 10.77.0.11/24 dev {INTERFACE}"));
    let other = config("10.77.0.11".parse().unwrap());
    let refused = try_open(&nodes[0], other.clone()).unwrap_err();
    assert!(matches!(refused, LinkError::ProgramAttached { id: Some(_), .. }), "{refused}");
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    while let Err(error) = try_open(&nodes[0], other.clone()) {
        assert!(start.elapsed() < Duration::from_secs(10), "{error}");
    }
}

#[test]
fn a_link_can_be_made_again() {
    let Some(nodes) = network(1500, 2) else { return };
    for _ in 0..5 {
        drop(open(&nodes[0], config(nodes[0].address(false))));
    }
}

#[test]
fn what_a_link_sends_to_itself_comes_back() {
    let Some(nodes) = network(1500, 1) else { return };
    let mut link = open(&nodes[0], config(nodes[0].address(true)));
    assert_eq!(link.deadline(), None);
    let own = link.local_address();
    let path = way(&mut link, own, 0, Ecn::Capable1 as u8).unwrap();
    let mut taken = 0;
    while link.send(&path, 100, &mut |_, memory| memory.fill(1)).is_ok() {
        taken += 1;
    }
    assert_eq!((taken, link.deadline()), (256, Some(Time(0))));
    drain(&mut link, taken, &mut |received| assert_eq!(received.transport, [1; 100]));
    assert_eq!(link.deadline(), None);
    for number in 0..600 {
        send(&mut link, &path, number, 1024);
        assert!(link.flush());
        drain(&mut link, 1, &mut |received| {
            assert_eq!((received.flow, received.ecn), (path.flow, Ecn::Capable1));
            assert_eq!(packets::number(received), number);
        });
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let Some(nodes) = network(1500, 1) else { return };
    nodes[0].ip("link add other0 type veth peer name other1");
    nodes[0].ip("addr add 10.78.0.1/24 dev other0");
    nodes[0].ip("link set other0 up");
    nodes[0].ip(&format!("addr add 10.77.0.11/24 dev {INTERFACE}"));
    let address = nodes[0].address(false);
    let refused = |config: XdpConfig| try_open(&nodes[0], config).unwrap_err();

    let foreign = refused(config("203.0.113.77".parse().unwrap()));
    assert!(matches!(foreign, LinkError::NotLocal { .. }), "{foreign}");
    let wrong = refused(XdpConfig { interface: Some("other0".to_owned()), ..config(address) });
    assert!(matches!(&wrong, LinkError::WrongInterface { found, .. } if found == INTERFACE), "{wrong}");
    let loopback = refused(config("127.0.0.1".parse().unwrap()));
    assert!(matches!(loopback, LinkError::NotEthernet { .. }), "{loopback}");
    for frames in [0, 100, 1 << 16] {
        let limit = refused(XdpConfig { frames, ..config(address) });
        assert!(matches!(limit, LinkError::Limit { .. }), "{limit}");
    }
    let taken = nodes[0].inside(|| udp_link(UdpConfig::new(address)));
    let port = refused(config(address));
    assert!(matches!(port, LinkError::PortTaken { port: ROCE_PORT, .. }), "{port}");
    drop(taken);
    nodes[0].ip("link set other0 mtu 300");
    let small = refused(config("10.78.0.1".parse().unwrap()));
    assert!(matches!(small, LinkError::MtuTooSmall { mtu_bytes: 300, .. }), "{small}");

    let mut link = open(&nodes[0], config(address));
    let second = refused(config(nodes[0].address(true)));
    assert!(matches!(second, LinkError::ProgramAttached { id: Some(_), .. }), "{second}");
    let mut to = |peer: &str| way(&mut link, peer.parse().unwrap(), 0, 0).unwrap_err();
    let family = to("fd77::2");
    assert!(matches!(family, LinkError::Family { .. }), "{family}");
    let neighbour = to("10.77.0.11");
    assert!(matches!(&neighbour, LinkError::WrongWay { found, .. } if found == "lo"), "{neighbour}");
    let elsewhere = to("10.78.0.9");
    assert!(matches!(&elsewhere, LinkError::WrongWay { found, .. } if found == "other0"), "{elsewhere}");
    let nowhere = to("203.0.113.77");
    assert!(matches!(nowhere, LinkError::Unreachable { .. }), "{nowhere}");
    let silent = to("10.77.0.99");
    assert!(matches!(silent, LinkError::NoNeighbour { .. }), "{silent}");
}

#[test]
fn a_gateway_and_its_mtu_are_found() {
    let Some(nodes) = network(9000, 1) else { return };
    let mut link = open(&nodes[0], config(nodes[0].address(false)));
    nodes[0].ip("route add 10.99.0.0/24 via 10.77.0.2 mtu 1200");
    let direct = way(&mut link, nodes[1].address(false), 0, 0).unwrap();
    let beyond = way(&mut link, "10.99.0.5".parse().unwrap(), 0, 0).unwrap();
    assert_eq!((direct.mtu, beyond.mtu), (PathMtu::Mtu2048, PathMtu::Mtu1024));
    assert_eq!(direct.via, beyond.via, "both begin with the same neighbour");
    nodes[0].ip("route change 10.99.0.0/24 via 10.77.0.2 mtu 200");
    let small = way(&mut link, "10.99.0.5".parse().unwrap(), 0, 0).unwrap_err();
    assert!(matches!(small, LinkError::MtuTooSmall { mtu_bytes: 200, .. }), "{small}");
}

/// Root can play an ordinary user in one thread.
#[test]
fn an_ordinary_user_is_told() {
    let told = |address: IpAddr| {
        thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            XdpLink::new(config(address)).unwrap_err()
        })
        .join()
        .unwrap()
    };
    if let Some(nodes) = network(1500, 1) {
        let refused = nodes[0].inside(|| told(nodes[0].address(false)));
        assert!(matches!(refused, LinkError::NoCapability { .. }), "{refused}");
        assert!(refused.to_string().contains("CAP_NET_ADMIN"), "{refused}");
        return;
    }
    // Any Ethernet interface with an address will do; there may be none.
    let route = UdpSocket::bind("0.0.0.0:0").unwrap();
    if route.connect("203.0.113.1:9").is_ok() {
        let refused = told(route.local_addr().unwrap().ip());
        println!("{refused}");
        assert!(
            matches!(
                refused,
                LinkError::NoCapability { .. } | LinkError::NotEthernet { .. } | LinkError::PortTaken { .. }
            ),
            "{refused}"
        );
    }
}

#[test]
fn few_capabilities_are_enough() {
    let Some(nodes) = network(1500, 1) else { return };
    let [mut link, mut other] = nodes.each_ref().map(|node| {
        let enough = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
        node.inside(|| {
            let mut sets = capabilities(None).unwrap();
            // Locked memory has a limit of its own.
            sets.effective = enough | CapabilitySet::IPC_LOCK;
            set_capabilities(None, sets).unwrap();
            XdpLink::new(config(node.address(false))).unwrap_or_else(|error| panic!("{error}"))
        })
    });
    everything_arrives(&nodes[0], &mut link, &mut other);
}

#[test]
fn moving_packets_does_not_allocate() {
    let Some(nodes) = network(1500, 2) else { return };
    let [mut from, mut to] = nodes.each_ref().map(|node| open(node, config(node.address(false))));
    let paths = [0, 1].map(|entropy| way(&mut from, to.local_address(), entropy, 2).unwrap());
    let allocations = allocation_counter::measure(|| {
        for round in 0..50 {
            for _ in 0..5 {
                from.send(&paths[round % 2], 1000, &mut |_, memory| memory.fill(9)).unwrap();
            }
            assert!(from.flush());
            let mut received = 0;
            while received < 5 {
                // A tenth of a second each, so that neighbours are looked after as well.
                received += to.poll(Time(round as u64 * 100_000_000), &mut |_| ());
                from.poll(Time(round as u64 * 100_000_000), &mut |_| ());
            }
        }
    });
    assert_eq!(allocations.count_total, 0);
}
