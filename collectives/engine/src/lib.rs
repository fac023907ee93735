//! Runs plans and point-to-point transfers over a device, in bounded turns.
//!
//! The engine is a state machine: it never blocks, reads no clock, touches no memory itself. Memory on this node is
//! reached through [`LocalMemory`], other nodes through `ringway_verbs::Device`; time is an argument. One thread owns
//! it and calls, in every turn, `complete` with what the device finished, `submit` for what clients asked, `advance`
//! for what can be done now, and takes finished operations with `next_finished`.
//!
//! - [`Engine`]: communicators, what is asked and answered;
//! - `progress`, `schedule`, `network`: what is done in a turn, whose turn it is, and who may post;
//! - `communicator`, `receive`, `ending`, `timers`: one communicator: its work, what comes from its peers, how it
//!   ends, and what the clock does to it;
//! - `collective`: who has called what, and the plan that runs;
//! - `point`: messages between two ranks;
//! - `link`, `message`: the queue pairs to a peer node, and what is said over them;
//! - `measure`: what messages to the next node take;
//! - `workspace`, `scratch`, `windows`: who uses which bytes of the daemon's own memory.
#![forbid(unsafe_code)]

mod collective;
mod communicator;
mod config;
mod ending;
mod engine;
mod failure;
mod link;
mod measure;
mod memory;
mod message;
mod network;
mod point;
mod progress;
mod receive;
mod request;
mod schedule;
mod scratch;
mod status;
mod timers;
mod turn;
mod windows;
mod workspace;

pub use communicator::CommunicatorSpec;
pub use config::{ConfigError, EngineConfig, WorkspaceConfig};
pub use engine::{Engine, LinkError, OpenError};
pub use failure::{Failure, RankFailure, Refused, Signature};
pub use link::MAX_CHANNELS;
pub use measure::Measured;
pub use memory::{
    BufferRef, Collected, Handed, LocalMemory, Piece, ReduceSource, RegionId, ScanStep, Ticket,
};
#[doc(hidden)]
pub use message::{failure_comes_back, header_comes_back};
pub use request::{Collective, CommunicatorId, Finished, LocalRank, PointToPoint, Request, Token};
pub use status::{CommunicatorStatus, Late, Readiness};
