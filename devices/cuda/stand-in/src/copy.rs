//! Copies, and filling with a value.

use std::{
    ffi::{c_uchar, c_uint, c_void},
    ptr,
};

use crate::{
    call::{Status, in_context, working},
    context::Current,
    error::{Failure, Result},
    maps,
    queue::{Then, Touches},
    regions::{Access, Span},
    state::{State, lock},
};

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Has to be memory that the device reaches.
    Device(usize),
    /// May also be memory of the host that is not registered.
    Any(usize),
}

/// Whether a call returns before its work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Unless memory is touched that is not pinned.
    Later,
    Now,
}

impl End {
    /// The bytes, and whether the device reaches them by itself.
    fn check(self, state: &State, bytes: usize, device: usize, access: Access) -> Result<(Span, bool)> {
        let (Self::Device(address) | Self::Any(address)) = self;
        let span = Span::new(address, bytes)?;
        if state.regions.allow(span, device, access) {
            return Ok((span, true));
        }
        // What only partly is the device's, or is no longer mapped, is a mistake and not memory of the host.
        let pageable = matches!(self, Self::Any(_))
            && !state.regions.any_within(span)
            && !state.is_set_aside(span)
            && maps::allow(span, access);
        if pageable { Ok((span, false)) } else { Err(Failure::INVALID_VALUE) }
    }
}

fn copy(current: Current, to: End, from: End, bytes: usize, stream: usize, when: When) -> Result<()> {
    let mut state = lock();
    let (queue, current) = state.queue(stream, current)?;
    if bytes == 0 {
        return Ok(());
    }
    let (to, to_pinned) = to.check(&state, bytes, current.device, Access::ReadWrite)?;
    let (from, from_pinned) = from.check(&state, bytes, current.device, Access::Read)?;
    let work = queue.push(Touches::These(vec![to, from]), move |_| {
        let source = ptr::with_exposed_provenance::<u8>(from.start);
        let target = ptr::with_exposed_provenance_mut::<u8>(to.start);
        // SAFETY: both ranges were mapped with this access when this was queued, and what this library maps stays until
        // the work that touches it is done. Other memory is the caller's to keep, which waits for this.
        unsafe { ptr::copy(source, target, bytes) };
        Then::GoOn
    });
    drop(state);
    if when == When::Now || !to_pinned || !from_pinned {
        queue.wait(work);
        return working();
    }
    Ok(())
}

/// Fills with a value of one or four bytes.
fn fill<T: Copy + Send + 'static>(
    current: Current,
    address: usize,
    value: T,
    count: usize,
    stream: usize,
    when: When,
) -> Result<()> {
    let mut state = lock();
    let (queue, current) = state.queue(stream, current)?;
    if count == 0 {
        return Ok(());
    }
    let bytes = count.checked_mul(size_of::<T>()).ok_or(Failure::INVALID_VALUE)?;
    if !address.is_multiple_of(align_of::<T>()) {
        return Err(Failure::INVALID_VALUE);
    }
    let (span, _) = End::Device(address).check(&state, bytes, current.device, Access::ReadWrite)?;
    let work = queue.push(Touches::These(vec![span]), move |_| {
        let start = ptr::with_exposed_provenance_mut::<T>(span.start);
        for place in 0..count {
            // SAFETY: aligned, and within memory that was checked when this was queued and stays until this is done.
            unsafe { start.wrapping_add(place).write(value) };
        }
        Then::GoOn
    });
    drop(state);
    if when == When::Now {
        queue.wait(work);
        return working();
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy(to: usize, from: usize, bytes: usize) -> Status {
    in_context("cuMemcpy", |current| copy(current, End::Any(to), End::Any(from), bytes, 0, When::Now))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: usize, from: usize, bytes: usize, stream: usize) -> Status {
    in_context("cuMemcpyAsync", |current| {
        copy(current, End::Any(to), End::Any(from), bytes, stream, When::Later)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const c_void, bytes: usize) -> Status {
    in_context("cuMemcpyHtoD_v2", |current| {
        copy(current, End::Device(to), End::Any(from.expose_provenance()), bytes, 0, When::Now)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, bytes: usize) -> Status {
    in_context("cuMemcpyDtoH_v2", |current| {
        copy(current, End::Any(to.expose_provenance()), End::Device(from), bytes, 0, When::Now)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize) -> Status {
    in_context("cuMemcpyDtoD_v2", |current| {
        copy(current, End::Device(to), End::Device(from), bytes, 0, When::Now)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: *const c_void,
    bytes: usize,
    stream: usize,
) -> Status {
    in_context("cuMemcpyHtoDAsync_v2", |current| {
        copy(current, End::Device(to), End::Any(from.expose_provenance()), bytes, stream, When::Later)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: usize,
    bytes: usize,
    stream: usize,
) -> Status {
    in_context("cuMemcpyDtoHAsync_v2", |current| {
        copy(current, End::Any(to.expose_provenance()), End::Device(from), bytes, stream, When::Later)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) -> Status {
    in_context("cuMemcpyDtoDAsync_v2", |current| {
        copy(current, End::Device(to), End::Device(from), bytes, stream, When::Later)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(to: usize, value: c_uchar, count: usize) -> Status {
    in_context("cuMemsetD8_v2", |current| fill(current, to, value, count, 0, When::Now))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32_v2(to: usize, value: c_uint, count: usize) -> Status {
    in_context("cuMemsetD32_v2", |current| fill(current, to, value, count, 0, When::Now))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: usize, value: c_uchar, count: usize, stream: usize) -> Status {
    in_context("cuMemsetD8Async", |current| fill(current, to, value, count, stream, When::Later))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32Async(to: usize, value: c_uint, count: usize, stream: usize) -> Status {
    in_context("cuMemsetD32Async", |current| fill(current, to, value, count, stream, When::Later))
}
