//! Once a queue pair is made it allocates nothing, whatever is lost.
#![expect(clippy::expect_used, reason = "a test that cannot go on must fail")]

mod peer;

use std::net::Ipv4Addr;

use allocation_counter::measure;
use peer::{MTU, Side, configuration, receive_attributes, send_attributes};
use ringway_rc::{Configuration, ReceiveAttributes, Retries, SendAttributes};
use ringway_verbs::{Operation, QueuePairNumber, ReceiveRequest, RemoteSlice, Status, Time, WorkRequest};
use ringway_wire::{self as wire, Addresses, Check, Flow, Packet, Psn, TRANSPORT_LENGTH_MAX};

fn side(number: u32, peer: u32, selective: bool) -> Side {
    let configuration =
        Configuration { number: QueuePairNumber(number), selective_window: 64, ..configuration() };
    let receive = ReceiveAttributes {
        destination: wire::QueuePair::new(peer).expect("a number"),
        receive_psn: Psn::ZERO,
        selective,
        ..receive_attributes()
    };
    let send = SendAttributes {
        send_psn: Psn::ZERO,
        retries: Retries::Forever,
        rnr_retries: Retries::Forever,
        ..send_attributes()
    };
    Side::with(&configuration, &receive, &send)
}

/// Posts one more request and, now and then, a receive.
fn post(sides: &mut [Side; 2], id: u64) {
    let [one, other] = sides;
    let remote = RemoteSlice { key: other.remote, offset: 8 << 10 };
    let (operation, length) = match id % 5 {
        0 => (Operation::Send { immediate: None }, 300),
        1 => (Operation::Write { remote }, 2_000),
        2 => (Operation::Read { remote }, 2_000),
        3 => (Operation::FetchAdd { remote, add: 1 }, 8),
        _ => (Operation::WriteWithImmediate { remote, immediate: 1 }, MTU.bytes() as u64),
    };
    let request = WorkRequest { signalled: id.is_multiple_of(3), ..one.request(id, operation, length) };
    let _ = one.queue_pair.post_send(&request);
    let receive = ReceiveRequest { id, local: other.slice(0, 512) };
    let _ = other.queue_pair.post_receive(&receive);
}

/// Moves a lot between the two, over a network that loses packets.
fn exchange(mut sides: [Side; 2]) {
    let address = Ipv4Addr::LOCALHOST;
    let flow = Flow::new(Addresses::V4 { source: address, destination: address }, 0xc000);
    let mut frame = [0; TRANSPORT_LENGTH_MAX];
    let (mut packets, mut done) = (0_u64, 0_u64);
    for id in 0..5_000 {
        post(&mut sides, id);
        for from in [0, 1] {
            let now = Time(id * 5_000);
            sides[from].queue_pair.handle_timeout(now);
            let [one, other] = &mut sides;
            let (from, to) = if from == 0 { (one, other) } else { (other, one) };
            while let Some(length) =
                from.queue_pair.poll_transmit(now, &from.memory, &flow, |_| 0, &mut frame)
            {
                packets += 1;
                // Some are lost.
                if packets.is_multiple_of(13) {
                    continue;
                }
                let check = Check::Exact(flow.icrc(0, length as u16));
                let packet = Packet::parse(&frame[..length], check).expect("a packet");
                to.queue_pair.handle_packet(now, &packet, packets.is_multiple_of(50), &mut to.memory);
            }
            while let Some(completion) = from.queue_pair.poll_completion() {
                assert_eq!(completion.status, Status::Success);
                done += 1;
            }
        }
    }
    assert!(done > 1_000, "{done} completions of {packets} packets");
}

fn run(selective: bool) {
    let sides = [side(2, 3, selective), side(3, 2, selective)];
    assert_eq!(measure(|| exchange(sides)).count_total, 0);
}

#[test]
fn a_plain_queue_pair_allocates_nothing() {
    run(false);
}

#[test]
fn a_selective_queue_pair_allocates_nothing() {
    run(true);
}
