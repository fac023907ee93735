//! Device memory had in one piece, and what can be asked of addresses.

use std::{
    ffi::{c_int, c_ulonglong},
    sync::Arc,
};

use crate::{
    allocation::{self, Allocation},
    call::{Out, Status, in_context, put},
    device::DEVICE_BYTES,
    error::Failure,
    pages,
    regions::{Kind, Span},
    state::{State, lock, settled},
};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) -> Status {
    in_context("cuMemGetInfo_v2", |current| {
        put(free, allocation::free(current.device))?;
        put(total, DEVICE_BYTES)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: Out<'_, usize>, bytes: usize) -> Status {
    in_context("cuMemAlloc_v2", |current| {
        let address = address.filter(|_| bytes != 0).ok_or(Failure::INVALID_VALUE)?;
        let allocation = Allocation::create(current.device, bytes, 0)?;
        let start = pages::map(&*allocation, allocation.bytes)?.start;
        // What was not asked for is out of bounds, though mapped.
        lock().regions.add(Span::new(start, bytes)?, current, Kind::Allocated { allocation });
        address.write(start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: usize) -> Status {
    in_context("cuMemFree_v2", |_| {
        if address == 0 {
            return Ok(());
        }
        let allocated = |state: &State| match state.regions.at(address).map(|region| &region.kind) {
            Some(Kind::Allocated { allocation }) => Ok(Arc::clone(allocation)),
            _ => Err(Failure::INVALID_VALUE),
        };
        let allocation = allocated(&lock())?;
        let whole = Span::new(address, allocation.bytes)?;
        let mut state = settled(whole, |state| allocated(state).map(|_| ()))?;
        state.regions.remove(address);
        // SAFETY: mapped by this library; no work touches it, and as long as the state is locked no more is queued.
        unsafe { pages::retire(whole) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: Out<'_, usize>,
    bytes: Out<'_, usize>,
    address: usize,
) -> Status {
    in_context("cuMemGetAddressRange_v2", |_| {
        let state = lock();
        let region = state.regions.containing(address).ok_or(Failure::NOT_FOUND)?;
        // Either pointer may be null.
        base.map(|base| base.write(region.span.start));
        bytes.map(|bytes| bytes.write(region.span.bytes()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    _handle: Out<'_, c_int>,
    _address: usize,
    _bytes: usize,
    _kind: c_int,
    _flags: c_ulonglong,
) -> Status {
    in_context("cuMemGetHandleForAddressRange", |_| Err(Failure::NOT_SUPPORTED))
}
