//! A GPU as this process sees it: the driver, and the device's primary context.

use std::{
    ffi::{CStr, c_int},
    sync::{Arc, OnceLock},
};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute as Attribute};

use crate::error::{CudaError, OLDEST, driver};

/// A GPU's name for itself, the same in every process and container.
pub type Uuid = [u8; 16];

/// Loads the driver, once.
fn load() -> Result<(), CudaError> {
    static LOADED: OnceLock<Result<(), CudaError>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            // SAFETY: it loads the driver's library, whose initialisers have no preconditions.
            if !unsafe { sys::is_culib_present() } {
                return Err(CudaError::NoDriver);
            }
            driver!("no pointers", cuInit(0))?;
            let mut found = 0;
            driver!("it writes a local variable", cuDriverGetVersion(&raw mut found))?;
            if found < OLDEST { Err(CudaError::OldDriver { found }) } else { Ok(()) }
        })
        .clone()
}

/// How many GPUs are visible.
///
/// # Errors
/// [`CudaError::NoDriver`] and others when there is no driver that works.
pub fn count() -> Result<u32, CudaError> {
    load()?;
    let mut count = 0;
    driver!("it writes a local variable", cuDeviceGetCount(&raw mut count))?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// A GPU that is visible, before anything is made on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What it is.
    pub name: String,
    /// Its name for itself.
    pub uuid: Uuid,
    /// The compute capability, major and minor.
    pub capability: (u32, u32),
    /// Whether processes use it at the same time, by NVIDIA's Multi-Process Service, rather than by turns.
    pub has_mps: bool,
}

/// The GPUs that are visible. Makes no context.
///
/// # Errors
/// As [`count`].
pub fn list() -> Result<Vec<Listed>, CudaError> {
    let listed = |ordinal: u32| {
        let mut device = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        driver!("it writes a local variable", cuDeviceGet(&raw mut device, number))?;
        let (name, uuid, capability) = (name_of(device)?, uuid_of(device)?, capability_of(device)?);
        let has_mps =
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).is_ok_and(|value| value > 0);
        Ok(Listed { name, uuid, capability, has_mps })
    };
    (0..count()?).map(listed).collect()
}

/// A GPU, and the primary context that everything in this process shares on it.
#[derive(Debug)]
pub struct Gpu {
    device: CUdevice,
    context: CUcontext,
    ordinal: u32,
    uuid: Uuid,
    name: String,
    capability: (u32, u32),
    multiprocessors: u32,
}

// SAFETY: a context is the driver's and may be used by any thread (CUDA Driver API, "Context Management"); the handle is only
// ever given back to the driver.
unsafe impl Send for Gpu {}
// SAFETY: as for `Send`; nothing here changes after it is made.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The GPU with a number, as this process counts.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn open(ordinal: u32) -> Result<Arc<Self>, CudaError> {
        let count = count()?;
        let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(CudaError::NoDevice { ordinal, count })?;
        let mut device = 0;
        driver!("it writes a local variable", cuDeviceGet(&raw mut device, number))?;
        let uuid = uuid_of(device)?;
        let name = name_of(device)?;
        let capability = capability_of(device)?;
        let multiprocessors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut context = core::ptr::null_mut();
        driver!("it writes a local variable", cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        Ok(Arc::new(Self { device, context, ordinal, uuid, name, capability, multiprocessors }))
    }

    /// The GPU with this UUID.
    ///
    /// # Errors
    /// [`CudaError::OtherDevice`] when it is not visible here.
    pub fn open_uuid(uuid: &Uuid) -> Result<Arc<Self>, CudaError> {
        for ordinal in 0..count()? {
            let mut device = 0;
            let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
            driver!("it writes a local variable", cuDeviceGet(&raw mut device, number))?;
            if uuid_of(device)? == *uuid {
                return Self::open(ordinal);
            }
        }
        Err(CudaError::OtherDevice { uuid: show(uuid) })
    }

    /// Its number in this process.
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its name for itself.
    #[must_use]
    pub const fn uuid(&self) -> &Uuid {
        &self.uuid
    }

    /// What it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The compute capability, major and minor.
    #[must_use]
    pub const fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Streaming multiprocessors.
    #[must_use]
    pub const fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Whether it shares itself with other processes at the same time, by NVIDIA's Multi-Process Service; else processes take
    /// turns, which costs them hundreds of microseconds each.
    #[must_use]
    pub fn is_shared_by_mps(&self) -> bool {
        self.says(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
    }

    /// Whether network cards can reach memory of it that was allocated for that.
    pub(crate) fn has_gpudirect(&self) -> bool {
        self.says(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
    }

    fn says(&self, which: Attribute) -> bool {
        attribute(self.device, which).is_ok_and(|value| value > 0)
    }

    pub(crate) const fn device(&self) -> CUdevice {
        self.device
    }

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        driver!("it writes two local variables", cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    /// Waits until everything that this process has begun on it is done.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.enter()?;
        driver!("no pointers", cuCtxSynchronize())
    }

    /// Makes the context current for calls that work on the current one, until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Current, CudaError> {
        let mut current = core::ptr::null_mut();
        driver!("it writes a local variable", cuCtxGetCurrent(&raw mut current))?;
        if current == self.context {
            return Ok(Current { pushed: false });
        }
        driver!("the context is retained for as long as `self` lives", cuCtxPushCurrent_v2(self.context))?;
        Ok(Current { pushed: true })
    }

    /// Makes the context current in this thread for good, so that entering it costs next to nothing.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn settle_in(&self) -> Result<(), CudaError> {
        driver!("the context is retained for as long as `self` lives", cuCtxSetCurrent(self.context))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _ =
            driver!("it was retained once, when this was made", cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// A context is current until this is dropped.
#[derive(Debug)]
pub(crate) struct Current {
    pushed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut context = core::ptr::null_mut();
            let _ = driver!("it writes a local variable", cuCtxPopCurrent_v2(&raw mut context));
        }
    }
}

fn attribute(device: CUdevice, which: Attribute) -> Result<u32, CudaError> {
    let mut value = 0;
    driver!("it writes a local variable", cuDeviceGetAttribute(&raw mut value, which, device))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn capability_of(device: CUdevice) -> Result<(u32, u32), CudaError> {
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok((major, minor))
}

fn uuid_of(device: CUdevice) -> Result<Uuid, CudaError> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    driver!("it writes a local variable", cuDeviceGetUuid_v2(&raw mut uuid, device))?;
    Ok(uuid.bytes.map(|byte| byte.cast_unsigned()))
}

fn name_of(device: CUdevice) -> Result<String, CudaError> {
    let mut name = [0; 96];
    driver!(
        "it writes a terminated text into the array, of whose length it is told one byte less",
        cuDeviceGetName(name.as_mut_ptr(), 95, device)
    )?;
    let bytes = name.map(|byte| byte.cast_unsigned());
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
    Ok(text.map_or_else(|_| String::new(), std::borrow::Cow::into_owned))
}

/// A UUID as `nvidia-smi -L` shows it.
#[must_use]
pub fn show(uuid: &Uuid) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
