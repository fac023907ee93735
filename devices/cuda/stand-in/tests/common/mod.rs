//! What tests of the stand-in share.
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    reason = "test helpers that fail loudly; each test uses a part"
)]

use std::{mem::MaybeUninit, process::Command};

use ringway_cuda_stand_in::*;

pub(crate) const UNIT: usize = 2 << 20;
pub(crate) const INVALID_VALUE: Status = 1;
pub(crate) const INVALID_CONTEXT: Status = 201;
pub(crate) const INVALID_HANDLE: Status = 400;
pub(crate) const NOT_READY: Status = 600;
pub(crate) const NOT_PERMITTED: Status = 800;
pub(crate) const UNKNOWN: Status = 999;

/// Calls a function; what it answers.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the tests pass pointers to what lives, or none, and memory that work touches stays until it is done.
        unsafe { $function($($argument),*) }
    };
}
pub(crate) use cu;

/// What a function writes to the pointer that it is given.
pub(crate) fn got<T: Default>(call: impl FnOnce(Out<'_, T>) -> Status) -> Result<T, Status> {
    let mut value = MaybeUninit::new(T::default());
    match call(Some(&mut value)) {
        // SAFETY: written above, if not since.
        0 => Ok(unsafe { value.assume_init() }),
        code => Err(code),
    }
}

/// Has the thread work in device 0's primary context.
pub(crate) fn begin() {
    assert_eq!(cu!(cuInit(0)), 0);
    let context = got(|to| cu!(cuDevicePrimaryCtxRetain(to, 0))).unwrap();
    assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
}

pub(crate) const LOCATION: Location = Location { kind: 1, id: 0 };

pub(crate) fn properties(requested_handle_types: u32) -> AllocationProperties {
    AllocationProperties {
        kind: 1,
        requested_handle_types,
        location: LOCATION,
        win32_meta_data: 0,
        compression: 0,
        gpu_direct_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

pub(crate) fn create(bytes: usize) -> u64 {
    got(|to| cu!(cuMemCreate(to, bytes, Some(&properties(1)), 0))).unwrap()
}

pub(crate) fn set_access(address: usize, bytes: usize, flags: u32) -> Status {
    let description = AccessDescription { location: LOCATION, flags };
    cu!(cuMemSetAccess(address, bytes, &raw const description, 1))
}

/// Addresses with this memory behind them, for reading and writing.
pub(crate) fn map(handle: u64, bytes: usize) -> usize {
    let address = got(|to| cu!(cuMemAddressReserve(to, bytes, 0, 0, 0))).unwrap();
    assert_eq!(cu!(cuMemMap(address, bytes, 0, handle, 0)), 0);
    assert_eq!(set_access(address, bytes, 3), 0);
    address
}

pub(crate) fn allocate(bytes: usize) -> usize {
    got(|to| cu!(cuMemAlloc_v2(to, bytes))).unwrap()
}

pub(crate) fn stream() -> usize {
    got(|to| cu!(cuStreamCreate(to, 1))).unwrap()
}

/// Reads device memory through a copy.
pub(crate) fn read(address: usize) -> u32 {
    let mut word = 0_u32;
    assert_eq!(cu!(cuMemcpyDtoH_v2((&raw mut word).cast(), address, 4)), 0);
    word
}

pub(crate) fn write(address: usize, word: u32) {
    assert_eq!(cu!(cuMemcpyHtoD_v2(address, (&raw const word).cast(), 4)), 0);
}

/// This test program again, for one test alone, which finds `variable` set.
pub(crate) fn again(test: &str, variable: &str, value: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(variable, value);
    command
}
