//! Memory whose addresses and bytes are had apart.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_uint, c_ulonglong, c_void},
    os::fd::{BorrowedFd, IntoRawFd, RawFd},
    sync::{Arc, MutexGuard},
};

use crate::{
    allocation::Allocation,
    call::{Out, Status, initialised, put},
    context::Current,
    device,
    error::{Failure, Result},
    pages::{self, GRANULARITY},
    regions::{Access, Kind, Span},
    state::{State, lock, settled},
};

const PINNED: c_uint = 1;
const ON_DEVICE: c_uint = 1;
const POSIX_DESCRIPTOR: c_uint = 1;

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Location {
    pub kind: c_uint,
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AllocationProperties {
    pub kind: c_uint,
    pub requested_handle_types: c_uint,
    pub location: Location,
    pub win32_meta_data: usize,
    pub compression: u8,
    pub gpu_direct_rdma_capable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AccessDescription {
    pub location: Location,
    pub flags: c_uint,
}

/// Allocations by handle, with how often each is held.
#[derive(Debug)]
pub(crate) struct Handles {
    made: u64,
    held: BTreeMap<u64, (Arc<Allocation>, u32)>,
}

impl Handles {
    pub(crate) const fn new() -> Self {
        Self { made: 0, held: BTreeMap::new() }
    }

    fn add(&mut self, allocation: Arc<Allocation>) -> u64 {
        self.made += 1;
        self.held.insert(self.made, (allocation, 1));
        self.made
    }

    fn get(&self, handle: u64) -> Result<&Arc<Allocation>> {
        self.held.get(&handle).map(|(allocation, _)| allocation).ok_or(Failure::INVALID_VALUE)
    }
}

impl Location {
    fn device(self) -> Result<usize> {
        if self.kind == ON_DEVICE { device::ordinal(self.id) } else { Err(Failure::NOT_SUPPORTED) }
    }
}

impl AllocationProperties {
    /// The device, if this library makes such memory.
    fn device(&self) -> Result<usize> {
        if self.kind != PINNED || self.requested_handle_types & !POSIX_DESCRIPTOR != 0 {
            return Err(Failure::INVALID_VALUE);
        }
        if self.compression != 0 || self.gpu_direct_rdma_capable != 0 || self.usage != 0 {
            return Err(Failure::NOT_SUPPORTED);
        }
        self.location.device()
    }
}

/// A span of whole units.
fn units(address: usize, bytes: usize) -> Result<Span> {
    if address.is_multiple_of(GRANULARITY) && bytes.is_multiple_of(GRANULARITY) {
        Span::new(address, bytes)
    } else {
        Err(Failure::INVALID_VALUE)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: Out<'_, usize>,
    properties: Option<&AllocationProperties>,
    option: c_uint,
) -> Status {
    initialised("cuMemGetAllocationGranularity", || {
        properties.ok_or(Failure::INVALID_VALUE)?.device()?;
        if option > 1 {
            return Err(Failure::INVALID_VALUE);
        }
        put(granularity, GRANULARITY)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: Out<'_, u64>,
    bytes: usize,
    properties: Option<&AllocationProperties>,
    flags: c_ulonglong,
) -> Status {
    initialised("cuMemCreate", || {
        let properties = properties.ok_or(Failure::INVALID_VALUE)?;
        let device = properties.device()?;
        if flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Failure::INVALID_VALUE);
        }
        let allocation = Allocation::create(device, bytes, properties.requested_handle_types)?;
        put(handle, lock().handles.add(allocation))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    descriptor: Out<'_, RawFd>,
    handle: u64,
    kind: c_uint,
    flags: c_ulonglong,
) -> Status {
    initialised("cuMemExportToShareableHandle", || {
        let state = lock();
        let allocation = state.handles.get(handle)?;
        if flags != 0 || kind != POSIX_DESCRIPTOR || allocation.shareable_as & kind == 0 {
            return Err(Failure::INVALID_VALUE);
        }
        let descriptor = descriptor.ok_or(Failure::INVALID_VALUE)?;
        let shared = rustix::io::fcntl_dupfd_cloexec(allocation, 0).map_err(|_| Failure::OUT_OF_MEMORY)?;
        descriptor.write(shared.into_raw_fd());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: Out<'_, u64>,
    descriptor: usize,
    kind: c_uint,
) -> Status {
    initialised("cuMemImportFromShareableHandle", || {
        let descriptor = RawFd::try_from(descriptor).map_err(|_| Failure::INVALID_VALUE)?;
        if kind != POSIX_DESCRIPTOR {
            return Err(Failure::INVALID_VALUE);
        }
        // SAFETY: no negative number, so that it is not the one that means none. The caller keeps what is behind it open
        // for this call; if nothing is, duplicating it fails.
        let shared = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let file = rustix::io::fcntl_dupfd_cloexec(shared, 0).map_err(|_| Failure::INVALID_VALUE)?;
        let allocation = Allocation::import(file, POSIX_DESCRIPTOR)?;
        put(handle, lock().handles.add(allocation))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: u64) -> Status {
    initialised("cuMemRelease", || {
        let mut state = lock();
        let (_, held) = state.handles.held.get_mut(&handle).ok_or(Failure::INVALID_VALUE)?;
        *held -= 1;
        if *held == 0 {
            state.handles.held.remove(&handle);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(handle: Out<'_, u64>, address: *mut c_void) -> Status {
    initialised("cuMemRetainAllocationHandle", || {
        let mut guard = lock();
        let state = &mut *guard;
        let region = state.regions.containing(address.addr()).ok_or(Failure::INVALID_VALUE)?;
        let Kind::Mapped { handle: number, allocation, .. } = &region.kind else {
            return Err(Failure::INVALID_VALUE);
        };
        put(handle, *number)?;
        let (_, held) = state.handles.held.entry(*number).or_insert_with(|| (Arc::clone(allocation), 0));
        *held += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: Out<'_, usize>,
    bytes: usize,
    alignment: usize,
    _wished: usize,
    flags: c_ulonglong,
) -> Status {
    initialised("cuMemAddressReserve", || {
        let alignment = alignment.max(GRANULARITY);
        let possible = bytes != 0 && bytes.is_multiple_of(GRANULARITY) && alignment.is_power_of_two();
        let address = address.filter(|_| possible && flags == 0).ok_or(Failure::INVALID_VALUE)?;
        let reserved = pages::reserve(bytes, alignment)?;
        lock().reservations.insert(reserved.start, reserved);
        address.write(reserved.start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(address: usize, bytes: usize) -> Status {
    initialised("cuMemAddressFree", || {
        let span = Span::new(address, bytes)?;
        let mut state = lock();
        if state.reservations.get(&address) != Some(&span) || state.regions.any_within(span) {
            return Err(Failure::INVALID_VALUE);
        }
        // The addresses stay set aside, as all that were a device's once; see `pages`.
        state.reservations.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(
    address: usize,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: c_ulonglong,
) -> Status {
    initialised("cuMemMap", || {
        let span = units(address, bytes)?;
        let mut state = lock();
        let allocation = Arc::clone(state.handles.get(handle)?);
        // cuda.h wants an offset of zero.
        if flags != 0 || offset != 0 || bytes > allocation.bytes {
            return Err(Failure::INVALID_VALUE);
        }
        let around = state.reservations.range(..=address).next_back();
        if !around.is_some_and(|(_, reserved)| reserved.contains(span)) || state.regions.any_within(span) {
            return Err(Failure::INVALID_VALUE);
        }
        // SAFETY: set aside, and not mapped so far.
        unsafe { pages::map_over(span, &*allocation) }?;
        // Mappings belong to no context.
        let current = Current { context: 0, device: allocation.device };
        state.regions.add(span, current, Kind::Mapped { handle, allocation, access: Default::default() });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(address: usize, bytes: usize) -> Status {
    initialised("cuMemUnmap", || {
        let span = units(address, bytes)?;
        let mut state = settled(span, |state| state.regions.mappings_of(span).map(|_| ()))?;
        for start in state.regions.mappings_of(span)? {
            state.regions.remove(start);
        }
        // SAFETY: these were mappings of this library; no work touches them, and as long as the state is locked no more
        // is queued.
        unsafe { pages::retire(span) }
    })
}

/// The state once a device's access to mappings can change: if less is allowed afterwards, once no work touches them.
fn changeable(span: Span, device: usize, wanted: Access) -> Result<MutexGuard<'static, State>> {
    let check = |state: &State| state.regions.mappings_of(span).map(|_| ());
    let state = lock();
    check(&state)?;
    if wanted < Access::ReadWrite && state.regions.allow(span, device, Access::Read) {
        drop(state);
        return settled(span, check);
    }
    Ok(state)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: usize,
    bytes: usize,
    descriptions: *const AccessDescription,
    count: usize,
) -> Status {
    initialised("cuMemSetAccess", || {
        let span = units(address, bytes)?;
        if descriptions.is_null() || count == 0 {
            return Err(Failure::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller keeps to cuda.h: there are so many.
        let descriptions = unsafe { std::slice::from_raw_parts(descriptions, count) };
        for description in descriptions {
            let device = description.location.device()?;
            let wanted = match description.flags {
                0 => Access::None,
                1 => Access::Read,
                3 => Access::ReadWrite,
                _ => return Err(Failure::INVALID_VALUE),
            };
            let mut state = changeable(span, device, wanted)?;
            for start in state.regions.mappings_of(span)? {
                if let Some((mapping, access)) = state.regions.set_access(start, device, wanted) {
                    // SAFETY: a mapping of this library; if it allows less now, no work touches it.
                    unsafe { pages::protect(mapping, access) }?;
                }
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAccess(
    flags: Out<'_, c_ulonglong>,
    location: Option<&Location>,
    address: usize,
) -> Status {
    initialised("cuMemGetAccess", || {
        let device = location.ok_or(Failure::INVALID_VALUE)?.device()?;
        let state = lock();
        let Some(Kind::Mapped { access, .. }) = state.regions.containing(address).map(|region| &region.kind)
        else {
            return Err(Failure::INVALID_VALUE);
        };
        let access = match access.get(device).copied().unwrap_or_default() {
            Access::None => 0,
            Access::Read => 1,
            Access::ReadWrite => 3,
        };
        put(flags, access)
    })
}
