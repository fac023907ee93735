//! Two ends of a device on one thread, which send each other short messages.

use std::{sync::Arc, time::Instant};

use criterion::Criterion;
use ringway_mem::Mapping;
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, LocalKey, LocalSlice, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, Role, Status, Time, WorkRequest,
};

const SMALL: u64 = 8;

/// One end's device, with memory and a queue pair.
struct End<D> {
    device: D,
    queue_pair: QueuePairNumber,
    key: LocalKey,
}

impl<D: Device<Region = Arc<Mapping>>> End<D> {
    fn new(mut device: D) -> Self {
        let memory = Arc::new(Mapping::private(1 << 16).expect("memory"));
        let key = device.register(memory, Access::ALL).expect("registered").local;
        let depths = QueuePairConfig { send_depth: 128, receive_depth: 128 };
        let queue_pair = device.create_queue_pair(depths).expect("a queue pair");
        Self { device, queue_pair, key }
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

fn now(start: Instant) -> Time {
    Time(start.elapsed().as_nanos() as u64)
}

/// Both ends, connected.
fn connect<D: Device<Region = Arc<Mapping>>>(devices: [D; 2], start: Instant) -> [End<D>; 2] {
    let mut ends = devices.map(End::new);
    let [one, other] = ends.each_ref().map(|end| end.device.endpoint(end.queue_pair).expect("an endpoint"));
    for (end, (peer, role)) in ends.iter_mut().zip([(other, Role::Active), (one, Role::Passive)]) {
        end.post_receive();
        end.device.connect(end.queue_pair, &peer, role).expect("connecting");
    }
    let is_ready = |end: &End<D>| end.device.state(end.queue_pair) == Some(QueuePairState::Ready);
    while !ends.iter().all(is_ready) {
        for end in &mut ends {
            end.poll(now(start));
        }
    }
    ends
}

/// What a short message there and one back take, and a poll that finds nothing.
pub(crate) fn messages<D: Device<Region = Arc<Mapping>>>(c: &mut Criterion, name: &str, devices: [D; 2]) {
    let start = Instant::now();
    let mut ends = connect(devices, start);
    let mut group = c.benchmark_group(name);
    group.bench_function("8 B there and back", |b| {
        b.iter(|| {
            for (from, to) in [(0, 1), (1, 0)] {
                ends[from].send();
                let end = &mut ends[to];
                while end.poll(now(start)) == 0 {}
                end.post_receive();
            }
        });
    });
    group.bench_function("poll of what has nothing", |b| {
        let [one, _] = &mut ends;
        b.iter(|| std::hint::black_box(one.poll(now(start))));
    });
    group.finish();
}
