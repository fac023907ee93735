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

/// [`copy_with`] of the first half by [`Stores::Streaming`] and of the second by [`Stores::Cached`], at the same time: each of
/// both waits for something else. For lines that another processor has, and reads next. (16 KiB to one 60 ns away: 1.7 us to
/// write and 0.4 to read through the caches, 0.8 and 1.5 past them, and 0.7 and 1.1 so.)
///
/// # Errors
/// As [`copy`].
pub fn copy_half_streaming(source: Window<'_>, destination: Window<'_>) -> Result<(), CopyError> {
    copy_half_at(level::best(), source, destination)
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
        kernel::stream::fence();
    } else {
        // SAFETY: as above.
        unsafe { kernel::copy::copy(level, source, destinations) };
    }
    Ok(())
}

/// [`copy_half_streaming`] at a level, which this processor must have.
pub(crate) fn copy_half_at(
    level: Level,
    source: Window<'_>,
    destination: Window<'_>,
) -> Result<(), CopyError> {
    let half = source.length() / 2;
    check(&destination, source.length())?;
    let halves = halves(&source, half).zip(halves(&destination, half));
    let Some(((first, second), (to_first, to_second))) = halves.filter(|_| kernel::stream::helps(half))
    else {
        return copy_at(level, Stores::Cached, source, &[destination]);
    };
    // SAFETY: the destination was just found writable and as long as the source, whose half is long enough; the caller
    // vouches for the level.
    unsafe { kernel::stream::copy((level, Stores::Streaming), first, &[to_first]) };
    // SAFETY: as above.
    unsafe { kernel::copy::copy(level, second, &[to_second]) };
    kernel::stream::fence();
    Ok(())
}

fn halves<'w>(window: &Window<'w>, half: usize) -> Option<(Window<'w>, Window<'w>)> {
    Some((window.sub(0, half)?, window.sub(half, window.length() - half)?))
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
