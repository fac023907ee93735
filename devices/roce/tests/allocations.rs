//! Once a link is made and its ways are known, moving packets allocates nothing; once queue pairs are connected,
//! exchanging messages neither.

#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod common;

use allocation_counter::measure;
use common::{address, drain, link};
use ringway_roce::{Link, RoceConfig, UdpConfig};
use ringway_sim::conformance::{Fixture, Harness, Side, request};
use ringway_verbs::{Access, Completion, Device, Operation, ReceiveRequest, Status};
use ringway_wire::{Bth, Header, Packet, Psn, QueuePair};

#[test]
fn moving_packets_does_not_allocate() {
    let (mut from, mut to) = (link(UdpConfig::new(address())), link(UdpConfig::new(address())));
    let paths = [0, 1].map(|entropy| from.path(to.local_address(), entropy, 2).unwrap());
    let payload = [7; 4096];
    let bth = Bth::new(QueuePair::new(5).unwrap(), Psn::ZERO);
    let packet = Packet { bth, header: Header::SendOnly, payload: &payload };
    let mut move_packets = || {
        for round in 0..50 {
            for _ in 0..5 {
                let path = &paths[round % 2];
                from.send(path, packet.length(), &mut |identification, memory| {
                    packet.emit(&path.flow, identification, memory).unwrap();
                })
                .unwrap();
            }
            assert!(from.flush());
            drain(&mut to, 5, &mut |received| {
                assert_eq!(Packet::parse(received.transport, received.check), Ok(packet));
            });
        }
    };
    assert_eq!(measure(&mut move_packets).count_total, 0);
}

harness!(Selective, common::config(), |_, link| Box::new(link));
harness!(GoBackN, RoceConfig { selective: false, ..common::config() }, |_, link| Box::new(link));

fn exchange<H: Harness>() {
    const LENGTH: u64 = 300_000;
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    // Beside others, which have nothing to do.
    (0..20).for_each(|_| _ = fixture.connect(4));
    let from = fixture.memory(Side::Left, 1 << 20, Access::ALL);
    let into = fixture.memory(Side::Right, 1 << 20, Access::ALL);
    let operations = [
        Operation::Send { immediate: Some(1) },
        Operation::Write { remote: into.remote(0) },
        Operation::WriteWithImmediate { remote: into.remote(0), immediate: 2 },
        Operation::Read { remote: into.remote(0) },
    ];
    let harness = &mut fixture.harness;
    let mut round = || {
        for (length, operation) in
            [16, 5000, LENGTH].into_iter().flat_map(|length| operations.map(|it| (length, it)))
        {
            let receive = ReceiveRequest { id: 1, local: into.slice(0, LENGTH) };
            let received = matches!(operation, Operation::Send { .. } | Operation::WriteWithImmediate { .. });
            if received {
                harness.device(Side::Right).post_receive(right, &receive).unwrap();
            }
            let post = request(2, operation, &[from.slice(0, length)]);
            harness.device(Side::Left).post_send(left, &post).unwrap();
            let mut missing = 1 + usize::from(received);
            while missing > 0 {
                for side in Side::BOTH {
                    let now = harness.now();
                    let mut batch = [Completion::EMPTY; 4];
                    let count = harness.device(side).poll(now, &mut batch);
                    harness.device(side).flush();
                    assert!(batch[..count].iter().all(|completion| completion.status == Status::Success));
                    missing -= count;
                }
            }
        }
    };
    round();
    assert_eq!(measure(|| (0..50).for_each(|_| round())).count_total, 0);
}

#[test]
fn exchanging_messages_does_not_allocate() {
    exchange::<Selective>();
    exchange::<GoBackN>();
}
