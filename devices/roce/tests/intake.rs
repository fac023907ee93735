//! A device takes what has come faster than it sends: what it sends is answered.
#![forbid(unsafe_code)]

mod common;

use common::{address, link};
use ringway_roce::{Link, RoceConfig, RoceDevice, UdpConfig};
use ringway_verbs::{Device, Time};
use ringway_wire::{Bth, Header, Packet, Psn, QueuePair};

/// More than a poll sends, and fewer than the smallest socket buffers hold.
const PACKETS: u32 = 128;

#[test]
fn one_poll_takes_more_packets_than_it_sends() {
    // Each packet comes on its own, as from all those that send no UDP checksums.
    let config = || UdpConfig { segmentation: false, ..UdpConfig::new(address()) };
    let (mut from, to) = (link(config()), link(config()));
    let path = from.path(to.local_address(), 0, 0).unwrap();
    for psn in 0..PACKETS {
        let bth = Bth::new(QueuePair::new(5).unwrap(), Psn::new(psn));
        let packet = Packet { bth, header: Header::SendOnly, payload: &[7; 8] };
        let written = from.send(&path, packet.length(), &mut |identification, memory| {
            packet.emit(&path.flow, identification, memory).unwrap();
        });
        written.unwrap();
        assert!(from.flush());
    }
    let mut device = RoceDevice::new(to, RoceConfig::new("test")).unwrap();
    device.poll(Time(0), &mut []);
    assert_eq!(device.counters().unknown_queue_pair, u64::from(PACKETS));
}
