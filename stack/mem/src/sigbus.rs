//! The last line against a client that takes pages away from under a mapping.
//!
//! A client can punch holes into its region, or its cgroup can run out of memory when the daemon touches one; the
//! daemon then gets SIGBUS. Mappings of memory that another process owns are therefore registered here. The handler
//! maps a page of zeroes over the one that faulted and marks the mapping, so that the instruction goes on and the
//! owner ends the session ([`crate::Mapping::faulted`]). A fault anywhere else is a defect of ours and takes the
//! default action.
//!
//! The handler only touches a fixed table of atomics and makes plain system calls, so it is async-signal-safe.

use core::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::sync::OnceLock;

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags},
};

use crate::Protection;

/// The most foreign mappings of a process.
pub const MAX_FOREIGN: usize = 8192;

/// Those of them that are only for clients' memory: however much daemons of this host have this one map, its own clients
/// find room.
pub const MAX_FOREIGN_CLIENTS: usize = MAX_FOREIGN / 2;

/// Whose memory is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A client of this process.
    Client,
    /// Another daemon of this host.
    Peer,
}

/// A slot's base while its owner fills it in; no mapping begins there.
const CLAIMED: usize = 1;

struct Slot {
    /// Zero: free; [`CLAIMED`]; else where the mapping begins.
    base: AtomicUsize,
    length: AtomicUsize,
    writable: AtomicBool,
    faulted: AtomicBool,
}

static SLOTS: [Slot; MAX_FOREIGN] = [const {
    Slot {
        base: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        writable: AtomicBool::new(false),
        faulted: AtomicBool::new(false),
    }
}; MAX_FOREIGN];

/// One more than the highest slot ever used, so that the handler looks no further.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The page's bytes, for the handler.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// A registered range; the range is forgotten when this is dropped, which must be before it is unmapped.
#[derive(Debug)]
pub(crate) struct Registration {
    index: usize,
}

/// Why a range was not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegisterError {
    /// The table is full.
    Full,
    /// The handler could not be installed.
    Handler(Errno),
}

/// Registers a mapped range, installing the handler when this is the first.
pub(crate) fn register(
    base: usize,
    length: usize,
    protection: Protection,
    owner: Owner,
) -> Result<Registration, RegisterError> {
    install().map_err(RegisterError::Handler)?;
    let first = if owner == Owner::Client { 0 } else { MAX_FOREIGN_CLIENTS };
    for (index, slot) in SLOTS.iter().enumerate().skip(first) {
        if slot.base.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        slot.length.store(length, Ordering::Relaxed);
        slot.writable.store(protection == Protection::ReadWrite, Ordering::Relaxed);
        slot.faulted.store(false, Ordering::Relaxed);
        USED.fetch_max(index.saturating_add(1), Ordering::Relaxed);
        slot.base.store(base, Ordering::Release);
        return Ok(Registration { index });
    }
    Err(RegisterError::Full)
}

impl Registration {
    /// Whether a fault was answered with zeroes.
    pub(crate) fn faulted(&self) -> bool {
        // Written by the handler on whatever thread touched the page; acquire so that a thread that sees it sees what
        // that thread did before.
        SLOTS.get(self.index).is_some_and(|slot| slot.faulted.load(Ordering::Acquire))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(slot) = SLOTS.get(self.index) {
            slot.base.store(0, Ordering::Release);
        }
    }
}

/// Installs the handler once for the process.
fn install() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        // SA_ONSTACK: the fault may happen on a thread whose stack is nearly used up.
        set_action(handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK)
    })
}

/// Sets the process's action for SIGBUS. Async-signal-safe.
fn set_action(action: usize, flags: c_int) -> Result<(), Errno> {
    let mut new = MaybeUninit::<libc::sigaction>::zeroed();
    let pointer = new.as_mut_ptr();
    // SAFETY: a zeroed sigaction is a valid one: default action, no flags, empty mask.
    let fields = unsafe { &mut *pointer };
    fields.sa_sigaction = action;
    fields.sa_flags = flags;
    // SAFETY: `pointer` is a valid sigaction, and the action is the default one or `handle`, which has the signature
    // that SA_SIGINFO asks for.
    let failed = unsafe { libc::sigaction(libc::SIGBUS, pointer, ptr::null_mut()) };
    if failed == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// The handler.
extern "C" fn handle(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let info = unsafe { &*info };
    // Faults have positive codes; the others were sent by a process and have no address.
    if info.si_code > 0 {
        // SAFETY: for a fault the kernel fills the address in.
        let address = unsafe { info.si_addr() } as usize;
        if cover(address) {
            return;
        }
    }
    let _ = set_action(libc::SIG_DFL, 0);
    // SAFETY: `raise` is async-signal-safe. The signal is delivered when this handler returns.
    unsafe { libc::raise(libc::SIGBUS) };
}

/// Maps a page of zeroes over the one that an address is in, when it is in a registered range.
fn cover(address: usize) -> bool {
    let page = PAGE.load(Ordering::Relaxed);
    for slot in SLOTS.iter().take(USED.load(Ordering::Relaxed)) {
        let base = slot.base.load(Ordering::Acquire);
        if base <= CLAIMED || address < base {
            continue;
        }
        let length = slot.length.load(Ordering::Relaxed).next_multiple_of(page);
        let writable = slot.writable.load(Ordering::Relaxed);
        // The slot of the mapping that faulted cannot change while it is being used, but this may be another one.
        if address - base >= length || slot.base.load(Ordering::Acquire) != base {
            continue;
        }
        let mut protection = ProtFlags::READ;
        if writable {
            protection |= ProtFlags::WRITE;
        }
        let at = ptr::without_provenance_mut(address & !(page - 1));
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the page is inside a range that a living `Mapping` owns, whose bytes change at any time by
        // contract; it is replaced by one with the same protection. The call goes straight to the kernel.
        let mapped = unsafe { rustix::mm::mmap_anonymous(at, page, protection, flags) };
        if mapped.is_err() {
            return false;
        }
        slot.faulted.store(true, Ordering::Release);
        return true;
    }
    false
}
