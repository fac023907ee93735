//! libibverbs as values that own what they name: nothing outside of this folder sees a pointer.
//!
//! Everything that is made keeps what it was made from alive, so that the library's objects end in the order that it asks for.
//! The data path (posting and polling) goes through the context's table of the driver's functions, as the inline functions of
//! `infiniband/verbs.h` do.

mod completion_queue;
mod context;
mod library;
mod memory;
mod posting;
mod queue_pair;

pub(crate) use completion_queue::{BATCH, CompletionQueue, Done};
pub(crate) use context::{Context, Limits, PortAttributes};
pub(crate) use memory::{Domain, MemoryRegion};
pub(crate) use posting::{Outgoing, POST_BATCH, Receive, Segment, Unposted, Verb};
pub(crate) use queue_pair::{Depths, QueuePair, ReceiveAttributes, SendAttributes};

use rustix::io::Errno;

/// What the system said last, for functions of the library that return no value.
fn last_errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(code.filter(|code| *code > 0).unwrap_or(Errno::IO.raw_os_error()))
}

/// The result of a function that returns zero or an `errno` value; older drivers return -1 and set `errno`.
fn checked(code: core::ffi::c_int) -> Result<(), Errno> {
    match code {
        0 => Ok(()),
        code if code > 0 => Err(Errno::from_raw_os_error(code)),
        _ => Err(last_errno()),
    }
}
