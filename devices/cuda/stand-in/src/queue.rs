//! A stream's work: a queue, and the thread that does it in order.

use std::{
    collections::VecDeque,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{call::break_down, regions::Span};

/// How long a thread that waits for a value sleeps before it looks again.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// Which bytes some work reads or writes.
#[derive(Debug)]
pub(crate) enum Touches {
    /// A kernel's work, which is not known beforehand.
    Anything,
    These(Vec<Span>),
}

impl Touches {
    fn overlap(&self, span: Span) -> bool {
        match self {
            Self::Anything => true,
            Self::These(spans) => spans.iter().any(|touched| touched.overlaps(span)),
        }
    }
}

/// Whether what is behind some work is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    GoOn,
    /// The stream was destroyed while this waited: what it waited for did not come, so nothing behind may run.
    GiveUp,
}

type Action = Box<dyn FnOnce(&Queue) -> Then + Send>;

struct Work {
    touches: Touches,
    action: Action,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Work>,
    running: Option<Touches>,
    /// How much work is done, given up included.
    done: u64,
}

impl Inner {
    /// The number of the last work pushed.
    fn pushed(&self) -> u64 {
        self.done + u64::from(self.running.is_some()) + self.waiting.len() as u64
    }
}

pub(crate) struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
    closed: AtomicBool,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Queue {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self {
            inner: Mutex::new(Inner::default()),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
        });
        let worked = Arc::clone(&queue);
        // The thread ends with the queue closed and empty, or with the process.
        thread::Builder::new().name("stand-in stream".to_owned()).spawn(move || worked.work())?;
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work; what it is known by.
    pub(crate) fn push(&self, touches: Touches, action: impl FnOnce(&Self) -> Then + Send + 'static) -> u64 {
        let mut inner = self.lock();
        inner.waiting.push_back(Work { touches, action: Box::new(action) });
        self.changed.notify_all();
        inner.pushed()
    }

    /// Returns once that work, and all before it, is done.
    pub(crate) fn wait(&self, work: u64) {
        let mut inner = self.lock();
        while inner.done < work {
            inner = self.sleep(inner);
        }
    }

    /// Returns once all work pushed so far is done.
    pub(crate) fn drain(&self) {
        let pushed = self.lock().pushed();
        self.wait(pushed);
    }

    pub(crate) fn is_idle(&self) -> bool {
        let inner = self.lock();
        inner.pushed() == inner.done
    }

    pub(crate) fn last_touching(&self, span: Span) -> Option<u64> {
        let inner = self.lock();
        let touching = inner.running.iter().chain(inner.waiting.iter().map(|work| &work.touches));
        let places = (inner.done + 1..).zip(touching);
        places.filter(|(_, touches)| touches.overlap(span)).map(|(place, _)| place).last()
    }

    /// Nothing more will be pushed. Work goes on, but waits end.
    pub(crate) fn close(&self) {
        let _inner = self.lock();
        self.closed.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Called by work: looks until something holds, or the queue is closed.
    pub(crate) fn look_until(&self, mut holds: impl FnMut() -> bool) -> Then {
        while !holds() {
            if self.closed.load(Ordering::Acquire) {
                return Then::GiveUp;
            }
            thread::sleep(LOOK_AGAIN);
        }
        Then::GoOn
    }

    /// The next work's action, or none once the queue is closed and empty.
    fn next(&self) -> Option<Action> {
        let mut inner = self.lock();
        loop {
            if let Some(Work { touches, action }) = inner.waiting.pop_front() {
                inner.running = Some(touches);
                return Some(action);
            }
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            inner = self.sleep(inner);
        }
    }

    fn work(&self) {
        let mut then = Then::GoOn;
        while let Some(action) = self.next() {
            if then == Then::GiveUp {
                drop(action);
            } else {
                then = catch_unwind(AssertUnwindSafe(|| action(self))).unwrap_or_else(|_| {
                    break_down();
                    Then::GoOn
                });
            }
            let mut inner = self.lock();
            inner.running = None;
            inner.done += 1;
            self.changed.notify_all();
        }
    }
}
