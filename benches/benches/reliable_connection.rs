//! Both ends of a reliable connection on one core over a link of memory: what the state machines, the copies and the
//! invariant CRC cost together, without a network.

use std::{hint::black_box, net::Ipv4Addr, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway_rc::{
    AtomicOperation, Configuration, Denied, Initialization, Memory, QueuePair, ReceiveAttributes,
    RemoteAccess, Retries, SendAttributes, Transition,
};
use ringway_verbs::{
    Access, LocalKey, LocalSlice, Operation, QueuePairNumber, RemoteKey, RemoteSlice, Status, Time,
    WorkRequest,
};
use ringway_wire::{
    self as wire, Addresses, Check, DEFAULT_PARTITION, Flow, Packet, PathMtu, Psn, RnrTimer,
    TRANSPORT_LENGTH_MAX,
};

/// Packets that are on the link at once.
const BURST: usize = 16;
/// Packets that may be outstanding.
const WINDOW: u32 = 256;

/// One region, to which any key belongs.
struct Region(Vec<u8>);

impl Region {
    fn part(&self, offset: u64, length: usize) -> Result<&[u8], Denied> {
        let start = usize::try_from(offset).map_err(|_| Denied)?;
        self.0.get(start..).and_then(|rest| rest.get(..length)).ok_or(Denied)
    }

    fn part_mut(&mut self, offset: u64, length: usize) -> Result<&mut [u8], Denied> {
        let start = usize::try_from(offset).map_err(|_| Denied)?;
        self.0.get_mut(start..).and_then(|rest| rest.get_mut(..length)).ok_or(Denied)
    }
}

impl Memory for Region {
    fn check_local(&self, _: LocalKey, offset: u64, length: u64) -> Result<(), Denied> {
        self.part(offset, usize::try_from(length).map_err(|_| Denied)?).map(drop)
    }

    fn read_local(&self, _: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Denied> {
        into.copy_from_slice(self.part(offset, into.len())?);
        Ok(())
    }

    fn write_local(&mut self, _: LocalKey, offset: u64, from: &[u8]) -> Result<(), Denied> {
        self.part_mut(offset, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn check_remote(&self, _: RemoteKey, address: u64, length: u64, _: RemoteAccess) -> Result<(), Denied> {
        self.part(address, usize::try_from(length).map_err(|_| Denied)?).map(drop)
    }

    fn read_remote(&self, _: RemoteKey, address: u64, into: &mut [u8]) -> Result<(), Denied> {
        into.copy_from_slice(self.part(address, into.len())?);
        Ok(())
    }

    fn write_remote(&mut self, _: RemoteKey, address: u64, from: &[u8]) -> Result<(), Denied> {
        self.part_mut(address, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn atomic_remote(&mut self, _: RemoteKey, _: u64, _: AtomicOperation) -> Result<u64, Denied> {
        Err(Denied)
    }
}

/// An end: its queue pair, its memory, and how its packets are addressed.
struct End {
    queue_pair: QueuePair,
    memory: Region,
    flow: Flow,
}

fn end(number: u32, path_mtu: PathMtu, bytes: usize, selective: bool) -> Option<End> {
    let mut queue_pair = QueuePair::new(&Configuration {
        number: QueuePairNumber(number),
        send_depth: 16,
        receive_depth: 16,
        responder_resources: 4,
        selective_window: if selective { WINDOW } else { 0 },
        path_mtu_max: PathMtu::Mtu4096,
    })
    .ok()?;
    let steps = [
        Transition::Initialize(Initialization { partition: DEFAULT_PARTITION, access: Access::ALL }),
        Transition::ReadyToReceive(ReceiveAttributes {
            path_mtu,
            destination: wire::QueuePair::new(number ^ 1)?,
            receive_psn: Psn::ZERO,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::at_least(10),
            selective,
        }),
        Transition::ReadyToSend(SendAttributes {
            timeout: 14,
            retries: Retries::Times(7),
            rnr_retries: Retries::Forever,
            send_psn: Psn::ZERO,
            max_rd_atomic: 4,
            window: WINDOW,
            solicited: false,
            delay_slack_ns: 20_000,
            line_rate: 12_500_000_000,
        }),
    ];
    for step in &steps {
        queue_pair.modify(step).ok()?;
    }
    let address = |number: u32| Ipv4Addr::from(0x0a00_0000 + number);
    let addresses = Addresses::V4 { source: address(number), destination: address(number ^ 1) };
    Some(End { queue_pair, memory: Region(vec![7; bytes]), flow: Flow::new(addresses, 0xc000) })
}

/// Two ends and the frames between them.
struct Link {
    ends: [End; 2],
    frames: Vec<Vec<u8>>,
}

impl Link {
    fn new(mtu: PathMtu, bytes: usize, selective: bool) -> Option<Self> {
        let frames = vec![vec![0; TRANSPORT_LENGTH_MAX]; BURST];
        Some(Self { ends: [end(0x10, mtu, bytes, selective)?, end(0x11, mtu, bytes, selective)?], frames })
    }

    /// Sends what one end has, at most a burst, and lets the other take it; returns how many packets it was.
    fn carry(&mut self, from: usize) -> usize {
        let now = Time(1);
        let [left, right] = &mut self.ends;
        let (from, to) = if from == 0 { (left, right) } else { (right, left) };
        let mut lengths = [0; BURST];
        let mut packets = 0;
        for (frame, length) in self.frames.iter_mut().zip(&mut lengths) {
            let sent = from.queue_pair.poll_transmit(now, &from.memory, &from.flow, |_| 0, frame);
            let Some(sent) = sent else { break };
            *length = sent;
            packets += 1;
        }
        for (frame, length) in self.frames.iter().zip(lengths).take(packets) {
            let Some(bytes) = frame.get(..length) else { continue };
            let check = Check::Exact(from.flow.icrc(0, u16::try_from(length).unwrap_or_default()));
            if let Ok(packet) = Packet::parse(black_box(bytes), check) {
                to.queue_pair.handle_packet(now, &packet, false, &mut to.memory);
            }
        }
        packets
    }

    /// Carries one request from beginning to end; says whether it succeeded.
    fn request(&mut self, operation: Operation, length: u64) -> bool {
        let segment = LocalSlice { key: LocalKey(1), offset: 0, length };
        let local = [segment, LocalSlice::default()];
        let request = WorkRequest { id: 1, operation, local, signalled: true, fence: false };
        let [left, _] = &mut self.ends;
        if left.queue_pair.post_send(&request).is_err() {
            return false;
        }
        loop {
            let packets = self.carry(0) + self.carry(1);
            let [left, _] = &mut self.ends;
            if let Some(completion) = left.queue_pair.poll_completion() {
                return completion.status == Status::Success;
            }
            if packets == 0 {
                return false;
            }
        }
    }
}

fn writes(c: &mut Criterion) {
    const BYTES: usize = 1 << 20;
    let mut group = c.benchmark_group("reliable_connection");
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    let remote = RemoteSlice { key: RemoteKey(1), offset: 0 };
    let cases = [
        ("write", Operation::Write { remote }, false),
        ("selective_write", Operation::Write { remote }, true),
        ("read", Operation::Read { remote }, false),
        ("selective_read", Operation::Read { remote }, true),
    ];
    for (name, operation, selective) in cases {
        for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
            for length in [8, BYTES] {
                let Some(mut link) = Link::new(mtu, BYTES, selective) else { continue };
                group.throughput(Throughput::Bytes(length as u64));
                let id = BenchmarkId::new(format!("{name}_mtu_{}", mtu.bytes()), length);
                group.bench_function(id, |b| {
                    b.iter(|| assert!(link.request(operation, black_box(length as u64)), "it succeeds"));
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, writes);
criterion_main!(benches);
