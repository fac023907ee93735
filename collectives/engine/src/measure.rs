//! What messages to the next node take, measured once when a communicator's connections stand: round trips of messages without
//! a payload, several of them at once, to one node and to several, and writes, over one channel and over all of them.
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
/// Messages without a payload that a node sends to the next one before it writes.
const SHORT: u32 = ROUND_TRIPS as u32 + BURST * BURSTS + FANS as u32;
/// Bytes of one write.
pub(crate) const WRITE_BYTES: u64 = 256 << 10;
/// The most writes behind one another.
const WRITES: u32 = 12;
/// How often they are timed after a first one: a thread that had no processor meanwhile tells nothing of the link.
const WRITINGS: usize = 3;
/// As many are timed together as take no longer than this.
const WRITING_NS: u64 = 48_000_000;
/// A channel alone carries less than all of them where it takes so many times as long; less than that says nothing.
const SLOWER: f64 = 1.2;
/// After this time what is known is enough.
const LONGEST_NS: u64 = 500_000_000;

/// What was measured of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The fastest message from one engine to the other, in nanoseconds.
    pub latency_ns: f64,
    /// What an engine spends on a message, in nanoseconds.
    pub message_ns: f64,
    /// A byte that is written, in nanoseconds; `None` where there was no room, or no time, to find out.
    pub byte_ns: Option<f64>,
    /// The same over one channel alone: no less.
    pub channel_byte_ns: Option<f64>,
    /// Channels of the link.
    pub channels: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    RoundTrips,
    Bursts,
    Fans,
    /// What others still send is not to wait behind what is written.
    Others,
    Room,
    Writes,
    /// The same over all channels, where there are several.
    Rooms,
    WritesOverAll,
    Done,
}

/// What writes take, one behind the other.
#[derive(Debug)]
struct Writings {
    /// For each byte, in picoseconds, and how often that was timed.
    byte_ps: [u64; 1 + WRITINGS],
    taken: usize,
    /// How many writes are timed next.
    writes: u32,
    /// Bytes of the writes that are timed.
    written: u64,
}

impl Writings {
    const fn new() -> Self {
        Self { byte_ps: [0; 1 + WRITINGS], taken: 0, writes: 1, written: 0 }
    }

    /// The writes that were timed took so long, and an answer to them.
    fn count(&mut self, elapsed_ns: u64, round_trip_ns: u64) {
        let beyond = elapsed_ns.saturating_sub(round_trip_ns);
        let byte_ps = beyond.saturating_mul(1000).checked_div(self.written);
        if let (Some(place), Some(byte_ps)) = (self.byte_ps.get_mut(self.taken), byte_ps) {
            *place = byte_ps;
            self.taken += 1;
        }
        let fit = (u64::from(self.writes) * WRITING_NS).checked_div(elapsed_ns).unwrap_or(u64::MAX);
        self.writes = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, WRITES);
    }

    /// Whether more are to be timed. Where there is nothing to write from, nothing was written.
    const fn goes_on(&self) -> bool {
        self.written > 0 && self.taken <= WRITINGS
    }

    /// What a byte takes; `None` where none was written.
    fn byte_ns(&self) -> Option<f64> {
        let byte_ps = match self.taken {
            0 => return None,
            1 => self.byte_ps[0],
            taken => median(self.byte_ps, taken),
        };
        Some(byte_ps as f64 / 1000.0)
    }
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
    over_one: Writings,
    over_all: Writings,
    /// Where the peer lets be written over each channel.
    rooms: Vec<RemoteSlice>,
    channels: usize,
}

impl Measure {
    fn new(link: usize, channels: usize, now: Time) -> Self {
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
            over_one: Writings::new(),
            over_all: Writings::new(),
            rooms: Vec::with_capacity(channels),
            channels,
        }
    }

    fn round_trip_ns(&self) -> u64 {
        median(self.round_trips, self.taken)
    }

    /// The round trip for which the engines waited least for their processors.
    fn fastest_ns(&self) -> u64 {
        self.round_trips.iter().take(self.taken).copied().min().unwrap_or(0)
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

    /// What is known.
    fn measured(&self) -> Measured {
        let (byte_ns, channel_byte_ns) = self.byte_prices();
        Measured {
            latency_ns: self.fastest_ns() as f64 / 2.0,
            message_ns: self.message_ns(),
            byte_ns,
            channel_byte_ns,
            channels: u32::try_from(self.channels).unwrap_or(u32::MAX),
        }
    }

    /// What a byte takes over all channels, and over one.
    fn byte_prices(&self) -> (Option<f64>, Option<f64>) {
        let one = self.over_one.byte_ns();
        match (one, self.over_all.byte_ns()) {
            (Some(one), Some(all)) if one > SLOWER * all => (Some(all), Some(one)),
            (Some(one), Some(all)) => (Some(one.min(all)), Some(one.min(all))),
            (one, _) => (one, one.filter(|_| self.channels <= 1)),
        }
    }

    fn ask<D: Device + ?Sized>(&mut self, length: u64, link: &mut Link, turn: &mut Turn<'_, D>) {
        let channel = if self.phase == Phase::Rooms { self.rooms.len() } else { 0 };
        let channel = u8::try_from(channel).unwrap_or(u8::MAX);
        self.awaited += 1;
        link.probes += 1;
        link.control(Message::Probe { length, channel }, turn);
    }

    fn begin<D: Device + ?Sized>(&mut self, phase: Phase, link: &mut Link, turn: &mut Turn<'_, D>) {
        (self.phase, self.since) = (phase, turn.now);
        match phase {
            Phase::RoundTrips => self.ask(0, link, turn),
            Phase::Bursts => (0..BURST).for_each(|_| self.ask(0, link, turn)),
            // Done by whoever has all links.
            Phase::Fans | Phase::Others => {}
            Phase::Room | Phase::Rooms => self.ask(WRITE_BYTES, link, turn),
            Phase::Writes => self.write(link, turn),
            Phase::WritesOverAll => self.write_over_all(link, turn),
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

    fn write<D: Device + ?Sized>(&mut self, link: &mut Link, turn: &mut Turn<'_, D>) {
        let (rooms, writes) = (self.rooms.get(..1).unwrap_or_default(), self.over_one.writes);
        let from = link.written_from(turn);
        self.over_one.written = from.map_or(0, |from| link.write(from, rooms, writes, turn));
        self.ask(0, link, turn);
    }

    /// What the answer to the probe says of the first channel, an answer to a write of no bytes says of each other one.
    fn write_over_all<D: Device + ?Sized>(&mut self, link: &mut Link, turn: &mut Turn<'_, D>) {
        // As many over each, or the one that has more would be taken for all of them.
        let writes = self.over_all.writes.next_multiple_of(u32::try_from(self.channels).unwrap_or(1).max(1));
        self.over_all.writes = writes;
        let from = link.written_from(turn);
        self.over_all.written = from.map_or(0, |from| link.write(from, &self.rooms, writes, turn));
        link.ask_others(turn);
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
        if self.phase == Phase::WritesOverAll && !link.others_are_quiet() {
            // It is looked at again when they are.
            return;
        }
        let elapsed_ns = turn.now.0.saturating_sub(self.since.0);
        let next = match self.phase {
            Phase::RoundTrips => self.round_trip(elapsed_ns),
            Phase::Bursts => self.burst(elapsed_ns),
            Phase::Fans => self.fanned(elapsed_ns),
            Phase::Room | Phase::Rooms => self.lent(room),
            Phase::Writes => {
                self.over_one.count(elapsed_ns, self.round_trip_ns());
                match self.over_one.goes_on() {
                    true => Phase::Writes,
                    false if self.channels > 1 && self.over_one.written > 0 => Phase::Rooms,
                    false => Phase::Done,
                }
            }
            Phase::WritesOverAll => {
                self.over_all.count(elapsed_ns, self.round_trip_ns());
                if self.over_all.goes_on() { Phase::WritesOverAll } else { Phase::Done }
            }
            Phase::Others | Phase::Done => return,
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
        if self.fans_taken < FANS { Phase::Fans } else { Phase::Others }
    }

    /// Whether all nodes that send this one messages to measure by have done so: the one before it, and those that fan out to it.
    fn others_are_through(&self, links: &[Link]) -> bool {
        let (before, after) = links.split_at(self.link.min(links.len()));
        let senders = before.iter().rev().chain(after.iter().rev()).take(FAN);
        let sent = std::iter::once(SHORT).chain(std::iter::repeat(FANS as u32));
        senders.zip(sent).all(|(link, sent)| link.probes_heard >= sent)
    }

    /// There is room to write into over one more channel, or not.
    fn lent(&mut self, room: Option<RemoteSlice>) -> Phase {
        let Some(room) = room else { return Phase::Done };
        self.rooms.push(room);
        match self.rooms.len() {
            1 => Phase::Writes,
            all if all == self.channels => Phase::WritesOverAll,
            _ => Phase::Rooms,
        }
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
    pub(crate) fn on_probe<D: Device + ?Sized>(
        &mut self,
        at: usize,
        (length, channel): (u64, u8),
        turn: &mut Turn<'_, D>,
    ) {
        let Some(link) = self.peers.links.get_mut(at) else { return };
        link.probes_heard = link.probes_heard.saturating_add(u32::from(length == 0));
        let room = if length == WRITE_BYTES { link.lend(channel, turn) } else { None };
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

    /// Begins to measure if that was asked for, and goes on once the others are through, or channels quiet.
    pub(crate) fn tend_measuring<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let Some(measure) = self.measure.as_mut().filter(|measure| measure.awaited == 0) else { return };
        let goes_on = measure.phase == Phase::Others && measure.others_are_through(&self.peers.links);
        let Some(link) = self.peers.links.get_mut(measure.link) else { return };
        if measure.taken == 0 {
            measure.began = turn.now;
            measure.begin(Phase::RoundTrips, link, turn);
        } else if goes_on {
            measure.begin(Phase::Room, link, turn);
        } else if measure.phase == Phase::WritesOverAll {
            measure.answered(None, link, turn);
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
            let channels = communicator.peers.links.get(link).map_or(1, Link::width);
            communicator.measure.get_or_insert_with(|| Measure::new(link, channels, now));
            self.activate(id);
        }
    }

    /// What was measured, once that is over; `None` before, and where nothing was to be measured. Then it is forgotten.
    pub fn take_measured(&mut self, id: CommunicatorId) -> Option<Measured> {
        let now = self.now;
        let communicator = self.get_mut(id)?;
        let measure = communicator.measure.take_if(|measure| measure.is_done(now))?;
        communicator.peers.links.iter_mut().for_each(|link| link.probes_heard = 0);
        Some(measure.measured())
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
        writings(times_ns).byte_ns()
    }

    fn writings(times_ns: &[u64]) -> Writings {
        let mut writings = Writings::new();
        for time_ns in times_ns {
            writings.written = u64::from(writings.writes) * WRITE_BYTES;
            writings.count(*time_ns, 0);
        }
        writings
    }

    #[test]
    fn one_write_that_takes_long_says_nothing_of_the_link() {
        let (one, many) = (WRITE_BYTES, u64::from(WRITES) * WRITE_BYTES);
        assert_eq!(byte_ns(&[9 * one, many, 20 * many, one]), Some(1.0), "neither the first nor another");
        let slow = 40 * one;
        assert_eq!(byte_ns(&[slow, 4 * slow, 4 * slow, 4 * slow]), Some(40.0), "four fit");
        assert_eq!(writings(&[2 * WRITING_NS]).writes, 1);
        assert_eq!(byte_ns(&[9 * one]), Some(9.0), "better than nothing");
        assert_eq!(byte_ns(&[]), None);
    }

    #[test]
    fn a_channel_alone_carries_less_where_that_shows() {
        let prices = |channels: usize, one_ns: Option<u64>, all_ns: Option<u64>| {
            let mut measure = Measure::new(0, channels, Time(0));
            let timed =
                |ns: Option<u64>| writings(&ns.map(|ns| ns * WRITE_BYTES).into_iter().collect::<Vec<_>>());
            (measure.over_one, measure.over_all) = (timed(one_ns), timed(all_ns));
            measure.byte_prices()
        };
        assert_eq!(prices(2, Some(20), Some(10)), (Some(10.0), Some(20.0)));
        assert_eq!(prices(2, Some(11), Some(10)), (Some(10.0), Some(10.0)), "that means nothing");
        assert_eq!(prices(2, Some(10), Some(12)), (Some(10.0), Some(10.0)));
        assert_eq!(prices(2, Some(10), None), (Some(10.0), None), "nobody knows");
        assert_eq!(prices(1, Some(10), None), (Some(10.0), Some(10.0)));
        assert_eq!(prices(2, None, None), (None, None));
    }
}
