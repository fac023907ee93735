//! What a client process and the daemon agree on: the handshake, the control messages, the descriptors in the shared
//! rings, the status codes, the limits. Everything read here comes from another process: parsing never panics and
//! accepts nothing it does not fully understand.
//!
//! - [`handshake`]: the first message each way, of fixed layout in every version, so that versions that do not
//!   understand each other can still say so.
//! - [`control`]: requests and replies on the control socket (one SEQPACKET message each), in postcard encoding.
//! - [`descriptor`]: 64-byte submissions and 32-byte completions, as words.
//! - [`paths`]: where sockets are, unless somebody says otherwise.
//! - [`extent`]: how many bytes an operation reads and writes, computed the same way on both sides.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::cast_possible_truncation, clippy::arithmetic_side_effects)]

extern crate alloc;

pub mod control;
pub mod descriptor;
pub mod extent;
pub mod handshake;
pub mod paths;
mod status;
pub mod stream;
mod unique_id;

pub use status::Status;
pub use unique_id::{ParseUniqueIdError, UniqueId};

/// Version of everything in this crate. Two sides must agree on one.
/// A code that is added, as of a type, leaves it as it is: a daemon that does not know one refuses the call that has it, as
/// [`Status::BadDatatype`].
pub const VERSION: u32 = 5;

/// The port on which daemons meet, unless configured otherwise.
pub const DEFAULT_PORT: u16 = 7411;

/// The most bytes of one control message.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024;

/// The most ranks of a communicator that one control message describes.
pub const MAX_RANKS: u32 = 8192;

/// Messages between two ranks of at most this many bytes are buffered: a send may finish before it is received.
pub const EAGER_MAX_BYTES: u64 = 8 * 1024;
