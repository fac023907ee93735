//! Regions that peers read straight from: what this side hands out, and what it was handed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_mem::{AdmitError, Mapping, Window, admit};

use crate::ShmFailure;
use crate::control::read_only;

/// The most regions that one side of a connection has the other map. The bytes of further ones go through staging memory.
pub(crate) const TOLD_MAX: usize = 256;

/// Things by key, whose lower half is a place in a table.
#[derive(Debug)]
struct ByKey<T> {
    places: Vec<Option<(u32, T)>>,
    count: usize,
}

impl<T> Default for ByKey<T> {
    fn default() -> Self {
        Self { places: Vec::new(), count: 0 }
    }
}

impl<T> ByKey<T> {
    fn get(&self, key: u32) -> Option<&T> {
        match self.places.get(usize::from(key as u16)) {
            Some(Some((found, thing))) if *found == key => Some(thing),
            _ => None,
        }
    }

    fn set(&mut self, key: u32, thing: T) {
        let place = usize::from(key as u16);
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        if let Some(slot) = self.places.get_mut(place) {
            self.count += usize::from(slot.is_none());
            *slot = Some((key, thing));
        }
    }

    /// Whether there is room for this one among so many.
    fn has_room(&self, key: u32, most: usize) -> bool {
        let taken = self.places.get(usize::from(key as u16)).is_some_and(Option::is_some);
        taken || self.count < most
    }

    fn remove(&mut self, key: u32) -> Option<T> {
        let slot = self.places.get_mut(usize::from(key as u16))?;
        let (_, thing) = slot.take_if(|(found, _)| *found == key)?;
        self.count -= 1;
        Some(thing)
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

    /// Whether it may be told of this one.
    pub(crate) fn has_room(&self, key: u32) -> bool {
        self.0.has_room(key, TOLD_MAX)
    }

    pub(crate) fn add(&mut self, key: u32) {
        self.0.set(key, ());
    }

    pub(crate) fn remove(&mut self, key: u32) {
        self.0.remove(key);
    }
}

/// A peer's regions, mapped for reading.
#[derive(Debug, Default)]
pub(crate) struct Imports(ByKey<Mapping>);

impl Imports {
    /// Maps a region.
    pub(crate) fn add(&mut self, key: u32, file: &OwnedFd) -> Result<(), ShmFailure> {
        if !self.0.has_room(key, TOLD_MAX) {
            return Err(ShmFailure::Protocol);
        }
        let mapping = admit::map_for_reading(file.as_fd()).map_err(|error| match error {
            AdmitError::Map(_) => ShmFailure::Memory,
            _ => ShmFailure::Protocol,
        })?;
        self.0.set(key, mapping);
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

    /// Whether pages of a region were gone when they were read: zeroes came in their place.
    pub(crate) fn has_lost_pages(&self, key: u32) -> bool {
        self.0.get(key).is_some_and(Mapping::faulted)
    }
}
