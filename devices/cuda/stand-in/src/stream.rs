//! Streams.

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::Arc,
};

use crate::{
    call::{Out, Status, in_context, in_host_function, put, working},
    context::{Context, Current},
    error::{Failure, Result},
    queue::{Queue, Then, Touches},
    state::{GREATEST_PRIORITY, lock},
};

const NON_BLOCKING: c_uint = 1;

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) queue: Arc<Queue>,
    pub(crate) current: Current,
}

fn create(stream: Out<'_, usize>, flags: c_uint, current: Current) -> Result<()> {
    let stream = stream.filter(|_| flags & !NON_BLOCKING == 0).ok_or(Failure::INVALID_VALUE)?;
    let mut state = lock();
    let queue = state.start_queue()?;
    let made = state.number();
    state.streams.insert(made, Stream { queue, current });
    stream.write(made);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: Out<'_, usize>, flags: c_uint) -> Status {
    in_context("cuStreamCreate", |current| create(stream, flags, current))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: Out<'_, usize>,
    flags: c_uint,
    priority: c_int,
) -> Status {
    in_context("cuStreamCreateWithPriority", |current| {
        // What is out of range is brought into it, says cuda.h; and one thread is scheduled like another.
        let _ = priority.clamp(GREATEST_PRIORITY, 0);
        create(stream, flags, current)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: usize) -> Status {
    in_context("cuStreamDestroy_v2", |_| {
        let stream = lock().streams.remove(&stream).ok_or(Failure::INVALID_HANDLE)?;
        stream.queue.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: usize) -> Status {
    in_context("cuStreamSynchronize", |current| {
        let (queue, _) = lock().queue(stream, current)?;
        queue.drain();
        working()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: usize) -> Status {
    in_context("cuStreamQuery", |current| {
        let (queue, _) = lock().queue(stream, current)?;
        if queue.is_idle() { working() } else { Err(Failure::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: usize, context: Out<'_, Context>) -> Status {
    in_context("cuStreamGetCtx", |current| {
        let (_, of_stream) = lock().queue(stream, current)?;
        put(context, of_stream.context)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx_v2(
    stream: usize,
    context: Out<'_, Context>,
    green: Out<'_, usize>,
) -> Status {
    in_context("cuStreamGetCtx_v2", |current| {
        let (_, of_stream) = lock().queue(stream, current)?;
        put(green, 0)?;
        put(context, of_stream.context)
    })
}

/// `CUhostFn`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A stream that is destroyed while it waits does not call what is behind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> Status {
    in_context("cuLaunchHostFunc", |current| {
        let function = function.ok_or(Failure::INVALID_VALUE)?;
        let data = data.expose_provenance();
        let mut state = lock();
        let (queue, _) = state.queue(stream, current)?;
        queue.push(Touches::These(Vec::new()), move |_| {
            in_host_function(|| {
                // SAFETY: the caller keeps to cuda.h: this function may be called with this once all before it is done.
                unsafe { function(std::ptr::with_exposed_provenance_mut(data)) };
            });
            Then::GoOn
        });
        Ok(())
    })
}
