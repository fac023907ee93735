//! The control thread: one loop over the listening socket, the clients' sockets and processes, the peers and the
//! engine thread. Nothing here is on the data path, and nothing here blocks but the one wait.

mod boards;
mod cells;
mod client;
mod connection;
mod engine_link;
mod groups;
mod listener;
mod report;
mod requests;
mod sessions;
mod sharing;
mod users;

use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ringway_abi::MAX_CONTROL_BYTES;
use ringway_mem::Mapping;

pub(crate) use listener::{Claim, Listener};

use self::{
    cells::Exiting, client::Session, engine_link::EngineLink, groups::Group, requests::PendingJoin,
    users::Users,
};
use crate::{
    ServiceError, Stop,
    config::Config,
    devices::Open,
    engine_thread::{Command, Event, Lane},
    gpu_thread::GpuThread,
    membership::{GroupKey, JoinTicket, Membership},
    poller::{Interest, MEMBERSHIP_TOKENS, Poller, Ready},
    session::SessionKey,
    status::DeviceStatus,
};

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const ENGINE: u64 = 2;
/// Sessions use two tokens each from here on: the socket's and the process's.
const SESSIONS: u64 = 16;

/// Messages taken from one client before the others get their turn.
const MESSAGES_PER_TURN: usize = 16;

/// How long no client is accepted after the system had no descriptor for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a retry waits when the engine thread's queue is full.
const RETRY: Duration = Duration::from_millis(1);

/// How long a shutdown waits for the engine thread.
const SHUTDOWN_BOUND: Duration = Duration::from_secs(2);

/// Everything the control thread owns.
#[derive(Debug)]
pub(crate) struct Control {
    config: Config,
    open_devices: Vec<Open>,
    refused_devices: Vec<DeviceStatus>,
    started: Instant,
    poller: Poller,
    listener: Listener,
    /// Watched for as long as it is open.
    _stop: Stop,
    engine: EngineLink,
    gpu_thread: GpuThread,
    membership: Membership,
    users: Users,
    sessions: BTreeMap<SessionKey, Session>,
    /// Sessions that ended and whose regions the engine still lets go of.
    leaving: BTreeMap<SessionKey, Leaving>,
    /// Processes that outlive their sessions, by these.
    exiting: BTreeMap<SessionKey, Exiting>,
    joins: BTreeMap<JoinTicket, PendingJoin>,
    groups: BTreeMap<GroupKey, Group>,
    next_session: u64,
    idle_since: Instant,
    /// When clients are accepted again, after the system had no descriptors for them.
    accept_again: Option<Instant>,
    counters: Counters,
    buffer: Box<[u8]>,
}

/// What a session that ended still holds.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    uid: u32,
    regions: u32,
    region_bytes: u64,
}

/// What the control thread counts.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    sessions: u64,
    refused: u64,
    faults: u64,
}

/// What the control thread is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    /// The devices between nodes, the best first.
    pub(crate) open_devices: Vec<Open>,
    /// Those that do not work here.
    pub(crate) refused_devices: Vec<DeviceStatus>,
    pub(crate) poller: Poller,
    pub(crate) listener: Listener,
    pub(crate) stop: Stop,
    pub(crate) membership: Membership,
    pub(crate) commands: Arc<Lane<Command>>,
    pub(crate) events: Arc<Lane<Event>>,
    pub(crate) thread: JoinHandle<()>,
    /// The daemon's own memory.
    pub(crate) workspace: Arc<Mapping>,
}

impl Control {
    /// Registers with the poller everything that is there from the start.
    pub(crate) fn new(parts: Parts, now: Instant) -> Result<Self, ServiceError> {
        let Parts {
            config,
            open_devices,
            refused_devices,
            poller,
            listener,
            stop,
            membership,
            commands,
            events,
            thread,
            workspace,
        } = parts;
        let gpu_thread = GpuThread::new(Arc::clone(&commands), Arc::clone(&events), workspace);
        let engine = EngineLink::new(commands, events, thread);
        let watch = |fd: std::os::fd::BorrowedFd<'_>, token| {
            poller.add(fd, token, Interest::Read).map_err(ServiceError::system("watch a descriptor"))
        };
        watch(listener.as_fd(), LISTENER)?;
        watch(stop.as_fd(), STOP)?;
        watch(engine.events().as_fd(), ENGINE)?;
        Ok(Self {
            users: Users::new(config.quotas),
            config,
            open_devices,
            refused_devices,
            started: now,
            poller,
            listener,
            _stop: stop,
            engine,
            gpu_thread,
            membership,
            sessions: BTreeMap::new(),
            leaving: BTreeMap::new(),
            exiting: BTreeMap::new(),
            joins: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_session: 1,
            idle_since: now,
            accept_again: None,
            counters: Counters::default(),
            buffer: vec![0; MAX_CONTROL_BYTES].into_boxed_slice(),
        })
    }

    /// Serves until told to stop, or until idle for long enough.
    pub(crate) fn run(mut self) -> Result<(), ServiceError> {
        let mut ready = Ready::new(64);
        let reason = loop {
            let now = Instant::now();
            self.settle(now);
            if self.engine.is_finished() {
                self.drop_everything();
                return Err(ServiceError::Engine("the engine thread ended by itself".to_owned()));
            }
            let timeout = self.timeout(now);
            self.poller.wait(&mut ready, timeout).map_err(ServiceError::system("wait for events"))?;
            let now = Instant::now();
            if ready.tokens().contains(&STOP) {
                break "told to stop";
            }
            for token in ready.tokens() {
                self.dispatch(*token, now);
            }
            if self.accept_again.is_some_and(|at| at <= now) {
                self.accept_again = None;
                let _ = self.poller.add(&self.listener, LISTENER, Interest::Read);
            }
            if self.membership.deadline().is_some_and(|deadline| deadline <= now) {
                self.membership.tick(now);
            }
            if self.is_idle() && self.config.idle_exit.is_some_and(|limit| now >= self.idle_since + limit) {
                break "idle";
            }
        };
        tracing::info!(reason, "shutting down");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.shut_down();
        Ok(())
    }

    fn dispatch(&mut self, token: u64, now: Instant) {
        match token {
            LISTENER => self.accept(now),
            STOP => {}
            ENGINE => self.engine.events().quiet(),
            token if token >= MEMBERSHIP_TOKENS => self.membership.handle_event(token, now),
            token => {
                let key = SessionKey((token - SESSIONS) / 2);
                if token % 2 == 0 { self.serve(key, now) } else { self.process_ended(key, now) }
            }
        }
    }

    /// Handles everything that is there to be handled without waiting.
    fn settle(&mut self, now: Instant) {
        self.engine.flush();
        loop {
            let mut quiet = true;
            while let Some(event) = self.engine.events().pop() {
                quiet = false;
                self.handle_engine(event, now);
            }
            while let Some(event) = self.membership.next_event() {
                quiet = false;
                self.handle_membership(event);
            }
            if quiet {
                break;
            }
        }
        if !self.is_idle() {
            self.idle_since = now;
        }
    }

    fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.leaving.is_empty()
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        let idle = self.config.idle_exit.filter(|_| self.is_idle()).map(|limit| self.idle_since + limit);
        let retry = self.engine.is_backlogged().then(|| now + RETRY);
        let next =
            [self.membership.deadline(), idle, retry, self.accept_again].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(now))
    }

    /// Ends in good order: no new clients, every operation fails with the reason, every client sees the socket close.
    fn shut_down(mut self) {
        self.poller.remove(&self.listener);
        self.refuse_joins();
        self.membership.shut_down();
        self.engine.send(Command::Shutdown);
        let deadline = Instant::now() + SHUTDOWN_BOUND;
        while !self.engine.is_finished() && Instant::now() < deadline {
            self.engine.flush();
            while self.engine.events().pop().is_some() {}
            std::thread::sleep(RETRY);
        }
        self.drop_everything();
    }

    fn drop_everything(self) {
        let Self { engine, sessions, listener, .. } = self;
        drop(listener);
        drop(sessions);
        if engine.is_finished() {
            engine.join();
        }
    }
}
