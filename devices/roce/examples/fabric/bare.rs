//! What the device is compared with: TCP sockets and AF_XDP frames, with nothing of ours behind them.

use ringway_roce::{Link, XdpConfig, XdpLink};
use ringway_sim::ping_pong::{Amount, LARGE, PingPong, ping_pong_over_tcp};

use crate::{
    figures::Figures,
    frames::{self, OUTER_BYTES},
    namespaces::Node,
};

/// What UDP carries of a MIDDLE packet of the largest path MTU that AF_XDP has: headers, bytes, CRC.
const MIDDLE_BYTES: usize = 12 + 2048 + 4;

/// Two TCP sockets, one thread each, which spin.
pub(crate) fn tcp(nodes: &[Node; 2], amount: Amount) -> Figures {
    Figures::of(&ping_pong_over_tcp(nodes[1].address(false), amount, |side| nodes[side].enter()))
}

/// AF_XDP frames that nobody looks into: the half round trip of the shortest, and how many bytes of the frames of large
/// messages arrive while one side sends without a pause.
pub(crate) fn xdp(nodes: &[Node; 2], amount: Amount) -> Figures {
    let open = |node: &Node| node.inside(|| XdpLink::new(XdpConfig::new(node.address(false))).unwrap());
    let [mut one, mut other] = nodes.each_ref().map(open);
    let path = nodes[0].inside(|| one.path(nodes[1].address(false), 0, 0).unwrap());
    let back = nodes[1].inside(|| other.path(nodes[0].address(false), 0, 0).unwrap());
    let half_round_trips = frames::half_round_trips([&mut one, &mut other], [&path, &back], amount.rounds);
    let frame_bytes = MIDDLE_BYTES + OUTER_BYTES;
    let count = amount.large_count * LARGE / frame_bytes as u64;
    let flood = frames::flood([&mut one, &mut other], &path, MIDDLE_BYTES, |sent, _| sent >= count);
    let written = PingPong { half_round_trips, writing: flood.time, large_count: 0 };
    let goodput = (flood.received * frame_bytes) as f64 / flood.time.as_secs_f64();
    Figures { goodput_gbps: goodput * 8e-9, ..Figures::of(&written) }
}
