//! RoCEv2 on the wire: InfiniBand transport packets (IBA volume 1, chapters 5 and 9) in UDP (annex A17).
//!
//! Views stand apart from values. [`Packet`] and [`Datagram`] are views: they borrow received bytes, and one that
//! exists has been checked once. [`Bth`], [`Header`], [`Aeth`] and the like are plain values that know how they look
//! on the wire and nothing else.
//!
//! ```text
//!  Ethernet  IPv4 or IPv6  UDP   BTH  extension headers  payload  pad  ICRC
//!            └──── Datagram ───┘ └──────────────── Packet ──────────────────┘
//!            └─ Flow ──────────┘ └ Bth ┘└── Header ────┘
//! ```
//!
//! - receiving: [`Datagram::parse`] over an IP packet gives a [`Check`] and the transport's bytes, or a [`Flow`] gives
//!   the former where a socket has taken the network headers off; then [`Packet::parse`];
//! - sending: [`emit`] writes headers into the caller's memory and gives the bytes that follow the payload, which may
//!   lie anywhere; [`Flow::emit`] writes what goes before where no socket does it.
//!
//! Nothing here allocates, and nothing panics whatever the bytes are.
#![no_std]
#![forbid(unsafe_code)]

mod aeth;
mod bth;
mod bytes;
mod extensions;
mod header;
mod icrc;
mod mtu;
mod network;
mod opcode;
mod packet;
mod psn;

pub use aeth::{Aeth, Credits, NakCode, RnrTimer, Syndrome};
pub use bth::{BTH_LENGTH, Besides, Bth, DEFAULT_PARTITION, QueuePair};
pub use extensions::{AtomicEth, Deth, Reth};
pub use header::{HEADER_LENGTH_MAX, Header};
pub use icrc::{Check, ICRC_LENGTH, Icrc};
pub use mtu::PathMtu;
pub use network::{
    Addresses, Datagram, ETHERNET_LENGTH, Ecn, Ethernet, Flow, IPV4_LENGTH, IPV6_LENGTH, NetworkError,
    Options, ROCE_PORT, UDP_LENGTH,
};
pub use opcode::Opcode;
pub use packet::{
    EmitError, HEADERS_LENGTH_MAX, PAYLOAD_LENGTH_MAX, Packet, ParseError, Parts, TRANSPORT_LENGTH_MAX,
    Trailer, emit,
};
pub use psn::Psn;
