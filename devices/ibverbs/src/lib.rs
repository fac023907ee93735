//! The verbs contract over RDMA hardware: InfiniBand and RoCE ports, by libibverbs.
//!
//! What the host has is read from the kernel ([`ports`]) and a port chosen ([`Choice`]) without any library; the device itself is
//! behind the feature `verbs`, whose build needs the headers of libibverbs. A binary built with it finds the library when it
//! makes a device, and runs without it otherwise.
#![forbid(unsafe_code)]

mod choice;
mod selector;
mod sysfs;

pub use choice::{Choice, ChoiceError};
pub use selector::{Selector, SelectorError};
pub use sysfs::{Gid, GidKind, LinkLayer, Port, Transport, ports, ports_in};
