//! Admission of memory files that another process made.
//!
//! What counts is what the kernel says about the descriptor, never what a message says about it: seals first (only
//! memory files have any, so that no descriptor of a file system which could stall us in a page fault gets further),
//! then the size from `fstat`, then the pages.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{SealFlags, Stat},
    io::Errno,
};
use thiserror::Error;

use crate::{
    MapError, Mapping, Protection, Window, calls,
    memfd::{DAEMON_WRITTEN, FIXED_SIZE},
};

/// Which memory file something is: two descriptors with the same identity are the same memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// A client's memory, admitted.
#[derive(Debug, Clone)]
pub struct Region {
    /// The memory. Ask [`Mapping::faulted`] whether the client took pages away.
    pub mapping: Arc<Mapping>,
    /// Which memory it is.
    pub identity: Identity,
}

/// Why a memory file was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AdmitError {
    /// It has no seals at all.
    #[error("the descriptor is not a sealable memory file: make it with memfd_create and MFD_ALLOW_SEALING")]
    NotMemory,
    /// Seals are missing.
    #[error(
        "the memory file can still change its size: seal it with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL"
    )]
    NotSealed,
    /// The seals forbid writing.
    #[error("the memory file is sealed against writing: do not add F_SEAL_WRITE or F_SEAL_FUTURE_WRITE")]
    WriteSealed,
    /// The file should be sealed against writing and is not.
    #[error(
        "the ring file of the daemon can be written by others: this is not a Ringway daemon, do not use it"
    )]
    Writable,
    /// The descriptor was not opened for both.
    #[error("the descriptor is not open for reading and writing: pass the one that memfd_create gave")]
    NotReadWrite,
    /// It has no bytes.
    #[error("the memory file is empty: give it a size with ftruncate before sealing it")]
    Empty,
    /// It is no multiple of the page.
    #[error(
        "the memory file has {size} bytes, not a multiple of {page}: round its size up before sealing it"
    )]
    Unaligned {
        /// The file's bytes.
        size: u64,
        /// The page's bytes.
        page: u64,
    },
    /// It is larger than allowed.
    #[error(
        "the memory file has {size} bytes and {limit} are allowed: use a smaller one, or raise the quota"
    )]
    TooLarge {
        /// The file's bytes.
        size: u64,
        /// The limit's bytes.
        limit: u64,
    },
    /// Pages are missing; whoever touches them first would pay for them.
    #[error(
        "only {populated} of the memory file's {size} bytes have pages: populate all of it \
         (madvise MADV_POPULATE_WRITE, or write to every page) before registering it"
    )]
    Holes {
        /// Bytes with pages.
        populated: u64,
        /// The file's bytes.
        size: u64,
    },
    /// It does not have the size agreed on.
    #[error("the ring file has {size} bytes, expected {expected}: the daemon is of another version")]
    WrongSize {
        /// The file's bytes.
        size: u64,
        /// The size agreed on.
        expected: u64,
    },
    /// The kernel does not tell about it.
    #[error("the kernel refused to say what the descriptor is: {0}")]
    Stat(Errno),
    /// The kernel did not map it.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Admits a client's region of at most `limit` bytes: a populated memory file of fixed size, in whole pages, that can
/// be written. The result is mapped for reading and writing, survives holes that the client may punch later, and keeps the
/// file.
///
/// # Errors
/// [`AdmitError`] says which condition was not met, and what the client should do.
pub fn admit(file: OwnedFd, limit: u64) -> Result<Region, AdmitError> {
    let fd = file.as_fd();
    let seals = seals(fd)?;
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(AdmitError::WriteSealed);
    }
    let access = rustix::fs::fcntl_getfl(fd).map_err(AdmitError::Stat)? & rustix::fs::OFlags::RWMODE;
    if access != rustix::fs::OFlags::RDWR {
        return Err(AdmitError::NotReadWrite);
    }
    // The seals were seen before the size, so the size no longer changes.
    let (stat, size) = stat(fd)?;
    if size == 0 {
        return Err(AdmitError::Empty);
    }
    let page = rustix::param::page_size() as u64;
    if !size.is_multiple_of(page) {
        return Err(AdmitError::Unaligned { size, page });
    }
    if size > limit {
        return Err(AdmitError::TooLarge { size, limit });
    }
    let populated = populated(&stat);
    if populated < size {
        return Err(AdmitError::Holes { populated, size });
    }
    let length = usize::try_from(size).map_err(|_| AdmitError::TooLarge { size, limit })?;
    let mapping = Mapping::foreign(fd, length, Protection::ReadWrite)?.keep_file(file);
    Ok(Region { mapping: Arc::new(mapping), identity: identity(&stat) })
}

/// What a daemon of the same host lets this one read.
#[derive(Debug)]
pub enum PeerFile {
    /// All of it has pages: it is mapped.
    Mapped(Mapping),
    /// It is read by system calls: because it has holes, where they find zeroes, while a mapping would give each that is read a page,
    /// which this process pays for; or because there are as many mappings as there may be.
    Unmapped {
        /// The file.
        file: OwnedFd,
        /// Its bytes.
        length: u64,
    },
}

impl PeerFile {
    /// For a daemon: takes what a daemon of the same host lets it read, of at most `limit` bytes. It is a memory file of
    /// fixed size, or reading it could wait for anybody; holes that its client punches are survived.
    ///
    /// # Errors
    /// [`AdmitError`] when it is not.
    pub fn admit(file: OwnedFd, limit: u64) -> Result<Self, AdmitError> {
        seals(file.as_fd())?;
        let (stat, size) = stat(file.as_fd())?;
        let too_large = AdmitError::TooLarge { size, limit };
        if size > limit {
            return Err(too_large);
        }
        let length = usize::try_from(size).map_err(|_| too_large)?;
        if populated(&stat) < size {
            return Ok(Self::Unmapped { file, length: size });
        }
        match Mapping::of_peer(file.as_fd(), length) {
            Err(MapError::TooManyForeign { .. }) => Ok(Self::Unmapped { file, length: size }),
            mapped => Ok(Self::Mapped(mapped?)),
        }
    }

    /// Its bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        match self {
            Self::Mapped(mapping) => mapping.length() as u64,
            Self::Unmapped { length, .. } => *length,
        }
    }

    /// Fills a window from this byte on; how many bytes were copied, all or, when they are not all there, fewer.
    #[must_use]
    #[inline]
    pub fn copy_to(&self, offset: u64, to: &Window<'_>) -> usize {
        match self {
            Self::Mapped(mapping) => {
                mapping.window(offset, to.length() as u64).map_or(0, |from| from.copy_to(to))
            }
            Self::Unmapped { file, .. } => read(file.as_fd(), offset, to),
        }
    }

    /// Whether pages were gone when they were read: see [`Mapping::faulted`].
    #[must_use]
    #[inline]
    pub fn faulted(&self) -> bool {
        matches!(self, Self::Mapped(mapping) if mapping.faulted())
    }
}

/// Fills a window from a file, as far as that goes.
#[cold]
fn read(file: BorrowedFd<'_>, offset: u64, to: &Window<'_>) -> usize {
    let (mut chunk, mut done) = ([0; 4096], 0);
    while let Some(rest) = to.sub(done, to.length() - done).filter(|rest| !rest.is_empty()) {
        let Some(at) = offset.checked_add(done as u64) else { break };
        let most = rest.length().min(chunk.len());
        calls::count();
        match rustix::io::pread(file, chunk.get_mut(..most).unwrap_or_default(), at) {
            Err(Errno::INTR) => {}
            Err(_) => break,
            Ok(count) => match rest.write(chunk.get(..count).unwrap_or_default()) {
                0 => break,
                written => done += written,
            },
        }
    }
    done
}

/// For a client: maps the ring file that the daemon writes ("D"), read-only, after checking that the kernel keeps
/// everybody else from writing it and that it has the size agreed on. A child made by `fork` does not get it.
///
/// # Errors
/// [`AdmitError`] when it is not what a daemon promises.
pub fn map_daemon_written(fd: BorrowedFd<'_>, length: usize) -> Result<Mapping, AdmitError> {
    if !seals(fd)?.contains(DAEMON_WRITTEN) {
        return Err(AdmitError::Writable);
    }
    map_ring(fd, length, Protection::Read)
}

/// For a client: maps the ring file that the client writes ("C"). A child made by `fork` does not get it: two processes
/// at one end of a ring would break it.
///
/// # Errors
/// [`AdmitError`] when it is not what a daemon promises.
pub fn map_client_written(fd: BorrowedFd<'_>, length: usize) -> Result<Mapping, AdmitError> {
    seals(fd)?;
    map_ring(fd, length, Protection::ReadWrite)
}

fn map_ring(fd: BorrowedFd<'_>, length: usize, protection: Protection) -> Result<Mapping, AdmitError> {
    expect_size(fd, length)?;
    let mapping = Mapping::shared(fd, length, protection)?;
    let errno = |errno| MapError::Kernel { length, errno };
    mapping.exclude_from_fork().map_err(errno)?;
    Ok(mapping)
}

/// The identity of the memory behind a descriptor.
///
/// # Errors
/// The kernel's reason for not telling.
pub fn identify(fd: BorrowedFd<'_>) -> Result<Identity, AdmitError> {
    stat(fd).map(|(stat, _)| identity(&stat))
}

/// The seals, which fix the size at least.
fn seals(fd: BorrowedFd<'_>) -> Result<SealFlags, AdmitError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| AdmitError::NotMemory)?;
    if seals.contains(FIXED_SIZE) { Ok(seals) } else { Err(AdmitError::NotSealed) }
}

fn stat(fd: BorrowedFd<'_>) -> Result<(Stat, u64), AdmitError> {
    let stat = rustix::fs::fstat(fd).map_err(AdmitError::Stat)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok((stat, size))
}

/// Bytes of a memory file that have pages.
fn populated(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[expect(clippy::useless_conversion, reason = "the fields' types differ between architectures")]
fn identity(stat: &Stat) -> Identity {
    Identity { device: stat.st_dev.into(), inode: stat.st_ino.into() }
}

fn expect_size(fd: BorrowedFd<'_>, length: usize) -> Result<(), AdmitError> {
    let (_, size) = stat(fd)?;
    let expected = length as u64;
    if size == expected { Ok(()) } else { Err(AdmitError::WrongSize { size, expected }) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;
    use crate::MemFd;

    const LENGTH: u64 = 1 << 16;
    const LIMIT: u64 = 1 << 20;

    fn file(size: u64, populate: bool, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&fd, size).expect("size");
        if populate {
            let length = usize::try_from(size).expect("small");
            let mapping = Mapping::shared(fd.as_fd(), length, Protection::ReadWrite).expect("map");
            mapping.populate().expect("populate");
        }
        fcntl_add_seals(&fd, seals).expect("seal");
        fd
    }

    fn refusal(fd: impl Into<OwnedFd>) -> AdmitError {
        admit(fd.into(), LIMIT).expect_err("refused")
    }

    #[test]
    fn a_region_made_as_told_is_admitted() {
        let (file, theirs) = MemFd::region("r", LENGTH).expect("create");
        let other = file.as_fd().try_clone_to_owned().expect("dup");
        let region = admit(file.into_fd(), LENGTH).expect("admit");
        theirs.window(5, 1).expect("window").write(b"q");
        let mut seen = [0; 1];
        region.mapping.window(5, 1).expect("window").read(&mut seen);
        assert_eq!(&seen, b"q");
        assert_eq!(region.identity, identify(other.as_fd()).expect("identify"));
        let kept = region.mapping.file().expect("the file is kept");
        assert_eq!(region.identity, identify(kept).expect("identify"));
    }

    #[test]
    fn each_condition_is_checked() {
        let (pipe, _write) = rustix::pipe::pipe().expect("pipe");
        assert_eq!(refusal(pipe), AdmitError::NotMemory);
        let regular = std::fs::File::open("/proc/self/exe").expect("open");
        assert_eq!(refusal(regular), AdmitError::NotMemory);
        assert_eq!(refusal(file(LENGTH, true, SealFlags::empty())), AdmitError::NotSealed);
        assert_eq!(refusal(file(LENGTH, true, SealFlags::SHRINK | SealFlags::GROW)), AdmitError::NotSealed);
        assert_eq!(refusal(file(LENGTH, true, FIXED_SIZE | SealFlags::WRITE)), AdmitError::WriteSealed);
        assert_eq!(refusal(file(LENGTH, true, DAEMON_WRITTEN)), AdmitError::WriteSealed);
        assert_eq!(refusal(file(0, false, FIXED_SIZE)), AdmitError::Empty);
        assert!(matches!(refusal(file(5000, true, FIXED_SIZE)), AdmitError::Unaligned { size: 5000, .. }));
        assert_eq!(
            refusal(file(2 * LIMIT, false, FIXED_SIZE)),
            AdmitError::TooLarge { size: 2 * LIMIT, limit: LIMIT }
        );
        assert_eq!(
            refusal(file(LENGTH, false, FIXED_SIZE)),
            AdmitError::Holes { populated: 0, size: LENGTH }
        );
    }

    #[test]
    fn a_read_only_descriptor_is_refused() {
        use std::os::fd::AsRawFd;
        let fd = file(LENGTH, true, FIXED_SIZE);
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        assert_eq!(refusal(std::fs::File::open(path).expect("open")), AdmitError::NotReadWrite);
    }

    #[test]
    fn what_a_daemon_is_let_read_is_memory_of_fixed_size() {
        let (region, theirs) = MemFd::region("r", LENGTH).expect("create");
        theirs.window(5, 1).expect("window").write(b"q");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&region.as_fd()));
        let open = || OwnedFd::from(std::fs::File::open(&path).expect("open"));
        let PeerFile::Mapped(mapping) = PeerFile::admit(open(), LENGTH).expect("map") else {
            panic!("all of it has pages")
        };
        let mut seen = [0; 1];
        mapping.window(5, 1).expect("window").read(&mut seen);
        assert_eq!((&seen, mapping.length() as u64, mapping.protection()), (b"q", LENGTH, Protection::Read));
        let refusal = |file: OwnedFd| PeerFile::admit(file, LENGTH).expect_err("refused");
        assert_eq!(
            refusal(std::fs::File::open("/proc/self/exe").expect("open").into()),
            AdmitError::NotMemory
        );
        assert_eq!(refusal(file(LENGTH, true, SealFlags::empty())), AdmitError::NotSealed);
        let limit = LENGTH - 1;
        let larger = PeerFile::admit(open(), limit).expect_err("refused");
        assert_eq!(larger, AdmitError::TooLarge { size: LENGTH, limit });
    }

    /// What another daemon's holes read as costs this process no memory.
    #[test]
    fn holes_of_what_a_daemon_is_let_read_stay_holes() {
        let fd = file(LENGTH, false, FIXED_SIZE);
        rustix::io::pwrite(&fd, b"here", LENGTH - 4).expect("written");
        let blocks = || rustix::fs::fstat(&fd).expect("stat").st_blocks;
        let before = blocks();
        let region = PeerFile::admit(fd.try_clone().expect("dup"), LIMIT).expect("admitted");
        assert_eq!((region.length(), region.faulted()), (LENGTH, false));
        let mut seen = vec![1; 10_000];
        let count = region.copy_to(LENGTH - 10_000, &Window::of_mut(&mut seen));
        assert_eq!((count, seen.split_off(9_996)), (10_000, b"here".to_vec()));
        assert!(seen.iter().all(|byte| *byte == 0));
        assert_eq!(blocks(), before);
        assert_eq!(region.copy_to(LENGTH - 1, &Window::of_mut(&mut [0; 2])), 1, "there is no more");
        assert_eq!(region.copy_to(u64::MAX, &Window::of_mut(&mut [0; 2])), 0);
    }

    #[test]
    fn a_client_checks_what_the_daemon_gave() {
        let length = usize::try_from(LENGTH).expect("small");
        let (d, _ours) = MemFd::daemon_written("d", LENGTH).expect("create");
        assert_eq!(map_daemon_written(d.as_fd(), length).expect("map").protection(), Protection::Read);
        let wrong = AdmitError::WrongSize { size: LENGTH, expected: 2 * LENGTH };
        assert_eq!(map_daemon_written(d.as_fd(), 2 * length).expect_err("refused"), wrong);
        let (c, _ours) = MemFd::client_written("c", LENGTH).expect("create");
        assert_eq!(map_daemon_written(c.as_fd(), length).expect_err("refused"), AdmitError::Writable);
        assert_eq!(map_client_written(c.as_fd(), length).expect("map").protection(), Protection::ReadWrite);
    }
}
