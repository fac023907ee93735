//! What functions answer.

use std::ffi::{CStr, c_char};

use crate::call::{Out, Status, bare, put};

/// An answer other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) Status);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

macro_rules! failures {
    ($($constant:ident = $code:literal, $name:literal, $words:literal;)*) => {
        impl Failure {
            $(pub(crate) const $constant: Self = Self($code);)*
        }

        /// Name and words of an answer that this library gives.
        const fn described(code: Status) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                0 => Some((c"CUDA_SUCCESS", c"no error")),
                $($code => Some(($name, $words)),)*
                _ => None,
            }
        }
    };
}

failures! {
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    NO_BINARY_FOR_GPU = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no kernel image is available for execution on the device";
    INVALID_PTX = 218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    NOT_PERMITTED = 800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

fn describe(
    function: &str,
    error: Status,
    to: Out<'_, *const c_char>,
    which: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Status {
    bare(function, || {
        let to = to.ok_or(Failure::INVALID_VALUE)?;
        match described(error) {
            Some(both) => put(Some(to), which(both).as_ptr()),
            None => {
                to.write(std::ptr::null());
                Err(Failure::INVALID_VALUE)
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Status, name: Out<'_, *const c_char>) -> Status {
    describe("cuGetErrorName", error, name, |(name, _)| name)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: Status, words: Out<'_, *const c_char>) -> Status {
    describe("cuGetErrorString", error, words, |(_, words)| words)
}
