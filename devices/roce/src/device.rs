//! The device: what the caller does with queue pairs, and the loop body around the link.

use std::{boxed::Box, collections::VecDeque, sync::Arc};

use ringway_mem::Mapping;
use ringway_rc::Acknowledge;
use ringway_verbs::{
    Access, Capabilities, Completion, ConnectError, Device, Endpoint, LocalKey, MemoryKeys, PacketBytes,
    PostError, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest,
    RegisterError, RemoteKey, Role, Time, WorkRequest,
};
use ringway_wire::{Bth, Ecn, Header, Packet, ParseError, PathMtu, Psn, QueuePair as Number};

use crate::{
    PeerKind, RoceConfig, RoceCounters, RoceEndpoint, RoceError, RoceFailure,
    link::{Link, LinkError, Received, Refusal, RefusalReason},
    pair::{Pair, Peer, Phase},
    shared::Shared,
    table::{Table, random},
    transmit::{Blocked, Served, send_signal, serve},
};

/// Packets after which one poll or flush begins no more turns. A turn is never cut: whoever had what is left of this as the last of
/// each poll would come last in the next one again.
const BUDGET: usize = 64;
/// Packets that one poll takes at most, or a batch of the link's more. More than it sends: what is sent is answered, and a
/// side that sends faster than it takes the answers takes them so late that it sends everything again.
const INTAKE: usize = 4 * BUDGET;
/// When the link hands over fewer than this, there are hardly more.
const INTAKE_BATCH: usize = 16;
/// Timers that one poll looks at.
const TIMERS_PER_POLL: usize = 256;
/// How often ways to peers are asked for that are not known yet, in nanoseconds, and for how many at a time.
const SEEK_EVERY_NS: u64 = 1_000_000;
const SOUGHT_PER_POLL: usize = 8;
/// Opcodes of reliable connections are below this.
const CONNECTED_OPCODES_END: u8 = 0x20;
/// The deepest queue.
const MAX_DEPTH: u32 = 1 << 16;
/// A side that is so much later than it wanted to be has stood still.
const STANDSTILL_NS: u64 = 500_000_000;

/// The verbs contract over any link that carries RoCEv2 packets. See the crate's documentation.
#[derive(Debug)]
pub struct RoceDevice<L: Link = Box<dyn Link>> {
    link: L,
    shared: Shared,
    table: Table,
    receiving: Receiving,
    /// Counts of queue pairs that are no more.
    ended: ringway_rc::Counters,
    /// This end's largest path MTU.
    mtu: PathMtu,
    /// The link has packets that the network does not take.
    blocked: Option<Blocked>,
    /// The last poll had something for its caller, and left sending to what comes next.
    postponed: bool,
    /// Queue pairs to whose peers no way is known yet, and when it is looked for again.
    seeking: VecDeque<u16>,
    seek_at: Time,
}

/// What is counted of packets that reach no queue pair.
#[derive(Debug, Default)]
struct Receiving {
    bad_icrc: u64,
    malformed: u64,
    unknown_queue_pair: u64,
    early: u64,
    strangers: u64,
    refused: u64,
    too_long: u64,
    refused_unknown: u64,
}

impl Receiving {
    /// A packet came in.
    fn receive(&mut self, received: &Received<'_>, table: &mut Table, shared: &mut Shared) {
        let packet = match Packet::parse(received.transport, received.check) {
            Ok(packet) => packet,
            Err(ParseError::Icrc { .. }) => return self.bad_icrc += 1,
            Err(error) => {
                self.malformed += 1;
                if matches!(error, ParseError::Opcode(code) if code < CONNECTED_OPCODES_END) {
                    refuse_unknown(received, table, shared);
                }
                return;
            }
        };
        let number = QueuePairNumber(packet.bth.destination.number());
        let is_signal = matches!(packet.header, Header::Connection);
        let Some(pair) = table.pairs.get_mut(number.0) else {
            self.unknown_queue_pair += 1;
            if is_signal {
                table.handle_signal(number, packet.payload);
            }
            return;
        };
        let Some(peer) = pair.peer else { return self.early += 1 };
        if received.flow.addresses.source() != peer.endpoint.address {
            return self.strangers += 1;
        }
        if is_signal {
            return pair.handle_signal(packet.payload, shared);
        }
        pair.liveness.hear(shared.now);
        let congested = received.ecn == Ecn::CongestionExperienced;
        pair.transport.handle_packet(shared.now, &packet, congested, &mut shared.memory);
        // Who sends requests knows that this side is there.
        pair.become_ready(shared);
        pair.settle(shared);
        pair.activate(shared);
    }
}

impl Receiving {
    /// The network, or this host, says that a packet was not taken.
    ///
    /// That can be forged by whoever can send packets at all, and it comes late of a peer that has just begun to listen. So
    /// first the packet that is quoted must be one that a queue pair here sends: between these addresses and ports, and to
    /// its peer's number. Who does not see the packets has to guess a sender's port and the random part of that number, 12
    /// bits of it among 4096 queue pairs and up to 16 among fewer. And then nothing fails for it: the peer is asked at once
    /// and loses only its patience, as one that is there answers in much less than that. What is said of one queue pair is
    /// asked of all with that peer, as a process takes all its packets on one port, and hosts limit how often they say so.
    fn refuse(&mut self, refusal: &Refusal<'_>, table: &mut Table, shared: &mut Shared) {
        let quoted = refusal.transport.first_chunk().map(|bytes| Bth::parse(bytes).0.destination);
        let sent = |peer: &Peer| peer.path.flow == refusal.flow && Some(peer.endpoint.queue_pair) == quoted;
        if !table.pairs.iter().any(|pair| pair.peer.as_ref().is_some_and(sent)) {
            self.refused_unknown += 1;
            return;
        }
        match refusal.reason {
            RefusalReason::NobodyListens => self.refused += 1,
            RefusalReason::TooLong => self.too_long += 1,
        }
        let address = refusal.flow.addresses.destination();
        let concerned =
            |pair: &&mut Box<Pair>| pair.peer.is_some_and(|peer| peer.endpoint.address == address);
        for pair in table.pairs.iter_mut().filter(concerned) {
            match refusal.reason {
                RefusalReason::NobodyListens if pair.ringway_peer().is_some() => pair.doubt_peer(shared),
                RefusalReason::NobodyListens => {}
                // It only explains a silence.
                RefusalReason::TooLong => pair.narrow_at = Some(shared.now),
            }
        }
    }
}

/// A request of a reliable connection of a kind that nobody knows: its sender hears of it.
fn refuse_unknown(received: &Received<'_>, table: &mut Table, shared: &mut Shared) {
    let Some((bth, _)) = received.transport.first_chunk().map(Bth::parse) else { return };
    let Some(pair) = table.pairs.get_mut(bth.destination.number()) else { return };
    let source = received.flow.addresses.source();
    if pair.peer.is_some_and(|peer| peer.endpoint.address == source) {
        pair.transport.handle_unknown_request(bth.psn);
        pair.settle(shared);
        pair.activate(shared);
    }
}

/// Has a queue pair come up when it next has something to do.
fn schedule(pair: &mut Pair, shared: &mut Shared) {
    // One after the other: an array of both to find the earlier in takes longer than either.
    if let Some(due) = pair.transport.next_timeout(shared.now) {
        shared.timers.at_latest(pair.index, due);
    }
    if let Some(due) = pair.next_question(shared) {
        shared.timers.at_latest(pair.index, due);
    }
}

impl<L: Link> RoceDevice<L> {
    /// Makes a device over a link.
    ///
    /// # Errors
    /// When the configuration is out of range.
    pub fn new(link: L, config: RoceConfig) -> Result<Self, RoceError> {
        config.check()?;
        Ok(Self {
            mtu: link.mtu().min(config.mtu_max),
            link,
            shared: Shared::new(config),
            table: Table::new(config.max_queue_pairs),
            receiving: Receiving::default(),
            ended: ringway_rc::Counters::default(),
            blocked: None,
            postponed: false,
            seeking: VecDeque::new(),
            seek_at: Time(0),
        })
    }

    /// The link.
    #[must_use]
    pub const fn link(&self) -> &L {
        &self.link
    }

    /// What it was told.
    #[must_use]
    pub const fn config(&self) -> &RoceConfig {
        &self.shared.config
    }

    /// Why a queue pair failed; `None` while it has not, or when there is none of this number.
    #[must_use]
    pub fn last_error(&self, queue_pair: QueuePairNumber) -> Option<&RoceFailure> {
        self.table.pairs.get(queue_pair.0)?.failure.as_ref()
    }

    /// What was counted since it was made. Looks at every queue pair.
    #[must_use]
    pub fn counters(&self) -> RoceCounters {
        let receiving = &self.receiving;
        let mut transport = self.ended;
        self.table.pairs.iter().for_each(|pair| transport.add(&pair.transport.counters()));
        let (link, failures) = (self.link.counters(), self.shared.failures);
        RoceCounters {
            transport,
            link,
            bad_icrc: receiving.bad_icrc,
            malformed: receiving.malformed,
            unknown_queue_pair: receiving.unknown_queue_pair,
            early: receiving.early,
            strangers: receiving.strangers,
            refused: receiving.refused,
            too_long: receiving.too_long,
            refused_unknown: receiving.refused_unknown,
            failures,
            copied: self.shared.memory.copied(),
        }
    }

    /// Sends for queue pairs that have something to send, in turn.
    fn run(&mut self, acknowledge: Acknowledge) {
        let Self { link, shared, table, .. } = self;
        let mut sent_in_all = 0;
        for _ in 0..shared.active.len() {
            let Some(index) = shared.active.pop_front() else { break };
            let Some(pair) = table.pairs.in_slot(index) else { continue };
            pair.active = false;
            let (sent, served) = serve(pair, shared, link, acknowledge);
            if served != Served::Idle {
                pair.activate(shared);
            }
            schedule(pair, shared);
            sent_in_all += sent;
            if sent_in_all >= BUDGET || served == Served::Blocked {
                break;
            }
        }
        while let Some((signal, peer)) = table.answers.pop_front() {
            if !send_signal(link, &signal, &peer, shared.config.partition) {
                break;
            }
        }
        self.blocked = if link.flush() { None } else { Some(Blocked::again(self.blocked, shared.now)) };
    }

    /// Looks once more for the ways that are not known yet, those of `most` queue pairs at most.
    fn seek(&mut self, most: usize) {
        let Self { link, shared, table, mtu, seeking, .. } = self;
        for _ in 0..most.min(seeking.len()) {
            let Some(index) = seeking.pop_back() else { break };
            let Some(pair) = table.pairs.in_slot(index) else { continue };
            let Some(endpoint) = pair.sought else { continue };
            match link.path(endpoint.address, pair.number.0, shared.config.traffic_class) {
                Ok(mut path) => {
                    if endpoint.takes_any_identification() {
                        link.connect(&mut path);
                    }
                    pair.take_way(Peer { endpoint, path }, *mtu, shared);
                }
                Err(LinkError::Resolving { .. }) => seeking.push_front(index),
                Err(error) => pair.fail(error.into(), shared),
            }
        }
        self.seek_at = Time(self.shared.now.0.saturating_add(SEEK_EVERY_NS));
    }

    fn expire(&mut self) {
        let Self { shared, table, .. } = self;
        for _ in 0..TIMERS_PER_POLL {
            let Some(index) = shared.timers.pop(shared.now) else { return };
            if let Some(pair) = table.pairs.in_slot(index) {
                pair.expire(shared);
            }
        }
    }

    /// Takes note of the time. A thread that did not get to run says nothing about peers that were silent meanwhile.
    fn tell_time(&mut self, now: Time) {
        let now = self.shared.now.max(now);
        let late =
            self.shared.timers.first().is_some_and(|first| now.0 > first.0.saturating_add(STANDSTILL_NS));
        if late {
            self.shared.resumed = now;
        }
        self.shared.now = now;
    }

    fn take_completions(&mut self, places: &mut [Completion]) -> usize {
        let Self { table, shared, .. } = self;
        shared.completions.take(places, |taken| {
            if let Some(pair) = table.pairs.get_mut(taken.queue_pair.0) {
                pair.untaken.take(taken.kind);
            }
        })
    }

    /// A queue pair together with what all share.
    fn split(&mut self, number: QueuePairNumber) -> Option<(&mut Pair, &mut Shared)> {
        Some((self.table.pairs.get_mut(number.0)?, &mut self.shared))
    }
}

impl<L: Link> Device for RoceDevice<L> {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(self.shared.config.name);
        (capabilities.atomics, capabilities.draining) = (true, true);
        capabilities.max_message = ringway_rc::MAX_MESSAGE;
        capabilities.max_queue_pairs = self.shared.config.max_queue_pairs;
        capabilities
    }

    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters().for_each(each);
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.shared.memory.regions.register(region, access)
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        self.shared.memory.regions.deregister(key)
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        self.shared.memory.regions.is_busy(key)
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        self.table.pairs.get(queue_pair.0)?;
        self.shared.memory.regions.remote_key(key)
    }

    fn create_queue_pair(&mut self, depths: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        let invalid = QueuePairError::System(libc::EINVAL);
        if depths.send_depth > MAX_DEPTH || depths.receive_depth > MAX_DEPTH {
            return Err(invalid);
        }
        let config = &self.shared.config;
        let first_psn = match config.first_psn {
            Some(psn) => psn,
            None => Psn::new(random()?),
        };
        let number = self.table.allot()?;
        let index = self.table.pairs.slot(number.0);
        let pair = Pair::new(number, index, first_psn, depths, config, self.mtu).ok_or(invalid)?;
        self.table.pairs.insert(number.0, pair);
        // Room for everything is made here, so that the data path never allocates.
        let shared = &mut self.shared;
        shared.completions.make_room(depths);
        shared.active.reserve(self.table.pairs.slots().saturating_sub(shared.active.len()));
        shared.timers.reserve(self.table.pairs.slots());
        Ok(number)
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        let pair = self.table.pairs.get(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        let endpoint = RoceEndpoint {
            address: self.link.local_address(),
            queue_pair: Number::new(pair.number.0).ok_or(QueuePairError::Unknown)?,
            psn: pair.first_psn,
            mtu: self.mtu,
            rd_atomic: self.shared.config.max_dest_rd_atomic,
            kind: PeerKind::Ringway {
                selective: self.shared.config.selective,
                any_identification: self.link.takes_any_identification(),
            },
        };
        Ok(endpoint.encode())
    }

    /// Toward a plain peer there is nothing to wait for: the queue pair is [`QueuePairState::Ready`] at once.
    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        _role: Role,
    ) -> Result<(), ConnectError> {
        let pair = self.table.pairs.get_mut(queue_pair.0).ok_or(ConnectError::Unknown)?;
        let endpoint = RoceEndpoint::decode(peer).ok_or(ConnectError::ForeignEndpoint)?;
        if pair.phase != Phase::Init {
            return Err(ConnectError::WrongState);
        }
        pair.connect(endpoint, self.mtu, &mut self.shared);
        self.seeking.push_back(pair.index);
        self.seek(1);
        Ok(())
    }

    fn packet_bytes(&self, queue_pair: QueuePairNumber) -> Option<PacketBytes> {
        let pair = self.table.pairs.get(queue_pair.0)?;
        let peer = pair.sought.or_else(|| Some(pair.peer?.endpoint))?;
        Some(PacketBytes { own: self.mtu.bytes(), peer: peer.mtu.bytes() })
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        Some(self.table.pairs.get(queue_pair.0)?.state())
    }

    fn drain(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        self.table.pairs.get_mut(queue_pair.0).ok_or(QueuePairError::Unknown)?.drain()
    }

    fn resume(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        let (pair, shared) = self.split(queue_pair).ok_or(QueuePairError::Unknown)?;
        pair.resume(shared)
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        if let Some((pair, shared)) = self.split(queue_pair) {
            pair.fail(RoceFailure::Local, shared);
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        let Self { link, shared, table, .. } = self;
        let pair = table.pairs.get_mut(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        pair.fail(RoceFailure::Local, shared);
        // Whatever is still to be said: a refusal, or that it is gone.
        serve(pair, shared, link, Acknowledge::All);
        link.flush();
        let pair = table.remove(queue_pair).ok_or(QueuePairError::Unknown)?;
        if let Some(peer) = pair.peer {
            link.disconnect(&peer.path);
        }
        self.ended.add(&pair.transport.counters());
        shared.completions.forget(queue_pair, pair.config);
        shared.active.retain(|index| *index != pair.index);
        shared.timers.remove(pair.index);
        Ok(())
    }

    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
        let (pair, shared) = self.split(queue_pair).ok_or(PostError::Unknown)?;
        pair.post_send(request, shared)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError> {
        let (pair, shared) = self.split(queue_pair).ok_or(PostError::Unknown)?;
        pair.post_receive(request, shared)
    }

    fn flush(&mut self) {
        self.run(Acknowledge::Urgent);
    }

    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        self.tell_time(now);
        // What has come is looked at before what has not come in time.
        let Self { link, shared, table, receiving, .. } = self;
        let mut taken = 0;
        while taken < INTAKE {
            let count = link.poll(now, &mut |received| receiving.receive(received, table, shared));
            taken += count;
            // Who waits for one message hears of it before it is known whether there are more.
            if count == 0 || (count < INTAKE_BATCH && !shared.completions.is_empty()) {
                break;
            }
        }
        link.refusals(&mut |refusal| receiving.refuse(refusal, table, shared));
        if !self.seeking.is_empty() && self.shared.now >= self.seek_at {
            self.seek(SOUGHT_PER_POLL);
        }
        self.expire();
        // Who waits for a message hears of it before anything is said about it. What has come may be answered, and
        // sending both takes one call; the next poll sends in any case.
        self.postponed = !self.postponed && !self.shared.completions.is_empty();
        if !self.postponed {
            self.run(if taken == 0 { Acknowledge::Idle } else { Acknowledge::Urgent });
        }
        self.take_completions(completions)
    }

    fn deadline(&self) -> Option<Time> {
        let due = match self.blocked {
            // Until then nobody can send, whatever is due.
            Some(blocked) => Some(blocked.retry_at),
            None if !self.shared.active.is_empty() => Some(self.shared.now),
            None => self.shared.timers.first(),
        };
        let seek_at = (!self.seeking.is_empty()).then_some(self.seek_at);
        due.into_iter().chain(self.link.deadline()).chain(seek_at).min()
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.link.event_descriptor()
    }

    fn arm(&mut self) -> bool {
        self.run(Acknowledge::All);
        // The link's descriptor stays readable for as long as there is something to receive.
        !core::mem::take(&mut self.shared.changed)
            && self.shared.completions.is_empty()
            && match self.blocked {
                Some(blocked) => blocked.retry_at > self.shared.now,
                None => self.shared.active.is_empty(),
            }
    }
}

impl<L: Link> Drop for RoceDevice<L> {
    /// Tells peers that their connections end here.
    fn drop(&mut self) {
        let Self { link, shared, table, .. } = self;
        for pair in table.pairs.iter_mut() {
            pair.fail(RoceFailure::Local, shared);
            serve(pair, shared, link, Acknowledge::All);
        }
        link.flush();
    }
}
