//! One client's socket: messages in, messages out, never blocking, never holding more than a bounded backlog.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use ringway_mem::passing::{self, ReceiveError, SendError};

/// The most descriptors of one message from a client.
const MAX_DESCRIPTORS: usize = 1;

/// Messages that may wait for a client that does not read; one more ends its session.
const BACKLOG_MAX: usize = 128;

/// A message that waits to be sent.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// What came.
#[derive(Debug)]
pub(super) enum Received {
    /// A message of so many bytes, and its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other side is gone.
    Closed,
    /// The other side sent something no client sends.
    Violation(ReceiveError),
}

/// One client's socket.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    backlog: VecDeque<Outgoing>,
}

/// Why a message was not taken for sending: the client does not read, or is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsendable;

impl Connection {
    /// Takes a non-blocking SEQPACKET socket.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, backlog: VecDeque::new() }
    }

    /// Takes the next message, if there is one, into `buffer`.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Received {
        match passing::receive(self.socket.as_fd(), buffer, MAX_DESCRIPTORS) {
            Ok(message) => Received::Message(message.length, message.descriptors),
            Err(ReceiveError::WouldBlock) => Received::Nothing,
            Err(ReceiveError::Closed | ReceiveError::Kernel(_)) => Received::Closed,
            Err(violation) => Received::Violation(violation),
        }
    }

    /// Sends a message, or keeps it until the client reads.
    pub(super) fn send(&mut self, bytes: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<(), Unsendable> {
        if self.backlog.len() >= BACKLOG_MAX {
            return Err(Unsendable);
        }
        self.backlog.push_back(Outgoing { bytes, descriptors });
        self.flush()
    }

    /// Sends what waits, as far as the client reads.
    pub(super) fn flush(&mut self) -> Result<(), Unsendable> {
        while let Some(next) = self.backlog.front() {
            let descriptors: Vec<_> = next.descriptors.iter().map(AsFd::as_fd).collect();
            match passing::send(self.socket.as_fd(), &next.bytes, &descriptors) {
                Ok(()) => {
                    self.backlog.pop_front();
                }
                Err(SendError::WouldBlock) => return Ok(()),
                Err(_) => return Err(Unsendable),
            }
        }
        Ok(())
    }

    /// Whether something waits for the client to read.
    pub(super) fn is_backlogged(&self) -> bool {
        !self.backlog.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
