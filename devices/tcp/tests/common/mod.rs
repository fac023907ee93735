//! Two devices on loopback, each with a listener as the daemon's control thread would have one.
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ringway_sim::conformance::{Fixture, Harness, Memory, Side, pattern, request};
use ringway_tcp::{
    PREFACE_LENGTH, Preface, TcpAcceptor, TcpConfig, TcpDevice, TcpDriver, TcpError, ZeroCopy,
};
use ringway_verbs::{Device, Endpoint, Operation, QueuePairConfig, QueuePairNumber, Status, Time};

/// A stuck test ends after this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Devices that are tested: with either driver,
pub(crate) const IO_URING: usize = 0;
pub(crate) const EPOLL: usize = 1;
/// with the first, and sockets that poll the network card where the system allows it.
pub(crate) const BUSY_POLLING: usize = 2;
/// with the first, and without a copy of anything that it sends.
pub(crate) const ZERO_COPY: usize = 3;
/// with either, and three connections for each queue pair that it connects,
pub(crate) const STRIPED: usize = 4;
pub(crate) const STRIPED_EPOLL: usize = 5;
/// with the first, three of these, and without a copy of anything that it sends.
pub(crate) const STRIPED_ZERO_COPY: usize = 6;

/// A listener and the connections whose preface is not complete yet.
pub(crate) struct Listener {
    listener: TcpListener,
    acceptor: Option<TcpAcceptor>,
    arriving: Vec<(TcpStream, Vec<u8>)>,
}

impl Listener {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, acceptor: None, arriving: Vec::new() }
    }

    pub(crate) fn device(&mut self, driver: usize) -> TcpDevice {
        let mut config = TcpConfig::new(self.listener.local_addr().unwrap());
        config.source = Some("127.0.0.1".parse().unwrap());
        config.driver =
            if [EPOLL, STRIPED_EPOLL].contains(&driver) { TcpDriver::Epoll } else { TcpDriver::IoUring };
        let is_lent = [ZERO_COPY, STRIPED_ZERO_COPY].contains(&driver);
        config.zero_copy = if is_lent { ZeroCopy::Always } else { ZeroCopy::WherePays };
        config.connections = if driver >= STRIPED { 3 } else { 1 };
        config.busy_poll_us = if driver == BUSY_POLLING { 50 } else { 0 };
        let made = TcpDevice::new(config);
        let (device, acceptor) = match made {
            Err(TcpError::BusyPolling(libc::EPERM)) => {
                config.busy_poll_us = 0;
                TcpDevice::new(config).unwrap()
            }
            made => made.unwrap(),
        };
        acceptor.prepare(&self.listener).unwrap();
        self.acceptor = Some(acceptor);
        device
    }

    pub(crate) fn turn(&mut self) {
        let Some(acceptor) = &self.acceptor else { return };
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            self.arriving.push((stream, Vec::new()));
        }
        self.arriving.retain_mut(|(stream, bytes)| {
            let mut rest = [0; PREFACE_LENGTH];
            match stream.read(&mut rest[bytes.len()..]) {
                Ok(0) => return false,
                Ok(count) => bytes.extend_from_slice(&rest[bytes.len()..bytes.len() + count]),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            let Some(bytes) = bytes.first_chunk::<PREFACE_LENGTH>() else { return true };
            if let Some(preface) = Preface::parse(bytes) {
                acceptor.offer(preface, OwnedFd::from(stream.try_clone().unwrap())).unwrap();
            }
            false
        });
    }
}

/// Two devices: the one that connects has the first driver, the one that waits the second.
pub(crate) struct Loopback<const LEFT: usize, const RIGHT: usize> {
    devices: [Option<TcpDevice>; 2],
    pub(crate) listeners: [Listener; 2],
    start: Instant,
}

impl<const LEFT: usize, const RIGHT: usize> Harness for Loopback<LEFT, RIGHT> {
    type Device = TcpDevice;

    fn new() -> Self {
        let mut listeners = [Listener::new(), Listener::new()];
        let devices = [Some(listeners[0].device(LEFT)), Some(listeners[1].device(RIGHT))];
        Self { devices, listeners, start: Instant::now() }
    }

    fn device(&mut self, side: Side) -> &mut TcpDevice {
        self.devices[side as usize].as_mut().unwrap()
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap())
    }

    fn pause(&mut self, idle: bool) -> bool {
        for listener in &mut self.listeners {
            listener.turn();
        }
        if idle {
            std::thread::yield_now();
        }
        self.start.elapsed() < PATIENCE
    }

    fn skip(&mut self, time: Duration) {
        self.start -= time;
    }

    fn kill(&mut self, side: Side) {
        self.devices[side as usize] = None;
    }

    fn unreachable_endpoint(&mut self) -> Endpoint {
        // A port that was just free: nobody listens there.
        let mut listener = Listener::new();
        let mut device = listener.device(LEFT);
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        let queue_pair = device.create_queue_pair(config).unwrap();
        device.endpoint(queue_pair).unwrap()
    }
}

/// What the device that connects has counted under this name.
#[allow(dead_code, reason = "not every test asks")]
pub(crate) fn counter<H: Harness<Device = TcpDevice>>(fixture: &mut Fixture<H>, of: &str) -> u64 {
    let mut found = 0;
    fixture.device(Side::Left).for_each_counter(&mut |name, value| {
        if name == of {
            found = value;
        }
    });
    found
}

/// Writes other bytes in every round, and checks that they arrive.
#[allow(dead_code, reason = "not every test writes")]
pub(crate) fn write_and_check<H: Harness<Device = TcpDevice>>(
    fixture: &mut Fixture<H>,
    left: QueuePairNumber,
    [from, to]: &[Memory; 2],
    (round, length): (u64, u64),
) {
    let bytes = pattern(round, length);
    from.put(0, &bytes);
    let write = Operation::Write { remote: to.remote(0) };
    fixture.send(Side::Left, left, &request(round, write, &[from.slice(0, length)]));
    fixture.expect(Side::Left, round, Status::Success);
    assert!(to.get(0, length) == bytes, "other bytes in round {round}");
}
