//! The events: what the nodes of all classes do, and what happens to their messages.

use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::course::Course;
use super::flows::{Flows, Left};
use super::network::{Network, Picoseconds, Wire};
use super::node::Node;
use super::program::{Programs, What};
use super::queue::Queue;
use super::symmetry::Group;
use super::{Failure, Progress};
use crate::Shape;

/// What is simulated.
pub(super) struct Scene<'a> {
    pub(super) network: &'a Network,
    pub(super) group: Group,
    /// The plan's size on every node that is simulated.
    pub(super) shapes: &'a [Shape],
    /// Work after which it is given up.
    pub(super) most_work: u64,
}

/// A message's receiving class, sender as that sees it, chunk and tag.
type Name = (u32, u32, u64, u32);

/// Numbers of what has a name.
#[expect(clippy::disallowed_types, reason = "nobody goes through it, and it has the same order in every run")]
type Numbered<Name> = std::collections::HashMap<Name, u32, BuildHasherDefault<Mixer>>;

/// Hashes a few numbers: nobody chooses them to collide.
#[derive(Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(ODD);
    }
}

/// An op under way: node, slot, op.
type At = (u32, u32, u32);

#[derive(Debug)]
struct Message {
    name: Name,
    bytes: u64,
    connection: u32,
    sender: Option<At>,
    /// The sending node has handled it.
    posted: bool,
    receiver: Option<(At, Picoseconds)>,
    has_arrived: bool,
}

/// What comes first of that which happens at one time: what was foretold first, and of that by kind, chunk and op. These are the
/// same on all nodes that behave alike. So these behave alike to the last bit, and as the one that stands for them.
type Rank = u64;

/// The rank of what is foretold at the `turn`-th time at which something is. Of a chunk's number the last bits tell it from the
/// others under way.
fn rank(turn: u32, kind: u8, chunk: u64, op: u32) -> Rank {
    const OPS: u32 = (1 << 20) - 1;
    u64::from(turn) << 32 | u64::from(kind & 7) << 29 | (chunk & 511) << 20 | u64::from(op.min(OPS))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A node has handled a message that it sends.
    Posted(u32),
    /// The sender knows where a long message goes.
    Granted(u32),
    /// The last byte of the message under way on a connection has left, unless something has changed since this was foretold.
    Left(u32),
    /// It has come.
    Arrived(u32),
    /// The receiving node has handled it.
    Received(u32),
    /// Local work is done.
    Worked(At),
    /// It is time to divide links anew.
    Shared,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub(super) time: Picoseconds,
    /// Chunks that were run, and by which share what more of them take went up and down.
    pub(super) chunks: u64,
    pub(super) spread: f64,
    pub(super) events: u64,
    pub(super) messages: u64,
    /// The link that was used most, and which share of the time.
    pub(super) busiest: Option<(Wire, f64)>,
}

pub(super) struct Machine<'a, 'p> {
    scene: &'a Scene<'a>,
    programs: &'a mut Programs<'p>,
    now: Picoseconds,
    /// How many times there were.
    turn: u32,
    nodes: Vec<Node>,
    flows: Flows,
    wires: BTreeMap<Wire, u32>,
    connections: Numbered<(u32, u32)>,
    /// The chunk and step of each connection's first message.
    firsts: Vec<(u64, u32)>,
    messages: Vec<Message>,
    free: Vec<u32>,
    open: Numbered<Name>,
    events: Queue<(Rank, Event)>,
    /// How many of them there were.
    serial: u64,
    /// When links are to be divided anew, as far as there is an event for it.
    shared_at: Picoseconds,
    /// Slots in which something has changed.
    ready: Vec<(u32, u32)>,
    startable: Vec<u32>,
    sent: u64,
    course: Course,
}

/// The kind of [`Event::Left`], by its place among all.
const LEFT: u8 = 2;

/// The rank of [`Event::Left`].
fn left(turn: u32, firsts: &[(u64, u32)], connection: u32) -> Rank {
    let (chunk, op) = firsts.get(connection as usize).copied().unwrap_or_default();
    rank(turn, LEFT, chunk, op)
}

/// Events between two words about progress.
const PROGRESS_EVERY: u64 = 1 << 16;

impl<'a, 'p> Machine<'a, 'p> {
    pub(super) fn new(scene: &'a Scene<'a>, programs: &'a mut Programs<'p>, course: Course) -> Self {
        let nodes = (0..).zip(scene.shapes).map(|(node, shape)| {
            let chunks = course.limit.min(shape.chunks);
            Node::new(shape.steps, chunks, course.depth, scene.network.slowdown(node))
        });
        Self {
            scene,
            programs,
            now: 0,
            turn: 0,
            nodes: nodes.collect(),
            flows: Flows::default(),
            wires: BTreeMap::new(),
            connections: Numbered::default(),
            firsts: Vec::new(),
            messages: Vec::new(),
            free: Vec::new(),
            open: Numbered::default(),
            events: Queue::default(),
            serial: 0,
            shared_at: Picoseconds::MAX,
            ready: Vec::new(),
            startable: Vec::new(),
            sent: 0,
            course,
        }
    }

    /// Runs until nothing is left to do.
    pub(super) fn run(mut self, progress: &mut dyn FnMut(Progress)) -> Result<Found, Failure> {
        for node in 0..self.nodes.len() {
            for slot in 0..self.course.depth {
                self.ready.push((u32::try_from(node).unwrap_or(0), slot));
            }
        }
        self.ready.reverse();
        self.advance()?;
        self.settle();
        let mut last = 0;
        while let Some(time) = self.events.next_time() {
            (self.now, self.turn) = (time, self.turn.wrapping_add(1));
            while let Some((_, event)) = self.events.pop() {
                self.happen(event);
                self.advance()?;
            }
            self.settle();
            if self.serial - last >= PROGRESS_EVERY {
                last = self.serial;
                // A look at a link takes about as long as a tenth of an event.
                let work = self.serial + self.flows.work / 10;
                if work > self.scene.most_work {
                    return Err(Failure::TooBusy { work, nodes: self.nodes.len() });
                }
                progress(Progress { chunk: self.nodes[0].finished, chunks: self.course.limit, work });
            }
        }
        self.finish()
    }

    fn finish(self) -> Result<Found, Failure> {
        for (node, it) in (0..).zip(&self.nodes) {
            if let Some(slot) = it.slots.iter().find(|slot| slot.live) {
                return Err(Failure::Stuck { node, chunk: slot.chunk, step: slot.first() });
            }
        }
        let mut names: Vec<Wire> = vec![Wire::Pair { from: 0, to: 0 }; self.wires.len()];
        for (wire, link) in &self.wires {
            names[*link as usize] = *wire;
        }
        let used = names.into_iter().zip(self.flows.uses(self.now));
        // The first of those that are used alike, as they are ordered.
        let busiest = used.fold(None, |best: Option<(Wire, f64)>, (wire, share)| match best {
            Some((other, most)) if most > share * (1.0 + 1e-9) || (most >= share && other < wire) => best,
            _ => Some((wire, share)),
        });
        let Course { limit: chunks, spread, .. } = self.course;
        Ok(Found {
            time: self.course.whole(self.now),
            chunks,
            spread,
            events: self.serial,
            messages: self.sent,
            busiest,
        })
    }

    fn push(&mut self, at: Picoseconds, event: Event) {
        self.serial += 1;
        let rank = self.rank(&event);
        self.events.push(at, (rank, event));
    }

    fn rank(&self, event: &Event) -> Rank {
        let of = |kind: u8, message: u32| {
            let it = &self.messages[message as usize];
            rank(self.turn, kind, it.name.2, it.sender.map_or(0, |(.., op)| op))
        };
        match *event {
            Event::Posted(message) => of(0, message),
            Event::Granted(message) => of(1, message),
            Event::Left(connection) => left(self.turn, &self.firsts, connection),
            Event::Arrived(message) => of(LEFT + 1, message),
            Event::Received(message) => of(LEFT + 2, message),
            Event::Worked((node, slot, op)) => {
                rank(self.turn, LEFT + 3, self.nodes[node as usize].slots[slot as usize].chunk, op)
            }
            Event::Shared => rank(self.turn, LEFT + 4, 0, 0),
        }
    }

    fn settle(&mut self) {
        let (turn, serial, events, firsts) = (self.turn, &mut self.serial, &mut self.events, &self.firsts);
        let due = self.flows.settle(self.now, |told| {
            *serial += 1;
            let rank = left(turn, firsts, told.connection);
            events.push(told.at, (rank, Event::Left(told.connection)));
        });
        if let Some(due) = due.filter(|due| *due < self.shared_at) {
            self.shared_at = due;
            self.push(due, Event::Shared);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Posted(message) => self.posted(message),
            Event::Granted(message) => self.start(message),
            Event::Left(connection) => self.left(connection),
            Event::Arrived(message) => {
                self.messages[message as usize].has_arrived = true;
                self.take_in(message);
            }
            Event::Received(message) => self.received(message),
            Event::Worked(at) => self.done(at),
            Event::Shared => self.shared_at = Picoseconds::MAX,
        }
    }

    /// It is time for a message to have left.
    fn left(&mut self, connection: u32) {
        let told = match self.flows.leave(connection, self.now) {
            Left::Void => return,
            Left::Later(told) => Some(told),
            Left::Message(message, next) => {
                let it = &self.messages[message as usize];
                let (sender, latency) = (it.sender, self.flows.latency(it.connection));
                self.push(self.now.saturating_add(latency), Event::Arrived(message));
                if let Some(at) = sender {
                    self.done(at);
                }
                next
            }
        };
        if let Some(told) = told {
            self.push(told.at, Event::Left(told.connection));
        }
    }

    fn done(&mut self, (node, slot, op): At) {
        let it = &mut self.nodes[node as usize].slots[slot as usize];
        let op = &self.programs.ops(node, it.chunk)[op as usize];
        it.complete(op.first, op.count);
        self.ready.push((node, slot));
    }

    /// Begins every op that can begin.
    fn advance(&mut self) -> Result<(), Failure> {
        while let Some((node, slot)) = self.ready.pop() {
            let it = &mut self.nodes[node as usize];
            let steps = it.steps;
            let held = &mut it.slots[slot as usize];
            if !held.live {
                continue;
            }
            let chunk = held.chunk;
            let mut startable = core::mem::take(&mut self.startable);
            held.startable(self.programs.ops(node, chunk), &mut startable);
            if held.is_finished(steps) {
                self.course.finish(chunk, self.now)?;
                it.turn_over(slot, self.course.limit.min(self.scene.shapes[node as usize].chunks));
                self.ready.push((node, slot));
            }
            for op in startable.drain(..) {
                self.begin((node, slot, op), chunk)?;
            }
            self.startable = startable;
        }
        Ok(())
    }

    fn begin(&mut self, at: At, chunk: u64) -> Result<(), Failure> {
        let (now, costs) = (self.now, self.scene.network.costs);
        let group = self.scene.group;
        let node = &mut self.nodes[at.0 as usize];
        let op = &self.programs.ops(at.0, chunk)[at.2 as usize];
        match op.what {
            What::Nothing => self.done(at),
            What::Send { peer, tag, bytes } => {
                let posted = node.handle(now, &costs);
                let connection = self.connection((at.0, peer), (chunk, at.2))?;
                let name = (group.class(peer), group.seen_from(peer, at.0), chunk, tag);
                let message = self.message(name);
                let it = &mut self.messages[message as usize];
                (it.bytes, it.connection, it.sender) = (bytes, connection, Some(at));
                self.sent += 1;
                if posted > now {
                    self.push(posted, Event::Posted(message));
                } else {
                    self.posted(message);
                }
            }
            What::Receive { peer, tag } => {
                let message = self.message((at.0, peer, chunk, tag));
                let it = &mut self.messages[message as usize];
                it.receiver = Some((at, now));
                if it.has_arrived {
                    self.take_in(message);
                } else if it.posted && it.bytes > costs.eager {
                    let latency = self.flows.latency(it.connection);
                    self.push(now.saturating_add(latency), Event::Granted(message));
                }
            }
            What::Work(combined, copied) => {
                let end = node.work(now, (combined, copied), &costs);
                if end > now {
                    self.push(end, Event::Worked(at));
                } else {
                    self.done(at);
                }
            }
        }
        Ok(())
    }

    /// The message with this name, one end of which may have come already.
    fn message(&mut self, name: Name) -> u32 {
        if let Some(message) = self.open.get(&name) {
            return *message;
        }
        let it = Message {
            name,
            bytes: 0,
            connection: 0,
            sender: None,
            posted: false,
            receiver: None,
            has_arrived: false,
        };
        let message = match self.free.pop() {
            Some(message) => {
                self.messages[message as usize] = it;
                message
            }
            None => {
                self.messages.push(it);
                u32::try_from(self.messages.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.open.insert(name, message);
        message
    }

    /// The connection from a node that is simulated to any node, for a message of this chunk and step. In its wires' places are those of the nodes that stand for
    /// the wires' own, on which as many messages meet.
    fn connection(&mut self, (from, to): (u32, u32), first: (u64, u32)) -> Result<u32, Failure> {
        if let Some(connection) = self.connections.get(&(from, to)) {
            return Ok(*connection);
        }
        let (network, group) = (self.scene.network, self.scene.group);
        let route = network.route(from, to)?;
        let mut links = Vec::with_capacity(route.wires.len());
        for wire in &route.wires {
            let wire = network.moved(*wire, |node| group.class(node));
            let link = *self.wires.entry(wire).or_insert_with(|| self.flows.link(network.capacity(wire)));
            links.push(link);
        }
        let connection = self.flows.connect(&route, links.into_iter());
        self.connections.insert((from, to), connection);
        self.firsts.push(first);
        Ok(connection)
    }

    /// The sender has handled a message. A long one waits for word from the receiver where to write it.
    fn posted(&mut self, message: u32) {
        let it = &mut self.messages[message as usize];
        it.posted = true;
        if it.bytes <= self.scene.network.costs.eager {
            self.start(message);
        } else if let Some((_, since)) = it.receiver {
            let granted = since.saturating_add(self.flows.latency(it.connection));
            if granted > self.now {
                self.push(granted, Event::Granted(message));
            } else {
                self.start(message);
            }
        }
    }

    fn start(&mut self, message: u32) {
        let it = &self.messages[message as usize];
        self.flows.send(it.connection, message, it.bytes as f64, self.now);
    }

    /// A message has come, if it has, and there is a place for it, if there is.
    fn take_in(&mut self, message: u32) {
        let Some(((node, ..), _)) = self.messages[message as usize].receiver else { return };
        let end = self.nodes[node as usize].handle(self.now, &self.scene.network.costs);
        if end > self.now {
            self.push(end, Event::Received(message));
        } else {
            self.received(message);
        }
    }

    fn received(&mut self, message: u32) {
        let it = &self.messages[message as usize];
        self.open.remove(&it.name);
        self.free.push(message);
        if let Some((at, _)) = it.receiver {
            self.done(at);
        }
    }
}
