//! What is refused.
#![allow(clippy::unwrap_used, reason = "test helpers that fail loudly")]

mod common;

use std::{ffi::c_void, fs::File, ptr, thread};

use common::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, LOCATION, UNIT, allocate, begin, create, cu, got, map,
    read, set_access, stream,
};
use ringway_cuda_stand_in::*;

const ALREADY_REGISTERED: Status = 712;
const NOT_REGISTERED: Status = 713;
const READ_ONLY: u32 = 8;

#[test]
fn addresses_have_to_be_mapped_with_access() {
    begin();
    let stream = stream();
    let set = |address, bytes| cu!(cuMemsetD8Async(address, 0, bytes, stream));
    let address = got(|to| cu!(cuMemAddressReserve(to, 2 * UNIT, 0, 0, 0))).unwrap();
    assert_eq!(set(address, 1), INVALID_VALUE);
    let handle = create(UNIT);
    for (bytes, offset, answer) in [
        (2 * UNIT, 0, INVALID_VALUE),
        (UNIT, UNIT, INVALID_VALUE),
        (UNIT / 2, 0, INVALID_VALUE),
        (UNIT, 0, 0),
    ] {
        assert_eq!(cu!(cuMemMap(address, bytes, offset, handle, 0)), answer);
    }
    assert_eq!(cu!(cuMemMap(address, UNIT, 0, handle, 0)), INVALID_VALUE);
    assert_eq!(set(address, 1), INVALID_VALUE);
    assert_eq!(set_access(address, 2 * UNIT, 3), INVALID_VALUE);
    assert_eq!(set_access(address, UNIT, 1), 0);
    assert_eq!(set(address, 1), INVALID_VALUE);
    assert_eq!(read(address), 0);
    assert_eq!(set_access(address, UNIT, 3), 0);
    assert_eq!(got(|to| cu!(cuMemGetAccess(to, Some(&LOCATION), address))), Ok(3));
    assert_eq!(set(address, UNIT), 0);
    assert_eq!(set(address + 1, UNIT), INVALID_VALUE);
    assert_eq!(cu!(cuMemMap(address + UNIT, UNIT, 0, handle, 0)), 0);
    assert_eq!(set_access(address, 2 * UNIT, 3), 0);
    assert_eq!(set(address + 1, UNIT), 0);
    assert_eq!(cu!(cuMemAddressFree(address, 2 * UNIT)), INVALID_VALUE);
    assert_eq!(cu!(cuMemUnmap(address, 2 * UNIT)), 0);
    assert_eq!(set(address, 1), INVALID_VALUE);
    assert_eq!(cu!(cuMemcpyAsync(address, address + 64, 4, stream)), INVALID_VALUE);
    assert_eq!(cu!(cuMemAddressFree(address, UNIT)), INVALID_VALUE);
    assert_eq!(cu!(cuMemAddressFree(address, 2 * UNIT)), 0);
}

#[test]
fn allocations_have_the_bytes_asked_for() {
    begin();
    let memory = allocate(100);
    assert_eq!(cu!(cuMemsetD8_v2(memory, 1, 100)), 0);
    assert_eq!(cu!(cuMemsetD8_v2(memory, 1, 101)), INVALID_VALUE);
    assert_eq!(cu!(cuMemcpyDtoD_v2(memory, memory + 50, 51)), INVALID_VALUE);
    assert_eq!(cu!(cuMemsetD32_v2(memory + 1, 1, 1)), INVALID_VALUE);
    assert_eq!(cu!(cuStreamWriteValue32_v2(0, memory + 2, 1, 0)), INVALID_VALUE);
    assert_eq!(cu!(cuStreamWriteValue32_v2(0, memory + 100, 1, 0)), INVALID_VALUE);
    assert_eq!(cu!(cuMemFree_v2(memory + 4)), INVALID_VALUE);
    assert_eq!(cu!(cuMemFree_v2(memory)), 0);
    assert_eq!(cu!(cuMemFree_v2(memory)), INVALID_VALUE);
    assert_eq!(cu!(cuMemcpyAsync(memory, memory, 4, 0)), INVALID_VALUE);
    assert_eq!(got::<usize>(|to| cu!(cuMemAlloc_v2(to, 9 << 30))), Err(2));
}

#[test]
fn pageable_memory_is_copied_before_the_call_returns() {
    begin();
    let (stream, memory) = (stream(), allocate(4096));
    for value in 1..50_u32 {
        let from = Box::new(value);
        assert_eq!(cu!(cuMemcpyHtoDAsync_v2(memory, (&raw const *from).cast(), 4, stream)), 0);
        drop(from);
        let mut to = 0_u32;
        assert_eq!(cu!(cuMemcpyAsync((&raw mut to).expose_provenance(), memory, 4, stream)), 0);
        assert_eq!(to, value);
    }
    let local = 0_u32;
    let local = (&raw const local).expose_provenance();
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(memory, local, 4, stream)), INVALID_VALUE);
    assert_eq!(cu!(cuStreamWaitValue32_v2(stream, local, 0, 0)), INVALID_VALUE);
    assert_eq!(cu!(cuMemcpyAsync(memory, 8, 4, stream)), INVALID_VALUE);
}

#[test]
fn host_memory_is_registered_once_and_reached_then() {
    begin();
    let mut bytes = vec![0_u8; 8192];
    let start: *mut c_void = bytes.as_mut_ptr().cast();
    let pointer =
        |offset: usize| got(|to| cu!(cuMemHostGetDevicePointer_v2(to, start.wrapping_byte_add(offset), 0)));
    assert_eq!(pointer(0), Err(INVALID_VALUE));
    assert_eq!(cu!(cuMemHostUnregister(start)), NOT_REGISTERED);
    assert_eq!(cu!(cuMemHostRegister_v2(start, 4096, 0)), 0);
    assert_eq!(cu!(cuMemHostRegister_v2(start.wrapping_byte_add(4095), 4, 0)), ALREADY_REGISTERED);
    assert_eq!(pointer(100), Ok(start.addr() + 100));
    assert_eq!(pointer(4096), Err(INVALID_VALUE));
    assert_eq!(cu!(cuStreamWriteValue32_v2(0, start.addr(), 77, 0)), 0);
    assert_eq!(cu!(cuMemcpyAsync(start.addr() + 4094, start.addr(), 4, 0)), INVALID_VALUE);
    assert_eq!(cu!(cuMemHostUnregister(start)), 0);
    assert_eq!(bytes.first(), Some(&77));
    let pinned = got::<usize>(|to| cu!(cuMemAlloc_v2(to, 4))).unwrap();
    assert_eq!(cu!(cuMemHostRegister_v2(ptr::with_exposed_provenance_mut(pinned), 4, 0)), INVALID_VALUE);
}

/// A page of a file, which can only be read.
fn read_only_page() -> *mut c_void {
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let (read, private) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::PRIVATE);
    // SAFETY: the kernel chooses the place, so that nothing else is there.
    unsafe { rustix::mm::mmap(ptr::null_mut(), 4096, read, private, &file, 0) }.unwrap()
}

#[test]
fn read_only_memory_is_registered_as_that() {
    begin();
    let page = read_only_page();
    assert_eq!(cu!(cuMemHostRegister_v2(page, 4096, 0)), INVALID_VALUE);
    assert_eq!(cu!(cuMemHostRegister_v2(page, 4096, READ_ONLY)), 0);
    let memory = allocate(4);
    assert_eq!(cu!(cuMemcpyAsync(memory, page.addr(), 4, 0)), 0);
    assert_eq!(cu!(cuMemcpyAsync(page.addr(), memory, 4, 0)), INVALID_VALUE);
    assert_eq!(cu!(cuStreamWriteValue32_v2(0, page.addr(), 1, 0)), INVALID_VALUE);
    assert_eq!(cu!(cuStreamSynchronize(0)), 0);
    assert_eq!(read(memory).to_ne_bytes(), *b"\x7fELF");
    assert_eq!(cu!(cuMemHostUnregister(page)), 0);
}

#[test]
fn pointers_say_what_is_behind() {
    begin();
    let attribute = |number, address| {
        let mut value = 0_u64;
        match cu!(cuPointerGetAttribute((&raw mut value).cast(), number, address)) {
            0 => Ok(value),
            code => Err(code),
        }
    };
    let (allocated, mapped) = (allocate(100), map(create(UNIT), UNIT));
    let mut host = std::mem::MaybeUninit::new(ptr::null_mut());
    assert_eq!(cu!(cuMemAllocHost_v2(Some(&mut host), 64)), 0);
    // SAFETY: written above, if not since.
    let host = unsafe { host.assume_init() }.addr();
    assert_eq!([allocated, mapped, host].map(|address| attribute(2, address)), [Ok(2), Ok(2), Ok(1)]);
    assert_eq!([allocated, mapped].map(|address| attribute(9, address)), [Ok(0), Ok(0)]);
    assert_ne!(attribute(1, allocated), Ok(0));
    assert_eq!(attribute(1, mapped), Ok(0));
    assert_eq!(attribute(11, allocated + 7), Ok(allocated as u64));
    assert_eq!(attribute(12, allocated + 7), Ok(100));
    assert_eq!(attribute(2, allocated + 100), Err(INVALID_VALUE));
    assert_eq!(cu!(cuMemFreeHost(ptr::with_exposed_provenance_mut(host))), 0);
    assert_eq!(attribute(2, host), Err(INVALID_VALUE));
}

#[test]
fn a_thread_needs_a_context_and_handles_have_to_live() {
    begin();
    let made = thread::spawn(|| {
        assert_eq!(got::<usize>(|to| cu!(cuMemAlloc_v2(to, 4))), Err(INVALID_CONTEXT));
        let context = got(|to| cu!(cuCtxCreate_v2(to, 0, 0))).unwrap();
        assert_eq!(got(|to| cu!(cuCtxGetCurrent(to))), Ok(context));
        let stream = stream();
        assert_eq!(got(|to| cu!(cuStreamGetCtx(stream, to))), Ok(context));
        assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
        assert_eq!(cu!(cuCtxSetCurrent(context)), INVALID_CONTEXT);
        stream
    });
    assert_eq!(cu!(cuStreamSynchronize(made.join().unwrap())), INVALID_HANDLE);
    assert_eq!(cu!(cuEventQuery(12345)), INVALID_HANDLE);
    assert_eq!(cu!(cuModuleUnload(12345)), INVALID_HANDLE);
    assert_eq!(got::<i32>(|to| cu!(cuDeviceGet(to, 1))), Err(101));
}

#[test]
fn images_that_are_no_ptx_are_refused() {
    begin();
    let load = |image: &std::ffi::CStr| got::<usize>(|to| cu!(cuModuleLoadData(to, image.as_ptr().cast())));
    assert_eq!(load(c"\x7fELF\x02"), Err(209));
    assert_eq!(load(c"nonsense"), Err(218));
    let mut log = [1_u8; 16];
    let (options, values) = ([5, 6], [(&raw mut log).expose_provenance(), log.len()]);
    let (options, values) = (options.as_ptr(), values.as_ptr());
    let image = c"nonsense".as_ptr().cast();
    assert_eq!(got::<usize>(|to| cu!(cuModuleLoadDataEx(to, image, 2, options, values))), Err(218));
    assert_ne!(log.first(), Some(&1));
}
