//! Who uses which bytes of the daemon's own memory.

use crate::{BufferRef, RegionId};
use ringway_verbs::LocalKey;

/// Every block starts at a multiple of this.
const ALIGNMENT: u64 = 64;

/// Hands out blocks of the workspace: long-lived ones from the end, those of one operation from the start, so that
/// neither kind fragments the other.
#[derive(Debug)]
pub(crate) struct Workspace {
    region: RegionId,
    key: LocalKey,
    length: u64,
    free: Vec<(u64, u64)>,
}

impl Workspace {
    pub(crate) fn new(region: RegionId, key: LocalKey, length: u64) -> Self {
        let mut free = Vec::with_capacity(256);
        free.push((0, length - length % ALIGNMENT));
        Self { region, key, length, free }
    }

    pub(crate) const fn key(&self) -> LocalKey {
        self.key
    }

    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    pub(crate) const fn region(&self) -> RegionId {
        self.region
    }

    pub(crate) const fn buffer(&self, offset: u64, length: u64) -> BufferRef {
        BufferRef { region: self.region, offset, length }
    }

    /// The largest block that can be had.
    pub(crate) fn largest(&self) -> u64 {
        self.free.iter().map(|(_, length)| *length).max().unwrap_or(0)
    }

    /// A block for the time of one operation.
    pub(crate) fn take(&mut self, length: u64) -> Option<u64> {
        let length = length.checked_next_multiple_of(ALIGNMENT)?;
        if length == 0 {
            return Some(0);
        }
        let at = self.free.iter().position(|(_, room)| *room >= length)?;
        let (start, room) = self.free.get(at).copied()?;
        if room == length {
            self.free.remove(at);
        } else if let Some(block) = self.free.get_mut(at) {
            *block = (start + length, room - length);
        }
        Some(start)
    }

    /// A block for the time of a communicator.
    pub(crate) fn take_long(&mut self, length: u64) -> Option<u64> {
        let length = length.checked_next_multiple_of(ALIGNMENT)?;
        if length == 0 {
            return Some(0);
        }
        let at = self.free.iter().rposition(|(_, room)| *room >= length)?;
        let (start, room) = self.free.get(at).copied()?;
        if room == length {
            self.free.remove(at);
        } else if let Some(block) = self.free.get_mut(at) {
            *block = (start, room - length);
        }
        Some(start + room - length)
    }

    /// The same of what can be spared: one block of a third of all the memory stays for operations.
    pub(crate) fn take_spare(&mut self, length: u64) -> Option<u64> {
        let stays = self.largest().checked_sub(length)?;
        if stays >= self.length / 3 { self.take_long(length) } else { None }
    }

    /// Gives back a block of either kind.
    pub(crate) fn give(&mut self, start: u64, length: u64) {
        let Some(length) = length.checked_next_multiple_of(ALIGNMENT).filter(|n| *n > 0) else { return };
        let at = self.free.partition_point(|(other, _)| *other < start);
        let joins_next = self.free.get(at).is_some_and(|(next, _)| start + length == *next);
        let before = at.checked_sub(1).and_then(|i| self.free.get(i)).copied();
        let joins_before = before.is_some_and(|(other, room)| other + room == start);
        let (mut first, mut size) = (start, length);
        if let Some((_, room)) = self.free.get(at).copied().filter(|_| joins_next) {
            size += room;
        }
        if let Some((other, room)) = before.filter(|_| joins_before) {
            first = other;
            size += room;
        }
        match (joins_before, joins_next) {
            (true, true) => {
                self.free.remove(at);
                if let Some(block) = self.free.get_mut(at - 1) {
                    *block = (first, size);
                }
            }
            (true, false) => {
                if let Some(block) = self.free.get_mut(at - 1) {
                    *block = (first, size);
                }
            }
            (false, true) => {
                if let Some(block) = self.free.get_mut(at) {
                    *block = (first, size);
                }
            }
            (false, false) => self.free.insert(at, (first, size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_come_back(
            program in proptest::collection::vec((0_u8..3, 1_u64..5000, any::<prop::sample::Index>()), 0..200)
        ) {
            let mut workspace = Workspace::new(RegionId(0), LocalKey(1), 64 << 10);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (what, length, which) in program {
                let block = match what {
                    0 => workspace.take(length),
                    1 => workspace.take_long(length),
                    _ => {
                        if !held.is_empty() {
                            let (start, length) = held.swap_remove(which.index(held.len()));
                            workspace.give(start, length);
                        }
                        continue;
                    }
                };
                if let Some(start) = block {
                    prop_assert!(start + length <= 64 << 10);
                    for (other, size) in &held {
                        prop_assert!(start + length <= *other || *other + *size <= start);
                    }
                    held.push((start, length));
                }
            }
            for (start, length) in held {
                workspace.give(start, length);
            }
            prop_assert_eq!(workspace.largest(), 64 << 10);
            prop_assert_eq!(workspace.free.len(), 1);
        }
    }
}
