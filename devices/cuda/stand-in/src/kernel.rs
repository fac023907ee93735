//! Kernels of modules, and launching them.

use std::io::Write as _;
use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use crate::{
    call::{Out, Status, in_context, put},
    device::{BLOCK_THREADS, MULTIPROCESSOR_BLOCKS, MULTIPROCESSOR_THREADS, WARP_THREADS},
    error::{Failure, Result},
    module::Function,
    queue::{Then, Touches},
    state::lock,
};

fn find(function: usize) -> Result<Function> {
    lock().functions.get(&function).cloned().ok_or(Failure::INVALID_HANDLE)
}

/// The bytes of a kernel's parameters, of which size and alignment are declared, one behind the other.
///
/// # Safety
/// Behind each pointer is a value of the parameter's size.
unsafe fn gather(declared: &[(usize, usize)], pointers: *const *const c_void) -> Result<Vec<u8>> {
    if pointers.is_null() && !declared.is_empty() {
        return Err(Failure::INVALID_VALUE);
    }
    let mut bytes = Vec::new();
    for (place, (size, align)) in declared.iter().enumerate() {
        // SAFETY: the caller says that there is one for each parameter.
        let pointer = unsafe { pointers.wrapping_add(place).read() };
        if pointer.is_null() {
            return Err(Failure::INVALID_VALUE);
        }
        let start = bytes.len().next_multiple_of((*align).max(1));
        bytes.resize(start + size, 0);
        if let Some(target) = bytes.get_mut(start..) {
            // SAFETY: the caller says that so many bytes are there, and the target, which is new, has as many.
            unsafe { ptr::copy_nonoverlapping(pointer.cast(), target.as_mut_ptr(), *size) };
        }
    }
    Ok(bytes)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> Status {
    in_context("cuLaunchKernel", |current| {
        let function = find(function)?;
        if [grid_x, grid_y, grid_z, block_x, block_y, block_z].contains(&0)
            || block_x > BLOCK_THREADS.unsigned_abs()
        {
            return Err(Failure::INVALID_VALUE);
        }
        // The interpreter knows one dimension, and no shared memory beyond what a kernel declares.
        if [grid_y, grid_z, block_y, block_z] != [1; 4] || shared_bytes != 0 || !extra.is_null() {
            return Err(Failure::NOT_SUPPORTED);
        }
        // SAFETY: the caller keeps to cuda.h: there is a pointer to a value for each parameter that the kernel declares.
        let bytes = unsafe { gather(function.entry()?.parameters(), parameters) }?;
        let mut state = lock();
        let (queue, _) = state.queue(stream, current)?;
        queue.push(Touches::Anything, move |_| {
            if let Ok(entry) = function.entry() {
                // SAFETY: the caller answers for what a kernel does with what it is given, as on a GPU; memory that is
                // this library's stays until the kernel is done.
                let run = unsafe { entry.run(&bytes, grid_x, block_x) };
                if let Err(reason) = run {
                    let mut err = std::io::stderr().lock();
                    let _ = writeln!(err, "stand-in: a kernel does not run: {reason}");
                    std::process::abort();
                }
            }
            Then::GoOn
        });
        Ok(())
    })
}

/// Attributes by their number in cuda.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    value: Out<'_, c_int>,
    attribute: c_uint,
    function: usize,
) -> Status {
    in_context("cuFuncGetAttribute", |_| {
        find(function)?;
        match attribute {
            0 => put(value, BLOCK_THREADS),
            // Registers of a thread.
            4 => put(value, 32),
            // Versions of PTX and of the code.
            5 | 6 => put(value, 90),
            1..=15 => put(value, 0),
            _ => Err(Failure::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(function: usize, attribute: c_uint, _value: c_int) -> Status {
    in_context("cuFuncSetAttribute", |_| {
        find(function)?;
        // Those of shared memory, which change nothing here, and of clusters.
        if matches!(attribute, 8 | 9 | 11..=15) { Ok(()) } else { Err(Failure::INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<'_, c_int>,
    function: usize,
    threads: c_int,
    _shared_bytes: usize,
) -> Status {
    in_context("cuOccupancyMaxActiveBlocksPerMultiprocessor", |_| {
        find(function)?;
        if threads <= 0 {
            return Err(Failure::INVALID_VALUE);
        }
        let warps = threads.unsigned_abs().div_ceil(WARP_THREADS.unsigned_abs());
        let possible = if threads > BLOCK_THREADS {
            0
        } else {
            MULTIPROCESSOR_THREADS.unsigned_abs() / (warps * WARP_THREADS.unsigned_abs())
        };
        put(blocks, MULTIPROCESSOR_BLOCKS.min(possible.cast_signed()))
    })
}

#[cfg(test)]
mod tests {
    use std::{ffi::c_void, ptr};

    use super::gather;
    use crate::error::Failure;

    #[test]
    fn parameters_are_aligned_as_declared() {
        let (word, address) = (0x0403_0201_u32.to_le_bytes(), 0x1817_1615_1413_1211_u64.to_le_bytes());
        let pointers: [*const c_void; 2] = [word.as_ptr().cast(), address.as_ptr().cast()];
        // SAFETY: both pointers have their values behind them.
        let bytes = unsafe { gather(&[(4, 4), (8, 8)], pointers.as_ptr()) }.unwrap();
        assert_eq!(bytes, [&word[..], &[0; 4], &address].concat());
    }

    #[test]
    fn missing_parameters_are_refused() {
        // SAFETY: there are no pointers.
        assert_eq!(unsafe { gather(&[(4, 4)], ptr::null()) }, Err(Failure::INVALID_VALUE));
        // SAFETY: there are no pointers.
        assert_eq!(unsafe { gather(&[], ptr::null()) }, Ok(Vec::new()));
    }
}
