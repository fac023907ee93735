//! Memory of a GPU that processes share, and host memory that a GPU reaches.
//!
//! An allocation is made by the driver's virtual memory management and exported as a file descriptor (CUDA Driver API,
//! "Virtual Memory Management"); another process maps it again, and it is freed when the last of them has let go. Memory
//! that a process has of its own is shared by a legacy IPC handle, which names the whole allocation that it is in.

use std::{
    ffi::c_void,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Arc,
};

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use ringway_mem::{Mapping, Pool, Window};

use crate::{
    Gpu,
    error::{CudaError, driver},
};

/// Bytes that a GPU may touch: inside of memory that this module has mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl Bytes {
    /// How many there are.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Where they are, as the GPU and kernels of this process see it.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// A part of them.
    #[must_use]
    pub fn part(&self, offset: u64, length: u64) -> Option<Self> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        inside.then(|| Self { address: self.address + offset, length })
    }
}

/// The legacy IPC handle of an allocation.
pub type IpcHandle = [u8; 64];

/// Memory of a GPU in this process's address space.
#[derive(Debug)]
pub struct Memory {
    gpu: Arc<Gpu>,
    bytes: Bytes,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A range of addresses onto which an allocation is mapped.
    Mapped { range: u64 },
    /// Opened by its IPC handle, from this address on.
    Opened { base: u64 },
    /// Somebody else's in this process.
    Borrowed,
}

/// How memory came from another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Exported by the driver's virtual memory management, as a file descriptor.
    FileDescriptor,
    /// A legacy IPC handle.
    Ipc,
}

impl Path {
    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FileDescriptor => "exported as a file descriptor",
            Self::Ipc => "legacy IPC handle",
        }
    }
}

impl Memory {
    /// Fresh memory of at least `bytes`, rounded up to what the GPU allocates at least (2 MiB), and the descriptor by which
    /// other processes map it. Where the GPU can, network cards can reach it.
    ///
    /// # Errors
    /// [`CudaError`], among others when the GPU has no room.
    pub fn allocate(gpu: &Arc<Gpu>, bytes: u64) -> Result<(Self, OwnedFd), CudaError> {
        let _current = gpu.enter()?;
        let properties = properties(gpu);
        let mut granularity = 0;
        driver!(
            "it reads and writes local variables",
            cuMemGetAllocationGranularity(
                &raw mut granularity,
                &raw const properties,
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
            )
        )?;
        let length = bytes.max(1).next_multiple_of((granularity as u64).max(1));
        let mut handle = 0;
        driver!(
            "it reads and writes local variables",
            cuMemCreate(&raw mut handle, length as usize, &raw const properties, 0)
        )?;
        let handle = Handle(handle);
        let mut descriptor: std::ffi::c_int = -1;
        driver!(
            "for this type of handle it writes a file descriptor, an int, to the address",
            cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle.0, FILE_DESCRIPTOR, 0)
        )?;
        // SAFETY: the driver has just made this descriptor for us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok((Self::map(gpu, &handle, length)?, descriptor))
    }

    /// Maps memory that another process has exported, whole or from its start on.
    ///
    /// # Errors
    /// [`CudaError`]: the descriptor is none of this GPU's, or the allocation is shorter.
    pub fn import(gpu: &Arc<Gpu>, descriptor: BorrowedFd<'_>, length: u64) -> Result<Self, CudaError> {
        let _current = gpu.enter()?;
        let mut handle = 0;
        driver!(
            "it takes the number of a descriptor, open for as long as the call lasts, in the place of a pointer",
            cuMemImportFromShareableHandle(
                &raw mut handle,
                descriptor.as_raw_fd() as usize as *mut c_void,
                FILE_DESCRIPTOR
            )
        )?;
        // A mapping that is longer than the allocation is refused.
        Self::map(gpu, &Handle(handle), length)
    }

    fn map(gpu: &Arc<Gpu>, handle: &Handle, length: u64) -> Result<Self, CudaError> {
        let mut range = 0;
        driver!("it writes a local variable", cuMemAddressReserve(&raw mut range, length as usize, 0, 0, 0))?;
        // From here on dropping it gives the addresses back.
        let bytes = Bytes { address: range, length };
        let memory = Self { gpu: Arc::clone(gpu), bytes, kind: Kind::Mapped { range } };
        driver!(
            "onto addresses that were reserved for this, and are nobody else's",
            cuMemMap(range, length as usize, 0, handle.0, 0)
        )?;
        let access = CUmemAccessDesc {
            location: properties(gpu).location,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        driver!(
            "it reads one description, a local variable",
            cuMemSetAccess(range, length as usize, &raw const access, 1)
        )?;
        Ok(memory)
    }

    /// Memory that this process has of its own, `length` bytes from an address on, and how another one finds it: by the IPC
    /// handle of the allocation that it is in, which lets its holder reach all of that, and where it begins there. Whoever
    /// made the allocation keeps it for as long as this lives.
    ///
    /// # Errors
    /// [`CudaError`]: it is not inside one plain allocation (`cudaMalloc`, `cuMemAlloc`).
    pub fn borrow(gpu: &Arc<Gpu>, address: u64, length: u64) -> Result<(Self, IpcHandle, u64), CudaError> {
        let _current = gpu.enter()?;
        let (mut base, mut whole) = (0, 0);
        driver!(
            "it writes two local variables, whatever the address",
            cuMemGetAddressRange_v2(&raw mut base, &raw mut whole, address)
        )?;
        let whole = Bytes { address: base, length: whole as u64 };
        let offset = address - base;
        let short = CudaError::TooShort { offset, wanted: length, length: whole.length };
        let bytes = whole.part(offset, length).ok_or(short)?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // Refused for memory that is no GPU's.
        driver!("it writes a local variable", cuIpcGetMemHandle(&raw mut handle, base))?;
        let handle = handle.reserved.map(|byte| byte.cast_unsigned());
        Ok((Self { gpu: Arc::clone(gpu), bytes, kind: Kind::Borrowed }, handle, offset))
    }

    /// Opens memory of another process by its IPC handle: `length` bytes from `offset` on.
    ///
    /// # Errors
    /// [`CudaError`]: the handle is none, or the allocation is shorter.
    pub fn open(gpu: &Arc<Gpu>, handle: &IpcHandle, offset: u64, length: u64) -> Result<Self, CudaError> {
        let _current = gpu.enter()?;
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte.cast_signed()) };
        let mut base = 0;
        driver!(
            "it writes a local variable",
            cuIpcOpenMemHandle_v2(
                &raw mut base,
                handle,
                sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32
            )
        )?;
        let bytes = Bytes { address: base, length: 0 };
        let mut memory = Self { gpu: Arc::clone(gpu), bytes, kind: Kind::Opened { base } };
        let (mut start, mut whole) = (0, 0);
        driver!(
            "it writes two local variables",
            cuMemGetAddressRange_v2(&raw mut start, &raw mut whole, base)
        )?;
        let whole = Bytes { address: base, length: whole as u64 };
        let short = CudaError::TooShort { offset, wanted: length, length: whole.length };
        memory.bytes = whole.part(offset, length).ok_or(short)?;
        Ok(memory)
    }

    /// All of it.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The GPU that it is on.
    #[must_use]
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// How it came here, or could go elsewhere.
    #[must_use]
    pub const fn path(&self) -> Path {
        match self.kind {
            Kind::Mapped { .. } => Path::FileDescriptor,
            Kind::Opened { .. } | Kind::Borrowed => Path::Ipc,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nothing that was begun may find it gone: the fault would end the context, and with it everybody's work.
        let _ = self.gpu.synchronize();
        let Ok(_current) = self.gpu.enter() else { return };
        match self.kind {
            Kind::Mapped { range } => {
                let length = self.bytes.length as usize;
                let _ = driver!(
                    "mapped when this was made, or not at all; nothing uses it",
                    cuMemUnmap(range, length)
                );
                let _ = driver!("reserved when this was made, and free now", cuMemAddressFree(range, length));
            }
            Kind::Opened { base } => {
                let _ = driver!("opened when this was made; nothing uses it", cuIpcCloseMemHandle(base));
            }
            Kind::Borrowed => {}
        }
    }
}

/// The driver's handle of an allocation, which lives on while it is mapped somewhere.
struct Handle(CUmemGenericAllocationHandle);

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = driver!("it is ours, and used no more", cuMemRelease(self.0));
    }
}

const FILE_DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn properties(gpu: &Gpu) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FILE_DESCRIPTOR,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.device() },
        win32HandleMetaData: core::ptr::null_mut(),
        allocFlags: AllocationFlags {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(gpu.has_gpudirect()),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Host memory that can be pinned: it stays where it is for as long as its owner lives.
pub trait Host: sealed::Sealed + core::fmt::Debug + Send + Sync {
    /// All of it.
    #[doc(hidden)]
    fn window(&self) -> Option<Window<'_>>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for ringway_mem::Mapping {}
    impl Sealed for ringway_mem::Pool {}
}

impl Host for Mapping {
    fn window(&self) -> Option<Window<'_>> {
        self.window(0, self.length() as u64)
    }
}

impl Host for Pool {
    fn window(&self) -> Option<Window<'_>> {
        self.window(0, self.length())
    }
}

/// Host memory that a GPU reaches as well.
#[derive(Debug)]
pub struct Pinned {
    gpu: Arc<Gpu>,
    /// Keeps the memory where it is.
    _host: Arc<dyn Host>,
    start: usize,
    bytes: Bytes,
}

impl Pinned {
    /// Pins all of it. Its pages stay for as long as this lives, also when the file that they are of loses them.
    ///
    /// # Errors
    /// [`CudaError`], among others when it is more than may be locked.
    pub fn new(gpu: &Arc<Gpu>, host: Arc<dyn Host>) -> Result<Self, CudaError> {
        let _current = gpu.enter()?;
        let Some(window) = host.window() else {
            return Err(CudaError::TooShort { offset: 0, wanted: 0, length: 0 });
        };
        let mut flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        if !window.is_writable() {
            flags |= sys::CU_MEMHOSTREGISTER_READ_ONLY;
        }
        let (start, length) = (window.as_ptr(), window.length());
        driver!(
            "the memory stays where it is for as long as `host` lives",
            cuMemHostRegister_v2(start.cast(), length, flags)
        )?;
        let bytes = Bytes { address: 0, length: length as u64 };
        let start = start.expose_provenance();
        let mut pinned = Self { gpu: Arc::clone(gpu), _host: Arc::clone(&host), start, bytes };
        driver!(
            "it writes a local variable, of memory that was registered above",
            cuMemHostGetDevicePointer_v2(&raw mut pinned.bytes.address, pinned.start(), 0)
        )?;
        Ok(pinned)
    }

    fn start(&self) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(self.start)
    }

    /// All of it, as the GPU sees it.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.gpu.synchronize();
        let Ok(_current) = self.gpu.enter() else { return };
        let _ = driver!("registered when this was made; nothing uses it", cuMemHostUnregister(self.start()));
    }
}
