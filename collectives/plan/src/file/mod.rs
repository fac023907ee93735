//! Plans as files: a collective between some number of nodes, its steps listed in JSON instead of computed.
//!
//! A step is about *blocks*, not bytes, so that one plan is right for every size, every number of ranks on a node and
//! in place or not. In operations on vectors (allreduce, reduce, broadcast) every chunk of the vector is cut into
//! `blocks` equal parts; the last ones are shorter, or empty, when its elements cannot be divided. In operations on
//! ranks' blocks (`all_gather`, `all_gather_v`, `reduce_scatter`, `reduce_scatter_v`, gather, scatter) there is one block
//! for each node, what its ranks give or get, and all steps are done once for the first rank of every node, once for
//! the second, and so on. In operations with a root node 0 of the file is the root's, the others are counted from it.
//!
//! ```json
//! {
//!   "ringway_plan": 1, "name": "swap", "operation": "allreduce", "nodes": 2, "blocks": 1, "scratch": 2,
//!   "chunk_bytes": 524288,
//!   "steps": [
//!     [
//!       {"reduce": {"block": 0, "inputs": true, "into": [{"scratch": 0}]}},
//!       {"send": {"peer": 1, "tag": 0, "block": 0, "from": {"scratch": 0}, "after": [0]}},
//!       {"receive": {"peer": 1, "tag": 0, "block": 0, "into": {"scratch": 1}}},
//!       {"reduce": {"block": 0, "partials": {"scratch": 0, "count": 2}, "into": ["output"], "finish": true,
//!         "after": [0, 2]}}
//!     ],
//!     [
//!       {"reduce": {"block": 0, "inputs": true, "into": [{"scratch": 1}]}},
//!       {"send": {"peer": 0, "tag": 0, "block": 0, "from": {"scratch": 1}, "after": [0]}},
//!       {"receive": {"peer": 0, "tag": 0, "block": 0, "into": {"scratch": 0}}},
//!       {"reduce": {"block": 0, "partials": {"scratch": 0, "count": 2}, "into": ["output"], "finish": true,
//!         "after": [0, 2]}}
//!     ]
//!   ]
//! }
//! ```
//!
//! Of every node there is a list of steps, which wait for one another by their numbers:
//! - `send`, `receive`: a message with another node. Both ends name the same blocks and the same `tag`, which tells it
//!   from other messages of this chunk between the two.
//! - `reduce`: combines `partials`, every `stride`-th (1 if absent) of `count` (1) places in scratch memory, and then,
//!   with `inputs`, the inputs of all of the node's ranks. `finish` says that the result is final, where an average is
//!   divided.
//! - `copy`: blocks from one place to others.
//! - `nothing`: only waits.
//!
//! `block` and `count` (1 if absent) say which blocks a step is about, `after` which steps must be done before it:
//! steps' numbers, and `[first, last]` for several; at most two such ranges. A place is `"input"`, `"output"`, `"others"`
//! (the outputs of the node's ranks but the first) or `{"scratch": N}`, the `N`-th of as many places of one block each
//! as the plan has in `scratch`; several blocks are in as many places, one behind the other. What is written to
//! `"output"` by `reduce` and `copy` goes to all ranks that get it; `send` and `receive` use the first one's.
//! `chunk_bytes` says how many bytes a chunk has of the vector, or of each rank's block (512 KiB if absent).
//!
//! Reading a file ([`Listed::read`]) checks every step and then proves the plan right with [`crate::verify`], for sizes,
//! layouts and in-place calls of every kind. As all steps treat all elements of a block alike, and both ends of a
//! message name the same blocks, what is right for blocks of one element is right for longer ones. From scratch to scratch memory a
//! block says only how much is moved, and which blocks are shorter than others depends on the size: so every step is also
//! followed in blocks, as [`crate::trace`] does, and has to move those that it says. All steps together may move as many as that follows
//! ([`crate::trace::MOVED_MAX`]).

mod check;
mod document;
mod error;
mod export;
mod listed;
mod prove;
mod steps;

pub use error::FileError;
pub use export::{Inexpressible, export};
pub use listed::{Entry, Into, Listed, Location, Outputs, What};
pub use prove::Proof;

/// The most bytes a file may have.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// The most nodes a plan may be for.
pub const NODES_MAX: u32 = 128;
/// The most blocks a chunk may be cut into, and the most places in scratch memory.
pub const BLOCKS_MAX: u32 = 4096;
/// The most steps a node may have; the engine numbers steps with 16 bits.
pub const STEPS_MAX: u32 = 0xffff;
/// The most steps of all nodes together, as all of them are proved: a ring of 64 nodes has 24 thousand.
pub const STEPS_IN_ALL_MAX: usize = 1 << 16;
/// The most steps that steps wait for, those of all together. Who waits for a range waits for each of it, and what is proved of
/// that takes time and memory for each.
pub const WAITS_IN_ALL_MAX: usize = 1 << 22;
/// The highest tag of a message.
pub const TAG_MAX: u32 = 0xffff;
/// The most bytes a chunk may have.
pub const CHUNK_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of a plan's name.
pub const NAME_BYTES_MAX: usize = 64;
