//! Sending what queue pairs have to send.

use ringway_rc::Acknowledge;
use ringway_verbs::Time;
use ringway_wire::{Bth, Header, Packet, Psn};

use crate::{
    link::{
        Link, Path, SendError,
        udp::{RUN_BYTES_MAX, RUN_PACKETS_MAX},
    },
    pair::{Pair, Peer, Phase},
    shared::Shared,
    signal::Signal,
};

/// How far a queue pair got with sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// It has nothing more to send now.
    Idle,
    /// It has an acknowledgement that waits for this side to have nothing else to do.
    Waits,
    /// It has, and others come first.
    More,
    /// It has, and the link takes no more.
    Blocked,
}

/// Between tries to send through a link that has taken nothing for as long, in nanoseconds.
const RETRY_NS: u64 = 1_000_000;

/// The link has packets that the network does not take: in a moment it may, or its interface is down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocked {
    since: Time,
    /// When to try again: at once, and when that has been in vain for a while, now and then.
    pub(crate) retry_at: Time,
}

impl Blocked {
    /// It is blocked now, and `before` says how it was at the last try.
    pub(crate) fn again(before: Option<Self>, now: Time) -> Self {
        let since = before.map_or(now, |before| before.since);
        let wait_ns = if now.0.saturating_sub(since.0) < RETRY_NS { 0 } else { RETRY_NS };
        Self { since, retry_at: Time(now.0.saturating_add(wait_ns)) }
    }
}

/// Gives the link a packet; flushes where that makes room. `false`: there is none.
fn push<L: Link>(link: &mut L, path: &Path, length: usize, write: &mut dyn FnMut(u16, &mut [u8])) -> bool {
    match link.send(path, length, write) {
        Ok(()) => true,
        Err(SendError::TooLong) => false,
        Err(SendError::Full) => link.flush() && link.send(path, length, write).is_ok(),
    }
}

/// Sends what a queue pair may before others come: about as much as a run of the UDP link, which takes a system call's work on
/// either side, however little of it is used. (Turns of 16 packets of 4 KiB were a run of 15 and one of one.) Says how many packets,
/// and what is left.
pub(crate) fn serve<L: Link>(
    pair: &mut Pair,
    shared: &mut Shared,
    link: &mut L,
    acknowledge: Acknowledge,
) -> (usize, Served) {
    let Some(peer) = pair.peer else {
        pair.owed = None;
        return (0, Served::Idle);
    };
    let (mut sent, mut bytes, mut length) = (0, 0, 0);
    // Until a Ringway end is known to be there, there is nobody to send requests to.
    while pair.phase != Phase::Connecting {
        // The next packet is mostly as long as the last one.
        if sent == usize::from(RUN_PACKETS_MAX) || bytes + length > RUN_BYTES_MAX {
            return (sent, Served::More);
        }
        let departure = pair.transport.next_departure(shared.now, &shared.memory, acknowledge);
        // It may have failed, looking at its memory.
        pair.settle(shared);
        let Some(departure) = departure else { break };
        length = departure.length();
        let (transport, memory) = (&pair.transport, &shared.memory);
        let taken = push(link, &peer.path, length, &mut |identification, frame| {
            let written = transport.write(&departure, memory, &peer.path.flow, identification, frame);
            debug_assert!(written.is_ok(), "its memory was looked at, and the frame has its length");
            if written.is_err() {
                // Whoever gets it drops it for its invariant CRC.
                frame.fill(0);
            }
        });
        if !taken {
            return (sent, Served::Blocked);
        }
        pair.transport.departed(shared.now, &departure);
        (sent, bytes) = (sent + 1, bytes + length);
    }
    // What is said of the connection comes behind a refusal, which says more.
    if let Some(word) = pair.owed
        && let Some((signal, peer)) = pair.signal(word)
    {
        if !send_signal(link, &signal, &peer, shared.config.partition) {
            return (sent, Served::Blocked);
        }
        sent += 1;
    }
    pair.owed = None;
    let waits = acknowledge == Acknowledge::Urgent && pair.transport.owes_acknowledgement();
    (sent, if waits { Served::Waits } else { Served::Idle })
}

/// Sends word about a connection; `false` when the link takes no more.
pub(crate) fn send_signal<L: Link>(link: &mut L, signal: &Signal, peer: &Peer, partition: u16) -> bool {
    let payload = signal.to_bytes();
    let bth = Bth { partition, ..Bth::new(peer.endpoint.queue_pair, Psn::ZERO) };
    let packet = Packet { bth, header: Header::Connection, payload: &payload };
    push(link, &peer.path, packet.length(), &mut |identification, frame| {
        let written = packet.emit(&peer.path.flow, identification, frame);
        debug_assert!(written.is_ok(), "the frame has the packet's length");
    })
}
