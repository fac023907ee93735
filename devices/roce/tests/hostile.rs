//! Packets of somebody who knows everything and means harm, and of somebody who knows nothing: no panic, no write to
//! memory that was not granted, and other connections go on.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod common;

use core::net::{IpAddr, SocketAddr};
use std::net::UdpSocket;

use common::{Cuttable, address, link};
use fastrand::Rng;
use ringway_roce::{Link, Path, RoceConfig, RoceDevice, RoceEndpoint, UdpConfig, UdpLink};
use ringway_sim::conformance::{Fixture, Memory, Side, pattern, request};
use ringway_verbs::{
    Access, Completion, Device, Operation, QueuePairConfig, QueuePairNumber, QueuePairState, ReceiveRequest,
    Role, Status, Time,
};
use ringway_wire::{
    Aeth, AtomicEth, Bth, Deth, Header, Opcode, Packet, PathMtu, Psn, QueuePair, ROCE_PORT, Reth, RnrTimer,
    Syndrome,
};

harness!(Pair, common::config(), |_, link| Box::new(link));

const REGION: u64 = 8192;
const DEPTH: u32 = 8;

/// The device, a queue pair of it, memory of every kind, and a link at the address that its peer should have.
struct Scene {
    device: RoceDevice<UdpLink>,
    attacker: UdpLink,
    path: Path,
    random: Rng,
    now: u64,
}

/// What was granted to the peer, and what was not.
struct Regions {
    granted: Memory,
    read_only: Memory,
    private: Memory,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let own = address();
        let device = RoceDevice::new(link(UdpConfig::new(own)), config()).unwrap();
        let mut attacker = link(UdpConfig::new(address()));
        let path = attacker.path(own, 0, 2).unwrap();
        Self { device, attacker, path, random: Rng::with_seed(seed), now: 1 }
    }

    fn register(&mut self, access: Access) -> Memory {
        let mapping = std::sync::Arc::new(ringway_mem::Mapping::private(REGION as usize).unwrap());
        let keys = self.device.register(std::sync::Arc::clone(&mapping), access).unwrap();
        Memory { mapping, keys }
    }

    /// A queue pair connected to the attacker, with receives and requests of its own, and its first PSN.
    fn queue_pair(&mut self, ringway: bool, regions: &Regions) -> (QueuePairNumber, RoceEndpoint) {
        let depths = QueuePairConfig { send_depth: DEPTH, receive_depth: DEPTH };
        let number = self.device.create_queue_pair(depths).unwrap();
        let mine = RoceEndpoint::decode(&self.device.endpoint(number).unwrap()).unwrap();
        let psn = self.random.u32(..1 << 24);
        let address = self.attacker.local_address();
        let plain = RoceEndpoint::plain(address, 0x77, psn, PathMtu::Mtu1024, 4).unwrap();
        let peer = if ringway { RoceEndpoint { kind: mine.kind, ..plain } } else { plain };
        self.device.connect(number, &peer.encode(), Role::Passive).unwrap();
        for id in 0..DEPTH {
            let local = regions.granted.slice(0, 3000);
            self.device.post_receive(number, &ReceiveRequest { id: id.into(), local }).unwrap();
        }
        let local = regions.granted.slice(4096, 4096);
        let remote = ringway_verbs::RemoteSlice { key: ringway_verbs::RemoteKey(1), offset: 0 };
        for operation in [Operation::Read { remote }, Operation::Write { remote }] {
            self.device.post_send(number, &request(1, operation, &[local])).unwrap();
        }
        self.device.flush();
        (number, RoceEndpoint { psn: peer.psn, ..mine })
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let path = self.path;
        self.attacker
            .send(&path, packet.length(), &mut |identification, memory| {
                packet.emit(&path.flow, identification, memory).unwrap();
            })
            .unwrap();
        assert!(self.attacker.flush());
    }

    fn poll(&mut self) {
        let mut completions = [Completion::EMPTY; 64];
        self.now += self.random.u64(..200_000);
        self.device.poll(Time(self.now), &mut completions);
        self.device.flush();
        // What it answers is thrown away.
        self.attacker.poll(Time(self.now), &mut |_| {});
    }

    /// A header with this opcode and whatever is in it, often of what was granted.
    fn header(&mut self, regions: &Regions) -> Header {
        let random = &mut self.random;
        let keys = [&regions.granted, &regions.read_only, &regions.private].map(|r| r.keys.remote.0);
        let key = if random.u8(..8) == 0 { random.u32(..) } else { keys[random.usize(..3)] };
        let address = match random.u8(..4) {
            0 => random.u64(..),
            1 => REGION - random.u64(..16),
            _ => random.u64(..REGION),
        };
        let length = if random.bool() { random.u32(..4096) } else { random.u32(..) };
        let reth = Reth { address, key, length };
        let atomic = AtomicEth { address: address & !7, key, swap_or_add: random.u64(..), compare: 0 };
        let syndromes = [
            Syndrome::ACK,
            Syndrome::RnrNak(RnrTimer::at_least(10)),
            Syndrome::from_code(0x60 + random.u8(..5)).unwrap_or(Syndrome::ACK),
        ];
        let aeth = Aeth { syndrome: syndromes[random.usize(..3)], msn: random.u32(..1 << 24) };
        let value = random.u32(..);
        match Opcode::ALL[random.usize(..Opcode::ALL.len())] {
            Opcode::SendFirst => Header::SendFirst,
            Opcode::SendMiddle => Header::SendMiddle,
            Opcode::SendLast => Header::SendLast,
            Opcode::SendLastImmediate => Header::SendLastImmediate(value),
            Opcode::SendOnly => Header::SendOnly,
            Opcode::SendOnlyImmediate => Header::SendOnlyImmediate(value),
            Opcode::WriteFirst => Header::WriteFirst(reth),
            Opcode::WriteMiddle => Header::WriteMiddle,
            Opcode::WriteLast => Header::WriteLast,
            Opcode::WriteLastImmediate => Header::WriteLastImmediate(value),
            Opcode::WriteOnly => Header::WriteOnly(reth),
            Opcode::WriteOnlyImmediate => Header::WriteOnlyImmediate(reth, value),
            Opcode::ReadRequest => Header::ReadRequest(reth),
            Opcode::ReadResponseFirst => Header::ReadResponseFirst(aeth),
            Opcode::ReadResponseMiddle => Header::ReadResponseMiddle,
            Opcode::ReadResponseLast => Header::ReadResponseLast(aeth),
            Opcode::ReadResponseOnly => Header::ReadResponseOnly(aeth),
            Opcode::Acknowledge => Header::Acknowledge(aeth),
            Opcode::AtomicAcknowledge => Header::AtomicAcknowledge(aeth, random.u64(..)),
            Opcode::CompareSwap => Header::CompareSwap(atomic),
            Opcode::FetchAdd => Header::FetchAdd(atomic),
            Opcode::UdSendOnly => Header::UdSendOnly(Deth { queue_key: value, source: QueuePair::default() }),
            Opcode::UdSendOnlyImmediate => {
                Header::UdSendOnlyImmediate(Deth { queue_key: value, source: QueuePair::default() }, value)
            }
            Opcode::Cnp => Header::Cnp,
            Opcode::SelectiveAcknowledge => Header::SelectiveAcknowledge(aeth),
            Opcode::Connection => Header::Connection,
        }
    }
}

fn config() -> RoceConfig {
    common::config()
}

fn regions(scene: &mut Scene) -> Regions {
    let read_only = Access { remote_read: true, ..Access::LOCAL };
    let regions = Regions {
        granted: scene.register(Access::ALL),
        read_only: scene.register(read_only),
        private: scene.register(Access::LOCAL),
    };
    for (region, seed) in [(&regions.granted, 1), (&regions.read_only, 2), (&regions.private, 3)] {
        region.put(0, &pattern(seed, REGION));
    }
    regions
}

#[test]
fn a_peer_that_means_harm_reaches_only_what_it_was_granted() {
    let mut executed = 0;
    for seed in 0..400 {
        let mut scene = Scene::new(seed);
        let regions = regions(&mut scene);
        let (number, endpoint) = scene.queue_pair(seed % 2 == 0, &regions);
        let mut psn = endpoint.psn;
        for _ in 0..40 {
            let header = scene.header(&regions);
            let opcode = header.opcode();
            let random = &mut scene.random;
            let lengths = [0, 1, 16, 255, 1024, random.usize(..4097)];
            let length = if opcode.has_payload() { lengths[random.usize(..6)] } else { 0 };
            let payload: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            let far = match random.u8(..6) {
                0 => Psn::new(random.u32(..1 << 24)),
                1 => psn.minus(random.u32(..4)),
                2 => psn.plus(random.u32(..4)),
                _ => psn,
            };
            // Acknowledgements are of the device's PSNs.
            let theirs = endpoint.psn.plus(random.u32(..6));
            let chosen = if opcode.is_response() && random.bool() { theirs } else { far };
            psn = psn.plus(u32::from(chosen == psn));
            let bth = Bth::new(endpoint.queue_pair, chosen).with_ack_request(random.bool());
            scene.send(&Packet { bth, header, payload: &payload });
            scene.poll();
            if scene.device.state(number) == Some(QueuePairState::Error) {
                break;
            }
            executed += 1;
        }
        assert_eq!(regions.read_only.get(0, REGION), pattern(2, REGION), "seed {seed}");
        assert_eq!(regions.private.get(0, REGION), pattern(3, REGION), "seed {seed}");
        for _ in 0..5 {
            scene.poll();
        }
        scene.device.destroy_queue_pair(number).unwrap();
        scene.device.deregister(regions.granted.keys.local).unwrap();
    }
    assert!(executed > 1000, "{executed} packets left the connection alive");
}

#[test]
fn bytes_that_are_no_packets_change_nothing() {
    let mut scene = Scene::new(1);
    let regions = regions(&mut scene);
    let (number, endpoint) = scene.queue_pair(false, &regions);
    let from = UdpSocket::bind((scene.attacker.local_address(), 0)).unwrap();
    let to = SocketAddr::new(scene.path.flow.addresses.destination(), ROCE_PORT);
    let reth = Reth { address: 0, key: regions.granted.keys.remote.0, length: 64 };
    let bth = Bth::new(endpoint.queue_pair, endpoint.psn);
    let packet = Packet { bth, header: Header::WriteOnly(reth), payload: &[9; 64] };
    let mut whole = vec![0; packet.length()];
    packet.emit(&scene.path.flow, 0, &mut whole).unwrap();
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        match scene.random.u8(..3) {
            // One bit of what the CRC covers: the byte before the queue pair's number is not.
            0 => {
                let at = scene.random.usize(..bytes.len());
                if at == 4 {
                    continue;
                }
                bytes[at] ^= 1 << scene.random.u8(..8);
            }
            1 => bytes.truncate(scene.random.usize(..bytes.len())),
            _ => scene.random.fill(&mut bytes),
        }
        from.send_to(&bytes, to).unwrap();
        scene.poll();
    }
    let counters = scene.device.counters();
    assert!(counters.bad_icrc > 100 && counters.malformed > 100, "{counters:?}");
    assert_eq!(regions.granted.get(0, REGION), pattern(1, REGION));
    assert_eq!(scene.device.state(number), Some(QueuePairState::Ready));
}

#[test]
fn packets_from_elsewhere_and_for_nobody_are_counted_and_dropped() {
    let mut scene = Scene::new(2);
    let regions = regions(&mut scene);
    let (number, endpoint) = scene.queue_pair(false, &regions);
    let header = Header::WriteOnly(Reth { address: 0, key: regions.granted.keys.remote.0, length: 4 });
    let write = |queue_pair| Packet { bth: Bth::new(queue_pair, endpoint.psn), header, payload: &[9; 4] };
    // Right in everything but where it comes from.
    let mut stranger = link(UdpConfig::new(address()));
    let path = stranger.path(scene.path.flow.addresses.destination(), 0, 0).unwrap();
    let packet = write(endpoint.queue_pair);
    stranger
        .send(&path, packet.length(), &mut |identification, memory| {
            packet.emit(&path.flow, identification, memory).unwrap();
        })
        .unwrap();
    assert!(stranger.flush());
    scene.send(&write(QueuePair::new(endpoint.queue_pair.number() ^ 0x80_0000).unwrap()));
    let depths = QueuePairConfig { send_depth: 1, receive_depth: 1 };
    let unconnected = scene.device.create_queue_pair(depths).unwrap();
    scene.send(&write(QueuePair::new(unconnected.0).unwrap()));
    let start = std::time::Instant::now();
    while scene.device.counters().link.received < 3 {
        scene.poll();
        assert!(start.elapsed().as_secs() < 20, "{:?}", scene.device.counters());
    }
    let counters = scene.device.counters();
    assert_eq!((counters.strangers, counters.unknown_queue_pair, counters.early), (1, 1, 1));
    assert_eq!(regions.granted.get(0, 4), pattern(1, 4));
    assert_ne!(scene.device.state(number), Some(QueuePairState::Error));
}

#[test]
fn only_the_peer_can_say_that_it_is_gone() {
    let (mut fixture, [left, right]) = Fixture::<Pair>::connected();
    let endpoint = |fixture: &mut Fixture<Pair>, side, number| {
        RoceEndpoint::decode(&fixture.device(side).endpoint(number).unwrap()).unwrap()
    };
    let mine = endpoint(&mut fixture, Side::Left, left);
    let theirs = endpoint(&mut fixture, Side::Right, right);
    let IpAddr::V4(_) = mine.address else { panic!("over IPv4") };
    // From the peer's address, but without knowing the PSNs.
    let mut forger = link(UdpConfig { port: 4792, ..UdpConfig::new(theirs.address) });
    let mut path = forger.path(mine.address, 0, 0).unwrap();
    path.flow.destination_port = ROCE_PORT;
    for guess in 0..50 {
        let mut payload = [0; 16];
        payload[..2].copy_from_slice(&[3, 1]);
        payload[4..8].copy_from_slice(&theirs.queue_pair.number().to_be_bytes());
        payload[8..12].copy_from_slice(&theirs.psn.plus(guess).value().to_be_bytes());
        payload[12..].copy_from_slice(&mine.psn.plus(1).value().to_be_bytes());
        let packet = Packet {
            bth: Bth::new(mine.queue_pair, Psn::ZERO),
            header: Header::Connection,
            payload: &payload,
        };
        forger
            .send(&path, packet.length(), &mut |identification, memory| {
                packet.emit(&path.flow, identification, memory).unwrap();
            })
            .unwrap();
    }
    assert!(forger.flush());
    fixture.linger();
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Ready);
    let memory = fixture.memory(Side::Left, 64, Access::LOCAL);
    let into = fixture.memory(Side::Right, 64, Access::LOCAL);
    fixture.receive(Side::Right, right, 1, into.slice(0, 64));
    let send = request(2, Operation::Send { immediate: None }, &[memory.slice(0, 64)]);
    fixture.send(Side::Left, left, &send);
    fixture.expect(Side::Right, 1, Status::Success);
    fixture.expect(Side::Left, 2, Status::Success);
}

const _: fn() = || {
    fn sends<T: Send>() {}
    sends::<RoceDevice<Cuttable>>();
    sends::<RoceDevice>();
};
