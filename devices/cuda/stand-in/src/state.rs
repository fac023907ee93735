//! All that the process has.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::{
    context::{Contexts, Current},
    error::{Failure, Result},
    event::Event,
    ipc::Opened,
    module::{Function, Loaded},
    queue::Queue,
    regions::{Regions, Span},
    stream::Stream,
    virtual_memory::Handles,
};

pub(crate) const GREATEST_PRIORITY: c_int = -5;

/// Work is queued under the lock on it, so that what holds the lock sees all work there is; nobody waits under it.
#[derive(Debug)]
pub(crate) struct State {
    numbers: usize,
    pub(crate) contexts: Contexts,
    pub(crate) handles: Handles,
    /// Address ranges set aside.
    pub(crate) reservations: BTreeMap<usize, Span>,
    pub(crate) regions: Regions,
    pub(crate) opened: Vec<Opened>,
    pub(crate) streams: BTreeMap<usize, Stream>,
    pub(crate) default_queue: Option<Arc<Queue>>,
    /// Also those of destroyed streams, as far as they still have work.
    queues: Vec<Weak<Queue>>,
    pub(crate) events: BTreeMap<usize, Arc<Event>>,
    pub(crate) modules: BTreeMap<usize, Loaded>,
    pub(crate) functions: BTreeMap<usize, Function>,
}

static STATE: Mutex<State> = Mutex::new(State {
    numbers: 0x1000,
    contexts: Contexts::new(),
    handles: Handles::new(),
    reservations: BTreeMap::new(),
    regions: Regions::new(),
    opened: Vec::new(),
    streams: BTreeMap::new(),
    default_queue: None,
    queues: Vec::new(),
    events: BTreeMap::new(),
    modules: BTreeMap::new(),
    functions: BTreeMap::new(),
});

pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A handle that no other thing has or had.
    pub(crate) const fn number(&mut self) -> usize {
        self.numbers += 16;
        self.numbers
    }

    pub(crate) fn start_queue(&mut self) -> Result<Arc<Queue>> {
        let queue = Queue::start().map_err(|_| Failure::OUT_OF_MEMORY)?;
        self.queues.retain(|queue| queue.strong_count() > 0);
        self.queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// The queue of a stream, by its handle, and the context it works in.
    pub(crate) fn queue(&mut self, stream: usize, current: Current) -> Result<(Arc<Queue>, Current)> {
        // Null, and the number that names the same stream.
        if stream <= 1 {
            let queue = match self.default_queue.take() {
                Some(queue) => queue,
                None => self.start_queue()?,
            };
            self.default_queue = Some(Arc::clone(&queue));
            return Ok((queue, current));
        }
        let stream = self.streams.get(&stream).ok_or(Failure::INVALID_HANDLE)?;
        Ok((Arc::clone(&stream.queue), stream.current))
    }

    /// Whether any of these bytes are addresses for devices, mapped or not.
    pub(crate) fn is_set_aside(&self, span: Span) -> bool {
        self.reservations.values().any(|reserved| reserved.overlaps(span))
    }

    /// Work that touches these bytes: the queue it is in and its place there.
    fn work_on(&self, span: Span) -> Option<(Arc<Queue>, u64)> {
        self.queues.iter().filter_map(Weak::upgrade).find_map(|queue| {
            let place = queue.last_touching(span)?;
            Some((queue, place))
        })
    }
}

/// The state at a time when no queued work touches these bytes. The check is made before waiting, too, so that what is
/// refused is refused at once.
pub(crate) fn settled(
    span: Span,
    check: impl Fn(&State) -> Result<()>,
) -> Result<MutexGuard<'static, State>> {
    loop {
        let state = lock();
        check(&state)?;
        let Some((queue, place)) = state.work_on(span) else { return Ok(state) };
        drop(state);
        queue.wait(place);
    }
}
