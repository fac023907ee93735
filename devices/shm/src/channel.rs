//! What two connected queue pairs share: a file of each side's, which only that side can write.
//!
//! ```text
//! control   executed, pulled, closed | requests consumed | responses consumed | armed
//! rings     entries of this side's requests, then of its responses
//! staging   bytes of this side's requests, then of its responses
//! ```
//! Each of the control words has cache lines of its own, but for those that one look is for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_mem::{Mapping, MemFd, Window, admit};
use ringway_ring::{Consumer, Control, PeerFault, Producer, PushError, SharedRing, Word, wake};

use crate::ShmFailure;
use crate::entry::{Entry, Raw, WORDS};

/// Entries of the ring of requests, and of that of responses.
const REQUESTS: u32 = 256;
const RESPONSES: u32 = 64;
/// Bytes of staging memory for each ring.
const STAGING: u64 = 128 << 10;
/// The most of them that one entry uses.
pub(crate) const PIECE: u64 = 16 << 10;
/// Requests that may be executed without the peer being told, while more of them come.
const UNTOLD_MAX: u64 = 16;
/// Turns without news after which the counts say what entries have said: the peer may be waiting for it before it reads on,
/// when a message before them waits for a receive. Longer than an answer takes.
const IDLE_MAX: u32 = 256;

const EXECUTED: usize = 0;
const PULLED: usize = 8;
const CLOSED: usize = 16;
const CONSUMED: [usize; 2] = [128, 256];
const ARMED: usize = 384;
const ENTRY_BYTES: usize = WORDS * 8;
const ENTRIES: [usize; 2] = [4096, 4096 + REQUESTS as usize * ENTRY_BYTES];
const STAGED: [u64; 2] = {
    let first = (ENTRIES[1] + RESPONSES as usize * ENTRY_BYTES).next_multiple_of(4096) as u64;
    [first, first + STAGING]
};
/// Bytes of a side's file.
pub(crate) const FILE_BYTES: usize = (STAGED[1] + STAGING) as usize;

type Ring = SharedRing<WORDS>;

/// When the peer is to hear of what was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telling {
    /// More has come, and some of it is likely to be answered: then the answer says it.
    Later,
    /// Nothing more has come, or the peer has asked.
    Soon,
    /// This side is about to sleep or to end: everything, now.
    Now,
}

/// Which of a side's two rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Requests,
    Responses,
}

const fn capacity(lane: Lane) -> u32 {
    match lane {
        Lane::Requests => REQUESTS,
        Lane::Responses => RESPONSES,
    }
}

/// A ring that this side writes, and the staging memory of its entries.
#[derive(Debug)]
pub(crate) struct Outgoing {
    ring: Producer<Ring, WORDS>,
    /// Staging bytes ever used and ever given back; what is between the two is in use.
    used: u64,
    returned: u64,
    /// For each entry that uses some: its position, and what `returned` is when it was read.
    holders: VecDeque<(u64, u64)>,
}

impl Outgoing {
    /// Whether an entry fits.
    pub(crate) fn has_room(&mut self) -> Result<bool, PeerFault> {
        Ok(self.ring.free()? > 0)
    }

    /// Staging memory for up to `wanted` bytes in a row: where it begins there, and how many. None when all is in use.
    pub(crate) fn stage(&mut self, wanted: u64) -> Result<Option<(u32, u64)>, PeerFault> {
        let wanted = wanted.min(PIECE);
        for attempt in 0..2 {
            let at = self.used % STAGING;
            // Pieces do not go around the end.
            let skipped = if at + wanted > STAGING { STAGING - at } else { 0 };
            if self.used + skipped + wanted - self.returned <= STAGING {
                let start = (self.used + skipped) % STAGING;
                self.used += skipped + wanted;
                return Ok(u32::try_from(start).ok().map(|start| (start, wanted)));
            }
            if attempt == 0 {
                self.take_back()?;
            }
        }
        Ok(None)
    }

    /// Takes back the staging memory of entries that were read.
    fn take_back(&mut self) -> Result<(), PeerFault> {
        let unread = self.ring.unread()?;
        let read = self.ring.position() - self.ring.staged() - unread;
        while let Some(&(_, end)) = self.holders.front().filter(|(position, _)| *position < read) {
            self.returned = end;
            self.holders.pop_front();
        }
        Ok(())
    }

    /// Adds an entry; [`Outgoing::publish`] makes it visible.
    #[inline]
    fn push(&mut self, entry: &Entry) -> Result<(), PushError> {
        let position = self.ring.position();
        self.ring.push(&entry.emit())?;
        if matches!(entry.source, crate::entry::Source::Staged { .. }) {
            self.holders.push_back((position, self.used));
        }
        Ok(())
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let any = self.ring.staged() > 0;
        self.ring.publish();
        any
    }
}

/// Both sides' files and how far either has got.
#[derive(Debug)]
pub(crate) struct Channel {
    own: Arc<Mapping>,
    peer: Arc<Mapping>,
    pub(crate) requests_out: Outgoing,
    pub(crate) responses_out: Outgoing,
    requests_in: Consumer<Ring, WORDS>,
    responses_in: Consumer<Ring, WORDS>,
    words: Words,
    /// The peer's eventfd.
    doorbell: OwnedFd,
    /// The peer was told of something since its doorbell was last looked at.
    news: bool,
    /// How many of its requests the peer was told were executed, by an entry or by the counts, and pieces fetched.
    told: (u64, u64),
    /// What the counts say.
    counted: (u64, u64),
    /// What entries say that the peer cannot see yet.
    carried: u64,
    /// Turns without news.
    idle: u32,
}

#[derive(Debug)]
struct Words {
    executed: [Control; 2],
    pulled: [Control; 2],
    closed: [Control; 2],
    armed: [Control; 2],
}

/// This side's file, before the peer's is known.
#[derive(Debug)]
pub(crate) struct OwnFile {
    file: MemFd,
    mapping: Arc<Mapping>,
}

impl OwnFile {
    pub(crate) fn new() -> Result<Self, ShmFailure> {
        let made = MemFd::daemon_written("ringway-shm", FILE_BYTES as u64);
        let (file, mapping) = made.map_err(|_| ShmFailure::Memory)?;
        Ok(Self { file, mapping: Arc::new(mapping) })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Connects it with the peer's file.
    pub(crate) fn join(self, peer: BorrowedFd<'_>, doorbell: OwnedFd) -> Result<Channel, ShmFailure> {
        let peer = admit::map_daemon_written(peer, FILE_BYTES).map_err(|_| ShmFailure::Protocol)?;
        Channel::new(self.mapping, Arc::new(peer), doorbell).ok_or(ShmFailure::Memory)
    }
}

impl Channel {
    fn new(own: Arc<Mapping>, peer: Arc<Mapping>, doorbell: OwnedFd) -> Option<Self> {
        let both = |offset| Some([Control::new(&own, offset).ok()?, Control::new(&peer, offset).ok()?]);
        let out = |lane: Lane| {
            let place = lane as usize;
            let (entries, consumed) = (*ENTRIES.get(place)?, *CONSUMED.get(place)?);
            let ring = Ring::between((&own, entries), capacity(lane), (&peer, consumed)).ok()?;
            Some(Outgoing {
                ring: Producer::new(ring),
                used: 0,
                returned: 0,
                holders: VecDeque::with_capacity(capacity(lane) as usize),
            })
        };
        let incoming = |lane: Lane| {
            let place = lane as usize;
            let (entries, consumed) = (*ENTRIES.get(place)?, *CONSUMED.get(place)?);
            Some(Consumer::new(Ring::between((&peer, entries), capacity(lane), (&own, consumed)).ok()?))
        };
        Some(Self {
            requests_out: out(Lane::Requests)?,
            responses_out: out(Lane::Responses)?,
            requests_in: incoming(Lane::Requests)?,
            responses_in: incoming(Lane::Responses)?,
            words: Words {
                executed: both(EXECUTED)?,
                pulled: both(PULLED)?,
                closed: both(CLOSED)?,
                armed: both(ARMED)?,
            },
            own,
            peer,
            doorbell,
            news: false,
            told: (0, 0),
            counted: (0, 0),
            carried: 0,
            idle: 0,
        })
    }

    pub(crate) const fn outgoing(&mut self, lane: Lane) -> &mut Outgoing {
        match lane {
            Lane::Requests => &mut self.requests_out,
            Lane::Responses => &mut self.responses_out,
        }
    }

    /// The staging memory of this side that an entry is about to name.
    pub(crate) fn staged_own(&self, lane: Lane, offset: u32, length: u64) -> Option<Window<'_>> {
        self.own.window(STAGED.get(lane as usize)? + u64::from(offset), length)
    }

    /// The staging memory of the peer that an entry names, when it is inside.
    pub(crate) fn staged_peer(&self, lane: Lane, offset: u32, length: u64) -> Option<Window<'_>> {
        let first = *STAGED.get(lane as usize)?;
        let inside = u64::from(offset).checked_add(length).is_some_and(|end| end <= STAGING);
        self.peer.window(first + u64::from(offset), length).filter(|_| inside)
    }

    /// The next entry of the peer's, copied.
    #[inline]
    pub(crate) fn pop(&mut self, lane: Lane) -> Result<Option<Raw>, PeerFault> {
        match lane {
            Lane::Requests => self.requests_in.pop(),
            Lane::Responses => self.responses_in.pop(),
        }
    }

    /// Gives back what was read; staging memory at once.
    #[inline]
    pub(crate) fn release(&mut self, lane: Lane, staged: bool) {
        let ring = match lane {
            Lane::Requests => &mut self.requests_in,
            Lane::Responses => &mut self.responses_in,
        };
        // The peer needs none of it back while there is plenty.
        if staged || ring.unreleased() * 4 >= ring.capacity() {
            ring.release();
            self.news = true;
        }
    }

    /// Gives back all that was read.
    pub(crate) fn release_all(&mut self) {
        for ring in [&mut self.requests_in, &mut self.responses_in] {
            if ring.unreleased() > 0 {
                ring.release();
                self.news = true;
            }
        }
    }

    /// Whether anything of the peer's waits to be read.
    pub(crate) fn is_ready(&self, lane: Lane) -> bool {
        match lane {
            Lane::Requests => self.requests_in.is_ready(),
            Lane::Responses => self.responses_in.is_ready(),
        }
    }

    /// How many of this side's requests the peer says it executed, and how many of this side's READ pieces it fetched.
    #[inline]
    pub(crate) fn executed_there(&self) -> u64 {
        self.words.executed[1].word().load_acquire()
    }

    pub(crate) fn pulled_there(&self) -> u64 {
        self.words.pulled[1].word().load_acquire()
    }

    /// Says that what this side has shared may change from now on.
    pub(crate) fn close(&self) {
        self.words.closed[0].word().store_release(1);
        // The peer must see this before anything that is written to that memory from now on.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Whether the peer has said so: what was copied straight from its memory just now may not be what was meant.
    pub(crate) fn is_closed_there(&self) -> bool {
        // What was copied must have been read before this is.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.words.closed[1].word().load_acquire() != 0
    }

    /// Adds an entry, which says how many of the peer's requests were executed; [`Channel::publish`] makes it visible.
    #[inline]
    pub(crate) fn push(&mut self, lane: Lane, entry: &Entry, executed: u64) -> Result<(), PushError> {
        self.carried = executed;
        self.outgoing(lane).push(&Entry { executed: executed as u32, ..*entry })
    }

    /// Writes how many of the peer's requests were executed, and how many pieces fetched.
    #[inline]
    pub(crate) fn tell(&mut self, executed: u64, pulled: u64) {
        if self.counted != (executed, pulled) {
            self.words.executed[0].word().store_release(executed);
            self.words.pulled[0].word().store_release(pulled);
            (self.told, self.counted, self.news) = ((executed, pulled), (executed, pulled), true);
        }
    }

    /// Makes what was pushed visible, tells the peer of what was executed, and wakes it if it sleeps; whether it did.
    ///
    /// Entries tell the peer as well, without another line of memory to be moved between the processors: counts are written
    /// when none has, or when the peer may not get as far as the entry.
    #[inline]
    pub(crate) fn publish(&mut self, executed: u64, pulled: u64, telling: Telling) -> bool {
        let pushed = self.responses_out.publish() | self.requests_out.publish();
        if pushed {
            (self.told.0, self.news) = (self.carried, true);
        }
        self.idle = if pushed || telling == Telling::Later { 0 } else { self.idle.saturating_add(1) };
        let tells = match telling {
            Telling::Now => true,
            Telling::Soon => self.told != (executed, pulled) || self.idle >= IDLE_MAX,
            Telling::Later => pulled != self.told.1 || executed - self.told.0 >= UNTOLD_MAX,
        };
        if tells {
            self.tell(executed, pulled);
        }
        let sleeps = std::mem::take(&mut self.news) && wake::armed(&self.words.armed[1].word()) != 0;
        if sleeps {
            // Whoever wakes up finds everything, and is not woken again for what an entry has said.
            self.tell(executed, pulled);
            self.news = false;
            ring_bell(self.doorbell.as_fd());
        }
        sleeps
    }

    /// Whether entries were pushed that are not visible.
    #[inline]
    pub(crate) const fn has_unpublished(&self) -> bool {
        self.requests_out.ring.staged() > 0
    }

    /// Has the peer ring this side's bell from now on, or not any more.
    pub(crate) fn arm(&self, on: bool) {
        let word = self.words.armed[0].word();
        if on { wake::arm(&word, 1) } else { wake::disarm(&word) }
    }

    pub(crate) fn ring(&self) {
        ring_bell(self.doorbell.as_fd());
    }
}

#[cfg(test)]
impl Channel {
    /// Puts anything into a ring.
    pub(crate) fn push_raw(&mut self, lane: Lane, raw: &Raw) -> Result<(), PushError> {
        self.outgoing(lane).ring.send(raw)
    }

    /// Writes a word of this side's file.
    pub(crate) fn poke(&self, offset: u64, value: u64) {
        let word = self.own.window(offset, 8).expect("inside");
        word.write(&value.to_ne_bytes());
    }
}

fn ring_bell(bell: BorrowedFd<'_>) {
    // It fails only when it was rung so often that nobody can miss it.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Kind, Source};

    fn pair() -> [Channel; 2] {
        let bell = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("eventfd");
        let [one, other] = [OwnFile::new().expect("memory"), OwnFile::new().expect("memory")];
        let files = [&one, &other].map(|own| own.file().try_clone_to_owned().expect("descriptor"));
        let [first, second] = files;
        [
            one.join(second.as_fd(), bell()).expect("joined"),
            other.join(first.as_fd(), bell()).expect("joined"),
        ]
    }

    #[test]
    fn staging_memory_comes_back_when_its_entries_were_read() {
        let [mut one, mut other] = pair();
        for round in 0..40 {
            let mut pieces = 0;
            while let Some((offset, length)) = one.requests_out.stage(PIECE).expect("no fault") {
                assert_eq!(length, PIECE);
                let window = one.staged_own(Lane::Requests, offset, length).expect("inside");
                assert_eq!(window.write(&[round; PIECE as usize]), PIECE as usize);
                let source = Source::Staged { offset, length: length as u32 };
                one.requests_out.push(&Entry { source, ..Entry::new(Kind::More) }).expect("room");
                pieces += 1;
            }
            assert_eq!(pieces, STAGING / PIECE, "round {round}");
            one.publish(0, 0, Telling::Now);
            while let Some(raw) = other.pop(Lane::Requests).expect("no fault") {
                let Some(Entry { source: Source::Staged { offset, length }, .. }) = Entry::parse(&raw) else {
                    panic!("{raw:?}")
                };
                let window = other.staged_peer(Lane::Requests, offset, length.into()).expect("inside");
                let mut bytes = [0; 16];
                window.read(&mut bytes);
                assert_eq!(bytes, [round; 16]);
            }
            other.release_all();
        }
    }

    #[test]
    fn no_staging_memory_outside_is_read() {
        let [one, _other] = pair();
        assert!(one.staged_peer(Lane::Responses, STAGING as u32, 0).is_some());
        assert!(one.staged_peer(Lane::Responses, STAGING as u32, 1).is_none());
        assert!(one.staged_peer(Lane::Requests, u32::MAX, u64::MAX).is_none());
        assert!(one.staged_peer(Lane::Requests, 1, STAGING).is_none());
    }
}
