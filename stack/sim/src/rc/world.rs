//! Nodes, connections between them, and what happens in which order.

use std::net::Ipv4Addr;

use ringway_rc::{
    Acknowledge, Configuration, Failure, Initialization, QueuePair, ReceiveAttributes, Retries,
    SendAttributes, State, Transition,
};
use ringway_verbs::{
    Access, Completion, CompletionKind, LocalKey, LocalSlice, QueuePairNumber, ReceiveRequest, RemoteKey,
    Status, Time,
};
use ringway_wire::{self as wire, Addresses, Check, DEFAULT_PARTITION, Flow, Packet, TRANSPORT_LENGTH_MAX};

use super::{
    InFlight, NodeMemory, PacketNetwork,
    draining::Draining,
    stream::{MESSAGE_MAX, Stream},
};
use crate::Random;

/// Between two looks of an end's application at its queues, at most, in nanoseconds.
const TICK_MAX_NS: u64 = 30_000;
/// An end learns by another way that the other failed, after this time, in nanoseconds.
const WORD_OF_MOUTH_NS: u64 = 40_000_000;

/// One end of a connection: its queue pair and its application.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) node: usize,
    pub(crate) queue_pair: QueuePair,
    pub(crate) stream: Stream,
    pub(crate) buffers: LocalKey,
    receive_depth: u64,
    posted: u64,
    received: u64,
    /// Messages of the other end that were seen.
    messages: usize,
    receives_failed: bool,
    tick: u64,
    /// What its application is at until then.
    acknowledge: Acknowledge,
    random: Random,
    /// How often it may try again when the peer has no receive posted.
    pub(crate) rnr_retries: Retries,
    pub(crate) draining: Draining,
    /// When this end is failed by hand.
    pub(crate) fails_at: Option<u64>,
    failed_at: Option<u64>,
}

impl End {
    fn is_idle(&self, peer: &Self) -> bool {
        if self.queue_pair.state() == State::Error {
            // Its application has taken all completions since.
            let looked = self.failed_at.is_some();
            return looked && self.stream.none_missing() && self.received == self.posted;
        }
        self.stream.all_done() && self.messages == peer.stream.messages.len() && peer.stream.all_posted()
    }
}

/// What both ends of a connection are made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) configuration: Configuration,
    pub(crate) receive: ReceiveAttributes,
    pub(crate) send: SendAttributes,
}

/// The simulated world. Ends 2k and 2k+1 are connected.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) nodes: Vec<NodeMemory>,
    pub(crate) ends: Vec<End>,
    pub(crate) network: PacketNetwork,
    frame: Vec<u8>,
}

pub(crate) fn flow(from: usize, to: usize) -> Flow {
    let address = |node: usize| Ipv4Addr::new(10, 0, 0, node as u8 + 1);
    Flow::new(Addresses::V4 { source: address(from), destination: address(to) }, 0xc000)
}

/// The number of an end's queue pair.
const fn number(end: usize) -> u32 {
    0x100 + end as u32
}

/// An end's queue pair, connected already.
pub(crate) fn connected(end: usize, settings: &Settings) -> Result<QueuePair, String> {
    let configuration = Configuration { number: QueuePairNumber(number(end)), ..settings.configuration };
    let destination = wire::QueuePair::new(number(end ^ 1)).ok_or("no such number")?;
    let steps = [
        Transition::Initialize(Initialization { partition: DEFAULT_PARTITION, access: Access::ALL }),
        Transition::ReadyToReceive(ReceiveAttributes { destination, ..settings.receive }),
        Transition::ReadyToSend(settings.send),
    ];
    let mut queue_pair = QueuePair::new(&configuration).map_err(|error| error.to_string())?;
    for step in steps {
        queue_pair.modify(&step).map_err(|error| error.to_string())?;
    }
    Ok(queue_pair)
}

/// The packet that arrived and the end it is for; nothing when it was corrupted.
pub(crate) fn receive(packet: &InFlight) -> Option<(usize, Packet<'_>)> {
    let length = u16::try_from(packet.bytes.len()).ok()?;
    let check = Check::Exact(flow(packet.from, packet.to).icrc(0, length));
    let parsed = Packet::parse(&packet.bytes, check).ok()?;
    Some((parsed.bth.destination.number().wrapping_sub(number(0)) as usize, parsed))
}

impl World {
    pub(crate) fn new(nodes: Vec<NodeMemory>, network: PacketNetwork) -> Self {
        Self { now: 0, nodes, ends: Vec::new(), network, frame: vec![0; TRANSPORT_LENGTH_MAX] }
    }

    /// Adds an end, connected already.
    pub(crate) fn add(
        &mut self,
        node: usize,
        settings: &Settings,
        stream: Stream,
        random: Random,
    ) -> Result<(), String> {
        let (end, buffers) = (self.ends.len(), settings.configuration.receive_depth as usize);
        let (buffers, _) = self.nodes[node].register(vec![0; buffers * MESSAGE_MAX as usize], Access::LOCAL);
        let queue_pair = connected(end, settings)?;
        self.ends.push(End {
            node,
            queue_pair,
            stream,
            buffers,
            receive_depth: settings.configuration.receive_depth.into(),
            posted: 0,
            received: 0,
            messages: 0,
            receives_failed: false,
            tick: 0,
            acknowledge: Acknowledge::All,
            random,
            rnr_retries: settings.send.rnr_retries,
            draining: Draining::new(settings.send.send_psn, settings.receive.path_mtu),
            fails_at: None,
            failed_at: None,
        });
        Ok(())
    }

    /// Runs until everything is done.
    pub(crate) fn run(&mut self, limit_ns: u64) -> Result<(), String> {
        loop {
            for end in 0..self.ends.len() {
                self.transmit(end).map_err(|error| self.at(end, &error))?;
            }
            if (0..self.ends.len()).all(|end| self.ends[end].is_idle(&self.ends[end ^ 1])) {
                return Ok(());
            }
            let now = Time(self.now);
            let ticks = self.ends.iter().map(|end| end.tick);
            let by_hand = self.ends.iter().filter_map(|end| end.fails_at);
            let arrival = self.network.next_arrival().into_iter();
            let first = ticks.chain(by_hand).chain(arrival).min().unwrap_or(u64::MAX);
            let timeouts = self.ends.iter_mut().filter_map(|end| end.queue_pair.next_timeout(now));
            let next = timeouts.map(|time| time.0).fold(first, u64::min);
            self.now = next.max(self.now);
            if self.now > limit_ns {
                return Err(self.describe_standstill());
            }
            while let Some(packet) = self.network.receive(self.now) {
                self.deliver(&packet);
                self.network.recycle(packet);
            }
            for end in 0..self.ends.len() {
                self.ends[end].queue_pair.handle_timeout(Time(self.now));
                if self.ends[end].fails_at.is_some_and(|at| at <= self.now) {
                    self.ends[end].fails_at = None;
                    self.fail(end);
                }
                if self.ends[end].tick <= self.now {
                    self.tick(end).map_err(|error| self.at(end, &error))?;
                }
            }
        }
    }

    fn at(&self, end: usize, error: &str) -> String {
        format!("end {end} at {} ns: {error}", self.now)
    }

    fn describe_standstill(&self) -> String {
        let ends: Vec<String> = self
            .ends
            .iter()
            .map(|end| {
                format!(
                    "{:?} posted all {} done {} messages {} of {}",
                    end.queue_pair.state(),
                    end.stream.all_posted(),
                    end.stream.all_done(),
                    end.messages,
                    end.posted
                )
            })
            .collect();
        format!("nothing is finished after {} ns: {}", self.now, ends.join("; "))
    }

    fn fail(&mut self, end: usize) {
        let end = &mut self.ends[end];
        // Moving to the error state works from everywhere.
        let _ = end.queue_pair.modify(&Transition::Error);
    }

    fn transmit(&mut self, end: usize) -> Result<(), String> {
        let to = self.ends[end ^ 1].node;
        let this = &mut self.ends[end];
        let (flow, memory) = (flow(this.node, to), &self.nodes[this.node]);
        let now = Time(self.now);
        while let Some(departure) = this.queue_pair.next_departure(now, memory, this.acknowledge) {
            // Whoever carries packets has no room now.
            if this.random.per_mille(20) {
                break;
            }
            let packet = &mut self.frame[..departure.length()];
            let written = this.queue_pair.write(&departure, memory, &flow, 0, packet);
            written.map_err(|error| error.to_string())?;
            this.queue_pair.departed(now, &departure);
            this.draining.check(packet)?;
            self.network.send(self.now, this.node, to, packet);
        }
        Ok(())
    }

    fn deliver(&mut self, packet: &InFlight) {
        let Some((end, parsed)) = receive(packet) else { return };
        let Some(this) = self.ends.get_mut(end).filter(|this| this.node == packet.to) else { return };
        let memory = &mut self.nodes[packet.to];
        this.queue_pair.handle_packet(Time(self.now), &parsed, packet.congested, memory);
    }

    /// An end's application looks at its queues.
    fn tick(&mut self, end: usize) -> Result<(), String> {
        while let Some(completion) = self.ends[end].queue_pair.poll_completion() {
            self.complete(end, &completion)?;
        }
        let this = &mut self.ends[end];
        this.tick = self.now + this.random.between(200, TICK_MAX_NS);
        this.acknowledge = this.random.pick(&[
            Acknowledge::Urgent,
            Acknowledge::Urgent,
            Acknowledge::Idle,
            Acknowledge::All,
        ]);
        if this.queue_pair.state() == State::Error {
            let failed_at = *this.failed_at.get_or_insert(self.now);
            if self.now > failed_at + WORD_OF_MOUTH_NS {
                self.fail(end ^ 1);
            }
            return Ok(());
        }
        this.draining.turn(&mut this.queue_pair, &this.stream, &mut this.random)?;
        for _ in 0..this.random.below(4) {
            let room = this.posted - this.received < this.receive_depth;
            if !room {
                break;
            }
            let offset = this.posted % this.receive_depth * MESSAGE_MAX;
            let local = LocalSlice { key: this.buffers, offset, length: MESSAGE_MAX };
            let receive = ReceiveRequest { id: this.posted, local };
            this.queue_pair.post_receive(&receive).map_err(|error| format!("posting a receive: {error}"))?;
            this.posted += 1;
        }
        for _ in 0..this.random.below(8) {
            if this.stream.all_posted() || this.queue_pair.is_send_queue_full() {
                break;
            }
            let request = this.stream.next(&self.nodes[this.node]);
            this.queue_pair.post_send(&request).map_err(|error| format!("posting {request:?}: {error}"))?;
        }
        Ok(())
    }

    fn complete(&mut self, end: usize, completion: &Completion) -> Result<(), String> {
        let (peer, node) = (end ^ 1, self.ends[end].node);
        let memory = &self.nodes[node];
        if completion.kind == CompletionKind::Send {
            return self.ends[end].stream.complete(completion, memory);
        }
        let this = &self.ends[end];
        if completion.id != this.received {
            return Err(format!("receive {} completed before {}", completion.id, this.received));
        }
        if completion.status == Status::Success {
            if this.receives_failed {
                return Err("a receive succeeded after one that did not".into());
            }
            let start = (completion.id % this.receive_depth * MESSAGE_MAX) as usize;
            let bytes = &memory.bytes(this.buffers)[start..start + MESSAGE_MAX as usize];
            let by_send = completion.kind == CompletionKind::Receive;
            let index = this.messages;
            self.ends[peer].stream.check_message(index, by_send, completion, bytes, memory)?;
            self.ends[end].messages += 1;
        } else {
            let too_short = completion.status == Status::LocalLength && !this.receives_failed;
            let why = this.queue_pair.failure();
            if completion.status != Status::Flushed && !(too_short && why == Some(Failure::ReceiveTooShort)) {
                return Err(format!("a receive ended with {:?} after {why:?}", completion.status));
            }
            self.ends[end].receives_failed = true;
        }
        self.ends[end].received += 1;
        Ok(())
    }
}

/// A key of the counter that all streams to a node share.
pub(crate) type Counter = (LocalKey, RemoteKey);
