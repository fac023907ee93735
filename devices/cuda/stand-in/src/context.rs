//! Contexts, and which one a thread works in.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{c_int, c_uint},
    sync::Arc,
};

use crate::{
    call::{Out, Status, in_context, initialised, put, working},
    device::{self, DEVICES_MAX},
    error::{Failure, Result},
    queue::Queue,
    state::{self, lock},
};

/// A context's handle.
pub type Context = usize;

/// The handle of device 0's primary context; the others' follow.
const PRIMARY: Context = 0xc0de_0000;

thread_local! {
    static STACK: RefCell<Vec<Context>> = const { RefCell::new(Vec::new()) };
}

/// The context that a call works in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Current {
    pub(crate) context: Context,
    pub(crate) device: usize,
}

#[derive(Debug)]
pub(crate) struct Contexts {
    /// How often each device's primary context is retained.
    primary: [u32; DEVICES_MAX],
    /// Further ones, with their device.
    made: BTreeMap<Context, usize>,
}

impl Contexts {
    pub(crate) const fn new() -> Self {
        Self { primary: [0; DEVICES_MAX], made: BTreeMap::new() }
    }

    /// The device of a context that lives.
    fn device(&self, context: Context) -> Option<usize> {
        let primary = context.checked_sub(PRIMARY).filter(|ordinal| *ordinal < DEVICES_MAX);
        match primary {
            Some(ordinal) => self.primary.get(ordinal).filter(|retained| **retained > 0).map(|_| ordinal),
            None => self.made.get(&context).copied(),
        }
    }
}

/// Acts on the thread's stack of contexts, unless the thread is ending.
fn with_stack<T>(act: impl FnOnce(&mut Vec<Context>) -> T) -> Result<T> {
    STACK.try_with(|stack| act(&mut stack.borrow_mut())).map_err(|_| Failure::INVALID_CONTEXT)
}

pub(crate) fn current() -> Result<Current> {
    let context = with_stack(|stack| stack.last().copied())?.ok_or(Failure::INVALID_CONTEXT)?;
    let device = lock().contexts.device(context).ok_or(Failure::CONTEXT_IS_DESTROYED)?;
    Ok(Current { context, device })
}

fn living(context: Context) -> Result<Context> {
    lock().contexts.device(context).map(|_| context).ok_or(Failure::INVALID_CONTEXT)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: Out<'_, Context>, device: c_int) -> Status {
    initialised("cuDevicePrimaryCtxRetain", || {
        let ordinal = device::ordinal(device)?;
        put(context, PRIMARY + ordinal)?;
        if let Some(retained) = lock().contexts.primary.get_mut(ordinal) {
            *retained = retained.saturating_add(1);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Status {
    initialised("cuDevicePrimaryCtxRelease_v2", || {
        let ordinal = device::ordinal(device)?;
        let mut state = lock();
        let retained = state.contexts.primary.get_mut(ordinal).filter(|retained| **retained > 0);
        *retained.ok_or(Failure::INVALID_CONTEXT)? -= 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: Out<'_, c_uint>,
    active: Out<'_, c_int>,
) -> Status {
    initialised("cuDevicePrimaryCtxGetState", || {
        let ordinal = device::ordinal(device)?;
        put(flags, 0)?;
        put(active, c_int::from(lock().contexts.device(PRIMARY + ordinal).is_some()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: Out<'_, Context>, _flags: c_uint, device: c_int) -> Status {
    initialised("cuCtxCreate_v2", || {
        let ordinal = device::ordinal(device)?;
        let mut state = lock();
        let made = state.number();
        put(context, made)?;
        state.contexts.made.insert(made, ordinal);
        with_stack(|stack| stack.push(made))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDestroy_v2(context: Context) -> Status {
    initialised("cuCtxDestroy_v2", || {
        let mut state = lock();
        state.contexts.made.remove(&context).ok_or(Failure::INVALID_CONTEXT)?;
        state.streams.retain(|_, stream| {
            let stays = stream.current.context != context;
            if !stays {
                stream.queue.close();
            }
            stays
        });
        drop(state);
        with_stack(|stack| {
            stack.pop_if(|top| *top == context);
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: Context) -> Status {
    initialised("cuCtxSetCurrent", || {
        let pushed = if context == 0 { None } else { Some(living(context)?) };
        with_stack(|stack| {
            stack.pop();
            stack.extend(pushed);
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: Out<'_, Context>) -> Status {
    initialised("cuCtxGetCurrent", || put(context, with_stack(|stack| stack.last().copied())?.unwrap_or(0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: Out<'_, c_int>) -> Status {
    in_context("cuCtxGetDevice", |current| put(device, device::number(current.device)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: Context) -> Status {
    initialised("cuCtxPushCurrent_v2", || {
        let context = living(context)?;
        with_stack(|stack| stack.push(context))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: Out<'_, Context>) -> Status {
    initialised("cuCtxPopCurrent_v2", || {
        let popped = with_stack(Vec::pop)?.ok_or(Failure::INVALID_CONTEXT)?;
        // The pointer may be null.
        if context.is_some() { put(context, popped) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> Status {
    in_context("cuCtxSynchronize", |current| {
        let state = lock();
        let of_context = state.streams.values().filter(|stream| stream.current.context == current.context);
        let queues: Vec<Arc<Queue>> =
            of_context.map(|stream| &stream.queue).chain(&state.default_queue).cloned().collect();
        drop(state);
        queues.iter().for_each(|queue| queue.drain());
        working()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: Out<'_, c_int>,
    greatest: Out<'_, c_int>,
) -> Status {
    in_context("cuCtxGetStreamPriorityRange", |_| {
        // Either pointer may be null.
        least.map(|least| least.write(0));
        greatest.map(|greatest| greatest.write(state::GREATEST_PRIORITY));
        Ok(())
    })
}
