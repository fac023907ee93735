//! The verbs contract over RDMA hardware: InfiniBand and RoCE ports, by libibverbs.
//!
//! What the host has is read from the kernel ([`ports`]) and a port chosen ([`Choice`]) without any library; the device itself is
//! behind the feature `verbs`, whose build needs the headers of libibverbs. A binary built with it finds the library when it
//! makes a device, and runs without it otherwise.
//!
//! # Memory
//! A region is registered once, with addresses that are offsets from its start, and stays so until nothing that was posted
//! uses it. Keys of peers are the device's own.
//!
//! # Connections
//! Queue pairs go through the states with every attribute explicit, and are told of each other by whoever uses the device;
//! on RoCE they say the same as our own RoCE devices, with which they understand themselves. A new connection is tried by a WRITE
//! of no bytes, as is one on which nothing was heard for a while: any peer that is there acknowledges it, and nobody
//! else sees it. A link that comes back before the device's retries are used up goes on as if nothing had been.
//!
//! # Requests
//! What is posted is handed to the device together, with one doorbell for each queue pair; short requests carry their bytes
//! in themselves. Of requests in a row that nobody is to hear of one in sixteen is signalled, or in a quarter of a shorter queue, so
//! that their places come free. Whoever asks for memory that such requests may still use has a WRITE of no bytes sent after them,
//! which tells of them, as does the one that goes out when nothing was heard for a while.
//!
//! # Trust
//! Every peer that is connected can reach all registered memory by its key: connect to daemons only, on a network that is
//! trusted.

mod choice;
mod config;
mod error;
mod event;
mod selector;

#[cfg(feature = "verbs")]
mod address;
#[cfg(feature = "verbs")]
mod connector;
#[cfg(feature = "verbs")]
mod counters;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod endpoint;
#[cfg(feature = "verbs")]
mod hardware;
#[cfg(feature = "verbs")]
mod pair;
#[cfg(feature = "verbs")]
mod regions;
#[cfg(feature = "verbs")]
mod shared;

pub use choice::{Choice, ChoiceError, Own};
pub use config::{IbverbsConfig, RelaxedOrdering};
#[cfg(feature = "verbs")]
pub use device::IbverbsDevice;
pub use error::{IbverbsError, IbverbsFailure};
pub use event::DeviceEvent;
pub use ringway_topology::rdma::{Gid, GidKind, LinkLayer, Port, Transport, ports, ports_in};
pub use selector::{Selector, SelectorError};

/// Why a binary without the feature `verbs` has no device, and what to do.
pub const NOT_BUILT_IN: &str = "this binary was built without it: build with `--features verbs` (needs libibverbs-dev, \
    librdmacm-dev and libclang-dev)";
