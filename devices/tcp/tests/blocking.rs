//! Callers that block on the event descriptor, devices that move to another thread, and devices dropped in use.
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

#[macro_use]
mod drivers;
mod victim;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ringway_mem::Mapping;
use ringway_tcp::frame::Frame;
use ringway_tcp::{PREFACE_LENGTH, Preface, TcpConfig, TcpDevice, TcpDriver};
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, Endpoint, LocalSlice, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, Role, Status, Time, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use victim::Victim;

/// Far beyond what a wake-up takes on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Node {
    device: TcpDevice,
    queue_pair: QueuePairNumber,
    local: LocalSlice,
    start: Instant,
    /// The caller blocks in the device where that can, and not on its descriptor.
    inside: bool,
}

impl Node {
    fn new(driver: TcpDriver, length: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = TcpConfig::new(listener.local_addr().unwrap());
        config.driver = driver;
        let (mut device, acceptor) = TcpDevice::new(config).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut preface = [0; PREFACE_LENGTH];
            stream.read_exact(&mut preface).unwrap();
            // Give the device time to block before the offer.
            thread::sleep(Duration::from_millis(50));
            acceptor.offer(Preface::parse(&preface).unwrap(), OwnedFd::from(stream)).unwrap();
        });
        let config = QueuePairConfig { send_depth: 16, receive_depth: 16 };
        let queue_pair = device.create_queue_pair(config).unwrap();
        let keys = device.register(Arc::new(Mapping::private(length).unwrap()), Access::ALL).unwrap();
        let local = LocalSlice { key: keys.local, offset: 0, length: length as u64 };
        Self { device, queue_pair, local, start: Instant::now(), inside: false }
    }

    fn endpoint(&self) -> Endpoint {
        self.device.endpoint(self.queue_pair).unwrap()
    }

    /// Polls, and blocks on the descriptor whenever the device says that it may.
    fn turn(&mut self) -> Option<Completion> {
        let mut batch = [Completion::EMPTY; 1];
        let now = Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap());
        if self.device.poll(now, &mut batch) > 0 {
            return Some(batch[0]);
        }
        assert!(self.block(TIMEOUT), "nothing woke the caller");
        None
    }

    fn connect(&mut self, peer: &Endpoint, role: Role) {
        self.device.connect(self.queue_pair, peer, role).unwrap();
        while self.device.state(self.queue_pair) != Some(QueuePairState::Ready) {
            assert_eq!(self.turn(), None);
        }
    }

    /// Goes on until nothing wakes the caller any more: what was begun is done after a few polls.
    fn fall_silent(&mut self) {
        let quiet = Duration::from_millis(20);
        let mut batch = [Completion::EMPTY; 1];
        let (mut silent, mut polls) = (0, 0);
        while silent < 5 {
            polls += 1;
            assert!(polls < 10_000, "a device that has nothing to do keeps waking its caller");
            assert_eq!(self.device.poll(Time(0), &mut batch), 0);
            silent = if self.block(quiet) { 0 } else { silent + 1 };
        }
    }

    /// Blocks if the device lets its caller; whether there may be something to poll.
    fn block(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        if self.inside {
            let blocked = self.device.block(Some(timeout));
            assert_eq!(blocked, self.device.capabilities().name == TcpDriver::IoUring.name());
            if blocked {
                return start.elapsed() < timeout;
            }
        }
        if !self.device.arm() {
            return true;
        }
        let timeout = Timespec::try_from(timeout).unwrap();
        // SAFETY: the descriptor belongs to the device, which lives longer than this call.
        let fd = unsafe { BorrowedFd::borrow_raw(self.device.event_descriptor().unwrap()) };
        rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    }

    fn wait(&mut self, kind: CompletionKind) -> Completion {
        loop {
            if let Some(completion) = self.turn().filter(|completion| completion.kind == kind) {
                return completion;
            }
        }
    }

    fn post_receive(&mut self) {
        let request = ReceiveRequest { id: 0, local: self.local };
        self.device.post_receive(self.queue_pair, &request).unwrap();
    }

    fn send(&mut self) {
        self.post_send(true);
    }

    fn send_unsignalled(&mut self) {
        self.post_send(false);
    }

    fn post_send(&mut self, signalled: bool) {
        let operation = Operation::Send { immediate: None };
        let local = [self.local, LocalSlice::default()];
        let request = WorkRequest { id: 1, operation, local, signalled, fence: false };
        self.device.post_send(self.queue_pair, &request).unwrap();
        self.device.flush();
    }
}

with_each_driver!(
    blocked_callers_are_woken_by_offers_messages_and_acknowledgements,
    callers_that_block_inside_are_woken_by_offers_messages_and_acknowledgements,
    callers_may_block_inside_and_outside_by_turns,
    an_idle_device_lets_its_caller_block,
    an_idle_device_lets_its_caller_block_inside,
    a_message_without_room_lets_its_caller_block,
    a_device_can_be_dropped_in_the_middle_of_transfers,
    what_waits_for_another_connections_part_lets_the_caller_block,
);

fn what_waits_for_another_connections_part_lets_the_caller_block(driver: TcpDriver) {
    let mut victim = Victim::new(victim::config(driver));
    let [mut first, second] = [0, 1].map(|connection| victim.offer(connection, 2));
    victim.begin();
    let length = 128 << 10;
    let keys = victim.device.register(Arc::new(Mapping::private(length).unwrap()), Access::ALL).unwrap();
    let remote = victim::remote(keys, 0);
    let write = victim::header(Frame::Write { length: length as u64, remote, immediate: None, asks: true });
    // All of the first part, and more than is read ahead of what comes after it; nothing of the second.
    first.write_all(&write).unwrap();
    first.write_all(&vec![0; length]).unwrap();
    victim.until("it is heard", |victim| victim.counter("bytes_received") > length as u64 / 2);
    let Victim { device, queue_pair, .. } = victim;
    let local = LocalSlice { key: keys.local, offset: 0, length: length as u64 };
    let mut node = Node { device, queue_pair, local, start: Instant::now(), inside: false };
    node.fall_silent();
    drop((first, second));
    while node.device.state(queue_pair) != Some(QueuePairState::Error) {
        node.turn();
    }
}

fn blocked_callers_are_woken_by_offers_messages_and_acknowledgements(driver: TcpDriver) {
    callers_are_woken(driver, |_| false);
}

fn callers_that_block_inside_are_woken_by_offers_messages_and_acknowledgements(driver: TcpDriver) {
    callers_are_woken(driver, |_| true);
}

fn callers_may_block_inside_and_outside_by_turns(driver: TcpDriver) {
    callers_are_woken(driver, |round| round % 2 == 0);
}

fn callers_are_woken(driver: TcpDriver, inside: fn(usize) -> bool) {
    for length in [8, 1 << 20] {
        let (mut one, mut two) = (Node::new(driver, length), Node::new(driver, length));
        (one.inside, two.inside) = (inside(0), inside(0));
        let (here, there) = (one.endpoint(), two.endpoint());
        // Made here, used there: the first poll binds it.
        let other = thread::spawn(move || {
            two.connect(&here, Role::Passive);
            for round in 0..20 {
                two.inside = inside(round);
                two.post_receive();
                assert_eq!(two.wait(CompletionKind::Receive).status, Status::Success);
                // The peer has gone to sleep over its receive by now.
                thread::sleep(Duration::from_millis(2));
                two.send();
                assert_eq!(two.wait(CompletionKind::Send).status, Status::Success);
            }
        });
        one.connect(&there, Role::Active);
        for round in 0..20 {
            one.inside = inside(round + 1);
            one.post_receive();
            one.send();
            assert_eq!(one.wait(CompletionKind::Send).status, Status::Success);
            assert_eq!(one.wait(CompletionKind::Receive).status, Status::Success);
        }
        // The acknowledgement of the last message is still to be sent.
        one.device.flush();
        other.join().unwrap();
        // The other device is gone with its thread: a blocked caller learns of it.
        while one.device.state(one.queue_pair) == Some(QueuePairState::Ready) {
            one.turn();
        }
    }
}

#[test]
fn who_blocks_inside_makes_two_system_calls_a_message() {
    const ROUNDS: u64 = 200;
    let nodes = [(); 2].map(|()| Node::new(TcpDriver::IoUring, 8));
    let [here, there] = [0, 1].map(|at: usize| nodes[at].endpoint());
    let [mut one, mut two] = nodes;
    let exchange = |node: &mut Node, first: bool| {
        node.inside = true;
        node.post_receive();
        for round in 0..ROUNDS {
            if first || round > 0 {
                node.send_unsignalled();
            }
            assert_eq!(node.wait(CompletionKind::Receive).status, Status::Success);
            node.post_receive();
        }
        node.send_unsignalled();
        let mut calls = 0;
        node.device
            .for_each_counter(&mut |name, value| calls += if name == "system_calls" { value } else { 0 });
        calls
    };
    let calls = thread::scope(|scope| {
        let other = scope.spawn(|| {
            two.connect(&here, Role::Passive);
            exchange(&mut two, false)
        });
        one.connect(&there, Role::Active);
        [exchange(&mut one, true), other.join().unwrap()]
    });
    // And some to connect. With a descriptor there are three, and the wait for that.
    assert!(calls.iter().all(|calls| *calls < ROUNDS * 5 / 2), "{calls:?} system calls of {ROUNDS} messages");
}

fn an_idle_device_lets_its_caller_block(driver: TcpDriver) {
    falls_silent(driver, false);
}

fn an_idle_device_lets_its_caller_block_inside(driver: TcpDriver) {
    falls_silent(driver, true);
}

fn falls_silent(driver: TcpDriver, inside: bool) {
    let (mut one, mut two) = (Node::new(driver, 8), Node::new(driver, 8));
    let (here, there) = (one.endpoint(), two.endpoint());
    let (done, wait) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        two.connect(&here, Role::Passive);
        let _ = wait.recv();
    });
    one.inside = inside;
    one.connect(&there, Role::Active);
    one.fall_silent();
    done.send(()).unwrap();
    other.join().unwrap();
}

fn a_message_without_room_lets_its_caller_block(driver: TcpDriver) {
    // More than the sockets of both ends hold.
    let length = 64 << 20;
    let (mut one, mut two) = (Node::new(driver, length), Node::new(driver, length));
    let (here, there) = (one.endpoint(), two.endpoint());
    let (read_on, wait) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        two.post_receive();
        two.connect(&here, Role::Passive);
        two.device.flush();
        wait.recv().unwrap();
        assert_eq!(two.wait(CompletionKind::Receive).status, Status::Success);
        two.device.flush();
    });
    one.connect(&there, Role::Active);
    one.send();
    // Nobody reads, so that nothing is to be done; then there is room, and the caller is woken as often as it takes.
    one.fall_silent();
    read_on.send(()).unwrap();
    assert_eq!(one.wait(CompletionKind::Send).status, Status::Success);
    other.join().unwrap();
}

fn a_device_can_be_dropped_in_the_middle_of_transfers(driver: TcpDriver) {
    for round in 0..10 {
        let (mut one, mut two) = (Node::new(driver, 8 << 20), Node::new(driver, 8 << 20));
        let (here, there) = (one.endpoint(), two.endpoint());
        let other = thread::spawn(move || {
            two.post_receive();
            two.post_receive();
            two.connect(&here, Role::Passive);
            two.send();
            // Part of the message has come when the device goes.
            for _ in 0..round {
                two.device.poll(Time(0), &mut [Completion::EMPTY; 1]);
                two.device.flush();
            }
        });
        one.connect(&there, Role::Active);
        one.post_receive();
        one.send();
        one.send();
        other.join().unwrap();
        let lost = loop {
            let completion = one.wait(CompletionKind::Send);
            if completion.status != Status::Success {
                break completion;
            }
        };
        assert_eq!(lost.status, Status::TransportLost);
    }
}
