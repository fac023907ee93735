//! Devices and what is told of them.

use std::{
    ffi::{c_char, c_int, c_uint},
    sync::OnceLock,
};

use crate::{
    call::{Out, Status, bare, initialise, initialised, put},
    error::{Failure, Result},
};

pub(crate) const DEVICES_MAX: usize = 8;
/// Memory of each device.
pub(crate) const DEVICE_BYTES: usize = 8 << 30;
pub(crate) const MULTIPROCESSOR_THREADS: c_int = 2048;
pub(crate) const MULTIPROCESSOR_BLOCKS: c_int = 32;
pub(crate) const BLOCK_THREADS: c_int = 1024;
pub(crate) const WARP_THREADS: c_int = 32;

const DRIVER_VERSION: c_int = 13000;
const NAME: &[u8] = b"Ringway stand-in";
/// No host has this PCI domain, so that no device of it is taken for one of these.
const PCI_DOMAIN: c_int = 0xffff;

/// `CUuuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Uuid {
    pub bytes: [u8; 16],
}

fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let asked = std::env::var("RINGWAY_STAND_IN_GPUS").ok().and_then(|asked| asked.parse().ok());
        asked.unwrap_or(1).min(DEVICES_MAX)
    })
}

/// The place of a device in tables.
pub(crate) fn ordinal(device: c_int) -> Result<usize> {
    usize::try_from(device).ok().filter(|ordinal| *ordinal < count()).ok_or(Failure::INVALID_DEVICE)
}

/// A place in tables as the API has it.
pub(crate) const fn number(ordinal: usize) -> c_int {
    ordinal as c_int
}

/// Writes a text and the zero after it, as far as there is room.
///
/// # Safety
/// `to` is null or has `room` bytes.
unsafe fn put_text(to: *mut c_char, room: c_int, text: &[u8]) -> Result<()> {
    let room = usize::try_from(room).ok().filter(|room| *room > 0 && !to.is_null());
    let length = text.len().min(room.ok_or(Failure::INVALID_VALUE)? - 1);
    // SAFETY: `length` is less than the room there is, and no longer than the text, which is not the caller's.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), length) };
    // SAFETY: `length` is less than the room there is.
    let end = unsafe { to.add(length) };
    // SAFETY: this byte is the last that the room is certain to have.
    unsafe { end.write(0) };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> Status {
    bare("cuInit", || {
        if flags != 0 {
            return Err(Failure::INVALID_VALUE);
        }
        if count() == 0 {
            return Err(Failure::NO_DEVICE);
        }
        initialise();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: Out<'_, c_int>) -> Status {
    bare("cuDriverGetVersion", || put(version, DRIVER_VERSION))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(devices: Out<'_, c_int>) -> Status {
    initialised("cuDeviceGetCount", || put(devices, number(count())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: Out<'_, c_int>, place: c_int) -> Status {
    initialised("cuDeviceGet", || put(device, number(ordinal(place)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> Status {
    initialised("cuDeviceGetName", || {
        ordinal(device)?;
        // SAFETY: the caller keeps to cuda.h: the name has the room it says.
        unsafe { put_text(name, room, NAME) }
    })
}

fn uuid(ordinal: usize) -> Uuid {
    let mut bytes = *b"ringway-standin0";
    if let Some(last) = bytes.last_mut() {
        *last += ordinal as u8;
    }
    Uuid { bytes }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(to: Out<'_, Uuid>, device: c_int) -> Status {
    initialised("cuDeviceGetUuid", || put(to, uuid(ordinal(device)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: Out<'_, Uuid>, device: c_int) -> Status {
    initialised("cuDeviceGetUuid_v2", || put(to, uuid(ordinal(device)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: c_int) -> Status {
    initialised("cuDeviceTotalMem_v2", || {
        ordinal(device)?;
        put(bytes, DEVICE_BYTES)
    })
}

const fn bus(ordinal: usize) -> c_int {
    0x10 + number(ordinal)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: c_int) -> Status {
    initialised("cuDeviceGetPCIBusId", || {
        let address = format!("{PCI_DOMAIN:04x}:{:02x}:00.0", bus(ordinal(device)?));
        // SAFETY: the caller keeps to cuda.h: the text has the room it says.
        unsafe { put_text(text, room, address.as_bytes()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: Out<'_, c_int>,
    attribute: c_uint,
    device: c_int,
) -> Status {
    initialised("cuDeviceGetAttribute", || put(value, attribute_of(attribute, ordinal(device)?)))
}

/// Attributes by their number in cuda.h; what is not named here is not there, or not of interest.
const fn attribute_of(attribute: c_uint, ordinal: usize) -> c_int {
    match attribute {
        // Threads of a block, and its dimensions.
        1..=3 => BLOCK_THREADS,
        4 => 64,
        // A grid's dimensions.
        5 => c_int::MAX,
        6 | 7 => 65535,
        // Shared memory of a block, by default and at most.
        8 => 48 << 10,
        97 => 227 << 10,
        10 => WARP_THREADS,
        16 => 132,
        // Mapping of host memory, kernels at once, unified addressing, priorities of streams.
        19 | 31 | 41 | 78 => 1,
        33 => bus(ordinal),
        50 => PCI_DOMAIN,
        39 => MULTIPROCESSOR_THREADS,
        106 => MULTIPROCESSOR_BLOCKS,
        // Engines that copy.
        40 => 3,
        // Compute capability 9.0.
        75 => 9,
        // Host memory at the same address, waits for values in both numberings and for NOR, registering host memory,
        // virtual memory management, sharing by descriptor, registering of read-only memory.
        91 | 92 | 94 | 99 | 102 | 103 | 113 | 123 => 1,
        _ => 0,
    }
}
