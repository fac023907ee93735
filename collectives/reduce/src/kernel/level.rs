//! Which compiled form of the kernels this processor runs, found out once.

use core::sync::atomic::{AtomicU8, Ordering};

/// A compiled form of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Level {
    /// What every processor of the architecture has.
    Baseline = 1,
    /// x86-64 with AVX2, F16C and FMA.
    Avx2 = 2,
    /// And with AVX-512, at full speed. Only copies differ from those with AVX2: reductions, and stores past the caches, took
    /// as long with wider registers (0.97 to 1.09 of the time).
    Avx512 = 3,
}

const UNKNOWN: u8 = 0;

static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The best form this processor runs: one relaxed load after the first call.
#[inline]
pub(crate) fn best() -> Level {
    match FOUND.load(Ordering::Relaxed) {
        code if code == Level::Avx512 as u8 => Level::Avx512,
        code if code == Level::Avx2 as u8 => Level::Avx2,
        code if code == Level::Baseline as u8 => Level::Baseline,
        _ => find(),
    }
}

/// Asks the processor. Threads that race here find and store the same value.
#[cold]
fn find() -> Level {
    let level = match (has_avx2(), has_avx512()) {
        (true, true) => Level::Avx512,
        (true, false) => Level::Avx2,
        _ => Level::Baseline,
    };
    FOUND.store(level as u8, Ordering::Relaxed);
    level
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("f16c")
        && std::is_x86_feature_detected!("fma")
}

/// Processors that also have the second set of byte manipulations do not slow down for wide registers.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512vbmi2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}
