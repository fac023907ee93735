//! Packets whose bytes are known from elsewhere: captures of hardware, and packets put together by hand from the
//! tables of the specification with the CRC that zlib computes.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use core::net::{Ipv4Addr, Ipv6Addr};

use ringway_wire::{
    Addresses, Aeth, AtomicEth, Bth, Check, Credits, Datagram, Deth, Ecn, Ethernet, Flow, Header, NakCode,
    Options, Packet, ParseError, Psn, QueuePair, Reth, RnrTimer, Syndrome, TRANSPORT_LENGTH_MAX,
};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// A congestion notification that a ConnectX-4 Lx sent.
const CONNECTX_CNP: &str = "e41d2dab2bc2 7cfe90643b32 0800
    45c2003c718c400040119161 0a001101 0a001201 000012b700280000
    8100ffff4000011800000000 00000000000000000000000000000000 82fd002a";

#[test]
fn the_notification_of_a_network_card_is_understood() {
    let frame = bytes(CONNECTX_CNP);
    let (ethernet, inside) = Ethernet::parse(&frame).unwrap();
    assert!(ethernet.carries_ip());
    assert_eq!(ethernet.to_bytes(), frame[..14]);
    let datagram = Datagram::parse(inside).unwrap();
    let (source, destination) = (Ipv4Addr::new(10, 0, 17, 1), Ipv4Addr::new(10, 0, 18, 1));
    assert_eq!(datagram.flow, Flow::new(Addresses::V4 { source, destination }, 0));
    assert_eq!(Ecn::of(datagram.options.traffic_class), Ecn::Capable0);
    assert_eq!(datagram.options.identification, 0x718c);
    assert!(datagram.udp_checksum_is_right());
    let packet = Packet::parse(datagram.transport, datagram.check()).unwrap();
    assert_eq!(packet.header, Header::Cnp);
    assert_eq!(
        packet.bth,
        Bth { becn: true, ..Bth::new(QueuePair::new(0x118).unwrap(), Psn::ZERO) },
        "backward congestion for queue pair 0x118"
    );
    assert!(packet.payload.is_empty());

    // The same values give the same frame.
    let mut out = [0; 256];
    let network = datagram.flow.emit(&datagram.options, 32, &mut out).unwrap();
    let length = packet.emit(&datagram.flow, 0x718c, &mut out[network..]).unwrap();
    assert_eq!(out[..network + length], frame[14..]);
}

#[test]
fn a_socket_does_not_tell_the_identification_and_it_is_found() {
    let frame = bytes(CONNECTX_CNP);
    let datagram = Datagram::parse(&frame[14..]).unwrap();
    assert!(Packet::parse(datagram.transport, datagram.flow.check(0, 32)).is_ok());
    let exact = Check::Exact(datagram.flow.icrc(0, 32));
    assert!(matches!(
        Packet::parse(datagram.transport, exact),
        Err(ParseError::Icrc { received: [0x82, 0xfd, 0x00, 0x2a], .. })
    ));
    assert!(Packet::parse(datagram.transport, Check::Exact(datagram.flow.icrc(0x718c, 32))).is_ok());
}

#[test]
fn an_unreliable_connection_is_refused_by_name_but_its_crc_is_the_known_one() {
    // UC SEND_ONLY between two ports of one card, with two bytes of padding.
    let ip = "45010040 0478 4000 4011 b4d5 c0a80007 c0a80007";
    let packet =
        "c00012b7002c0000 2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3";
    let all = bytes(&format!("{ip}{packet}"));
    let datagram = Datagram::parse(&all).unwrap();
    assert!(datagram.udp_checksum_is_right());
    assert_eq!(Packet::parse(datagram.transport, datagram.check()), Err(ParseError::Opcode(0x24)));
    let mut icrc = datagram.flow.icrc(0x478, 36);
    let (bth, rest) = datagram.transport.split_first_chunk().unwrap();
    icrc.update_bth(bth);
    icrc.update(&rest[..20]);
    assert_eq!(icrc.to_bytes(), [0x78, 0xf3, 0x53, 0xf3]);
}

/// zlib's CRC-32, bit by bit: nothing in common with what is tested.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// What the CRC covers of an IPv4 packet, written out.
fn covered_ipv4(identification: u16, transport: &[u8]) -> Vec<u8> {
    let length = transport.len() as u16;
    let mut all = vec![0xff; 8];
    all.extend([0x45, 0xff]);
    all.extend((length + 28).to_be_bytes());
    all.extend(identification.to_be_bytes());
    all.extend([0x40, 0, 0xff, 17, 0xff, 0xff, 10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 0x11, 0x12, 0xb7]);
    all.extend((length + 8).to_be_bytes());
    all.extend([0xff, 0xff]);
    all.extend(&transport[..4]);
    all.push(0xff);
    all.extend(&transport[5..transport.len() - 4]);
    all
}

fn flow() -> Flow {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    Flow::new(Addresses::V4 { source, destination }, 0xc011)
}

/// Emits, compares with the expected bytes and an independent CRC, and parses again.
fn check(bth: Bth, header: Header, payload: &[u8], expected: &str) {
    let packet = Packet { bth, header, payload };
    let mut out = [0; TRANSPORT_LENGTH_MAX];
    let length = packet.emit(&flow(), 0x1234, &mut out).unwrap();
    assert_eq!(length, packet.length());
    let (body, icrc) = out[..length].split_at(length - 4);
    assert_eq!(body, bytes(expected), "{header:?}");
    assert_eq!(icrc, crc32(&covered_ipv4(0x1234, &out[..length])).to_le_bytes(), "{header:?}");
    let check = Check::Exact(flow().icrc(0x1234, length as u16));
    assert_eq!(Packet::parse(&out[..length], check), Ok(packet));
}

#[test]
fn every_kind_of_packet_has_the_layout_of_the_specification() {
    let plain = Bth::new(QueuePair::new(0x11).unwrap(), Psn::new(0xff_fffe));
    let asking = plain.with_ack_request(true);
    let reth = Reth { address: 0x1122_3344_5566_7788, key: 0xaabb_ccdd, length: 0x8000_0000 };
    let aeth = |syndrome| Aeth { syndrome, msn: 0x01_0203 };
    let ack = aeth(Syndrome::ACK);
    let compare = AtomicEth { address: 8, key: 1, swap_or_add: 2, compare: 3 };
    let deth = Deth { queue_key: 0x8001_0000, source: QueuePair::new(0x22).unwrap() };
    let full = [0x5a; 256];
    let full_hex = "5a".repeat(256);
    let tail = "ffff 00 000011 00 fffffe";

    check(plain, Header::SendFirst, &full, &format!("00 00 {tail} {full_hex}"));
    check(plain, Header::SendMiddle, &full, &format!("01 00 {tail} {full_hex}"));
    check(plain, Header::SendLast, &[1], &format!("02 30 {tail} 01 000000"));
    check(plain, Header::SendLastImmediate(7), &[1, 2], &format!("03 20 {tail} 00000007 0102 0000"));
    check(asking, Header::SendOnly, &[], "04 00 ffff 00 000011 80 fffffe");
    let solicited = Bth { solicited: true, migrated: true, ..plain };
    check(solicited, Header::SendOnlyImmediate(7), &[1, 2, 3], &format!("05 d0 {tail} 00000007 010203 00"));
    let reth_hex = "1122334455667788 aabbccdd 80000000";
    check(plain, Header::WriteFirst(reth), &full, &format!("06 00 {tail} {reth_hex} {full_hex}"));
    check(plain, Header::WriteMiddle, &full, &format!("07 00 {tail} {full_hex}"));
    check(plain, Header::WriteLast, &[9; 4], &format!("08 00 {tail} 09090909"));
    check(plain, Header::WriteLastImmediate(1), &[9; 4], &format!("09 00 {tail} 00000001 09090909"));
    check(plain, Header::WriteOnly(reth), &[9], &format!("0a 30 {tail} {reth_hex} 09 000000"));
    check(plain, Header::WriteOnlyImmediate(reth, 1), &[], &format!("0b 00 {tail} {reth_hex} 00000001"));
    check(plain, Header::ReadRequest(reth), &[], &format!("0c 00 {tail} {reth_hex}"));
    check(plain, Header::ReadResponseFirst(ack), &full, &format!("0d 00 {tail} 1f010203 {full_hex}"));
    check(plain, Header::ReadResponseMiddle, &full, &format!("0e 00 {tail} {full_hex}"));
    check(plain, Header::ReadResponseLast(ack), &[1; 4], &format!("0f 00 {tail} 1f010203 01010101"));
    check(plain, Header::ReadResponseOnly(ack), &[1; 4], &format!("10 00 {tail} 1f010203 01010101"));
    let rnr = aeth(Syndrome::RnrNak(RnrTimer::new(12).unwrap()));
    check(plain, Header::Acknowledge(rnr), &[], &format!("11 00 {tail} 2c010203"));
    let nak = aeth(Syndrome::Nak(NakCode::RemoteAccess));
    check(plain, Header::Acknowledge(nak), &[], &format!("11 00 {tail} 62010203"));
    check(
        plain,
        Header::AtomicAcknowledge(ack, 0x99),
        &[],
        &format!("12 00 {tail} 1f010203 0000000000000099"),
    );
    let atomic_hex = "0000000000000008 00000001 0000000000000002 0000000000000003";
    check(plain, Header::CompareSwap(compare), &[], &format!("13 00 {tail} {atomic_hex}"));
    check(plain, Header::FetchAdd(compare), &[], &format!("14 00 {tail} {atomic_hex}"));
    check(plain, Header::UdSendOnly(deth), &[1; 4], &format!("64 00 {tail} 80010000 00000022 01010101"));
    check(
        plain,
        Header::UdSendOnlyImmediate(deth, 5),
        &[],
        &format!("65 00 {tail} 80010000 00000022 00000005"),
    );
    let marked = Bth { fecn: true, becn: true, ..plain };
    check(marked, Header::Cnp, &[], &format!("81 00 ffff c0 000011 00 fffffe {}", "00".repeat(16)));
}

#[test]
fn ipv6_is_covered_as_the_specification_says() {
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let destination = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    let flow = Flow::new(Addresses::V6 { source, destination }, 0xc011);
    let bth = Bth::new(QueuePair::new(3).unwrap(), Psn::new(4));
    let packet = Packet { bth, header: Header::SendOnly, payload: b"hello" };
    let mut out = [0; 256];
    let transport = packet.length() as u16;
    assert_eq!(transport, 12 + 8 + 4);
    let options = Options { traffic_class: 0x02, hop_limit: 3, ..Options::default() };
    let network = flow.emit(&options, transport, &mut out).unwrap();
    let length = packet.emit(&flow, 0, &mut out[network..]).unwrap();
    let sent = &mut out[..network + length];
    assert_eq!(sent[..8], bytes("60200000 0020 11 03"));

    let mut covered = vec![0xff; 8];
    covered.extend(bytes("6fffffff 0020 11 ff"));
    covered.extend(source.octets());
    covered.extend(destination.octets());
    covered.extend(bytes("c011 12b7 0020 ffff 0430ffffff 000003 00 000004 68656c6c6f000000"));
    assert_eq!(sent[network + length - 4..], crc32(&covered).to_le_bytes());

    let sum = flow.udp_checksum(&[&sent[network..]]);
    sent[network - 2..network].copy_from_slice(&sum.to_be_bytes());
    let datagram = Datagram::parse(sent).unwrap();
    assert!(datagram.udp_checksum_is_right());
    assert_eq!(datagram.options, Options { udp_checksum: sum, ..options });
    assert_eq!(Packet::parse(datagram.transport, datagram.check()), Ok(packet));
    assert_eq!(Packet::parse(datagram.transport, datagram.flow.check(0, transport)), Ok(packet));
}

#[test]
fn timers_and_credits_are_those_of_the_tables() {
    let delay_us = |code| RnrTimer::new(code).unwrap().delay_us();
    assert_eq!(delay_us(0), 655_360);
    assert_eq!(delay_us(1), 10);
    assert_eq!(delay_us(12), 640);
    assert_eq!(delay_us(20), 10_240);
    assert_eq!(delay_us(31), 491_520);
    assert!(RnrTimer::new(32).is_none());
    assert_eq!(RnrTimer::at_least(0).code(), 1);
    assert_eq!(RnrTimer::at_least(11).code(), 2);
    assert_eq!(RnrTimer::at_least(491_521).code(), 0);
    assert_eq!(RnrTimer::at_least(u32::MAX).code(), 0);

    assert_eq!(Credits::UNLIMITED.requests(), None);
    for (asked, promised) in [(0, 0), (1, 1), (5, 4), (6, 6), (100, 96), (32767, 24576), (u32::MAX, 32768)] {
        assert_eq!(Credits::at_most(asked).requests(), Some(promised));
    }
    for code in 0..=255 {
        let syndrome = Syndrome::from_code(code);
        assert!(syndrome.is_none_or(|s| s.code() == code));
        assert_eq!(syndrome.is_some(), matches!(code, 0..=0x3f | 0x60..=0x64), "{code:#x}");
    }
}
