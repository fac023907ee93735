//! What any host on the network can send to the RoCE port.
#![expect(clippy::expect_used, reason = "to panic is how a target reports what it found")]

use std::net::{Ipv4Addr, Ipv6Addr};

use ringway_wire::{
    Addresses, Aeth, AtomicEth, Bth, Check, Datagram, Deth, Ethernet, Flow, Header, Options, Packet, Psn,
    QueuePair, Reth, Syndrome, TRANSPORT_LENGTH_MAX,
};

use crate::Reader;

fn flow() -> Flow {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    Flow::new(Addresses::V4 { source, destination }, 0xc000)
}

/// A packet that is understood gives the same bytes again, but for reserved bits: it is understood again as the same.
fn comes_back(packet: &Packet<'_>, flow: &Flow, identification: u16) {
    let mut out = [0; TRANSPORT_LENGTH_MAX];
    let length = packet.emit(flow, identification, &mut out).expect("what was read can be written");
    assert_eq!(length, packet.length());
    let check = Check::Exact(flow.icrc(identification, u16::try_from(length).unwrap_or_default()));
    assert_eq!(Packet::parse(out.get(..length).unwrap_or_default(), check), Ok(*packet));
}

/// What UDP carries. A CRC is put behind the input, or nothing but the CRC would ever be tried.
pub fn packet(bytes: &[u8]) {
    let flow = flow();
    let length = u16::try_from(bytes.len() + 4).unwrap_or(u16::MAX);
    let mut whole = bytes.to_vec();
    let mut icrc = flow.icrc(7, length);
    if let Some((bth, rest)) = bytes.split_first_chunk() {
        icrc.update_bth(bth);
        icrc.update(rest);
    }
    whole.extend(icrc.to_bytes());
    let exact = Packet::parse(&whole, Check::Exact(flow.icrc(7, length)));
    assert_eq!(Packet::parse(&whole, flow.check(0, length)), exact, "the identification is found");
    if let Ok(packet) = &exact {
        comes_back(packet, &flow, 7);
    }
    let _ = Packet::parse(bytes, flow.check(0, length));
}

/// Packets of every kind, and some that are none.
#[must_use]
pub fn packet_samples() -> Vec<Vec<u8>> {
    let reth = Reth { address: 0x1000, key: 0x0102, length: 5 };
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 3 };
    let atomic = AtomicEth { address: 0x1000, key: 0x0102, swap_or_add: 1, compare: 2 };
    let source = QueuePair::new(9).unwrap_or_default();
    let deth = Deth { queue_key: 1, source };
    let headers = [
        Header::SendFirst,
        Header::SendMiddle,
        Header::SendLast,
        Header::SendLastImmediate(1),
        Header::SendOnly,
        Header::SendOnlyImmediate(1),
        Header::WriteFirst(reth),
        Header::WriteMiddle,
        Header::WriteLast,
        Header::WriteLastImmediate(1),
        Header::WriteOnly(reth),
        Header::WriteOnlyImmediate(reth, 1),
        Header::ReadRequest(reth),
        Header::ReadResponseFirst(aeth),
        Header::ReadResponseMiddle,
        Header::ReadResponseLast(aeth),
        Header::ReadResponseOnly(aeth),
        Header::Acknowledge(aeth),
        Header::AtomicAcknowledge(aeth, 1),
        Header::CompareSwap(atomic),
        Header::FetchAdd(atomic),
        Header::UdSendOnly(deth),
        Header::UdSendOnlyImmediate(deth, 1),
        Header::Cnp,
    ];
    let mut samples = Vec::new();
    for header in headers {
        let payload: &[u8] = if header.opcode().has_payload() { b"hello" } else { &[] };
        let bth = Bth::new(source, Psn::new(0xff_ffff)).with_ack_request(true);
        let mut out = [0; 128];
        let length = Packet { bth, header, payload }.emit(&flow(), 7, &mut out).unwrap_or_default();
        // Without its CRC: the target makes one.
        samples.push(out.get(..length.saturating_sub(4)).unwrap_or_default().to_vec());
    }
    samples.extend([vec![0xff; 40], vec![0; 12], vec![0; 11], Vec::new()]);
    samples
}

/// A frame, an IP packet and what is in it.
pub fn frame(bytes: &[u8]) {
    let [tagged] = Reader(bytes).bytes();
    let rest = bytes.get(1..).unwrap_or_default();
    let inside = if tagged & 1 == 0 {
        let Some((ethernet, inside)) = Ethernet::parse(rest) else { return };
        assert_eq!(Some(&ethernet.to_bytes()[..]), rest.get(..14));
        inside
    } else {
        rest
    };
    let Ok(datagram) = Datagram::parse(inside) else { return };
    let network = datagram.flow.length();
    assert!(network + datagram.transport.len() <= inside.len());
    if let Ok(packet) = Packet::parse(datagram.transport, datagram.check()) {
        comes_back(&packet, &datagram.flow, datagram.options.identification);
    }
    // The headers come back as they were, but for what no header of ours says: flow labels, the fragment bit.
    let mut out = [0; 48];
    let length = u16::try_from(datagram.transport.len()).unwrap_or_default();
    assert_eq!(datagram.flow.emit(&datagram.options, length, &mut out), Some(network));
    let again = [out.get(..network).unwrap_or_default(), datagram.transport].concat();
    let again = Datagram::parse(&again);
    assert!(again.is_ok_and(|again| (again.flow, again.options) == (datagram.flow, datagram.options)));
}

/// Both families, with a frame around and without, with and without a UDP checksum, cut short, fragments.
#[must_use]
pub fn frame_samples() -> Vec<Vec<u8>> {
    let v6 = Addresses::V6 { source: Ipv6Addr::LOCALHOST, destination: Ipv6Addr::UNSPECIFIED };
    let bth = Bth::new(QueuePair::default(), Psn::ZERO);
    let packet = Packet { bth, header: Header::SendOnly, payload: b"hello" };
    let mut samples = Vec::new();
    for flow in [flow(), Flow::new(v6, 0xc000)] {
        for udp_checksum in [0, 0x1234] {
            let options = Options { traffic_class: 2, hop_limit: 64, identification: 7, udp_checksum };
            let mut out = [0; 128];
            let length = u16::try_from(packet.length()).unwrap_or_default();
            let network = flow.emit(&options, length, &mut out).unwrap_or_default();
            let behind = out.get_mut(network..).unwrap_or_default();
            let written = packet.emit(&flow, 7, behind).unwrap_or_default();
            let ip = out.get(..network + written).unwrap_or_default();
            let ethernet = Ethernet::carrying(&flow.addresses, [1; 6], [2; 6]).to_bytes();
            samples.push([&[1], ip].concat());
            samples.push([&[0], &ethernet[..], ip].concat());
            samples.push([&[0], &ethernet[..], ip, &[0; 8]].concat());
            samples.push([&[1], ip.get(..30).unwrap_or_default()].concat());
        }
    }
    samples.extend([vec![1; 64], vec![0; 64], vec![0x45; 64], Vec::new()]);
    samples
}
