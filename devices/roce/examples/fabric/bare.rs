//! What the device is compared with: TCP sockets, and the packets of its links, with nothing of ours behind them.

use ringway_roce::Link;
use ringway_sim::ping_pong::{Amount, LARGE, PingPong, ping_pong_over_tcp};

use crate::{
    figures::Figures,
    frames::{self, OUTER_BYTES},
    namespaces::{Node, way},
};

/// Two TCP sockets, one thread each, which spin.
pub(crate) fn tcp(nodes: &[Node; 2], amount: Amount) -> Figures {
    Figures::of(&ping_pong_over_tcp(nodes[1].address(false), amount, |side| nodes[side].enter()))
}

/// Packets that nobody looks into: the half round trip of the shortest, and how many bytes of messages would arrive with those
/// of large ones while one side sends without a pause.
pub(crate) fn link(
    nodes: &[Node; 2],
    amount: Amount,
    open: impl Fn(&Node) -> Box<dyn Link> + Sync,
) -> Figures {
    let [mut one, mut other] = nodes.each_ref().map(|node| node.inside(|| open(node)));
    let payload_bytes = one.mtu().bytes();
    // What UDP carries of a MIDDLE packet: headers, bytes, CRC.
    let middle_bytes = 12 + payload_bytes + 4;
    let path = nodes[0].inside(|| way(&mut *one, nodes[1].address(false), 0, 0).unwrap());
    let back = nodes[1].inside(|| way(&mut *other, nodes[0].address(false), 0, 0).unwrap());
    let half_round_trips = frames::half_round_trips([&mut *one, &mut *other], [&path, &back], amount.rounds);
    let count = amount.large_count * LARGE / payload_bytes as u64;
    let flood = frames::flood([&mut *one, &mut *other], &path, middle_bytes, |sent, _| sent >= count);
    let written = PingPong { half_round_trips, writing: flood.time, large_count: 0 };
    let payload_gbps = (flood.received * payload_bytes) as f64 / flood.time.as_secs_f64() * 8e-9;
    let frame_gbps = payload_gbps * (middle_bytes + OUTER_BYTES) as f64 / payload_bytes as f64;
    Figures { goodput_gbps: payload_gbps, frame_gbps, ..Figures::of(&written) }
}
