//! A network of packets in virtual time that loses, delays, reorders, duplicates, corrupts and marks them by a seed.

use std::collections::BTreeMap;

use crate::Random;

/// What happens to packets. Parts are of a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Packets that are lost.
    pub loss: u64,
    /// Packets that come twice.
    pub duplicate: u64,
    /// Packets that come with some bit changed.
    pub corrupt: u64,
    /// Packets that are held back while others overtake them.
    pub reorder: u64,
    /// Packets that are marked as having met congestion.
    pub mark: u64,
    /// What the way takes, in nanoseconds.
    pub latency_ns: u64,
    /// Up to so much is added to each packet.
    pub jitter_ns: u64,
    /// What every port forwards, in bytes per second; zero for no limit.
    pub rate: u64,
    /// Bytes that may wait at a port before further ones are lost.
    pub queue_bytes: u64,
    /// Packets that find more than so many bytes waiting are marked.
    pub mark_bytes: u64,
}

impl Faults {
    /// A network that does nothing wrong.
    pub const NONE: Self = Self {
        loss: 0,
        duplicate: 0,
        corrupt: 0,
        reorder: 0,
        mark: 0,
        latency_ns: 2_000,
        jitter_ns: 0,
        rate: 0,
        queue_bytes: u64::MAX,
        mark_bytes: u64::MAX,
    };
}

/// A packet on its way.
#[derive(Debug, Clone)]
pub struct InFlight {
    /// The node it goes to.
    pub to: usize,
    /// The node it comes from.
    pub from: usize,
    /// What UDP carries.
    pub bytes: Vec<u8>,
    /// It was marked.
    pub congested: bool,
}

/// What became of packets so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent.
    pub sent: u64,
    /// Lost at random.
    pub lost: u64,
    /// Lost because a port's queue was full.
    pub dropped: u64,
    /// Marked because a port's queue was long, or at random.
    pub marked: u64,
}

/// The network. Every node has one port with a queue before it.
#[derive(Debug)]
pub struct PacketNetwork {
    faults: Faults,
    random: Random,
    sequence: u64,
    packets: BTreeMap<(u64, u64), InFlight>,
    /// When the port of each node has forwarded all that waits.
    ports: Vec<u64>,
    /// Everything is lost from this moment on.
    cut_at: Option<u64>,
    spare: Vec<Vec<u8>>,
    /// What became of packets so far.
    pub counts: Counts,
}

impl PacketNetwork {
    /// A network between so many nodes.
    #[must_use]
    pub fn new(nodes: usize, faults: Faults, random: Random) -> Self {
        Self {
            faults,
            random,
            sequence: 0,
            packets: BTreeMap::new(),
            ports: vec![0; nodes],
            cut_at: None,
            spare: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Loses everything from then on.
    pub const fn cut(&mut self, at_ns: u64) {
        self.cut_at = Some(at_ns);
    }

    /// Sends a packet.
    pub fn send(&mut self, now: u64, from: usize, to: usize, bytes: &[u8]) {
        self.counts.sent += 1;
        let random = &mut self.random;
        if random.per_mille(self.faults.loss) || self.cut_at.is_some_and(|at| at <= now) {
            self.counts.lost += 1;
            return;
        }
        let copies = 1 + u64::from(random.per_mille(self.faults.duplicate));
        for _ in 0..copies {
            self.send_copy(now, from, to, bytes);
        }
    }

    fn send_copy(&mut self, now: u64, from: usize, to: usize, bytes: &[u8]) {
        let mut congested = self.random.per_mille(self.faults.mark);
        let mut leaves = now;
        if self.faults.rate > 0 {
            let free = self.ports[to].max(now);
            let waiting = (free - now) * self.faults.rate / 1_000_000_000;
            if waiting + bytes.len() as u64 > self.faults.queue_bytes {
                self.counts.dropped += 1;
                return;
            }
            congested |= waiting > self.faults.mark_bytes;
            leaves = free + (bytes.len() as u64 + 60) * 1_000_000_000 / self.faults.rate;
            self.ports[to] = leaves;
        }
        self.counts.marked += u64::from(congested);
        let mut delay = self.faults.latency_ns + self.random.below(self.faults.jitter_ns + 1);
        if self.random.per_mille(self.faults.reorder) {
            delay += self.random.between(1, 20) * (self.faults.latency_ns + 500);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        if self.random.per_mille(self.faults.corrupt) {
            let bit = self.random.below(copy.len() as u64 * 8);
            copy[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        self.sequence += 1;
        self.packets.insert((leaves + delay, self.sequence), InFlight { to, from, bytes: copy, congested });
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_arrival(&self) -> Option<u64> {
        self.packets.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next packet that has arrived by now.
    pub fn receive(&mut self, now: u64) -> Option<InFlight> {
        let first = self.packets.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Gives a packet's memory back.
    pub fn recycle(&mut self, packet: InFlight) {
        self.spare.push(packet.bytes);
    }
}
