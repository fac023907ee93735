//! Forming a communicator, as state machines without any I/O: messages are values, time is an argument.
//!
//! The daemon named in the communicator's id is its root and runs [`Root`]; every daemon with ranks of it, the root's
//! included, runs [`Member`]. Members talk to the root only, each over one ordered connection. On the root's own node
//! the caller hands the messages over by itself, so that one node or many take the same path:
//!
//! 1. *Gathering.* Each local rank is announced to the root ([`Request::Join`]), which checks that ranks are
//!    different, agree about the size, have a device in common, and come in time. When all are there it checks that their
//!    nodes were given the same plans, as far as they are for so many nodes.
//! 2. *Opening.* When all ranks are there every node gets the roster ([`Answer::Roster`]), with what plans shall be
//!    chosen by, opens one queue pair or several for each other node and sends the endpoints to the root.
//! 3. *Connecting.* When all endpoints are there the root gives each node those meant for it
//!    ([`Answer::Endpoints`]); each node connects, measures a link if the root knows nothing of
//!    them, and reports [`Request::Ready`].
//! 4. When all are ready the root says [`Answer::Go`], with what plans are chosen by, and forgets the rendezvous: the
//!    communicator is formed.
//!
//! Whatever fails on the way (a rank or node is lost, time is up, a device cannot connect) fails the communicator on
//! every node with one reason. The one thing no protocol can give: when a node loses its connection to the root, or a
//! rank of its own, while [`Answer::Go`] is on its way to it, that node fails and the others are formed. It then
//! closes its queue pairs, and theirs to it see that at once.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod failure;
mod host;
mod member;
mod message;
mod names;
mod planning;
mod plans;
mod rendezvous;
mod root;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "a simulation has few nodes and ranks")]
mod simulation;
mod wire;

pub use failure::{Failure, FailureKind};
pub use host::{HOST_BYTES_MAX, Host};
pub use member::{JoinRequest, Member, MemberConfig, MemberEvent};
pub use message::{
    Answer, CHANNELS_MAX, DEVICES_MAX, ENDPOINTS_MAX, MESSAGE_BYTES_MAX, MalformedMessage, Offer,
    PeerEndpoint, Request, ToMember, ToRoot, Width,
};
pub use names::{GroupId, Key, NodeRef, RootAt, Ticket};
pub use planning::{Place, Planning};
pub use plans::{ListedPlan, PLANS_MAX};
pub use root::{Limits, Root};
