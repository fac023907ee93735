//! Long transfers in virtual time: how much of a link connections use, and how fairly.

use ringway_rc::{Configuration, QueuePair, ReceiveAttributes, Retries, SendAttributes};
use ringway_verbs::{Access, LocalSlice, Operation, QueuePairNumber, RemoteSlice, Status, Time, WorkRequest};
use ringway_wire::{self as wire, PathMtu, Psn, RnrTimer, TRANSPORT_LENGTH_MAX};

use super::{
    Counts, Faults, NodeMemory, PacketNetwork,
    world::{Settings, connected, flow, receive},
};
use crate::Random;

/// Bytes of one request.
const REQUEST: u64 = 256 << 10;
/// Requests of one sender that are posted at once.
const DEPTH: u32 = 4;

/// What is transferred over what.
#[derive(Debug, Clone, Copy)]
pub struct Bulk {
    /// Nodes that all send to one.
    pub senders: usize,
    /// They READ from that one instead.
    pub reads: bool,
    /// Selective acknowledgement and a congestion window.
    pub selective: bool,
    /// The network.
    pub faults: Faults,
    /// For how long, in nanoseconds.
    pub duration_ns: u64,
    /// The network's seed.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Transferred {
    /// Bytes of completed requests, of each sender.
    pub bytes: Vec<u64>,
    /// What became of packets.
    pub packets: Counts,
}

impl Transferred {
    /// Bytes of all senders.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

const fn settings(bulk: &Bulk) -> Settings {
    Settings {
        configuration: Configuration {
            number: QueuePairNumber(2),
            send_depth: DEPTH,
            receive_depth: 1,
            responder_resources: 8,
            selective_window: if bulk.selective { 512 } else { 0 },
            path_mtu_max: PathMtu::Mtu4096,
        },
        receive: ReceiveAttributes {
            path_mtu: PathMtu::Mtu4096,
            destination: match wire::QueuePair::new(0) {
                Some(number) => number,
                None => unreachable!(),
            },
            receive_psn: Psn::ZERO,
            max_dest_rd_atomic: 8,
            min_rnr_timer: match RnrTimer::new(1) {
                Some(timer) => timer,
                None => unreachable!(),
            },
            selective: bulk.selective,
        },
        send: SendAttributes {
            timeout: 8,
            retries: Retries::Forever,
            rnr_retries: Retries::Forever,
            send_psn: Psn::ZERO,
            max_rd_atomic: 8,
            window: if bulk.selective { 512 } else { 128 },
            solicited: false,
            delay_slack_ns: 20_000,
            line_rate: if bulk.faults.rate == 0 { 12_500_000_000 } else { bulk.faults.rate },
        },
    }
}

/// Transfers.
///
/// # Errors
/// When a connection cannot be made or fails.
pub fn transfer(bulk: &Bulk) -> Result<Transferred, String> {
    let nodes = bulk.senders + 1;
    let mut memories: Vec<NodeMemory> = (0..nodes).map(|_| NodeMemory::default()).collect();
    let keys: Vec<_> =
        memories.iter_mut().map(|memory| memory.register(vec![1; REQUEST as usize], Access::ALL)).collect();
    let mut network = PacketNetwork::new(nodes, bulk.faults, Random::new(bulk.seed));
    // Ends 2k are of sender k, on node k + 1; ends 2k + 1 are their peers, on node 0.
    let mut queue_pairs = Vec::new();
    for end in 0..2 * bulk.senders {
        queue_pairs.push(connected(end, &settings(bulk))?);
    }
    let node = |end: usize| if end.is_multiple_of(2) { end / 2 + 1 } else { 0 };
    let mut bytes = vec![0; bulk.senders];
    let mut frame = vec![0; TRANSPORT_LENGTH_MAX];
    let mut now = 0;
    while now < bulk.duration_ns {
        for (sender, done) in bytes.iter_mut().enumerate() {
            let local = LocalSlice { key: keys[sender + 1].0, offset: 0, length: REQUEST };
            let remote = RemoteSlice { key: keys[0].1, offset: 0 };
            *done += drive(&mut queue_pairs[2 * sender], bulk.reads, local, remote)?;
        }
        for (end, queue_pair) in queue_pairs.iter_mut().enumerate() {
            let (from, to) = (node(end), node(end ^ 1));
            queue_pair.handle_timeout(Time(now));
            let flow = flow(from, to);
            while let Some(length) =
                queue_pair.poll_transmit(Time(now), &memories[from], &flow, |_| 0, &mut frame)
            {
                network.send(now, from, to, &frame[..length]);
            }
        }
        let timeouts = queue_pairs.iter_mut().filter_map(|queue_pair| queue_pair.next_timeout(Time(now)));
        let next = timeouts.map(|time| time.0).chain(network.next_arrival()).min();
        now = next.ok_or("nothing will ever happen again")?.max(now);
        while let Some(packet) = network.receive(now) {
            if let Some((end, parsed)) = receive(&packet)
                && let Some(queue_pair) = queue_pairs.get_mut(end)
            {
                queue_pair.handle_packet(Time(now), &parsed, packet.congested, &mut memories[packet.to]);
            }
            network.recycle(packet);
        }
    }
    Ok(Transferred { bytes, packets: network.counts })
}

/// Posts all there is room for; returns the bytes that have completed.
fn drive(
    queue_pair: &mut QueuePair,
    reads: bool,
    segment: LocalSlice,
    remote: RemoteSlice,
) -> Result<u64, String> {
    let mut done = 0;
    while let Some(completion) = queue_pair.poll_completion() {
        if completion.status != Status::Success {
            return Err(format!("{:?}: {:?}", completion.status, queue_pair.failure()));
        }
        done += completion.length;
    }
    let operation = if reads { Operation::Read { remote } } else { Operation::Write { remote } };
    let local = [segment, LocalSlice::default()];
    while !queue_pair.is_send_queue_full() {
        let request = WorkRequest { id: 0, operation, local, signalled: true, fence: false };
        queue_pair.post_send(&request).map_err(|error| error.to_string())?;
    }
    Ok(done)
}
