//! How many system calls this process makes while it works: whoever makes one counts it, but for the devices between nodes,
//! which count their own, one by one.

use core::sync::atomic::{AtomicU64, Ordering};

/// On cache lines of its own: threads that wait count often.
#[repr(align(128))]
struct Count(AtomicU64);

static MADE: Count = Count(AtomicU64::new(0));

/// Counts a system call that the caller makes: next to it, adding to a number takes no time.
#[inline]
pub fn count() {
    MADE.0.fetch_add(1, Ordering::Relaxed);
}

/// Those of all threads so far.
#[must_use]
pub fn made() -> u64 {
    MADE.0.load(Ordering::Relaxed)
}

/// Gives the processor to another thread that wants it.
#[inline]
pub fn yield_now() {
    count();
    std::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_threads_are_counted() {
        let before = made();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| yield_now()));
            }
        });
        // Other tests of this process make some as well.
        assert!(made() >= before + 400);
    }
}
