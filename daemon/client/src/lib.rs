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
//! # Who shares memory
//! Where all ranks of a communicator are on one node, are of one user and in the same user, PID and mount namespaces, its
//! collectives run without the daemon: small ones are exchanged through a page set that the ranks share, and for large
//! ones each rank maps the registered memory of the others and does its share of the work while it waits. Ranks of
//! different users or containers do so only when all of them agree ([`CommunicatorBuilder::share_memory`]). Otherwise,
//! and where the daemon's configuration says `isolation = "strict"`, ranks share nothing with each other but only with
//! the daemon, which does all of the work. [`Communicator::shares_memory`] tells.
//!
//! In operations over several nodes the daemon is the participant. There the ranks of a node that may share memory help it
//! while they wait: they map each other's registered memory, and do pieces of the copying and combining within the node.
//!
//! Whoever shares memory with this rank can read and write every arena whose buffers it gives to a collective of that
//! communicator, all of it, until the arena is gone. Ordinary slices are never shared: what is small is copied, what is
//! large moves through staging memory.
//!
//! # Blocking
//! [`Communicator::run`] and [`Communicator::blocking`] work while they wait. An operation that is not waited for goes on
//! in the daemon. At most 128 collectives of a rank can be under way in shared memory, and 16 broadcasts of 8 to 64 KiB. When a non-blocking one finds that
//! there is no room, the daemon takes over: it makes that one and all later ones of the communicator in the rank's place,
//! until none is left, so that nobody has to wait. Then a call costs as much as one between ranks that share no memory.
//! As many operations can be outstanding as the ring holds and the daemon has taken out of it, some hundreds unless
//! [`CommunicatorBuilder::ring_size`] says otherwise; the next one waits, for as long as an operation may take. A ring of
//! less than 128 has no room for what is handed over: there the 129th collective waits until every rank is through with the
//! first. Operations on ordinary slices wait until the daemon is through with what it took over.
//!
//! # When something fails
//! An operation ends in an error that names the rank and the reason when a rank's process ends, when ranks call
//! different things, or when its time is over; when the daemon goes, everything ends in [`OperationError::DaemonLost`].
//! Buffers of a failed operation come back only when nobody can write to them any more. A rank whose process was stopped
//! in the middle of its work could: then the error comes in time all the same, with [`Returned::BuffersRetired`].
//! After an error for which [`OperationError::is_recoverable`] is false the communicator is of no further use.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `RINGWAY_SOCKET` | the daemon's socket, instead of the usual places |
//! | `RINGWAY_AUTOSTART` | `0`: start no daemon |
//! | `RINGWAY_DAEMON` | the program to start as daemon |
//! | `RINGWAY_TIMEOUT_MS` | how long an operation may take; `0` for no limit. The daemon ends it then, or the client 15 s later where the daemon is stopped |
//! | `RINGWAY_JOIN_TIMEOUT_MS` | how long the other ranks may take to join |
//! | `RINGWAY_SHARE` | `1`: share memory with ranks of other users or containers that do so too |
//! | `RINGWAY_ALGORITHM` | the algorithms to use, see [`CommunicatorBuilder::algorithm`] |
//! | `RINGWAY_PORT` | where daemons of several nodes meet, with launchers other than `ringway run` |
//!
//! Those of launchers are described at [`Environment`].
#![forbid(unsafe_code)]

mod arena;
mod autostart;
mod blocking;
mod buffer;
mod cell;
mod communicator;
mod connect;
mod control;
pub mod cuda;
mod element;
pub mod environment;
mod error;
mod group;
mod helping;
mod operation;
mod pace;
mod pending;
mod queue;
#[doc(hidden)]
pub mod raw;
mod rings;
mod slab;
mod slices;
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
#[doc(hidden)]
pub use ringway_cell::monotonic_ns;
pub use ringway_types::{DataType, F8E4M3, F8E5M2, Operation, Reduction};
