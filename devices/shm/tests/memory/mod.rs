//! Memory that a peer can map.
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

use std::os::fd::AsFd;

use ringway_mem::{Mapping, MemFd, Protection};

/// Memory that a peer can map.
pub(crate) fn in_file(length: usize) -> Mapping {
    let (file, _) = MemFd::region("test", length.next_multiple_of(4096) as u64).unwrap();
    let mapping = Mapping::shared(file.as_fd(), length, Protection::ReadWrite).unwrap();
    mapping.keep_file(file.as_fd().try_clone_to_owned().unwrap())
}
