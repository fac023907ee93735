//! Frames: packets with an Ethernet header before them.

use core::net::IpAddr;

use ringway_wire::{Datagram, ETHERNET_LENGTH, Ecn, Ethernet, Flow, Options};

use crate::link::Received;

/// The packet in a frame; `None` when it is none for this address and port. What follows the packet is Ethernet's
/// padding.
pub(super) fn parse(frame: &[u8], address: IpAddr, port: u16) -> Option<Received<'_>> {
    let (ethernet, inside) = Ethernet::parse(frame)?;
    if !ethernet.carries_ip() {
        return None;
    }
    let datagram = Datagram::parse(inside).ok()?;
    let flow = datagram.flow;
    if flow.addresses.destination() != address || flow.destination_port != port {
        return None;
    }
    Some(Received {
        flow,
        ecn: Ecn::of(datagram.options.traffic_class),
        identification: datagram.options.identification,
        check: datagram.check(),
        transport: datagram.transport,
    })
}

/// What senders write as IPv4's identification. Packets that may not be fragmented need none of their own (RFC 6864),
/// and who receives over a socket, which does not tell it, guesses this one first.
pub(super) const IDENTIFICATION: u16 = 0;

/// Bytes of a frame before what UDP carries.
pub(super) const fn headers_length(flow: &Flow) -> usize {
    ETHERNET_LENGTH + flow.length()
}

/// Writes the headers of a frame that is as long as `frame`; returns the rest of it. There is no UDP checksum: the
/// invariant CRC says more.
pub(super) fn emit_headers<'a>(
    frame: &'a mut [u8],
    ethernet: [u8; ETHERNET_LENGTH],
    flow: &Flow,
    traffic_class: u8,
) -> Option<&'a mut [u8]> {
    let (header, inside) = frame.split_first_chunk_mut::<ETHERNET_LENGTH>()?;
    *header = ethernet;
    let transport_length = u16::try_from(inside.len().checked_sub(flow.length())?).ok()?;
    let options = Options { traffic_class, identification: IDENTIFICATION, ..Options::default() };
    let length = flow.emit(&options, transport_length, inside)?;
    inside.get_mut(length..)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringway_wire::{Addresses, Packet};

    use super::*;

    fn flow(v6: bool) -> Flow {
        let (from, to) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        let addresses = Addresses::new(from.parse().unwrap(), to.parse().unwrap()).unwrap();
        Flow::new(addresses, 50_000)
    }

    fn frame(flow: &Flow, transport: &[u8], traffic_class: u8) -> Vec<u8> {
        let ethernet = Ethernet::carrying(&flow.addresses, [2; 6], [4; 6]).to_bytes();
        let mut frame = vec![0; headers_length(flow) + transport.len()];
        emit_headers(&mut frame, ethernet, flow, traffic_class).unwrap().copy_from_slice(transport);
        frame
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            v6: bool, transport in proptest::collection::vec(any::<u8>(), 0..300), class: u8, padding in 0_usize..60,
        ) {
            let flow = flow(v6);
            let mut frame = frame(&flow, &transport, class);
            frame.resize(frame.len() + padding, 0);
            let address = flow.addresses.destination();
            let received = parse(&frame, address, flow.destination_port).unwrap();
            prop_assert_eq!((received.flow, received.ecn), (flow, Ecn::of(class)));
            prop_assert_eq!(received.transport, &transport[..]);
            prop_assert!(parse(&frame, address, 4790).is_none());
            prop_assert!(parse(&frame, flow.addresses.source(), flow.destination_port).is_none());
            let cut = frame.len() - padding - 1;
            prop_assert!(parse(&frame[..cut], address, flow.destination_port).is_none());
        }

        #[test]
        fn any_bytes_are_a_packet_or_none(
            v6: bool, bytes in proptest::collection::vec(any::<u8>(), 0..200),
            changes in proptest::collection::vec((0_usize..80, any::<u8>()), 0..6),
        ) {
            let flow = flow(v6);
            let mut nearly = frame(&flow, &bytes, 0);
            for (at, value) in changes {
                if let Some(byte) = nearly.get_mut(at) {
                    *byte = value;
                }
            }
            for bytes in [&bytes[..], &nearly[..]] {
                if let Some(received) = parse(bytes, flow.addresses.destination(), flow.destination_port) {
                    prop_assert!(received.transport.len() <= bytes.len());
                    let _ = Packet::parse(received.transport, received.check);
                }
            }
        }
    }
}
