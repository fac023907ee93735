//! Accepted connections that have not said yet what they are. Their first eight bytes tell.

use std::{
    fmt, io,
    net::{SocketAddr, TcpStream},
    os::fd::{BorrowedFd, OwnedFd},
    time::Instant,
};

use super::{
    channel,
    socket::{self, ReadOutcome},
};

/// Bytes with which a data connection starts, its one-time token among them.
pub(crate) const DATA_PREFACE_BYTES: usize = 64;

/// Takes the data connections that arrive at the daemons' port.
pub(crate) trait DataDoor: fmt::Debug {
    /// The first bytes of a data connection.
    fn magic(&self) -> [u8; 8];
    /// Gives the listener what data connections are to have from their beginning.
    fn prepare(&self, listener: BorrowedFd<'_>) -> io::Result<()>;
    /// Takes a connection whose first bytes were these; closes it when nobody waits for it.
    fn take(&mut self, preface: &[u8; DATA_PREFACE_BYTES], socket: OwnedFd);
}

/// What a connection turned out to be.
#[derive(Debug)]
pub(crate) enum Sort {
    /// Not enough bytes yet.
    Unknown,
    /// A control connection; these bytes of it were read.
    Control(Vec<u8>),
    /// A data connection and its preface.
    Data([u8; DATA_PREFACE_BYTES]),
    /// Something else, or it has closed: to be closed.
    Stray,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) stream: TcpStream,
    pub(crate) from: SocketAddr,
    /// When it is closed if it has not said what it is.
    pub(crate) deadline: Instant,
    buffer: [u8; DATA_PREFACE_BYTES],
    filled: usize,
}

impl Incoming {
    pub(crate) fn new(stream: TcpStream, from: SocketAddr, deadline: Instant) -> Self {
        Self { stream, from, deadline, buffer: [0; DATA_PREFACE_BYTES], filled: 0 }
    }

    /// Reads no more than what tells the kinds apart, so that nothing of what follows is taken away.
    pub(crate) fn sort(&mut self, data_magic: Option<[u8; 8]>) -> Sort {
        loop {
            let is_data = self.filled >= 8 && data_magic.is_some_and(|m| self.buffer.starts_with(&m));
            let wanted = if is_data { DATA_PREFACE_BYTES } else { 8 };
            if self.filled >= wanted {
                let head = self.buffer.get(..self.filled).unwrap_or_default();
                return if is_data {
                    Sort::Data(self.buffer)
                } else if head == channel::MAGIC {
                    Sort::Control(head.to_vec())
                } else {
                    Sort::Stray
                };
            }
            let Some(room) = self.buffer.get_mut(self.filled..wanted) else { return Sort::Stray };
            match socket::read(&self.stream, room) {
                Ok(ReadOutcome::Bytes(n)) => self.filled = self.filled.saturating_add(n),
                Ok(ReadOutcome::Nothing) => return Sort::Unknown,
                Ok(ReadOutcome::Closed) | Err(_) => return Sort::Stray,
            }
        }
    }
}
