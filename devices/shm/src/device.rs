//! The device: the table of queue pairs, and the loop body.

mod sockets;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use ringway_mem::{Mapping, NumberTable, RegionTable};
use ringway_verbs::{
    Access, Capabilities, Completion, Completions, ConnectError, Deadline, Device, Endpoint, LocalKey,
    MemoryKeys, PostError, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest,
    RegisterError, RemoteKey, Role, Status, Time, WorkRequest,
};
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;

use self::sockets::{ARRIVALS_MAX, BELL, LISTENER, watch};
use crate::channel::{Lane, Telling};
use crate::control;
use crate::counters::Counters;
use crate::endpoint::{Name, decode, encode, random};
use crate::entry::MAX_MESSAGE;
use crate::queue_pair::{Phase, QueuePair, SendEntry, Shared};
use crate::receive::{receive, take_responses};
use crate::regions::Exports;
use crate::transmit::{send_short, transmit};
use crate::{ShmError, ShmFailure};

/// The deepest queue.
const MAX_DEPTH: u32 = 1 << 16;
/// What a device needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmConfig {
    /// The most queue pairs, up to 65,535.
    pub max_queue_pairs: u32,
    /// The most registered regions, up to 65,535.
    pub max_regions: u32,
    /// How long connecting may take, in nanoseconds.
    pub connect_timeout_ns: u64,
}

impl Default for ShmConfig {
    /// 4096 queue pairs and regions, 5 s to connect.
    fn default() -> Self {
        Self { max_queue_pairs: 4096, max_regions: 4096, connect_timeout_ns: 5_000_000_000 }
    }
}

/// The verbs contract between processes of one host. See the crate's documentation.
#[derive(Debug)]
pub struct ShmDevice {
    shared: Shared,
    table: NumberTable<Box<QueuePair>>,
    /// Slots of queue pairs that are connected.
    ready: Vec<u16>,
    /// How many are connecting.
    connecting: usize,
    name: Name,
    listener: OwnedFd,
    /// Connections that have not said whose they are.
    arrivals: VecDeque<OwnedFd>,
    events: OwnedFd,
    bell: OwnedFd,
    next_look: Time,
    armed: bool,
}

fn system(what: &'static str) -> impl Fn(Errno) -> ShmError {
    move |errno| ShmError::System { what, errno: errno.raw_os_error() }
}

impl ShmDevice {
    /// Makes a device.
    ///
    /// # Errors
    /// When the limits are wrong or the system refuses a socket or a descriptor.
    pub fn new(config: ShmConfig) -> Result<Self, ShmError> {
        let most = u32::from(u16::MAX);
        for (limit, value) in
            [("max_queue_pairs", config.max_queue_pairs), ("max_regions", config.max_regions)]
        {
            if value == 0 || value > most {
                return Err(ShmError::Limit { limit, most });
            }
        }
        let name = random().map_err(system("random bytes"))?;
        let listener = control::listen(&name)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system("an eventfd"))?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("an epoll descriptor"))?;
        for (file, is) in [(&bell, BELL), (&listener, LISTENER)] {
            watch(&events, file, is).map_err(system("an epoll descriptor"))?;
        }
        let shared = Shared {
            config,
            memory: RegionTable::new(config.max_regions),
            exports: Exports::default(),
            completions: Completions::default(),
            counters: Counters::default(),
            changed: false,
            now: Time(0),
        };
        Ok(Self {
            shared,
            table: NumberTable::new(config.max_queue_pairs, QueuePairNumber::BITS),
            ready: Vec::new(),
            connecting: 0,
            name,
            listener,
            arrivals: VecDeque::with_capacity(ARRIVALS_MAX + 1),
            events,
            bell,
            next_look: Time(0),
            armed: false,
        })
    }

    /// Why a queue pair failed; `None` while it has not, or when there is none of this number.
    #[must_use]
    pub fn last_error(&self, queue_pair: QueuePairNumber) -> Option<ShmFailure> {
        self.table.get(queue_pair.0)?.failure
    }

    /// A queue pair together with what all share.
    fn split(&mut self, number: u32) -> Option<(&mut QueuePair, &mut Shared)> {
        Some((self.table.get_mut(number)?, &mut self.shared))
    }

    /// Does for every connected queue pair what can be done now; with `all` nothing that peers wait for is put off.
    #[inline]
    fn run(&mut self, all: bool) {
        let mut index = 0;
        while let Some(slot) = self.ready.get(index).copied() {
            match self.table.in_slot(slot) {
                Some(pair) if pair.phase == Phase::Ready => {
                    turn(pair, &mut self.shared, all);
                    index += 1;
                }
                _ => drop(self.ready.swap_remove(index)),
            }
        }
    }

    fn take_completions(&mut self, places: &mut [Completion]) -> usize {
        let Self { table, shared, .. } = self;
        shared.completions.take(places, |taken| {
            if let Some(pair) = table.get_mut(taken.queue_pair.0) {
                pair.untaken.take(taken.kind);
            }
        })
    }
}

/// How the oldest request ends: a queue pair that refuses, or is broken by this side, flushes; one that lost its peer says
/// so.
const fn status_of(failure: ShmFailure) -> Status {
    match failure {
        ShmFailure::RefusedPeer | ShmFailure::Local => Status::Flushed,
        _ => Status::TransportLost,
    }
}

/// Does for a connected queue pair what can be done now. What was executed is told the peer by the next entry, or when
/// nothing more comes; with `all` at once.
#[inline]
fn turn(pair: &mut QueuePair, shared: &mut Shared, all: bool) {
    if pair.phase != Phase::Ready {
        return;
    }
    let came = take_responses(pair, shared).and_then(|()| {
        // What the peer has fetched may be what a request waits for, and entries say what it has executed.
        let rest = pair.catch_up(shared).and_then(|()| receive(pair, shared)).and_then(|came| {
            pair.complete_done(shared);
            let telling = match (all, came) {
                (true, _) => Telling::Now,
                (false, true) => Telling::Later,
                (false, false) => Telling::Soon,
            };
            transmit(pair, shared, telling)
        });
        rest.map_err(|failure| (failure, status_of(failure)))
    });
    if let Err((failure, status)) = came {
        pair.fail(shared, failure, status);
    }
}

impl Device for ShmDevice {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("shm");
        capabilities.atomics = true;
        capabilities.max_message = MAX_MESSAGE;
        capabilities.max_queue_pairs = self.shared.config.max_queue_pairs;
        capabilities
    }

    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.shared.counters.for_each(each);
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        let keys = self.shared.memory.register(Arc::clone(&region), access)?;
        self.shared.exports.add(keys.local.0, &region);
        Ok(keys)
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        self.shared.memory.deregister(key)?;
        self.shared.exports.remove(key.0);
        for pair in self.table.iter_mut() {
            if pair.announced.has(key.0)
                && let Some(socket) = &pair.socket
                && control::forget(socket.as_fd(), key.0).is_ok()
            {
                // A peer that cannot be told keeps the region mapped until another takes its place.
                pair.announced.remove(key.0);
            }
        }
        Ok(())
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        self.shared.memory.is_busy(key)
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        self.table.get(queue_pair.0)?;
        self.shared.memory.remote_key(key)
    }

    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        if config.send_depth > MAX_DEPTH || config.receive_depth > MAX_DEPTH {
            return Err(QueuePairError::System(Errno::INVAL.raw_os_error()));
        }
        let token = random().map_err(|errno| QueuePairError::System(errno.raw_os_error()))?;
        let full = QueuePairError::TableFull { limit: self.table.limit() };
        let number = QueuePairNumber(self.table.allot().ok_or(full)?);
        self.table.insert(number.0, QueuePair::new(number, config, token));
        // Room for everything is made here, so that the data path never allocates.
        self.shared.completions.make_room(config);
        self.ready.reserve(self.table.slots());
        Ok(number)
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        let pair = self.table.get(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        encode(&self.name, &pair.token).ok_or(QueuePairError::System(Errno::INVAL.raw_os_error()))
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        role: Role,
    ) -> Result<(), ConnectError> {
        let (name, token) = decode(peer).ok_or(ConnectError::ForeignEndpoint)?;
        let Self { table, shared, bell, events, .. } = self;
        let pair = table.get_mut(queue_pair.0).ok_or(ConnectError::Unknown)?;
        if pair.phase != Phase::Init {
            return Err(ConnectError::WrongState);
        }
        (pair.phase, pair.peer) = (Phase::Connecting, token);
        pair.deadline = Some(Deadline::After(shared.config.connect_timeout_ns));
        shared.changed = true;
        if role == Role::Active {
            (pair.offered, pair.offer) = (true, None);
            let opened = control::connect(&name).and_then(|socket| pair.open(socket, bell.as_fd()));
            if let Err(failure) = opened {
                // The next poll says so: what is posted until then fails with it.
                (pair.failure, pair.deadline) = (Some(failure), Some(Deadline::At(Time(0))));
            } else if let Some(socket) = &pair.socket {
                let _ = watch(events, socket, queue_pair.0.into());
            }
        } else {
            self.take_offer(queue_pair.0);
        }
        self.count_connecting();
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        Some(self.table.get(queue_pair.0)?.state())
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        if let Some((pair, shared)) = self.split(queue_pair.0) {
            pair.fail(shared, ShmFailure::Local, Status::Flushed);
        }
        self.count_connecting();
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        let (pair, shared) = self.split(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        pair.fail(shared, ShmFailure::Local, Status::Flushed);
        shared.completions.forget(queue_pair, pair.config);
        let slot = self.table.slot(queue_pair.0);
        self.ready.retain(|ready| *ready != slot);
        self.table.remove(queue_pair.0);
        self.count_connecting();
        Ok(())
    }

    #[inline]
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
        if pair.phase == Phase::Failed {
            pair.complete_send(shared, request, Status::Flushed);
        } else {
            if pair.phase == Phase::Ready {
                send_short(pair, shared, request);
            }
            pair.sends.push_back(SendEntry { request: *request, answered: false });
        }
        Ok(())
    }

    #[inline]
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
        if pair.phase == Phase::Failed {
            pair.flush_receive(shared, request);
        } else {
            pair.receives.push_back(*request);
        }
        Ok(())
    }

    #[inline]
    fn flush(&mut self) {
        for slot in &self.ready {
            if let Some(pair) = self.table.in_slot(*slot)
                && pair.phase == Phase::Ready
                && pair.has_more()
                && let Err(failure) = transmit(pair, &mut self.shared, Telling::Later)
            {
                pair.fail(&mut self.shared, failure, status_of(failure));
            }
        }
    }

    #[inline]
    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        self.shared.now = self.shared.now.max(now);
        if std::mem::take(&mut self.armed) {
            self.set_armed(false);
            self.look_at_sockets();
        } else if self.connecting > 0 || self.shared.now >= self.next_look {
            self.look_at_sockets();
        }
        self.run(false);
        self.take_completions(completions)
    }

    fn deadline(&self) -> Option<Time> {
        if self.connecting == 0 {
            return None;
        }
        self.table.iter().filter_map(|pair| pair.deadline).map(Deadline::look_at).min()
    }

    fn event_descriptor(&self) -> Option<i32> {
        Some(self.events.as_raw_fd())
    }

    fn arm(&mut self) -> bool {
        self.quiet_bell();
        if !std::mem::replace(&mut self.armed, true) {
            self.set_armed(true);
        }
        // Once more after that: what came before is seen here, what comes later rings.
        self.run(true);
        let waits = |pair: &QueuePair| {
            pair.channel.as_ref().is_some_and(|channel| {
                pair.piece.is_some()
                    || pair.answer.is_some()
                    || channel.is_ready(Lane::Responses)
                    || pair.held.is_none() && channel.is_ready(Lane::Requests)
            })
        };
        !std::mem::take(&mut self.shared.changed)
            && self.shared.completions.is_empty()
            && !self.table.iter().any(|pair| waits(pair))
    }
}

impl ShmDevice {
    fn set_armed(&mut self, on: bool) {
        for pair in self.table.iter_mut() {
            if let Some(channel) = &mut pair.channel {
                // Nothing that the peer waits for is kept back while this side sleeps.
                channel.release_all();
                channel.arm(on);
            }
        }
    }
}
