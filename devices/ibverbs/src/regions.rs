//! The device's memory: what requests are checked against, and what the device knows of it.

use std::sync::Arc;

use ringway_mem::{Mapping, RegionTable};
use ringway_verbs::{Access, DmaBuf, LocalKey, LocalSlice, MemoryKeys, RegisterError, RemoteKey};
use rustix::{io::Errno, param::page_size};

use crate::{
    RelaxedOrdering,
    hardware::{Domain, MemoryRegion, Segment},
};

/// Regions by key, each registered with the device once.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) table: RegionTable,
    /// By the key's place in the table.
    hardware: Vec<Option<MemoryRegion>>,
    domain: Arc<Domain>,
    ordering: RelaxedOrdering,
    atomics: bool,
}

impl Regions {
    pub(crate) fn new(limit: u32, domain: Arc<Domain>, ordering: RelaxedOrdering, atomics: bool) -> Self {
        Self { table: RegionTable::new(limit), hardware: Vec::new(), domain, ordering, atomics }
    }

    pub(crate) fn register(
        &mut self,
        mapping: Arc<Mapping>,
        access: Access,
    ) -> Result<MemoryKeys, RegisterError> {
        let local = self.table.register(Arc::clone(&mapping), access)?.local;
        let access = self.offered(access);
        let register = |relaxed| MemoryRegion::new(&self.domain, Arc::clone(&mapping), access, relaxed);
        let made = self.ordering.apply(register).map_err(refused);
        self.keep(local, made)
    }

    pub(crate) fn register_dma_buf(
        &mut self,
        part: &DmaBuf,
        access: Access,
    ) -> Result<MemoryKeys, RegisterError> {
        if part.length == 0 || !part.offset.is_multiple_of(page_size() as u64) {
            return Err(refused(Errno::INVAL));
        }
        let local = self.table.register_unmapped(part.length, access)?.local;
        let access = self.offered(access);
        let register = |relaxed| MemoryRegion::of_dma_buf(&self.domain, part, access, relaxed);
        let made = self.ordering.apply(register).map_err(|errno| match errno {
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::PROTONOSUPPORT => RegisterError::Unsupported,
            errno => refused(errno),
        });
        self.keep(local, made)
    }

    /// A device without atomics may refuse to hear of them.
    fn offered(&self, access: Access) -> Access {
        Access { remote_atomic: access.remote_atomic && self.atomics, ..access }
    }

    /// Has a region of the table registered with the device as this, or not at all.
    fn keep(
        &mut self,
        local: LocalKey,
        made: Result<MemoryRegion, RegisterError>,
    ) -> Result<MemoryKeys, RegisterError> {
        match made {
            Ok(region) => {
                let remote = region.remote_key();
                let index = usize::from(local.0 as u16);
                if self.hardware.len() <= index {
                    self.hardware.resize_with(index + 1, || None);
                }
                if let Some(place) = self.hardware.get_mut(index) {
                    *place = Some(region);
                }
                Ok(MemoryKeys { local, remote })
            }
            Err(error) => {
                self.table.deregister(local)?;
                Err(error)
            }
        }
    }

    pub(crate) fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        self.table.deregister(key)?;
        if let Some(place) = self.hardware.get_mut(usize::from(key.0 as u16)) {
            *place = None;
        }
        Ok(())
    }

    fn hardware(&self, key: LocalKey) -> Option<&MemoryRegion> {
        self.hardware.get(usize::from(key.0 as u16))?.as_ref()
    }

    /// The name that peers have for a region, which the device chose.
    pub(crate) fn remote_key(&self, key: LocalKey) -> Option<RemoteKey> {
        self.table.remote_key(key)?;
        Some(self.hardware(key)?.remote_key())
    }

    /// A part of a request that was checked when it was posted; `None` when it has no bytes.
    #[inline]
    pub(crate) fn segment(&self, slice: &LocalSlice) -> Option<Segment<'_>> {
        if slice.length == 0 {
            return None;
        }
        let key = self.hardware(slice.key)?.local_key();
        Some(Segment { window: self.table.window(slice), length: slice.length, offset: slice.offset, key })
    }
}

fn refused(errno: Errno) -> RegisterError {
    RegisterError::System(errno.raw_os_error())
}
