//! The engine thread: owns the engine, the device, every client's rings and every region, and runs the loop of
//! which everything else in the daemon is the setting.
//!
//! Once an operation of each kind has run, the loop allocates nothing, takes no lock, formats nothing, and makes no
//! system call but the device's doorbells, wake-ups and hand-overs.

mod accelerator;
mod accept;
mod boards;
mod cells;
mod command;
mod commands;
mod device;
mod devices;
mod drain;
mod inspection;
mod lifetimes;
mod memory;
mod packets;
mod publish;
mod reason;
mod region_memory;
mod ring;
mod rings;
mod sleep;
mod snapshot;
mod standins;
mod streams;

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_queue::ArrayQueue;
use ringway_engine::{CommunicatorId, Engine, EngineConfig, Failure, RankFailure, RegionId, WorkspaceConfig};
use ringway_group::Width;
use ringway_mem::{HandleTable, Mapping, MemFd, calls};
use ringway_plan::Layout;
use ringway_verbs::{Access, Completion, Device as _, LocalKey, Time};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

pub(crate) use self::{
    accelerator::{Accelerator, MadeKernels},
    boards::BoardMemory,
    cells::CellMemory,
    command::{
        Attach, CellCommand, Command, Event, Explained, Inspect, Lane, MapRefusal, REASONS_KEPT,
        RegionRefusal,
    },
    device::{NoDevice, NodeDevice},
    devices::{LOST, NodeDevices, Placed},
    reason::Reason,
    region_memory::RegionMemory,
};
use self::{boards::ScratchRegion, cells::Cells, memory::Memory, rings::Rings, standins::StandIns};
use crate::{
    ServiceError,
    config::{Config, PollingMode},
    membership::GroupKey,
    poller::{Poller, Ready},
    polling::{self, Next, Polling, Told},
    session::SessionKey,
    status::Counters,
};

/// Device completions taken in one turn.
const COMPLETIONS_PER_TURN: usize = 64;

/// Turns that found nothing between two looks at the clock, which take a third of such a turn.
const TURNS_PER_CLOCK: u32 = 4;

/// Turns between two looks at whether devices are still there.
const TURNS_PER_LOOK: u64 = 64;

/// Commands handled in one turn.
const COMMANDS_PER_TURN: usize = 16;

/// Regions of all clients together.
const REGIONS_MAX: usize = 1 << 16;

/// How long a shutdown waits for operations to end.
const SHUTDOWN_BOUND_NS: u64 = 1_000_000_000;

/// A region as the engine thread keeps it.
#[derive(Debug)]
struct Region {
    session: SessionKey,
    id: RegionId,
    /// The devices' key for it; `None` for memory of a GPU.
    key: Option<LocalKey>,
    memory: RegionMemory,
    /// Ranks that share memory with this client's may map it.
    shared: bool,
    /// Operations in flight that use it.
    uses: u32,
}

/// A client as the engine thread knows it.
#[derive(Debug)]
struct Client {
    doorbell: Arc<OwnedFd>,
    reasons: Arc<ArrayQueue<Explained>>,
    /// Its rings, by index.
    rings: Vec<usize>,
    /// Its regions' handles.
    regions: Vec<u64>,
    /// Whose work it does: the tenant of the first communicator it attached to.
    tenant: Option<u64>,
    /// Its session ended this way.
    ended: Option<RankFailure>,
    /// The control thread was told that it broke the protocol.
    faulted: bool,
}

/// A communicator's life on this node.
#[derive(Debug)]
struct Group {
    id: CommunicatorId,
    /// The device between its nodes; empty with one node.
    device: &'static str,
    width: Width,
    layout: Layout,
    node: u32,
    /// The same on every node.
    name: u64,
    /// Whose it is: as the first of its ranks that came; the same for all communicators of a job.
    tenant: Option<u64>,
    /// How long an operation may take; zero for no limit.
    timeout_ms: u32,
    /// Local ranks whose rings have not come yet.
    expected: u32,
    /// Rings that are attached.
    attached: u32,
    /// Its connections are being made.
    connecting: bool,
    /// Its links are to be measured when they stand.
    measure: bool,
    /// It is being closed.
    closing: bool,
    failure: Option<Failure>,
}

/// The engine thread's state.
#[derive(Debug)]
pub(crate) struct EngineThread {
    commands: Arc<Lane<Command>>,
    events: Arc<Lane<Event>>,
    /// Events that found the queue full.
    outbox: VecDeque<Event>,
    poller: Poller,
    polling: Polling,
    start: Instant,
    engine: Engine,
    device: NodeDevices,
    /// Keeps the devices' event descriptors registered.
    _device_events: Vec<OwnedFd>,
    memory: Memory,
    /// The daemon's own memory.
    workspace: (RegionId, Arc<Mapping>),
    /// Nanoseconds to combine a byte, and to copy one.
    arithmetic: (f64, f64),
    regions: HandleTable<Region>,
    rings: Rings,
    cells: Cells,
    standins: StandIns,
    clients: BTreeMap<SessionKey, Client>,
    groups: BTreeMap<GroupKey, Group>,
    group_of: BTreeMap<CommunicatorId, GroupKey>,
    /// Sessions that ended and still hold something.
    ending: Vec<SessionKey>,
    /// Scratch memory of communicators that are gone, which the device is still busy with.
    retired: Vec<ScratchRegion>,
    completions: Box<[Completion]>,
    /// Scratch room for counts.
    arguments: Vec<u64>,
    counters: Counters,
    /// Who was told of completions in this turn.
    told: Told,
    /// In some cell there is work that was left to ranks that are at it.
    held: bool,
    /// When a rank that others wait for is named in the log.
    late_after_ms: u64,
    /// Since when the daemon shuts down.
    shutdown: Option<Time>,
}

impl EngineThread {
    /// Makes the engine over a device, with a workspace that the device knows.
    pub(crate) fn new(
        config: &Config,
        mut device: NodeDevices,
        commands: Arc<Lane<Command>>,
        events: Arc<Lane<Event>>,
    ) -> Result<Self, ServiceError> {
        let start = Instant::now();
        // In a file, which daemons of this host may be let read, and which nobody can write but this one.
        let (file, workspace) = MemFd::daemon_written("ringway-workspace", config.workspace_bytes)
            .map_err(|e| ServiceError::Engine(format!("no memory for `workspace_mib`: {e}")))?;
        let workspace = Arc::new(workspace.keep_file(file.into_fd()));
        let keys = device
            .register(Arc::clone(&workspace), Access::ALL)
            .map_err(|e| ServiceError::Engine(format!("the device refuses the workspace: {e}")))?;
        let mut memory = Memory::default();
        let region = memory.add(RegionMemory::Host(Arc::clone(&workspace)));
        let own = (region, workspace);
        let workspace = WorkspaceConfig { region, key: keys.local, length: config.workspace_bytes };
        let engine =
            Engine::new(engine_config(config, workspace)).map_err(|e| ServiceError::Engine(e.to_string()))?;
        let poller = Poller::new().map_err(ServiceError::system("make an epoll instance"))?;
        let device_events = sleep::watch(&poller, &commands, &device)
            .map_err(ServiceError::system("watch the engine's descriptors"))?;
        let spin = config.spin.unwrap_or_else(polling::wake_up_cost);
        let cpus = polling::parallelism();
        Ok(Self {
            commands,
            events,
            outbox: VecDeque::new(),
            poller,
            polling: Polling::new(config.polling, spin, cpus),
            start,
            engine,
            device,
            _device_events: device_events,
            memory,
            workspace: own,
            arithmetic: polling::arithmetic_cost(),
            regions: HandleTable::with_capacity(REGIONS_MAX),
            rings: Rings::default(),
            cells: Cells::new(polling::parallelism_with_clients()),
            standins: StandIns::default(),
            clients: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_of: BTreeMap::new(),
            ending: Vec::new(),
            retired: Vec::new(),
            completions: vec![Completion::EMPTY; COMPLETIONS_PER_TURN].into_boxed_slice(),
            arguments: Vec::with_capacity(accept::MAX_ARGUMENT_WORDS),
            counters: Counters::default(),
            told: Told::Nobody,
            held: false,
            late_after_ms: milliseconds(config.late_after),
            shutdown: None,
        })
    }

    /// The polling mode's name and how long it spins.
    pub(crate) fn polling(&self) -> (&'static str, Duration) {
        (self.polling.mode().name(), self.polling.budget())
    }

    /// The daemon's own memory, which GPUs are to reach.
    pub(crate) fn workspace(&self) -> Arc<Mapping> {
        Arc::clone(&self.workspace.1)
    }

    /// Starts the thread, pinned to a CPU when one is named.
    pub(crate) fn spawn(self, cpu: Option<usize>) -> Result<JoinHandle<()>, ServiceError> {
        let thread = std::thread::Builder::new().name("ringway-engine".to_owned());
        let spawned = thread.spawn(move || {
            // A panic here is our own mistake: nothing a client does may lead to one. The daemon ends at once, and
            // its clients see their sockets close.
            let _guard = AbortOnPanic;
            if let Some(cpu) = cpu {
                let mut set = CpuSet::new();
                set.set(cpu);
                if let Err(errno) = sched_setaffinity(None, &set) {
                    tracing::warn!(cpu, %errno, "cannot pin the engine thread");
                }
            }
            self.run();
        });
        spawned.map_err(|_| ServiceError::System {
            what: "start the engine thread",
            errno: rustix::io::Errno::AGAIN,
        })
    }

    fn run(mut self) {
        let mut ready = Ready::new(64);
        let (mut now, mut fruitless) = (self.now(), 0_u32);
        loop {
            let worked = self.turn(now);
            if self.is_done(now) {
                return;
            }
            let outstanding = self.engine.has_work()
                || self.is_tending()
                || self.cells.is_outstanding()
                || self.is_waiting_for_gpu()
                || self.standins.is_pressing(now);
            let pollers = self.rings.runnable().saturating_add(1);
            fruitless = if worked { 0 } else { fruitless.wrapping_add(1) };
            // What a GPU has begun is over soon, and nothing would wake this thread for it.
            let worked =
                worked || (self.memory.is_accelerating() && self.polling.mode() != PollingMode::Block);
            now = match self.polling.after_turn(now.0, (worked, self.told), outstanding, pollers) {
                Next::Turn if !fruitless.is_multiple_of(TURNS_PER_CLOCK) => continue,
                Next::Turn => self.now(),
                Next::HandOver => self.hand_over(),
                Next::Sleep => {
                    self.rings.say_cpu(None);
                    self.sleep(&mut ready);
                    self.rings.say_cpu(Some(sched_getcpu()));
                    self.now()
                }
            };
        }
    }

    /// Gives the CPU to whoever else wants it; when it came back.
    fn hand_over(&mut self) -> Time {
        let before = self.now();
        calls::yield_now();
        let after = self.now();
        let clients = self.rings.iter().filter_map(|(_, ring)| ring.rings.client_cpu());
        self.polling.handed_over(after.0, after.0.saturating_sub(before.0), clients);
        // That may have moved this thread.
        self.rings.say_cpu(Some(sched_getcpu()));
        after
    }

    /// One turn of the loop; whether it did anything.
    fn turn(&mut self, now: Time) -> bool {
        let count = self.device.poll(now, &mut self.completions);
        let completions = self.completions.get(..count).unwrap_or_default();
        self.engine.complete(now, completions, &mut self.device, &mut self.memory);
        let asked = self.drain(now);
        let advanced = self.engine.advance(now, &mut self.device, &mut self.memory);
        self.accelerate();
        let acted = self.stand_in(now);
        let told = self.publish();
        let helped = self.help();
        self.look_at_boards();
        let commanded = self.obey(now);
        self.tend(now);
        self.counters.turns = self.counters.turns.wrapping_add(1);
        let worked = count > 0 || asked || advanced || acted || told || helped || commanded;
        self.counters.busy_turns = self.counters.busy_turns.wrapping_add(u64::from(worked));
        worked
    }

    /// Has the GPU begin what it was given in this turn, and fails those whose work it does not do.
    fn accelerate(&mut self) {
        let Some(accelerator) = &mut self.memory.accelerator else { return };
        accelerator.flush();
        while let Some(id) =
            self.memory.accelerator.as_mut().and_then(|accelerator| accelerator.next_victim())
        {
            let Some(key) = self.group_of.get(&id).copied() else { continue };
            let Some(group) = self.groups.get(&key) else { continue };
            let rank = group.layout.local(group.node).first().copied().unwrap_or(0);
            self.fail_group(key, Failure::of_accelerator(group.node, rank));
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Tells the control thread something; never blocks, loses nothing.
    fn tell(&mut self, event: Event) {
        self.outbox.push_back(event);
        self.flush_outbox();
    }

    fn flush_outbox(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            if let Err(event) = self.events.push(event) {
                self.outbox.push_front(event);
                return;
            }
        }
    }
}

/// The engine's configuration, from the daemon's.
fn engine_config(config: &Config, workspace: WorkspaceConfig) -> EngineConfig {
    let mut engine = EngineConfig::new(workspace);
    engine.plans.clone_from(&config.plans);
    engine.late_after_ms = milliseconds(config.late_after);
    if let Some(network) = &config.network {
        engine.peer_timeout_ms = milliseconds(network.peer_timeout);
        engine.heartbeat_ms = (engine.peer_timeout_ms / 4).max(1);
    }
    engine
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
