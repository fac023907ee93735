//! The verbs contract over kernel TCP: one connection per queue pair or several (`stripes`), driven by io_uring or by epoll
//! ([`TcpDriver`]).
//!
//! # How it works
//! Requests travel as frames ([`frame`]): a fixed header, then the payload, which is received straight into the posted
//! receive or the registered region that the header names, after its key, range and access were checked. Every frame
//! carries two running counts: how many of the peer's requests were executed (so a request completes at its sender
//! when the responder has placed it, as on a reliable connection) and how many receives were ever posted (credits).
//!
//! # Why it cannot deadlock
//! A SEND or WRITE_WITH_IMM leaves only when the peer has announced a receive for it, which it does at once when none is left. The
//! receiving side therefore never has to stop reading, whatever the caller does: acknowledgements and READ responses always get
//! through. Of several connections one may have to wait for another's part of a payload, which waits for nothing (`stripes`).
//! Reading never waits for sending either: all that an incoming frame can leave to be sent is an acknowledgement, which is
//! a pair of numbers, or a READ response, of which the requester may have [`frame::MAX_READS`] outstanding.
//!
//! # Memory
//! What the kernel works on is owned by the driver until it is done: headers, staging bytes, and the mappings that scatter
//! and gather lists point into. A queue pair that fails flushes its requests only after the kernel has let go of them.
//! What is sent without a copy is the kernel's until it says so a second time (`loans`).
//! Unsafe code is in `vectors`, where such lists and the system calls that work through one at once are, in `ring`, where
//! io_uring is given them for longer, and in `options`, which sets one of sockets.
//!
//! # Drivers
//! All that a queue pair does is written once, over the trait `Driver`: operations on sockets go in, events come out. `ring`
//! implements it with io_uring; `sockets` is the conventional baseline, whose documentation says what system calls a
//! message costs. Both speak the same, so devices with either can be connected. The device counts its system calls.
//! While the caller spins, io_uring is passed over for the few connections that are active (`direct`).
//!
//! # Acknowledgements
//! To send an acknowledgement costs about as much as to receive a message. One of a request that is not signalled has time until
//! something else is sent, or some such messages have come: nobody waits for it, unless half of the send queue does. What is
//! signalled is acknowledged at once, as its sender waits for its memory, but for two reasons: a short SEND's waits a moment for a
//! reply to go with, and while the socket has more, messages are acknowledged together. Receives that were posted are told with
//! that, and alone only when the peer has no more left than are new.
//!
//! # Threads
//! A device may be made on one thread and used on another; with io_uring the first poll, flush, arm or block binds it to its thread
//! for good. [`TcpAcceptor`] may be used from any thread.

mod acceptor;
mod buffers;
mod congestion;
mod connection;
mod device;
mod direct;
mod driver;
mod endpoint;
mod error;
pub mod frame;
mod loans;
mod options;
mod peer_address;
mod pinned;
mod queue_pair;
mod receive;
mod ring;
mod slots;
mod sockets;
mod stripes;
mod transmit;
mod vectors;

pub use acceptor::{OfferError, TcpAcceptor};
pub use congestion::Congestion;
pub use device::{TcpConfig, TcpDevice};
pub use driver::TcpDriver;
pub use endpoint::{DATA_MAGIC, PREFACE_LENGTH, Preface, Token};
pub use error::{TcpError, TcpFailure};
pub use loans::ZeroCopy;
pub use stripes::MAX_CONNECTIONS;
