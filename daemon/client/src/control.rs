//! Requests and replies on the control socket. Several threads may have requests outstanding at once: one of those that
//! wait reads for all of them, and no thread of our own is needed.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ringway_abi::{
    MAX_CONTROL_BYTES,
    control::{Envelope, Reply, Request, decode, encode},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use ringway_mem::{
    calls,
    passing::{self, ReceiveError, SendError},
};

use crate::{RequestError, socket};

/// The most descriptors that come with one reply.
const DESCRIPTORS_MAX: usize = 4;

/// A reply with the descriptors that came along.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// The control socket of one session.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u32,
    /// Requests whose reply is awaited; `Some` once it has come.
    awaited: BTreeMap<u32, Option<Answer>>,
    /// A thread is reading for all.
    reading: bool,
    lost: bool,
    /// A request was waited for in vain, and nothing has come since.
    silent: bool,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Sends a request, with descriptors, and waits for its reply. A refusal is an error.
    pub(crate) fn request(
        &self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<Answer, RequestError> {
        let number = {
            let mut state = self.state();
            if state.lost {
                return Err(RequestError::DaemonLost);
            }
            state.next = state.next.wrapping_add(1);
            let number = state.next;
            state.awaited.insert(number, None);
            number
        };
        let answer = self.exchange(Envelope { number, body: request }, descriptors, patience);
        let mut state = self.state();
        state.awaited.remove(&number);
        state.silent |= matches!(answer, Err(RequestError::NoAnswer { .. }));
        drop(state);
        match answer?.into_refusal() {
            Ok(answer) => Ok(answer),
            Err((kind, message)) => Err(RequestError::Refused { kind, message }),
        }
    }

    fn exchange(
        &self,
        envelope: Envelope<Request>,
        descriptors: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<Answer, RequestError> {
        let started = Instant::now();
        let bytes =
            encode(&envelope).map_err(|_| RequestError::Protocol { what: "a request is too long" })?;
        let waited_for = |waited: Duration| RequestError::NoAnswer {
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        };
        // Requests that nobody reads fill the socket.
        let failed = |reason: rustix::io::Errno| RequestError::Socket { reason: reason.to_string() };
        if !socket::writable(self.socket.as_fd(), patience).map_err(failed)? {
            return Err(waited_for(started.elapsed()));
        }
        passing::send(self.socket.as_fd(), &bytes, descriptors).map_err(|error| match error {
            SendError::Closed => self.lost(),
            other => RequestError::Socket { reason: other.to_string() },
        })?;
        loop {
            let mut state = self.state();
            if let Some(answer) = state.awaited.get_mut(&envelope.number).and_then(Option::take) {
                return Ok(answer);
            }
            if state.lost {
                return Err(RequestError::DaemonLost);
            }
            let waited = started.elapsed();
            let Some(left) = patience.checked_sub(waited) else { return Err(waited_for(waited)) };
            if state.reading {
                drop(self.changed.wait_timeout(state, left));
                continue;
            }
            state.reading = true;
            drop(state);
            let read = self.read_one(left);
            let mut state = self.state();
            state.reading = false;
            self.changed.notify_all();
            match read {
                Ok(None) => {}
                Ok(Some(envelope)) => state.deliver(envelope),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads one message; `None` when none came in time.
    fn read_one(&self, patience: Duration) -> Result<Option<(u32, Answer)>, RequestError> {
        let failed = |reason: &dyn core::fmt::Display| RequestError::Socket { reason: reason.to_string() };
        if !socket::readable(self.socket.as_fd(), patience).map_err(|errno| failed(&errno))? {
            return Ok(None);
        }
        let mut bytes = vec![0; MAX_CONTROL_BYTES];
        let received = passing::receive(self.socket.as_fd(), &mut bytes, DESCRIPTORS_MAX);
        let passing::Received { length, descriptors } = received.map_err(|error| match error {
            ReceiveError::Closed => self.lost(),
            other => failed(&other),
        })?;
        let message = bytes.get(..length).unwrap_or_default();
        let Envelope { number, body } =
            decode(message).map_err(|_| RequestError::Protocol { what: "a reply cannot be read" })?;
        Ok(Some((number, Answer { reply: body, descriptors })))
    }

    fn lost(&self) -> RequestError {
        self.state().lost = true;
        RequestError::DaemonLost
    }

    /// Whether the daemon has hung up. A system call; remembered once true.
    pub(crate) fn is_lost(&self) -> bool {
        if self.state().lost {
            return true;
        }
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        calls::count();
        let hung_up = poll(&mut polled, Some(&now)).is_ok()
            && polled
                .iter()
                .any(|p| p.revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR));
        if hung_up {
            self.state().lost = true;
            self.changed.notify_all();
        }
        hung_up
    }

    /// Whether the daemon did not answer the last time that it was waited for.
    pub(crate) fn is_silent(&self) -> bool {
        self.state().silent
    }

    /// A descriptor that is hung up when the daemon is gone.
    pub(crate) fn watch(&self) -> rustix::io::Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)
    }

    /// Hangs up: the daemon ends the session, whoever else still holds the descriptor.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Hands a reply to whoever awaits it. One that nobody awaits any more is dropped, its descriptors closed.
    fn deliver(&mut self, (number, answer): (u32, Answer)) {
        self.silent = false;
        if let Some(place) = self.awaited.get_mut(&number) {
            *place = Some(answer);
        }
    }
}

impl Answer {
    fn into_refusal(self) -> Result<Self, (ringway_abi::control::RefusalKind, String)> {
        match self.reply {
            Reply::Refused { kind, message } => Err((kind, message)),
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_abi::control::RefusalKind;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn pair() -> (Control, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("socketpair");
        (Control::new(ours), theirs)
    }

    fn take(daemon: &OwnedFd) -> Envelope<Request> {
        let mut bytes = [0; 1024];
        let received = passing::receive(daemon.as_fd(), &mut bytes, 0).expect("receive");
        decode(&bytes[..received.length]).expect("decode")
    }

    fn give(daemon: &OwnedFd, number: u32, body: Reply) {
        let bytes = encode(&Envelope { number, body }).expect("encode");
        passing::send(daemon.as_fd(), &bytes, &[]).expect("send");
    }

    #[test]
    fn replies_in_another_order_reach_their_requests() {
        let (control, daemon) = pair();
        thread::scope(|scope| {
            let asked: Vec<_> = (0..4_u32)
                .map(|token| {
                    let control = &control;
                    scope.spawn(move || {
                        let request = Request::Explain { communicator: 0, token };
                        (token, control.request(request, &[], PATIENCE).expect("answer").reply)
                    })
                })
                .collect();
            let mut requests: Vec<_> = (0..4).map(|_| take(&daemon)).collect();
            requests.reverse();
            for Envelope { number, body } in requests {
                let Request::Explain { token, .. } = body else { panic!("another request") };
                give(&daemon, number, Reply::Text(token.to_string()));
            }
            for thread in asked {
                let (token, reply) = thread.join().expect("join");
                assert_eq!(reply, Reply::Text(token.to_string()));
            }
        });
    }

    #[test]
    fn a_refusal_is_an_error() {
        let (control, daemon) = pair();
        thread::scope(|scope| {
            let asked = scope.spawn(|| control.request(Request::Status, &[], PATIENCE).map(|a| a.reply));
            let number = take(&daemon).number;
            let (kind, message) = (RefusalKind::Busy, "later".to_owned());
            give(&daemon, number, Reply::Refused { kind, message: message.clone() });
            assert_eq!(asked.join().expect("join"), Err(RequestError::Refused { kind, message }));
        });
    }

    #[test]
    fn a_hang_up_ends_every_request() {
        let (control, daemon) = pair();
        thread::scope(|scope| {
            let asked: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| control.request(Request::Status, &[], PATIENCE).map(|a| a.reply)))
                .collect();
            for _ in 0..3 {
                take(&daemon);
            }
            assert!(!control.is_lost());
            drop(daemon);
            for thread in asked {
                assert_eq!(thread.join().expect("join"), Err(RequestError::DaemonLost));
            }
        });
        assert!(control.is_lost());
        assert_eq!(
            control.request(Request::Status, &[], PATIENCE).map(|a| a.reply),
            Err(RequestError::DaemonLost)
        );
    }

    #[test]
    fn one_who_does_not_answer_is_known_until_he_does_and_never_blocks_a_sender() {
        let (control, daemon) = pair();
        let request = |patience| control.request(Request::Status, &[], patience).map(|a| a.reply);
        assert!(!control.is_silent());
        // More than the socket holds.
        for _ in 0..2_000 {
            assert!(matches!(request(Duration::ZERO), Err(RequestError::NoAnswer { .. })));
        }
        assert!(control.is_silent());
        let number = take(&daemon).number;
        give(&daemon, number, Reply::Done);
        assert!(matches!(request(Duration::from_millis(100)), Err(RequestError::NoAnswer { .. })));
        assert!(control.is_silent(), "the last one was not answered");
        let last = control.state().next + 1;
        thread::scope(|scope| {
            let asked = scope.spawn(|| request(PATIENCE));
            loop {
                let number = take(&daemon).number;
                give(&daemon, number, Reply::Done);
                if number == last {
                    break;
                }
            }
            assert_eq!(asked.join().expect("join"), Ok(Reply::Done));
        });
        assert!(!control.is_silent());
    }

    #[test]
    fn a_late_reply_is_dropped() {
        let (control, daemon) = pair();
        let late = control.request(Request::Status, &[], Duration::from_millis(1)).map(|a| a.reply);
        assert!(matches!(late, Err(RequestError::NoAnswer { .. })));
        let number = take(&daemon).number;
        give(&daemon, number, Reply::Done);
        thread::scope(|scope| {
            let asked = scope.spawn(|| control.request(Request::Status, &[], PATIENCE).map(|a| a.reply));
            let number = take(&daemon).number;
            give(&daemon, number, Reply::Text("now".to_owned()));
            assert_eq!(asked.join().expect("join"), Ok(Reply::Text("now".to_owned())));
        });
    }
}
