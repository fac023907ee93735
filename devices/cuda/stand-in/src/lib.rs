//! A stand-in for NVIDIA's driver library: the part of the CUDA driver API that Ringway calls, over host memory, so that
//! GPU code of daemons and clients runs in tests where there is no GPU.
//!
//! A test puts links to the built library into a folder ([`install`]) and starts programs with `LD_LIBRARY_PATH` at it.
//! Device memory is a memory file, which is what makes it shareable between processes; a stream is a thread with a queue,
//! so that what is asynchronous on a GPU is here, too; kernels are PTX text, which is interpreted.
//!
//! It is stricter than a GPU where that finds mistakes: every address is checked when work that touches it is queued. It
//! is laxer in that device memory can be read and written by the host, that only kernels' PTX decides what they touch,
//! and that the default stream does not wait for other streams, nor they for it.
//!
//! Variables of the environment, read once:
//! - `RINGWAY_STAND_IN_GPUS`: how many devices there are, 0 to 8; one otherwise.
//! - `RINGWAY_STAND_IN_FAIL=FUNCTION[:N]`: this function answers `CUDA_ERROR_UNKNOWN` from its Nth call on; N is 1
//!   otherwise.
//!
//! Handles (contexts, streams, events, modules, functions) are numbers, never addresses, so that a stale one is refused.
#![allow(
    non_snake_case,
    missing_docs,
    clippy::missing_safety_doc,
    reason = "names, meaning and contract of the exported functions are cuda.h's"
)]

mod allocation;
mod call;
mod context;
mod copy;
mod device;
mod error;
mod event;
mod host;
mod install;
pub mod interpreter;
mod ipc;
mod kernel;
mod maps;
mod memops;
mod memory;
mod module;
mod pages;
mod pointer;
mod queue;
mod regions;
mod state;
mod stream;
mod virtual_memory;

pub use call::{Out, Status};
pub use context::*;
pub use copy::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use host::*;
pub use install::{install, library};
pub use ipc::*;
pub use kernel::*;
pub use memops::*;
pub use memory::*;
pub use module::*;
pub use pointer::*;
pub use stream::*;
pub use virtual_memory::*;
