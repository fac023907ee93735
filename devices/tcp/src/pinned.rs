//! Which parts of regions are in the ring's table of registered buffers: the kernel keeps their pages pinned, where it would
//! find and pin them for each send without a copy.
//!
//! Of all that is done with sockets only such sends of one piece can use that table. A receive cannot: it goes to the rest of a
//! payload and, in the same system call, to bytes read ahead, which are not of one buffer.
//!
//! # Parts
//! The kernel is given a region in parts of [`PART`] bytes, each when it is first sent from: pinning takes time, of which a turn
//! of the loop must not spend much, and most memory is never sent from over a link on which sending without a copy pays. What
//! is pinned stays so until its region is deregistered; a table that is full costs later parts the shortcut and nobody else
//! anything. A client that punches a hole into memory that is pinned has what was there sent, and harms nobody but itself.
//!
//! # Limits
//! What is pinned counts towards the limit on locked memory (`RLIMIT_MEMLOCK`) together with what is lent without being pinned
//! before, which sends of several pieces always are. Where the system therefore refuses such a send the table is emptied for
//! good: a send that is not made without a copy loses more than one that has its pages looked up.
//!
//! # Kernels
//! Before Linux 6.13 all that leaves a ring's tables waits in one list behind every older request that uses any of them
//! (ended by 7029acd8a950, "io_uring/rsrc: get rid of per-ring io_rsrc_node list"). A receive on an idle connection uses the
//! table of sockets, so that memory of regions long deregistered would stay pinned for as long as nothing comes. Nothing is
//! pinned there.

use ringway_mem::{Part, Span};
use ringway_verbs::LocalKey;

/// Parts that the table has places for: together 16 GiB.
pub(crate) const PLACES: u32 = 1024;
/// Bytes of a part: pinning one takes less than a millisecond where pages are small, and far less than the 1 GiB that the kernel
/// allows a buffer.
const PART: u64 = 16 << 20;
/// Places next to its own in which a part may be.
const NEIGHBOURS: usize = 8;
/// Sends that could have a part put into the table between two trials when the system has no room for more.
const SENDS_BETWEEN_TRIALS: u32 = 1024;
/// The first release of Linux, as its first two numbers, that unpins what has left the table once no request uses it.
const UNPINS_SOON: (u32, u32) = (6, 13);

/// Whether a kernel of this release, as `uname` gives it, unpins in time what has left the table; not if that is not clear.
pub(crate) fn unpins_soon(release: &str) -> bool {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= UNPINS_SOON)
}

/// Where a part is, or may be put.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the table.
    Registered(u16),
    /// This place is free for it.
    Free(u16, Part),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Registered,
    /// The system does not take this part, and is not asked again.
    Refused,
    /// The region is gone, and the system still to be told.
    Leaving,
}

#[derive(Debug)]
struct Entry {
    /// Kept while it may be registered.
    part: Part,
    state: State,
}

#[derive(Debug)]
pub(crate) struct Pinned {
    places: Vec<Option<Entry>>,
    /// The system has no room for more: sends to come until it is asked again, unless it gets something back before.
    rest: u32,
    /// Bytes that are registered.
    pub(crate) bytes: u64,
    /// How often the system took none.
    pub(crate) refusals: u64,
}

impl Pinned {
    /// A table with so many places.
    pub(crate) fn new(places: u32) -> Self {
        let places = core::iter::repeat_with(|| None).take(places as usize).collect();
        Self { places, rest: 0, bytes: 0, refusals: 0 }
    }

    /// Where the part is that this lies in, or can be put; `None` if it is in several, there is no room, or the system does not
    /// take it.
    pub(crate) fn find(&mut self, span: &Span) -> Option<Place> {
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
                Some(Entry { part: other, state }) => {
                    // The key of a region that is gone may be another's by now.
                    if (other.key, other.offset) == (part.key, part.offset) && *state != State::Leaving {
                        return (*state == State::Registered).then_some(Place::Registered(at));
                    }
                }
                None => free = free.or(Some(at)),
            }
        }
        let at = free?;
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        Some(Place::Free(at, part))
    }

    /// What came of registering a part at a place that was free: the system took it, or gave an `errno`.
    pub(crate) fn put(&mut self, at: u16, part: Part, registered: Result<(), i32>) {
        self.refusals += u64::from(registered.is_err());
        let state = match registered {
            Ok(()) => State::Registered,
            // This memory cannot be pinned, as of some file systems; other can.
            Err(libc::EFAULT | libc::EINVAL | libc::EOPNOTSUPP) => State::Refused,
            Err(_) => {
                self.rest = SENDS_BETWEEN_TRIALS;
                return;
            }
        };
        if let Some(place) = self.places.get_mut(usize::from(at)) {
            self.bytes += if state == State::Registered { part.length } else { 0 };
            *place = Some(Entry { part, state });
        }
    }

    /// This region is gone: what is registered of it is not found any more, and leaves.
    pub(crate) fn leave(&mut self, key: LocalKey) {
        for place in &mut self.places {
            match place.as_mut().filter(|entry| entry.part.key == key) {
                Some(entry) if entry.state == State::Refused => *place = None,
                Some(entry) => entry.state = State::Leaving,
                None => {}
            }
        }
    }

    /// A place that is to be taken out of the table.
    pub(crate) fn leaving(&self) -> Option<u16> {
        let leaves =
            |place: &Option<Entry>| place.as_ref().is_some_and(|entry| entry.state == State::Leaving);
        self.places.iter().position(leaves).and_then(|at| u16::try_from(at).ok())
    }

    /// The system has let go of what is here.
    pub(crate) fn clear(&mut self, at: u16) {
        if let Some(entry) = self.places.get_mut(usize::from(at)).and_then(Option::take) {
            self.bytes -= entry.part.length;
            self.rest = 0;
        }
    }

    /// The system has let go of the whole table: nothing is registered any more.
    pub(crate) fn close(&mut self) {
        self.places.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests;
