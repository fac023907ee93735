//! What the device is compared with: TCP sockets and AF_XDP frames, with nothing of ours behind them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ringway_roce::{Link, XdpConfig, XdpLink};
use ringway_sim::ping_pong::{Amount, LARGE, PingPong, ping_pong_over_tcp};

use crate::{figures::Figures, namespaces::Node};

/// When an answer is taken for lost.
const PATIENCE: Duration = Duration::from_millis(50);
/// What UDP carries of a MIDDLE packet of the largest path MTU that AF_XDP has: headers, bytes, CRC.
const MIDDLE_BYTES: usize = 12 + 2048 + 4;
/// Headers of Ethernet, IPv4 and UDP before that.
const OUTER_BYTES: usize = 14 + 20 + 8;
/// Frames sent between two calls.
const BURST: usize = 32;

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
    let done = AtomicBool::new(false);
    let half_round_trips = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut answers = 0;
                other.poll(ringway_verbs::Time(0), &mut |_| answers += 1);
                for _ in 0..answers {
                    other.send(&back, 24, &mut |_, memory| memory.fill(1)).unwrap();
                    other.flush();
                }
            }
        });
        let mut times = Vec::with_capacity(amount.rounds);
        for _ in 0..amount.rounds {
            let start = Instant::now();
            one.send(&path, 24, &mut |_, memory| memory.fill(1)).unwrap();
            one.flush();
            while one.poll(ringway_verbs::Time(0), &mut |_| ()) == 0 && start.elapsed() < PATIENCE {}
            times.push(start.elapsed() / 2);
        }
        done.store(true, Ordering::Relaxed);
        times
    });
    done.store(false, Ordering::Relaxed);
    let frame_bytes = MIDDLE_BYTES + OUTER_BYTES;
    let frames = amount.large_count * LARGE / frame_bytes as u64;
    let (received, time) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut packets = 0;
            while !done.load(Ordering::Relaxed) {
                packets += other.poll(ringway_verbs::Time(0), &mut |_| ());
            }
            packets
        });
        let (before, start) = (one.counters().sent, Instant::now());
        while one.counters().sent - before < frames {
            for _ in 0..BURST {
                if one.send(&path, MIDDLE_BYTES, &mut |_, memory| memory.fill(1)).is_err() {
                    break;
                }
            }
            one.flush();
        }
        let time = start.elapsed();
        thread::sleep(PATIENCE);
        done.store(true, Ordering::Relaxed);
        (receiver.join().unwrap(), time)
    });
    let written = PingPong { half_round_trips, writing: time, large_count: 0 };
    let goodput = (received * frame_bytes) as f64 / time.as_secs_f64();
    Figures { goodput_gbps: goodput * 8e-9, ..Figures::of(&written) }
}
