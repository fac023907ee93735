//! Runs plans and point-to-point transfers over a device, in bounded turns.
//!
//! The engine is a state machine: it never blocks, reads no clock, touches no memory itself. Memory on this node is
//! reached through [`LocalMemory`], other nodes through `ringway_verbs::Device`; time is an argument. One thread owns
//! it and calls, in every turn, `complete` with what the device finished, `submit` for what clients asked, `advance`
//! for what can be done now, and takes finished operations with `next_finished`.
#![forbid(unsafe_code)]

mod failure;
mod memory;
mod request;

pub use failure::{Failure, RankFailure, Refused, Signature};
pub use memory::{BufferRef, LocalMemory, ReduceSource, RegionId, ScanStep};
pub use request::{Collective, CommunicatorId, Finished, LocalRank, PointToPoint, Request, Token};
