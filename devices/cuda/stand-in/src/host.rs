//! Host memory that devices reach: registered, or made for them.

use std::ffi::{c_uint, c_void};

use crate::{
    call::{Out, Status, in_context, put},
    context::Current,
    error::{Failure, Result},
    maps, pages,
    regions::{Access, Kind, Span},
    state::{State, lock, settled},
};

const PORTABLE: c_uint = 0x01;
const MAPPED: c_uint = 0x02;
const IO_MEMORY: c_uint = 0x04;
const READ_ONLY: c_uint = 0x08;
/// Of `cuMemHostAlloc`.
const WRITE_COMBINED: c_uint = 0x04;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: c_uint) -> Status {
    in_context("cuMemHostRegister_v2", |current| {
        let span = Span::new(start.expose_provenance(), bytes)?;
        if flags & !(PORTABLE | MAPPED | IO_MEMORY | READ_ONLY) != 0 {
            return Err(Failure::INVALID_VALUE);
        }
        if flags & IO_MEMORY != 0 {
            return Err(Failure::NOT_SUPPORTED);
        }
        let mut state = lock();
        if let Some(region) = state.regions.first_within(span) {
            let of_host = region.kind.allocation().is_none();
            return Err(if of_host {
                Failure::HOST_MEMORY_ALREADY_REGISTERED
            } else {
                Failure::INVALID_VALUE
            });
        }
        let access = if flags & READ_ONLY == 0 { Access::ReadWrite } else { Access::Read };
        if state.is_set_aside(span) || !maps::allow(span, access) {
            return Err(Failure::INVALID_VALUE);
        }
        state.regions.add(span, current, Kind::Registered { access });
        Ok(())
    })
}

/// The bytes that a region of the host starts with this address, if it is of the kind asked for.
fn host_span(state: &State, start: usize, is_kind: fn(&Kind) -> bool) -> Option<Span> {
    state.regions.at(start).filter(|region| is_kind(&region.kind)).map(|region| region.span)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostUnregister(start: *mut c_void) -> Status {
    in_context("cuMemHostUnregister", |_| {
        let registered = |state: &State| {
            let span = host_span(state, start.addr(), |kind| matches!(kind, Kind::Registered { .. }));
            span.ok_or(Failure::HOST_MEMORY_NOT_REGISTERED)
        };
        let span = registered(&lock())?;
        settled(span, |state| registered(state).map(|_| ()))?.regions.remove(span.start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: Out<'_, usize>,
    start: *mut c_void,
    flags: c_uint,
) -> Status {
    in_context("cuMemHostGetDevicePointer_v2", |_| {
        let state = lock();
        let region = state.regions.containing(start.addr());
        let reached = region.filter(|region| flags == 0 && region.kind.allocation().is_none());
        reached.ok_or(Failure::INVALID_VALUE)?;
        put(address, start.addr())
    })
}

fn allocate(start: Out<'_, *mut c_void>, bytes: usize, current: Current) -> Result<()> {
    let start = start.filter(|_| bytes != 0).ok_or(Failure::INVALID_VALUE)?;
    let span = pages::map_anonymous(bytes)?;
    lock().regions.add(span, current, Kind::HostAllocated);
    start.write(std::ptr::with_exposed_provenance_mut(span.start));
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(start: Out<'_, *mut c_void>, bytes: usize) -> Status {
    in_context("cuMemAllocHost_v2", |current| allocate(start, bytes, current))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(start: Out<'_, *mut c_void>, bytes: usize, flags: c_uint) -> Status {
    in_context("cuMemHostAlloc", |current| {
        if flags & !(PORTABLE | MAPPED | WRITE_COMBINED) != 0 {
            return Err(Failure::INVALID_VALUE);
        }
        allocate(start, bytes, current)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(start: *mut c_void) -> Status {
    in_context("cuMemFreeHost", |_| {
        let allocated = |state: &State| {
            let span = host_span(state, start.addr(), |kind| matches!(kind, Kind::HostAllocated));
            span.ok_or(Failure::INVALID_VALUE)
        };
        let span = allocated(&lock())?;
        let mut state = settled(span, |state| allocated(state).map(|_| ()))?;
        state.regions.remove(span.start);
        // SAFETY: mapped by this library; no work touches it, and as long as the state is locked no more is queued.
        unsafe { pages::retire(span) }
    })
}
