//! How long to wait for an acknowledgement, and sums of times.

use ringway_verbs::Time;

/// The local ACK timeout of this exponent, 4.096 us * 2^exponent, in nanoseconds; `None` (never) for 0.
pub(crate) const fn ack_timeout_ns(exponent: u8) -> Option<u64> {
    if exponent == 0 { None } else { Some(4_096 << (if exponent > 31 { 31 } else { exponent })) }
}

/// A moment later.
pub(crate) const fn after(now: Time, delay_ns: u64) -> Time {
    Time(now.0.saturating_add(delay_ns))
}

/// The earlier of two moments that may not be.
pub(crate) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_the_specifications() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8_192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(255), ack_timeout_ns(31));
    }
}
