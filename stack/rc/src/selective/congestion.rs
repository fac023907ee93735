//! How much may be outstanding: a window that grows by a packet a round trip and shrinks when packets meet delay, marks
//! or heavy loss, after Swift (Kumar et al., SIGCOMM 2020) and DCTCP (Alizadeh et al., SIGCOMM 2010). A packet lost now
//! and then says nothing about congestion where delay and marks can be seen, and shrinks nothing.

use ringway_verbs::Time;

use crate::timer;

/// The window counts in these parts of a packet.
const PACKET: u64 = 256;
/// Packets to begin with, and outstanding whatever the delay.
const INITIAL: u64 = 32;
/// Packets that may always be outstanding.
const LEAST: u64 = 2;
/// The shortest round trip is forgotten after so long, in nanoseconds: routes change.
const SHORTEST_NS: u64 = 1_000_000_000;
/// The part of marked packets, in which one is this.
const ONE: u64 = 1024;
/// Between probes at least, in nanoseconds.
const PROBE_NS: u64 = 50_000;
/// Before anything is known of the round trip, in nanoseconds.
const PROBE_FIRST_NS: u64 = 1_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    size: u64,
    most: u64,
    /// Delay that is never taken for congestion, in nanoseconds.
    slack_ns: u64,
    /// Doubling every round trip, until the first sign of congestion.
    starting: bool,
    smoothed_ns: u64,
    variation_ns: u64,
    shortest_ns: [u64; 2],
    shortest_until: Time,
    round: Round,
    marked_part: u64,
}

/// What happened in about one round trip.
#[derive(Debug, Clone, Copy)]
struct Round {
    ends: Time,
    acknowledged: u64,
    marked: u64,
    lost: u64,
    shortest_ns: u64,
}

const NO_ROUND: Round = Round { ends: Time(0), acknowledged: 0, marked: 0, lost: 0, shortest_ns: u64::MAX };

impl Window {
    /// Never more than so many packets, and no congestion without so much delay.
    pub(crate) const fn new(most: u32, slack_ns: u64) -> Self {
        let most = most as u64 * PACKET;
        Self {
            size: if INITIAL * PACKET < most { INITIAL * PACKET } else { most },
            most,
            slack_ns,
            starting: true,
            smoothed_ns: 0,
            variation_ns: 0,
            shortest_ns: [u64::MAX; 2],
            shortest_until: Time(0),
            round: NO_ROUND,
            marked_part: 0,
        }
    }

    /// How many packets may be outstanding.
    pub(crate) const fn packets(&self) -> u32 {
        (self.size / PACKET) as u32
    }

    /// A round trip took so long.
    pub(crate) fn measured(&mut self, now: Time, round_trip_ns: u64) {
        let sample = round_trip_ns.max(1);
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (sample, sample / 2);
        } else {
            let error = self.smoothed_ns.abs_diff(sample);
            self.variation_ns = (3 * self.variation_ns + error) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + sample) / 8;
        }
        if now >= self.shortest_until {
            let [recent, _] = self.shortest_ns;
            self.shortest_ns = [u64::MAX, recent];
            self.shortest_until = timer::after(now, SHORTEST_NS);
        }
        let [recent, _] = &mut self.shortest_ns;
        *recent = sample.min(*recent);
        self.round.shortest_ns = sample.min(self.round.shortest_ns);
    }

    /// So many packets arrived, of which some were marked.
    pub(crate) fn acknowledged(&mut self, now: Time, packets: u32, marked: u32) {
        self.round.acknowledged += u64::from(packets);
        self.round.marked += u64::from(marked.min(packets));
        if self.starting {
            self.size = (self.size + u64::from(packets) * PACKET).min(self.most);
        }
        if now >= self.round.ends {
            self.end_round();
            self.round = Round { ends: timer::after(now, self.smoothed_ns), ..NO_ROUND };
        }
    }

    /// So many packets are lost.
    pub(crate) const fn lost(&mut self, packets: u32) {
        self.round.lost += packets as u64;
    }

    /// Nothing came for the whole ACK timeout.
    pub(crate) fn timed_out(&mut self) {
        self.starting = false;
        self.shrink(2, 1);
    }

    fn end_round(&mut self) {
        let round = self.round;
        if round.acknowledged == 0 {
            return;
        }
        let part = round.marked * ONE / round.acknowledged;
        self.marked_part = (15 * self.marked_part + part) / 16;
        let shortest = self.shortest_ns.into_iter().min().unwrap_or(u64::MAX);
        let target = shortest.saturating_add((shortest / 2).max(self.slack_ns));
        let delayed = round.shortest_ns != u64::MAX && round.shortest_ns > target;
        if round.lost > round.acknowledged / 4 {
            self.shrink(2, 1);
        } else if round.marked > 0 {
            // At the first marks nothing is known of how many there will be.
            let part = if self.starting { ONE } else { self.marked_part };
            self.shrink(2 * ONE, part);
        } else if delayed {
            let excess = round.shortest_ns - target;
            let before = self.size;
            self.shrink(5 * round.shortest_ns, (4 * excess).min(5 * round.shortest_ns / 2));
            // It may be the ends that are slow, or not running at all, whatever is outstanding.
            self.size = self.size.max(before.min(INITIAL * PACKET));
        } else {
            self.size = (self.size + PACKET).min(self.most);
        }
    }

    /// Smaller by this part.
    fn shrink(&mut self, of: u64, part: u64) {
        self.starting = false;
        let less = (u128::from(self.size) * u128::from(part) / u128::from(of.max(1))) as u64;
        self.size = self.size.saturating_sub(less).max(LEAST * PACKET).min(self.most);
    }

    /// How long to wait for news before a packet is sent again to get some; doubled with each.
    pub(crate) fn probe_after_ns(&self, probes: u32) -> u64 {
        let usual = match self.smoothed_ns {
            0 => PROBE_FIRST_NS,
            smoothed => (2 * smoothed + 4 * self.variation_ns).max(PROBE_NS),
        };
        usual << probes.min(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLACK_NS: u64 = 20_000;

    /// A round in which all that may be outstanding came back after so long.
    fn round(window: &mut Window, now: &mut u64, round_trip_ns: u64, marked_per_mille: u32) {
        let packets = window.packets();
        *now += round_trip_ns;
        for _ in 0..2 {
            window.measured(Time(*now), round_trip_ns);
            window.acknowledged(Time(*now), packets / 2, packets / 2 * marked_per_mille / 1000);
        }
    }

    #[test]
    fn it_doubles_until_delay_shows_and_then_follows_it() {
        let (mut window, mut now) = (Window::new(512, SLACK_NS), 0);
        for _ in 0..3 {
            round(&mut window, &mut now, 20_000, 0);
        }
        let grown = window.packets();
        assert!(grown > 100, "{grown}");
        for _ in 0..6 {
            round(&mut window, &mut now, 120_000, 0);
        }
        let shrunk = window.packets();
        assert!(shrunk < grown / 2, "{shrunk} after {grown}");
        for _ in 0..200 {
            round(&mut window, &mut now, 20_000, 0);
        }
        assert!(window.packets() > shrunk + 50, "it grows again: {}", window.packets());
    }

    #[test]
    fn marks_shrink_it_by_their_part() {
        let (mut few, mut many, mut now) = (Window::new(512, SLACK_NS), Window::new(512, SLACK_NS), 0);
        for _ in 0..40 {
            round(&mut few, &mut now, 20_000, 20);
            round(&mut many, &mut now, 20_000, 900);
        }
        assert!(many.packets() < 10, "{}", many.packets());
        assert!(few.packets() > 2 * many.packets(), "{} and {}", few.packets(), many.packets());
    }

    #[test]
    fn scattered_loss_shrinks_nothing_and_heavy_loss_does() {
        let (mut window, mut now) = (Window::new(256, SLACK_NS), 0);
        for _ in 0..10 {
            window.lost(1);
            round(&mut window, &mut now, 20_000, 0);
        }
        let before = window.packets();
        assert!(before > 200, "{before}");
        window.lost(before);
        round(&mut window, &mut now, 20_000, 0);
        round(&mut window, &mut now, 20_000, 0);
        assert!(window.packets() < before * 2 / 3);
    }
}
