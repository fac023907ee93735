//! Rings in mapped memory: the only module with unsafe code.
//!
//! Everything here is reached through atomics on raw pointers into mappings that the ring keeps alive. Offsets come
//! from a [`Geometry`] that was checked against the mappings' lengths once, so that words need no check each.
#![expect(
    unsafe_code,
    reason = "shared memory is reached through raw pointers; this module is where that happens"
)]

extern crate alloc;

use alloc::sync::Arc;
use core::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    time::Duration,
};

use ringway_mem::{Mapping, Protection, calls};
use rustix::{
    io::Errno,
    thread::futex::{self, Flags},
    time::Timespec,
};
use thiserror::Error;

use crate::{
    COMPLETION_WORDS, Consumer, Geometry, PeerFault, Producer, SUBMISSION_WORDS, Storage, Word, layout, wake,
};

const _: () = assert!(cfg!(target_endian = "little"), "the futex word is the low half of its 64-bit word");

/// Why rings were not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AttachError {
    /// A mapping is shorter than the geometry needs.
    #[error("a ring file is mapped with {found} bytes and {needed} are needed: map the whole file")]
    TooShort {
        /// Bytes mapped.
        found: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// A ring of such a capacity is not possible.
    #[error("a ring of {0} entries is not possible: choose a power of two")]
    Capacity(u32),
    /// A mapping that this side writes is read-only.
    #[error("the ring file that this side writes is mapped read-only: map it for writing")]
    ReadOnly,
}

/// One word of a mapping.
#[derive(Debug, Clone, Copy)]
pub struct SharedWord<'a> {
    pointer: NonNull<u64>,
    ring: PhantomData<&'a Mapping>,
}

impl SharedWord<'_> {
    #[inline(always)]
    fn cell(&self) -> &AtomicU64 {
        // SAFETY: the pointer is eight-byte aligned and inside a live mapping, and only atomics ever touch the word.
        // The atomic is the one reference to shared bytes there is: its interior may change by design.
        unsafe { AtomicU64::from_ptr(self.pointer.as_ptr()) }
    }
}

impl Word for SharedWord<'_> {
    #[inline(always)]
    fn load_relaxed(&self) -> u64 {
        self.cell().load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn load_acquire(&self) -> u64 {
        // Only relaxed loads are promised to work on read-only pages, so the ordering is a fence.
        let value = self.cell().load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    #[inline(always)]
    fn store_relaxed(&self, value: u64) {
        self.cell().store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn store_release(&self, value: u64) {
        self.cell().store(value, Ordering::Release);
    }
}

/// A range of words of a mapping, which it keeps alive.
#[derive(Debug, Clone)]
struct Words {
    base: NonNull<u64>,
    count: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: the pointer is into the mapping that the value keeps alive, and all access is atomic.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The `count` words from a byte offset, which is a multiple of eight.
    fn new(mapping: &Arc<Mapping>, offset: usize, count: usize) -> Result<Self, AttachError> {
        let bytes = count.saturating_mul(size_of::<u64>());
        let short = AttachError::TooShort { found: mapping.length(), needed: offset.saturating_add(bytes) };
        let window = mapping.window(offset as u64, bytes as u64).ok_or(short)?;
        let base = NonNull::new(window.as_ptr().cast::<u64>()).ok_or(short)?;
        // Mappings begin at pages, so this holds whenever the offset is a multiple of eight.
        if !base.is_aligned() {
            return Err(short);
        }
        Ok(Self { base, count, mapping: Arc::clone(mapping) })
    }

    /// The word at an index.
    ///
    /// # Safety
    /// The index is below the count.
    #[inline(always)]
    unsafe fn word(&self, index: usize) -> SharedWord<'_> {
        debug_assert!(index < self.count, "word {index} of {} of {:?}", self.count, self.mapping);
        // SAFETY: the index is below the count, so the result is inside the mapping.
        let pointer = unsafe { self.base.add(index) };
        SharedWord { pointer, ring: PhantomData }
    }
}

/// One word of a mapping, which it keeps alive.
#[derive(Debug, Clone)]
pub struct Control(Words);

impl Control {
    /// The word at a byte offset, a multiple of eight.
    ///
    /// # Errors
    /// [`AttachError::TooShort`] when the mapping has no such word.
    pub fn new(mapping: &Arc<Mapping>, offset: usize) -> Result<Self, AttachError> {
        Ok(Self(Words::new(mapping, offset, 1)?))
    }

    /// The word.
    #[inline(always)]
    #[must_use]
    pub fn word(&self) -> SharedWord<'_> {
        // SAFETY: the range was made with one word.
        unsafe { self.0.word(0) }
    }

    /// The low half of the word, for futex calls.
    fn futex(&self) -> &AtomicU32 {
        let pointer = self.0.base.as_ptr().cast::<u32>();
        // SAFETY: the pointer is aligned, inside the mapping that `self` keeps alive, and on a little-endian machine
        // it is the low half of the word. This side only passes its address to the kernel.
        unsafe { AtomicU32::from_ptr(pointer) }
    }
}

/// A ring's entries in one mapping and its consumed count in the other.
#[derive(Debug)]
pub struct SharedRing<const N: usize> {
    /// `capacity * N` words.
    entries: Words,
    /// The capacity less one; the capacity is a power of two.
    mask: u64,
    consumed: Control,
}

impl<const N: usize> SharedRing<N> {
    /// A ring between two processes that each write a file of their own: its entries in the producer's file and its
    /// consumed count in the consumer's, at these byte offsets. The capacity is a power of two.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn between(
        entries: (&Arc<Mapping>, usize),
        capacity: u32,
        consumed: (&Arc<Mapping>, usize),
    ) -> Result<Self, AttachError> {
        if !capacity.is_power_of_two() {
            return Err(AttachError::Capacity(capacity));
        }
        Self::new(entries, capacity, consumed)
    }

    fn new(
        entries: (&Arc<Mapping>, usize),
        capacity: u32,
        consumed: (&Arc<Mapping>, usize),
    ) -> Result<Self, AttachError> {
        const { assert!(N > 0, "an entry has a word for the phase") };
        Ok(Self {
            entries: Words::new(entries.0, entries.1, (capacity as usize).saturating_mul(N))?,
            mask: u64::from(capacity).saturating_sub(1),
            consumed: Control::new(consumed.0, consumed.1)?,
        })
    }
}

impl<const N: usize> Storage<N> for SharedRing<N> {
    type Word<'a> = SharedWord<'a>;

    #[inline(always)]
    fn capacity(&self) -> u64 {
        self.mask + 1
    }

    #[inline(always)]
    fn entry(&self, position: u64, word: usize) -> SharedWord<'_> {
        assert!(word < N, "an entry has {N} words");
        #[expect(clippy::cast_possible_truncation, reason = "the mask has at most 16 bits")]
        let slot = (position & self.mask) as usize;
        // SAFETY: the masked position is below the capacity and the word below N, so the index is below capacity * N,
        // the count of `entries`.
        unsafe { self.entries.word(slot * N + word) }
    }

    #[inline(always)]
    fn consumed(&self) -> SharedWord<'_> {
        self.consumed.word()
    }
}

fn check(mapping: &Mapping, needed: usize, written: bool) -> Result<(), AttachError> {
    if mapping.length() < needed {
        return Err(AttachError::TooShort { found: mapping.length(), needed });
    }
    if written && mapping.protection() != Protection::ReadWrite {
        return Err(AttachError::ReadOnly);
    }
    Ok(())
}

/// How a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slept {
    /// There may be something to do: look. Also after a signal or a spurious wake-up.
    Woken,
    /// The time is over.
    TimedOut,
}

/// The client's side of a communicator's rings.
#[derive(Debug)]
pub struct ClientRings {
    /// Requests to the daemon.
    pub submissions: Producer<SharedRing<SUBMISSION_WORDS>, SUBMISSION_WORDS>,
    /// Results from the daemon.
    pub completions: Consumer<SharedRing<COMPLETION_WORDS>, COMPLETION_WORDS>,
    slab: Words,
    flag: Control,
    cpu: Control,
    daemon_flag: Control,
    daemon_cpu: Control,
    sequence: Control,
}

impl ClientRings {
    /// Attaches to the file the client writes (`c`, mapped for writing) and the one the daemon writes (`d`), both
    /// zeroed.
    ///
    /// # Errors
    /// [`AttachError`] when a mapping is too short or `c` is read-only.
    pub fn attach(c: &Arc<Mapping>, d: &Arc<Mapping>, geometry: Geometry) -> Result<Self, AttachError> {
        check(c, geometry.client_bytes(), true)?;
        check(d, geometry.daemon_bytes(), false)?;
        Ok(Self {
            submissions: Producer::new(SharedRing::new(
                (c, layout::SUBMISSIONS),
                geometry.submissions(),
                (d, layout::SUBMISSIONS_CONSUMED),
            )?),
            completions: Consumer::new(SharedRing::new(
                (d, layout::COMPLETIONS),
                geometry.completions(),
                (c, layout::COMPLETIONS_CONSUMED),
            )?),
            slab: Words::new(c, geometry.slab_offset(), geometry.slab_words() as usize)?,
            flag: Control::new(c, layout::CLIENT_FLAG)?,
            cpu: Control::new(c, layout::CLIENT_CPU)?,
            daemon_flag: Control::new(d, layout::DAEMON_FLAG)?,
            daemon_cpu: Control::new(d, layout::DAEMON_CPU)?,
            sequence: Control::new(d, layout::SEQUENCE)?,
        })
    }

    /// Writes arguments into the slab, from a word offset. They are visible to the daemon with the next publish.
    /// `None`, with nothing written, when they do not all fit.
    #[must_use = "nothing was written when the range is outside the slab"]
    pub fn write_slab(&mut self, word_offset: u32, words: &[u64]) -> Option<()> {
        let first = in_slab(&self.slab, word_offset, words.len())?;
        for (index, &word) in (first..).zip(words) {
            // SAFETY: `in_slab` showed that first + words.len() is at most the slab's count.
            let cell = unsafe { self.slab.word(index) };
            cell.store_relaxed(word);
        }
        Some(())
    }

    /// Says on which CPU this side waits, so that the daemon can wait there as well where no CPU is left to it.
    #[inline]
    pub fn say_cpu(&self, cpu: usize) {
        say_cpu(&self.cpu, Some(cpu));
    }

    /// The CPU on which the daemon says that it runs; none while it sleeps.
    #[inline]
    #[must_use]
    pub fn daemon_cpu(&self) -> Option<usize> {
        said_cpu(&self.daemon_cpu)
    }

    /// After publishing: whether the daemon sleeps, so that the session's eventfd must be written.
    #[inline]
    #[must_use = "the daemon may sleep and must be woken then"]
    pub fn need_wakeup(&self) -> bool {
        wake::armed(&self.daemon_flag.word()) != 0
    }

    /// Whether a completion can be read now.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.completions.is_ready()
    }

    /// Sleeps until the daemon publishes completions, or the time is over. Returns at once when there are some. Keep
    /// the timeout short enough to notice a daemon that died: nothing else wakes the sleeper then.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Slept {
        let (sequence, flag) = (self.sequence.word(), self.flag.word());
        let expected = wake::arm_sequence(&sequence, &flag);
        let slept = if self.completions.is_ready() { Slept::Woken } else { self.wait(expected, timeout) };
        wake::disarm(&self.flag.word());
        slept
    }

    /// Blocks while the sequence word has the expected value. The word is on read-only shared pages, so the futex is
    /// not a private one.
    fn wait(&self, expected: u32, timeout: Option<Duration>) -> Slept {
        // A timeout too long to be said is none.
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        calls::count();
        match futex::wait(self.sequence.futex(), Flags::empty(), expected, timeout.as_ref()) {
            Err(Errno::TIMEDOUT) => Slept::TimedOut,
            Ok(()) | Err(_) => Slept::Woken,
        }
    }
}

fn say_cpu(word: &Control, cpu: Option<usize>) {
    word.word().store_relaxed(cpu.map_or(0, |cpu| (cpu as u64).saturating_add(1)));
}

/// What the other side said. It may be none that there is.
fn said_cpu(word: &Control) -> Option<usize> {
    usize::try_from(word.word().load_relaxed()).ok()?.checked_sub(1)
}

/// The first word of a range, when the range is inside the slab.
fn in_slab(slab: &Words, word_offset: u32, count: usize) -> Option<usize> {
    let first = word_offset as usize;
    (first.checked_add(count)? <= slab.count).then_some(first)
}

/// The daemon's side of a communicator's rings.
#[derive(Debug)]
pub struct DaemonRings {
    /// Requests from the client.
    pub submissions: Consumer<SharedRing<SUBMISSION_WORDS>, SUBMISSION_WORDS>,
    /// Results to the client.
    pub completions: Producer<SharedRing<COMPLETION_WORDS>, COMPLETION_WORDS>,
    slab: Words,
    flag: Control,
    cpu: Control,
    client_flag: Control,
    client_cpu: Control,
    sequence: Control,
    /// The sequence word's value; the word itself is only written.
    current: u32,
}

impl DaemonRings {
    /// Attaches to the file the client writes (`c`) and the one the daemon writes (`d`, mapped for writing), both
    /// zeroed.
    ///
    /// # Errors
    /// [`AttachError`] when a mapping is too short or `d` is read-only.
    pub fn attach(c: &Arc<Mapping>, d: &Arc<Mapping>, geometry: Geometry) -> Result<Self, AttachError> {
        check(c, geometry.client_bytes(), false)?;
        check(d, geometry.daemon_bytes(), true)?;
        Ok(Self {
            submissions: Consumer::new(SharedRing::new(
                (c, layout::SUBMISSIONS),
                geometry.submissions(),
                (d, layout::SUBMISSIONS_CONSUMED),
            )?),
            completions: Producer::new(SharedRing::new(
                (d, layout::COMPLETIONS),
                geometry.completions(),
                (c, layout::COMPLETIONS_CONSUMED),
            )?),
            slab: Words::new(c, geometry.slab_offset(), geometry.slab_words() as usize)?,
            flag: Control::new(d, layout::DAEMON_FLAG)?,
            cpu: Control::new(d, layout::DAEMON_CPU)?,
            client_flag: Control::new(c, layout::CLIENT_FLAG)?,
            client_cpu: Control::new(c, layout::CLIENT_CPU)?,
            sequence: Control::new(d, layout::SEQUENCE)?,
            current: 0,
        })
    }

    /// Copies arguments out of the slab, once. `None` when the range is not all inside the slab; `into` is then
    /// untouched.
    #[must_use = "nothing was read when the range is outside the slab"]
    pub fn read_slab(&self, word_offset: u32, into: &mut [u64]) -> Option<()> {
        let first = in_slab(&self.slab, word_offset, into.len())?;
        for (index, word) in (first..).zip(into) {
            // SAFETY: `in_slab` showed that first + into.len() is at most the slab's count.
            let cell = unsafe { self.slab.word(index) };
            *word = cell.load_relaxed();
        }
        Some(())
    }

    /// Before sleeping: `true`, and look at the rings once more before blocking. After waking up: `false`.
    #[inline]
    pub fn set_need_wakeup(&mut self, sleeping: bool) {
        if sleeping {
            wake::arm(&self.flag.word(), 1);
        } else {
            wake::disarm(&self.flag.word());
        }
    }

    /// Says on which CPU this side runs, so that a client there leaves it to the daemon; none before it sleeps.
    #[inline]
    pub fn say_cpu(&self, cpu: Option<usize>) {
        say_cpu(&self.cpu, cpu);
    }

    /// The CPU on which the client says that it waits. It may be none that there is.
    #[must_use]
    pub fn client_cpu(&self) -> Option<usize> {
        said_cpu(&self.client_cpu)
    }

    /// Whether a submission can be read now.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.submissions.is_ready()
    }

    /// After publishing completions: wakes the client when it sleeps; costs no system call when it does not. Returns
    /// whether it was woken.
    #[inline]
    pub fn wake(&mut self) -> bool {
        let must = wake::advance_sequence(&self.sequence.word(), &mut self.current, &self.client_flag.word());
        if must {
            // The address is valid for as long as `self` lives, so the call cannot fail in a way that matters.
            calls::count();
            let _ = futex::wake(self.sequence.futex(), Flags::empty(), u32::MAX >> 1);
        }
        must
    }

    /// Completion slots that are free beyond `reserved` ones that accepted operations will use.
    ///
    /// # Errors
    /// [`PeerFault::Consumed`] when the client's count is impossible.
    #[inline]
    pub fn completions_free_beyond(&mut self, reserved: u64) -> Result<u64, PeerFault> {
        Ok(self.completions.free_for(reserved.saturating_add(1))?.saturating_sub(reserved))
    }
}
