//! A device whose peer is a raw socket.
#![allow(dead_code, reason = "not every test needs all of it")]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_mem::Mapping;
use ringway_tcp::frame::{Frame, HEADER_LENGTH, Header, encode};
use ringway_tcp::{
    DATA_MAGIC, PREFACE_LENGTH, Preface, TcpAcceptor, TcpConfig, TcpDevice, TcpDriver, TcpFailure,
};
use ringway_verbs::{
    Access, Completion, Device, LocalSlice, MemoryKeys, QueuePairConfig, QueuePairNumber, QueuePairState,
    ReceiveRequest, RemoteSlice, Role, Status, Time,
};

/// A stuck test ends after this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A device under attack, its queue pair, a region open to peers and one that is not.
pub(crate) struct Victim {
    pub(crate) device: TcpDevice,
    pub(crate) acceptor: TcpAcceptor,
    pub(crate) queue_pair: QueuePairNumber,
    pub(crate) open: (Arc<Mapping>, MemoryKeys),
    pub(crate) closed: (Arc<Mapping>, MemoryKeys),
    pub(crate) seen: Vec<Completion>,
    pub(crate) start: Instant,
}

impl Victim {
    pub(crate) fn new(config: TcpConfig) -> Self {
        let (mut device, acceptor) = TcpDevice::new(config).unwrap();
        let config = QueuePairConfig { send_depth: 8, receive_depth: 8 };
        let queue_pair = device.create_queue_pair(config).unwrap();
        let mut memory = |access| {
            let mapping = Arc::new(Mapping::private(4096).unwrap());
            let keys = device.register(Arc::clone(&mapping), access).unwrap();
            (mapping, keys)
        };
        let (open, closed) = (memory(Access::ALL), memory(Access::LOCAL));
        Self { device, acceptor, queue_pair, open, closed, seen: Vec::new(), start: Instant::now() }
    }

    /// The preface of a connection, with the token, which only the intended peer would learn over the control channel.
    pub(crate) fn preface_of(&self, connection: u8, connections: u8) -> Preface {
        let endpoint = self.device.endpoint(self.queue_pair).unwrap();
        let mut preface = [0; PREFACE_LENGTH];
        preface[..8].copy_from_slice(&DATA_MAGIC);
        preface[8..11].copy_from_slice(&[3, connection, connections]);
        preface[16..48].copy_from_slice(&endpoint.as_bytes()[24..56]);
        Preface::parse(&preface).unwrap()
    }

    /// A victim with two posted receives and the attacker's end of its connection.
    pub(crate) fn attacked(driver: TcpDriver) -> (Self, TcpStream) {
        Self::attacked_with(config(driver))
    }

    pub(crate) fn attacked_with(config: TcpConfig) -> (Self, TcpStream) {
        let mut victim = Self::new(config);
        let stream = victim.offer(0, 1);
        victim.begin();
        (victim, stream)
    }

    /// The attacker's end of a connection that is offered as this one of so many.
    pub(crate) fn offer(&self, connection: u8, connections: u8) -> TcpStream {
        let (stream, other) = sockets();
        self.acceptor.offer(self.preface_of(connection, connections), OwnedFd::from(other)).unwrap();
        stream
    }

    /// Waits to be connected to.
    pub(crate) fn expect_peer(&mut self) {
        let own = self.device.endpoint(self.queue_pair).unwrap();
        self.device.connect(self.queue_pair, &own, Role::Passive).unwrap();
    }

    /// Posts two receives and becomes ready, as the connections are there.
    pub(crate) fn begin(&mut self) {
        for id in 0..2 {
            let local = LocalSlice { key: self.closed.1.local, offset: id * 64, length: 64 };
            self.device.post_receive(self.queue_pair, &ReceiveRequest { id, local }).unwrap();
        }
        self.expect_peer();
        self.until("ready", |victim| victim.state() == QueuePairState::Ready);
    }

    pub(crate) fn state(&self) -> QueuePairState {
        self.device.state(self.queue_pair).unwrap()
    }

    pub(crate) fn counter(&self, of: &str) -> u64 {
        let mut found = 0;
        self.device.for_each_counter(&mut |name, value| {
            if name == of {
                found = value
            }
        });
        found
    }

    pub(crate) fn turn(&mut self) {
        let mut batch = [Completion::EMPTY; 8];
        let now = Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap());
        let count = self.device.poll(now, &mut batch);
        self.device.flush();
        self.seen.extend_from_slice(&batch[..count]);
    }

    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.start.elapsed() < PATIENCE, "waited too long until {what}: {:?}", self.seen);
            self.turn();
            std::thread::yield_now();
        }
    }

    /// Waits until both receives came back flushed and the memory is free, and returns why.
    pub(crate) fn expect_failed(&mut self) -> TcpFailure {
        self.until("both receives are done", |victim| victim.seen.len() >= 2);
        assert_eq!(self.state(), QueuePairState::Error);
        assert!(self.seen.iter().all(|completion| completion.status == Status::Flushed), "{:?}", self.seen);
        self.device.deregister(self.open.1.local).unwrap();
        self.device.deregister(self.closed.1.local).unwrap();
        self.device.last_error(self.queue_pair).unwrap()
    }
}

/// Of a device that nobody can connect to.
pub(crate) fn config(driver: TcpDriver) -> TcpConfig {
    let mut config = TcpConfig::new("127.0.0.1:1".parse().unwrap());
    config.driver = driver;
    config
}

pub(crate) fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, listener.accept().unwrap().0)
}

pub(crate) fn header(frame: Frame) -> [u8; HEADER_LENGTH] {
    encode(&Header { frame, executed: 0, receives: 0 })
}

pub(crate) fn remote(keys: MemoryKeys, offset: u64) -> RemoteSlice {
    RemoteSlice { key: keys.remote, offset }
}
