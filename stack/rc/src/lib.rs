//! Reliable connections: requester, responder and completer of a queue pair as state machines without I/O, as the
//! InfiniBand Architecture Specification (volume 1, chapter 9) has them, over the packets of `ringway-wire`.
//!
//! A [`QueuePair`] owns no memory but its bookkeeping, no socket and no clock. The caller gives it received packets,
//! posted requests and the time; it gives packets to send and completions. Nothing is allocated after it is made, and
//! nothing a peer sends makes it panic or work without bound.
//!
//! # Types
//! - [`Configuration`], [`Transition`] and their attributes: what a queue pair is made and connected with.
//! - [`Memory`]: the caller's registered memory, with its keys; the queue pair says what is to be done to it.
//! - `Requester` (`requester.rs`, `completer.rs`): the send queue as a deque of `Posted` requests. PSNs are given out
//!   when a request is posted. Three of them say how far it is: `unacknowledged <= next <= highest`.
//! - `Responder` (`responder.rs`): the receives, the expected PSN, the message under way; `Responses`: what is to be
//!   said, in the order of the requests, and the last READs and atomics, to say it again.
//! - `Outgoing` (`segment.rs`): a packet as header value and a reference to its payload. It follows from request and
//!   PSN alone, so nothing that was sent is kept in order to be sent again.
//! - `Completions`: finished requests, which hold their slots until they are taken.
//!
//! # The path of a message
//! 1. `post_send` appends it to the send queue.
//! 2. `next_departure` gives the packet at `next`, and `write` makes it: headers are written and the payload is copied from the region into
//!    the caller's frame, the only copy on this side, and the invariant CRC is computed over it while it is in the
//!    first-level cache.
//! 3. At the peer, `handle_packet` compares the PSN with the expected one. Equal: it is executed, payload is copied from
//!    the frame into the region. Earlier: a duplicate, answered again and not executed again. Later: something is
//!    missing, and a NAK says what, once.
//! 4. Acknowledgements that are due at the same `poll_transmit` become one, for the last of their PSNs. The sender asks
//!    for one with the last packet of every message, when the window is full, and every 64 packets.
//! 5. At the sender `handle_packet` moves `unacknowledged`; requests that end before it are completed, in order.
//!
//! # When packets are lost
//! `next` goes back to `unacknowledged` (go-back-N): on a NAK for a sequence error, when an acknowledgement passes a
//! READ whose response is missing, and when nothing at all comes for the local ACK timeout. A READ is asked again from
//! the first missing packet on. Every going back counts as a retry until something is acknowledged.
//!
//! Two ends that have agreed on it do better: see `selective`, which keeps what came after a gap, says what is missing,
//! sends only that again, and bounds what is outstanding by the delay and the marks that packets meet. Toward any other
//! peer congestion notifications slow down (`rate.rs`).
//!
//! Requests that the peer refuses fail the queue pair on both sides. The refusing side keeps repeating the refusal when
//! it is sent to again, as the NAK may have been lost, and the answers to what came before it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attributes;
mod completer;
mod completions;
mod counters;
mod departure;
mod endpoint;
mod envelope;
mod failure;
mod memory;
mod mutation;
mod queue_pair;
mod rate;
mod requester;
mod responder;
mod responses;
mod segment;
mod selective;
mod timer;

pub use attributes::{
    Adjustment, AttributeError, Configuration, Initialization, ReceiveAttributes, Retries, SendAttributes,
    State, Transition,
};
pub use counters::Counters;
pub use departure::{Departure, NotWritten};
pub use endpoint::{PeerKind, RoceEndpoint};
pub use failure::Failure;
pub use memory::{AtomicOperation, Denied, Memory, RemoteAccess};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use queue_pair::QueuePair;
pub use requester::MAX_MESSAGE;
pub use responses::Acknowledge;
pub use selective::WINDOW_MAX as MAX_SELECTIVE_WINDOW;
