//! What is below the queue pairs: how operations on their sockets are given to the kernel, and how they come back.

use core::fmt::Debug;
use core::net::SocketAddr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ringway_verbs::LocalKey;

use crate::acceptor::TcpAcceptor;
use crate::buffers::{ReceivePlan, SendBatch};
use crate::error::TcpError;
use crate::loans::ZeroCopy;
use crate::ring::Ring;
use crate::sockets::Sockets;

/// How a device has the kernel move bytes. Devices with different drivers speak the same with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpDriver {
    /// An io_uring: operations are handed over in batches, and wait in the kernel.
    IoUring,
    /// Ordinary non-blocking sockets watched by epoll, as most servers have them: what io_uring is compared with, and
    /// what works where that is forbidden.
    Epoll,
}

impl TcpDriver {
    /// Both, the faster first.
    pub const ALL: [Self; 2] = [Self::IoUring, Self::Epoll];

    /// The name of devices that have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IoUring => "tcp",
            Self::Epoll => "tcp-epoll",
        }
    }

    pub(crate) fn make(
        self,
        acceptor: TcpAcceptor,
        zero_copy: ZeroCopy,
    ) -> Result<Box<dyn Driver>, TcpError> {
        Ok(match self {
            Self::IoUring => Box::new(Ring::new(acceptor, zero_copy)?),
            Self::Epoll => Box::new(Sockets::new(&acceptor)?),
        })
    }
}

/// A finished operation. `number` is that of its connection, given when it was started, `result` a count of bytes, or a negative
/// `errno`.
#[derive(Debug)]
pub(crate) enum Event {
    /// The batch comes back without what has been sent of it; or another, with nothing in it, if it was lent to the kernel,
    /// with the number of the first request that has a part in it.
    Sent {
        number: u32,
        batch: Box<SendBatch>,
        result: i32,
        lent: Option<u64>,
    },
    /// The kernel has let go of what was lent under this number.
    Returned {
        number: u32,
        first_request: u64,
    },
    /// `more` says that there may be more bytes in the socket.
    Received {
        number: u32,
        plan: Box<ReceivePlan>,
        result: i32,
        more: bool,
    },
    Connected {
        number: u32,
        result: i32,
    },
    /// Nothing for the caller.
    Other,
}

impl Event {
    /// The connection's number.
    pub(crate) const fn number(&self) -> Option<u32> {
        match self {
            Self::Sent { number, .. }
            | Self::Returned { number, .. }
            | Self::Received { number, .. }
            | Self::Connected { number, .. } => Some(*number),
            Self::Other => None,
        }
    }
}

/// When bytes are expected that are to be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// There may be some in the socket.
    Now,
    /// There are none yet, but may be at any time.
    Soon,
    /// None are, but the end of the connection is to be noticed.
    Hardly,
}

/// Gives the kernel operations on sockets. A connection has at most one of each kind under way, and what an operation
/// works on is the driver's from its start until [`Driver::next`] gives it back.
pub(crate) trait Driver: Debug + Send {
    /// Whether sockets must be non-blocking, or blocking.
    fn wants_nonblocking(&self) -> bool;

    /// Makes room for the operations of connections up to this index, the lower half of their numbers.
    fn reserve(&mut self, index: u16);

    /// Sends the whole batch. It comes back with [`Event::Sent`], or at once when it could not be started.
    fn send(
        &mut self,
        socket: &Arc<OwnedFd>,
        number: u32,
        batch: Box<SendBatch>,
    ) -> Result<(), Box<SendBatch>>;

    /// Receives at least one byte into a plan's places.
    fn receive(
        &mut self,
        socket: &Arc<OwnedFd>,
        number: u32,
        plan: Box<ReceivePlan>,
        awaited: Awaited,
    ) -> Result<(), Box<ReceivePlan>>;

    /// Connects a socket; whether that could be started.
    fn connect(&mut self, socket: &Arc<OwnedFd>, number: u32, peer: SocketAddr) -> bool;

    /// Gives up what a connection has under way on its socket, which is shut down; it comes back as usual.
    fn cancel(&mut self, socket: &OwnedFd, number: u32);

    /// Has the kernel drop what it has of a connection to be sent, if it reads that from where it lies. The socket is shut down.
    fn disconnect(&mut self, _socket: &OwnedFd, _number: u32) {}

    /// Lets go of a connection's socket. Nothing is under way on it.
    fn forget(&mut self, number: u32);

    /// Lets go of a region, which is no longer registered.
    fn deregister(&mut self, _key: LocalKey) {}

    /// Hands over what was started, if anything waits for that.
    fn submit(&mut self) -> io::Result<()>;

    /// Asks what has become of operations, if that takes asking.
    fn look(&mut self) -> io::Result<()>;

    /// The next finished operation.
    fn next(&mut self) -> Option<Event>;

    /// Whether neither [`Driver::submit`] nor [`Driver::next`] has anything to do.
    fn is_idle(&mut self) -> bool;

    /// Has events make [`Driver::event_descriptor`] readable from now on. What happened before shows in
    /// [`Driver::is_idle`], or makes it readable as well.
    fn arm(&mut self);

    /// Makes ready to wait by [`Driver::block`]. `false`: it cannot, and [`Driver::arm`] and a wait for
    /// [`Driver::event_descriptor`] do.
    fn prepare_to_block(&mut self) -> bool {
        false
    }

    /// Hands over what was started, and waits for an event if there is none, at most for so long.
    fn block(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    /// The caller polls again: events need no signal.
    fn disarm(&mut self);

    /// Becomes readable when a caller that blocks has to poll, also for offers of connections.
    fn event_descriptor(&self) -> BorrowedFd<'_>;

    /// Counts since the driver was made. `system_calls` are all but those that make, prepare and close sockets.
    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64));
}
