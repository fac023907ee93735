//! What combining and copying bytes costs on this host.

use std::time::{Duration, Instant};

use ringway_mem::Mapping;
use ringway_reduce::Source;
use ringway_types::{DataType, Reduction};

/// Bytes of each operand: of two that are combined, and one that is written, which together stay in a core's cache as the
/// pieces do that plans are made of.
const BYTES: u64 = 64 << 10;
const ROUNDS: usize = 15;
/// What a host takes that cannot tell, in nanoseconds for a byte: about 10 GB/s.
const UNKNOWN_NS: f64 = 0.1;

/// Nanoseconds for a byte of one more operand, and for a byte copied: medians of a few rounds, within a millisecond.
pub(crate) fn arithmetic_cost() -> (f64, f64) {
    measure().unwrap_or((UNKNOWN_NS, UNKNOWN_NS))
}

fn measure() -> Option<(f64, f64)> {
    let memory = Mapping::private(usize::try_from(3 * BYTES).ok()?).ok()?;
    let window = |number: u64| memory.window(number * BYTES, BYTES);
    let (a, b, into) = (window(0)?, window(1)?, window(2)?);
    let sources = [Source { window: a, scale: None }, Source { window: b, scale: None }];
    let combined =
        median(|| ringway_reduce::reduce(DataType::F32, Reduction::Sum, &sources, &[into], None).is_ok())?;
    let copied = median(|| ringway_reduce::copy(a, &[into]).is_ok())?;
    let each = |time: Duration| time.as_nanos() as f64 / BYTES as f64;
    Some((each(combined), each(copied)))
}

fn median(mut work: impl FnMut() -> bool) -> Option<Duration> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        if !work() {
            return None;
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times.get(ROUNDS / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combining_and_copying_cost_something() {
        let (combined, copied) = arithmetic_cost();
        // From a terabyte a second to ten megabytes.
        assert!((0.001..100.0).contains(&combined), "{combined}");
        assert!((0.001..100.0).contains(&copied), "{copied}");
    }
}
