//! Packets whose contents follow from their number.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use ringway_roce::{Link, Path, Received};
use ringway_wire::{Bth, Header, Packet, Psn, QueuePair};

fn payload(number: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number as usize * 31 + at * 7 + at / 251) as u8).collect()
}

/// Sends packet `number` with so many bytes of payload.
pub(crate) fn send(link: &mut dyn Link, path: &Path, number: u32, length: usize) {
    let payload = payload(number, length);
    let bth = Bth::new(QueuePair::new(5).unwrap(), Psn::new(number));
    let packet = Packet { bth, header: Header::SendOnly, payload: &payload };
    link.send(path, packet.length(), &mut |identification, memory| {
        let written = packet.emit(&path.flow, identification, memory).unwrap();
        assert_eq!(written, memory.len());
    })
    .unwrap();
}

/// The number of a packet from [`send`], whose CRC and payload must be right.
pub(crate) fn number(received: &Received<'_>) -> u32 {
    let packet = Packet::parse(received.transport, received.check).unwrap_or_else(|error| panic!("{error}"));
    let number = packet.bth.psn.value();
    assert_eq!(packet.payload, payload(number, packet.payload.len()), "packet {number}");
    number
}
