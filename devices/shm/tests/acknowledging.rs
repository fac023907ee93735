//! What was executed is told, also to a peer that cannot read the entry which says so.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::sync::Arc;

use ringway_mem::Mapping;
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, LocalKey, LocalSlice, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, Role, Status, Time, WorkRequest,
};

struct End {
    device: ShmDevice,
    queue_pair: QueuePairNumber,
    key: LocalKey,
    seen: Vec<Completion>,
}

impl End {
    fn new() -> Self {
        let mut device = ShmDevice::new(ShmConfig::default()).unwrap();
        let key = device.register(Arc::new(Mapping::private(4096).unwrap()), Access::ALL).unwrap().local;
        let depths = QueuePairConfig { send_depth: 8, receive_depth: 8 };
        let queue_pair = device.create_queue_pair(depths).unwrap();
        Self { device, queue_pair, key, seen: Vec::new() }
    }

    fn slice(&self) -> LocalSlice {
        LocalSlice { key: self.key, offset: 0, length: 8 }
    }

    fn poll(&mut self) {
        let mut batch = [Completion::EMPTY; 4];
        let count = self.device.poll(Time(0), &mut batch);
        self.seen.extend_from_slice(&batch[..count]);
    }

    fn send(&mut self, signalled: bool) {
        let (operation, local) = (Operation::Send { immediate: None }, [self.slice(), LocalSlice::default()]);
        let request = WorkRequest { id: 1, operation, local, signalled, fence: false };
        self.device.post_send(self.queue_pair, &request).unwrap();
        self.device.flush();
    }

    fn post_receive(&mut self) {
        let request = ReceiveRequest { id: 0, local: self.slice() };
        self.device.post_receive(self.queue_pair, &request).unwrap();
    }

    fn has(&self, kind: CompletionKind) -> bool {
        self.seen.iter().any(|completion| completion.kind == kind && completion.status == Status::Success)
    }
}

fn connected() -> [End; 2] {
    let mut ends = [End::new(), End::new()];
    let [one, other] = ends.each_ref().map(|end| end.device.endpoint(end.queue_pair).unwrap());
    for (end, (peer, role)) in ends.iter_mut().zip([(other, Role::Active), (one, Role::Passive)]) {
        end.device.connect(end.queue_pair, &peer, role).unwrap();
    }
    while ends.iter().any(|end| end.device.state(end.queue_pair) != Some(QueuePairState::Ready)) {
        ends.iter_mut().for_each(End::poll);
    }
    ends
}

/// The second end has executed the first one's message, and its answer stands behind a message for which the first one has no
/// receive.
fn answered_behind_a_message_that_waits() -> [End; 2] {
    let [mut one, mut other] = connected();
    other.post_receive();
    other.send(false);
    one.poll();
    one.send(true);
    while !other.has(CompletionKind::Receive) {
        other.poll();
    }
    other.send(false);
    [one, other]
}

#[test]
fn an_answer_behind_a_message_that_waits_is_no_obstacle() {
    let [mut one, mut other] = answered_behind_a_message_that_waits();
    for _ in 0..1000 {
        one.poll();
        other.poll();
    }
    assert!(one.has(CompletionKind::Send), "the peer has executed it, and says so: {:?}", one.seen);
}

#[test]
fn what_was_executed_before_the_peer_failed_is_a_success() {
    let [mut one, mut other] = answered_behind_a_message_that_waits();
    other.device.fail_queue_pair(other.queue_pair);
    while one.device.state(one.queue_pair) != Some(QueuePairState::Error) {
        let mut batch = [Completion::EMPTY; 4];
        // Sockets are looked at as time passes.
        let count = one.device.poll(Time(u64::MAX / 2), &mut batch);
        one.seen.extend_from_slice(&batch[..count]);
        one.device.arm();
    }
    one.poll();
    assert!(one.has(CompletionKind::Send), "{:?}", one.seen);
}
