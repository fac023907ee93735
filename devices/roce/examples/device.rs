//! Half round trip and goodput of the RoCE device over UDP on loopback, both ends spinning, with selective
//! acknowledgement and as toward any other peer. Say `WINDOW=64` or `SLACK_US=100` to try others than the defaults.
//!
//! `cargo run --release -p ringway-roce --example device`
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

use std::{env, net::Ipv4Addr, sync::Arc, thread, time::Instant};

use ringway_mem::Mapping;
use ringway_roce::{RoceConfig, RoceDevice, UdpConfig, UdpLink};
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, Endpoint, LocalSlice, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, RemoteSlice, Role, Time, WorkRequest,
};

const ROUNDS: usize = 50_000;
const SMALL: u64 = 8;
const LARGE: u64 = 1 << 20;
const LARGE_COUNT: u64 = 2000;
const WINDOW: u64 = 8;

/// One side: a device, a queue pair, and memory for both tests.
struct Node {
    device: RoceDevice<UdpLink>,
    queue_pair: QueuePairNumber,
    keys: ringway_verbs::MemoryKeys,
    start: Instant,
}

impl Node {
    fn new(last: u8, config: RoceConfig) -> Self {
        let link = UdpLink::new(UdpConfig::new(Ipv4Addr::new(127, 99, 99, last).into())).unwrap();
        let mut device = RoceDevice::new(link, config).unwrap();
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

fn device(name: &str, config: RoceConfig) {
    let (mut one, mut two) = (Node::new(1, config), Node::new(2, config));
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
        two
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
    report(name, times);
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
    println!("{:<24} 1 MiB writes: {goodput:.2} GB/s", name);
    one.send();
    one.device.flush();
    let two = other.join().unwrap();
    println!("{:?}\n{:?}", one.device.counters(), two.device.counters());
}

fn number<T: std::str::FromStr>(name: &str, usual: T) -> T {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn main() {
    let usual = RoceConfig::new("roce-udp");
    let config = RoceConfig {
        window: number("WINDOW", usual.window),
        delay_slack_ns: number("SLACK_US", usual.delay_slack_ns / 1000) * 1000,
        ..usual
    };
    device("selective", config);
    device("go-back-N", RoceConfig { selective: false, ..config });
}
