//! What clients ask on the control socket.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use ringway_abi::{
    MAX_RANKS, UniqueId,
    control::{self, COMMUNICATOR_TOKEN, Envelope, Join, RefusalKind, Reply, Request},
};
use ringway_engine::RankFailure;
use ringway_plan::{Preference, PreferenceError};

use super::{
    Control,
    client::{Refusal, Session},
};
use crate::{
    config::Isolation,
    engine_thread::{CellCommand, Command, Inspect, RegionMemory},
    gpu_thread::{Import, Source, Task},
    membership::LocalJoin,
    session::SessionKey,
};

/// Submissions a ring holds at least.
const RING_SUBMISSIONS_MIN: u32 = 2;

/// A rank that waits for others.
#[derive(Debug)]
pub(super) struct PendingJoin {
    pub(super) session: SessionKey,
    pub(super) number: u32,
    pub(super) join: Join,
    pub(super) since: Instant,
    /// Bytes of the communicator's cell or board that its user has been charged for.
    pub(super) shared_bytes: u64,
}

impl Control {
    /// Handles one message of a client.
    pub(super) fn request(&mut self, key: SessionKey, message: &[u8], fds: Vec<OwnedFd>, now: Instant) {
        let Ok(Envelope { number, body }) = control::decode::<Request>(message) else {
            return self.fault(key, "a control message that cannot be read");
        };
        let answer = match body {
            Request::MayRegister { bytes } => self.may_register(key, bytes),
            Request::RegisterRegion => self.register_region(key, number, fds),
            Request::RegisterGpuRegion { gpu, offset, length, ipc } => {
                self.register_gpu_region(key, number, (gpu, offset, length), ipc, fds)
            }
            Request::ReleaseRegion { region } => {
                self.later(key, |_| Command::RemoveRegion { session: key, number, region })
            }
            Request::NewUniqueId { several_nodes } => self.new_unique_id(several_nodes).map(Some),
            Request::Join(join) => self.join(key, number, join, now),
            Request::Leave { communicator } => self
                .known(key, communicator)
                .and_then(|()| self.later(key, |_| Command::Leave { session: key, number, communicator })),
            Request::Abort { communicator } => self.known(key, communicator).map(|()| {
                self.engine.send(Command::Abort { session: key, communicator });
                Some(Reply::Done)
            }),
            Request::Explain { communicator, token: COMMUNICATOR_TOKEN } => {
                self.known(key, communicator).and_then(|()| {
                    self.later(key, |_| {
                        Command::Cell(CellCommand::Explain { session: key, number, communicator })
                    })
                })
            }
            Request::Explain { communicator, token } => self.explain(key, communicator, token).map(Some),
            Request::MapRegion { communicator, rank, region } => {
                self.shared(key, communicator).and_then(|()| {
                    let place = (communicator, rank, region);
                    self.later(key, |_| Command::Cell(CellCommand::MapRegion { session: key, number, place }))
                })
            }
            Request::Inspect { communicator, sequence, waited_ms } => {
                self.shared(key, communicator).and_then(|()| {
                    let inspect = Inspect { communicator, sequence, waited_ms };
                    self.later(key, |_| Command::Cell(CellCommand::Inspect { session: key, number, inspect }))
                })
            }
            Request::Status => self.later(key, |_| Command::Status { session: key, number }),
        };
        match answer {
            Ok(Some(reply)) => self.reply(key, number, reply, Vec::new()),
            Ok(None) => {}
            Err(refusal) => self.refuse(key, number, refusal),
        }
    }

    /// Sends a reply; a client that does not read its replies is disconnected.
    pub(super) fn reply(&mut self, key: SessionKey, number: u32, reply: Reply, fds: Vec<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if session.reply(number, reply, fds).is_err() {
            return self.fault(key, "it does not read what it is sent");
        }
        self.watch_for_room(key);
    }

    pub(super) fn refuse(&mut self, key: SessionKey, number: u32, (kind, message): Refusal) {
        self.reply(key, number, Reply::Refused { kind, message }, Vec::new());
    }

    /// The answer to a request that waited.
    pub(super) fn answer(&mut self, key: SessionKey, number: u32, answer: Result<Reply, Refusal>) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.end();
        }
        match answer {
            Ok(reply) => self.reply(key, number, reply, Vec::new()),
            Err(refusal) => self.refuse(key, number, refusal),
        }
    }

    /// Asks the engine thread, whose answer will be the reply.
    fn later(
        &mut self,
        key: SessionKey,
        command: impl FnOnce(&mut Self) -> Command,
    ) -> Result<Option<Reply>, Refusal> {
        self.begin(key)?;
        let command = command(self);
        self.engine.send(command);
        Ok(None)
    }

    fn begin(&mut self, key: SessionKey) -> Result<(), Refusal> {
        if self.sessions.get_mut(&key).is_some_and(Session::begin) {
            return Ok(());
        }
        let message = "too many requests are waiting for their answers; take some replies first";
        Err((RefusalKind::Quota, message.to_owned()))
    }

    fn known(&self, key: SessionKey, communicator: u32) -> Result<(), Refusal> {
        let known = self.sessions.get(&key).is_some_and(|s| s.communicators.contains_key(&communicator));
        known.then_some(()).ok_or_else(|| {
            let message = format!("this client is in no communicator with handle {communicator}");
            (RefusalKind::Unknown, message)
        })
    }

    /// That the client is in such a communicator, and that its ranks share memory.
    fn shared(&self, key: SessionKey, communicator: u32) -> Result<(), Refusal> {
        self.known(key, communicator)?;
        let seat = self.sessions.get(&key).and_then(|s| s.communicators.get(&communicator));
        if seat.is_some_and(|seat| seat.shared_bytes > 0) { Ok(()) } else { Err(no_cell(communicator)) }
    }

    fn may_register(&self, key: SessionKey, bytes: u64) -> Result<Option<Reply>, Refusal> {
        let Some(uid) = self.sessions.get(&key).map(|s| s.uid) else { return Ok(None) };
        self.users.may_add_region(uid, bytes).map(|()| Some(Reply::Done))
    }

    fn register_region(
        &mut self,
        key: SessionKey,
        number: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Refusal> {
        let memory = |message: String| (RefusalKind::Memory, message);
        let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(memory("a region comes with exactly one descriptor, its sealed memfd".to_owned()));
        };
        let Some(uid) = self.sessions.get(&key).map(|s| s.uid) else { return Ok(None) };
        // The kernel's word for the size, before anything is mapped; sealed memory cannot change it afterwards.
        let size =
            rustix::fs::fstat(&fd).map_err(|errno| memory(format!("its size cannot be read ({errno})")))?;
        let bytes = u64::try_from(size.st_size).unwrap_or(0);
        self.begin(key)?;
        let admitted = self.users.add_region(uid, bytes).and_then(|()| {
            ringway_mem::admit(fd, bytes).map_err(|e| {
                self.users.remove_regions(uid, 1, bytes);
                memory(e.to_string())
            })
        });
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(None) };
        match admitted {
            Ok(region) => {
                session.regions += 1;
                session.region_bytes += bytes;
                let mapping = region.mapping;
                let shared = self.config.isolation == Isolation::Cell;
                let memory = RegionMemory::Host(mapping);
                self.engine.send(Command::AddRegion { session: key, number, memory, shared });
                Ok(None)
            }
            Err(refusal) => {
                session.end();
                Err(refusal)
            }
        }
    }

    fn register_gpu_region(
        &mut self,
        key: SessionKey,
        number: u32,
        (gpu, offset, length): ([u8; 16], u64, u64),
        ipc: Option<([u8; 32], [u8; 32])>,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Refusal> {
        let memory = |message: &str| (RefusalKind::Memory, message.to_owned());
        let source = match (ipc, <[OwnedFd; 1]>::try_from(fds)) {
            (None, Ok([fd])) if offset == 0 => Source::Descriptor(fd),
            (Some((first, second)), Err(fds)) if fds.is_empty() => {
                let mut handle = [0; 64];
                handle.iter_mut().zip(first.into_iter().chain(second)).for_each(|(to, from)| *to = from);
                Source::Ipc(handle)
            }
            _ => {
                return Err(memory(
                    "memory of a GPU comes with one exported descriptor, all of which is meant, or with an IPC handle and \
                     no descriptor",
                ));
            }
        };
        if length == 0 {
            return Err(memory("a region has one byte at least"));
        }
        let Some(uid) = self.sessions.get(&key).map(|s| s.uid) else { return Ok(None) };
        self.begin(key)?;
        let import = Import { session: key, number, gpu, source, offset, length };
        let admitted = self.users.add_region(uid, length).and_then(|()| {
            let sent = self.gpu_thread.send(Task::Import(Box::new(import)));
            if !sent {
                self.users.remove_regions(uid, 1, length);
            }
            sent.then_some(()).ok_or_else(|| memory("the daemon has no thread for GPUs; see its log"))
        });
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(None) };
        match admitted {
            Ok(()) => {
                session.regions += 1;
                session.region_bytes += length;
                Ok(None)
            }
            Err(refusal) => {
                session.end();
                Err(refusal)
            }
        }
    }

    fn new_unique_id(&self, several_nodes: bool) -> Result<Reply, Refusal> {
        let root = match (self.membership.advertised(), several_nodes) {
            (_, false) => None,
            (Some(advertised), true) => Some(advertised),
            (None, true) => return Err(serves_one_node()),
        };
        let mut secret = [0; 16];
        let random = rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty());
        match random {
            Ok(16) => Ok(Reply::UniqueId(UniqueId { root, secret })),
            _ => Err((RefusalKind::Busy, "the system has no random bytes yet; try again".to_owned())),
        }
    }

    fn join(
        &mut self,
        key: SessionKey,
        number: u32,
        join: Join,
        now: Instant,
    ) -> Result<Option<Reply>, Refusal> {
        let preference = self.check_join(&join)?;
        let Some(uid) = self.sessions.get(&key).map(|s| s.uid) else { return Ok(None) };
        self.begin(key)?;
        if let Err(refusal) = self.users.add_communicator(uid) {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.end();
            }
            return Err(refusal);
        }
        let timeout = Duration::from_millis(u64::from(join.join_timeout_ms));
        let (id, rank, size) = (join.id, join.rank, join.size);
        let local = LocalJoin { id, rank, size, uid, session: key.0, timeout, preference };
        let ticket = self.membership.join(local, now);
        self.joins.insert(ticket, PendingJoin { session: key, number, join, since: now, shared_bytes: 0 });
        if let Some(session) = self.sessions.get_mut(&key) {
            session.joins.push(ticket);
        }
        Ok(None)
    }

    /// The algorithms that it asks for, where everything makes sense.
    fn check_join(&self, join: &Join) -> Result<Preference, Refusal> {
        let invalid = |message: String| Err((RefusalKind::Invalid, message));
        let (least, most) = (RING_SUBMISSIONS_MIN, self.config.ring_submissions_max);
        if join.size == 0 || join.size > MAX_RANKS {
            return invalid(format!("a communicator has 1 to {MAX_RANKS} ranks, not {}", join.size));
        }
        if join.rank >= join.size {
            return invalid(format!(
                "rank {} is not one of 0 to {}, the ranks of a communicator of {}",
                join.rank,
                join.size - 1,
                join.size
            ));
        }
        if !join.submissions.is_power_of_two() || !(least..=most).contains(&join.submissions) {
            return invalid(format!(
                "a ring holds a power of two of submissions from {least} to {most}, not {}",
                join.submissions
            ));
        }
        join.algorithm.parse().or_else(|error: PreferenceError| invalid(error.to_string()))
    }

    fn explain(&mut self, key: SessionKey, communicator: u32, token: u32) -> Result<Reply, Refusal> {
        let known = self.sessions.get_mut(&key).and_then(|session| session.explain(communicator, token));
        known.map(|reason| Reply::Text(reason.to_string())).ok_or_else(|| {
            let message =
                format!("nothing is known (any more) of operation {token} of communicator {communicator}");
            (RefusalKind::Unknown, message)
        })
    }

    /// The daemon stops: nobody joins any more.
    pub(super) fn refuse_joins(&mut self) {
        let joins = std::mem::take(&mut self.joins);
        for (ticket, pending) in joins {
            self.membership.cancel(ticket);
            let message = "the daemon is shutting down; try again when it is back".to_owned();
            self.answer(pending.session, pending.number, Err((RefusalKind::ShuttingDown, message)));
        }
    }

    /// A rank of a session that broke the rings' protocol.
    pub(super) fn ring_fault(&mut self, key: SessionKey, what: &str) {
        if self.sessions.contains_key(&key) {
            self.fault(key, what);
        } else {
            self.engine.send(Command::EndSession { session: key, how: RankFailure::Misbehaved });
        }
    }
}

fn no_cell(communicator: u32) -> Refusal {
    let message = format!("the ranks of the communicator with handle {communicator} share no memory");
    (RefusalKind::Invalid, message)
}

fn serves_one_node() -> Refusal {
    let message = "this daemon serves one node only; start it with --cluster-key-file (and --listen if port 7411 is not \
                   free) to work with other nodes";
    (RefusalKind::Invalid, message.to_owned())
}
