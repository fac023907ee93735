//! Events: places in streams.

use std::{
    ffi::c_uint,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{
    call::{Out, Status, in_context, initialised, put, working},
    error::{Failure, Result},
    queue::{Then, Touches},
    state::lock,
};

const NO_TIME: c_uint = 2;
/// Blocking waits, no time, and use between processes, which takes a function that is not here.
const KNOWN: c_uint = 1 | NO_TIME;

#[derive(Debug, Default)]
struct Times {
    /// How often it was recorded.
    recorded: u64,
    /// The last of these that was reached, and when.
    reached: u64,
    at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Event {
    timed: bool,
    times: Mutex<Times>,
    changed: Condvar,
}

/// Marks that an event was reached, also where the work before it was given up: nobody is to wait for it for ever.
struct Recording {
    event: Arc<Event>,
    number: u64,
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut times = self.event.lock();
        times.reached = times.reached.max(self.number);
        times.at = Some(Instant::now());
        self.event.changed.notify_all();
    }
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the last recording was reached.
    fn time(&self) -> Result<Instant> {
        let times = self.lock();
        if !self.timed || times.recorded == 0 {
            return Err(Failure::INVALID_HANDLE);
        }
        times.at.filter(|_| times.reached >= times.recorded).ok_or(Failure::NOT_READY)
    }
}

fn find(event: usize) -> Result<Arc<Event>> {
    lock().events.get(&event).cloned().ok_or(Failure::INVALID_HANDLE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: Out<'_, usize>, flags: c_uint) -> Status {
    in_context("cuEventCreate", |_| {
        let event = event.filter(|_| flags & !KNOWN == 0).ok_or(Failure::INVALID_VALUE)?;
        let mut state = lock();
        let made = state.number();
        let timed = flags & NO_TIME == 0;
        let new = Event { timed, times: Mutex::default(), changed: Condvar::new() };
        state.events.insert(made, Arc::new(new));
        event.write(made);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    initialised("cuEventDestroy_v2", || {
        lock().events.remove(&event).map(|_| ()).ok_or(Failure::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: usize, stream: usize) -> Status {
    in_context("cuEventRecord", |current| {
        let event = find(event)?;
        let mut state = lock();
        let (queue, _) = state.queue(stream, current)?;
        let number = {
            let mut times = event.lock();
            times.recorded += 1;
            times.recorded
        };
        let recording = Recording { event, number };
        queue.push(Touches::These(Vec::new()), move |_| {
            drop(recording);
            Then::GoOn
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> Status {
    in_context("cuStreamWaitEvent", |current| {
        // Of the flags there is only one, for captures, which are not here.
        if flags != 0 {
            return Err(Failure::INVALID_VALUE);
        }
        let event = find(event)?;
        let mut state = lock();
        let (queue, _) = state.queue(stream, current)?;
        let awaited = event.lock().recorded;
        queue.push(Touches::These(Vec::new()), move |queue| {
            queue.look_until(|| event.lock().reached >= awaited)
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: usize) -> Status {
    initialised("cuEventQuery", || {
        let event = find(event)?;
        let times = event.lock();
        if times.reached >= times.recorded { working() } else { Err(Failure::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: usize) -> Status {
    initialised("cuEventSynchronize", || {
        let event = find(event)?;
        let mut times = event.lock();
        let awaited = times.recorded;
        while times.reached < awaited {
            times = event.changed.wait(times).unwrap_or_else(PoisonError::into_inner);
        }
        working()
    })
}

fn elapsed(milliseconds: Out<'_, f32>, start: usize, end: usize) -> Result<()> {
    let (start, end) = (find(start)?.time()?, find(end)?.time()?);
    let forth = end.saturating_duration_since(start).as_secs_f32();
    let back = start.saturating_duration_since(end).as_secs_f32();
    put(milliseconds, (forth - back) * 1000.0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: Out<'_, f32>, start: usize, end: usize) -> Status {
    initialised("cuEventElapsedTime", || elapsed(milliseconds, start, end))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: Out<'_, f32>,
    start: usize,
    end: usize,
) -> Status {
    initialised("cuEventElapsedTime_v2", || elapsed(milliseconds, start, end))
}
