//! Protection domains and the memory registered in them.

use core::{ffi::c_int, ptr::NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd};
use ringway_mem::Mapping;
use ringway_verbs::{Access, DmaBuf, RemoteKey};
use rustix::io::Errno;

use super::{Context, last_errno};

/// What queue pairs and memory have to have in common.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(super) raw: NonNull<ibv_pd>,
    pub(super) context: Arc<Context>,
}

// SAFETY: as of the context.
unsafe impl Send for Domain {}
// SAFETY: as of the context.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: queue pairs and memory keep it alive, so none is left.
        let _ = unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// The flags of `enum ibv_access_flags`.
fn flags(access: Access) -> u32 {
    [
        (access.local_write, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
        (access.remote_write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
        (access.remote_read, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        (access.remote_atomic, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC),
    ]
    .iter()
    .filter(|(granted, _)| *granted)
    .fold(0, |all, (_, flag)| all | flag.0)
}

/// Memory that the device may read and write by itself. Its addresses are offsets from its start.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    domain: Arc<Domain>,
    /// What the device reaches, where this process does as well.
    _mapping: Option<Arc<Mapping>>,
}

// SAFETY: as of the context.
unsafe impl Send for MemoryRegion {}
// SAFETY: as of the context; nothing of it changes.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers a mapping: its pages are held in memory, and the device learns where they are. With `relaxed` the PCIe bus
    /// may reorder what is written, which is in place before the completion all the same.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        mapping: Arc<Mapping>,
        access: Access,
        relaxed: bool,
    ) -> Result<Self, Errno> {
        let window = mapping.window(0, mapping.length() as u64).ok_or(Errno::FAULT)?;
        let ordering = if relaxed { ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 } else { 0 };
        // SAFETY: the range is mapped and stays so as long as this value, which holds the mapping. The device changes its bytes
        // at any time if `access` says so: nobody has references to bytes of mappings, but raw windows.
        let raw = unsafe {
            (domain.context.library.reg_mr_iova2)(
                domain.raw.as_ptr(),
                window.as_ptr().cast(),
                window.length(),
                0,
                flags(access) | ordering,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        Ok(Self { raw, domain: Arc::clone(domain), _mapping: Some(mapping) })
    }

    /// Registers a part of a dma-buf, which the kernel keeps alive. Where library or device cannot it is [`Errno::OPNOTSUPP`] or what
    /// else the system says then.
    pub(crate) fn of_dma_buf(
        domain: &Arc<Domain>,
        part: &DmaBuf,
        access: Access,
        relaxed: bool,
    ) -> Result<Self, Errno> {
        let register = domain.context.library.reg_dmabuf_mr.ok_or(Errno::OPNOTSUPP)?;
        let ordering = if relaxed { ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 } else { 0 };
        let (Ok(length), Ok(flags)) =
            (usize::try_from(part.length), c_int::try_from(flags(access) | ordering))
        else {
            return Err(Errno::INVAL);
        };
        // SAFETY: the domain is there. Whether the descriptor is a dma-buf that has these bytes the kernel checks, which then
        // holds it; no memory of this process is named.
        let raw = unsafe { register(domain.raw.as_ptr(), part.offset, length, 0, part.descriptor, flags) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        Ok(Self { raw, domain: Arc::clone(domain), _mapping: None })
    }

    /// Its name in requests that are posted here.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: it is registered, and its keys do not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// Its name in requests of peers.
    pub(crate) fn remote_key(&self) -> RemoteKey {
        // SAFETY: as above.
        RemoteKey(unsafe { (*self.raw.as_ptr()).rkey })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: it was registered and nobody else has it. When this returns the device does not reach the memory any more,
        // which is unmapped after it.
        let _ = unsafe { (self.domain.context.library.dereg_mr)(self.raw.as_ptr()) };
    }
}
