//! Measures a device against any RDMA host, by speaking what perftest's programs (`ib_write_bw` and the like) speak: one side
//! may be an unmodified perftest on hardware, the other this.
//!
//! - [`Channel`]: the TCP connection, and what both sides tell each other there ([`Keys`]).
//! - [`Options`], [`Test`]: what is measured.
//! - `session.rs`: which turns both sides take, in which order; [`run`].
//! - `run.rs`: the measurements.
//! - `fill.rs`, `contents.rs`: what perftest has in its memory, and whether that is what came.
//! - `layout.rs`: where messages lie.
#![forbid(unsafe_code)]

mod channel;
mod contents;
mod error;
mod fill;
mod keys;
mod layout;
mod options;
mod report;
mod run;
mod session;

pub use channel::{Agreement, Channel, ChannelError, Outcome, Side, accept, connect};
pub use error::Failure;
pub use keys::{Keys, KeysError};
pub use options::{Options, OptionsError, Test, TestError, Verb};
pub use report::{Figures, Packets, Report, Row};
pub use session::run;
