//! What is measured of one kind, and the rounds' medians.

use std::{fmt, time::Duration};

use ringway_roce::RoceCounters;
use ringway_sim::ping_pong::PingPong;

/// What one run found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) half_round_trip_us: f64,
    /// Bytes of messages.
    pub(crate) goodput_gbps: f64,
    /// Of bare links, the same with all headers.
    pub(crate) frame_gbps: f64,
    /// Of both ends, in percent of what they sent.
    pub(crate) retransmitted_percent: f64,
    /// Of both ends.
    pub(crate) timeouts: u64,
}

impl Figures {
    pub(crate) fn of(found: &PingPong) -> Self {
        let goodput_gbps = if found.writing > Duration::ZERO { found.goodput() * 8e-9 } else { 0.0 };
        Self { half_round_trip_us: found.half_round_trip_us(50), goodput_gbps, ..Self::default() }
    }

    pub(crate) fn with(self, counters: [RoceCounters; 2]) -> Self {
        let sum = |of: fn(&RoceCounters) -> u64| counters.iter().map(of).sum::<u64>();
        let again = sum(|counters| counters.transport.retransmitted) as f64;
        let sent = sum(|counters| counters.transport.sent).max(1) as f64;
        let timeouts = sum(|counters| counters.transport.timeouts);
        Self { retransmitted_percent: again / sent * 100.0, timeouts, ..self }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { half_round_trip_us, goodput_gbps, frame_gbps, retransmitted_percent, timeouts } = self;
        write!(f, "{half_round_trip_us:8.2} us {goodput_gbps:8.2} Gb/s  ")?;
        if *frame_gbps > 0.0 {
            write!(f, "{frame_gbps:.2} Gb/s of frames")
        } else {
            write!(f, "{retransmitted_percent:5.2} % again, {timeouts} timeouts")
        }
    }
}

/// The value in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
