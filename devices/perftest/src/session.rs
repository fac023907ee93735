//! A test from the connection to its end: which turns both sides take over TCP, as in perftest's programs.

use core::time::Duration;
use std::{sync::Arc, thread, time::Instant};

use ringway_mem::Mapping;
use ringway_roce::{Link, RoceConfig, RoceDevice, RoceEndpoint};
use ringway_verbs::{
    Access, Completion, ConnectError, Device as _, LocalKey, QueuePairConfig, QueuePairNumber, Role, Time,
};

use crate::{
    channel::{Agreement, Channel, Outcome, Side},
    contents::Contents,
    error::Failure,
    fill::{self, CRandom},
    keys::Keys,
    layout::{Arrivals, Layout},
    options::{Options, Test, Verb},
    report::{Packets, Report, Row},
};

/// How long this side goes on answering when it is done, for a peer that missed an acknowledgement.
const LINGER: Duration = Duration::from_millis(500);

/// Both ends of a queue pair.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) number: QueuePairNumber,
    pub(crate) mine: Keys,
    pub(crate) theirs: Keys,
}

/// Time since the test began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A test that is connected.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) options: Options,
    pub(crate) channel: Channel,
    pub(crate) device: RoceDevice,
    pub(crate) clock: Clock,
    pub(crate) connections: Vec<Connection>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) key: LocalKey,
    pub(crate) layout: Layout,
    /// Where SENDs, and what READs and atomics bring, come to lie.
    pub(crate) arrivals: Arrivals,
    /// The second in which this side filled its memory, and the peer its own, nearly.
    pub(crate) filled: u32,
    /// What the peer filled it with.
    pub(crate) contents: Contents,
}

/// How often is looked whether the peer is still there: every so many turns without anything new.
const LOOK_EVERY: u32 = 4096;

/// Waits for messages, but not for those of a peer that is gone.
#[derive(Debug)]
pub(crate) struct Waiting {
    expected: u64,
    idle: u32,
}

impl Waiting {
    pub(crate) const fn for_messages(expected: u64) -> Self {
        Self { expected, idle: 0 }
    }

    /// After each look for completions.
    pub(crate) fn look(&mut self, session: &Session, count: usize, done: u64) -> Result<(), Failure> {
        self.idle = if count > 0 { 0 } else { self.idle.wrapping_add(1) };
        if self.idle % LOOK_EVERY == LOOK_EVERY - 1 {
            if session.channel.hung_up() {
                return Err(Failure::Gone { done, expected: self.expected });
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// The same where messages of the peer's are missing, of which `received` are here: it speaks again when all of them were
    /// acknowledged.
    pub(crate) fn look_for_messages(
        &mut self,
        session: &Session,
        count: usize,
        received: u64,
    ) -> Result<(), Failure> {
        let expected = session.options.iterations * session.connections.len() as u64;
        let long = self.idle % LOOK_EVERY == LOOK_EVERY - 2 && count == 0;
        if long && received < expected && session.channel.has_spoken() {
            return Err(Failure::Fewer { received, expected });
        }
        self.look(session, count, received)
    }
}

/// Runs a test with the peer at the other end of the channel; a row for every size.
///
/// # Errors
/// When both sides do not understand each other, a request fails, or, if that is checked, wrong bytes come.
pub fn run(options: Options, mut channel: Channel, link: Box<dyn Link>) -> Result<Report, Failure> {
    options.check()?;
    let carried = link.mtu();
    let wished = options.mtu.unwrap_or(carried);
    if wished.bytes() > carried.bytes() {
        return Err(Failure::Mtu { carried, wished });
    }
    let agreement = channel.agree(Agreement { cycle_bytes: 4096, line_bytes: 64, mtu: wished })?;
    let mut session = Session::new(options, channel, link, agreement)?;
    session.connect(agreement)?;
    let rows = if session.options.test.latency { session.latency()? } else { session.bandwidth()? };
    let counters = session.device.counters();
    let link = counters.link;
    let packets = Packets {
        sent: link.sent,
        received: link.received,
        bad_icrc: counters.bad_icrc,
        malformed: counters.malformed,
    };
    Ok(Report { rows, packets })
}

/// What stands where the peer will WRITE: neither what it sends nor what is polled for.
const UNWRITTEN: u8 = 0xee;

/// The memory of a test, filled as the peer expects.
fn memory(layout: &Layout, length: u64, test: Test, filled: u32) -> Result<Mapping, Failure> {
    let mapping = Mapping::private(usize::try_from(length).unwrap_or(usize::MAX))?;
    if let Some(window) = mapping.window(0, layout.length()) {
        window.write(&CRandom::bytes(filled, window.length()));
    }
    // Whoever polls the last byte of a WRITE must not find there what it waits for first, which is 1.
    if test.latency && test.verb == Verb::Write {
        let received = layout.receiving(0);
        if let Some(window) = mapping.window(received, layout.length() - received) {
            window.write(&vec![UNWRITTEN; window.length()]);
        }
    }
    Ok(mapping)
}

impl Session {
    fn new(
        options: Options,
        channel: Channel,
        link: Box<dyn Link>,
        agreement: Agreement,
    ) -> Result<Self, Failure> {
        let layout = Layout {
            queue_pairs: options.queue_pairs as u64,
            bytes_max: options.bytes_max(),
            cycle_bytes: agreement.cycle_bytes,
            line_bytes: agreement.line_bytes,
        };
        let arrivals = Arrivals::behind(
            &layout,
            match options.test.verb {
                Verb::Send => options.receive_depth,
                Verb::Write => 1,
                _ => options.send_depth,
            },
        );
        let filled = fill::seed_now();
        let mapping = Arc::new(memory(&layout, arrivals.end(), options.test, filled)?);
        let reads = if options.test.verb.fetches() { options.reads } else { 1 };
        let config = RoceConfig {
            mtu_max: agreement.mtu,
            timeout: options.timeout,
            first_psn: options.first_psn,
            max_rd_atomic: options.reads,
            max_dest_rd_atomic: reads,
            ..RoceConfig::at("perftest", link.local_address())
        };
        let mut device = RoceDevice::new(link, config)?;
        let keys = device.register(Arc::clone(&mapping), Access::ALL)?;
        let depths = QueuePairConfig { send_depth: options.send_depth, receive_depth: options.receive_depth };
        let mut connections = Vec::new();
        for index in 0..options.queue_pairs {
            let number = device.create_queue_pair(depths)?;
            let endpoint = RoceEndpoint::decode(&device.endpoint(number)?);
            let RoceEndpoint { address: host, psn, .. } = endpoint.ok_or(ConnectError::ForeignEndpoint)?;
            let (key, address) = (keys.remote.0, layout.receiving(index));
            let mine = Keys { reads, number: number.0, psn, key, address, host };
            connections.push(Connection { number, mine, theirs: mine });
        }
        Ok(Self {
            options,
            channel,
            device,
            clock: Clock(Instant::now()),
            connections,
            mapping,
            key: keys.local,
            layout,
            arrivals,
            filled,
            contents: Contents::default(),
        })
    }

    /// One turn about the queue pair of this index, in which both sides also wait for each other.
    pub(crate) fn turn(&mut self, index: usize, measuring: bool) -> Result<(), Failure> {
        let Self { channel, device, clock, connections, .. } = self;
        let Some(connection) = connections.get_mut(index) else { return Ok(()) };
        let theirs = channel.keys(&connection.mine, measuring, &mut || serve(device, *clock))?;
        connection.theirs = theirs;
        Ok(())
    }

    fn turns(&mut self) -> Result<(), Failure> {
        (0..self.connections.len()).try_for_each(|index| self.turn(index, false))
    }

    /// Exchanges what is needed, and connects the queue pairs.
    fn connect(&mut self, agreement: Agreement) -> Result<(), Failure> {
        let test = self.options.test;
        if test.latency && test.verb != Verb::Send {
            self.turn(0, false)?;
        }
        self.turns()?;
        for Connection { number, mine, theirs } in &self.connections {
            let Keys { reads, number: queue_pair, psn, host, .. } = *theirs;
            if host.is_ipv4() != mine.host.is_ipv4() {
                return Err(Failure::Family { peer: host, local: mine.host });
            }
            let peer = RoceEndpoint::plain(host, queue_pair, psn.value(), agreement.mtu, reads);
            let peer = peer.ok_or(ConnectError::ForeignEndpoint)?.encode();
            self.device.connect(*number, &peer, Role::Active)?;
        }
        // SENDs are announced before the second round, the others after it.
        if test.verb == Verb::Send {
            self.turn(0, false)?;
            self.turns()
        } else {
            self.turns()?;
            self.turn(0, false)
        }
    }

    fn bandwidth(&mut self) -> Result<Vec<Row>, Failure> {
        let (verb, side) = (self.options.test.verb, self.channel.side());
        let mut rows = Vec::new();
        if verb == Verb::Send {
            let all = self.options.bytes.is_none();
            for bytes in self.options.sizes() {
                let row = if side == Side::Client {
                    self.turn(0, false)?;
                    self.send_many(bytes)?
                } else {
                    self.receive_many(bytes)?
                };
                rows.push(row);
                self.await_client()?;
                if all {
                    self.turn(0, true)?;
                }
            }
        } else if side == Side::Client {
            for bytes in self.options.sizes() {
                rows.push(self.send_many(bytes)?);
            }
            self.turn(0, true)?;
            let outcome = rows.last().map(Row::outcome).unwrap_or_default();
            self.outcome(&outcome)?;
        } else {
            self.turn(0, true)?;
            let outcome = self.outcome(&Outcome::default())?;
            let (found, expected) = (outcome.bytes, self.options.bytes_max());
            if found != expected {
                return Err(Failure::Length { index: 0, found, expected });
            }
            let checked = self.options.check && verb != Verb::Read;
            if checked {
                self.check_served(expected, self.options.iterations)?;
            }
            rows.push(Row::of_outcome(&outcome, checked));
        }
        self.close()?;
        Ok(rows)
    }

    fn latency(&mut self) -> Result<Vec<Row>, Failure> {
        let (verb, side) = (self.options.test.verb, self.channel.side());
        let mut rows = Vec::new();
        if verb.fetches() && side == Side::Server {
            self.close()?;
            return Ok(rows);
        }
        for bytes in self.options.sizes() {
            rows.push(match verb {
                Verb::Send => self.send_in_turn(bytes)?,
                Verb::Write => self.write_in_turn(bytes)?,
                _ => self.fetch_one_by_one(bytes)?,
            });
        }
        if verb == Verb::Write {
            self.linger();
        } else {
            self.await_client()?;
            self.close()?;
        }
        Ok(rows)
    }

    fn outcome(&mut self, mine: &Outcome) -> Result<Outcome, Failure> {
        let Self { channel, device, clock, .. } = self;
        Ok(channel.outcome(mine, &mut || serve(device, *clock))?)
    }

    /// Waits for the peer to be done as well.
    fn close(&mut self) -> Result<(), Failure> {
        self.turn(0, true)?;
        let Self { channel, device, clock, .. } = self;
        channel.done(LINGER, &mut || serve(device, *clock));
        Ok(())
    }

    /// Where this side is the server of a SEND test: waits for the client to be done as well. What comes for which there is no
    /// receive is more than this side was told to expect.
    fn await_client(&mut self) -> Result<(), Failure> {
        if self.options.test.verb != Verb::Send || self.is_client() {
            return Ok(());
        }
        let refused = |device: &RoceDevice| device.counters().transport.rnr_naks_sent;
        let before = refused(&self.device);
        while !self.channel.has_spoken() && !self.channel.hung_up() {
            serve(&mut self.device, self.clock);
            if refused(&self.device) > before {
                let expected = self.options.iterations * self.connections.len() as u64;
                return Err(Failure::More { expected });
            }
        }
        Ok(())
    }

    pub(crate) fn is_client(&self) -> bool {
        self.channel.side() == Side::Client
    }

    /// Goes on answering until the peer hangs up.
    fn linger(&mut self) {
        let start = Instant::now();
        while start.elapsed() < LINGER && !self.channel.hung_up() {
            serve(&mut self.device, self.clock);
        }
    }
}

/// Answers the peer, with nothing outstanding here.
fn serve(device: &mut RoceDevice, clock: Clock) {
    if device.poll(clock.now(), &mut [Completion::EMPTY; 16]) == 0 {
        thread::yield_now();
    }
}
