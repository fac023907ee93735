//! A device's memory as a memory file, whose name says that it is one and whose.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::{
    device::{DEVICE_BYTES, DEVICES_MAX},
    error::{Failure, Result},
    pages::GRANULARITY,
};

const NAME: &str = "ringway-stand-in-gpu-";

/// What this process allocated of each device.
static USED: [AtomicUsize; DEVICES_MAX] = [const { AtomicUsize::new(0) }; DEVICES_MAX];

/// Device memory that this process made or was given.
#[derive(Debug)]
pub(crate) struct Allocation {
    file: OwnedFd,
    pub(crate) bytes: usize,
    pub(crate) device: usize,
    /// The bits of `CUmemAllocationHandleType` that it can be shared by.
    pub(crate) shareable_as: u32,
    made_here: bool,
}

impl Allocation {
    /// Memory of at least so many bytes.
    pub(crate) fn create(device: usize, bytes: usize, shareable_as: u32) -> Result<Arc<Self>> {
        let bytes = bytes.checked_next_multiple_of(GRANULARITY).ok_or(Failure::OUT_OF_MEMORY)?;
        take(device, bytes)?;
        let made = sealed(&format!("{NAME}{device}"), bytes);
        let file = made.map_err(|_| {
            give_back(device, bytes);
            Failure::OUT_OF_MEMORY
        })?;
        Ok(Arc::new(Self { file, bytes, device, shareable_as, made_here: true }))
    }

    /// Memory from another process's descriptor or this one's own.
    pub(crate) fn import(file: OwnedFd, shareable_as: u32) -> Result<Arc<Self>> {
        let link = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
        let name = link.map_err(|_| Failure::INVALID_VALUE)?.into_string().unwrap_or_default();
        let device = name
            .strip_prefix("/memfd:")
            .and_then(|name| name.strip_prefix(NAME))
            .and_then(|name| name.split(' ').next())
            .and_then(|device| device.parse().ok())
            .filter(|device| *device < DEVICES_MAX)
            .ok_or(Failure::INVALID_VALUE)?;
        let size = rustix::fs::fstat(&file).map_err(|_| Failure::INVALID_VALUE)?.st_size;
        let bytes = usize::try_from(size).map_err(|_| Failure::INVALID_VALUE)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Failure::INVALID_VALUE);
        }
        Ok(Arc::new(Self { file, bytes, device, shareable_as, made_here: false }))
    }

    /// The file's number, which no other living file of the kind has.
    pub(crate) fn inode(&self) -> Result<u64> {
        rustix::fs::fstat(&self.file).map(|stat| stat.st_ino).map_err(|_| Failure::INVALID_VALUE)
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsFd for Allocation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.made_here {
            give_back(self.device, self.bytes);
        }
    }
}

/// A memory file that keeps its size, so that no mapping of it ends early.
fn sealed(name: &str, bytes: usize) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

fn take(device: usize, bytes: usize) -> Result<()> {
    let used = USED.get(device).ok_or(Failure::INVALID_DEVICE)?;
    let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= DEVICE_BYTES);
    let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    taken.map(|_| ()).map_err(|_| Failure::OUT_OF_MEMORY)
}

fn give_back(device: usize, bytes: usize) {
    if let Some(used) = USED.get(device) {
        used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What is left of a device's memory, as far as this process knows.
pub(crate) fn free(device: usize) -> usize {
    USED.get(device).map_or(0, |used| DEVICE_BYTES - used.load(Ordering::Relaxed))
}
