//! Operations on memory of a GPU, in the order of the caller's CUDA streams.
//!
//! An operation is put into a stream and done when the stream comes to it; what is put into the stream afterwards waits for it.
//! The calling thread waits for nothing: it writes a submission and puts two steps with words of memory into the stream. The
//! daemon, which has mapped the memory, has the GPU do what is between ranks that share it, and stages what goes to other
//! nodes. Several ranks may share one GPU; give them NVIDIA's Multi-Process Service then, as processes take turns on a GPU
//! without it, which costs each operation some hundreds of microseconds.
//!
//! ```no_run
//! use ringway_client::{Client, Error, Reduction, cuda::{Gpu, Stream}};
//!
//! # fn f(id: &ringway_client::UniqueId, rank: u32, size: u32) -> Result<(), Error> {
//! let client = Client::connect()?;
//! let gpu = Gpu::open(0)?;
//! let world = client.communicator(id, rank, size).gpu(&gpu).join()?;
//! let arena = client.gpu_arena(&gpu, 1 << 20)?;
//! let gradients = arena.buffer::<f32>(1000)?;
//! let stream = Stream::new(&gpu)?;
//! gradients.upload(&stream, &[1.0; 1000])?;
//! world.on(&stream).allreduce(&gradients, &gradients, Reduction::Avg)?;
//! stream.synchronize()?;
//! world.check_streams()?;
//! # Ok(()) }
//! ```
//!
//! # Errors
//! A stream cannot be told that an operation has failed: it goes on, with whatever is in the memory. [`Enqueued::wait`] says what
//! became of one operation, [`Communicator::check_streams`] of all that nobody has waited for.
//!
//! [`Communicator::check_streams`]: crate::Communicator::check_streams

mod enqueued;
mod memory;
mod operation;
mod words;

pub use enqueued::Enqueued;
pub use memory::{GpuArena, GpuBuffer};
pub use operation::OnStream;
pub use ringway_cuda::{CudaError, Event, Gpu, Listed, Path, Stream, count, list};

pub(crate) use words::Words;
