//! The bpf(2) system call: a map of sockets, a program, and the link that attaches it to an interface. All unsafe code
//! about programs.
//!
//! The structures are the prefixes of `union bpf_attr` (`linux/bpf.h`) that each command reads; the kernel takes what is
//! missing for zero.

use core::{ffi::c_long, mem::size_of, ptr};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use super::program::Instruction;

const MAP_CREATE: c_long = 0;
const MAP_UPDATE_ELEM: c_long = 2;
const PROG_LOAD: c_long = 5;
#[cfg(test)]
const PROG_TEST_RUN: c_long = 10;
const LINK_CREATE: c_long = 28;

/// `BPF_MAP_TYPE_XSKMAP`: receive queues and their AF_XDP sockets.
const XSKMAP: u32 = 17;
/// `BPF_PROG_TYPE_XDP`.
const PROG_TYPE_XDP: u32 = 6;
/// `BPF_XDP`, where the program is attached.
const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program does with the first piece of a frame that lies in several. Interfaces with a large
/// MTU take no other program.
const HAS_FRAGS: u32 = 1 << 5;
/// The program is ours and uses nothing that would need another licence.
const LICENSE: &[u8] = b"Dual MIT/GPL\0";

/// Calls bpf(2); what it returns is a descriptor or zero.
///
/// # Safety
/// `attributes` must be what `command` reads, and what it points to must live until the call returns.
unsafe fn bpf<T>(command: c_long, attributes: &mut T) -> io::Result<RawFd> {
    let pointer = ptr::from_mut(attributes);
    // SAFETY: the structure is live and exclusively borrowed, its size is given, and the caller vouches for the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(RawFd::try_from(result).unwrap_or(-1)) }
}

/// Takes a descriptor that [`bpf`] has just returned.
///
/// # Safety
/// Nobody else may own it.
unsafe fn own(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is a descriptor, and the caller gives up its ownership.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn unsigned(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// Makes a map of sockets for queues below this number.
pub(super) fn create_map(queues: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
    }
    let mut attributes =
        Attributes { map_type: XSKMAP, key_size: 4, value_size: 4, max_entries: queues, map_flags: 0 };
    // SAFETY: this is what the command reads, and it has no pointers.
    let descriptor = unsafe { bpf(MAP_CREATE, &mut attributes) }?;
    // SAFETY: the call made it for us.
    unsafe { own(descriptor) }
}

/// Puts the socket of a queue into the map.
pub(super) fn set_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let value = unsigned(socket);
    let mut attributes = Attributes {
        map: unsigned(map),
        padding: 0,
        key: ptr::from_ref(&queue).expose_provenance() as u64,
        value: ptr::from_ref(&value).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: this is what the command reads; it reads four bytes each at key and value, which live until it returns.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attributes) }.map(|_| ())
}

/// Has the kernel check the program and take it.
pub(super) fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    // A kernel before 5.18 does not know the flag.
    load_with(program, HAS_FRAGS).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => load_with(program, 0),
        _ => Err(error),
    })
}

fn load_with(program: &[Instruction], flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program_type: u32,
        instruction_count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
    }
    let mut attributes = Attributes {
        program_type: PROG_TYPE_XDP,
        instruction_count: u32::try_from(program.len()).unwrap_or_default(),
        instructions: program.as_ptr().expose_provenance() as u64,
        license: LICENSE.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags,
        name: *b"ringway_roce\0\0\0\0",
    };
    // SAFETY: this is what the command reads: so many instructions, of eight bytes each, and a string that ends with
    // zero, all of which live until it returns.
    let descriptor = unsafe { bpf(PROG_LOAD, &mut attributes) }?;
    // SAFETY: the call made it for us.
    unsafe { own(descriptor) }
}

/// Attaches the program to the interface for as long as the descriptor that is returned is open. `flags` says how
/// (`XDP_FLAGS_*`).
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        interface: u32,
        attach_type: u32,
        flags: u32,
    }
    let mut attributes = Attributes { program: unsigned(program), interface, attach_type: ATTACH_XDP, flags };
    // SAFETY: this is what the command reads, and it has no pointers.
    let descriptor = unsafe { bpf(LINK_CREATE, &mut attributes) }?;
    // SAFETY: the call made it for us.
    unsafe { own(descriptor) }
}

/// Runs the program on a frame; returns its verdict.
#[cfg(test)]
pub(super) fn run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        verdict: u32,
        size_in: u32,
        size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
    }
    let mut attributes = Attributes {
        program: unsigned(program),
        verdict: 0,
        size_in: u32::try_from(frame.len()).unwrap_or_default(),
        size_out: 0,
        data_in: frame.as_ptr().expose_provenance() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
    };
    // SAFETY: this is what the command reads; it reads the frame, which lives until it returns, and writes nothing but
    // numbers into the structure.
    unsafe { bpf(PROG_TEST_RUN, &mut attributes) }?;
    Ok(attributes.verdict)
}
