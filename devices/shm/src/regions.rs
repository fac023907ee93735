//! Regions that peers read straight from: what this side hands out, and what it was handed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_mem::{Mapping, Protection, Window};

use crate::ShmFailure;
use crate::control::read_only;

/// Things by key, whose lower half is a place in a table.
#[derive(Debug)]
struct ByKey<T>(Vec<Option<(u32, T)>>);

impl<T> Default for ByKey<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByKey<T> {
    fn get(&self, key: u32) -> Option<&T> {
        match self.0.get(usize::from(key as u16)) {
            Some(Some((found, thing))) if *found == key => Some(thing),
            _ => None,
        }
    }

    fn set(&mut self, key: u32, thing: T) {
        let place = usize::from(key as u16);
        if self.0.len() <= place {
            self.0.resize_with(place + 1, || None);
        }
        if let Some(slot) = self.0.get_mut(place) {
            *slot = Some((key, thing));
        }
    }

    fn remove(&mut self, key: u32) -> Option<T> {
        let slot = self.0.get_mut(usize::from(key as u16))?;
        slot.take_if(|(found, _)| *found == key).map(|(_, thing)| thing)
    }
}

/// The files of this side's regions, as far as they have any.
#[derive(Debug, Default)]
pub(crate) struct Exports(ByKey<OwnedFd>);

impl Exports {
    pub(crate) fn add(&mut self, key: u32, mapping: &Mapping) {
        if let Some(file) = mapping.file().and_then(read_only) {
            self.0.set(key, file);
        }
    }

    pub(crate) fn remove(&mut self, key: u32) {
        self.0.remove(key);
    }

    pub(crate) fn file(&self, key: u32) -> Option<BorrowedFd<'_>> {
        self.0.get(key).map(AsFd::as_fd)
    }
}

/// The regions that a peer was told of.
#[derive(Debug, Default)]
pub(crate) struct Announced(ByKey<()>);

impl Announced {
    pub(crate) fn has(&self, key: u32) -> bool {
        self.0.get(key).is_some()
    }

    pub(crate) fn add(&mut self, key: u32) {
        self.0.set(key, ());
    }

    /// Whether it was told of this one.
    pub(crate) fn remove(&mut self, key: u32) -> bool {
        self.0.remove(key).is_some()
    }
}

/// A peer's regions, mapped for reading.
#[derive(Debug, Default)]
pub(crate) struct Imports(ByKey<Arc<Mapping>>);

impl Imports {
    /// Maps a region.
    pub(crate) fn add(&mut self, key: u32, file: &OwnedFd) -> Result<(), ShmFailure> {
        let size = rustix::fs::fstat(file).map_err(|_| ShmFailure::Protocol)?.st_size;
        let length = usize::try_from(size).map_err(|_| ShmFailure::Protocol)?;
        let mapping = Mapping::foreign(file.as_fd(), length, Protection::Read);
        self.0.set(key, Arc::new(mapping.map_err(|_| ShmFailure::Memory)?));
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: u32) {
        self.0.remove(key);
    }

    pub(crate) fn has(&self, key: u32) -> bool {
        self.0.get(key).is_some()
    }

    pub(crate) fn window(&self, key: u32, offset: u64, length: u64) -> Option<Window<'_>> {
        self.0.get(key)?.window(offset, length)
    }
}
