//! Clients come and go.

use std::{os::fd::OwnedFd, sync::Arc, time::Instant};

use ringway_abi::{
    VERSION,
    handshake::{ACCEPTED, Greeting, TOO_MANY_CLIENTS, WRONG_USER, WRONG_VERSION},
};
use ringway_engine::RankFailure;
use rustix::{
    event::{EventfdFlags, eventfd},
    process::{PidfdFlags, pidfd_open},
};

use super::{
    Control, Leaving, MESSAGES_PER_TURN, SESSIONS,
    client::Session,
    connection::{Connection, Received},
};
use crate::{config::Users, engine_thread::Command, poller::Interest, session::SessionKey};

/// The tokens of a session's socket and of its process.
fn tokens(key: SessionKey) -> (u64, u64) {
    let socket = SESSIONS + key.0 * 2;
    (socket, socket + 1)
}

impl Control {
    /// Takes the clients that wait.
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.listener.accept() {
                Ok(Some(socket)) => self.admit(socket),
                Ok(None) => return,
                Err(errno) => {
                    // Out of descriptors: clients stay in the backlog, and this must not become a busy loop.
                    tracing::warn!(%errno, "cannot accept a client; raise the limit on open files");
                    self.poller.remove(&self.listener);
                    self.accept_again = Some(now + super::ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let (pid, uid) = (peer.pid, peer.uid.as_raw());
        let mut connection = Connection::new(socket);
        let own = rustix::process::geteuid().as_raw();
        if self.config.users == Users::Own && uid != own && uid != 0 {
            return self.turn_away(connection, WRONG_USER);
        }
        if !self.users.add_session(uid) {
            return self.turn_away(connection, TOO_MANY_CLIENTS);
        }
        let Ok(doorbell) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
            self.users.remove_session(uid);
            return self.turn_away(connection, TOO_MANY_CLIENTS);
        };
        // A process that is gone already is noticed by its socket.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        let key = SessionKey(self.next_session);
        self.next_session += 1;
        let (socket_token, process_token) = tokens(key);
        let watched =
            self.poller.add(&connection, socket_token, Interest::Read).and_then(|()| match &pidfd {
                Some(pidfd) => self.poller.add(pidfd, process_token, Interest::Read),
                None => Ok(()),
            });
        if watched.is_err() {
            self.users.remove_session(uid);
            let _ = connection.flush();
            return;
        }
        let pid = pid.as_raw_nonzero().get();
        self.counters.sessions += 1;
        self.sessions.insert(key, Session::new(connection, (pid, uid), pidfd, Arc::new(doorbell)));
    }

    fn turn_away(&mut self, mut connection: Connection, verdict: u32) {
        self.counters.refused += 1;
        let _ = connection.send(Greeting { version: VERSION, verdict }.encode().to_vec(), Vec::new());
    }

    /// A client's socket is ready.
    pub(super) fn serve(&mut self, key: SessionKey, now: Instant) {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..MESSAGES_PER_TURN {
            let Some(session) = self.sessions.get_mut(&key) else { break };
            match session.connection.receive(&mut buffer) {
                Received::Nothing => break,
                Received::Closed => {
                    self.end_session(key, RankFailure::Exited);
                    break;
                }
                Received::Violation(what) => {
                    self.fault(key, &what.to_string());
                    break;
                }
                Received::Message(length, descriptors) => {
                    let message = buffer.get(..length).unwrap_or_default();
                    if session.greeted {
                        self.request(key, message, descriptors, now);
                    } else if !self.greet(key, message) {
                        break;
                    }
                }
            }
        }
        self.buffer = buffer;
        self.watch_for_room(key);
    }

    /// The first message: another version is told so, strangers are not answered.
    fn greet(&mut self, key: SessionKey, message: &[u8]) -> bool {
        let Some(session) = self.sessions.get_mut(&key) else { return false };
        let verdict = match Greeting::parse(message) {
            None => None,
            Some(greeting) if greeting.version != VERSION => Some(WRONG_VERSION),
            Some(_) => Some(ACCEPTED),
        };
        let answer = verdict.map(|verdict| Greeting { version: VERSION, verdict }.encode().to_vec());
        let accepted = verdict == Some(ACCEPTED);
        let doorbell = if accepted { session.doorbell.try_clone().ok() } else { None };
        let descriptors: Vec<_> = doorbell.into_iter().collect();
        let ready = !accepted || !descriptors.is_empty();
        let sent = answer.is_some_and(|answer| ready && session.connection.send(answer, descriptors).is_ok());
        if !(accepted && sent) {
            tracing::debug!(session = key.0, pid = session.pid, ?verdict, "refused a client");
            self.counters.refused += 1;
            self.end_session(key, RankFailure::Exited);
            return false;
        }
        session.greeted = true;
        let (doorbell, reasons) = (Arc::clone(&session.doorbell), session.reason_queue());
        tracing::debug!(session = key.0, pid = session.pid, uid = session.uid, "a client connected");
        self.engine.send(Command::AddSession { session: key, doorbell, reasons });
        true
    }

    /// A client's process has ended.
    pub(super) fn process_ended(&mut self, key: SessionKey, now: Instant) {
        self.hear_last(key, now);
        self.process_gone(key);
    }

    fn hear_last(&mut self, key: SessionKey, now: Instant) {
        // What it said before it ended counts: it may have left its communicators in good order.
        for _ in 0..MESSAGES_PER_TURN {
            if !self.sessions.contains_key(&key) {
                return;
            }
            self.serve(key, now);
        }
        self.end_session(key, RankFailure::Exited);
    }

    /// A client did what no client does.
    pub(super) fn fault(&mut self, key: SessionKey, what: &str) {
        if let Some(session) = self.sessions.get(&key) {
            self.counters.faults += 1;
            tracing::warn!(
                session = key.0,
                pid = session.pid,
                what,
                "disconnecting a client that broke the protocol"
            );
            self.end_session(key, RankFailure::Misbehaved);
        }
    }

    /// Ends a session: its ranks fail everywhere, its regions go when nothing uses them any more.
    pub(super) fn end_session(&mut self, key: SessionKey, how: RankFailure) {
        let Some(session) = self.sessions.remove(&key) else { return };
        self.poller.remove(&session.connection);
        for ticket in &session.joins {
            self.membership.cancel(*ticket);
            if let Some(pending) = self.joins.remove(ticket) {
                self.users.remove_communicator(session.uid);
                self.users.remove_regions(session.uid, 0, pending.shared_bytes);
            }
        }
        for seat in session.communicators.values() {
            self.users.remove_communicator(session.uid);
            self.users.remove_regions(session.uid, 0, seat.shared_bytes);
        }
        if session.greeted {
            tracing::debug!(session = key.0, pid = session.pid, %how, "a client is gone");
            let (uid, regions, region_bytes) = (session.uid, session.regions, session.region_bytes);
            self.leaving.insert(key, Leaving { uid, regions, region_bytes });
            self.engine.send(Command::EndSession { session: key, how });
        } else {
            self.users.remove_session(session.uid);
        }
        let cells = session.sharing();
        self.watch_exit(key, session.pidfd, cells);
    }

    /// The engine has let go of everything a session had.
    pub(super) fn session_gone(&mut self, key: SessionKey) {
        if let Some(leaving) = self.leaving.remove(&key) {
            self.users.remove_regions(leaving.uid, leaving.regions, leaving.region_bytes);
            self.users.remove_session(leaving.uid);
        }
    }

    /// Sends what waits for a client, and asks to be told of room while something still waits.
    pub(super) fn watch_for_room(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if session.connection.flush().is_err() {
            return self.end_session(key, RankFailure::Exited);
        }
        let wanted = session.connection.is_backlogged();
        if wanted != session.watched_for_room {
            session.watched_for_room = wanted;
            let interest = if wanted { Interest::ReadWrite } else { Interest::Read };
            let _ = self.poller.modify(&session.connection, tokens(key).0, interest);
        }
    }
}
