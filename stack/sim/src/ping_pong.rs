//! How fast two devices of this host are: half the round trip of small messages, and the goodput of large WRITEs, with
//! both ends spinning, each on a thread of its own; and the same of two TCP sockets. For the examples of the devices.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a measurement ends when something is wrong"
)]
#![expect(clippy::disallowed_methods, reason = "real devices are measured in real time")]

mod tcp;

use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ringway_mem::Mapping;
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, Endpoint, LocalSlice, MemoryKeys, Operation, QueuePairConfig,
    QueuePairNumber, QueuePairState, ReceiveRequest, RemoteSlice, Role, Status, Time, WorkRequest,
};

pub use tcp::ping_pong_over_tcp;

/// Round trips of small messages.
const ROUNDS: usize = 50_000;
/// Bytes of a small message.
const SMALL: u64 = 8;
/// Bytes of a large one.
pub const LARGE: u64 = 1 << 20;
/// Large messages.
const LARGE_COUNT: u64 = 2000;
/// Large messages under way at a time.
const WINDOW: u64 = 8;

/// Polls in vain between two looks at the clock, where one message is waited for: reading it takes as long as the rest of a
/// short poll, and no timer ends within so few.
const POLLS_PER_LOOK: usize = 16;

/// How much is measured, and with what.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Round trips of small messages.
    pub rounds: usize,
    /// Large messages.
    pub large_count: u64,
    /// Makes the memory that messages lie in, of so many bytes.
    pub memory: fn(usize) -> Mapping,
}

impl Default for Amount {
    fn default() -> Self {
        let memory = |length| Mapping::private(length).expect("memory");
        Self { rounds: ROUNDS, large_count: LARGE_COUNT, memory }
    }
}

/// What was measured.
#[derive(Debug)]
pub struct PingPong {
    /// Of each round.
    pub half_round_trips: Vec<Duration>,
    /// For all large messages.
    pub writing: Duration,
    /// How many those were.
    pub large_count: u64,
}

impl PingPong {
    /// The half round trip that so many percent do not exceed, in microseconds.
    #[must_use]
    pub fn half_round_trip_us(&self, percent: usize) -> f64 {
        let mut sorted = self.half_round_trips.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * percent / 100).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    }

    /// Of large messages, in bytes per second.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        (LARGE * self.large_count) as f64 / self.writing.as_secs_f64()
    }
}

impl fmt::Display for PingPong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.half_round_trip_us(50), self.half_round_trip_us(99));
        write!(f, "{SMALL} bytes, half round trip: p50 {p50:.2} us, p99 {p99:.2} us; ")?;
        write!(f, "1 MiB writes: {:.2} GB/s", self.goodput() / 1e9)
    }
}

/// One side: a device, a queue pair, and memory for both tests.
struct Node<D> {
    device: D,
    queue_pair: QueuePairNumber,
    keys: MemoryKeys,
    start: Instant,
    /// The last look at the clock.
    now: Time,
    /// Messages that have come and nobody has waited for: the first may come with the news that the peer is connected.
    received: usize,
    completions: [Completion; 16],
}

impl<D: Device<Region = Arc<Mapping>>> Node<D> {
    fn new(mut device: D, memory: fn(usize) -> Mapping) -> Self {
        let config = QueuePairConfig { send_depth: 64, receive_depth: 64 };
        let queue_pair = device.create_queue_pair(config).expect("a queue pair");
        let mapping = Arc::new(memory(2 * LARGE as usize));
        let keys = device.register(mapping, Access::ALL).expect("registered");
        let completions = [Completion::EMPTY; 16];
        let (start, now) = (Instant::now(), Time(0));
        Self { device, queue_pair, keys, start, now, received: 0, completions }
    }

    fn endpoint(&self) -> Endpoint {
        self.device.endpoint(self.queue_pair).expect("an endpoint")
    }

    fn connect(&mut self, peer: &Endpoint, role: Role) {
        self.device.connect(self.queue_pair, peer, role).expect("connecting");
        while self.device.state(self.queue_pair) != Some(QueuePairState::Ready) {
            self.poll();
            self.device.flush();
        }
    }

    fn look_at_clock(&mut self) {
        self.now = Time(self.start.elapsed().as_nanos() as u64);
    }

    /// Takes what is complete by now; how many sends were.
    fn poll(&mut self) -> u64 {
        self.look_at_clock();
        self.take()
    }

    /// The same by the last look at the clock.
    fn take(&mut self) -> u64 {
        let count = self.device.poll(self.now, &mut self.completions);
        let mut sent = 0;
        for completion in &self.completions[..count] {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            match completion.kind {
                CompletionKind::Receive => self.received += 1,
                _ => sent += 1,
            }
        }
        sent
    }

    fn post_receive(&mut self) {
        let local = LocalSlice { key: self.keys.local, offset: 0, length: SMALL };
        self.device.post_receive(self.queue_pair, &ReceiveRequest { id: 0, local }).expect("posted");
    }

    fn post(&mut self, operation: Operation, length: u64, signalled: bool) {
        let local = [LocalSlice { key: self.keys.local, offset: LARGE, length }, LocalSlice::default()];
        let request = WorkRequest { id: 0, operation, local, signalled, fence: false };
        self.device.post_send(self.queue_pair, &request).expect("posted");
    }

    fn send(&mut self) {
        self.post(Operation::Send { immediate: None }, SMALL, false);
        self.device.flush();
    }

    /// Waits for a message while nothing else is under way.
    fn wait_message(&mut self) {
        self.wait(POLLS_PER_LOOK);
    }

    /// Waits for a message, with so many polls to each look at the clock.
    fn wait(&mut self, polls_per_look: usize) {
        let mut looks = (0..polls_per_look).cycle();
        while self.received == 0 {
            if looks.next() == Some(0) {
                self.look_at_clock();
            }
            self.take();
            if self.received == 0 {
                self.device.flush();
            }
        }
        self.received -= 1;
    }

    /// Answers what the other side sends.
    fn answer(&mut self, peer: &Endpoint, rounds: usize) {
        // Two, so that the place of one that was used need not be filled before the answer is sent.
        self.post_receive();
        self.post_receive();
        self.connect(peer, Role::Passive);
        for _ in 0..rounds {
            self.wait_message();
            self.send();
            self.post_receive();
        }
        // All was written.
        self.wait(1);
    }

    fn round_trips(&mut self, rounds: usize) -> Vec<Duration> {
        let mut times = Vec::with_capacity(rounds);
        self.post_receive();
        for _ in 0..rounds {
            let start = Instant::now();
            self.send();
            self.post_receive();
            self.wait_message();
            times.push(start.elapsed() / 2);
        }
        times
    }

    fn write(&mut self, remote: RemoteSlice, count: u64) -> Duration {
        let start = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count && posted < done + WINDOW {
                self.post(Operation::Write { remote }, LARGE, true);
                posted += 1;
            }
            self.device.flush();
            done += self.poll();
        }
        start.elapsed()
    }
}

/// Measures two devices against each other; gives them back with what was found.
pub fn ping_pong<D: Device<Region = Arc<Mapping>> + Send>(devices: [D; 2]) -> (PingPong, [D; 2]) {
    ping_pong_between(devices, Amount::default(), |_| ())
}

/// The same for so much, where each side's thread first calls `enter` with the side's number: it may have to be in another
/// network namespace.
pub fn ping_pong_between<D: Device<Region = Arc<Mapping>> + Send>(
    devices: [D; 2],
    amount: Amount,
    enter: impl Fn(usize) + Sync,
) -> (PingPong, [D; 2]) {
    let Amount { rounds, large_count, memory } = amount;
    let [mut one, mut two] = devices.map(|device| Node::new(device, memory));
    let (here, there) = (one.endpoint(), two.endpoint());
    let remote = RemoteSlice { key: two.keys.remote, offset: 0 };
    let enter = &enter;
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            enter(1);
            two.answer(&here, rounds);
            two.device
        });
        let measuring = scope.spawn(move || {
            enter(0);
            one.connect(&there, Role::Active);
            let half_round_trips = one.round_trips(rounds);
            let writing = one.write(remote, large_count);
            one.send();
            // The other side may still miss what was said last.
            while !other.is_finished() {
                one.poll();
                one.device.flush();
            }
            let two = other.join().expect("no panic");
            (PingPong { half_round_trips, writing, large_count }, [one.device, two])
        });
        measuring.join().expect("no panic")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SimConfig, SimNetwork};

    #[test]
    fn a_message_that_comes_with_the_connection_is_not_lost() {
        let network = SimNetwork::new(SimConfig::default());
        let memory = Amount::default().memory;
        let [mut one, mut two] = [network.device(), network.device()].map(|device| Node::new(device, memory));
        let (here, there) = (one.endpoint(), two.endpoint());
        two.post_receive();
        two.device.connect(two.queue_pair, &here, Role::Passive).expect("connecting");
        one.connect(&there, Role::Active);
        one.send();
        // What was sent has arrived before the other side looks for the first time.
        while network.next_event().is_some() {
            one.poll();
        }
        while two.device.state(two.queue_pair) != Some(QueuePairState::Ready) || two.received == 0 {
            two.poll();
        }
        two.wait(1);
        assert_eq!(two.received, 0);
    }
}
