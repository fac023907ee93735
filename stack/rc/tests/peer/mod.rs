//! A queue pair with a scripted peer: packets are made by hand, and what it sends is read back.
#![expect(dead_code, reason = "not every test file uses all of it")]
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::net::Ipv4Addr;

use ringway_rc::{
    Acknowledge, Configuration, Initialization, QueuePair, ReceiveAttributes, Retries, SendAttributes,
    Transition,
};
use ringway_sim::rc::NodeMemory;
use ringway_verbs::{
    Access, Completion, LocalKey, LocalSlice, Operation, QueuePairNumber, ReceiveRequest, RemoteKey,
    RemoteSlice, Status, Time, WorkRequest,
};
use ringway_wire::{
    self as wire, Addresses, Aeth, Bth, Check, DEFAULT_PARTITION, Flow, Header, NakCode, Packet, PathMtu,
    Psn, RnrTimer, Syndrome, TRANSPORT_LENGTH_MAX,
};

pub(crate) const NUMBER: u32 = 0x20;
pub(crate) const PEER: u32 = 0x30;
/// PSNs of the first request of this side and of the peer: both cross the wrap soon.
pub(crate) const SEND_PSN: Psn = Psn::ZERO.minus(2);
pub(crate) const RECEIVE_PSN: Psn = Psn::ZERO.minus(1);
pub(crate) const MTU: PathMtu = PathMtu::Mtu256;
/// 4.096 us * 2^4.
pub(crate) const TIMEOUT_NS: u64 = 65_536;

/// A packet that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) bth: Bth,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

/// The side under test.
pub(crate) struct Side {
    pub(crate) queue_pair: QueuePair,
    pub(crate) memory: NodeMemory,
    pub(crate) local: LocalKey,
    pub(crate) remote: RemoteKey,
    pub(crate) now: u64,
}

pub(crate) fn configuration() -> Configuration {
    Configuration {
        number: QueuePairNumber(NUMBER),
        send_depth: 16,
        receive_depth: 4,
        responder_resources: 4,
        selective_window: 0,
        path_mtu_max: PathMtu::Mtu4096,
    }
}

pub(crate) fn receive_attributes() -> ReceiveAttributes {
    ReceiveAttributes {
        path_mtu: MTU,
        destination: wire::QueuePair::new(PEER).unwrap(),
        receive_psn: RECEIVE_PSN,
        max_dest_rd_atomic: 2,
        min_rnr_timer: RnrTimer::at_least(120),
        selective: false,
    }
}

pub(crate) fn send_attributes() -> SendAttributes {
    SendAttributes {
        timeout: 4,
        retries: Retries::Times(2),
        rnr_retries: Retries::Times(1),
        send_psn: SEND_PSN,
        max_rd_atomic: 2,
        window: 128,
        solicited: true,
        delay_slack_ns: 20_000,
        line_rate: 1_250_000_000,
    }
}

pub(crate) fn initialization() -> Initialization {
    Initialization { partition: DEFAULT_PARTITION, access: Access::ALL }
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::with(&configuration(), &receive_attributes(), &send_attributes())
    }

    pub(crate) fn selective() -> Self {
        let configuration = Configuration { selective_window: 64, ..configuration() };
        let attributes = ReceiveAttributes { selective: true, ..receive_attributes() };
        Self::with(&configuration, &attributes, &send_attributes())
    }

    pub(crate) fn with(
        configuration: &Configuration,
        receive: &ReceiveAttributes,
        send: &SendAttributes,
    ) -> Self {
        let mut queue_pair = QueuePair::new(configuration).expect("a configuration");
        queue_pair.modify(&Transition::Initialize(initialization())).expect("INIT");
        queue_pair.modify(&Transition::ReadyToReceive(*receive)).expect("RTR");
        queue_pair.modify(&Transition::ReadyToSend(*send)).expect("RTS");
        let mut memory = NodeMemory::default();
        let bytes = (0..64 << 10).map(|at: u32| (at ^ (at >> 8)) as u8).collect();
        let (local, remote) = memory.register(bytes, Access::ALL);
        Self { queue_pair, memory, local, remote, now: 0 }
    }

    pub(crate) fn slice(&self, offset: u64, length: u64) -> LocalSlice {
        LocalSlice { key: self.local, offset, length }
    }

    /// What the region has.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory.bytes(self.local)[offset..offset + length].to_vec()
    }

    pub(crate) fn request(&self, id: u64, operation: Operation, length: u64) -> WorkRequest {
        let local = [self.slice(0, length), LocalSlice::default()];
        WorkRequest { id, operation, local, signalled: true, fence: false }
    }

    pub(crate) fn post(&mut self, id: u64, operation: Operation, length: u64) {
        let request = self.request(id, operation, length);
        self.queue_pair.post_send(&request).expect("there is room");
    }

    pub(crate) fn post_receive(&mut self, id: u64, length: u64) {
        let local = self.slice(32 << 10, length);
        self.queue_pair.post_receive(&ReceiveRequest { id, local }).expect("there is room");
    }

    /// The peer sends this, so many packets after its first.
    pub(crate) fn take(&mut self, after: u32, ack_request: bool, header: Header, payload: &[u8]) {
        self.take_marked(RECEIVE_PSN.plus(after), ack_request, header, payload, false);
    }

    pub(crate) fn take_marked(
        &mut self,
        psn: Psn,
        ack_request: bool,
        header: Header,
        payload: &[u8],
        congested: bool,
    ) {
        let bth = Bth { ack_request, ..Bth::new(wire::QueuePair::new(NUMBER).unwrap(), psn) };
        let packet = Packet { bth, header, payload };
        self.queue_pair.handle_packet(Time(self.now), &packet, congested, &mut self.memory);
    }

    /// The peer answers the request packet that was so many after the first.
    pub(crate) fn answer(&mut self, after: u32, header: Header, payload: &[u8]) {
        self.take_marked(SEND_PSN.plus(after), false, header, payload, false);
    }

    pub(crate) fn acknowledge(&mut self, after: u32, syndrome: Syndrome) {
        self.answer(after, Header::Acknowledge(Aeth { syndrome, msn: 0 }), &[]);
    }

    /// What goes out next, if there is something now.
    fn next_sent(&mut self) -> Option<Sent> {
        let (flow, mut frame) = (flow(), [0; TRANSPORT_LENGTH_MAX]);
        let now = Time(self.now);
        let length =
            self.queue_pair.poll_transmit(now, &self.memory, &flow, |length| length as u16, &mut frame)?;
        Some(read(&frame[..length], &flow, length as u16))
    }

    /// One packet of those that go out now.
    pub(crate) fn sent_one(&mut self) -> Sent {
        self.next_sent().expect("something goes out")
    }

    /// Everything that goes out now.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        std::iter::from_fn(|| self.next_sent()).collect()
    }

    /// What goes out now although this side is at work.
    pub(crate) fn sent_at_work(&mut self) -> Vec<Header> {
        let (flow, now) = (flow(), Time(self.now));
        let mut sent = Vec::new();
        while let Some(departure) = self.queue_pair.next_departure(now, &self.memory, Acknowledge::Urgent) {
            let mut frame = vec![0; departure.length()];
            self.queue_pair.write(&departure, &self.memory, &flow, 0, &mut frame).expect("it has its length");
            self.queue_pair.departed(now, &departure);
            sent.push(read(&frame, &flow, 0).header);
        }
        sent
    }

    /// Time goes on to the next timeout; how long it was.
    pub(crate) fn wait(&mut self) -> u64 {
        let next = self.queue_pair.next_timeout(Time(self.now)).expect("something is due");
        let waited = next.0 - self.now;
        self.now = next.0;
        self.queue_pair.handle_timeout(next);
        waited
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.queue_pair.poll_completion()).collect()
    }

    /// Ids and statuses of what has completed.
    pub(crate) fn outcomes(&mut self) -> Vec<(u64, Status)> {
        self.completions().iter().map(|completion| (completion.id, completion.status)).collect()
    }

    pub(crate) fn write(&self) -> Operation {
        Operation::Write { remote: RemoteSlice { key: RemoteKey(7), offset: 0x1000 } }
    }

    pub(crate) fn read(&self) -> Operation {
        Operation::Read { remote: RemoteSlice { key: RemoteKey(7), offset: 0x1000 } }
    }
}

/// What the acknowledgements among these packets say, and of what.
pub(crate) fn acknowledgements(sent: &[Sent]) -> Vec<(Psn, Syndrome)> {
    let said = |sent: &Sent| match sent.header {
        Header::Acknowledge(aeth) => Some((sent.bth.psn, aeth.syndrome)),
        _ => None,
    };
    sent.iter().filter_map(said).collect()
}

/// How far the packets are after the first request's.
pub(crate) fn places(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.bth.psn.above(SEND_PSN)).collect()
}

pub(crate) const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::SequenceError);

fn flow() -> Flow {
    let address = Ipv4Addr::LOCALHOST;
    Flow::new(Addresses::V4 { source: address, destination: address }, 0xc000)
}

/// What a frame with this identification says.
fn read(frame: &[u8], flow: &Flow, identification: u16) -> Sent {
    let check = Check::Exact(flow.icrc(identification, frame.len() as u16));
    let packet = Packet::parse(frame, check).expect("what is sent can be read");
    assert_eq!(packet.bth.destination.number(), PEER);
    Sent { bth: packet.bth, header: packet.header, payload: packet.payload.to_vec() }
}
