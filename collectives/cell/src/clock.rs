//! Time, for those who learn from what their work takes.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some moment: a clock that never goes back.
pub type Clock = fn() -> u64;

/// The system's monotonic clock, which all processes of a node share.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}
