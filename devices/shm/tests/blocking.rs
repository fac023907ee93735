//! Callers that block on the event descriptor are woken by whatever they wait for, and by the peer's end.
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod memory;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use memory::in_file;
use ringway_mem::Mapping;
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, Endpoint, LocalSlice, MemoryKeys, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, RemoteSlice, Role, Status, Time, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Far beyond what a wake-up takes on a loaded machine.
const TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
const LENGTH: u64 = 1 << 20;
const ROUNDS: usize = 200;

struct Node {
    device: ShmDevice,
    queue_pair: QueuePairNumber,
    keys: MemoryKeys,
    start: Instant,
    /// What completed and nobody has waited for: the first message may come with the connection.
    seen: Vec<Completion>,
}

impl Node {
    fn new(mapping: Mapping) -> Self {
        let mut device = ShmDevice::new(ShmConfig::default()).unwrap();
        let config = QueuePairConfig { send_depth: 16, receive_depth: 16 };
        let queue_pair = device.create_queue_pair(config).unwrap();
        let keys = device.register(Arc::new(mapping), Access::ALL).unwrap();
        Self { device, queue_pair, keys, start: Instant::now(), seen: Vec::new() }
    }

    fn endpoint(&self) -> Endpoint {
        self.device.endpoint(self.queue_pair).unwrap()
    }

    fn slice(&self, length: u64) -> LocalSlice {
        LocalSlice { key: self.keys.local, offset: 0, length }
    }

    /// Polls, and blocks on the descriptor whenever the device says that it may.
    fn turn(&mut self) {
        let mut batch = [Completion::EMPTY; 4];
        let now = Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap());
        let count = self.device.poll(now, &mut batch);
        self.seen.extend_from_slice(&batch[..count]);
        if count == 0 && self.device.arm() {
            // SAFETY: the descriptor belongs to the device, which lives longer than this call.
            let fd = unsafe { BorrowedFd::borrow_raw(self.device.event_descriptor().unwrap()) };
            let ready = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&TIMEOUT));
            assert_eq!(ready, Ok(1), "the descriptor did not become readable");
        }
    }

    fn connect(&mut self, peer: &Endpoint, role: Role) {
        self.device.connect(self.queue_pair, peer, role).unwrap();
        while self.device.state(self.queue_pair) != Some(QueuePairState::Ready) {
            self.turn();
        }
    }

    fn wait(&mut self, kind: CompletionKind) -> Completion {
        loop {
            if let Some(at) = self.seen.iter().position(|completion| completion.kind == kind) {
                return self.seen.remove(at);
            }
            self.turn();
        }
    }

    fn post_receive(&mut self) {
        let request = ReceiveRequest { id: 0, local: self.slice(LENGTH) };
        self.device.post_receive(self.queue_pair, &request).unwrap();
    }

    fn post(&mut self, operation: Operation, length: u64, signalled: bool) {
        let local = [self.slice(length), LocalSlice::default()];
        let request = WorkRequest { id: 1, operation, local, signalled, fence: false };
        self.device.post_send(self.queue_pair, &request).unwrap();
        self.device.flush();
    }

    fn send(&mut self) {
        self.post(Operation::Send { immediate: None }, 8, false);
    }
}

/// Messages to and fro, then WRITEs and READs of a megabyte, between two threads that block; then one of them ends.
fn everybody_is_woken(memory: fn() -> Mapping) {
    let (mut here, mut there) = (Node::new(memory()), Node::new(memory()));
    let (one, other) = (here.endpoint(), there.endpoint());
    let remote = RemoteSlice { key: there.keys.remote, offset: 0 };
    let (ended, end) = mpsc::channel();
    let answering = thread::spawn(move || {
        there.post_receive();
        there.connect(&one, Role::Passive);
        for _ in 0..ROUNDS {
            there.wait(CompletionKind::Receive);
            there.post_receive();
            there.send();
        }
        // What was asked of its memory is done while it waits for the last word.
        assert_eq!(there.wait(CompletionKind::Receive).status, Status::Success);
        end.recv().unwrap();
        drop(there);
    });
    here.connect(&other, Role::Active);
    for _ in 0..ROUNDS {
        here.post_receive();
        here.send();
        here.wait(CompletionKind::Receive);
    }
    for round in 0..20 {
        let operation = if round % 2 == 0 { Operation::Write { remote } } else { Operation::Read { remote } };
        here.post(operation, LENGTH, true);
        assert_eq!(here.wait(CompletionKind::Send).status, Status::Success);
    }
    here.post(Operation::Send { immediate: None }, 8, true);
    assert_eq!(here.wait(CompletionKind::Send).status, Status::Success);
    here.post_receive();
    ended.send(()).unwrap();
    assert_eq!(here.wait(CompletionKind::Receive).status, Status::Flushed, "the peer has ended");
    answering.join().unwrap();
}

#[test]
fn everybody_is_woken_with_memory_in_files() {
    everybody_is_woken(|| in_file(LENGTH as usize));
}

#[test]
fn everybody_is_woken_with_other_memory() {
    everybody_is_woken(|| Mapping::private(LENGTH as usize).unwrap());
}
