//! The client library of Ringway, a communication daemon for accelerator clusters: collectives and messages between
//! processes on one or more nodes.
//!
//! A [`Client`] is a session with the node's daemon, which is started when there is none. A [`Communicator`] is a place
//! among its ranks: [`Communicator::from_env`] takes it from the launcher (`ringway run`, torchrun, mpirun, srun).
//!
//! ```no_run
//! use ringway_client::{Client, Communicator, Error, Reduction};
//!
//! fn main() -> Result<(), Error> {
//!     let client = Client::connect()?;
//!     let world = Communicator::from_env(&client)?;
//!
//!     // Ordinary slices: blocking, copied each way.
//!     let mut mean = [f64::from(world.rank())];
//!     world.blocking().allreduce_in_place(&mut mean, Reduction::Avg)?;
//!
//!     // Buffers in memory that the daemon can reach: non-blocking, never copied.
//!     let arena = client.arena(1 << 20)?;
//!     let mut gradients = arena.buffer::<f32>(1000)?;
//!     gradients.fill(1.0);
//!     let pending = world.allreduce_in_place(gradients, Reduction::Sum)?;
//!     // ... compute something else meanwhile ...
//!     let gradients = pending.wait()?;
//!     assert_eq!(gradients[0], world.size() as f32);
//!     Ok(())
//! }
//! ```
//!
//! # Who owns memory
//! An operation takes its buffers by value and gives them back when it has ended, so that nobody can read or change
//! memory that is being transferred: this needs no `unsafe`, and no discipline. Dropping a [`Pending`] waits for it.
//!
//! # When something fails
//! An operation ends in an error that names the rank and the reason when a rank's process ends, when ranks call
//! different things, or when its time is over; when the daemon goes, everything ends in [`OperationError::DaemonLost`].
//! After an error for which [`OperationError::is_recoverable`] is false the communicator is of no further use.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `RINGWAY_SOCKET` | the daemon's socket, instead of the usual places |
//! | `RINGWAY_AUTOSTART` | `0`: start no daemon |
//! | `RINGWAY_DAEMON` | the program to start as daemon |
//! | `RINGWAY_TIMEOUT_MS` | how long an operation may take; `0` for no limit |
//! | `RINGWAY_JOIN_TIMEOUT_MS` | how long the other ranks may take to join |
//! | `RINGWAY_PORT` | where daemons of several nodes meet, with launchers other than `ringway run` |
//!
//! Those of launchers are described at [`Environment`].
#![forbid(unsafe_code)]

mod arena;
mod autostart;
mod blocking;
mod buffer;
mod communicator;
mod connect;
mod control;
mod element;
pub mod environment;
mod error;
mod group;
mod operation;
mod pending;
mod queue;
#[doc(hidden)]
pub mod raw;
mod rings;
mod slab;
mod socket;
mod split;
mod staging;
mod wait;

pub use arena::Arena;
pub use blocking::Blocking;
pub use buffer::Buffer;
pub use communicator::{Communicator, CommunicatorBuilder};
pub use connect::{Client, ClientBuilder};
pub use element::{Element, Reduce};
pub use environment::{Environment, EnvironmentError};
pub use error::{
    CallError, ConnectError, Error, Failure, JoinError, MemoryError, OperationError, RequestError, Returned,
    StartError, SubmitError,
};
pub use half::{bf16, f16};
pub use operation::{Source, Submitted};
#[doc(hidden)]
pub use pending::Held;
pub use pending::{Pending, Received, TimeoutError};
pub use ringway_abi::{Status, UniqueId};
pub use ringway_types::{DataType, Operation, Reduction};
