//! A reliable connection whose peer sends whatever it likes, while its own side posts, waits and gives up.
#![expect(clippy::expect_used, reason = "what a target itself sets up must be there")]

use std::net::Ipv4Addr;

use ringway_rc::{
    Acknowledge, AtomicOperation, Configuration, Denied, Departure, Initialization, Memory, QueuePair,
    ReceiveAttributes, RemoteAccess, Retries, SendAttributes, State, Transition,
};
use ringway_verbs::{
    Access, Completion, CompletionKind, LocalKey, LocalSlice, Operation, QueuePairNumber, ReceiveRequest,
    RemoteKey, RemoteSlice, Status, Time, WorkRequest,
};
use ringway_wire::{
    self as wire, Addresses, Aeth, AtomicEth, Bth, Check, DEFAULT_PARTITION, Flow, Header, Opcode, Packet,
    PathMtu, Psn, Reth, RnrTimer, Syndrome, TRANSPORT_LENGTH_MAX,
};

use crate::Reader;

const NUMBER: u32 = 0x11;
const PEER: u32 = 0x12;
const REGION: usize = 16 << 10;
/// Below the wrap, so that it is crossed.
const FIRST: Psn = Psn::ZERO.minus(3);
/// Packets that may go out without anything happening: all READs at their longest, and the window, over and over.
const PACKETS_MAX: usize = 10_000;

/// One region, with keys 1 here and 2 for the peer.
struct Region(Vec<u8>);

impl Region {
    fn part(&mut self, key_is_right: bool, offset: u64, length: usize) -> Result<&mut [u8], Denied> {
        let start = usize::try_from(offset).map_err(|_| Denied)?;
        self.0.get_mut(start..).and_then(|rest| rest.get_mut(..length)).filter(|_| key_is_right).ok_or(Denied)
    }

    fn read(&self, key_is_right: bool, offset: u64, into: &mut [u8]) -> Result<(), Denied> {
        let start = usize::try_from(offset).map_err(|_| Denied)?;
        let part = self.0.get(start..).and_then(|rest| rest.get(..into.len())).filter(|_| key_is_right);
        into.copy_from_slice(part.ok_or(Denied)?);
        Ok(())
    }
}

impl Memory for Region {
    fn check_local(&self, key: LocalKey, offset: u64, length: u64) -> Result<(), Denied> {
        let end = offset.checked_add(length).ok_or(Denied)?;
        if key.0 == 1 && end <= REGION as u64 { Ok(()) } else { Err(Denied) }
    }

    fn read_local(&self, key: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Denied> {
        self.read(key.0 == 1, offset, into)
    }

    fn write_local(&mut self, key: LocalKey, offset: u64, from: &[u8]) -> Result<(), Denied> {
        self.part(key.0 == 1, offset, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn check_remote(&self, key: RemoteKey, address: u64, length: u64, _: RemoteAccess) -> Result<(), Denied> {
        let end = address.checked_add(length).ok_or(Denied)?;
        if key.0 == 2 && end <= REGION as u64 { Ok(()) } else { Err(Denied) }
    }

    fn read_remote(&self, key: RemoteKey, address: u64, into: &mut [u8]) -> Result<(), Denied> {
        self.read(key.0 == 2, address, into)
    }

    fn write_remote(&mut self, key: RemoteKey, address: u64, from: &[u8]) -> Result<(), Denied> {
        self.part(key.0 == 2, address, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn atomic_remote(&mut self, key: RemoteKey, address: u64, _: AtomicOperation) -> Result<u64, Denied> {
        assert!(address.is_multiple_of(8), "atomics are aligned");
        self.part(key.0 == 2, address, 8).map(|word| word.len() as u64)
    }
}

/// A connected queue pair and what was done with it.
struct Side {
    queue_pair: QueuePair,
    memory: Region,
    mtu: PathMtu,
    now: u64,
    /// Requests posted, and the next id that may complete.
    sends: (u64, u64),
    receives: (u64, u64),
    failed: bool,
    /// What it is at.
    acknowledge: Acknowledge,
}

impl Side {
    fn new(modes: u8) -> Self {
        let selective = modes & 1 != 0;
        let mtu = if modes & 2 != 0 { PathMtu::Mtu256 } else { PathMtu::Mtu1024 };
        let window = if modes & 4 != 0 { 4 } else { 64 };
        let retries = if modes & 8 != 0 { Retries::Times(2) } else { Retries::Forever };
        let mut queue_pair = QueuePair::new(&Configuration {
            number: QueuePairNumber(NUMBER),
            send_depth: 8,
            receive_depth: 4,
            responder_resources: 3,
            selective_window: 64,
            path_mtu_max: PathMtu::Mtu1024,
        })
        .expect("a configuration");
        let steps = [
            Transition::Initialize(Initialization { partition: DEFAULT_PARTITION, access: Access::ALL }),
            Transition::ReadyToReceive(ReceiveAttributes {
                path_mtu: mtu,
                destination: wire::QueuePair::new(PEER).expect("a number"),
                receive_psn: FIRST,
                max_dest_rd_atomic: 3,
                min_rnr_timer: RnrTimer::at_least(10),
                selective,
            }),
            Transition::ReadyToSend(SendAttributes {
                timeout: 5,
                retries,
                rnr_retries: retries,
                send_psn: FIRST,
                max_rd_atomic: 2,
                window,
                solicited: true,
                delay_slack_ns: 20_000,
                line_rate: 1_000_000_000,
            }),
        ];
        for step in &steps {
            queue_pair.modify(step).expect("a step");
        }
        let memory = Region(vec![3; REGION]);
        Self {
            queue_pair,
            memory,
            mtu,
            now: 0,
            sends: (0, 0),
            receives: (0, 0),
            failed: false,
            acknowledge: Acknowledge::All,
        }
    }

    fn send(&mut self, reader: &mut Reader<'_>) {
        let [kind, key, first, second] = reader.bytes();
        let remote = RemoteSlice { key: RemoteKey(2), offset: u64::from(reader.u8()) * 8 };
        let segment = |length: u64| LocalSlice { key: LocalKey(1 + u32::from(key / 128)), offset: 8, length };
        let mut lengths = [u64::from(first) * 19, u64::from(second) * 7];
        let operation = match kind % 6 {
            0 => Operation::Send { immediate: (kind > 128).then_some(7) },
            1 => Operation::Write { remote },
            2 => Operation::WriteWithImmediate { remote, immediate: 9 },
            3 => Operation::Read { remote },
            4 => Operation::FetchAdd { remote, add: 1 },
            _ => Operation::CompareSwap { remote, expected: 1, desired: 2 },
        };
        if kind % 6 > 3 {
            lengths = [8, 0];
        }
        let local = lengths.map(segment);
        let (signalled, fence) = (key & 1 == 0, key & 2 != 0);
        let request = WorkRequest { id: self.sends.0, operation, local, signalled, fence };
        self.sends.0 += u64::from(self.queue_pair.post_send(&request).is_ok());
    }

    fn receive(&mut self, length: u8) {
        let local = LocalSlice { key: LocalKey(1), offset: 0, length: u64::from(length) * 9 };
        let request = ReceiveRequest { id: self.receives.0, local };
        self.receives.0 += u64::from(self.queue_pair.post_receive(&request).is_ok());
    }

    /// The application moves it to another state, gets to work or to rest, or it sends.
    fn step(&mut self, which: u8) {
        match which {
            0 => self.queue_pair.modify(&Transition::Error).expect("it can always be failed"),
            1 => self.may_be_refused(&Transition::Drain, State::ReadyToSend),
            2 => self.may_be_refused(&Transition::Resume(None), State::SendQueueDrain),
            3 => self.acknowledge = Acknowledge::Urgent,
            4 => self.acknowledge = Acknowledge::Idle,
            5 => self.acknowledge = Acknowledge::All,
            // Whoever carries packets had no room for it.
            6 => {
                let _ = self.next_departure();
            }
            _ => self.transmit(),
        }
    }

    fn next_departure(&mut self) -> Option<Departure> {
        self.queue_pair.next_departure(Time(self.now), &self.memory, self.acknowledge)
    }

    fn may_be_refused(&mut self, step: &Transition, from: State) {
        let possible = self.queue_pair.state() == from;
        assert_eq!(self.queue_pair.modify(step).is_ok(), possible, "{step:?}");
    }

    fn take(&mut self, packet: &Packet<'_>, congested: bool) {
        self.queue_pair.handle_packet(Time(self.now), packet, congested, &mut self.memory);
    }

    /// Everything that may go out does, as packets that can be read.
    fn transmit(&mut self) {
        let flow = flow();
        let mut frame = [0; TRANSPORT_LENGTH_MAX];
        let drained = self.queue_pair.is_drained();
        for _ in 0..PACKETS_MAX {
            let Some(departure) = self.next_departure() else { return };
            let length = departure.length();
            let packet = frame.get_mut(..length).expect("inside");
            self.queue_pair.write(&departure, &self.memory, &flow, 0, packet).expect("it has its length");
            self.queue_pair.departed(Time(self.now), &departure);
            let check = Check::Exact(flow.icrc(0, u16::try_from(length).expect("a length")));
            let packet = Packet::parse(frame.get(..length).expect("inside"), check).expect("a packet");
            assert!(packet.header.opcode().allows_payload(packet.payload.len(), self.mtu), "{packet:?}");
            assert_eq!(packet.bth.destination.number(), PEER);
            assert!(!drained || !packet.header.opcode().is_request(), "{packet:?} after it was drained");
        }
        unreachable!("it never stops sending");
    }

    fn complete(&mut self) {
        while let Some(completion) = self.queue_pair.poll_completion() {
            self.check(&completion);
        }
        if self.queue_pair.state() == State::Error {
            assert_eq!(self.receives.0, self.receives.1, "every receive is flushed");
        }
    }

    /// Each request completes once, in order, and nothing succeeds after a failure.
    fn check(&mut self, completion: &Completion) {
        let (posted, next) = match completion.kind {
            CompletionKind::Send => &mut self.sends,
            CompletionKind::Receive | CompletionKind::ReceiveWrite => &mut self.receives,
        };
        assert!(completion.id >= *next && completion.id < *posted, "{completion:?} after {next}");
        let silent = completion.kind == CompletionKind::Send && !self.failed;
        assert!(silent || completion.id == *next, "{completion:?} after {next}");
        *next = completion.id + 1;
        if completion.kind == CompletionKind::Send {
            assert!(!self.failed || completion.status == Status::Flushed, "{completion:?}");
            self.failed |= completion.status != Status::Success;
        }
    }

    fn wait(&mut self, how: u8) {
        let next = self.queue_pair.next_timeout(Time(self.now));
        // As long as it asked for, or some other time.
        self.now = match next {
            Some(at) if !how.is_multiple_of(4) => at.0.max(self.now),
            _ => self.now + u64::from(how) * 10_000,
        };
        self.queue_pair.handle_timeout(Time(self.now));
    }
}

fn flow() -> Flow {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    Flow::new(Addresses::V4 { source, destination }, 0xc000)
}

/// A packet of any kind, mostly near what the queue pair expects.
fn packet<'a>(reader: &mut Reader<'_>, payload: &'a mut [u8], mtu: PathMtu) -> Packet<'a> {
    let [opcode, psn, flags, code, length, key, address, bytes] = reader.bytes();
    let opcode =
        Opcode::ALL.get(usize::from(opcode) % Opcode::ALL.len()).copied().unwrap_or(Opcode::SendOnly);
    // Mostly what comes next; sometimes half of all PSNs away.
    let far = if flags & 0x40 != 0 { Psn::COUNT / 2 } else { 0 };
    let psn = FIRST.plus(u32::from(psn)).minus(u32::from(flags & 7)).plus(far);
    let aeth = Aeth { syndrome: Syndrome::from_code(code).unwrap_or(Syndrome::ACK), msn: 0 };
    let key = if key < 200 { 2 } else { u32::from(key) };
    let longest = u32::from(bytes) * u32::from(bytes) * if flags & 0x20 != 0 { 1 << 16 } else { 1 };
    let reth = Reth { address: u64::from(address) * 8, key, length: longest };
    let atomic = AtomicEth { address: u64::from(address) * 4, key, swap_or_add: 1, compare: 3 };
    let header = header(opcode, aeth, reth, atomic);
    let length = match length {
        200.. => mtu.bytes(),
        _ => usize::from(length) * 5,
    };
    for byte in payload.iter_mut().take(80) {
        *byte = reader.u8();
    }
    let length = if opcode.has_payload() { length.min(payload.len()) } else { 0 };
    let bth = Bth {
        ack_request: flags & 8 != 0,
        ..Bth::new(wire::QueuePair::new(NUMBER).unwrap_or_default(), psn)
    };
    Packet { bth, header, payload: payload.get(..length).unwrap_or_default() }
}

fn header(opcode: Opcode, aeth: Aeth, reth: Reth, atomic: AtomicEth) -> Header {
    match opcode {
        Opcode::SendFirst => Header::SendFirst,
        Opcode::SendMiddle => Header::SendMiddle,
        Opcode::SendLast => Header::SendLast,
        Opcode::SendLastImmediate => Header::SendLastImmediate(1),
        Opcode::SendOnlyImmediate => Header::SendOnlyImmediate(2),
        Opcode::WriteFirst => Header::WriteFirst(reth),
        Opcode::WriteMiddle => Header::WriteMiddle,
        Opcode::WriteLast => Header::WriteLast,
        Opcode::WriteLastImmediate => Header::WriteLastImmediate(3),
        Opcode::WriteOnly => Header::WriteOnly(reth),
        Opcode::WriteOnlyImmediate => Header::WriteOnlyImmediate(reth, 4),
        Opcode::ReadRequest => Header::ReadRequest(reth),
        Opcode::ReadResponseFirst => Header::ReadResponseFirst(aeth),
        Opcode::ReadResponseMiddle => Header::ReadResponseMiddle,
        Opcode::ReadResponseLast => Header::ReadResponseLast(aeth),
        Opcode::ReadResponseOnly => Header::ReadResponseOnly(aeth),
        Opcode::Acknowledge => Header::Acknowledge(aeth),
        Opcode::AtomicAcknowledge => Header::AtomicAcknowledge(aeth, 5),
        Opcode::CompareSwap => Header::CompareSwap(atomic),
        Opcode::FetchAdd => Header::FetchAdd(atomic),
        Opcode::Cnp => Header::Cnp,
        Opcode::SelectiveAcknowledge => Header::SelectiveAcknowledge(aeth),
        Opcode::Connection => Header::Connection,
        Opcode::SendOnly | Opcode::UdSendOnly | Opcode::UdSendOnlyImmediate => Header::SendOnly,
    }
}

/// Whatever the peer sends, a queue pair never panics, sends only what can be read and not for ever, completes each request
/// at most once, in order, and flushes all of them when it fails.
pub fn queue_pair(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let mut side = Side::new(reader.u8());
    let mut payload = vec![0; PathMtu::Mtu1024.bytes() + 4];
    while !reader.is_empty() {
        match reader.u8() % 16 {
            0..=6 => {
                let packet = packet(&mut reader, &mut payload, side.mtu);
                side.take(&packet, false);
            }
            7 => {
                let packet = packet(&mut reader, &mut payload, side.mtu);
                side.take(&packet, true);
            }
            8..=10 => side.send(&mut reader),
            11 => side.receive(reader.u8()),
            12 => side.transmit(),
            13 => side.complete(),
            14 => side.wait(reader.u8()),
            _ => side.step(reader.u8()),
        }
    }
    side.queue_pair.modify(&Transition::Error).expect("it can always be failed");
    side.acknowledge = Acknowledge::All;
    side.transmit();
    side.complete();
}

/// What a packet of a sample says, in the bytes that [`packet`] reads.
fn step(opcode: Opcode, psn: u8, flags: u8, code: u8, length: u8, bytes: u8) -> Vec<u8> {
    let index = Opcode::ALL.iter().zip(0..).find(|(one, _)| **one == opcode).map_or(0, |(_, index)| index);
    let mut step = vec![0, index, psn, flags, code, length, 0, 1, bytes];
    step.extend([0x5a; 80]);
    step
}

/// Whole exchanges in both modes: requests in order, again and with gaps; requests of its own with answers of all kinds.
#[must_use]
pub fn queue_pair_samples() -> Vec<Vec<u8>> {
    let requests = [
        vec![11, 200],
        step(Opcode::SendOnly, 0, 8, 0, 4, 0),
        vec![11, 255],
        step(Opcode::SendFirst, 1, 0, 0, 255, 0),
        step(Opcode::SendLastImmediate, 2, 8, 0, 8, 0),
        step(Opcode::WriteOnly, 3, 8, 0, 20, 10),
        step(Opcode::ReadRequest, 4, 8, 0, 0, 40),
        vec![12],
    ];
    let answers = [
        vec![8, 0, 0, 30, 5, 1, 12],
        step(Opcode::Acknowledge, 0, 0, 0x1f, 0, 0),
        vec![8, 3, 0, 0, 7, 1, 12],
        step(Opcode::ReadResponseOnly, 1, 0, 0x1f, 10, 0),
        vec![8, 4, 0, 0, 0, 1, 12],
        step(Opcode::AtomicAcknowledge, 2, 0, 0x1f, 0, 0),
        vec![13],
    ];
    let mut samples = Vec::new();
    for modes in 0..16 {
        for steps in [&requests[..], &answers] {
            let whole = steps.concat();
            samples.push([&[modes][..], &whole].concat());
            // Twice, backwards, and with every step left out.
            samples.push([&[modes][..], &whole, &[12], &whole].concat());
            let backwards: Vec<u8> = steps.iter().rev().flatten().copied().collect();
            samples.push([&[modes][..], &backwards, &whole].concat());
        }
    }
    for code in [0x21, 0x60, 0x61, 0x62, 0x63, 0x1f, 0] {
        for modes in [0, 1, 8, 9] {
            let asked = [8, 1, 0, 200, 200, 1, 8, 3, 0, 100, 100, 1, 12];
            let answer = step(Opcode::Acknowledge, 1, 0, code, 0, 0);
            let report = step(Opcode::SelectiveAcknowledge, 1, 0, 0x1f, 8, 0);
            samples.push([&[modes][..], &asked, &answer, &[14, 1, 12], &report, &[14, 1, 12, 13]].concat());
        }
    }
    samples.push([&[8][..], &[8, 0, 0, 9, 0, 1, 12], &[14, 1, 12].repeat(6), &[13]].concat());
    samples.push(vec![1, 15, 0, 8, 0, 0, 1, 1, 1, 11, 3, 13]);
    // Messages that are acknowledged later, or with a reply, or when it is idle.
    for modes in [0, 1] {
        let receive = [11, 200];
        let messages = [0, 1, 2].map(|psn| step(Opcode::SendOnly, psn, 8, 0, 4, 0));
        let reply = [8, 0, 0, 3, 0, 1, 15, 6, 12];
        let steps: [&[u8]; 12] = [
            &[15, 3],
            &receive,
            &messages[0],
            &[12],
            &receive,
            &messages[1],
            &reply,
            &[14, 4, 12, 15, 4],
            &receive,
            &messages[2],
            &[12, 15, 5, 12],
            &[13],
        ];
        samples.push([&[modes][..], &steps.concat()].concat());
    }
    // Drained before, while and after something is sent, and resumed.
    for modes in [0, 1] {
        let sends = [8, 0, 0, 30, 5, 1, 12];
        let answer = step(Opcode::Acknowledge, 0, 0, 0x1f, 0, 0);
        let steps: [&[u8]; 8] =
            [&[15, 1], &sends, &[15, 2, 12, 15, 1], &sends, &answer, &[12, 15, 2, 12], &answer, &[13]];
        samples.push([&[modes][..], &steps.concat()].concat());
    }
    samples
}
