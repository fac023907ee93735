//! Reliable connections in virtual time: random requests over a seeded network, and checkers with an oracle.
//!
//! [`run`] makes a world of a seed: nodes, connections, what the network does to packets, and what goes wrong on
//! purpose. Both ends of every connection post random requests and receives, and let acknowledgements wait as callers do that
//! are at work. Checked are
//! - the bytes that READs, atomics and receives bring, when they complete;
//! - the order and number of completions, signalled, silent and flushed;
//! - the memory that was written, at the end: exactly what the requests make of it in the order of posting, and after a
//!   failure what some first part of them makes, packet by packet;
//! - atomics: that each was executed once, by the words that one connection changes and by a counter that all share;
//! - that an end gives up for want of the peer's receives only when it heard so as often as it was to try;
//! - that nothing begins while a send queue is drained, as each is now and then, and that what had begun is done by then;
//! - that everything ends.
#![expect(clippy::indexing_slicing, reason = "a test that leaves its own arrays has failed")]

mod bulk;
mod draining;
mod memory;
mod network;
mod scenario;
mod stream;
mod world;

pub use bulk::{Bulk, Transferred, transfer};
pub use memory::NodeMemory;
pub use network::{Counts, Faults, InFlight, PacketNetwork};
#[cfg(feature = "mutations")]
pub use scenario::run_mutated;
pub use scenario::{Report, run};
