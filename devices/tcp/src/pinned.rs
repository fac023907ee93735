//! Which parts of regions are in the ring's table of registered buffers: the kernel keeps their pages pinned, where it would
//! find and pin them for each send without a copy.
//!
//! Of all that is done with sockets only such sends of one piece can use that table. A receive cannot: it goes to the rest of a
//! payload and, in the same system call, to bytes read ahead, which are not of one buffer.
//!
//! # Parts
//! The kernel is given a region in parts of [`PART`] bytes, each when it is first sent from: pinning takes time, of which a turn
//! of the loop must not spend much, and most memory is never sent from over a link on which sending without a copy pays. What
//! is pinned stays so until its region is deregistered, and nothing is given up for anything else: a table that is full, or a
//! limit on locked memory, costs later parts the shortcut and nobody else anything. A client that punches a hole into memory that
//! is pinned has what was there sent, and harms nobody but itself.

use ringway_mem::{Part, Span};
use ringway_verbs::LocalKey;

/// Parts that the table has places for: together 16 GiB.
pub(crate) const PLACES: u32 = 1024;
/// Bytes of a part: pinning one takes less than a millisecond where pages are small, and far less than the 1 GiB that the kernel
/// allows a buffer.
const PART: u64 = 16 << 20;
/// Places next to its own in which a part may be.
const NEIGHBOURS: usize = 8;

/// Where a part is, or may be put.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the table.
    Registered(u16),
    /// This place is free for it.
    Free(u16, Part),
}

#[derive(Debug)]
pub(crate) struct Pinned {
    /// Holds what is registered.
    places: Vec<Option<Part>>,
    /// The system did not take the last one: nothing is asked of it until it has got something back.
    refused: bool,
    /// Bytes that are registered.
    pub(crate) bytes: u64,
    /// How often the system took none.
    pub(crate) refusals: u64,
}

impl Pinned {
    /// A table with so many places.
    pub(crate) fn new(places: u32) -> Self {
        let places = core::iter::repeat_with(|| None).take(places as usize).collect();
        Self { places, refused: false, bytes: 0, refusals: 0 }
    }

    /// Where the part is that this lies in, or can be put; `None` if it is in several, or there is no room.
    pub(crate) fn find(&self, span: &Span) -> Option<Place> {
        let part = span.part(PART)?;
        // Parts of a region are next to each other; regions are apart.
        let number = u64::from(part.key.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let first = number.wrapping_add(part.offset / PART);
        let near = (0..NEIGHBOURS as u64).map(|next| {
            let at = first.wrapping_add(next).checked_rem(self.places.len() as u64).unwrap_or(0);
            (at as u16, self.places.get(at as usize))
        });
        let mut free = None;
        for (at, place) in near {
            match place? {
                Some(held) if held.key == part.key && held.offset == part.offset => {
                    return Some(Place::Registered(at));
                }
                Some(_) => {}
                None => free = free.or(Some(at)),
            }
        }
        free.filter(|_| !self.refused).map(|at| Place::Free(at, part))
    }

    /// What came of registering a part at a place that was free.
    pub(crate) fn put(&mut self, at: u16, part: Part, taken: bool) {
        self.refused = !taken;
        self.refusals += u64::from(!taken);
        if let Some(place) = self.places.get_mut(usize::from(at)).filter(|_| taken) {
            self.bytes += part.length;
            *place = Some(part);
        }
    }

    /// A place that has a part of this region.
    pub(crate) fn of(&self, key: LocalKey) -> Option<u16> {
        let is_of = |place: &Option<Part>| place.as_ref().is_some_and(|part| part.key == key);
        self.places.iter().position(is_of).and_then(|at| u16::try_from(at).ok())
    }

    /// The system has let go of what is here.
    pub(crate) fn clear(&mut self, at: u16) {
        if let Some(part) = self.places.get_mut(usize::from(at)).and_then(Option::take) {
            self.bytes -= part.length;
            self.refused = false;
        }
    }
}

#[cfg(test)]
mod tests;
