//! The conventional driver: non-blocking sockets and one epoll instance, as most servers have them.
//!
//! # System calls
//! Every poll costs one `epoll_wait`, which tells of all connections at once, also when it finds nothing. Beside that a
//! message of up to 8 KiB with its header, after such a one, costs
//!
//! - who sends it one `send`, or one `sendmsg` if it is longer than 1 KiB and so not copied,
//! - who receives it one `recv`.
//!
//! Its acknowledgement is such a message in the other direction, unless a message goes there anyway; those that follow each
//! other share one. Of longer messages
//! each 256 KiB cost one `send` or `sendmsg`, and the receiver a `recv` or `recvmsg` for what has come meanwhile, of at most
//! as much. A socket that takes only a part of a batch is watched until it takes more, which costs two `epoll_ctl` and the
//! next `send`. A connection costs an `epoll_ctl` at either end of its life; making one actively costs `connect`,
//! `getsockopt` and another `epoll_ctl` as well.
//!
//! # Wake-ups
//! Sockets are watched level-triggered: while one has something to take, or room that is waited for, the epoll instance is
//! readable, whatever was asked before. Only the eventfd of offered connections is edge-triggered, so that nobody has to
//! read it: the device looks for offers before its caller may block.

use core::mem::MaybeUninit;
use core::net::SocketAddr;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::acceptor::TcpAcceptor;
use crate::buffers::{ReceivePlan, SendBatch};
use crate::driver::{Awaited, Driver, Event};
use crate::error::TcpError;
use crate::vectors;

/// Sockets that one `epoll_wait` can tell of; the others come first the next time.
const READY_MAX: usize = 256;
/// Operations that a connection can have under way: one of each kind.
const KINDS: usize = 3;
/// What stands for the eventfd where others have a connection's number.
const WAKE: u64 = u64::MAX;
/// Either of these makes every operation on a socket end.
const ENDED: EventFlags = EventFlags::ERR.union(EventFlags::HUP);

/// The epoll instance, and the count of all system calls.
#[derive(Debug)]
struct Kernel {
    epoll: OwnedFd,
    calls: u64,
}

/// A connection's socket and what waits for it.
#[derive(Debug, Default)]
struct Connection {
    number: u32,
    socket: Option<Arc<OwnedFd>>,
    /// What epoll watches the socket for; empty while it does not.
    watched: EventFlags,
    sending: Option<Box<SendBatch>>,
    /// Bytes of `sending` that are sent.
    sent: i32,
    receiving: Option<Box<ReceivePlan>>,
    connecting: bool,
}

impl Connection {
    /// Has epoll watch for this and nothing else.
    fn watch(&mut self, kernel: &mut Kernel, wanted: EventFlags) -> Result<(), Errno> {
        if self.watched == wanted {
            return Ok(());
        }
        let socket = self.socket.as_ref().ok_or(Errno::BADF)?;
        let data = EventData::new_u64(u64::from(self.number));
        kernel.calls += 1;
        if wanted.is_empty() {
            epoll::delete(&kernel.epoll, socket)?;
        } else if self.watched.is_empty() {
            epoll::add(&kernel.epoll, socket, data, wanted)?;
        } else {
            epoll::modify(&kernel.epoll, socket, data, wanted)?;
        }
        self.watched = wanted;
        Ok(())
    }

    /// Sends what the socket takes; how that ended, unless the rest has to wait.
    fn send(&mut self, kernel: &mut Kernel) -> Option<Event> {
        let socket = self.socket.as_ref()?;
        let mut batch = self.sending.take()?;
        kernel.calls += 1;
        let mut result = vectors::send(socket.as_fd(), &mut batch);
        if result > 0 {
            batch.advance(u64::from(result.unsigned_abs()));
            self.sent = self.sent.saturating_add(result);
        }
        // A socket that took a part is full: it is not asked again before it says that it has room.
        let waits = if result < 0 { result == -libc::EAGAIN } else { !batch.is_empty() };
        let wanted =
            if waits { self.watched | EventFlags::OUT } else { self.watched.difference(EventFlags::OUT) };
        match self.watch(kernel, wanted) {
            Ok(()) if waits => {
                self.sending = Some(batch);
                return None;
            }
            Ok(()) if result < 0 => {}
            Ok(()) => result = self.sent,
            Err(errno) => result = -errno.raw_os_error(),
        }
        self.sent = 0;
        Some(Event::Sent { number: self.number, batch, result, lent: None })
    }

    /// Receives what is there; nothing while nothing is.
    fn receive(&mut self, kernel: &mut Kernel) -> Option<Event> {
        let socket = self.socket.as_ref()?;
        let mut plan = self.receiving.take()?;
        kernel.calls += 1;
        let (result, more) = vectors::receive(socket.as_fd(), &mut plan);
        if result == -libc::EAGAIN {
            return self.receive_later(kernel, plan);
        }
        Some(Event::Received { number: self.number, plan, result, more })
    }

    /// Receives when there is something; an event is how it fails.
    fn receive_later(&mut self, kernel: &mut Kernel, plan: Box<ReceivePlan>) -> Option<Event> {
        match self.watch(kernel, self.watched | EventFlags::IN) {
            Ok(()) => {
                self.receiving = Some(plan);
                None
            }
            Err(errno) => {
                let result = -errno.raw_os_error();
                Some(Event::Received { number: self.number, plan, result, more: false })
            }
        }
    }

    /// Has epoll be silent of what comes, as nobody receives it now: it would say again and again that there is something.
    fn ignore(&mut self, kernel: &mut Kernel) {
        // A connection's end is said of every socket that is watched at all.
        let wanted = if self.sending.is_some() { EventFlags::OUT } else { EventFlags::empty() };
        // A socket that is still watched costs time, and whoever receives from it learns why.
        let _ = self.watch(kernel, wanted);
    }

    /// Starts connecting; how that ended, unless it has to wait.
    fn connect(&mut self, kernel: &mut Kernel, peer: SocketAddr) -> Option<Event> {
        kernel.calls += 1;
        let result = rustix::net::connect(self.socket.as_ref()?, &peer);
        let result = match result {
            // Watched only now: a socket that is not even connecting counts as ended.
            Err(Errno::INPROGRESS) => match self.watch(kernel, EventFlags::IN | EventFlags::OUT) {
                Ok(()) => {
                    self.connecting = true;
                    return None;
                }
                failed => failed,
            },
            other => other,
        };
        Some(self.connected(result))
    }

    /// The socket says that connecting has ended; how.
    fn finish_connect(&mut self, kernel: &mut Kernel) -> Option<Event> {
        self.connecting = false;
        kernel.calls += 1;
        let result = sockopt::socket_error(self.socket.as_ref()?).and_then(|result| result);
        let result = result.and_then(|()| self.watch(kernel, EventFlags::IN));
        Some(self.connected(result))
    }

    fn connected(&self, result: Result<(), Errno>) -> Event {
        let result = result.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
        Event::Connected { number: self.number, result }
    }
}

/// The sockets of all connections.
pub(crate) struct Sockets {
    kernel: Kernel,
    /// By index.
    connections: Vec<Connection>,
    /// Operations that have ended, for [`Driver::next`].
    finished: VecDeque<Event>,
}

impl core::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sockets").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

impl Sockets {
    pub(crate) fn new(acceptor: &TcpAcceptor) -> Result<Self, TcpError> {
        let failed = |what| move |errno: Errno| TcpError::System { what, errno: errno.raw_os_error() };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed("an epoll instance"))?;
        let (wake, flags) = (acceptor.wake_descriptor(), EventFlags::IN | EventFlags::ET);
        epoll::add(&epoll, wake, EventData::new_u64(WAKE), flags)
            .map_err(failed("to watch an eventfd with epoll"))?;
        Ok(Self { kernel: Kernel { epoll, calls: 0 }, connections: Vec::new(), finished: VecDeque::new() })
    }

    /// The connection of this number, with its socket.
    fn of(&mut self, socket: &Arc<OwnedFd>, number: u32) -> Option<(&mut Connection, &mut Kernel)> {
        let connection = self.connections.get_mut(usize::from(number as u16))?;
        connection.number = number;
        if connection.socket.is_none() {
            connection.socket = Some(Arc::clone(socket));
        }
        Some((connection, &mut self.kernel))
    }

    /// Goes on with what waited for a socket.
    fn go_on(&mut self, number: u32, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(usize::from(number as u16)) else { return };
        if connection.number != number || connection.socket.is_none() {
            return;
        }
        if flags.intersects(ENDED | EventFlags::OUT) {
            if connection.connecting {
                self.finished.extend(connection.finish_connect(&mut self.kernel));
                return;
            }
            self.finished.extend(connection.send(&mut self.kernel));
        }
        if !flags.intersects(ENDED | EventFlags::IN) {
            return;
        }
        if connection.receiving.is_none() {
            connection.ignore(&mut self.kernel);
        } else {
            self.finished.extend(connection.receive(&mut self.kernel));
        }
    }
}

impl Driver for Sockets {
    fn wants_nonblocking(&self) -> bool {
        true
    }

    fn reserve(&mut self, index: u16) {
        let needed = usize::from(index) + 1;
        if self.connections.len() < needed {
            self.connections.resize_with(needed, Connection::default);
        }
        let room = self.connections.len() * KINDS;
        self.finished.reserve(room.saturating_sub(self.finished.len()));
    }

    fn send(
        &mut self,
        socket: &Arc<OwnedFd>,
        number: u32,
        batch: Box<SendBatch>,
    ) -> Result<(), Box<SendBatch>> {
        match self.of(socket, number) {
            Some((connection, kernel)) if connection.sending.is_none() => {
                connection.sending = Some(batch);
                let event = connection.send(kernel);
                self.finished.extend(event);
                Ok(())
            }
            _ => Err(batch),
        }
    }

    fn receive(
        &mut self,
        socket: &Arc<OwnedFd>,
        number: u32,
        plan: Box<ReceivePlan>,
        awaited: Awaited,
    ) -> Result<(), Box<ReceivePlan>> {
        let event = match self.of(socket, number) {
            Some((connection, kernel)) if connection.receiving.is_none() => {
                if awaited != Awaited::Now {
                    connection.receive_later(kernel, plan)
                } else {
                    connection.receiving = Some(plan);
                    connection.receive(kernel)
                }
            }
            _ => return Err(plan),
        };
        self.finished.extend(event);
        Ok(())
    }

    fn connect(&mut self, socket: &Arc<OwnedFd>, number: u32, peer: SocketAddr) -> bool {
        let Some((connection, kernel)) = self.of(socket, number) else { return false };
        let event = connection.connect(kernel, peer);
        self.finished.extend(event);
        true
    }

    fn cancel(&mut self, _socket: &OwnedFd, number: u32) {
        let Some(connection) = self.connections.get_mut(usize::from(number as u16)) else { return };
        let result = -libc::ECANCELED;
        if let Some(batch) = connection.sending.take() {
            connection.sent = 0;
            self.finished.push_back(Event::Sent { number, batch, result, lent: None });
        }
        if let Some(plan) = connection.receiving.take() {
            self.finished.push_back(Event::Received { number, plan, result, more: false });
        }
        if core::mem::take(&mut connection.connecting) {
            self.finished.push_back(Event::Connected { number, result });
        }
    }

    fn forget(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(usize::from(number as u16)) else { return };
        let Some(socket) = connection.socket.take() else { return };
        if !connection.watched.is_empty() {
            connection.watched = EventFlags::empty();
            self.kernel.calls += 1;
            // Closing it might not do: another descriptor may stand for the same socket.
            let _ = epoll::delete(&self.kernel.epoll, socket);
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn look(&mut self) -> io::Result<()> {
        self.kernel.calls += 1;
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::uninit() }; READY_MAX];
        let ready = match epoll::wait(&self.kernel.epoll, &mut room, Some(&at_once)) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        for epoll::Event { flags, data } in ready.iter().copied() {
            if let Ok(number) = u32::try_from(data.u64()) {
                self.go_on(number, flags);
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Event> {
        self.finished.pop_front()
    }

    fn is_idle(&mut self) -> bool {
        self.finished.is_empty()
    }

    /// Nothing to do: the epoll instance is readable while there is something to look for.
    fn arm(&mut self) {}

    fn disarm(&mut self) {}

    fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.kernel.epoll.as_fd()
    }

    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("system_calls", self.kernel.calls);
    }
}
