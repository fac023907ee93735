//! Memory files, created sealed.
//!
//! Seals are promises of the kernel: with SHRINK and GROW a file keeps its size, so that a mapping of it never ends
//! early; with FUTURE_WRITE no new writable mapping can be made, so that a file which the daemon mapped for writing
//! first is read-only for everybody else; SEAL keeps the set of seals as it is.
//!
//! Whoever holds any descriptor of a file can open it again, under `/proc/self/fd`, as far as the file's mode allows; the
//! kernel's default for memory files is that everybody may do everything. Here nobody may open one for writing again, so
//! that a descriptor for reading is no more than that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{MemfdFlags, Mode, SealFlags},
    io::Errno,
};
use thiserror::Error;

use crate::{MapError, Mapping, Protection};

/// What a client's region and a client-written ring file are sealed with: the size is fixed.
pub(crate) const FIXED_SIZE: SealFlags =
    SealFlags::from_bits_retain(SealFlags::SHRINK.bits() | SealFlags::GROW.bits() | SealFlags::SEAL.bits());

/// What a daemon-written ring file is sealed with: the size is fixed and nobody else can write.
pub(crate) const DAEMON_WRITTEN: SealFlags =
    SealFlags::from_bits_retain(FIXED_SIZE.bits() | SealFlags::FUTURE_WRITE.bits());

/// Bytes that are given pages between two looks whether they are still wanted: a few huge pages. Some milliseconds, where the
/// machine is a guest and its host has to find the memory first.
const POPULATED_AT_ONCE: usize = 4 << 20;

/// Why a memory file could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MemFdError {
    /// The length is zero or no multiple of the page.
    #[error("a memory file of {length} bytes is not possible: choose a multiple of {page} bytes above zero")]
    Length {
        /// The bytes asked for.
        length: u64,
        /// The page's bytes.
        page: u64,
    },
    /// The kernel refused to create it.
    #[error("the kernel refused a memory file: {0}; check the limit on open files")]
    Create(Errno),
    /// The kernel refused to give it its size.
    #[error(
        "the kernel refused a memory file of {length} bytes: {errno}; check RLIMIT_FSIZE and the cgroup's memory"
    )]
    Resize {
        /// The bytes asked for.
        length: u64,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The kernel refused to say who may open it.
    #[error("the kernel refused to change a memory file's mode: {0}")]
    Mode(Errno),
    /// The kernel refused to seal it.
    #[error("the kernel refused to seal a memory file: {0}; Linux 5.1 or newer is needed")]
    Seal(Errno),
    /// There is no memory for its pages.
    #[error(
        "the kernel has no memory for {length} bytes: {errno}; ask for less, or raise the cgroup's memory limit"
    )]
    Populate {
        /// The bytes asked for.
        length: u64,
        /// The kernel's reason.
        errno: Errno,
    },
    /// It was no longer wanted before all of its pages were there.
    #[error("the memory file was no longer wanted before it had all of its pages")]
    Unwanted,
    /// It could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A memory file of fixed length.
#[derive(Debug)]
pub struct MemFd {
    fd: OwnedFd,
    length: usize,
}

impl MemFd {
    /// A zeroed memory file that can still be sealed. The name is for people, in `/proc/PID/fd`.
    ///
    /// # Errors
    /// [`MemFdError`] when the length is zero or no multiple of the page, or the kernel refuses.
    pub fn create(name: &str, length: u64) -> Result<Self, MemFdError> {
        let page = rustix::param::page_size() as u64;
        let invalid = MemFdError::Length { length, page };
        if length == 0 || !length.is_multiple_of(page) {
            return Err(invalid);
        }
        let mapped = usize::try_from(length).map_err(|_| invalid)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels since 6.3 want to be told that the file will not be executed; older ones do not know the flag.
        let fd = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))
            .map_err(MemFdError::Create)?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::RGRP | Mode::ROTH).map_err(MemFdError::Mode)?;
        rustix::fs::ftruncate(&fd, length).map_err(|errno| MemFdError::Resize { length, errno })?;
        Ok(Self { fd, length: mapped })
    }

    /// A client's region: populated, so that a daemon admits it, mapped for writing, and of fixed size. In huge pages
    /// where the host gives them; see [`Mapping::page_kind`].
    ///
    /// # Errors
    /// [`MemFdError`], as for [`MemFd::create`], or when there is no memory for the pages.
    pub fn region(name: &str, length: u64) -> Result<(Self, Mapping), MemFdError> {
        Self::region_while(name, length, &mut || true)
    }

    /// The same, which takes as long as the kernel takes for so many pages, up to seconds for gigabytes: asked every few
    /// megabytes whether it is still wanted.
    ///
    /// # Errors
    /// As [`MemFd::region`]; [`MemFdError::Unwanted`] when it was not.
    pub fn region_while(
        name: &str,
        length: u64,
        wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(Self, Mapping), MemFdError> {
        let file = Self::create(name, length)?;
        let mapping = file.map_populated(wanted)?;
        file.seal(FIXED_SIZE)?;
        Ok((file, mapping))
    }

    /// A ring file that the daemon writes ("D"): the mapping returned is the only writable one there will ever be.
    ///
    /// # Errors
    /// As [`MemFd::region`].
    pub fn daemon_written(name: &str, length: u64) -> Result<(Self, Mapping), MemFdError> {
        let file = Self::create(name, length)?;
        let mapping = file.map_populated(&mut || true)?;
        file.seal(DAEMON_WRITTEN)?;
        Ok((file, mapping))
    }

    /// A ring file that the client writes ("C"), made by the daemon: the mapping returned is the daemon's, read-only,
    /// and survives holes that the client may punch (see [`Mapping::foreign`]).
    ///
    /// # Errors
    /// As [`MemFd::region`].
    pub fn client_written(name: &str, length: u64) -> Result<(Self, Mapping), MemFdError> {
        let file = Self::create(name, length)?;
        drop(file.map_populated(&mut || true)?);
        file.seal(FIXED_SIZE)?;
        let mapping = Mapping::foreign(file.as_fd(), file.length, Protection::Read)?;
        Ok((file, mapping))
    }

    /// Maps the whole file, shared.
    ///
    /// # Errors
    /// [`MapError`] when the kernel refuses, for instance because of a seal.
    pub fn map(&self, protection: Protection) -> Result<Mapping, MapError> {
        Mapping::shared(self.fd.as_fd(), self.length, protection)
    }

    fn map_populated(&self, wanted: &mut dyn FnMut() -> bool) -> Result<Mapping, MemFdError> {
        let mapping = self.map(Protection::ReadWrite)?;
        for begin in (0..self.length).step_by(POPULATED_AT_ONCE) {
            if !wanted() {
                return Err(MemFdError::Unwanted);
            }
            let no_memory = |errno| MemFdError::Populate { length: self.length as u64, errno };
            mapping.populate_new(begin..begin + POPULATED_AT_ONCE).map_err(no_memory)?;
        }
        Ok(mapping)
    }

    /// Adds seals; none can be taken back.
    fn seal(&self, seals: SealFlags) -> Result<(), MemFdError> {
        rustix::fs::fcntl_add_seals(&self.fd, seals).map_err(MemFdError::Seal)
    }

    /// The file's bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The descriptor alone. Mappings stay.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

/// Whether nobody but the file's owner, and whoever the kernel keeps from nothing, can open it again for writing.
#[must_use]
pub fn is_written_by_owner_only(file: BorrowedFd<'_>) -> bool {
    let others = Mode::WGRP | Mode::WOTH;
    rustix::fs::fstat(file).is_ok_and(|stat| !Mode::from_raw_mode(stat.st_mode).intersects(others))
}

impl AsFd for MemFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 1 << 16;

    #[test]
    fn lengths_are_whole_pages() {
        assert!(matches!(MemFd::create("t", 0), Err(MemFdError::Length { .. })));
        assert!(matches!(MemFd::create("t", 100), Err(MemFdError::Length { .. })));
        assert!(MemFd::create("t", LENGTH).is_ok());
    }

    #[test]
    fn what_the_daemon_writes_is_read_only_for_others() {
        let (file, ours) = MemFd::daemon_written("d", LENGTH).expect("create");
        assert!(file.map(Protection::ReadWrite).is_err());
        let theirs = file.map(Protection::Read).expect("map");
        assert_eq!(ours.window(8, 2).expect("window").write(b"ab"), 2);
        let mut seen = [0; 2];
        theirs.window(8, 2).expect("window").read(&mut seen);
        assert_eq!(&seen, b"ab");
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err(), "writing past the mapping is sealed as well");
    }

    #[test]
    fn a_region_keeps_its_size() {
        let (file, mapping) = MemFd::region("r", LENGTH).expect("create");
        assert_eq!(mapping.length() as u64, LENGTH);
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 2 * LENGTH).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    }

    #[test]
    fn nobody_opens_one_for_writing_again() {
        let (file, _mapping) = MemFd::region("r", LENGTH).expect("create");
        assert!(is_written_by_owner_only(file.as_fd()));
        let mode = rustix::fs::fstat(&file).expect("stat").st_mode;
        // Root may do what the mode forbids, so that only the mode says what others may.
        assert_eq!(mode & 0o777, 0o444, "{mode:o}");
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o464)).expect("its owner may");
        assert!(!is_written_by_owner_only(file.as_fd()));
    }

    #[test]
    fn a_client_writes_its_ring_file_and_the_daemon_reads_it() {
        let (file, ours) = MemFd::client_written("c", LENGTH).expect("create");
        assert_eq!(ours.protection(), Protection::Read);
        let theirs = file.map(Protection::ReadWrite).expect("map");
        theirs.window(0, 1).expect("window").write(b"z");
        let mut seen = [0; 1];
        ours.window(0, 1).expect("window").read(&mut seen);
        assert_eq!(&seen, b"z");
    }
}
