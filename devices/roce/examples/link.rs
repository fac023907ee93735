//! Half round trip and goodput of the UDP link alone: packets with headers and CRCs, but no connection behind them.
//!
//! `cargo run --release -p ringway-roce --example link` measures between two threads on loopback. Between two hosts, or
//! network namespaces: `link serve ADDRESS` on one, `link measure ADDRESS PEER` on the other.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

use std::{
    env,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use ringway_roce::{Link, Path, UdpConfig, UdpLink};
use ringway_verbs::Time;
use ringway_wire::{Aeth, Bth, Header, Packet, Psn, QueuePair, Syndrome};

const ROUNDS: usize = 100_000;
const FLOOD: Duration = Duration::from_secs(2);
/// Packets in flight: less than the smallest socket buffers hold.
const WINDOW_BYTES: u32 = 64 << 10;
/// When an answer is taken for lost.
const PATIENCE: Duration = Duration::from_millis(50);

fn send(link: &mut UdpLink, path: &Path, packet: &Packet<'_>) {
    let written = link.send(path, packet.length(), &mut |identification, memory| {
        packet.emit(&path.flow, identification, memory).unwrap();
    });
    written.unwrap();
}

/// Answers every packet that asks for it, checks every CRC; ends after a second of silence once something has come.
fn serve(link: &mut UdpLink) {
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
fn answered(link: &mut UdpLink, psn: Psn) -> bool {
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

fn measure(link: &mut UdpLink, peer: IpAddr) {
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

fn open(address: &str, segmentation: bool) -> UdpLink {
    UdpLink::new(UdpConfig { segmentation, ..UdpConfig::new(address.parse().unwrap()) }).unwrap()
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["serve", address] => serve(&mut open(address, true)),
        ["measure", address, peer] => measure(&mut open(address, true), peer.parse().unwrap()),
        [] => {
            for segmentation in [true, false] {
                println!("segmentation {segmentation}");
                let (mut one, mut other) =
                    (open("127.0.0.71", segmentation), open("127.0.0.72", segmentation));
                let peer = other.local_address();
                let server = thread::spawn(move || serve(&mut other));
                measure(&mut one, peer);
                server.join().unwrap();
            }
        }
        _ => println!("link | link serve ADDRESS | link measure ADDRESS PEER"),
    }
}
