//! RoCEv2 in user space, on any Linux host: no network card that knows RDMA, no kernel module.
//!
//! [`RoceDevice`] is the verbs contract, over the reliable connections of `ringway-rc` and any [`Link`]; [`UdpLink`] is
//! one over ordinary sockets, without privileges, and [`XdpLink`] one past the kernel's network stack.
//!
//! # How it works
//! A packet that comes in finds its queue pair by number, a slot of a table, and is executed: its payload is copied from
//! where the link received it into the region, once. Queue pairs with something to send stand in a line and take turns;
//! those that wait for a time are in a heap. So neither polling nor flushing looks at queue pairs that have nothing to
//! do. What goes out is written where the link sends it from.
//!
//! # Peers
//! A connection is two queue pairs that know each other's [`RoceEndpoint`]; nothing has to be agreed on with the peer
//! in packets. Toward any RoCE device ([`PeerKind::Plain`]) a queue pair is ready at once, and only what the
//! specification has is ever sent. Another Ringway end is first asked whether it is connected as well, asked for signs of
//! life when nothing is heard of it, and told when a queue pair has failed (`signal.rs`, `liveness.rs`); and if both
//! ends offer it, acknowledgement is selective.
//!
//! # Trust
//! Whoever can send packets from a peer's address with the numbers of its queue pair is that peer: RoCE trusts its
//! network. Numbers, first PSNs and tags are random, so that guessing takes long. Whatever comes, only memory that was
//! registered for it is read or written.

mod config;
mod counters;
mod device;
mod failure;
mod link;
mod liveness;
mod memory;
mod pair;
mod shared;
mod signal;
mod table;
mod timers;
mod transmit;

pub use config::{RoceConfig, RoceError};
pub use counters::RoceCounters;
pub use device::RoceDevice;
pub use failure::RoceFailure;
pub use link::{
    Counters, Link, LinkError, Path, Received, Refusal, RefusalReason, SendError, interface_of,
    udp::{UdpConfig, UdpLink},
    xdp::{XdpConfig, XdpLink, XdpMode, ZeroCopy},
};
pub use ringway_rc::{PeerKind, RoceEndpoint};
pub use ringway_wire::ROCE_PORT;
