//! Captures of real traffic, read back here and, where it is installed, by tshark.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::{
    env, fs, io,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ringway_roce::{Link, Path, UdpConfig, UdpLink};
use ringway_verbs::Time;
use ringway_wire::{
    Aeth, Bth, Check, Datagram, Ecn, Header, Packet, Psn, QueuePair, ROCE_PORT, Reth, Syndrome,
};
use ringway_wrap::{Capture, FaultSpec, Faulty};

/// Addresses in 127.0.0.0/8 that nobody else uses.
fn link() -> UdpLink {
    static NEXT: AtomicU32 = AtomicU32::new(32);
    let own = (process::id() << 6) + NEXT.fetch_add(1, Ordering::Relaxed);
    let address = IpAddr::V4(Ipv4Addr::from_bits(127 << 24 | 1 << 22 | own & 0xff_ffff));
    UdpLink::new(UdpConfig::new(address)).unwrap_or_else(|error| panic!("{error}"))
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("ringway-wrap-{}-{name}.pcap", process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const PAYLOAD: [u8; 1024] = [0x5a; 1024];

/// A WRITE of four packets, with a marked one at the end, and its acknowledgement.
fn packets() -> Vec<Packet<'static>> {
    let reth = Reth { address: 0x1000, key: 0x0102_0304, length: 3077 };
    let bth = |psn| Bth::new(QueuePair::new(0x11).unwrap(), Psn::new(psn));
    let full = |psn, header| Packet { bth: bth(psn), header, payload: &PAYLOAD };
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
    vec![
        full(0xff_fffe, Header::WriteFirst(reth)),
        full(0xff_ffff, Header::WriteMiddle),
        full(0, Header::WriteMiddle),
        Packet { bth: bth(1).with_ack_request(true), header: Header::WriteLast, payload: &[7; 5] },
        Packet { bth: bth(1), header: Header::Acknowledge(aeth), payload: &[] },
    ]
}

fn exchange(from: &mut impl Link, to: &mut impl Link) -> Path {
    let path = from.path(to.local_address(), 0, Ecn::Capable0 as u8).unwrap();
    for packet in packets() {
        from.send(&path, packet.length(), &mut |id, memory| {
            packet.emit(&path.flow, id, memory).unwrap();
        })
        .unwrap();
    }
    assert!(from.flush());
    receive(to, packets().len());
    path
}

fn receive(to: &mut impl Link, count: usize) {
    let start = Instant::now();
    let mut received = 0;
    while received < count {
        received += to.poll(Time(0), &mut |_| ());
        assert!(start.elapsed() < Duration::from_secs(20), "{received} of {count} packets came");
    }
}

/// The records of a capture, by the format's definition.
fn records(file: &[u8]) -> Vec<(Duration, Vec<u8>)> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!([word(0), word(4), word(8), word(12), word(20)], [0xa1b2_3c4d, 0x0004_0002, 0, 0, 101]);
    let (mut at, mut found) = (24, Vec::new());
    while at < file.len() {
        let length = word(at + 8) as usize;
        assert_eq!(word(at + 12) as usize, length, "nothing is cut off");
        assert!(word(at + 16 - 12) < 1_000_000_000, "nanoseconds");
        let time = Duration::new(word(at).into(), word(at + 4));
        found.push((time, file[at + 16..at + 16 + length].to_vec()));
        at += 16 + length;
    }
    assert_eq!(at, file.len());
    found
}

#[test]
fn a_capture_holds_what_was_sent_and_received() {
    let (sent, received) = (Scratch::new("sent"), Scratch::new("received"));
    let mut from = Capture::create(link(), &sent.0).unwrap();
    let mut to = Capture::create(link(), &received.0).unwrap();
    let path = exchange(&mut from, &mut to);
    assert!(from.error().is_none() && to.error().is_none());
    drop((from, to));

    for file in [&sent, &received] {
        let records = records(&fs::read(&file.0).unwrap());
        assert!(records.is_sorted_by_key(|(time, _)| *time));
        assert_eq!(records.len(), packets().len());
        for ((_, bytes), packet) in records.iter().zip(packets()) {
            let datagram = Datagram::parse(bytes).unwrap();
            assert_eq!((datagram.flow, Ecn::of(datagram.options.traffic_class)), (path.flow, Ecn::Capable0));
            assert!(datagram.udp_checksum_is_right() && datagram.options.udp_checksum != 0);
            assert_eq!(Packet::parse(datagram.transport, datagram.check()), Ok(packet));
        }
    }
}

#[test]
fn wireshark_understands_a_capture() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return ringway_sim::not_tried("tshark is not installed");
    }
    let file = Scratch::new("tshark");
    let (mut from, mut to) = (Capture::create(link(), &file.0).unwrap(), link());
    exchange(&mut from, &mut to);
    drop(from);
    let fields =
        ["infiniband.bth.opcode", "infiniband.bth.psn", "ip.dsfield.ecn", "udp.dstport", "_ws.malformed"];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    // Nothing of the user's own settings.
    let output = Command::new("tshark")
        .env("HOME", env::temp_dir())
        .args([
            "-o",
            "udp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
            "-E",
            "separator=,",
            "-T",
            "fields",
        ])
        .args(fields)
        .arg("-r")
        .arg(&file.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let expected: Vec<String> = packets()
        .iter()
        .map(|packet| format!("{},{},2,{ROCE_PORT},", packet.header.opcode().code(), packet.bth.psn.value()))
        .collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn wraps_stack_and_can_be_chosen_at_run_time() {
    let (outside, inside) = (Scratch::new("outside"), Scratch::new("inside"));
    let spec: FaultSpec = "loss=0.5,seed=5".parse().unwrap();
    let lossy: Box<dyn Link> = Box::new(Faulty::new(Capture::create(link(), &inside.0).unwrap(), spec));
    let mut to: Box<dyn Link> = Box::new(Capture::create(lossy, &outside.0).unwrap());
    let mut from = link();
    let path = from.path(to.local_address(), 0, 0).unwrap();
    let packet = packets()[4];
    const PACKETS: u64 = 64;
    for _ in 0..PACKETS {
        from.send(&path, packet.length(), &mut |id, memory| {
            packet.emit(&path.flow, id, memory).unwrap();
        })
        .unwrap();
    }
    assert!(from.flush());
    let start = Instant::now();
    let mut handed = 0;
    while to.counters().received < PACKETS {
        handed += to.poll(Time(0), &mut |received| {
            let exact =
                Check::Exact(received.flow.icrc(received.identification, received.transport.len() as u16));
            assert_eq!(Packet::parse(received.transport, exact), Ok(packet));
        });
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    drop(to);
    let count = |file: &Scratch| records(&fs::read(&file.0).unwrap()).len();
    assert_eq!((count(&inside) as u64, count(&outside)), (PACKETS, handed));
    assert!((16..48).contains(&handed), "half of them: {handed}");
}

/// A disk that is full after so many bytes.
#[derive(Debug)]
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_capture_but_not_the_traffic() {
    assert!(Capture::new(link(), Full(10)).is_err());
    let (mut from, mut to) = (Capture::new(link(), Full(2000)).unwrap(), link());
    exchange(&mut from, &mut to);
    assert_eq!(from.error().map(io::Error::kind), Some(io::ErrorKind::StorageFull));
    exchange(&mut from, &mut to);
}
