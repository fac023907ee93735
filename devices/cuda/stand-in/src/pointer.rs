//! What can be asked of a pointer.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::{
    call::{Status, in_context},
    context::Context,
    device,
    error::{Failure, Result},
    regions::{Kind, Region},
    state::lock,
};

const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

/// An attribute's value, in the size that it has.
enum Value {
    Int(c_int),
    Unsigned(c_uint),
    Word(usize),
    Long(c_ulonglong),
    Context(Context),
}

/// Attributes by their number in cuda.h.
fn value(region: &Region, attribute: c_uint, address: usize) -> Result<Value> {
    let allocation = region.kind.allocation();
    Ok(match attribute {
        1 => Value::Context(region.current.context),
        2 => Value::Unsigned(if allocation.is_some() { DEVICE } else { HOST }),
        // The address on the device, and that on the host.
        3 => Value::Word(address),
        4 if allocation.is_none() => Value::Word(address),
        7 => Value::Long(region.id),
        // Managed memory is not made here.
        8 => Value::Int(0),
        9 => Value::Int(device::number(region.current.device)),
        10 => Value::Int(c_int::from(matches!(region.kind, Kind::Allocated { .. }))),
        11 => Value::Word(region.span.start),
        12 => Value::Word(region.span.bytes()),
        // Whether there is memory behind it.
        13 => Value::Int(1),
        14 => Value::Long(allocation.map_or(0, |allocation| u64::from(allocation.shareable_as))),
        // Whether GPUDirect RDMA is possible.
        15 => Value::Int(0),
        _ => return Err(Failure::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: c_uint,
    address: usize,
) -> Status {
    in_context("cuPointerGetAttribute", |_| {
        if data.is_null() {
            return Err(Failure::INVALID_VALUE);
        }
        let state = lock();
        let region = state.regions.containing(address).ok_or(Failure::INVALID_VALUE)?;
        match value(region, attribute, address)? {
            // SAFETY: the caller keeps to cuda.h: behind the pointer is room for this attribute's value.
            Value::Int(value) => unsafe { data.cast::<c_int>().write(value) },
            // SAFETY: as above.
            Value::Unsigned(value) => unsafe { data.cast::<c_uint>().write(value) },
            // SAFETY: as above.
            Value::Word(value) | Value::Context(value) => unsafe { data.cast::<usize>().write(value) },
            // SAFETY: as above.
            Value::Long(value) => unsafe { data.cast::<c_ulonglong>().write(value) },
        }
        Ok(())
    })
}
