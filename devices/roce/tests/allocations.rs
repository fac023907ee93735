//! Once a link is made and its ways are known, moving packets allocates nothing; once queue pairs are connected,
//! exchanging messages neither.

mod common;

use allocation_counter::measure;
use common::{address, drain, link};
use ringway_roce::{Link, RoceConfig, UdpConfig};
use ringway_sim::conformance::{Fixture, Harness, Traffic};
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
    let (mut fixture, pair) = Fixture::<H>::connected();
    // Beside others, which have nothing to do.
    (0..20).for_each(|_| _ = fixture.connect(4));
    let traffic = Traffic::new(&mut fixture, pair);
    let mut rounds = |count| (0..count).for_each(|_| traffic.round(&mut fixture.harness));
    rounds(1);
    assert_eq!(measure(|| rounds(50)).count_total, 0);
}

#[test]
fn exchanging_messages_does_not_allocate() {
    exchange::<Selective>();
    exchange::<GoBackN>();
}
