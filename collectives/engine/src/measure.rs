//! What messages to the next node take, measured once when a communicator's connections stand: round trips of messages without
//! a payload, several of them at once, to one node and to several, and writes.
//!
//! Every node measures the link to the node behind it, all at the same time, so that what they share (a host's processors, a
//! switch) is in the figures. The peer answers each [`Message::Probe`]; one with a length is answered with room of that
//! length in the peer's own memory, which is written then.

use ringway_verbs::{Device, RemoteSlice, Time};

use crate::communicator::{Communicator, State};
use crate::link::Link;
use crate::message::Message;
use crate::turn::Turn;
use crate::{CommunicatorId, Engine};

/// Round trips that are timed one behind the other; the first of them only warms up.
const ROUND_TRIPS: usize = 17;
/// Messages that are under way at once, which a link always has receives for.
const BURST: u32 = 8;
/// How often that is timed.
const BURSTS: u32 = 5;
/// The most nodes that one message each is sent to at once, and how often that is timed.
const FAN: usize = 8;
const FANS: usize = 9;
/// Bytes of one write.
pub(crate) const WRITE_BYTES: u64 = 256 << 10;
/// Writes behind one another, where one did not take long.
const WRITES: u32 = 12;
/// How often they are timed after a first one: a thread that had no processor meanwhile tells nothing of the link.
const WRITINGS: usize = 3;
/// What one of them takes at most for several to be timed together.
const SLOW_NS: u64 = 4_000_000;
/// After this time what is known is enough.
const LONGEST_NS: u64 = 500_000_000;

/// What was measured of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// A message from one engine to the other, in nanoseconds.
    pub latency_ns: f64,
    /// What an engine spends on a message, in nanoseconds.
    pub message_ns: f64,
    /// A byte that is written, in nanoseconds; `None` where there was no room, or no time, to find out.
    pub byte_ns: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    RoundTrips,
    Bursts,
    Fans,
    Room,
    Writes,
    Done,
}

/// A measurement under way.
#[derive(Debug)]
pub(crate) struct Measure {
    link: usize,
    phase: Phase,
    began: Time,
    /// When what is timed began.
    since: Time,
    /// Answers that are waited for.
    awaited: u32,
    round_trips: [u64; ROUND_TRIPS],
    taken: usize,
    burst_ns: u64,
    bursts: u32,
    /// Nodes that a fan is sent to, and what fans took.
    fan: u32,
    fans: [u64; FANS],
    fans_taken: usize,
    /// What writes took for each byte, in picoseconds, and how often they were timed.
    byte_ps: [u64; 1 + WRITINGS],
    writings: usize,
    /// How many writes are timed next.
    writes: u32,
    /// Bytes of the writes that are timed.
    written: u64,
    room: RemoteSlice,
}

impl Measure {
    fn new(link: usize, now: Time) -> Self {
        Self {
            link,
            phase: Phase::RoundTrips,
            began: now,
            since: now,
            awaited: 0,
            round_trips: [0; ROUND_TRIPS],
            taken: 0,
            burst_ns: u64::MAX,
            bursts: 0,
            fan: 0,
            fans: [0; FANS],
            fans_taken: 0,
            byte_ps: [0; 1 + WRITINGS],
            writings: 0,
            writes: 1,
            written: 0,
            room: RemoteSlice::default(),
        }
    }

    fn round_trip_ns(&self) -> u64 {
        median(self.round_trips, self.taken)
    }

    /// What a message takes of an engine's time: of some at once to one node, which may travel together, or to several, of
    /// which each travels by itself, whichever is more. For each probe a node sends one, answers one, and gets both.
    fn message_ns(&self) -> f64 {
        let beyond = |ns: u64, probes: u32| {
            let more = ns.saturating_sub(self.round_trip_ns());
            more as f64 / f64::from(4 * probes.saturating_sub(1).max(1))
        };
        let burst = if self.burst_ns == u64::MAX { 0.0 } else { beyond(self.burst_ns, BURST) };
        let fan = if self.fan > 1 { beyond(median(self.fans, self.fans_taken), self.fan) } else { 0.0 };
        burst.max(fan)
    }

    /// What a byte takes; `None` where none was written.
    fn byte_ns(&self) -> Option<f64> {
        let byte_ps = match self.writings {
            0 => return None,
            1 => self.byte_ps[0],
            taken => median(self.byte_ps, taken),
        };
        Some(byte_ps as f64 / 1000.0)
    }

    /// What is known.
    fn measured(&self) -> Measured {
        Measured {
            latency_ns: self.round_trip_ns() as f64 / 2.0,
            message_ns: self.message_ns(),
            byte_ns: self.byte_ns(),
        }
    }

    fn ask<D: Device + ?Sized>(&mut self, length: u64, link: &mut Link, turn: &mut Turn<'_, D>) {
        self.awaited += 1;
        link.probes += 1;
        link.control(Message::Probe { length }, turn);
    }

    fn begin<D: Device + ?Sized>(&mut self, phase: Phase, link: &mut Link, turn: &mut Turn<'_, D>) {
        (self.phase, self.since) = (phase, turn.now);
        match phase {
            Phase::RoundTrips => self.ask(0, link, turn),
            Phase::Bursts => (0..BURST).for_each(|_| self.ask(0, link, turn)),
            // Asked by whoever has all links.
            Phase::Fans => {}
            Phase::Room => self.ask(WRITE_BYTES, link, turn),
            Phase::Writes => self.write(self.writes, link, turn),
            Phase::Done => {}
        }
    }

    /// Sends a probe to each of some nodes, beginning with the next one.
    fn fan_out<D: Device + ?Sized>(&mut self, links: &mut [Link], turn: &mut Turn<'_, D>) {
        self.since = turn.now;
        self.fan = 0;
        let (before, after) = links.split_at_mut(self.link.min(links.len()));
        for link in after.iter_mut().chain(before).take(FAN) {
            self.ask(0, link, turn);
            self.fan += 1;
        }
    }

    fn write<D: Device + ?Sized>(&mut self, count: u32, link: &mut Link, turn: &mut Turn<'_, D>) {
        self.written = 0;
        if let Some(from) = link.written_from(turn) {
            self.written = (0..count).map(|_| link.write(from, self.room, turn)).sum();
        }
        self.ask(0, link, turn);
    }

    /// The peer has answered, perhaps with room to write into.
    fn answered<D: Device + ?Sized>(
        &mut self,
        room: Option<RemoteSlice>,
        link: &mut Link,
        turn: &mut Turn<'_, D>,
    ) {
        self.awaited = self.awaited.saturating_sub(1);
        if self.awaited > 0 {
            return;
        }
        let elapsed_ns = turn.now.0.saturating_sub(self.since.0);
        let next = match self.phase {
            Phase::RoundTrips => self.round_trip(elapsed_ns),
            Phase::Bursts => self.burst(elapsed_ns),
            Phase::Fans => self.fanned(elapsed_ns),
            Phase::Room => match room {
                Some(room) => {
                    self.room = room;
                    Phase::Writes
                }
                None => Phase::Done,
            },
            Phase::Writes => {
                self.count_writes(elapsed_ns);
                // Where there is nothing to write from, nothing was written.
                if self.written > 0 && self.writings <= WRITINGS { Phase::Writes } else { Phase::Done }
            }
            Phase::Done => return,
        };
        self.begin(next, link, turn);
    }

    fn round_trip(&mut self, elapsed_ns: u64) -> Phase {
        if let Some(place) = self.round_trips.get_mut(self.taken) {
            *place = elapsed_ns;
            self.taken += 1;
        }
        if self.taken < ROUND_TRIPS { Phase::RoundTrips } else { Phase::Bursts }
    }

    fn burst(&mut self, elapsed_ns: u64) -> Phase {
        self.burst_ns = self.burst_ns.min(elapsed_ns);
        self.bursts += 1;
        if self.bursts < BURSTS { Phase::Bursts } else { Phase::Fans }
    }

    fn fanned(&mut self, elapsed_ns: u64) -> Phase {
        if let Some(place) = self.fans.get_mut(self.fans_taken) {
            *place = elapsed_ns;
            self.fans_taken += 1;
        }
        if self.fans_taken < FANS { Phase::Fans } else { Phase::Room }
    }

    fn count_writes(&mut self, elapsed_ns: u64) {
        let beyond = elapsed_ns.saturating_sub(self.round_trip_ns());
        let byte_ps = beyond.saturating_mul(1000).checked_div(self.written);
        if let (Some(place), Some(byte_ps)) = (self.byte_ps.get_mut(self.writings), byte_ps) {
            *place = byte_ps;
            self.writings += 1;
        }
        self.writes = if elapsed_ns < SLOW_NS * u64::from(self.writes) { WRITES } else { 1 };
    }

    fn is_done(&self, now: Time) -> bool {
        let over = now.0.saturating_sub(self.began.0) >= LONGEST_NS && self.taken > 1;
        over || self.phase == Phase::Done
    }
}

/// The middle of so many times, but the first, which only warms up.
fn median<const N: usize>(mut times: [u64; N], taken: usize) -> u64 {
    let times = times.get_mut(1.min(taken)..taken).unwrap_or_default();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

impl Communicator {
    /// Answers a probe: with room of the length asked for, if there is some, or without.
    pub(crate) fn on_probe<D: Device + ?Sized>(&mut self, at: usize, length: u64, turn: &mut Turn<'_, D>) {
        let Some(link) = self.peers.links.get_mut(at) else { return };
        let room = if length == WRITE_BYTES { link.lend(turn) } else { None };
        link.control(Message::Probed { room }, turn);
    }

    /// A probe of this node was answered, perhaps after there was time to wait for it. `false`: there was none.
    pub(crate) fn on_probed<D: Device + ?Sized>(
        &mut self,
        at: usize,
        room: Option<RemoteSlice>,
        turn: &mut Turn<'_, D>,
    ) -> bool {
        let Some(link) = self.peers.links.get_mut(at).filter(|link| link.probes > 0) else { return false };
        link.probes -= 1;
        let is_awaited = |m: &&mut Measure| m.awaited > 0 && (m.link == at || m.phase == Phase::Fans);
        let Some(measure) = self.measure.as_mut().filter(is_awaited) else { return true };
        if let Some(link) = self.peers.links.get_mut(measure.link) {
            measure.answered(room, link, turn);
        }
        if measure.phase == Phase::Fans && measure.awaited == 0 {
            measure.fan_out(&mut self.peers.links, turn);
        }
        true
    }

    /// Begins to measure if that was asked for.
    pub(crate) fn begin_measuring<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        if let Some(measure) = self.measure.as_mut().filter(|m| m.awaited == 0 && m.taken == 0)
            && let Some(link) = self.peers.links.get_mut(measure.link)
        {
            measure.began = turn.now;
            measure.begin(Phase::RoundTrips, link, turn);
        }
    }
}

impl Engine {
    /// Begins to measure the link to the next node of a communicator whose connections stand. Nothing with one node.
    pub fn measure(&mut self, id: CommunicatorId) {
        let now = self.now;
        let Some(communicator) = self.get_mut(id).filter(|c| c.state == State::Running) else { return };
        let next = (communicator.node + 1) % communicator.layout.nodes().max(1);
        if let Some(link) = communicator.peers.link_to(next) {
            communicator.measure.get_or_insert_with(|| Measure::new(link, now));
            self.activate(id);
        }
    }

    /// What was measured, once that is over; `None` before, and where nothing was to be measured. Then it is forgotten.
    pub fn take_measured(&mut self, id: CommunicatorId) -> Option<Measured> {
        let now = self.now;
        let communicator = self.get_mut(id)?;
        communicator.measure.take_if(|measure| measure.is_done(now)).map(|measure| measure.measured())
    }

    /// Whether a measurement is under way.
    #[must_use]
    pub fn is_measuring(&self, id: CommunicatorId) -> bool {
        self.get(id).is_some_and(|communicator| communicator.measure.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found when writes take so long, one after the other.
    fn byte_ns(times_ns: &[u64]) -> Option<f64> {
        let mut measure = Measure::new(0, Time(0));
        for time_ns in times_ns {
            measure.written = u64::from(measure.writes) * WRITE_BYTES;
            measure.count_writes(*time_ns);
        }
        measure.byte_ns()
    }

    #[test]
    fn one_write_that_takes_long_says_nothing_of_the_link() {
        let (one, many) = (WRITE_BYTES, u64::from(WRITES) * WRITE_BYTES);
        assert_eq!(byte_ns(&[9 * one, many, 20 * many, one]), Some(1.0), "neither the first nor another");
        assert_eq!(byte_ns(&[20 * one, 20 * one, 20 * one, 20 * one]), Some(20.0), "slow ones are single");
        assert_eq!(byte_ns(&[9 * one]), Some(9.0), "better than nothing");
        assert_eq!(byte_ns(&[]), None);
    }
}
