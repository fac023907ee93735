//! The device: the table of queue pairs, and the loop body.

use std::{
    cell::Cell,
    collections::VecDeque,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use ringway_mem::{Mapping, NumberTable};
use ringway_verbs::{
    Access, Capabilities, Cause, Completion, Completions, ConnectError, Device, DmaBuf, Endpoint, LocalKey,
    MemoryKeys, PacketBytes, PostError, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState,
    ReceiveRequest, RegisterError, RemoteKey, Role, Time, WorkRequest,
};
use ringway_wire::{Psn, QueuePair as WireNumber};
use rustix::{
    event::epoll,
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

use crate::{
    Choice, DeviceEvent, IbverbsConfig, IbverbsError, IbverbsFailure, LinkLayer, Port,
    connector::Connector,
    counters::Counters,
    endpoint::{End, place},
    hardware::{BATCH, CompletionQueue, Context, Depths, Domain, MemoryRegion, QueuePair},
    pair::{Pair, Phase, split},
    ports,
    regions::Regions,
    shared::Shared,
};

/// Completions that there is room for from the start.
const COMPLETIONS: u32 = 16_384;
/// Bytes that requests carry in themselves: the most that is tried first. As much as other programs ask for (UCX, NCCL).
const INLINE: [u32; 4] = [220, 128, 64, 0];
/// How often is looked at what happens of its own accord, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;

/// The verbs contract over a port of an RDMA device. See the crate's documentation.
#[derive(Debug)]
pub struct IbverbsDevice {
    // These end in this order: queue pairs before the completion queue and the memory that they use.
    table: NumberTable<Box<Pair>>,
    queue: CompletionQueue,
    shared: Shared,
    domain: Arc<Domain>,
    context: Arc<Context>,
    events: OwnedFd,
    /// Queue pairs with something to hand over.
    active: VecDeque<QueuePairNumber>,
    /// Places in the completion queue that all queue pairs together can need.
    depth: u32,
    /// Bytes that requests carry in themselves.
    inline: u32,
    next_look: Time,
    armed: bool,
    /// The device said that it is broken.
    lost: bool,
    /// What it said by [`IbverbsDevice::report`].
    reported: VecDeque<DeviceEvent>,
    /// The port has lost the address that it is used by.
    addressless: bool,
}

impl IbverbsDevice {
    /// Opens the device that the configuration names, or the best one.
    ///
    /// # Errors
    /// Where there is none, or the library or the system refuses it: what is wrong, and what to do.
    pub fn open(config: IbverbsConfig) -> Result<Self, IbverbsError> {
        let all = ports().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            IbverbsError::System { what: "the list of RDMA ports", errno }
        })?;
        let choice = Choice::best(&all, &config.selector, config.own.as_ref())?;
        Self::open_at(config, choice)
    }

    /// Opens the device at a port that was chosen, whatever the configuration says of it.
    ///
    /// # Errors
    /// As [`IbverbsDevice::open`].
    pub fn open_at(config: IbverbsConfig, choice: Choice) -> Result<Self, IbverbsError> {
        config.check()?;
        let context = Context::open(&choice.port.device)?;
        let refused = |what| move |errno| IbverbsError::system(what, errno);
        let limits = context.limits().map_err(refused("the device's limits"))?;
        let port = context.port(choice.port.number).map_err(refused("the port's attributes"))?;
        let domain = Domain::new(&context).map_err(refused("a protection domain"))?;
        let entries = COMPLETIONS.min(limits.completions);
        let queue = CompletionQueue::new(&context, entries).map_err(refused("a completion queue"))?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused("an epoll descriptor"))?;
        let connector = Connector::new().map_err(refused("a thread that connects"))?;
        for file in [queue.events(), context.events(), connector.bell()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&events, file, data, epoll::EventFlags::IN).map_err(refused("an epoll descriptor"))?;
        }
        let max_regions = config.max_regions.min(limits.regions);
        let max_queue_pairs = config.max_queue_pairs.min(limits.queue_pairs);
        let shared = Shared {
            max_message: u64::from(port.max_message),
            connector,
            regions: Regions::new(max_regions, Arc::clone(&domain), config.relaxed_ordering, limits.atomics),
            completions: Completions::default(),
            counters: Counters::default(),
            memory_wanted: Cell::new(false),
            changed: false,
            now: Time(0),
            config,
            choice,
            limits,
            port,
        };
        Ok(Self {
            table: NumberTable::new(max_queue_pairs, QueuePairNumber::BITS),
            queue,
            shared,
            domain,
            context,
            events,
            active: VecDeque::new(),
            depth: 0,
            inline: INLINE[0],
            next_look: Time(0),
            armed: false,
            lost: false,
            reported: VecDeque::new(),
            addressless: false,
        })
    }

    /// How many bytes of messages packets of a port carry at the moment (its active MTU), which no file tells.
    ///
    /// # Errors
    /// Where the library or the system refuses it: what is wrong, and what to do.
    pub fn packet_bytes_at(device: &str, port: u8) -> Result<usize, IbverbsError> {
        let attributes = Context::open(device)?.port(port);
        let attributes = attributes.map_err(|errno| IbverbsError::system("the port's attributes", errno))?;
        Ok(attributes.mtu.bytes())
    }

    /// The port and the address that are used.
    #[must_use]
    pub const fn choice(&self) -> &Choice {
        &self.shared.choice
    }

    /// What is used, for people: `rxe0 port 1 (RoCE v2, 10.0.0.1, GID 1, MTU 1024)`.
    #[must_use]
    pub fn describe(&self) -> String {
        let Choice { port, gid } = self.choice();
        let mtu = self.shared.port.mtu.bytes();
        match port.link_layer {
            LinkLayer::Ethernet => format!(
                "{} port {} (RoCE v2, {}, GID {}, path MTU {mtu}, {})",
                port.device,
                port.number,
                gid.address(),
                gid.index,
                port.rate
            ),
            LinkLayer::InfiniBand => format!(
                "{} port {} (InfiniBand, LID {}, path MTU {mtu}, {})",
                port.device, port.number, port.lid, port.rate
            ),
        }
    }

    /// Whether so many bytes of memory can be registered.
    ///
    /// # Errors
    /// As [`Device::register`], of which this is the part that the system may refuse.
    pub fn try_memory(&self, bytes: usize) -> Result<(), RegisterError> {
        let refused = |errno: Errno| RegisterError::System(errno.raw_os_error());
        let memory = Mapping::private(bytes).map_err(|_| refused(Errno::NOMEM))?;
        MemoryRegion::new(&self.domain, Arc::new(memory), Access::LOCAL, false).map(|_| ()).map_err(refused)
    }

    /// Why a queue pair failed; `None` while it has not, or when there is none of this number.
    #[must_use]
    pub fn last_error(&self, queue_pair: QueuePairNumber) -> Option<IbverbsFailure> {
        self.table.get(queue_pair.0)?.failure
    }

    /// The device's own number of a queue pair, by which its events name it; `None` when there is none of this number.
    #[must_use]
    pub fn device_number(&self, queue_pair: QueuePairNumber) -> Option<u32> {
        Some(self.table.get(queue_pair.0)?.hardware_number())
    }

    /// Has an event taken as if the device had said it: at the next look, within milliseconds. For tests, as devices seldom
    /// say these things.
    pub fn report(&mut self, event: DeviceEvent) {
        self.reported.push_back(event);
    }

    /// Room in the completion queue for queue pairs with so many requests more.
    fn reserve(&mut self, more: u32) -> Result<(), QueuePairError> {
        let needed = self.depth.saturating_add(more);
        if needed > self.queue.entries() {
            let wanted =
                needed.checked_next_power_of_two().unwrap_or(needed).min(self.shared.limits.completions);
            if wanted < needed {
                return Err(QueuePairError::System(Errno::NOSPC.raw_os_error()));
            }
            self.queue.resize(wanted).map_err(|errno| QueuePairError::System(errno.raw_os_error()))?;
            // Some drivers say that they have done it and have not.
            if self.queue.entries() < needed {
                return Err(QueuePairError::System(Errno::NOSPC.raw_os_error()));
            }
        }
        Ok(())
    }

    /// A queue pair in INIT. Devices differ in how many bytes requests can carry: what is refused once is not tried again.
    fn make(&mut self, config: QueuePairConfig) -> Result<QueuePair, Errno> {
        let mut refused = Errno::INVAL;
        for inline in INLINE.into_iter().filter(|inline| *inline <= self.inline) {
            // A sign of life has a place of its own.
            let depths = Depths { send: config.send_depth + 1, receive: config.receive_depth.max(1), inline };
            match QueuePair::new(&self.domain, &self.queue, depths) {
                Ok(hardware) => {
                    self.inline = inline;
                    hardware.initialize(self.shared.choice.port.number, self.shared.limits.atomics)?;
                    return Ok(hardware);
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Remembers to hand over what a queue pair has.
    #[inline]
    fn activate(active: &mut VecDeque<QueuePairNumber>, pair: &mut Pair) {
        if !pair.active {
            pair.active = true;
            active.push_back(pair.number);
        }
    }

    /// Hands over what waits; requests as well with `sends`.
    #[inline]
    fn hand_over(&mut self, sends: bool) {
        for _ in 0..self.active.len() {
            let Some(number) = self.active.pop_front() else { break };
            let Some(pair) = self.table.get_mut(number.0) else { continue };
            pair.hand_over(sends, &mut self.shared);
            pair.active = pair.has_more();
            if pair.active {
                self.active.push_back(number);
            }
        }
    }

    /// Takes completions from the device, at most so many.
    #[inline]
    fn take_in(&mut self, most: usize) -> usize {
        let Self { table, queue, shared, active, .. } = self;
        let polled = queue.poll(most, |done| {
            let (number, place, receive) = split(done.id);
            // Of one that was destroyed nothing is said.
            if let Some(pair) = table.get_mut(number.0) {
                pair.complete(place, receive, &done, shared);
                if pair.has_more() {
                    Self::activate(active, pair);
                }
            }
        });
        polled.unwrap_or_else(|_| {
            self.lose();
            0
        })
    }

    /// The device is broken: so is every connection, and it has nothing to say any more.
    fn lose(&mut self) {
        if !core::mem::replace(&mut self.lost, true) {
            let _ = epoll::delete(&self.events, self.queue.events());
            let _ = epoll::delete(&self.events, self.context.events());
        }
        for pair in self.table.iter_mut().filter(|pair| pair.phase != Phase::Init) {
            pair.fail(IbverbsFailure::DeviceLost, &mut self.shared);
        }
    }

    /// The port's addresses have changed: ours may be in another place of the table, or gone; a LID may be another.
    fn find_address(&mut self) {
        let choice = &mut self.shared.choice;
        let of_port = |port: &Port| port.device == choice.port.device && port.number == choice.port.number;
        let Some(port) = ports().unwrap_or_default().into_iter().find(of_port) else { return };
        let own = port.gids.iter().find(|gid| gid.raw == choice.gid.raw && gid.kind == choice.gid.kind);
        self.addressless = own.is_none();
        if let Some(gid) = own.cloned() {
            choice.gid = gid;
        }
        choice.port = port;
    }

    /// Takes what the device says on its own.
    fn take_events(&mut self) {
        while !self.lost {
            let reported = self.reported.pop_front();
            self.shared.counters.system_calls += u64::from(reported.is_none());
            let Some(event) = reported.or_else(|| self.context.next_event()) else { return };
            let Self { table, shared, .. } = &mut *self;
            match event {
                DeviceEvent::QueuePair { number, is_fatal } => {
                    // While connecting it may be of an earlier try, and what becomes of this one is told by its end.
                    let named = |pair: &&mut Box<Pair>| {
                        pair.hardware_number() == number && pair.phase != Phase::Connecting
                    };
                    let failure = if is_fatal { IbverbsFailure::Fatal } else { IbverbsFailure::RefusedPeer };
                    if let Some(pair) = table.iter_mut().find(named) {
                        pair.fail(failure, shared);
                    }
                }
                DeviceEvent::Port { number, is_up } if number == shared.choice.port.number => {
                    shared.counters.port_ups += u64::from(is_up);
                    shared.counters.port_downs += u64::from(!is_up);
                }
                DeviceEvent::Device | DeviceEvent::CompletionQueue => self.lose(),
                DeviceEvent::Addresses => self.find_address(),
                DeviceEvent::Port { .. } | DeviceEvent::Other => {}
            }
        }
    }

    /// Takes what has become of queue pairs on their way to RTS.
    fn take_connected(&mut self) {
        while let Some((number, result)) = self.shared.connector.next() {
            if let Some(pair) = self.table.get_mut(number.0) {
                pair.is_set_up(result, &mut self.shared);
            }
        }
    }

    /// Looks at what happens of its own accord.
    fn look(&mut self) {
        self.next_look = Time(self.shared.now.0.saturating_add(LOOK_NS));
        self.take_events();
        for pair in self.table.iter_mut() {
            pair.look_after(&mut self.shared);
        }
        self.shared.memory_wanted.set(false);
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

impl Drop for IbverbsDevice {
    fn drop(&mut self) {
        // It may be at a queue pair, which must end before the completion queue.
        self.shared.connector.end();
    }
}

/// A random first PSN.
fn random_psn() -> Result<Psn, QueuePairError> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| QueuePairError::System(errno.raw_os_error()))?;
    Ok(Psn::new(u32::from_ne_bytes(bytes)))
}

impl Device for IbverbsDevice {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("verbs");
        capabilities.atomics = self.shared.limits.atomics;
        capabilities.max_message = self.shared.max_message;
        capabilities.max_queue_pairs = self.table.limit();
        capabilities
    }

    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.shared.counters.for_each(each);
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.shared.regions.register(region, access)
    }

    fn register_dma_buf(&mut self, part: DmaBuf, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.shared.regions.register_dma_buf(&part, access)
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        let result = self.shared.regions.deregister(key);
        self.shared.memory_wanted.set(result == Err(RegisterError::Busy) || self.shared.memory_wanted.get());
        result
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        self.table.get(queue_pair.0)?;
        self.shared.regions.remote_key(key)
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        let is_busy = self.shared.regions.table.is_busy(key);
        self.shared.memory_wanted.set(is_busy || self.shared.memory_wanted.get());
        is_busy
    }

    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        let refused = |errno: Errno| QueuePairError::System(errno.raw_os_error());
        if self.lost {
            return Err(refused(Errno::NODEV));
        }
        if self.addressless {
            return Err(refused(Errno::ADDRNOTAVAIL));
        }
        if config.send_depth >= self.shared.limits.depth || config.receive_depth > self.shared.limits.depth {
            return Err(refused(Errno::INVAL));
        }
        let full = QueuePairError::TableFull { limit: self.table.limit() };
        let number = QueuePairNumber(self.table.allot().ok_or(full)?);
        let depth = config.send_depth + 1 + config.receive_depth;
        self.reserve(depth)?;
        let hardware = self.make(config).map_err(refused)?;
        self.table.insert(number.0, Pair::new(number, config, random_psn()?, hardware));
        self.depth += depth;
        self.shared.completions.make_room(config);
        self.active.reserve(1);
        Ok(number)
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        let pair = self.table.get(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        let Choice { port, gid } = &self.shared.choice;
        let number = WireNumber::new(pair.hardware_number());
        let end = End {
            place: place(port.link_layer, port.lid, gid),
            queue_pair: number.ok_or(QueuePairError::System(Errno::RANGE.raw_os_error()))?,
            psn: pair.first_psn,
            mtu: self.shared.port.mtu,
            rd_atomic: self.shared.rd_atomic_answered(),
        };
        Ok(end.encode())
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        _role: Role,
    ) -> Result<(), ConnectError> {
        let end =
            End::decode(peer, self.shared.choice.port.link_layer).ok_or(ConnectError::ForeignEndpoint)?;
        let pair = self.table.get_mut(queue_pair.0).ok_or(ConnectError::Unknown)?;
        if pair.phase != Phase::Init {
            return Err(ConnectError::WrongState);
        }
        pair.connect(end, &mut self.shared);
        Ok(())
    }

    fn packet_bytes(&self, queue_pair: QueuePairNumber) -> Option<PacketBytes> {
        let peer = self.table.get(queue_pair.0)?.peer?.mtu.bytes();
        Some(PacketBytes { own: self.shared.port.mtu.bytes(), peer })
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        Some(self.table.get(queue_pair.0)?.state())
    }

    fn failure(&self, queue_pair: QueuePairNumber) -> Option<Cause> {
        Some(self.last_error(queue_pair)?.cause())
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        if let Some(pair) = self.table.get_mut(queue_pair.0) {
            pair.fail(IbverbsFailure::Local, &mut self.shared);
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        if self.table.get(queue_pair.0).is_some_and(|pair| pair.setting_up) {
            return Err(QueuePairError::Busy);
        }
        let pair = self.table.remove(queue_pair.0).ok_or(QueuePairError::Unknown)?;
        self.depth -= pair.config.send_depth + 1 + pair.config.receive_depth;
        self.shared.completions.forget(queue_pair, pair.config);
        pair.destroy(&mut self.shared);
        self.active.retain(|active| *active != queue_pair);
        Ok(())
    }

    #[inline]
    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
        let pair = self.table.get_mut(queue_pair.0).ok_or(PostError::Unknown)?;
        pair.post_send(request, &mut self.shared)?;
        Self::activate(&mut self.active, pair);
        Ok(())
    }

    #[inline]
    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError> {
        let pair = self.table.get_mut(queue_pair.0).ok_or(PostError::Unknown)?;
        pair.post_receive(request, &mut self.shared)?;
        Self::activate(&mut self.active, pair);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) {
        self.hand_over(true);
    }

    #[inline]
    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        self.shared.now = self.shared.now.max(now);
        if core::mem::take(&mut self.armed) {
            self.shared.counters.system_calls += u64::from(self.queue.disarm());
            self.take_events();
        }
        if self.shared.connector.is_busy() {
            self.take_connected();
        }
        self.hand_over(false);
        let mut taken = BATCH;
        if self.shared.completions.len() < completions.len() {
            taken = self.take_in(completions.len());
        }
        // What has come is looked at before what has not.
        if self.shared.now >= self.next_look && taken < BATCH.min(completions.len()) {
            self.look();
        }
        self.take_completions(completions)
    }

    fn deadline(&self) -> Option<Time> {
        let due = self.table.iter().filter_map(|pair| pair.due(&self.shared)).min();
        due.map(|due| due.max(self.next_look))
    }

    fn event_descriptor(&self) -> Option<i32> {
        Some(self.events.as_fd().as_raw_fd())
    }

    fn arm(&mut self) -> bool {
        self.hand_over(true);
        self.armed = true;
        self.shared.counters.system_calls += u64::from(self.shared.choice.port.is_software);
        if self.queue.arm().is_err() {
            self.lose();
        }
        // Once more after that: what came before is seen here, what comes later is told.
        while self.take_in(BATCH) == BATCH && self.shared.completions.is_empty() {}
        !core::mem::take(&mut self.shared.changed) && self.shared.completions.is_empty()
    }
}
