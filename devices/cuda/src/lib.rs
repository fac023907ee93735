//! GPU memory through NVIDIA's driver: allocated or taken over so that other processes can map it, combined and copied by
//! the GPU, in the order of the caller's streams.
//!
//! The driver is loaded when it is first asked for ([`cudarc`]'s dynamic loading), so that programs start without it;
//! [`CudaError::NoDriver`] says so then. Kernels are generated as PTX ([`kernel`]), which the driver compiles for the GPU that
//! is there.
//!
//! - [`Gpu`]: a device and this process's context on it;
//! - [`Memory`], [`Pinned`]: memory that the GPU may touch, as [`Bytes`];
//! - [`Stream`]: order, and words by which processes order theirs;
//! - [`Worker`]: what a daemon has a GPU do.

mod error;
mod gpu;
pub mod kernel;
mod memory;
mod stream;
mod worker;

pub use error::CudaError;
pub use gpu::{Gpu, Listed, Uuid, count, list, show};
pub use memory::{Bytes, Host, IpcHandle, Memory, Path, Pinned};
pub use stream::{Event, STEPS_MAX, Stream, WordStep};
pub use worker::{Direction, Kernel, Mark, Operand, Work, Worker};
