//! RoCEv2 in user space, on any Linux host: no network card that knows RDMA, no kernel module.
//!
//! [`Link`] is what carries packets; [`UdpLink`] does it over ordinary sockets, without privileges.

mod link;

pub use link::{
    Counters, Link, LinkError, Path, Received, SendError,
    udp::{UdpConfig, UdpLink},
};
