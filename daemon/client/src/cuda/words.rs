//! The words by which operations are ordered with streams (`ringway_abi::stream`).

use std::{
    cell::RefCell,
    mem::ManuallyDrop,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ringway_abi::stream::{BYTES, DONE, READY, SLOTS, slot, value};
use ringway_cuda::{CudaError, Gpu, Host, Pinned, STEPS_MAX, Stream, WordStep};
use ringway_mem::Pool;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};

use super::memory::Block;
use crate::{Client, MemoryError, arena::Registered};

/// How often streams are let go on after the daemon has gone: there may be more operations that were put into them just before.
const AGAIN: Duration = Duration::from_millis(10);

/// A communicator's words.
#[derive(Debug)]
pub(crate) struct Words {
    // Dropped first: it lets streams go on, which read the words as they are pinned.
    watcher: Watcher,
    gpu: Arc<Gpu>,
    region: Arc<Registered>,
    pinned: Pinned,
    /// What the operation with a slot's token uses, until it has ended.
    kept: RefCell<Vec<[Option<Arc<Block>>; 2]>>,
}

impl Words {
    pub(crate) fn new(client: &Client, gpu: &Arc<Gpu>) -> Result<Self, MemoryError> {
        let region = client.arena(BYTES as usize)?.into_region();
        let pinned = Pinned::new(gpu, Arc::new(region.pool.clone()) as Arc<dyn Host>)?;
        let unavailable = |errno: Errno| MemoryError::Kernel { bytes: BYTES, reason: errno.to_string() };
        let watcher = Watcher::new(client, region.pool.clone()).map_err(unavailable)?;
        let kept = RefCell::new((0..SLOTS).map(|_| [None, None]).collect());
        Ok(Self { watcher, gpu: Arc::clone(gpu), region, pinned, kept })
    }

    /// The GPU whose streams they are for.
    pub(crate) const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Where they are, for the daemon.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.region.region, 0)
    }

    /// Puts the order of operations that go together, two at most, into a stream: the daemon takes them when the stream comes to
    /// them, and the stream goes on when all have ended.
    pub(crate) fn order<const N: usize>(
        &self,
        tokens: [u32; N],
        stream: &Stream,
        blocks: [[Option<&Arc<Block>>; 2]; N],
    ) -> Result<(), CudaError> {
        let word = |token: u32, at: u64| {
            let short = CudaError::TooShort { offset: at, wanted: 4, length: BYTES };
            self.pinned.bytes().part(slot(token) + at, 4).ok_or(short)
        };
        let none = WordStep::Write(self.pinned.bytes(), 0);
        let (mut steps, mut count) = ([none; STEPS_MAX], 0);
        let mut put = |step: WordStep| {
            if let Some(place) = steps.get_mut(count) {
                *place = step;
                count += 1;
            }
        };
        for token in tokens {
            self.watcher.note(token);
            put(WordStep::Write(word(token, READY)?, value(token)));
        }
        for token in tokens {
            put(WordStep::Await(word(token, DONE)?, value(token)));
        }
        stream.words(steps.get(..count).unwrap_or_default())?;
        let mut kept = self.kept.borrow_mut();
        for (token, blocks) in tokens.into_iter().zip(blocks) {
            if let Some(kept) = kept.get_mut((token % SLOTS) as usize) {
                *kept = blocks.map(Option::<&_>::cloned);
            }
        }
        Ok(())
    }

    /// An operation has ended. `held`: somebody may still write to its memory, which is never used again then.
    pub(crate) fn ended(&self, token: u32, held: bool) {
        if let Some(kept) = self.kept.borrow_mut().get_mut((token % SLOTS) as usize) {
            let blocks = std::mem::take(kept);
            if held {
                let _ = ManuallyDrop::new(blocks);
            }
        }
    }
}

/// A thread that lets streams go on when the daemon is gone: a stream that waits for ever would take the process with it.
#[derive(Debug)]
struct Watcher {
    shared: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    /// The value of the last operation in each slot.
    values: Vec<AtomicU32>,
    over: AtomicBool,
    wake: OwnedFd,
}

impl Watcher {
    fn new(client: &Client, words: Pool) -> Result<Self, Errno> {
        let daemon = client.session().control.watch()?;
        let values = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Watched { values, over: AtomicBool::new(false), wake });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("ringway-streams".to_owned());
        let thread = thread.spawn(move || watched.watch(&daemon, &words)).map_err(|_| Errno::AGAIN)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn note(&self, token: u32) {
        if let Some(last) = self.shared.values.get((token % SLOTS) as usize) {
            last.store(value(token), Ordering::Release);
        }
    }
}

impl Watched {
    fn watch(&self, daemon: &OwnedFd, words: &Pool) {
        // Events that are not asked for, as that the daemon has hung up, are told all the same.
        let mut polled = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(daemon, PollFlags::RDHUP)];
        // One that fails tells of nothing.
        while poll(&mut polled, None).is_err() {
            std::thread::sleep(AGAIN);
        }
        loop {
            // Also when it is over: of what has not ended then nobody will tell the streams.
            let over = self.over.load(Ordering::Acquire);
            for (at, last) in (0..SLOTS).zip(&self.values) {
                let value = last.load(Ordering::Acquire);
                let word = words.window(slot(at), ringway_abi::stream::SLOT_BYTES);
                if let Some(word) = word.filter(|_| value != 0) {
                    word.store_word(DONE as usize, value);
                }
            }
            if over {
                return;
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
