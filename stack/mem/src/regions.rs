//! The table of regions that a device was given, by the keys that requests name them with.

use std::sync::Arc;

use ringway_verbs::{
    Access, LocalKey, LocalSlice, MemoryKeys, PostError, RegisterError, RemoteKey, RemoteSlice, WorkRequest,
};

use crate::{Mapping, NumberTable, Protection, Window};

/// Registered memory.
#[derive(Debug)]
struct Region {
    memory: Arc<Memory>,
    access: Access,
    /// Posted requests and arriving messages that use it.
    uses: u32,
}

impl Region {
    /// Whether anything uses it: requests, or spans, which have its memory as well.
    fn is_busy(&self) -> bool {
        self.uses > 0 || Arc::strong_count(&self.memory) > 1
    }
}

/// The memory of one region, which nothing but it and its spans refer to.
#[derive(Debug)]
struct Memory {
    /// Absent where only the device reaches it.
    mapping: Option<Arc<Mapping>>,
    /// Bytes.
    length: u64,
}

impl Memory {
    /// Whether these bytes are inside.
    fn has(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// The bytes, where this process has them.
    #[inline]
    fn window(&self, offset: u64, length: u64) -> Option<Window<'_>> {
        self.mapping.as_ref()?.window(offset, length)
    }
}

/// Bytes of a region, which it keeps in use, as [`RegionTable::is_busy`] tells, and their mapping alive.
#[derive(Debug, Clone)]
pub struct Span {
    memory: Arc<Memory>,
    /// The key of its region.
    pub key: LocalKey,
    /// Bytes from the mapping's start.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Span {
    /// Its first bytes: at most so many.
    #[must_use]
    pub fn first(&self, length: u64) -> Self {
        Self { length: length.min(self.length), ..self.clone() }
    }

    /// Of the mapping cut into parts of so many bytes, of which the last may be shorter, the one that it lies in; `None` if it
    /// lies in several.
    #[must_use]
    pub fn part(&self, bytes: u64) -> Option<Part> {
        let mapping = self.memory.mapping.as_ref()?;
        let offset = self.offset.checked_div(bytes)?.checked_mul(bytes)?;
        let length = (mapping.length() as u64).checked_sub(offset)?.min(bytes);
        let end = self.offset.checked_add(self.length)?;
        (end <= offset + length).then(|| Part { mapping: Arc::clone(mapping), key: self.key, offset, length })
    }

    /// The bytes, checked again against the mapping.
    #[must_use]
    pub fn window(&self) -> Option<Window<'_>> {
        self.memory.window(self.offset, self.length)
    }
}

/// Bytes of a region, whose mapping it keeps alive without keeping the region in use.
#[derive(Debug)]
pub struct Part {
    mapping: Arc<Mapping>,
    /// The key of its region.
    pub key: LocalKey,
    /// Bytes from the mapping's start.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Part {
    /// The bytes, checked again against the mapping.
    #[must_use]
    pub fn window(&self) -> Option<Window<'_>> {
        self.mapping.window(self.offset, self.length)
    }
}

/// Regions by key, whose lower half is a place in the table. The local and the remote key of a region are the same number. A
/// region that posted requests or spans use is kept.
#[derive(Debug)]
pub struct RegionTable {
    regions: NumberTable<Region>,
}

impl RegionTable {
    /// A table for at most so many regions, and no more than 65,536.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { regions: NumberTable::new(limit, u32::BITS) }
    }

    /// Adds a region.
    ///
    /// # Errors
    /// When the table is full, or the access makes no sense or is more than the mapping allows.
    pub fn register(&mut self, mapping: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        if access.local_write && mapping.protection() != Protection::ReadWrite {
            return Err(RegisterError::System(libc::EACCES));
        }
        let length = mapping.length() as u64;
        self.insert(Memory { mapping: Some(mapping), length }, access)
    }

    /// Adds a region of so many bytes which this process does not reach itself.
    ///
    /// # Errors
    /// As [`RegionTable::register`].
    pub fn register_unmapped(&mut self, length: u64, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.insert(Memory { mapping: None, length }, access)
    }

    fn insert(&mut self, memory: Memory, access: Access) -> Result<MemoryKeys, RegisterError> {
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(RegisterError::AccessCombination);
        }
        let key = self.regions.allot().ok_or(RegisterError::TableFull { limit: self.regions.limit() })?;
        self.regions.insert(key, Region { memory: Arc::new(memory), access, uses: 0 });
        Ok(MemoryKeys { local: LocalKey(key), remote: RemoteKey(key) })
    }

    /// Removes a region.
    ///
    /// # Errors
    /// When there is no such region, or something uses it.
    pub fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        let region = self.regions.get(key.0).ok_or(RegisterError::UnknownKey)?;
        if region.is_busy() {
            return Err(RegisterError::Busy);
        }
        self.regions.remove(key.0);
        Ok(())
    }

    /// Whether something uses a region.
    #[must_use]
    pub fn is_busy(&self, key: LocalKey) -> bool {
        self.regions.get(key.0).is_some_and(Region::is_busy)
    }

    /// The name that peers have for a region; `None` when there is no such region.
    #[must_use]
    #[inline]
    pub fn remote_key(&self, key: LocalKey) -> Option<RemoteKey> {
        self.regions.get(key.0).map(|_| RemoteKey(key.0))
    }

    /// Checks a segment of a request to be posted, which may be written if the request says so.
    ///
    /// # Errors
    /// When the key, the range or the access is wrong.
    pub fn check_local(&self, slice: &LocalSlice, write: bool) -> Result<(), PostError> {
        if slice.length == 0 {
            return Ok(());
        }
        let region = self.regions.get(slice.key.0).ok_or(PostError::Memory)?;
        if !region.memory.has(slice.offset, slice.length) || write && !region.access.local_write {
            return Err(PostError::Memory);
        }
        Ok(())
    }

    /// Checks the segments of a send-queue request to be posted, which its answer writes if it has one.
    ///
    /// # Errors
    /// As [`RegionTable::check_local`].
    #[inline]
    pub fn check_request(&self, request: &WorkRequest) -> Result<(), PostError> {
        let answered = request.operation.is_answered();
        request.local.iter().try_for_each(|slice| self.check_local(slice, answered))
    }

    /// Counts one more use of a segment's region.
    pub fn hold(&mut self, slice: &LocalSlice) {
        self.count(slice, |uses| uses.saturating_add(1));
    }

    /// Counts one use less.
    pub fn release(&mut self, slice: &LocalSlice) {
        self.count(slice, |uses| uses.saturating_sub(1));
    }

    fn count(&mut self, slice: &LocalSlice, change: impl Fn(u32) -> u32) {
        if slice.length == 0 {
            return;
        }
        if let Some(region) = self.regions.get_mut(slice.key.0) {
            region.uses = change(region.uses);
        }
    }

    /// The segment a peer names, when it may do `allowed` to these bytes.
    #[must_use]
    #[inline]
    pub fn remote(
        &self,
        remote: RemoteSlice,
        length: u64,
        allowed: impl Fn(Access) -> bool,
    ) -> Option<LocalSlice> {
        let region = self.regions.get(remote.key.0)?;
        let is_inside = region.memory.has(remote.offset, length);
        (is_inside && allowed(region.access)).then_some(LocalSlice {
            key: LocalKey(remote.key.0),
            offset: remote.offset,
            length,
        })
    }

    /// The bytes of a segment that this side may write.
    #[must_use]
    #[inline]
    pub fn writable(&self, slice: &LocalSlice) -> Option<Window<'_>> {
        let region = self.regions.get(slice.key.0).filter(|region| region.access.local_write)?;
        region.memory.window(slice.offset, slice.length).filter(Window::is_writable)
    }

    /// The bytes of a segment.
    #[must_use]
    #[inline]
    pub fn window(&self, slice: &LocalSlice) -> Option<Window<'_>> {
        self.regions.get(slice.key.0)?.memory.window(slice.offset, slice.length)
    }

    /// The bytes of a segment, kept alive.
    #[must_use]
    pub fn span(&self, slice: &LocalSlice) -> Option<Span> {
        let region = self.regions.get(slice.key.0)?;
        region.memory.window(slice.offset, slice.length)?;
        let (memory, LocalSlice { key, offset, length }) = (Arc::clone(&region.memory), *slice);
        Some(Span { memory, key, offset, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that name it are checked like others; nobody here reads or writes it.
    #[test]
    fn memory_that_only_the_device_reaches_has_bounds_and_no_window() {
        let mut table = RegionTable::new(4);
        let refused = Access { local_write: false, ..Access::ALL };
        assert_eq!(table.register_unmapped(4096, refused), Err(RegisterError::AccessCombination));
        let keys = table.register_unmapped(4096, Access::ALL).expect("registered");
        let slice = |offset, length| LocalSlice { key: keys.local, offset, length };
        assert_eq!(table.check_local(&slice(0, 4096), true), Ok(()));
        for outside in [slice(1, 4096), slice(4096, 1), slice(u64::MAX, 2)] {
            assert_eq!(table.check_local(&outside, false), Err(PostError::Memory));
        }
        let inside = slice(8, 8);
        assert!(table.window(&inside).is_none() && table.writable(&inside).is_none());
        assert!(table.span(&inside).is_none());
        table.hold(&inside);
        assert_eq!(table.deregister(keys.local), Err(RegisterError::Busy));
        table.release(&inside);
        assert_eq!(table.deregister(keys.local), Ok(()));
    }
}
