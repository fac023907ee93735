//! Memory of one process in another.
#![allow(clippy::unwrap_used, reason = "test helpers that fail loudly")]

mod common;

use std::{
    io::pipe,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::Stdio,
};

use common::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, UNIT, again, allocate, begin, create, cu, got, map,
    properties, read, write,
};
use ringway_cuda_stand_in::*;

const ROLE: &str = "RINGWAY_STAND_IN_TEST_ROLE";

fn export(handle: u64) -> OwnedFd {
    let descriptor = got(|to| cu!(cuMemExportToShareableHandle(to, handle, 1, 0))).unwrap();
    // SAFETY: just made, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn import(descriptor: i32) -> Result<u64, Status> {
    got(|to| cu!(cuMemImportFromShareableHandle(to, descriptor as usize, 1)))
}

#[test]
fn another_process_maps_an_exported_allocation() {
    begin();
    if std::env::var_os(ROLE).is_some() {
        // The descriptor is this process's input.
        let address = map(import(0).unwrap(), 2 * UNIT);
        assert_eq!(read(address + UNIT), 17);
        write(address + UNIT, 18);
        return;
    }
    let handle = create(2 * UNIT);
    let address = map(handle, 2 * UNIT);
    write(address + UNIT, 17);
    let mut child = again("another_process_maps_an_exported_allocation", ROLE, "child");
    assert!(child.stdin(Stdio::from(export(handle))).status().unwrap().success());
    assert_eq!(read(address + UNIT), 18);
}

fn decode(text: &str) -> IpcHandle {
    let byte = |place: usize| u8::from_str_radix(&text[2 * place..2 * place + 2], 16).unwrap();
    IpcHandle { reserved: std::array::from_fn(byte) }
}

fn handle_of(address: usize) -> IpcHandle {
    let mut handle = std::mem::MaybeUninit::new(IpcHandle { reserved: [0; 64] });
    assert_eq!(cu!(cuIpcGetMemHandle(Some(&mut handle), address)), 0);
    // SAFETY: written above, if not since.
    unsafe { handle.assume_init() }
}

#[test]
fn another_process_opens_an_allocation() {
    begin();
    if let Ok(text) = std::env::var(ROLE) {
        let open = || got(|to| cu!(cuIpcOpenMemHandle_v2(to, decode(&text), 1)));
        let address = open().unwrap();
        assert_eq!(open(), Ok(address));
        assert_eq!(got(|to| cu!(cuMemGetAddressRange_v2(None, to, address + 8))), Ok(4096));
        assert_eq!(read(address + 64), 5);
        write(address + 64, 6);
        for answer in [0, 0, INVALID_VALUE] {
            assert_eq!(cu!(cuIpcCloseMemHandle(address)), answer);
        }
        return;
    }
    let address = allocate(4096);
    write(address + 64, 5);
    let handle = handle_of(address + 100);
    let text: String = handle.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
    let run = || again("another_process_opens_an_allocation", ROLE, &text).status().unwrap().success();
    assert!(run());
    assert_eq!(read(address + 64), 6);
    assert_eq!(got(|to| cu!(cuIpcOpenMemHandle_v2(to, handle, 1))), Err(INVALID_CONTEXT));
    let other = IpcHandle { reserved: [1; 64] };
    assert_eq!(got(|to| cu!(cuIpcOpenMemHandle_v2(to, other, 1))), Err(INVALID_HANDLE));
}

#[test]
fn an_import_is_the_same_memory() {
    begin();
    let handle = create(UNIT);
    let first = map(handle, UNIT);
    let descriptor = export(handle);
    let second = map(import(descriptor.as_raw_fd()).unwrap(), UNIT);
    write(first, 9);
    assert_eq!(read(second), 9);
    // The handle that was released lives on in the mapping.
    assert_eq!(cu!(cuMemRelease(handle)), 0);
    let address = std::ptr::with_exposed_provenance_mut(first + 5);
    assert_eq!(got(|to| cu!(cuMemRetainAllocationHandle(to, address))), Ok(handle));
    for answer in [0, INVALID_VALUE] {
        assert_eq!(cu!(cuMemRelease(handle)), answer);
    }
}

#[test]
fn what_cannot_be_shared_is_refused() {
    begin();
    let private = got(|to| cu!(cuMemCreate(to, UNIT, Some(&properties(0)), 0))).unwrap();
    assert_eq!(got(|to| cu!(cuMemExportToShareableHandle(to, private, 1, 0))), Err(INVALID_VALUE));
    let (end, _other) = pipe().unwrap();
    assert_eq!(import(end.as_raw_fd()), Err(INVALID_VALUE));
    assert_eq!(import(9999), Err(INVALID_VALUE));
    let mapped = map(private, UNIT);
    let mut handle = std::mem::MaybeUninit::uninit();
    assert_eq!(cu!(cuIpcGetMemHandle(Some(&mut handle), mapped)), INVALID_VALUE);
}
