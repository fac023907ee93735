//! The other side of `interop/verbs_peer.c`: see there. Everything that perftest cannot be asked for, with all bytes checked.
//!
//! `verbs_peer PEER PORT MTU ROUNDS FIRST_PSN here|there udp|xdp ADDRESS QUEUE_PAIRS`: whose WRITE is refused at the end
//! (`here` is the peer's), what carries the packets, where they come from, and how many queue pairs of one device do it all at
//! once.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test at the terminal")]

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    io::{Read as _, Write as _},
    net::{IpAddr, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Instant,
};

use ringway_mem::Mapping;
use ringway_perftest::Keys;
use ringway_roce::{Link, RoceConfig, RoceDevice, RoceEndpoint, UdpConfig, UdpLink, XdpConfig, XdpLink};
use ringway_verbs::{
    Access, Completion, CompletionKind, Device as _, LocalSlice, MemoryKeys, Operation, QueuePairConfig,
    QueuePairNumber, ReceiveRequest, RemoteKey, RemoteSlice, Role, Status, Time, WorkRequest,
};
use ringway_wire::{PathMtu, Psn};

const SLOT: u64 = 16_384;
const SLOTS: u64 = 64;
const RECEIVES: u64 = 8;
const DEPTH: u64 = 16;
const OPERATIONS: i64 = 8;

// Where things are in each side's memory.
const SOURCES: u64 = 0;
const TARGETS: u64 = SOURCES + SLOTS * SLOT;
const INCOMING: u64 = TARGETS + SLOTS * SLOT;
const READABLE: u64 = INCOMING + RECEIVES * SLOT;
const RESULTS: u64 = READABLE + SLOT;
const COUNTER: u64 = RESULTS + SLOTS * 8;
const SWAPPED: u64 = COUNTER + 8;
const MEMORY: u64 = SWAPPED + 8;

/// Byte `at` of what a side (0: the peer, 1: Ringway) sends in a round, or lets be read (round -1).
fn pattern(side: i64, round: i64, at: u64) -> u8 {
    let at = at as i64;
    (round * 131 + at * 7 + (at >> 8) * 13 + side * 101 + 29) as u8
}

const fn immediate_of(round: i64) -> u32 {
    (round as u32).wrapping_mul(2_654_435_761)
}

const fn slot(round: i64) -> u64 {
    round as u64 % SLOTS * SLOT
}

const fn word(round: i64) -> u64 {
    (round as u64).wrapping_mul(0x0101_0101_0101_0101)
}

/// What all queue pairs share.
struct Shared {
    device: RoceDevice,
    start: Instant,
    /// What has completed, by queue pair, until the thread that has it looks.
    completed: BTreeMap<u32, VecDeque<Completion>>,
}

impl Shared {
    fn poll(&mut self) {
        let mut completions = [Completion::EMPTY; 16];
        let now = Time(self.start.elapsed().as_nanos() as u64);
        let count = self.device.poll(now, &mut completions);
        for completion in completions.into_iter().take(count) {
            self.completed.entry(completion.queue_pair.0).or_default().push_back(completion);
        }
    }
}

struct Side {
    shared: Arc<Mutex<Shared>>,
    mapping: Arc<Mapping>,
    keys: MemoryKeys,
    number: QueuePairNumber,
    peer: Keys,
    mtu: u64,
    counter: u64,
    swapped: u64,
}

impl Side {
    fn length_of(&self, round: i64) -> u64 {
        let mtu = self.mtu;
        [0, 1, 7, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5, 64, 10_000]
            [((round * 3 + round / 10) % 10) as usize]
    }

    fn fill(&self, at: u64, length: u64, byte: impl Fn(u64) -> u8) {
        let bytes: Vec<u8> = (0..length).map(byte).collect();
        self.mapping.window(at, length).unwrap().write(&bytes);
    }

    fn bytes(&self, at: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.mapping.window(at, length).unwrap().read(&mut bytes);
        bytes
    }

    fn expect_bytes(&self, what: &str, round: i64, at: u64, side: i64, of: i64, length: u64) {
        for (index, found) in (0..).zip(self.bytes(at, length)) {
            let expected = pattern(side, of, index);
            assert_eq!(found, expected, "{what} of round {round}: byte {index} of {length}");
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    /// What has completed for this queue pair; otherwise looks whether something has for any.
    fn poll(&self) -> Option<Completion> {
        let mut shared = self.shared();
        let completed = shared.completed.entry(self.number.0).or_default().pop_front();
        if completed.is_none() {
            shared.poll();
        }
        completed
    }

    fn take(&self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            thread::yield_now();
            let counters = || self.shared().device.counters();
            assert!(start.elapsed().as_secs() < 60, "nothing completes; {:?}", counters());
        }
    }

    fn post_receive(&mut self, number: u64) {
        let offset = INCOMING + number % RECEIVES * SLOT;
        self.fill(offset, SLOT, |_| 0xee);
        let local = LocalSlice { key: self.keys.local, offset, length: SLOT };
        self.shared().device.post_receive(self.number, &ReceiveRequest { id: number, local }).unwrap();
    }

    fn post(&mut self, round: i64, operation: Operation, at: u64, length: u64, signalled: bool, fence: bool) {
        let local = LocalSlice { key: self.keys.local, offset: at, length };
        let local = [local, LocalSlice::default()];
        let request = WorkRequest { id: round as u64, operation, local, signalled, fence };
        self.shared().device.post_send(self.number, &request).unwrap();
    }

    fn remote(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { key: RemoteKey(self.peer.key), offset: self.peer.address + offset }
    }

    /// Posts the requests of a round; returns how many. The last is signalled, but for a plain WRITE.
    fn request(&mut self, round: i64) -> u64 {
        let (source, target) = (SOURCES + slot(round), self.remote(TARGETS + slot(round)));
        let (length, immediate) = (self.length_of(round), immediate_of(round));
        let result = RESULTS + round as u64 % SLOTS * 8;
        self.fill(source, length, |at| pattern(1, round, at));
        let read = Operation::Read { remote: self.remote(READABLE) };
        let (operation, at, length) = match round % OPERATIONS {
            0 => (Operation::Send { immediate: None }, source, length),
            1 => (Operation::Send { immediate: Some(immediate) }, source, length),
            2 => (Operation::Write { remote: target }, source, length),
            3 => (Operation::WriteWithImmediate { remote: target, immediate }, source, length),
            4 => {
                self.fill(source, SLOT, |_| 0);
                (read, source, length)
            }
            5 => (Operation::FetchAdd { remote: self.remote(COUNTER), add: round as u64 }, result, 8),
            6 => {
                // Every other one expects the wrong thing, and must change nothing.
                let expected = self.swapped + (round / OPERATIONS % 2) as u64;
                let remote = self.remote(SWAPPED);
                (Operation::CompareSwap { remote, expected, desired: word(round) }, result, 8)
            }
            _ => {
                // What a READ brings is sent at once: only the fence makes that right.
                self.fill(source, SLOT, |_| 0);
                self.post(round, read, source, length, false, false);
                self.post(round, Operation::Send { immediate: Some(immediate) }, source, length, true, true);
                return 2;
            }
        };
        self.post(round, operation, at, length, round % OPERATIONS != 2, false);
        1
    }

    fn check_result(&mut self, round: i64) {
        let result = self.bytes(RESULTS + round as u64 % SLOTS * 8, 8);
        let found = u64::from_ne_bytes(result.try_into().unwrap());
        match round % OPERATIONS {
            4 => {
                self.expect_bytes("the READ", round, SOURCES + slot(round), 0, -1, self.length_of(round));
            }
            5 => {
                assert_eq!(found, self.counter, "FETCH_ADD of round {round}");
                self.counter += round as u64;
            }
            6 => {
                assert_eq!(found, self.swapped, "CMP_SWAP of round {round}");
                if round / OPERATIONS % 2 == 0 {
                    self.swapped = word(round);
                }
            }
            _ => {}
        }
    }

    /// This side posts, the peer answers.
    fn requester(&mut self, rounds: i64) {
        let (mut posted, mut done, mut outstanding) = (0, 0, 0);
        while done < rounds {
            // What a CMP_SWAP is to expect follows from the one before.
            while posted < rounds && outstanding + 2 <= DEPTH && posted - done < OPERATIONS - 1 {
                outstanding += self.request(posted);
                posted += 1;
            }
            let completion = self.take();
            if done % OPERATIONS == 2 {
                // A silent WRITE.
                done += 1;
                outstanding -= 1;
            }
            assert_eq!(completion.status, Status::Success, "round {}", completion.id);
            assert_eq!((completion.id, completion.kind), (done as u64, CompletionKind::Send));
            self.check_result(done);
            outstanding -= if done % OPERATIONS == 7 { 2 } else { 1 };
            done += 1;
        }
    }

    /// The peer posts; this side looks at what comes.
    fn responder(&mut self, rounds: i64) {
        let takes = |round: &i64| matches!(round % OPERATIONS, 0 | 1 | 3 | 7);
        for (number, round) in (RECEIVES..).zip((0..rounds).filter(takes)) {
            let length = self.length_of(round);
            let Completion { id, status, kind, length: came, immediate, .. } = self.take();
            let expected = match round % OPERATIONS {
                3 => CompletionKind::ReceiveWrite,
                _ => CompletionKind::Receive,
            };
            assert_eq!((status, kind, came), (Status::Success, expected, length), "round {round}");
            let announced = (round % OPERATIONS != 0).then(|| immediate_of(round));
            assert_eq!(immediate, announced, "the immediate of round {round}");
            let at = INCOMING + id % RECEIVES * SLOT;
            match round % OPERATIONS {
                3 => {
                    let (before, length_before) = (round - 1, self.length_of(round - 1));
                    self.expect_bytes("the WRITE", round, TARGETS + slot(before), 0, before, length_before);
                    self.expect_bytes("the WRITE_WITH_IMM", round, TARGETS + slot(round), 0, round, length);
                }
                7 => self.expect_bytes("the fenced SEND", round, at, 1, -1, length),
                _ => self.expect_bytes("the SEND", round, at, 0, round, length),
            }
            self.post_receive(number);
        }
    }

    /// A WRITE with a key that is not the peer's, and one behind it.
    fn be_refused(&mut self) {
        let mut remote = self.remote(0);
        remote.key.0 ^= 0xff00;
        self.post(1, Operation::Write { remote }, SOURCES, 100, true, false);
        let status = self.take().status;
        // The peer says no once and is silent then: where that can be lost, nothing more comes.
        let is_lost = status == Status::TransportLost && env::var_os("LOSSY").is_some();
        assert!(is_lost || status == Status::RemoteAccess, "a wrong key: {status:?}");
        self.post(1, Operation::Write { remote }, SOURCES, 100, true, false);
        self.expect_flushed(RECEIVES + 1);
    }

    fn expect_flushed(&mut self, requests: u64) {
        for _ in 0..requests {
            assert_eq!(self.take().status, Status::Flushed);
        }
    }

    /// Waits until the peer is here as well, and answers it meanwhile.
    fn barrier(&mut self, stream: &mut TcpStream) {
        stream.write_all(b"!").unwrap();
        stream.set_nonblocking(true).unwrap();
        loop {
            match stream.read(&mut [0]) {
                Ok(1) => break,
                Ok(_) => panic!("the peer is gone"),
                Err(_) => {
                    self.shared().poll();
                    thread::yield_now();
                }
            }
        }
        stream.set_nonblocking(false).unwrap();
    }
}

fn link(name: &str, address: IpAddr) -> Box<dyn Link> {
    match name {
        "udp" => Box::new(UdpLink::new(UdpConfig::new(address)).unwrap()),
        "xdp" => {
            let link = XdpLink::new(XdpConfig::new(address)).unwrap();
            println!("{}", link.describe());
            Box::new(link)
        }
        _ => panic!("no link is called {name}"),
    }
}

/// A queue pair of the device, with memory of its own, connected to what the peer at the other end of the stream has.
fn connect(stream: &mut TcpStream, mtu: PathMtu, shared: Arc<Mutex<Shared>>) -> Side {
    let mapping = Arc::new(Mapping::private(MEMORY as usize).unwrap());
    let depths = QueuePairConfig { send_depth: 2 * DEPTH as u32, receive_depth: 2 * RECEIVES as u32 };
    let (keys, number, own) = {
        let mut shared = shared.lock().unwrap();
        let device = &mut shared.device;
        let keys = device.register(Arc::clone(&mapping), Access::ALL).unwrap();
        let number = device.create_queue_pair(depths).unwrap();
        (keys, number, RoceEndpoint::decode(&device.endpoint(number).unwrap()).unwrap())
    };
    let (reads, psn, host) = (own.rd_atomic, own.psn, own.address);
    let mine = Keys { reads, number: number.0, psn, key: keys.remote.0, address: 0, host };
    stream.write_all(&mine.to_bytes()).unwrap();
    let mut theirs = [0; Keys::LENGTH];
    stream.read_exact(&mut theirs).unwrap();
    let peer = Keys::parse(&theirs).unwrap();
    let endpoint = RoceEndpoint::plain(peer.host, peer.number, peer.psn.value(), mtu, peer.reads).unwrap();
    shared.lock().unwrap().device.connect(number, &endpoint.encode(), Role::Active).unwrap();
    Side { shared, mapping, keys, number, peer, mtu: mtu.bytes() as u64, counter: 0, swapped: 0 }
}

/// What one queue pair does, with a connection of its own to the peer's process for it.
fn live(peer: (&str, u16), mtu: PathMtu, rounds: i64, refused_here: bool, shared: Arc<Mutex<Shared>>) {
    let start = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(peer) {
            Ok(stream) => break stream,
            Err(error) => assert!(start.elapsed().as_secs() < 10, "{error}"),
        }
    };
    stream.set_nodelay(true).unwrap();
    let mut side = connect(&mut stream, mtu, shared);
    side.fill(READABLE, SLOT, |at| pattern(1, -1, at));
    (0..RECEIVES).for_each(|number| side.post_receive(number));
    side.barrier(&mut stream);
    side.requester(rounds);
    side.barrier(&mut stream);
    println!("posted {rounds} rounds; the counter is {}", side.counter);
    side.responder(rounds);
    side.barrier(&mut stream);
    let counter = side.bytes(COUNTER, 8);
    println!("answered {rounds} rounds; the counter is {}", u64::from_ne_bytes(counter.try_into().unwrap()));
    if refused_here {
        side.expect_flushed(RECEIVES)
    } else {
        side.be_refused()
    }
    side.barrier(&mut stream);
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [peer, port, mtu, rounds, first_psn, refused, link_name, address, queue_pairs] = arguments.as_slice()
    else {
        panic!("verbs_peer PEER PORT MTU ROUNDS FIRST_PSN here|there udp|xdp ADDRESS QUEUE_PAIRS");
    };
    let link = link(link_name, address.parse().unwrap());
    let mtu = PathMtu::from_bytes(mtu.parse().unwrap()).unwrap();
    let (port, rounds) = (port.parse().unwrap(), rounds.parse().unwrap());
    let queue_pairs: usize = queue_pairs.parse().unwrap();
    let first_psn = Some(Psn::new(first_psn.parse().unwrap()));
    let config = RoceConfig { mtu_max: mtu, first_psn, ..RoceConfig::new("roce-udp") };
    let device = RoceDevice::new(link, config).unwrap();
    let shared = Shared { device, start: Instant::now(), completed: BTreeMap::new() };
    let shared = Arc::new(Mutex::new(shared));
    thread::scope(|scope| {
        for _ in 0..queue_pairs {
            scope.spawn(|| live((peer.as_str(), port), mtu, rounds, refused == "here", Arc::clone(&shared)));
        }
    });
    let counters = shared.lock().unwrap().device.counters();
    println!("{counters:?}");
    assert_eq!(counters.bad_icrc, 0);
}
