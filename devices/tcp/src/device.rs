//! The device: the table of queue pairs and the loop body around the driver.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ringway_mem::{Mapping, RegionTable};
use ringway_verbs::{
    Access, Capabilities, Completion, Completions, ConnectError, Deadline, Device, Endpoint, LocalKey,
    MemoryKeys, PostError, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest,
    RegisterError, RemoteKey, Role, Status, Time, WorkRequest,
};
use rustix::event::EventfdFlags;
use rustix::net::Shutdown;

use crate::MAX_CONNECTIONS;
use crate::acceptor::TcpAcceptor;
use crate::congestion::Congestion;
use crate::connection::{connected, expire, fail, start_active, start_passive, take_offer, waits_for};
use crate::driver::{Event, TcpDriver};
use crate::endpoint::{Preface, Token, decode, encode};
use crate::error::{TcpError, TcpFailure};
use crate::frame::MAX_MESSAGE;
use crate::loans::ZeroCopy;
use crate::options;
use crate::queue_pair::{Counters, Phase, QueuePair, SendEntry, Shared};
use crate::receive::{arm, received};
use crate::slots::Slots;
use crate::transmit::{returned, sent, transmit};

/// Events and offers handled by one poll at most.
const EVENTS_PER_POLL: usize = 256;
const OFFERS_PER_POLL: usize = 64;
/// The deepest queue.
const MAX_DEPTH: u32 = 1 << 16;

/// What a device needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Where peers reach this node: the listener that feeds the [`TcpAcceptor`].
    pub advertised: SocketAddr,
    /// The address outgoing connections come from; the system chooses when there is none.
    pub source: Option<IpAddr>,
    /// How the kernel is used.
    pub driver: TcpDriver,
    /// The most queue pairs, up to 65,535; of their connections there can be as many.
    pub max_queue_pairs: u32,
    /// The most registered regions, up to 65,535.
    pub max_regions: u32,
    /// How long connecting may take, in nanoseconds.
    pub connect_timeout_ns: u64,
    /// Connections of each queue pair that this end connects, 1 to [`MAX_CONNECTIONS`]: long payloads are divided among them. An
    /// end that is connected to takes as many as the other has.
    pub connections: u32,
    /// For how many microseconds reading a socket on which nothing is may poll the network card's queue itself
    /// (`SO_BUSY_POLL`); 0 to leave that to interrupts. A spinning caller polls it once in each try. Needs a card whose
    /// driver can be polled, which virtual ones and loopback cannot, and CAP_NET_ADMIN.
    pub busy_poll_us: u32,
    /// Whether io_uring sends payload from where it lies. Of no account to epoll, which always has it copied.
    pub zero_copy: ZeroCopy,
    /// The congestion control of connections that this end opens, and accepts from a listener that the [`TcpAcceptor`] has
    /// prepared.
    pub congestion: Congestion,
    /// How long a refusal may take to reach the peer before the connection is cut, in nanoseconds.
    pub linger_ns: u64,
}

impl TcpConfig {
    /// The defaults: io_uring, 4096 queue pairs and regions, 5 s to connect, one connection for each queue pair, no busy
    /// polling, no copy of what is sent where that pays, the system's congestion control unless it paces, 1 s to linger.
    #[must_use]
    pub const fn new(advertised: SocketAddr) -> Self {
        Self {
            advertised,
            source: None,
            driver: TcpDriver::IoUring,
            max_queue_pairs: 4096,
            max_regions: 4096,
            connect_timeout_ns: 5_000_000_000,
            connections: 1,
            busy_poll_us: 0,
            zero_copy: ZeroCopy::WherePays,
            congestion: Congestion::Unpaced,
            linger_ns: 1_000_000_000,
        }
    }
}

/// The verbs contract over kernel TCP. See the crate's documentation.
#[derive(Debug)]
pub struct TcpDevice {
    // Dropped first: an io_uring waits for the kernel to let go before sockets are closed and memory goes.
    shared: Shared,
    slots: Slots,
    acceptor: TcpAcceptor,
}

impl TcpDevice {
    /// Makes a device, and the handle by which connections get to it.
    ///
    /// # Errors
    /// When the limits are wrong or the system has not for us what the driver needs.
    pub fn new(config: TcpConfig) -> Result<(Self, TcpAcceptor), TcpError> {
        let most = u32::from(u16::MAX);
        for (limit, value, most) in [
            ("max_queue_pairs", config.max_queue_pairs, most),
            ("max_regions", config.max_regions, most),
            ("connections", config.connections, MAX_CONNECTIONS as u32),
        ] {
            if value == 0 || value > most {
                return Err(TcpError::Limit { limit, most });
            }
        }
        options::check_busy_polling(config.busy_poll_us)?;
        config.congestion.check()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)
            .map_err(|errno| TcpError::System { what: "an eventfd", errno: errno.raw_os_error() })?;
        let acceptor = TcpAcceptor::new(wake, config.congestion);
        let shared = Shared {
            config,
            memory: RegionTable::new(config.max_regions),
            driver: config.driver.make(acceptor.clone(), config.zero_copy)?,
            counters: Counters::default(),
            completions: Completions::default(),
            dirty: VecDeque::new(),
            patient: false,
            changed: false,
            now: Time(0),
            next_deadline: None,
        };
        let device = Self { shared, slots: Slots::new(), acceptor: acceptor.clone() };
        Ok((device, acceptor))
    }

    /// Why a queue pair failed; `None` while it has not, or when there is none of this number.
    #[must_use]
    pub fn last_error(&self, queue_pair: QueuePairNumber) -> Option<TcpFailure> {
        self.slots.pair(queue_pair.0)?.failure
    }

    /// A queue pair together with what all share.
    fn split(&mut self, number: u32) -> Option<(&mut QueuePair, &mut Shared)> {
        Some((self.slots.pair_mut(number)?, &mut self.shared))
    }

    /// Has a queue pair have so many connections; whether there is room for them.
    fn agree(&mut self, number: u32, connections: usize) -> bool {
        let is_agreed = self.slots.agree(number, connections);
        for connection in self.slots.pair(number).into_iter().flat_map(QueuePair::connections) {
            self.shared.driver.reserve(connection.number as u16);
        }
        is_agreed
    }

    /// Sends and receives for every queue pair that has something to do.
    fn run_dirty(&mut self) {
        for _ in 0..self.shared.dirty.len() {
            let Some(index) = self.shared.dirty.pop_front() else { return };
            let Some(pair) = self.slots.in_slot(index) else { continue };
            pair.dirty = false;
            // What is to be sent goes first: the peer waits for it, while nothing may have arrived yet.
            transmit(pair, &mut self.shared);
            arm(pair, &mut self.shared);
        }
    }

    /// Has the kernel do what is to be done; `patient`: but for what can wait.
    fn drive(&mut self, patient: bool) {
        self.shared.patient = patient;
        self.run_dirty();
        let submitted = self.shared.driver.submit();
        self.check(submitted);
    }

    /// Fails every queue pair when the driver does not work.
    fn check(&mut self, driven: io::Result<()>) {
        if let Err(error) = driven {
            let failure = TcpFailure::System(error.raw_os_error().unwrap_or(0));
            for pair in self.slots.iter_mut() {
                fail(pair, &mut self.shared, failure, Status::TransportLost);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let Some((pair, at)) = event.number().and_then(|number| self.slots.connection(number)) else {
            return;
        };
        let shared = &mut self.shared;
        match event {
            Event::Sent { batch, result, lent, .. } => sent(pair, shared, at, batch, result, lent),
            Event::Returned { first_request, .. } => returned(pair, shared, at, first_request),
            Event::Received { plan, result, more, .. } => received(pair, shared, at, plan, (result, more)),
            Event::Connected { result, .. } => connected(pair, shared, at, result),
            Event::Other => {}
        }
    }

    fn take_offers(&mut self) {
        for _ in 0..OFFERS_PER_POLL {
            let Some((preface, socket)) = self.acceptor.take() else { return };
            self.take_one(&preface, socket);
        }
    }

    /// Takes an accepted connection; without a queue pair that waits for it, it is closed here.
    fn take_one(&mut self, preface: &Preface, socket: OwnedFd) {
        let Some(pair) = self.slots.with_token(&preface.token) else { return };
        if !waits_for(pair, preface) {
            return;
        }
        let (number, is_new) = (pair.number.0, !pair.agreed);
        let has_room = !is_new || self.agree(number, preface.connections.into());
        let Some((pair, shared)) = self.split(number) else { return };
        if has_room {
            take_offer(pair, shared, preface.connection.into(), socket);
        } else {
            fail(pair, shared, TcpFailure::NoRoom, Status::TransportLost);
        }
    }

    fn expire_deadlines(&mut self) {
        let now = self.shared.now;
        if self.shared.next_deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        for pair in self.slots.iter_mut() {
            if pair.deadline.as_mut().is_some_and(|deadline| deadline.is_over(now)) {
                expire(pair, &mut self.shared);
            }
        }
        self.shared.next_deadline =
            self.slots.iter().filter_map(|pair| pair.deadline).map(Deadline::look_at).min();
    }

    fn take_completions(&mut self, places: &mut [Completion]) -> usize {
        let Self { slots, shared, .. } = self;
        shared.completions.take(places, |taken| {
            if let Some(pair) = slots.pair_mut(taken.queue_pair.0) {
                pair.untaken.take(taken.kind);
            }
        })
    }
}

impl Device for TcpDevice {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(self.shared.config.driver.name());
        capabilities.atomics = true;
        capabilities.max_message = MAX_MESSAGE;
        capabilities.max_queue_pairs = self.shared.config.max_queue_pairs;
        capabilities
    }

    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let Counters { bytes_sent, bytes_received, bytes_copied } = self.shared.counters;
        self.shared.driver.for_each_counter(each);
        each("bytes_sent", bytes_sent);
        each("bytes_received", bytes_received);
        each("bytes_copied", bytes_copied);
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.shared.memory.register(region, access)
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        self.shared.memory.deregister(key)?;
        self.shared.driver.deregister(key);
        Ok(())
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        self.shared.memory.is_busy(key)
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        self.slots.pair(queue_pair.0)?;
        self.shared.memory.remote_key(key)
    }

    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        let limit = self.shared.config.max_queue_pairs;
        if config.send_depth > MAX_DEPTH || config.receive_depth > MAX_DEPTH {
            return Err(QueuePairError::System(libc::EINVAL));
        }
        let token = Token::random().map_err(|errno| QueuePairError::System(errno.raw_os_error()))?;
        let full = QueuePairError::TableFull { limit };
        if self.slots.pairs() >= limit as usize {
            return Err(full);
        }
        let number = self.slots.add(config, token).ok_or(full)?;
        // Room for everything is made here, so that the data path never allocates.
        self.shared.completions.make_room(config);
        self.shared.dirty.reserve(self.slots.pairs() * 2);
        self.shared.driver.reserve(number.0 as u16);
        Ok(number)
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        let pair = self.slots.pair(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        encode(self.shared.config.advertised, &pair.token).ok_or(QueuePairError::System(libc::EINVAL))
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        role: Role,
    ) -> Result<(), ConnectError> {
        let pair = self.slots.pair(queue_pair.0).ok_or(ConnectError::Unknown)?;
        let (address, token) = decode(peer)?;
        if pair.phase != Phase::Init {
            return Err(ConnectError::WrongState);
        }
        let connections = self.shared.config.connections as usize;
        // Connections that were accepted before, which nobody should have made, are replaced.
        let has_room = role == Role::Passive || pair.agreed || self.agree(queue_pair.0, connections);
        let (pair, shared) = self.split(queue_pair.0).ok_or(ConnectError::Unknown)?;
        pair.phase = Phase::Connecting;
        match role {
            _ if !has_room => fail(pair, shared, TcpFailure::NoRoom, Status::TransportLost),
            Role::Active => {
                pair.active = true;
                pair.peer_token = Some(token);
                start_active(pair, shared, address);
            }
            Role::Passive => start_passive(pair, shared),
        }
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        Some(self.slots.pair(queue_pair.0)?.state())
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        if let Some((pair, shared)) = self.split(queue_pair.0) {
            fail(pair, shared, TcpFailure::Local, Status::Flushed);
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        let (pair, shared) = self.split(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        fail(pair, shared, TcpFailure::Local, Status::Flushed);
        if pair.in_flight() {
            return Err(QueuePairError::Busy);
        }
        shared.completions.forget(queue_pair, pair.config);
        self.slots.remove(queue_pair);
        Ok(())
    }

    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
        let (pair, shared) = self.split(queue_pair.0).ok_or(PostError::Unknown)?;
        request.check_lengths(MAX_MESSAGE)?;
        shared.memory.check_request(request)?;
        if pair.phase == Phase::Init {
            return Err(PostError::WrongState);
        }
        if pair.sends.len() + pair.untaken.sends >= pair.config.send_depth as usize {
            return Err(PostError::Full);
        }
        for slice in &request.local {
            shared.memory.hold(slice);
        }
        if pair.sends_flushed {
            pair.complete_send(shared, request, Status::Flushed);
        } else {
            pair.sends.push_back(SendEntry { request: *request, answered: false });
            pair.mark(shared);
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError> {
        let (pair, shared) = self.split(queue_pair.0).ok_or(PostError::Unknown)?;
        shared.memory.check_local(&request.local, true)?;
        if pair.receives.len() + pair.untaken.receives >= pair.config.receive_depth as usize {
            return Err(PostError::Full);
        }
        shared.memory.hold(&request.local);
        if pair.receives_flushed {
            pair.flush_receive(shared, request);
        } else {
            pair.receives.push_back(*request);
            pair.receives_posted += 1;
            pair.mark(shared);
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.drive(false);
    }

    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        self.shared.now = self.shared.now.max(now);
        self.shared.driver.disarm();
        if !self.acceptor.is_empty() {
            self.take_offers();
        }
        self.drive(true);
        let looked = self.shared.driver.look();
        self.check(looked);
        for _ in 0..EVENTS_PER_POLL {
            let Some(event) = self.shared.driver.next() else { break };
            self.handle(event);
        }
        self.expire_deadlines();
        self.take_completions(completions)
    }

    fn deadline(&self) -> Option<Time> {
        self.shared.next_deadline
    }

    fn event_descriptor(&self) -> Option<i32> {
        Some(self.shared.driver.event_descriptor().as_raw_fd())
    }

    fn arm(&mut self) -> bool {
        // What happened before is looked for below.
        self.shared.driver.arm();
        self.flush();
        !core::mem::take(&mut self.shared.changed)
            && self.shared.completions.is_empty()
            && self.shared.dirty.is_empty()
            && self.shared.driver.is_idle()
            && self.acceptor.is_empty()
    }

    fn block(&mut self, timeout: Option<Duration>) -> bool {
        if !self.shared.driver.prepare_to_block() {
            return false;
        }
        self.shared.patient = false;
        self.run_dirty();
        let changed = core::mem::take(&mut self.shared.changed);
        if !changed && self.shared.completions.is_empty() && self.shared.dirty.is_empty() {
            let waited = self.shared.driver.block(timeout);
            self.check(waited);
        }
        true
    }
}

impl Drop for TcpDevice {
    /// Ends every connection, so that an io_uring does not have to wait for the kernel.
    fn drop(&mut self) {
        for connection in self.slots.iter().flat_map(QueuePair::connections) {
            if let Some(socket) = &connection.socket {
                let _ = rustix::net::shutdown(socket, Shutdown::Both);
                self.shared.driver.disconnect(socket, connection.number);
            }
        }
    }
}
