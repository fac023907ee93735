//! Half round trip and goodput of the tcp device on loopback beside those of bare `TcpStream`s, in one run.
//!
//! `cargo run --release -p ringway-tcp --example pingpong`
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ringway_mem::Mapping;
use ringway_tcp::{PREFACE_LENGTH, TcpConfig, TcpDevice, parse_preface};
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, Endpoint, LocalSlice, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, RemoteSlice, Role, Time, WorkRequest,
};

const ROUNDS: usize = 50_000;
const SMALL: u64 = 8;
const LARGE: u64 = 1 << 20;
const LARGE_COUNT: u64 = 4000;
const WINDOW: u64 = 8;

/// One side: a device, a queue pair, and memory for both tests.
struct Node {
    device: TcpDevice,
    queue_pair: QueuePairNumber,
    keys: ringway_verbs::MemoryKeys,
    start: Instant,
}

impl Node {
    /// Makes the device with a listener whose connections a thread accepts.
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut device, acceptor) = TcpDevice::new(TcpConfig::new(listener.local_addr().unwrap())).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut preface = [0; PREFACE_LENGTH];
            stream.read_exact(&mut preface).unwrap();
            acceptor.offer(parse_preface(&preface).unwrap(), OwnedFd::from(stream)).unwrap();
        });
        let config = QueuePairConfig { send_depth: 64, receive_depth: 64 };
        let queue_pair = device.create_queue_pair(config).unwrap();
        let mapping = Arc::new(Mapping::private(2 * LARGE as usize).unwrap());
        let keys = device.register(mapping, Access::ALL).unwrap();
        Self { device, queue_pair, keys, start: Instant::now() }
    }

    fn endpoint(&self) -> Endpoint {
        self.device.endpoint(self.queue_pair).unwrap()
    }

    fn connect(&mut self, peer: &Endpoint, role: Role) {
        self.device.connect(self.queue_pair, peer, role).unwrap();
        while self.device.state(self.queue_pair) != Some(QueuePairState::Ready) {
            self.poll(|_| ());
            self.device.flush();
        }
    }

    fn poll(&mut self, mut each: impl FnMut(&Completion)) {
        let mut completions = [Completion::EMPTY; 16];
        let now = Time(self.start.elapsed().as_nanos() as u64);
        let count = self.device.poll(now, &mut completions);
        completions[..count].iter().for_each(&mut each);
    }

    fn post_receive(&mut self) {
        let local = LocalSlice { key: self.keys.local, offset: 0, length: SMALL };
        self.device.post_receive(self.queue_pair, &ReceiveRequest { id: 0, local }).unwrap();
    }

    fn post(&mut self, operation: Operation, length: u64, signalled: bool) {
        let local = [LocalSlice { key: self.keys.local, offset: LARGE, length }, LocalSlice::default()];
        let request = WorkRequest { id: 0, operation, local, signalled, fence: false };
        self.device.post_send(self.queue_pair, &request).unwrap();
    }

    fn send(&mut self) {
        self.post(Operation::Send { immediate: None }, SMALL, false);
        self.device.flush();
    }

    fn wait_receive(&mut self) {
        let mut seen = false;
        while !seen {
            self.poll(|completion| seen |= completion.kind == CompletionKind::Receive);
            if !seen {
                self.device.flush();
            }
        }
    }
}

fn report(name: &str, mut half_round_trips_ns: Vec<u64>) {
    half_round_trips_ns.sort_unstable();
    let at = |percent: usize| half_round_trips_ns[half_round_trips_ns.len() * percent / 100] as f64 / 1e3;
    println!("{name:<24} 8 bytes, half round trip: p50 {:.2} us, p99 {:.2} us", at(50), at(99));
}

fn device() {
    let (mut one, mut two) = (Node::new(), Node::new());
    let (here, there) = (one.endpoint(), two.endpoint());
    let target = two.keys.remote;
    let other = thread::spawn(move || {
        two.post_receive();
        two.connect(&here, Role::Passive);
        for _ in 0..ROUNDS {
            two.wait_receive();
            two.post_receive();
            two.send();
        }
        two.wait_receive();
    });
    one.connect(&there, Role::Active);
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        one.post_receive();
        one.send();
        one.wait_receive();
        times.push(start.elapsed().as_nanos() as u64 / 2);
    }
    report("tcp device", times);
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < LARGE_COUNT {
        while posted < LARGE_COUNT && posted < done + WINDOW {
            one.post(Operation::Write { remote: RemoteSlice { key: target, offset: 0 } }, LARGE, true);
            posted += 1;
        }
        one.device.flush();
        one.poll(|_| done += 1);
    }
    let goodput = (LARGE * LARGE_COUNT) as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("{:<24} 1 MiB writes: {goodput:.2} GB/s", "tcp device");
    one.send();
    other.join().unwrap();
}

fn spin_read(stream: &mut TcpStream, mut into: &mut [u8]) {
    while !into.is_empty() {
        match stream.read(into) {
            Ok(count) => {
                assert!(count > 0);
                into = &mut into[count..];
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn bare() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; SMALL as usize];
        for _ in 0..ROUNDS {
            spin_read(&mut stream, &mut bytes);
            stream.write_all(&bytes).unwrap();
        }
        let mut large = vec![0; LARGE as usize];
        for _ in 0..LARGE_COUNT {
            spin_read(&mut stream, &mut large);
        }
        stream.write_all(&bytes).unwrap();
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; SMALL as usize];
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(&bytes).unwrap();
        spin_read(&mut stream, &mut bytes);
        times.push(start.elapsed().as_nanos() as u64 / 2);
    }
    report("bare, spinning", times);
    stream.set_nonblocking(false).unwrap();
    let large = vec![1; LARGE as usize];
    let start = Instant::now();
    for _ in 0..LARGE_COUNT {
        stream.write_all(&large).unwrap();
    }
    stream.read_exact(&mut bytes).unwrap();
    let goodput = (LARGE * LARGE_COUNT) as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("{:<24} 1 MiB writes: {goodput:.2} GB/s", "bare, spinning");
    other.join().unwrap();
}

fn main() {
    bare();
    device();
}
