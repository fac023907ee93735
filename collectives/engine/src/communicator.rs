//! One communicator on this node: its collectives, its messages and its links.

use ringway_plan::{Layout, PlanSettings};
use ringway_types::Operation;
use ringway_verbs::{Device, Time};

use crate::collective::queue::{Arrival, Queue, rank_of};
use crate::collective::run::{Peers, Progress, Run, Scene, Scratch, Start};
use crate::link::{Event, Link, Purpose};
use crate::measure::Measure;
use crate::network::Room;
use crate::point::{POINT_TICKET, Place, Point};
use crate::turn::{Shared, Turn};
use crate::{CommunicatorId, Failure, LocalRank, RankFailure, Refused, RegionId, Request, Token};

/// What a communicator is made of.
#[derive(Debug, Clone)]
pub struct CommunicatorSpec {
    /// Who is where.
    pub layout: Layout,
    /// This node's number in the layout.
    pub node: u32,
    /// The same on every node and different from other communicators': a message of another is refused.
    pub name: u64,
    /// Queue pairs to each other node, 1 to [`MAX_CHANNELS`](crate::MAX_CHANNELS): the same on every node. Long messages are
    /// spread over them.
    pub channels: u32,
    /// They go over so many of the node's rails by turns (see `Device::create_queue_pair_on`): the same on every node, so
    /// that rails of one number speak with each other.
    pub rails: u32,
    /// Operations that take longer fail.
    pub timeout_ms: Option<u64>,
    /// What its plans are chosen by: the same on every node.
    pub settings: PlanSettings,
    /// Whose it is: tenants get equal shares of the node, however many communicators each has. The communicators of
    /// one job have the same, any number; another job's have another.
    pub tenant: u64,
}

/// Where a communicator is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Its links are not connected yet.
    Opened,
    /// In use.
    Running,
    /// It has failed, and its peers are being told.
    Failing { failure: Failure, since: Time },
    /// It has failed, and everyone here was told. `unsettled`: since when it fails, while somebody may still touch the
    /// memory of its operations.
    Failed { failure: Failure, unsettled: Option<Time> },
    /// Its ranks have left, and it waits for those of other nodes to leave as well.
    Closing { since: Time },
    /// Nothing is left of it but its name.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Communicator {
    pub(crate) id: CommunicatorId,
    pub(crate) layout: Layout,
    pub(crate) node: u32,
    /// The node's lowest rank.
    pub(crate) rank: u32,
    /// Queue pairs to each other node.
    channels: u32,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) settings: PlanSettings,
    /// Scratch memory of its own.
    pub(crate) scratch: Option<Scratch>,
    pub(crate) tenant: u64,
    pub(crate) state: State,
    /// A failure found where nothing can be sent.
    pub(crate) pending: Option<Failure>,
    pub(crate) queue: Queue,
    pub(crate) run: Run,
    pub(crate) point: Point,
    pub(crate) peers: Peers,
    pub(crate) left: Vec<bool>,
    /// Ranks that have left and of which the peers have not been told, with the number of their collectives.
    untold: Vec<(u32, u64)>,
    pub(crate) bytes: u64,
    /// The piece of local work that a rank was at when the clock was looked at last.
    pub(crate) held: Option<(u32, LocalRank)>,
    /// The rank of this node that has stopped while it was at one.
    pub(crate) stopped: Option<LocalRank>,
    /// Links that were told of the failure.
    pub(crate) told: Vec<bool>,
    /// The link that posted pieces of long messages last.
    posted_last: usize,
    /// Peers have memory for eager writes.
    lent: bool,
    /// The next node's link is measured.
    pub(crate) measure: Option<Measure>,
}

/// What a visit led to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visit {
    pub(crate) bytes: u64,
    /// There is more to do.
    pub(crate) more: bool,
    /// It waits for scratch memory that others hold.
    pub(crate) starved: bool,
}

impl Communicator {
    pub(crate) fn new(
        id: CommunicatorId,
        spec: CommunicatorSpec,
        peers: Peers,
        operations: u32,
        eager_max: u64,
    ) -> Self {
        let CommunicatorSpec { layout, node, channels, timeout_ms, settings, tenant, .. } = spec;
        let locals = layout.local(node).len();
        let links = peers.links.len();
        Self {
            id,
            node,
            channels,
            rank: rank_of(&layout, node, 0),
            timeout_ms,
            settings,
            scratch: None,
            state: if links == 0 { State::Running } else { State::Opened },
            pending: None,
            queue: Queue::new(&layout, node, operations),
            run: Run::new(id, eager_max),
            point: Point::new(id, &layout, node, operations),
            peers,
            left: vec![false; locals],
            untold: Vec::with_capacity(locals),
            tenant,
            bytes: 0,
            held: None,
            stopped: None,
            told: vec![false; links],
            posted_last: 0,
            lent: false,
            measure: None,
            layout,
        }
    }

    /// Operations that have not finished.
    pub(crate) fn outstanding(&self) -> u64 {
        self.queue.outstanding() + self.point.outstanding()
    }

    /// Whether an operation that has not finished uses the region.
    pub(crate) fn uses(&self, region: RegionId) -> bool {
        // While somebody still works for a failed operation, its buffers are not known any more.
        let held = self.is_unsettled() || self.scratch.is_some_and(|scratch| scratch.region == region);
        held || self.point.uses(region) || self.queue.uses(region)
    }

    /// Takes a request; returns whether there may be something to do now.
    pub(crate) fn submit(
        &mut self,
        local: u32,
        token: Token,
        request: &Request<'_>,
        now: Time,
        shared: &mut Shared,
    ) -> Result<bool, Refused> {
        if local as usize >= self.left.len() {
            return Err(Refused::Unknown);
        }
        self.check_regions(request, shared)?;
        let dead = match &self.state {
            State::Failed { failure, .. } | State::Failing { failure, .. } => Some(failure.clone()),
            State::Closing { .. } | State::Closed => return Err(Refused::Unknown),
            _ => None,
        };
        if let Some(failure) = dead {
            shared.outstanding += 1;
            shared.finish(self.id, local, token, Err(failure));
            return Ok(false);
        }
        let ready = match request {
            Request::Collective(call) => match self.queue.call(&self.layout, local, token, call, now)? {
                Arrival::Waiting => self.check_left(local),
                Arrival::Complete => true,
                Arrival::Failed(failure) => {
                    self.pending.get_or_insert(failure);
                    true
                }
            },
            Request::PointToPoint(request) => {
                self.point.submit(&self.layout, local, token, request, now)?;
                true
            }
        };
        shared.outstanding += 1;
        if ready && self.is_over(local, request) {
            self.end_collective(&Ok(()), shared);
            return Ok(false);
        }
        Ok(ready)
    }

    /// Whether what the local rank has called as the last of all is over by that: a barrier on one node, with nothing before it.
    fn is_over(&self, local: u32, request: &Request<'_>) -> bool {
        matches!(request, Request::Collective(call) if call.operation == Operation::Barrier)
            && self.peers.links.is_empty()
            && self.pending.is_none()
            && self.run.signature.is_none()
            && self.queue.is_ready()
            && self.queue.called(local) == self.queue.head
    }

    /// Whether a rank that has left is needed for the collective that the local rank has just called.
    fn check_left(&mut self, local: u32) -> bool {
        let sequence = self.queue.called(local);
        let gone =
            (0_u32..).zip(&self.left).find(|(other, left)| **left && self.queue.called(*other) < sequence);
        if let Some((other, _)) = gone {
            let rank = rank_of(&self.layout, self.node, other);
            self.pending.get_or_insert(Failure::Rank { rank, how: RankFailure::Left });
            return true;
        }
        false
    }

    /// What is sent to other nodes must be known to the device.
    fn check_regions(&self, request: &Request<'_>, shared: &Shared) -> Result<(), Refused> {
        if self.peers.links.is_empty() {
            return Ok(());
        }
        let buffers = match request {
            Request::Collective(call) => [call.input, call.output],
            Request::PointToPoint(
                crate::PointToPoint::Send { buffer, .. } | crate::PointToPoint::Receive { buffer, .. },
            ) => [Some(*buffer), None],
        };
        let known = |buffer: &crate::BufferRef| shared.is_known(buffer.region);
        if buffers.iter().flatten().filter(|buffer| buffer.length > 0).all(known) {
            Ok(())
        } else {
            Err(Refused::Region)
        }
    }

    /// Does what can be done now, up to a bounded amount.
    pub(crate) fn visit<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) -> Visit {
        let idle = Visit { bytes: 0, more: false, starved: false };
        match &self.state {
            State::Running => {}
            State::Failing { .. } => {
                self.quiesce(turn);
                return idle;
            }
            State::Closing { .. } => {
                self.close_links(turn);
                return idle;
            }
            State::Opened if self.pending.is_none() => return idle,
            State::Opened => {}
            State::Failed { .. } => {
                self.settle(turn);
                return idle;
            }
            State::Closed => return idle,
        }
        if let Some(failure) = self.pending.take() {
            self.begin_failing(failure, turn);
            return idle;
        }
        match self.work(turn) {
            Ok(visit) => visit,
            Err(failure) => {
                self.begin_failing(failure, turn);
                idle
            }
        }
    }

    fn work<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) -> Result<Visit, Failure> {
        self.check_links(turn)?;
        self.tell_left(turn);
        self.ping(turn);
        self.tend_measuring(turn);
        self.lend(turn);
        if !self.peers.links.is_empty() {
            self.peers.links.iter_mut().for_each(|link| link.pump(turn));
            self.drain_events(turn);
        }
        let mut visit = Visit { bytes: 0, more: false, starved: false };
        if self.point.outstanding() > 0 {
            let mut place = Place { layout: &self.layout, peers: &mut self.peers };
            let (bytes, more) = self.point.visit(&mut place, turn)?;
            visit = Visit { bytes, more, starved: false };
        }
        self.collectives(&mut visit, turn)?;
        self.drain_events(turn);
        Ok(visit)
    }

    /// Lends peers memory for eager writes, once they are wanted.
    fn lend<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        if !self.lent && self.settings.tuning().eager_write_max_bytes > 0 {
            self.lent = true;
            self.peers.links.iter_mut().for_each(|link| link.lend_for_eager_writes(turn));
        }
    }

    /// Whether it is known over which links messages are written eagerly, at both ends, before any is. Who has left lends no more.
    fn has_been_lent(&self) -> bool {
        !self.lent || self.peers.links.iter().all(|link| link.ended || link.has_been_lent())
    }

    /// Posts pieces of long messages, up to `room` bytes. Returns the bytes posted and whether there is more that only
    /// `room` kept back.
    pub(crate) fn post<D: Device + ?Sized>(&mut self, room: Room, turn: &mut Turn<'_, D>) -> (u64, bool) {
        let mut posted = 0;
        // Another link comes first each time, or the first would take all the room there is.
        let links = self.peers.links.len();
        for nth in 0..links {
            self.posted_last = (self.posted_last + 1) % links;
            let Some(link) = self.peers.links.get_mut(self.posted_last) else { break };
            posted += link.post_transfers(Room { bytes: room.bytes.saturating_sub(posted), ..room }, turn);
            if posted >= room.bytes && nth + 1 < links {
                break;
            }
        }
        (posted, self.peers.links.iter().any(Link::wants_to_post))
    }

    fn collectives<D: Device + ?Sized>(
        &mut self,
        visit: &mut Visit,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        /// What an operation costs besides its bytes, in bytes of the turn's budget.
        const OPERATION: u64 = 1 << 10;
        const QUANTUM: u64 = 64 << 10;
        loop {
            if self.run.signature.is_none() {
                if !self.queue.is_ready() || !self.has_been_lent() {
                    return Ok(());
                }
                if visit.bytes >= QUANTUM {
                    visit.more = true;
                    return Ok(());
                }
                if !self.start(visit, turn)? {
                    return Ok(());
                }
            }
            let mut scene =
                Scene { queue: &self.queue, layout: &self.layout, rank: self.rank, peers: &mut self.peers };
            match self.run.advance(&mut scene, turn)? {
                Progress::Worked(bytes) => {
                    visit.bytes += bytes;
                    visit.more = true;
                    return Ok(());
                }
                Progress::Waiting(bytes) => {
                    visit.bytes += bytes;
                    return Ok(());
                }
                Progress::Done(bytes) => {
                    visit.bytes += bytes + OPERATION;
                    self.finish_collective(turn.shared);
                }
            }
        }
    }

    /// Starts the oldest collective. `false` when it cannot start now.
    fn start<D: ?Sized>(&mut self, visit: &mut Visit, turn: &mut Turn<'_, D>) -> Result<bool, Failure> {
        if let Err(failure) = self.queue.settle(&self.layout) {
            if !self.peers.links.is_empty() {
                return Err(failure);
            }
            self.end_collective(&Err(failure), turn.shared);
            return Ok(true);
        }
        self.check_early()?;
        match self.run.start(
            &self.queue,
            &self.layout,
            (&self.settings, self.channels, self.scratch),
            turn.shared,
        )? {
            Start::Started => Ok(true),
            Start::Starved => {
                visit.starved = true;
                Ok(false)
            }
        }
    }

    /// A piece of local work that somebody else had is done.
    pub(crate) fn collected(&mut self, number: u32, shared: &mut Shared) {
        if number & POINT_TICKET == 0 {
            self.run.collected(number);
        } else {
            self.point.collected(number, shared);
        }
    }

    /// Compares what other nodes have said about the oldest collective with what was called here.
    fn check_early(&self) -> Result<(), Failure> {
        let sequence = self.queue.head;
        let Some(ours) = self.queue.signature(sequence) else { return Ok(()) };
        for link in &self.peers.links {
            let of_this = link.early.iter().filter(|early| early.exchange.sequence == sequence);
            for early in of_this {
                self.compare(sequence, &ours, link.rank, &early.exchange.signature)?;
            }
        }
        Ok(())
    }

    /// The rank of this node that called the collective first; any of them when all have.
    pub(crate) fn caller(&self, sequence: u64) -> u32 {
        rank_of(&self.layout, self.node, self.queue.first(sequence))
    }

    /// Fails when another node called something else as the same collective.
    pub(crate) fn compare(
        &self,
        sequence: u64,
        ours: &crate::Signature,
        other_rank: u32,
        theirs: &crate::Signature,
    ) -> Result<(), Failure> {
        if ours == theirs {
            return Ok(());
        }
        let rank = self.caller(sequence);
        Err(Failure::Mismatch { rank, call: *ours, other_rank, other: *theirs, sequence })
    }

    fn finish_collective(&mut self, shared: &mut Shared) {
        self.run.stop(shared);
        self.end_collective(&Ok(()), shared);
    }

    fn end_collective(&mut self, outcome: &Result<(), Failure>, shared: &mut Shared) {
        let ranks = self.layout.local(self.node);
        for ((local, rank), call) in (0_u32..).zip(ranks).zip(self.queue.calls(self.queue.head)) {
            self.bytes += call.input.map_or(0, |b| b.length) + call.output.map_or(0, |b| b.length);
            shared.finish(self.id, local, call.token, outcome.clone().map(|()| (*rank, 0)));
        }
        self.queue.retire();
    }

    /// Lets the parts above the links know what was sent.
    pub(crate) fn drain_events<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        for at in 0..self.peers.links.len() {
            while let Some(event) = self.peers.links.get_mut(at).and_then(|link| link.events.pop_front()) {
                match event {
                    Event::Sent(Purpose::Step { slot, step }) => self.run.done(slot, step),
                    Event::Sent(Purpose::Point { key }) => {
                        let place = Place { layout: &self.layout, peers: &mut self.peers };
                        self.point.on_sent(key, &place, turn.shared);
                    }
                    Event::Sent(Purpose::Control) => {}
                    Event::Announced { key } => self.point.on_announced(key, at, turn.shared),
                }
            }
        }
    }

    /// A local rank leaves.
    pub(crate) fn leave(&mut self, local: u32) {
        let Some(left) = self.left.get_mut(local as usize).filter(|left| !**left) else { return };
        *left = true;
        let rank = rank_of(&self.layout, self.node, local);
        let called = self.queue.called(local);
        let needed = self.queue.started() > called || called >= self.queue.head;
        let free = self.point.leave(rank, local);
        if needed || !free {
            self.pending.get_or_insert(Failure::Rank { rank, how: RankFailure::Left });
        } else if !self.peers.links.is_empty() {
            self.untold.push((rank, called));
        }
    }

    fn tell_left<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        while let Some((rank, sequence)) = self.untold.pop() {
            let message = crate::message::Message::Left { rank, sequence, last: false };
            self.peers.links.iter_mut().for_each(|link| link.control(message, turn));
        }
    }
}
