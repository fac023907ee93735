//! What a RoCE packet costs beyond copying it: its headers and its invariant CRC, on both sides, at the largest path MTU
//! and for a message of eight bytes. The copy and the bare CRC are there to compare with.
#![expect(clippy::expect_used, reason = "a benchmark may panic")]

use std::{hint::black_box, net::Ipv4Addr};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringway_wire::{
    Addresses, Bth, Check, Flow, Header, Icrc, Packet, Psn, QueuePair, Reth, TRANSPORT_LENGTH_MAX, emit,
};

fn flow() -> Flow {
    let addresses =
        Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };
    Flow::new(addresses, 0xc011)
}

fn packets(criterion: &mut Criterion) {
    for payload_length in [8, 1024, 4096] {
        let payload = vec![0x5a; payload_length];
        let bth = Bth::new(QueuePair::new(17).expect("24 bits"), Psn::new(1));
        let reth = Reth { address: 1 << 40, key: 7, length: 4096 };
        let header = Header::WriteOnly(reth);
        let packet = Packet { bth, header, payload: &payload };
        let flow = flow();
        let mut bytes = [0; TRANSPORT_LENGTH_MAX];
        let length = packet.emit(&flow, 0, &mut bytes).expect("room");
        let transport = bytes.get(..length).expect("written");
        let transport_length = u16::try_from(length).expect("a packet");

        let mut group = criterion.benchmark_group(format!("wire/{payload_length}"));
        group.throughput(Throughput::Bytes(payload_length as u64));
        let mut copied = vec![0; payload_length];
        group.bench_function("copy", |b| {
            b.iter(|| black_box(&mut copied).copy_from_slice(black_box(&payload)))
        });
        group.bench_function("crc", |b| {
            b.iter(|| {
                let mut icrc = Icrc::new();
                icrc.update(black_box(&payload));
                icrc.to_bytes()
            });
        });
        let mut headers = [0; 64];
        group.bench_function("emit", |b| {
            b.iter(|| {
                emit(&bth, &header, &[black_box(&payload)], black_box(&flow), 0, black_box(&mut headers))
            });
        });
        group.bench_function("parse", |b| {
            b.iter(|| {
                let check = Check::Exact(black_box(&flow).icrc(0, transport_length));
                Packet::parse(black_box(transport), check).map(|packet| packet.payload.len())
            });
        });
        let other = Check::AnyIdentification(flow.icrc(0x1234, transport_length));
        group.bench_function("parse_any_identification", |b| {
            b.iter(|| {
                Packet::parse(black_box(transport), black_box(other)).map(|packet| packet.payload.len())
            });
        });
        group.finish();
    }
}

criterion_group!(benches, packets);
criterion_main!(benches);
