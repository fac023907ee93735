//! How far two processors are apart: what a cache line takes from one to the other and back.
//!
//! On real hardware that is a property of the two. A virtual machine's processors may be hardware threads of one core at
//! one time, cores with a common cache at another and cores without one at a third, as the host moves them about: 27,
//! 65 and 320 ns were seen within seconds. Everything that goes between ranks differs by such factors, so that two
//! measurements compare only where this one agrees.

use std::{
    hint,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use super::place::pin_to;

/// Round trips timed together: some 30 us at most, so that most batches are not interrupted.
const TRIPS: u32 = 100;
/// The fastest of so many batches counts.
const BATCHES: u32 = 16;

/// A word with its cache lines to itself: processors fetch them in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    /// Waits until the word is that, then makes it the next.
    fn answer(&self, awaited: u64) {
        while self.0.load(Ordering::Acquire) != awaited {
            hint::spin_loop();
        }
        self.0.store(awaited + 1, Ordering::Release);
    }
}

/// Nanoseconds of a round trip between two processors; `None` with fewer than two.
pub(crate) fn round_trip_ns(processors: &[usize]) -> Option<f64> {
    let (&here, &there) = (processors.first()?, processors.get(1)?);
    let line = Line(AtomicU64::new(0));
    let trips = u64::from(TRIPS) * u64::from(BATCHES);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(there);
            (0..trips).for_each(|trip| line.answer(2 * trip));
        });
        let asking = scope.spawn(|| {
            pin_to(here);
            let mut fastest = f64::INFINITY;
            for batch in 0..BATCHES {
                let begun = Instant::now();
                for trip in 0..TRIPS {
                    line.answer(2 * u64::from(batch * TRIPS + trip) + 1);
                }
                fastest = fastest.min(begun.elapsed().as_nanos() as f64 / f64::from(TRIPS));
            }
            fastest
        });
        asking.join().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_there_and_back() {
        let processors = super::super::place::processors();
        match round_trip_ns(&processors) {
            Some(ns) => assert!(ns > 0.0 && ns.is_finite()),
            None => assert!(processors.len() < 2),
        }
    }
}
