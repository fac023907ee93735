//! What the whole RoCE device takes for a short message, without a network: both ends on one thread, over a link of memory.

use std::{
    collections::VecDeque,
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use criterion::{Criterion, criterion_group, criterion_main};
use ringway_mem::Mapping;
use ringway_roce::{Counters, Link, LinkError, Path, Received, Refusal, RoceConfig, RoceDevice, SendError};
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, LocalKey, LocalSlice, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, Role, Status, Time, WorkRequest,
};
use ringway_wire::{Addresses, Ecn, Flow, PathMtu};

const SMALL: u64 = 8;
const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// Packets on their way to each end, and memory for further ones.
#[derive(Debug, Default)]
struct Wire {
    to: [VecDeque<Vec<u8>>; 2],
    spare: Vec<Vec<u8>>,
}

/// One end of a wire.
#[derive(Debug)]
struct Memory {
    wire: Arc<Mutex<Wire>>,
    end: usize,
}

impl Memory {
    fn with<R>(&self, act: impl FnOnce(&mut Wire) -> R) -> R {
        act(&mut self.wire.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What comes to an end.
    fn flow(end: usize) -> Option<Flow> {
        let [one, other] = ADDRESSES;
        let (source, destination) = if end == 0 { (other, one) } else { (one, other) };
        Some(Flow::new(Addresses::new(source, destination)?, 0xc000))
    }
}

impl Link for Memory {
    fn local_address(&self) -> IpAddr {
        let [one, other] = ADDRESSES;
        if self.end == 0 { one } else { other }
    }

    fn mtu(&self) -> PathMtu {
        PathMtu::Mtu4096
    }

    fn path(&mut self, peer: IpAddr, _: u32, traffic_class: u8) -> Result<Path, LinkError> {
        let local = self.local_address();
        let flow = Self::flow(1 - self.end).ok_or(LinkError::Family { peer, local })?;
        Ok(Path { flow, mtu: PathMtu::Mtu4096, traffic_class, via: 0 })
    }

    fn send(
        &mut self,
        _: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        let peer = 1 - self.end;
        self.with(|wire| {
            let mut packet = wire.spare.pop().unwrap_or_default();
            packet.resize(length, 0);
            write(0, &mut packet);
            if let Some(queue) = wire.to.get_mut(peer) {
                queue.push_back(packet);
            }
        });
        Ok(())
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn poll(&mut self, _: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        let (end, mut count) = (self.end, 0);
        let Some(flow) = Self::flow(end) else { return 0 };
        while let Some(packet) = self.with(|wire| wire.to.get_mut(end)?.pop_front()) {
            let check = flow.check(0, packet.len() as u16);
            receive(&Received { flow, ecn: Ecn::NotCapable, identification: 0, check, transport: &packet });
            self.with(|wire| wire.spare.push(packet));
            count += 1;
        }
        count
    }

    fn refusals(&mut self, _: &mut dyn FnMut(&Refusal<'_>)) {}

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn event_descriptor(&self) -> Option<i32> {
        None
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// One end's device, with memory and a queue pair.
struct End {
    device: RoceDevice<Memory>,
    queue_pair: QueuePairNumber,
    key: LocalKey,
}

impl End {
    fn new(wire: &Arc<Mutex<Wire>>, end: usize) -> Option<Self> {
        let link = Memory { wire: Arc::clone(wire), end };
        let mut device = RoceDevice::new(link, RoceConfig::new("roce")).ok()?;
        let memory = Arc::new(Mapping::private(1 << 16).ok()?);
        let key = device.register(memory, Access::ALL).ok()?.local;
        let depths = QueuePairConfig { send_depth: 128, receive_depth: 128 };
        let queue_pair = device.create_queue_pair(depths).ok()?;
        Some(Self { device, queue_pair, key })
    }

    fn post_receive(&mut self) {
        let local = LocalSlice { key: self.key, offset: 0, length: SMALL };
        let posted = self.device.post_receive(self.queue_pair, &ReceiveRequest { id: 0, local });
        debug_assert!(posted.is_ok());
    }

    fn send(&mut self) {
        let local = [LocalSlice { key: self.key, offset: 4096, length: SMALL }, LocalSlice::default()];
        let operation = Operation::Send { immediate: None };
        let request = WorkRequest { id: 0, operation, local, signalled: false, fence: false };
        let posted = self.device.post_send(self.queue_pair, &request);
        debug_assert!(posted.is_ok());
        self.device.flush();
    }

    /// Polls once; how many messages came.
    fn poll(&mut self, now: Time) -> usize {
        let mut completions = [Completion::EMPTY; 16];
        let count = self.device.poll(now, &mut completions);
        let came = |one: &&Completion| one.kind == CompletionKind::Receive && one.status == Status::Success;
        completions.iter().take(count).filter(came).count()
    }
}

/// Both ends, connected.
fn ends(start: Instant) -> Option<[End; 2]> {
    let wire = Arc::new(Mutex::new(Wire::default()));
    let mut ends = [End::new(&wire, 0)?, End::new(&wire, 1)?];
    let [one, other] = ends.each_ref().map(|end| end.device.endpoint(end.queue_pair).ok());
    for (end, peer, role) in [(0, other?, Role::Active), (1, one?, Role::Passive)] {
        let end = ends.get_mut(end)?;
        end.post_receive();
        end.device.connect(end.queue_pair, &peer, role).ok()?;
    }
    let is_ready = |end: &End| end.device.state(end.queue_pair) == Some(QueuePairState::Ready);
    while !ends.iter().all(is_ready) {
        for end in &mut ends {
            end.poll(now(start));
        }
    }
    Some(ends)
}

fn now(start: Instant) -> Time {
    Time(start.elapsed().as_nanos() as u64)
}

fn messages(c: &mut Criterion) {
    let start = Instant::now();
    let connected = ends(start);
    assert!(connected.is_some(), "two devices on a link of memory connect");
    let Some(mut ends) = connected else { return };
    let mut group = c.benchmark_group("roce_device");
    group.bench_function("8 B there and back", |b| {
        b.iter(|| {
            for (from, to) in [(0, 1), (1, 0)] {
                ends.get_mut(from).into_iter().for_each(End::send);
                let Some(end) = ends.get_mut(to) else { return };
                while end.poll(now(start)) == 0 {}
                end.post_receive();
            }
        });
    });
    group.bench_function("poll of what has nothing", |b| {
        let [one, _] = &mut ends;
        b.iter(|| black_box(one.poll(now(start))));
    });
    group.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
