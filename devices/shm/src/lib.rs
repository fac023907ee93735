//! The verbs contract between processes of one host, over memory they share: no kernel and no network on the data path.
//!
//! # How it works
//! Either end of a connection has a file of its own that only it can write (a sealed memory file) and the other maps
//! for reading: two rings of cache lines, one for its requests and one for its responses, counts of what it has executed,
//! and staging memory. Every entry says as well how much was executed, so that an answer acknowledges what it answers and a
//! small message moves one line of memory; the counts are written when no entry goes out, and soon for a request that is to be
//! told when it is done. A message of up to 32 bytes travels in its entry. The bytes of a longer one stay where they are
//! when their region has a file ([`ringway_mem::Mapping::file`]): whoever gets them has mapped that file for reading and
//! copies them from there to where they belong, once. Bytes of other memory go through staging memory.
//!
//! # Trust
//! Everything is fetched by whoever it is for, after the keys, ranges and rights of its own regions were checked: nobody maps
//! anything of the other's for writing, nor gets a descriptor that it could open again for writing: a region whose file's
//! mode lets others than its owner write is not handed out, and its bytes go through staging memory. (Processes of the
//! owner's, and root's, the kernel keeps from nothing.) What is read of the other's is copied first, then looked at. A peer
//! can read whole regions that were used with it; connect to daemons only that may.
//!
//! # Order
//! Requests are executed in the order they were posted. What changes memory waits until the peer has fetched what
//! earlier READs gave it. A SEND waits in its ring for a receive; responses have a ring of their own and pass it.
//!
//! # Who finds whom
//! A device listens on a Unix socket of a random name, which works between processes of one network namespace. Anybody there
//! can connect, and take the name of a device that has ended; so either side shows the secret that stands in the other's
//! endpoint before anything else. The socket of a connection carries the files, and its end is how the other's death is
//! noticed.
#![forbid(unsafe_code)]

mod channel;
mod control;
mod counters;
mod device;
mod endpoint;
pub mod entry;
mod error;
#[cfg(test)]
mod hostile_tests;
mod queue_pair;
mod receive;
mod regions;
mod transmit;

pub use device::{ShmConfig, ShmDevice};
pub use error::{ShmError, ShmFailure};
