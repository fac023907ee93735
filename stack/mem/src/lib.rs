//! Memory shared with processes we do not trust: mappings, windows into them, sealed memfds, regions admitted from
//! clients, generation-tagged handles, tables of what devices number, and quotas.
//!
//! Bytes another process can write are never seen through a reference (`&T`, `&[u8]`): a [`Window`] hands out raw
//! pointers and bounded copies only. What is read is a private copy before it is looked at.

pub mod admit;
mod arena;
mod block;
pub mod calls;
mod handle;
mod huge;
mod mapping;
mod memfd;
mod numa;
mod numbers;
pub mod passing;
mod quota;
mod regions;
mod sigbus;
mod window;

pub use admit::{AdmitError, Identity, PeerFile, Region, admit};
pub use arena::{ARENA_UNIT, Arena, ArenaError};
pub use block::{Block, Pool};
pub use handle::{HandleTable, MAX_HANDLES};
pub use huge::PageKind;
pub use mapping::{MapError, Mapping, Protection};
pub use memfd::{MemFd, MemFdError, is_written_by_owner_only};
pub use numbers::NumberTable;
pub use quota::{Charge, Quota, QuotaExceeded};
pub use regions::{Part, RegionTable, Span};
pub use sigbus::{MAX_FOREIGN, MAX_FOREIGN_CLIENTS};
pub use window::{Window, prefetch, prefetch_for_writing, recycle};
