//! Regions that peers read straight from: what this side hands out, and what it was handed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_mem::{AdmitError, Mapping, PeerFile, Window};

use crate::ShmFailure;
use crate::control::read_only;

/// The most regions that one side of a connection has the other map. The bytes of further ones go through staging memory.
pub(crate) const TOLD_MAX: usize = 256;
/// The most bytes of these, which cost the other page tables at least.
pub(crate) const TOLD_BYTES_MAX: u64 = 256 << 30;

/// Things by key, whose lower half is a place in a table.
#[derive(Debug)]
struct ByKey<T> {
    places: Vec<Option<(u32, T)>>,
}

impl<T> Default for ByKey<T> {
    fn default() -> Self {
        Self { places: Vec::new() }
    }
}

impl<T> ByKey<T> {
    fn get(&self, key: u32) -> Option<&T> {
        match self.places.get(usize::from(key as u16)) {
            Some(Some((found, thing))) if *found == key => Some(thing),
            _ => None,
        }
    }

    /// What is in the place of this key, whichever key that has.
    fn in_place(&self, key: u32) -> Option<&T> {
        self.places.get(usize::from(key as u16))?.as_ref().map(|(_, thing)| thing)
    }

    fn set(&mut self, key: u32, thing: T) {
        let place = usize::from(key as u16);
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        if let Some(slot) = self.places.get_mut(place) {
            *slot = Some((key, thing));
        }
    }

    fn remove(&mut self, key: u32) -> Option<T> {
        let slot = self.places.get_mut(usize::from(key as u16))?;
        let (_, thing) = slot.take_if(|(found, _)| *found == key)?;
        Some(thing)
    }
}

/// How many regions one side has the other map, and of how many bytes. Both sides count alike.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    regions: usize,
    bytes: u64,
}

impl Told {
    /// Without the one of these bytes, if there is one.
    const fn without(self, bytes: Option<u64>) -> Self {
        match bytes {
            Some(bytes) => Self { regions: self.regions - 1, bytes: self.bytes - bytes },
            None => self,
        }
    }

    /// With one of these bytes more, unless that is too much.
    fn with(self, bytes: u64) -> Option<Self> {
        let bytes = self.bytes.checked_add(bytes).filter(|bytes| *bytes <= TOLD_BYTES_MAX)?;
        (self.regions < TOLD_MAX).then_some(Self { regions: self.regions + 1, bytes })
    }
}

/// The files of this side's regions, as far as they have any, with their bytes.
#[derive(Debug, Default)]
pub(crate) struct Exports(ByKey<(OwnedFd, u64)>);

impl Exports {
    pub(crate) fn add(&mut self, key: u32, mapping: &Mapping) {
        if let Some(file) = mapping.file().and_then(read_only)
            && let Ok(stat) = rustix::fs::fstat(&file)
        {
            self.0.set(key, (file, u64::try_from(stat.st_size).unwrap_or(0)));
        }
    }

    pub(crate) fn remove(&mut self, key: u32) {
        self.0.remove(key);
    }

    pub(crate) fn file(&self, key: u32) -> Option<(BorrowedFd<'_>, u64)> {
        self.0.get(key).map(|(file, bytes)| (file.as_fd(), *bytes))
    }
}

/// The regions that a peer was told of, with their bytes.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    regions: ByKey<u64>,
    told: Told,
}

impl Announced {
    pub(crate) fn has(&self, key: u32) -> bool {
        self.regions.get(key).is_some()
    }

    /// What it will have been told with this one of so many bytes, if it may be told of it.
    fn with(&self, key: u32, bytes: u64) -> Option<Told> {
        self.told.without(self.regions.in_place(key).copied()).with(bytes)
    }

    /// Whether it may be told of this one, of so many bytes.
    pub(crate) fn has_room(&self, key: u32, bytes: u64) -> bool {
        self.with(key, bytes).is_some()
    }

    /// It was told of this one, for which there was room.
    pub(crate) fn add(&mut self, key: u32, bytes: u64) {
        if let Some(told) = self.with(key, bytes) {
            self.told = told;
            self.regions.set(key, bytes);
        }
    }

    pub(crate) fn remove(&mut self, key: u32) {
        self.told = self.told.without(self.regions.remove(key));
    }
}

/// A peer's regions, to be read.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    regions: ByKey<PeerFile>,
    told: Told,
}

impl Imports {
    /// Takes a region.
    pub(crate) fn add(&mut self, key: u32, file: OwnedFd) -> Result<(), ShmFailure> {
        let others = self.told.without(self.regions.in_place(key).map(PeerFile::length));
        let region = PeerFile::admit(file, TOLD_BYTES_MAX - others.bytes).map_err(|error| match error {
            AdmitError::Map(_) => ShmFailure::Memory,
            _ => ShmFailure::Protocol,
        })?;
        self.told = others.with(region.length()).ok_or(ShmFailure::Protocol)?;
        self.regions.set(key, region);
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: u32) {
        let removed = self.regions.remove(key);
        self.told = self.told.without(removed.as_ref().map(PeerFile::length));
    }

    pub(crate) fn has(&self, key: u32) -> bool {
        self.regions.get(key).is_some()
    }

    /// Fills a window from a region, from this byte on; how many bytes were copied.
    #[inline]
    pub(crate) fn copy_to(&self, key: u32, offset: u64, to: &Window<'_>) -> usize {
        self.regions.get(key).map_or(0, |region| region.copy_to(offset, to))
    }

    /// Whether pages of a region were gone when they were read: zeroes came in their place.
    pub(crate) fn has_lost_pages(&self, key: u32) -> bool {
        self.regions.get(key).is_some_and(PeerFile::faulted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_told_of_so_many_regions_and_bytes() {
        let mut announced = Announced::default();
        announced.add(1, TOLD_BYTES_MAX - 10);
        assert!(announced.has_room(2, 10) && !announced.has_room(2, 11));
        // One that takes the place of another.
        assert!(announced.has_room(0x1_0001, TOLD_BYTES_MAX));
        announced.add(0x1_0001, 20);
        assert!(!announced.has(1) && announced.has(0x1_0001) && announced.has_room(2, TOLD_BYTES_MAX - 20));
        announced.remove(1);
        assert!(!announced.has_room(2, TOLD_BYTES_MAX - 19), "nothing was removed");
        announced.remove(0x1_0001);
        (0..TOLD_MAX as u32).for_each(|key| announced.add(key, 0));
        assert!(!announced.has_room(TOLD_MAX as u32, 0) && announced.has_room(7, 5));
    }
}
