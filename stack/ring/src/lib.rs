//! Single-producer single-consumer rings between a client and the daemon, over memory the other side can scribble on.
//!
//! An entry is `[u64; N]`. The low half of its last word is the ring's *phase*, the low 32 bits of the entry's
//! position plus one; the high half is payload. A consumer looks at the entry itself, so that at low load one
//! operation moves one cache line. Positions are free-running and private to each side; the only shared index is the
//! consumed count, which the producer reads when its cached copy says that the ring is full, and checks.
//!
//! - [`Producer`] and [`Consumer`] are the algorithms, over any [`Storage`]: mapped memory, atomics of a test, loom.
//! - [`wake`] is the handshake by which one side may sleep without missing the other.
//! - [`layout`] says where everything lies in the two memory files of a communicator.
//! - [`BareRing`] is what to compare with.
//! - `shared` (a default feature) attaches rings to mappings and is the only module with unsafe code.
//!
//! Sources: the phase word follows NVMe's phase tag and Caladan's LRPC parity; the cached peer index follows rigtorp's
//! `SPSCQueue`; the sleep handshake follows `io_uring`'s `IORING_SQ_NEED_WAKEUP`.

#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "shared")]
mod bare;
mod consumer;
mod fault;
pub mod layout;
mod producer;
#[cfg(all(feature = "shared", not(loom)))]
mod shared;
mod storage;
pub mod wake;

#[cfg(feature = "shared")]
pub use bare::{BareCursor, BareEntry, BareRing};
pub use consumer::Consumer;
pub use fault::{PeerFault, PushError};
pub use layout::{COMPLETION_WORDS, Geometry, GeometryError, SUBMISSION_WORDS};
pub use producer::Producer;
#[cfg(all(feature = "shared", not(loom)))]
pub use shared::{AttachError, ClientRings, Control, DaemonRings, SharedRing, SharedWord, Slept};
pub use storage::{Storage, Word};

/// The phase of the entry at a position: its low 32 bits plus one, so that zeroed memory is no first-lap entry.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the phase is the low half of the position on purpose")]
const fn phase_of(position: u64) -> u32 {
    (position as u32).wrapping_add(1)
}

/// The mask of the bits of an entry's last word that the ring uses.
const PHASE_MASK: u64 = 0xffff_ffff;
