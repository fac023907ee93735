//! Memory shared with processes we do not trust: mappings, windows into them, sealed memfds, regions admitted from
//! clients, generation-tagged handles and quotas.
//!
//! Bytes another process can write are never seen through a reference (`&T`, `&[u8]`): a [`Window`] hands out raw
//! pointers and bounded copies only. What is read is a private copy before it is looked at.

mod mapping;

pub use mapping::{MapError, Mapping, Protection, Window};
