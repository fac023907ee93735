//! Why something could not be done on a GPU.

use core::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUresult};
use thiserror::Error;

/// Why something could not be done on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CudaError {
    /// There is no driver.
    #[error(
        "no CUDA driver on this host: `libcuda.so.1` is not found; install NVIDIA's driver, or in a container mount it (the \
         NVIDIA container toolkit does) or name its folder in LD_LIBRARY_PATH"
    )]
    NoDriver,
    /// The driver is older than what is used of it.
    #[error(
        "the CUDA driver supports CUDA {}.{} only, but {}.{} or later is needed; update NVIDIA's driver",
        found / 1000, found % 1000 / 10, OLDEST / 1000, OLDEST % 1000 / 10
    )]
    OldDriver {
        /// The version it says, as the driver does: 1000 times the major number and ten times the minor.
        found: i32,
    },
    /// No GPU is visible, or none with this number.
    #[error("there is no GPU {ordinal} here: {count} are visible to this process (see CUDA_VISIBLE_DEVICES)")]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// No visible GPU is the one that a client's memory is on.
    #[error(
        "the GPU {uuid} is not visible to this process; give the daemon the GPUs of its clients (CUDA_VISIBLE_DEVICES, or the \
         container's devices)"
    )]
    OtherDevice {
        /// The GPU's UUID, as `nvidia-smi -L` shows it.
        uuid: String,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// What it says.
        reason: String,
        /// Its number for it.
        code: u32,
    },
    /// Memory is not as long as was said.
    #[error("{wanted} bytes from byte {offset} on were offered, of an allocation of {length} bytes")]
    TooShort {
        /// Where they begin.
        offset: u64,
        /// How many.
        wanted: u64,
        /// Bytes of the allocation.
        length: u64,
    },
    /// There is no kernel for an operation.
    #[error(transparent)]
    Kernel(#[from] crate::kernel::Unsupported),
    /// A kernel was given operands that it does not take.
    #[error(transparent)]
    Operands(#[from] crate::kernel::Mismatch),
}

/// The oldest version of the driver's interface that will do: 12.0, the first whose functions all have the names used here.
pub(crate) const OLDEST: i32 = 12_000;

impl CudaError {
    /// Whether the GPU, as this process sees it, is lost for good: after such an error the driver refuses everything.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        // cuda.h, CUresult: ECC 214, NVLink 220, a fault of a kernel 700, 702, 709, 710 and 714 to 719, MPS gone 805 to 807
        // and 810, unknown 999.
        let Self::Driver { code, .. } = self else { return false };
        matches!(code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 805..=807 | 810 | 999)
    }
}

/// Turns the driver's answer into a result.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = core::ptr::null();
    // SAFETY: it writes a pointer, to a text that lives as long as the library, into a local variable.
    let known = unsafe { sys::cuGetErrorString(result, &raw mut text) };
    let reason = if known == CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: as the driver knows the error, this is its text: terminated, and never freed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "an error that the driver has no name for".to_owned()
    };
    Err(CudaError::Driver { call, reason, code: result as u32 })
}

/// Calls a function of the driver and checks what it says. `$why` argues why the call is sound.
macro_rules! driver {
    ($why:literal, $function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: what the caller of this macro writes in `$why`.
        let result = unsafe { ::cudarc::driver::sys::$function($($argument),*) };
        $crate::error::check(stringify!($function), result)
    }};
}
pub(crate) use driver;
