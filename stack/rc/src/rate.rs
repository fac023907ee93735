//! Slowing down when the peer says that its packets meet congestion: DCQCN's reaction point (Zhu et al., Congestion
//! Control for Large-Scale RDMA Deployments, SIGCOMM 2015), and at the other end when to say so.
//!
//! Until the first notification nothing is held back. A notification halves the rate, or less if few came lately;
//! without further ones it climbs back half-way to where it was again and again, then in small steps, to the line rate.
//!
//! Notifications say nothing that only the peer knows, so that others can make them up. However many come, they count once
//! in so long, and leave a hundredth of the line rate: as much as each of a hundred senders to one receiver may have.

use ringway_verbs::Time;

use crate::timer;

/// How much a notification counts in the estimate of congestion: 1/256.
const GAIN_SHIFT: u32 = 8;
/// The estimate's one.
const ONE: u64 = 1 << 16;
/// Time without notifications after which the rate rises and the estimate falls, in nanoseconds.
const PERIOD_NS: u64 = 55_000;
/// Bytes sent after which the rate rises as well.
const PERIOD_BYTES: u64 = 10 << 20;
/// Rises that go half-way back, before the small steps begin.
const FAST_RISES: u32 = 5;
/// A small step, in bytes per second: 40 Mb/s.
const STEP: u64 = 5_000_000;
/// The lowest rate is this part of the line rate.
const FLOOR: u64 = 100;
/// After a notification others are taken for the same for so long, in nanoseconds: half of what peers leave between them.
const SAME_NS: u64 = NOTIFY_INTERVAL_NS / 2;
/// Catching up after a silence stops after so many periods: the rate is the line's by then.
const PERIODS_MAX: u32 = 10_000;
/// How far sending may fall behind its rate and still catch up, in nanoseconds: a caller polls in bursts.
const BURST_NS: u64 = 20_000;

/// The rate of one queue pair's requests and READ responses.
#[derive(Debug)]
pub(crate) struct Rate {
    line: u64,
    /// Slowed down: the rest means something.
    active: bool,
    current: u64,
    target: u64,
    congestion: u64,
    rises_by_time: u32,
    rises_by_bytes: u32,
    bytes: u64,
    period_ends: Time,
    ready_at: Time,
    /// Until when notifications say nothing new.
    heard_until: Time,
}

impl Rate {
    /// Nothing held back until a notification; `line` is in bytes per second.
    pub(crate) const fn new(line: u64) -> Self {
        Self {
            line: if line < FLOOR { FLOOR } else { line },
            active: false,
            current: 0,
            target: 0,
            congestion: ONE,
            rises_by_time: 0,
            rises_by_bytes: 0,
            bytes: 0,
            period_ends: Time(0),
            ready_at: Time(0),
            heard_until: Time(0),
        }
    }

    /// The peer's packets from here met congestion.
    pub(crate) fn notified(&mut self, now: Time) {
        if now < self.heard_until {
            return;
        }
        self.heard_until = timer::after(now, SAME_NS);
        if !self.active {
            (self.active, self.current, self.congestion) = (true, self.line, ONE);
            self.ready_at = now;
        } else {
            self.catch_up(now);
            self.active = true;
        }
        self.target = self.current;
        let cut = scaled(self.current, self.congestion) / 2;
        self.current = self.current.saturating_sub(cut).max(self.line / FLOOR);
        self.congestion = self.congestion - (self.congestion >> GAIN_SHIFT) + (ONE >> GAIN_SHIFT);
        (self.rises_by_time, self.rises_by_bytes, self.bytes) = (0, 0, 0);
        self.period_ends = timer::after(now, PERIOD_NS);
    }

    /// Until when nothing may go out; `None` when it may now.
    pub(crate) fn held_until(&mut self, now: Time) -> Option<Time> {
        if !self.active {
            return None;
        }
        self.catch_up(now);
        (self.active && self.ready_at > now).then_some(self.ready_at)
    }

    /// So many bytes went out.
    pub(crate) fn sent(&mut self, now: Time, bytes: usize) {
        if !self.active {
            return;
        }
        let bytes = bytes as u64;
        let earliest = Time(now.0.saturating_sub(BURST_NS));
        let time_ns = bytes.saturating_mul(1_000_000_000) / self.current.max(1);
        self.ready_at = timer::after(self.ready_at.max(earliest), time_ns);
        self.bytes += bytes;
        if self.bytes >= PERIOD_BYTES {
            self.bytes = 0;
            self.rises_by_bytes += 1;
            self.rise();
        }
    }

    /// Does what the periods that have gone by were for.
    fn catch_up(&mut self, now: Time) {
        let mut periods = 0;
        while self.active && self.period_ends <= now {
            self.period_ends = timer::after(self.period_ends, PERIOD_NS);
            self.congestion -= self.congestion >> GAIN_SHIFT;
            self.rises_by_time += 1;
            self.rise();
            periods += 1;
            if periods == PERIODS_MAX {
                self.active = false;
            }
        }
    }

    fn rise(&mut self) {
        if self.rises_by_time.max(self.rises_by_bytes) > FAST_RISES {
            self.target = self.target.saturating_add(STEP).min(self.line);
        }
        self.current = u64::midpoint(self.current, self.target);
        // What remains is not worth pacing.
        if self.current >= self.line - self.line / 100 {
            self.active = false;
        }
    }
}

/// `value` times a part of [`ONE`].
const fn scaled(value: u64, part: u64) -> u64 {
    (value >> 16).saturating_mul(part) + (((value & (ONE - 1)) * part) >> 16)
}

/// Between two notifications to a peer, in nanoseconds.
const NOTIFY_INTERVAL_NS: u64 = 50_000;

/// When to tell the peer that its packets met congestion.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    due: bool,
    not_before: Time,
}

impl Notifier {
    /// A packet came with the mark of congestion.
    pub(crate) fn marked(&mut self, now: Time) {
        self.due |= now >= self.not_before;
    }

    /// Whether a notification is to be sent now.
    pub(crate) const fn is_due(&self) -> bool {
        self.due
    }

    /// It is on its way.
    pub(crate) const fn sent(&mut self, now: Time) {
        self.due = false;
        self.not_before = timer::after(now, NOTIFY_INTERVAL_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 1_250_000_000;

    /// Bytes sent from `from` to `to` by a sender that always has more.
    fn run(rate: &mut Rate, from_ns: u64, to_ns: u64) -> u64 {
        let (mut now, mut bytes) = (from_ns, 0);
        while now < to_ns {
            match rate.held_until(Time(now)) {
                Some(until) => now = until.0,
                None => {
                    rate.sent(Time(now), 1000);
                    bytes += 1000;
                    now += 1000 * 1_000_000_000 / LINE;
                }
            }
        }
        bytes
    }

    #[test]
    fn nothing_is_held_back_before_a_notification() {
        let mut rate = Rate::new(LINE);
        assert_eq!(rate.held_until(Time(5)), None);
        rate.sent(Time(5), 1 << 20);
        assert_eq!(rate.held_until(Time(5)), None);
    }

    #[test]
    fn the_first_notification_halves_the_rate() {
        let mut rate = Rate::new(LINE);
        rate.notified(Time(0));
        let bytes = run(&mut rate, 0, 50_000);
        let half = LINE / 2 * 50_000 / 1_000_000_000;
        assert!(bytes.abs_diff(half) < half / 10, "{bytes} instead of about {half}");
    }

    #[test]
    fn notifications_at_one_time_count_once() {
        let mut rate = Rate::new(LINE);
        for at in 0..10 {
            rate.notified(Time(at * 1_000));
        }
        assert_eq!(rate.current, LINE / 2);
        rate.notified(Time(50_000));
        assert!(rate.current < LINE / 2);
    }

    #[test]
    fn many_notifications_slow_down_to_the_floor_and_silence_recovers() {
        let mut rate = Rate::new(LINE);
        for at in 0..1_000 {
            rate.notified(Time(at * 50_000));
        }
        assert_eq!(rate.current, LINE / 100);
        let start = 1_000 * 50_000;
        run(&mut rate, start, start + 1_000_000_000);
        assert!(!rate.active, "a second without notifications is enough");
    }

    #[test]
    fn notifications_to_a_peer_are_spaced() {
        let mut notifier = Notifier::default();
        notifier.marked(Time(1));
        assert!(notifier.is_due());
        notifier.sent(Time(1));
        notifier.marked(Time(1_000));
        assert!(!notifier.is_due());
        notifier.marked(Time(51_000));
        assert!(notifier.is_due());
    }
}
