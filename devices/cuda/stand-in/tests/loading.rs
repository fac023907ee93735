//! Programs find the library and all its functions.

mod common;

use std::{ffi::c_int, fs};

use common::again;
use libloading::Library;

const NAMES: &str = "
    cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetUuid cuDeviceGetUuid_v2
    cuDeviceGetAttribute cuDeviceGetPCIBusId cuDeviceTotalMem_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxGetState cuCtxCreate_v2 cuCtxDestroy_v2 cuCtxSetCurrent cuCtxGetCurrent cuCtxGetDevice
    cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSynchronize cuCtxGetStreamPriorityRange cuMemGetInfo_v2
    cuMemGetAllocationGranularity cuMemCreate cuMemExportToShareableHandle cuMemImportFromShareableHandle
    cuMemRelease cuMemAddressReserve cuMemAddressFree cuMemMap cuMemUnmap cuMemSetAccess cuMemGetAccess
    cuMemRetainAllocationHandle cuMemGetAddressRange_v2 cuMemAlloc_v2 cuMemFree_v2 cuIpcGetMemHandle
    cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuMemGetHandleForAddressRange cuPointerGetAttribute
    cuMemHostRegister_v2 cuMemHostUnregister cuMemHostGetDevicePointer_v2 cuMemHostAlloc cuMemAllocHost_v2
    cuMemFreeHost cuMemcpy cuMemcpyAsync cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2
    cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemsetD8Async cuMemsetD32Async cuMemsetD8_v2 cuMemsetD32_v2
    cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery cuStreamGetCtx
    cuStreamGetCtx_v2 cuStreamWaitValue32_v2 cuStreamWriteValue32_v2 cuStreamBatchMemOp_v2 cuStreamWaitEvent
    cuLaunchHostFunc cuEventCreate cuEventRecord cuEventQuery cuEventSynchronize cuEventElapsedTime
    cuEventElapsedTime_v2 cuEventDestroy_v2 cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction
    cuFuncGetAttribute cuFuncSetAttribute cuLaunchKernel cuOccupancyMaxActiveBlocksPerMultiprocessor cuGetErrorName
    cuGetErrorString";

#[test]
fn programs_load_it_by_its_name() {
    const LOAD: &str = "RINGWAY_STAND_IN_TEST_LOADS";
    if std::env::var_os(LOAD).is_none() {
        let folder = std::env::temp_dir().join(format!("ringway-stand-in-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        ringway_cuda_stand_in::install(&folder).unwrap();
        let mut other = again("programs_load_it_by_its_name", LOAD, "1");
        let status = other.env("LD_LIBRARY_PATH", &folder).status();
        fs::remove_dir_all(&folder).unwrap();
        assert!(status.unwrap().success());
        return;
    }
    for name in ["libcuda.so", "libcuda.so.1"] {
        // SAFETY: loading the library does nothing but make its functions known.
        let library = unsafe { Library::new(name) }.unwrap();
        for function in NAMES.split_ascii_whitespace() {
            // SAFETY: is not called by this type.
            let found = unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) };
            assert!(found.is_ok(), "{function}");
        }
        type GetVersion = unsafe extern "C" fn(*mut c_int) -> u32;
        // SAFETY: the type is cuda.h's.
        let get_version = unsafe { library.get::<GetVersion>(b"cuDriverGetVersion") }.unwrap();
        let mut version = 0;
        // SAFETY: the pointer is to what lives.
        assert_eq!(unsafe { get_version(&raw mut version) }, 0);
        assert_eq!(version, 13000);
    }
}
