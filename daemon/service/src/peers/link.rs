//! One control connection: a socket and the channel on it.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{
    channel::{Channel, ChannelError},
    socket::{self, ReadOutcome},
};
use crate::poller::{Interest, Poller};

/// Bytes read at a time, and how often in one turn, so that one peer cannot keep the thread.
const READ_BYTES: usize = 64 * 1024;
const READS_PER_TURN: usize = 16;

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A root that ranks of ours join: we connected.
    Root(SocketAddr),
    /// A member that joins something rooted here: it connected.
    Member,
}

/// Why a link ended.
#[derive(Debug)]
pub(crate) enum LinkEnd {
    /// The system says so.
    Io(io::Error),
    /// The other side closed it.
    Closed,
    /// What came over it.
    Channel(ChannelError),
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) peer: Peer,
    /// The address at the other end.
    pub(crate) address: SocketAddr,
    pub(crate) channel: Channel,
    /// TCP has connected.
    pub(crate) connected: bool,
    /// When it must have proved who it is; `None` once it has.
    pub(crate) setup_deadline: Option<Instant>,
    pub(crate) last_heard: Instant,
    pub(crate) last_sent: Instant,
    pub(crate) last_use: Instant,
    /// A join is in progress on it since then.
    pub(crate) busy_since: Option<Instant>,
    interest: Interest,
    token: u64,
}

impl Link {
    pub(crate) fn new(
        stream: TcpStream,
        (peer, address): (Peer, SocketAddr),
        channel: Channel,
        token: u64,
        now: Instant,
        setup: Duration,
    ) -> Self {
        Self {
            stream,
            peer,
            address,
            channel,
            connected: peer == Peer::Member,
            setup_deadline: Some(now + setup),
            last_heard: now,
            last_sent: now,
            last_use: now,
            busy_since: None,
            interest: Interest::Read,
            token,
        }
    }

    /// Starts to watch the socket.
    pub(crate) fn register(&mut self, poller: &Poller) -> io::Result<()> {
        self.interest = self.wanted();
        Ok(poller.add(&self.stream, self.token, self.interest)?)
    }

    /// Does what the socket is ready for and returns the messages that came. They count even if the link ended.
    pub(crate) fn work(&mut self, now: Instant, poller: &Poller) -> (Vec<Vec<u8>>, Result<(), LinkEnd>) {
        let mut messages = Vec::new();
        let result = self.try_work(now, &mut messages);
        let result = result.and_then(|()| self.watch(poller).map_err(LinkEnd::Io));
        if !messages.is_empty() {
            self.last_heard = now;
        }
        if messages.iter().any(|m| !m.is_empty()) {
            self.last_use = now;
        }
        (messages, result)
    }

    fn try_work(&mut self, now: Instant, messages: &mut Vec<Vec<u8>>) -> Result<(), LinkEnd> {
        if !self.connected {
            self.connected = socket::finish_connect(&self.stream).map_err(LinkEnd::Io)?;
            if !self.connected {
                return Ok(());
            }
        }
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match socket::read(&self.stream, &mut buffer).map_err(LinkEnd::Io)? {
                ReadOutcome::Bytes(n) => self.feed(buffer.get(..n).unwrap_or_default(), now, messages)?,
                ReadOutcome::Nothing => break,
                ReadOutcome::Closed => return Err(LinkEnd::Closed),
            }
        }
        self.flush().map_err(LinkEnd::Io)
    }

    /// Gives the channel bytes that were read. If it ends here, what it still has to say is written.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        now: Instant,
        messages: &mut Vec<Vec<u8>>,
    ) -> Result<(), LinkEnd> {
        let result = self.channel.received(bytes, messages);
        if result.is_err() {
            // The link ends with that reason, whether or not the other side can still be told.
            let _ = self.flush();
        }
        self.last_heard = now;
        result.map_err(LinkEnd::Channel)
    }

    /// Sends a message, or only life when it is empty.
    pub(crate) fn send(&mut self, message: &[u8], now: Instant, poller: &Poller) -> Result<(), LinkEnd> {
        self.channel.send(message).map_err(LinkEnd::Channel)?;
        self.last_sent = now;
        if !message.is_empty() {
            self.last_use = now;
        }
        self.flush().map_err(LinkEnd::Io)?;
        self.watch(poller).map_err(LinkEnd::Io)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connected && !self.channel.output().is_empty() {
            let written = socket::write(&self.stream, self.channel.output())?;
            if written == 0 {
                break;
            }
            self.channel.written(written);
        }
        Ok(())
    }

    fn wanted(&self) -> Interest {
        if self.connected && self.channel.output().is_empty() { Interest::Read } else { Interest::ReadWrite }
    }

    fn watch(&mut self, poller: &Poller) -> io::Result<()> {
        if self.interest != self.wanted() {
            self.interest = self.wanted();
            poller.modify(&self.stream, self.token, self.interest)?;
        }
        Ok(())
    }

    /// The next time at which something must be done about it.
    pub(crate) fn deadline(&self, times: &super::Times) -> Instant {
        let next = match self.busy_since {
            Some(_) => self.last_sent + times.keep_alive,
            None => self.idle_until(times),
        };
        self.setup_deadline.unwrap_or(next)
    }

    /// When it is closed if nobody uses it. The side that connected, which is the one that speaks first, closes it
    /// first: else the other could close it just when a join is on its way.
    pub(crate) fn idle_until(&self, times: &super::Times) -> Instant {
        match self.peer {
            Peer::Root(_) => self.last_use + times.idle,
            Peer::Member => self.last_use + times.idle * 2,
        }
    }

    /// Whether nothing came for too long although a join is in progress.
    pub(crate) fn is_silent(&self, now: Instant, times: &super::Times) -> bool {
        self.busy_since
            .is_some_and(|since| now.saturating_duration_since(since.max(self.last_heard)) > times.silence)
    }
}
