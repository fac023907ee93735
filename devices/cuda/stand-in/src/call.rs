//! What every exported function does first and last.

use std::{
    cell::Cell,
    ffi::c_uint,
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    context::{self, Current},
    error::{Failure, Result},
};

/// `CUresult`.
pub type Status = c_uint;

/// A pointer that a function writes its answer to.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Whether `cuInit` was called.
static INITIALISED: AtomicBool = AtomicBool::new(false);
/// Whether a kernel failed, after which a GPU's context is of no more use.
static BROKEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn put<T>(to: Out<'_, T>, value: T) -> Result<()> {
    to.ok_or(Failure::INVALID_VALUE)?.write(value);
    Ok(())
}

pub(crate) fn initialise() {
    INITIALISED.store(true, Ordering::Release);
}

pub(crate) fn break_down() {
    BROKEN.store(true, Ordering::Release);
}

/// An error once a kernel failed.
pub(crate) fn working() -> Result<()> {
    if BROKEN.load(Ordering::Acquire) { Err(Failure::LAUNCH_FAILED) } else { Ok(()) }
}

/// Calls a host function, in which the API is out of bounds.
pub(crate) fn in_host_function(call: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    call();
    IN_HOST_FUNCTION.set(false);
}

/// A function that works before `cuInit`.
pub(crate) fn bare(function: &str, act: impl FnOnce() -> Result<()>) -> Status {
    let attempt = || {
        if IN_HOST_FUNCTION.get() {
            return Err(Failure::NOT_PERMITTED);
        }
        if is_to_fail(function) {
            return Err(Failure::UNKNOWN);
        }
        act()
    };
    // An unwinding through C would end the process without a word of which function it was.
    match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(Ok(())) => 0,
        Ok(Err(Failure(code))) => code,
        Err(_) => Failure::UNKNOWN.0,
    }
}

/// A function that needs no context.
pub(crate) fn initialised(function: &str, act: impl FnOnce() -> Result<()>) -> Status {
    bare(function, || {
        if !INITIALISED.load(Ordering::Acquire) {
            return Err(Failure::NOT_INITIALIZED);
        }
        act()
    })
}

/// A function that works in the thread's context.
pub(crate) fn in_context(function: &str, act: impl FnOnce(Current) -> Result<()>) -> Status {
    initialised(function, || {
        working()?;
        act(context::current()?)
    })
}

/// What `RINGWAY_STAND_IN_FAIL` says: the function, and the first of its calls that fails.
fn parse_failing(text: &str) -> Option<(String, u64)> {
    match text.split_once(':') {
        Some((function, nth)) => Some((function.to_owned(), nth.parse().ok()?)),
        None => Some((text.to_owned(), 1)),
    }
}

fn is_to_fail(function: &str) -> bool {
    static FAILING: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);

    let failing = FAILING
        .get_or_init(|| std::env::var("RINGWAY_STAND_IN_FAIL").ok().as_deref().and_then(parse_failing));
    match failing {
        Some((failing, from)) if failing == function => CALLS.fetch_add(1, Ordering::Relaxed) + 1 >= *from,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_failing;

    #[test]
    fn failing_is_understood() {
        assert_eq!(parse_failing("cuInit"), Some(("cuInit".to_owned(), 1)));
        assert_eq!(parse_failing("cuMemMap:3"), Some(("cuMemMap".to_owned(), 3)));
        assert_eq!(parse_failing("cuMemMap:x"), None);
    }
}
