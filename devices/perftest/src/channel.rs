//! The TCP connection over which both sides tell each other what the queue pairs need, and wait for each other. It is
//! what perftest's programs have: turns of fixed length, the client's first.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str,
    time::Duration,
};
use std::{
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream, ToSocketAddrs as _},
    time::Instant,
};

use ringway_wire::PathMtu;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use thiserror::Error;

use crate::keys::{Keys, KeysError};

/// The version that is spoken: that of perftest 4.5.
const VERSION: &str = "6.06";
/// The oldest version that speaks the same.
const VERSION_LEAST: f64 = 5.70;
/// Bytes of a version.
const VERSION_BYTES: usize = 16;
/// How long the peer may take for a turn before the measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// A host that vanished says nothing, not even that it is gone: it is asked when nothing was heard of it for so long, and as long
/// after each of so many questions without an answer it is taken to be gone.
const SILENCE: Duration = Duration::from_secs(5);
const QUESTIONS: u32 = 3;
/// What both sides say when they are done.
const DONE: [u8; 5] = *b"done\0";

/// Which side this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Connects, and speaks first.
    Client,
    /// Waits to be connected to.
    Server,
}

/// Why both sides do not understand each other.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// No connection.
    #[error("{what}: {error}")]
    Connect {
        /// What was tried.
        what: String,
        /// The system's reason.
        error: io::Error,
    },
    /// The connection ended.
    #[error("the peer hung up before it sent {awaited}; its own output says why")]
    HungUp {
        /// What should have come.
        awaited: &'static str,
    },
    /// The peer is silent.
    #[error(
        "the peer has not sent {awaited} within {} s; is it perftest, and the same test?", PATIENCE.as_secs()
    )]
    Silent {
        /// What should have come.
        awaited: &'static str,
    },
    /// The system refused.
    #[error("the connection to the peer broke while it was to send {awaited}: {error}")]
    Broken {
        /// What should have come.
        awaited: &'static str,
        /// The system's reason.
        error: io::Error,
    },
    /// The peer speaks something else.
    #[error(
        "the peer's version is {found:?}; versions of perftest from {VERSION_LEAST:.2} on are understood"
    )]
    Version {
        /// What it said.
        found: String,
    },
    /// A number that cannot be.
    #[error("the peer says that its {what} is {found:?}, which cannot be; is it perftest?")]
    Nonsense {
        /// Which number.
        what: &'static str,
        /// What it said.
        found: String,
    },
    /// The description of a queue pair cannot be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// What both sides agree on before anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Messages cycle through so many bytes of memory.
    pub cycle_bytes: u64,
    /// The least distance between two messages in memory.
    pub line_bytes: u64,
    /// The most payload of a packet.
    pub mtu: PathMtu,
}

/// How a bandwidth test went, as its client tells its server.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outcome {
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages.
    pub iterations: u64,
    /// The best rate between any two messages, in MiB/s.
    pub peak_mib_s: f64,
    /// The rate, in MiB/s.
    pub average_mib_s: f64,
    /// Millions of messages per second.
    pub messages_m_s: f64,
}

/// A connection to the peer's program.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    side: Side,
}

/// Waits for a peer.
///
/// # Errors
/// When nobody comes, or the port is taken.
pub fn accept(port: u16) -> Result<Channel, ChannelError> {
    let failed = |error| ChannelError::Connect { what: format!("cannot wait on TCP port {port}"), error };
    // A socket of IPv6 takes both, where the host has it.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    let (stream, _) = listener.and_then(|listener| listener.accept()).map_err(failed)?;
    Channel::over(stream, Side::Server)
}

/// Connects to a peer that waits, or will in a moment.
///
/// # Errors
/// When it cannot be reached.
pub fn connect(peer: &str, port: u16) -> Result<Channel, ChannelError> {
    let failed =
        |error| ChannelError::Connect { what: format!("cannot connect to {peer}, TCP port {port}"), error };
    let start = Instant::now();
    loop {
        let addresses = (peer, port).to_socket_addrs().map_err(failed)?;
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for address in addresses {
            match TcpStream::connect(address) {
                Ok(stream) => return Channel::over(stream, Side::Client),
                Err(error) => last = error,
            }
        }
        if last.kind() != io::ErrorKind::ConnectionRefused || start.elapsed() > Duration::from_secs(10) {
            return Err(failed(last));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Channel {
    /// A channel over a connection that stands.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn over(stream: TcpStream, side: Side) -> Result<Self, ChannelError> {
        let asks = || {
            set_tcp_keepidle(&stream, SILENCE)?;
            set_tcp_keepintvl(&stream, SILENCE)?;
            set_tcp_keepcnt(&stream, QUESTIONS)?;
            set_socket_keepalive(&stream, true)
        };
        let set = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
        set.and_then(|()| Ok(asks()?))
            .map_err(|error| ChannelError::Connect { what: "cannot use the connection".to_owned(), error })?;
        Ok(Self { stream, side })
    }

    /// Which side this is.
    #[must_use]
    pub const fn side(&self) -> Side {
        self.side
    }

    /// This side's address, which RoCE packets come from unless another is asked for.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_address(&self) -> Result<IpAddr, ChannelError> {
        let awaited = "anything";
        let address = self.stream.local_addr().map_err(|error| ChannelError::Broken { awaited, error })?;
        // Where a socket of IPv6 took a connection over IPv4, it says so in its own way.
        Ok(address.ip().to_canonical())
    }

    /// A turn of each side, of one length. While this side waits it calls `meanwhile`.
    fn exchange<const N: usize>(
        &mut self,
        awaited: &'static str,
        mine: &[u8; N],
        patience: Option<Duration>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<[u8; N], ChannelError> {
        let broken = |error| ChannelError::Broken { awaited, error };
        if self.side == Side::Client {
            self.stream.write_all(mine).map_err(broken)?;
        }
        let (mut theirs, mut have, start) = ([0; N], 0, Instant::now());
        while let Some(rest @ [_, ..]) = theirs.get_mut(have..) {
            match self.stream.read(rest) {
                Ok(0) => return Err(ChannelError::HungUp { awaited }),
                Ok(more) => have += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => meanwhile(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ChannelError::HungUp { awaited });
                }
                Err(error) => return Err(broken(error)),
            }
            if patience.is_some_and(|patience| start.elapsed() > patience) {
                return Err(ChannelError::Silent { awaited });
            }
        }
        if self.side == Side::Server {
            self.stream.write_all(mine).map_err(broken)?;
        }
        Ok(theirs)
    }

    /// Versions, the way through memory, and the path MTU.
    ///
    /// # Errors
    /// When the peer is no perftest, or too old a one.
    pub fn agree(&mut self, mine: Agreement) -> Result<Agreement, ChannelError> {
        let (patience, idle) = (Some(PATIENCE), &mut || std::thread::sleep(Duration::from_micros(200)));
        let mut version = [0; VERSION_BYTES];
        version.iter_mut().zip(VERSION.bytes()).for_each(|(to, from)| *to = from);
        let theirs = self.exchange("its version", &version, patience, idle)?;
        let theirs = text(&theirs);
        // Only decimal digits: `parse` would take "inf" and "nan" as well.
        let plain = theirs.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !plain || !theirs.parse().is_ok_and(|version: f64| version >= VERSION_LEAST) {
            return Err(ChannelError::Version { found: theirs });
        }
        let mut most = |what, awaited, mine: u64, limit: u64| {
            let mine_bytes = (mine as u32).to_be_bytes();
            let theirs =
                u64::from(u32::from_be_bytes(self.exchange(awaited, &mine_bytes, patience, idle)?));
            if theirs == 0 || theirs > limit {
                return Err(ChannelError::Nonsense { what, found: theirs.to_string() });
            }
            Ok(theirs.max(mine))
        };
        let cycle_bytes = most("page size", "its page size", mine.cycle_bytes, 1 << 24)?;
        let line_bytes = most("cache line", "its cache line's length", mine.line_bytes, 1 << 12)?;
        let code = [b'0' + mine.mtu.code(), 0];
        let theirs = self.exchange("its path MTU", &code, patience, idle)?;
        let [digit @ b'0'..=b'9', _] = theirs else {
            return Err(ChannelError::Nonsense { what: "path MTU", found: text(&theirs) });
        };
        // A peer that names none leaves it to this side.
        let theirs = PathMtu::from_code(digit - b'0').unwrap_or(mine.mtu);
        let mtu = if theirs.bytes() < mine.mtu.bytes() { theirs } else { mine.mtu };
        Ok(Agreement { cycle_bytes, line_bytes, mtu })
    }

    /// Descriptions of queue pairs. Both sides also wait for each other in this way, the peer for as long as it
    /// measures.
    ///
    /// # Errors
    /// When the peer's cannot be read, or it hung up.
    pub fn keys(
        &mut self,
        mine: &Keys,
        measuring: bool,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Keys, ChannelError> {
        let patience = (!measuring).then_some(PATIENCE);
        let theirs =
            self.exchange("the description of its queue pair", &mine.to_bytes(), patience, meanwhile)?;
        Ok(Keys::parse(&theirs)?)
    }

    /// How the bandwidth test went on either side.
    ///
    /// # Errors
    /// When the peer hung up.
    pub fn outcome(&mut self, mine: &Outcome, meanwhile: &mut dyn FnMut()) -> Result<Outcome, ChannelError> {
        let mut one = |mine: u64| {
            let theirs = self.exchange("its results", &mine.to_be_bytes(), Some(PATIENCE), meanwhile);
            theirs.map(u64::from_be_bytes)
        };
        Ok(Outcome {
            bytes: one(mine.bytes)?,
            iterations: one(mine.iterations)?,
            peak_mib_s: f64::from_bits(one(mine.peak_mib_s.to_bits())?),
            average_mib_s: f64::from_bits(one(mine.average_mib_s.to_bits())?),
            messages_m_s: f64::from_bits(one(mine.messages_m_s.to_bits())?),
        })
    }

    /// Says that this side is done, and waits for the other to say so, or to hang up: it may not wait for us.
    pub fn done(&mut self, patience: Duration, meanwhile: &mut dyn FnMut()) {
        let start = Instant::now();
        if self.stream.write_all(&DONE).is_err() {
            return;
        }
        let mut theirs = [0; DONE.len()];
        while start.elapsed() < patience {
            match self.stream.read(&mut theirs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => meanwhile(),
                _ => return,
            }
        }
    }

    /// Whether the peer has begun a turn that this side has not taken.
    #[must_use]
    pub fn has_spoken(&self) -> bool {
        matches!(self.stream.peek(&mut [0]), Ok(1..))
    }

    /// Whether the peer has hung up.
    #[must_use]
    pub fn hung_up(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(more) => more == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

/// What stands before the first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
