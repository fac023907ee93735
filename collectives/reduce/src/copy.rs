//! Copies between windows.

use ringway_mem::Window;

use crate::{
    CopyError, Stores,
    kernel::{
        self,
        level::{self, Level},
    },
};

/// Copies the source to every destination, reading it once. A destination may be the very bytes of the source;
/// windows that overlap otherwise give unspecified bytes. Any alignment and length; windows are of one length.
///
/// # Errors
/// [`CopyError`]; nothing has been written then.
pub fn copy(source: Window<'_>, destinations: &[Window<'_>]) -> Result<(), CopyError> {
    copy_at(level::best(), Stores::Cached, source, destinations)
}

/// [`copy`] with a choice of stores.
///
/// # Errors
/// As [`copy`].
#[inline]
pub fn copy_with(stores: Stores, source: Window<'_>, destinations: &[Window<'_>]) -> Result<(), CopyError> {
    copy_at(level::best(), stores, source, destinations)
}

/// Exchanges the bytes of two windows of one length. Windows that overlap give unspecified bytes, unless they are
/// the same.
///
/// # Errors
/// [`CopyError`]; nothing has been written then.
pub fn swap(a: Window<'_>, b: Window<'_>) -> Result<(), CopyError> {
    swap_at(level::best(), a, b)
}

/// [`copy`] at a level, which this processor must have.
pub(crate) fn copy_at(
    level: Level,
    stores: Stores,
    source: Window<'_>,
    destinations: &[Window<'_>],
) -> Result<(), CopyError> {
    for destination in destinations {
        check(destination, source.length())?;
    }
    if stores != Stores::Cached && kernel::stream::helps(source.length()) {
        // SAFETY: every destination was just found writable and as long as the source, which is long enough; the caller
        // vouches for the level.
        unsafe { kernel::stream::copy((level, stores), source, destinations) };
    } else {
        // SAFETY: as above.
        unsafe { kernel::copy::copy(level, source, destinations) };
    }
    Ok(())
}

/// [`swap`] at a level, which this processor must have.
pub(crate) fn swap_at(level: Level, a: Window<'_>, b: Window<'_>) -> Result<(), CopyError> {
    check(&a, b.length())?;
    check(&b, a.length())?;
    // SAFETY: both were just found writable and of one length; the caller vouches for the level.
    unsafe { kernel::copy::swap(level, a, b) };
    Ok(())
}

fn check(window: &Window<'_>, expected: usize) -> Result<(), CopyError> {
    let found = window.length();
    if found != expected {
        return Err(CopyError::LengthMismatch { expected, found });
    }
    if window.is_writable() { Ok(()) } else { Err(CopyError::ReadOnly) }
}
