//! A link with a bad network behind it.

mod spec;

use core::{cmp::Reverse, net::IpAddr};
use std::collections::BinaryHeap;

use fastrand::Rng;
use ringway_roce::{Counters, Link, LinkError, Path, Received, Refusal, SendError};
use ringway_verbs::Time;
use ringway_wire::{Check, Ecn, Flow, PathMtu, TRANSPORT_LENGTH_MAX};

pub use self::spec::{FaultSpec, FaultSpecError};

/// Packets that can be held back at once; what comes beyond them is lost, as in a full queue of a switch.
const HELD_MAX: usize = 1024;

/// What was done to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Packets that came in.
    pub arrived: u64,
    /// Not handed over.
    pub lost: u64,
    /// Handed over twice.
    pub duplicated: u64,
    /// Handed over with one bit wrong.
    pub corrupted: u64,
    /// Held back for others to pass.
    pub reordered: u64,
    /// Marked with congestion.
    pub marked: u64,
    /// Lost because too many were held back.
    pub overflowed: u64,
}

/// A link that does to what comes in what [`FaultSpec`] says. What goes out it leaves alone: the other side's link may
/// do the same to that.
#[derive(Debug)]
pub struct Faulty<L: Link> {
    link: L,
    network: Network,
}

/// Where packets are between arrival and being handed over.
#[derive(Debug)]
struct Network {
    spec: FaultSpec,
    random: Rng,
    counts: FaultCounts,
    /// The packets held back, the next one first: when it is due, its number, where it is.
    held: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// Numbers them, so that those due at the same time keep their order.
    sequence: u64,
    places: Vec<Place>,
    free: Vec<usize>,
    /// One packet's bytes, to change them.
    changed: Box<[u8]>,
}

/// A packet that is held back.
#[derive(Debug)]
struct Place {
    /// What it came as, but for the bytes; `None` while nothing is here.
    packet: Option<Arrived>,
    bytes: Box<[u8]>,
}

/// What is known of a packet besides its bytes.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    flow: Flow,
    ecn: Ecn,
    identification: u16,
    check: Check,
    length: usize,
}

impl Arrived {
    const fn of(received: &Received<'_>) -> Self {
        let Received { flow, ecn, identification, check, transport } = *received;
        Self { flow, ecn, identification, check, length: transport.len() }
    }

    fn with<'a>(&self, bytes: &'a [u8]) -> Received<'a> {
        let Self { flow, ecn, identification, check, length } = *self;
        Received { flow, ecn, identification, check, transport: bytes.get(..length).unwrap_or_default() }
    }
}

impl<L: Link> Faulty<L> {
    /// Puts a bad network before the link.
    #[must_use]
    pub fn new(link: L, spec: FaultSpec) -> Self {
        // Only what can be held back needs memory.
        let held = if spec.holds_back() { HELD_MAX } else { 0 };
        let room = || vec![0; TRANSPORT_LENGTH_MAX].into_boxed_slice();
        let network = Network {
            spec,
            random: Rng::with_seed(spec.seed),
            counts: FaultCounts::default(),
            held: BinaryHeap::with_capacity(held),
            sequence: 0,
            places: (0..held).map(|_| Place { packet: None, bytes: room() }).collect(),
            free: (0..held).collect(),
            changed: room(),
        };
        Self { link, network }
    }

    /// What was done so far.
    #[must_use]
    pub const fn counts(&self) -> FaultCounts {
        self.network.counts
    }
}

impl Network {
    /// Draws whether something of this probability happens.
    fn happens(&mut self, probability: f64) -> bool {
        self.random.f64() < probability
    }

    /// Hands over what was held back and is due. Returns how many.
    fn release(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        let mut released = 0;
        while let Some(Reverse((due, _, at))) = self.held.peek().copied()
            && due <= now.0
        {
            self.held.pop();
            self.free.push(at);
            let Some(place) = self.places.get_mut(at) else { continue };
            if let Some(packet) = place.packet.take() {
                receive(&packet.with(&place.bytes));
                released += 1;
            }
        }
        released
    }

    /// One packet has come in. Returns how many are handed over at once.
    fn arrive(
        &mut self,
        now: Time,
        received: &Received<'_>,
        receive: &mut dyn FnMut(&Received<'_>),
    ) -> usize {
        self.counts.arrived += 1;
        let spec = self.spec;
        if self.happens(spec.loss) {
            self.counts.lost += 1;
            return 0;
        }
        let mut packet = Arrived::of(received);
        // Routers mark what reacts to marks, and drop the rest.
        if self.happens(spec.ecn) && packet.ecn != Ecn::NotCapable {
            packet.ecn = Ecn::CongestionExperienced;
            self.counts.marked += 1;
        }
        let copies = if self.happens(spec.duplicate) {
            self.counts.duplicated += 1;
            2
        } else {
            1
        };
        let corrupt = self.happens(spec.corrupt);
        let mut changed = core::mem::take(&mut self.changed);
        let bytes = match changed.get_mut(..packet.length) {
            // One bit: a CRC notices that for certain.
            Some(room) if corrupt && packet.length > 0 => {
                room.copy_from_slice(received.transport);
                let bit = self.random.u64(..packet.length as u64 * 8);
                if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|at| room.get_mut(at)) {
                    *byte ^= 1 << (bit % 8);
                    self.counts.corrupted += 1;
                }
                &*room
            }
            _ => received.transport,
        };
        let handed = (0..copies).map(|_| usize::from(self.deliver(now, packet, bytes, receive))).sum();
        self.changed = changed;
        handed
    }

    /// Hands the packet over or holds it back; says whether it was handed over.
    fn deliver(
        &mut self,
        now: Time,
        packet: Arrived,
        bytes: &[u8],
        receive: &mut dyn FnMut(&Received<'_>),
    ) -> bool {
        let spec = self.spec;
        let mut delay_us = spec.delay_us + self.random.u64(..=spec.jitter_us);
        if self.happens(spec.reorder) {
            self.counts.reordered += 1;
            delay_us += self.random.u64(1..=spec.reorder_us.max(1));
        }
        if delay_us == 0 {
            receive(&packet.with(bytes));
            return true;
        }
        let Some((at, place)) = self.free.pop().and_then(|at| Some((at, self.places.get_mut(at)?))) else {
            self.counts.overflowed += 1;
            return false;
        };
        let Some(room) = place.bytes.get_mut(..packet.length) else {
            // Longer than any packet: nobody misses it.
            self.free.push(at);
            self.counts.overflowed += 1;
            return false;
        };
        room.copy_from_slice(bytes);
        place.packet = Some(packet);
        let due = now.0.saturating_add(delay_us.saturating_mul(1000));
        self.held.push(Reverse((due, self.sequence, at)));
        self.sequence += 1;
        false
    }
}

impl<L: Link> Link for Faulty<L> {
    fn local_address(&self) -> IpAddr {
        self.link.local_address()
    }

    fn mtu(&self) -> PathMtu {
        self.link.mtu()
    }

    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        self.link.path(peer, entropy, traffic_class)
    }

    fn takes_any_identification(&self) -> bool {
        self.link.takes_any_identification()
    }

    fn connect(&mut self, path: &mut Path) {
        self.link.connect(path);
    }

    fn disconnect(&mut self, path: &Path) {
        self.link.disconnect(path);
    }

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        self.link.send(path, length, write)
    }

    fn flush(&mut self) -> bool {
        self.link.flush()
    }

    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        let network = &mut self.network;
        let mut handed = network.release(now, receive);
        self.link.poll(now, &mut |received| handed += network.arrive(now, received, receive));
        handed
    }

    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        self.link.refusals(report);
    }

    fn deadline(&self) -> Option<Time> {
        let held = self.network.held.peek().map(|Reverse((due, ..))| Time(*due));
        held.into_iter().chain(self.link.deadline()).min()
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.link.event_descriptor()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}
