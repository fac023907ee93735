//! Allocations of one process in another, by a handle of bytes: who holds the file, and under which number.

use std::ffi::c_uint;

use rustix::fs::{Mode, OFlags};

use crate::{
    allocation::Allocation,
    call::{Out, Status, in_context, put},
    error::{Failure, Result},
    pages,
    regions::{Kind, Span},
    state::{State, lock, settled},
};

const MAGIC: u64 = u64::from_le_bytes(*b"standin1");
const LAZY_PEER_ACCESS: c_uint = 1;

/// `CUipcMemHandle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct IpcHandle {
    pub reserved: [u8; 64],
}

/// What a handle says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    process: u64,
    descriptor: u64,
    /// Numbers of descriptors are used again; this shows that the allocation is gone.
    inode: u64,
    bytes: u64,
}

/// An allocation of another process that is mapped here, once however often it is opened.
#[derive(Debug)]
pub(crate) struct Opened {
    named: Named,
    start: usize,
    times: u32,
}

impl Named {
    fn encode(self) -> IpcHandle {
        let mut reserved = [0; 64];
        let words = [MAGIC, self.process, self.descriptor, self.inode, self.bytes];
        for (place, word) in reserved.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        IpcHandle { reserved }
    }

    fn decode(handle: &IpcHandle) -> Result<Self> {
        let (words, _) = handle.reserved.as_chunks::<8>();
        match words {
            [magic, process, descriptor, inode, bytes, ..] if u64::from_le_bytes(*magic) == MAGIC => {
                Ok(Self {
                    process: u64::from_le_bytes(*process),
                    descriptor: u64::from_le_bytes(*descriptor),
                    inode: u64::from_le_bytes(*inode),
                    bytes: u64::from_le_bytes(*bytes),
                })
            }
            _ => Err(Failure::INVALID_HANDLE),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: Out<'_, IpcHandle>, address: usize) -> Status {
    in_context("cuIpcGetMemHandle", |_| {
        let state = lock();
        let region = state.regions.containing(address).ok_or(Failure::INVALID_VALUE)?;
        let Kind::Allocated { allocation } = &region.kind else { return Err(Failure::INVALID_VALUE) };
        let named = Named {
            process: u64::from(std::process::id()),
            descriptor: u64::try_from(allocation.descriptor()).map_err(|_| Failure::UNKNOWN)?,
            inode: allocation.inode()?,
            bytes: region.span.bytes() as u64,
        };
        put(handle, named.encode())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    address: Out<'_, usize>,
    handle: IpcHandle,
    flags: c_uint,
) -> Status {
    in_context("cuIpcOpenMemHandle_v2", |current| {
        let address = address.filter(|_| flags == LAZY_PEER_ACCESS).ok_or(Failure::INVALID_VALUE)?;
        let named = Named::decode(&handle)?;
        // As NVIDIA's driver answers a process that opens its own.
        if named.process == u64::from(std::process::id()) {
            return Err(Failure::INVALID_CONTEXT);
        }
        let mut state = lock();
        if let Some(opened) = state.opened.iter_mut().find(|opened| opened.named == named) {
            opened.times += 1;
            address.write(opened.start);
            return Ok(());
        }
        let path = format!("/proc/{}/fd/{}", named.process, named.descriptor);
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let allocation = Allocation::import(file.map_err(|_| Failure::INVALID_HANDLE)?, 0)?;
        let bytes = usize::try_from(named.bytes).map_err(|_| Failure::INVALID_HANDLE)?;
        if allocation.inode()? != named.inode || bytes == 0 || bytes > allocation.bytes {
            return Err(Failure::INVALID_HANDLE);
        }
        let start = pages::map(&*allocation, allocation.bytes)?.start;
        state.regions.add(Span::new(start, bytes)?, current, Kind::Opened { allocation });
        state.opened.push(Opened { named, start, times: 1 });
        address.write(start);
        Ok(())
    })
}

/// The whole mapping of what was opened here, and how often it was.
fn opened(state: &State, address: usize) -> Result<(Span, u32)> {
    let times = state.opened.iter().find(|opened| opened.start == address).map(|opened| opened.times);
    let allocation = state.regions.at(address).and_then(|region| region.kind.allocation());
    match (times, allocation) {
        (Some(times), Some(allocation)) => Ok((Span::new(address, allocation.bytes)?, times)),
        _ => Err(Failure::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcCloseMemHandle(address: usize) -> Status {
    in_context("cuIpcCloseMemHandle", |_| {
        let (whole, times) = opened(&lock(), address)?;
        let mut state =
            if times > 1 { lock() } else { settled(whole, |state| opened(state, address).map(|_| ()))? };
        let place = state.opened.iter().position(|opened| opened.start == address);
        let place = place.ok_or(Failure::INVALID_VALUE)?;
        if let Some(opened) = state.opened.get_mut(place)
            && opened.times > 1
        {
            opened.times -= 1;
            return Ok(());
        }
        state.opened.swap_remove(place);
        state.regions.remove(address);
        // SAFETY: mapped by this library; the state is locked since it was seen that no work touches it.
        unsafe { pages::retire(whole) }
    })
}
