//! Reductions and copies over [`Window`]s: bytes that other processes may change at any time. Whatever the bytes
//! are, a call reads and writes inside its windows only; changed meanwhile, they give some mix of results.
//!
//! # What is computed
//! Sources are combined from the first to the last, element by element, and every form of the kernels gives the bits
//! that [`oracle`] defines:
//! - integers wrap; an average's quotient is truncated toward zero;
//! - `f16`, `bf16` and the eight-bit floats of OFP8 are widened to `f32`, combined there over all sources, and rounded once,
//!   to nearest even; `f32` and `f64` are combined in themselves; multiplications and additions are never fused;
//! - what is finite in `f32` and beyond the largest finite value of an eight-bit type becomes that value, as does an infinity
//!   in `f8e4m3`, which has none;
//! - minimum and maximum are IEEE 754-2019 `minimum` and `maximum`: -0 is below +0 and a NaN wins;
//! - logical reductions take any value but zero (of either sign) as true, a NaN too, and write 1 or 0;
//! - every NaN that is written is the type's positive quiet NaN without payload (`0x7f` of `f8e4m3`, `0x7e` of `f8e5m2`,
//!   `0x7e00`, `0x7fc0`, `0x7fc0_0000`, `0x7ff8_0000_0000_0000`), because IEEE 754 leaves open which operand's payload survives.
//!
//! # Aliasing
//! A destination may be the very bytes of any source. Windows that overlap otherwise give unspecified bytes.
//! Alignment is never needed. Nothing is allocated; pieces of up to 64 KiB keep all windows in the processor's
//! caches, but any length works.

mod copy;
mod error;
mod kernel;
pub mod oracle;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
mod scalar;
mod stores;
#[cfg(test)]
mod tests;

use ringway_mem::Window;
use ringway_types::{DataType, Reduction};

pub use copy::{copy, copy_half_streaming, copy_with, swap};
pub use error::{CopyError, ReduceError};
pub use scalar::Scalar;
pub use stores::{Stores, streaming_pays, streaming_to_others_matters, streaming_to_others_pays};

use kernel::level::{self, Level};

/// One rank's values, or values combined already.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The values.
    pub window: Window<'a>,
    /// What they are multiplied by first, in the precision they are combined in. `None` leaves them as they are.
    pub scale: Option<Scalar>,
}

impl<'a> From<Window<'a>> for Source<'a> {
    /// The values as they are.
    fn from(window: Window<'a>) -> Self {
        Self { window, scale: None }
    }
}

/// One rank's part in a [`scan`].
#[derive(Debug, Clone, Copy)]
pub struct ScanStep<'a> {
    /// The rank's values.
    pub input: Source<'a>,
    /// Where its result goes; may be the bytes of its own input. `None` when nobody wants it.
    pub output: Option<Window<'a>>,
}

/// Combines the sources in order and writes the result to every destination, reading each source once and
/// writing each destination once. With `divisor` (sums only) the total is divided by that many ranks before it is
/// rounded. One source is enough: it is still scaled, divided and made canonical. Without destinations nothing is
/// done. Every window has the same length, a whole number of elements, zero included.
///
/// # Errors
/// [`ReduceError`]; nothing has been written then.
#[inline]
pub fn reduce(
    datatype: DataType,
    reduction: Reduction,
    sources: &[Source<'_>],
    destinations: &[Window<'_>],
    divisor: Option<u32>,
) -> Result<(), ReduceError> {
    reduce_at(level::best(), Stores::Cached, datatype, reduction, sources, destinations, divisor)
}

/// [`reduce`] with a choice of stores. The bits are the same.
///
/// # Errors
/// As [`reduce`].
#[inline]
pub fn reduce_with(
    stores: Stores,
    datatype: DataType,
    reduction: Reduction,
    sources: &[Source<'_>],
    destinations: &[Window<'_>],
    divisor: Option<u32>,
) -> Result<(), ReduceError> {
    reduce_at(level::best(), stores, datatype, reduction, sources, destinations, divisor)
}

/// Combines the ranks' inputs one after the other and writes to each step's output what there is so far: with its
/// own input when `inclusive` (scan), without it otherwise (exscan). `carry_in` is what the ranks before the first
/// step gave; without it the first exclusive output is left untouched. `carry_out` receives the running combination
/// after the last step, and is left untouched if there are no values at all; it may be the bytes of `carry_in`.
///
/// Narrower floats stay in `f32` from `carry_in` to `carry_out`; each output is rounded once. For [`Reduction::Avg`] each
/// output is divided by the number of ranks it combines, of which `ranks_before` are in `carry_in`; the carry stays
/// an undivided sum. Other reductions ignore `ranks_before`. An output must not be the bytes of another step's input.
///
/// # Errors
/// [`ReduceError`]; nothing has been written then.
pub fn scan(
    datatype: DataType,
    reduction: Reduction,
    carry_in: Option<Window<'_>>,
    steps: &[ScanStep<'_>],
    inclusive: bool,
    ranks_before: u32,
    carry_out: Option<Window<'_>>,
) -> Result<(), ReduceError> {
    let job = kernel::ScanJob { carry_in, steps, inclusive, ranks_before, carry_out, length: 0 };
    scan_at(level::best(), datatype, reduction, job)
}

/// [`reduce`] at a level, which this processor must have: only [`level::best`] and the baseline are used.
fn reduce_at(
    level: Level,
    stores: Stores,
    datatype: DataType,
    reduction: Reduction,
    sources: &[Source<'_>],
    destinations: &[Window<'_>],
    divisor: Option<u32>,
) -> Result<(), ReduceError> {
    let (first, rest) = sources.split_first().ok_or(ReduceError::NoSource)?;
    check_pair(datatype, reduction)?;
    let length = first.window.length();
    check_whole(datatype, length)?;
    for source in sources {
        check_source(reduction, source, length)?;
    }
    for destination in destinations {
        check_destination(destination, length)?;
    }
    match divisor {
        Some(_) if !is_sum(reduction) => return Err(ReduceError::DivisorRefused { reduction }),
        Some(0) => return Err(ReduceError::BadDivisor),
        _ => {}
    }
    if destinations.is_empty() {
        return Ok(());
    }
    let job = kernel::ReduceJob { first, rest, destinations, length, stage: None, head: 0 };
    if stores != Stores::Cached && kernel::stream::helps(length) {
        kernel::stream::reduce((level, stores), datatype, reduction, divisor, job);
    } else {
        kernel::reduce(level, datatype, reduction, divisor, job);
    }
    Ok(())
}

/// [`scan`] at a level, as for [`reduce_at`]; fills in the length of a job that is otherwise as the caller gave it.
fn scan_at(
    level: Level,
    datatype: DataType,
    reduction: Reduction,
    job: kernel::ScanJob<'_>,
) -> Result<(), ReduceError> {
    check_pair(datatype, reduction)?;
    let inputs = job.steps.iter().map(|step| step.input.window);
    let Some(length) = inputs.chain(job.carry_in).map(|w| w.length()).next() else { return Ok(()) };
    check_whole(datatype, length)?;
    if let Some(window) = job.carry_in {
        check_source(reduction, &Source { window, scale: None }, length)?;
    }
    for step in job.steps {
        check_source(reduction, &step.input, length)?;
    }
    for output in job.steps.iter().filter_map(|step| step.output).chain(job.carry_out) {
        check_destination(&output, length)?;
    }
    if reduction == Reduction::Avg {
        let last = u64::from(job.ranks_before) + job.steps.len() as u64;
        let divides_by_zero = job.ranks_before == 0 && job.carry_in.is_some() && !job.inclusive;
        if divides_by_zero || last > u64::from(u32::MAX) {
            return Err(ReduceError::BadDivisor);
        }
    }
    kernel::scan(level, datatype, reduction, kernel::ScanJob { length, ..job });
    Ok(())
}

/// The reductions whose inputs may be scaled and whose results may be divided.
const fn is_sum(reduction: Reduction) -> bool {
    matches!(reduction, Reduction::Sum | Reduction::Avg | Reduction::PremulSum)
}

fn check_pair(datatype: DataType, reduction: Reduction) -> Result<(), ReduceError> {
    if datatype.supports(reduction) { Ok(()) } else { Err(ReduceError::Unsupported { datatype, reduction }) }
}

fn check_whole(datatype: DataType, length: usize) -> Result<(), ReduceError> {
    if length & (datatype.size() - 1) == 0 {
        Ok(())
    } else {
        Err(ReduceError::PartialElement { datatype, length })
    }
}

fn check_source(reduction: Reduction, source: &Source<'_>, expected: usize) -> Result<(), ReduceError> {
    let found = source.window.length();
    if found != expected {
        return Err(ReduceError::LengthMismatch { expected, found });
    }
    if source.scale.is_some() && !is_sum(reduction) {
        return Err(ReduceError::ScaleRefused { reduction });
    }
    Ok(())
}

fn check_destination(destination: &Window<'_>, expected: usize) -> Result<(), ReduceError> {
    let found = destination.length();
    if found != expected {
        return Err(ReduceError::LengthMismatch { expected, found });
    }
    if destination.is_writable() { Ok(()) } else { Err(ReduceError::ReadOnly) }
}
