//! Half round trip, goodput and packet rate of links alone: packets with headers and CRCs, but no connection behind them.
//!
//! `cargo run --release -p ringway-roce --example link` measures UDP between two threads on loopback; with the argument
//! `veth`, as root, UDP and AF_XDP between two network namespaces. Between two hosts: `link serve {udp|xdp} ADDRESS` on
//! one, `link measure {udp|xdp} ADDRESS PEER` on the other.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

#[path = "fabric/frames.rs"]
mod frames;
#[path = "../tests/namespaces/mod.rs"]
mod namespaces;

use std::{
    env,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use ringway_roce::{Link, Path, UdpConfig, UdpLink, XdpConfig, XdpLink, XdpMode};
use ringway_verbs::Time;
use ringway_wire::{Aeth, Bth, Header, Packet, Psn, QueuePair, Syndrome};

use self::frames::{OUTER_BYTES, PATIENCE, SMALL_BYTES};

const ROUNDS: usize = 100_000;
const FLOOD: Duration = Duration::from_secs(2);
/// Packets in flight: less than the smallest socket buffers hold.
const WINDOW_BYTES: u32 = 64 << 10;

fn send(link: &mut dyn Link, path: &Path, packet: &Packet<'_>) {
    let written = link.send(path, packet.length(), &mut |identification, memory| {
        packet.emit(&path.flow, identification, memory).unwrap();
    });
    written.unwrap();
}

/// Answers every packet that asks for it, checks every CRC; ends after a second of silence once something has come.
fn serve(link: &mut dyn Link) {
    let mut path: Option<Path> = None;
    let mut last: Option<Instant> = None;
    let mut wrong = 0_u64;
    while last.is_none_or(|last| last.elapsed() < Duration::from_secs(1)) {
        let mut asked = None;
        let mut peer = None;
        link.poll(Time(0), &mut |received| match Packet::parse(received.transport, received.check) {
            Ok(packet) => {
                peer = Some(received.flow.addresses.source());
                asked = packet.bth.ack_request.then_some(packet.bth.psn).or(asked);
            }
            Err(_) => wrong += 1,
        });
        let Some(peer) = peer else { continue };
        last = Some(Instant::now());
        if let Some(psn) = asked {
            let path = *path.get_or_insert_with(|| link.path(peer, 0, 0).unwrap());
            let bth = Bth::new(QueuePair::default(), psn);
            let header = Header::Acknowledge(Aeth { syndrome: Syndrome::ACK, msn: 0 });
            send(link, &path, &Packet { bth, header, payload: &[] });
            link.flush();
        }
    }
    let counters = link.counters();
    println!("served: {} packets in {} calls, {wrong} wrong", counters.received, counters.calls);
}

/// Waits for the answer to this packet; `false` when it was lost.
fn answered(link: &mut dyn Link, psn: Psn) -> bool {
    let start = Instant::now();
    let mut found = false;
    while !found && start.elapsed() < PATIENCE {
        link.poll(Time(0), &mut |received| {
            let packet = Packet::parse(received.transport, received.check).unwrap();
            found |= packet.bth.psn == psn;
        });
    }
    found
}

fn measure(link: &mut dyn Link, peer: IpAddr) {
    let path = link.path(peer, 0, 0).unwrap();
    let asking = |psn| Bth::new(QueuePair::default(), psn).with_ack_request(true);
    let mut times = Vec::with_capacity(ROUNDS);
    let mut psn = Psn::ZERO;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        send(link, &path, &Packet { bth: asking(psn), header: Header::SendOnly, payload: &[1; 8] });
        link.flush();
        if answered(link, psn) {
            times.push(start.elapsed() / 2);
        }
        psn = psn.next();
    }
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!("8 B: half round trip p50 {:?}, p99 {:?}, {} lost", at(0.5), at(0.99), ROUNDS - times.len());

    let payload = vec![0x5a; path.mtu.bytes()];
    let window = WINDOW_BYTES / path.mtu.bytes() as u32;
    let (start, mut bytes, mut lost) = (Instant::now(), 0_u64, 0_u64);
    while start.elapsed() < FLOOD {
        for left in (0..window).rev() {
            let bth = Bth::new(QueuePair::default(), psn).with_ack_request(left == 0);
            send(link, &path, &Packet { bth, header: Header::SendMiddle, payload: &payload });
            psn = psn.next();
        }
        link.flush();
        if answered(link, psn.minus(1)) {
            bytes += u64::from(window) * payload.len() as u64;
        } else {
            lost += 1;
        }
    }
    let gbps = bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9;
    println!("{} B packets, {window} at a time: {gbps:.2} Gb/s, {lost} windows lost", payload.len());
    println!("{:?}", link.counters());
}

/// Bare frames: the half round trip, and how many of a size arrive in a second while one side sends without a pause.
fn bare<L: Link + ?Sized>(one: &mut L, other: &mut L, path: &Path, back: &Path) {
    let mut times = frames::half_round_trips([&mut *one, &mut *other], [path, back], ROUNDS);
    times.sort_unstable();
    println!(
        "bare, {} B frames: half round trip p50 {:?}, p99 {:?}",
        SMALL_BYTES + OUTER_BYTES,
        times[ROUNDS / 2],
        times[ROUNDS / 100 * 99]
    );
    for length in [22, 1024, 2084] {
        let flood = frames::flood([&mut *one, &mut *other], path, length, |_, time| time >= FLOOD);
        let frame_bytes = length + OUTER_BYTES;
        let rate = |packets: f64| packets / flood.time.as_secs_f64() / 1e6;
        let (sent, received) = (rate(flood.sent as f64), rate(flood.received as f64));
        let gbps = received * frame_bytes as f64 * 8.0 / 1e3;
        println!(
            "bare, {frame_bytes} B frames: {sent:.2} M/s sent, {received:.2} M/s received, {gbps:.2} Gb/s"
        );
    }
}

fn open(kind: &str, address: IpAddr) -> Box<dyn Link> {
    match kind {
        "udp" => Box::new(UdpLink::new(UdpConfig::new(address)).unwrap()),
        _ => {
            let link = XdpLink::new(XdpConfig::new(address)).unwrap();
            println!("{}", link.describe());
            Box::new(link)
        }
    }
}

/// Between two network namespaces, one kind after the other.
fn between_namespaces(kinds: &[&str]) {
    let Some(nodes) = namespaces::network(9000, 1) else { return };
    let [here, there] = nodes.each_ref().map(|node| node.address(false));
    for kind in kinds {
        println!("== {kind}");
        let make = |node: usize| {
            nodes[node].inside(|| {
                let address = nodes[node].address(false);
                match *kind {
                    "generic" => {
                        let config = XdpConfig { mode: Some(XdpMode::Generic), ..XdpConfig::new(address) };
                        Box::new(XdpLink::new(config).unwrap())
                    }
                    kind => open(kind, address),
                }
            })
        };
        let (mut one, mut other) = (make(0), make(1));
        let path = nodes[0].inside(|| one.path(there, 0, 0).unwrap());
        let back = nodes[1].inside(|| other.path(here, 0, 0).unwrap());
        bare(&mut *one, &mut *other, &path, &back);
        thread::scope(|scope| {
            scope.spawn(|| nodes[1].inside(|| serve(&mut *other)));
            nodes[0].inside(|| measure(&mut *one, there));
        });
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["serve", kind @ ("udp" | "xdp"), address] => serve(&mut *open(kind, address.parse().unwrap())),
        ["measure", kind @ ("udp" | "xdp"), address, peer] => {
            measure(&mut *open(kind, address.parse().unwrap()), peer.parse().unwrap());
        }
        ["veth"] => between_namespaces(&["udp", "xdp", "generic"]),
        ["veth", kind @ ("udp" | "xdp" | "generic")] => between_namespaces(&[kind]),
        [] => {
            for segmentation in [true, false] {
                println!("segmentation {segmentation}");
                let open = |address: &str| {
                    let config = UdpConfig { segmentation, ..UdpConfig::new(address.parse().unwrap()) };
                    UdpLink::new(config).unwrap()
                };
                let (mut one, mut other) = (open("127.0.0.71"), open("127.0.0.72"));
                let peer = other.local_address();
                let server = thread::spawn(move || serve(&mut other));
                measure(&mut one, peer);
                server.join().unwrap();
            }
        }
        _ => println!(
            "link | link veth [udp|xdp|generic] | link serve {{udp|xdp}} ADDRESS | link measure {{udp|xdp}} ADDRESS PEER"
        ),
    }
}
