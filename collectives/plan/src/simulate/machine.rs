//! The events: what the nodes of all classes do, and what happens to their messages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::flows::{Flows, Foretold};
use super::network::{Network, Picoseconds, Wire};
use super::node::Node;
use super::symmetry::Group;
use super::{Failure, Progress};
use crate::{Action, Plan, Shape, View};

/// What is simulated.
pub(super) struct Scene<'a, 'v> {
    pub(super) network: &'a Network,
    pub(super) plan: &'a Plan,
    /// The call as a node sees it.
    pub(super) view: &'a dyn Fn(u32) -> View<'v>,
    pub(super) group: Group,
    /// The plan's size on every node that is simulated.
    pub(super) shapes: &'a [Shape],
    /// Chunks that may be under way, and chunks that are run: the first ones.
    pub(super) depth: u32,
    pub(super) chunks: u64,
    /// Work after which it is given up.
    pub(super) most_work: u64,
}

/// A message's receiving class, sender as that sees it, chunk and tag.
type Name = (u32, u32, u64, u32);

/// A step under way: node, slot, step.
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

/// What comes first of that which happens at one time: what was foretold first, and of that by kind, chunk and step. These are the
/// same on all nodes that behave alike. So these behave alike to the last bit, and as the one that stands for them.
type Rank = (Picoseconds, u8, u64, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A node has handled a message that it sends.
    Posted(u32),
    /// The sender knows where a long message goes.
    Granted(u32),
    /// The last byte of the message under way has left, unless something has changed since this was foretold.
    Left(Foretold),
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
    pub(super) events: u64,
    pub(super) messages: u64,
    /// The link that was used most, and which share of the time.
    pub(super) busiest: Option<(Wire, f64)>,
}

pub(super) struct Machine<'a, 'v> {
    scene: &'a Scene<'a, 'v>,
    now: Picoseconds,
    nodes: Vec<Node>,
    flows: Flows,
    wires: BTreeMap<Wire, u32>,
    connections: BTreeMap<(u32, u32), u32>,
    /// The chunk and step of each connection's first message.
    firsts: Vec<(u64, u32)>,
    messages: Vec<Message>,
    free: Vec<u32>,
    open: BTreeMap<Name, u32>,
    events: BinaryHeap<Reverse<(Picoseconds, Rank, u64, Event)>>,
    serial: u64,
    /// When links are to be divided anew, as far as there is an event for it.
    shared_at: Picoseconds,
    /// Slots in which something has changed.
    ready: Vec<(u32, u32)>,
    startable: Vec<(u32, Action)>,
    sent: u64,
}

/// The kind of [`Event::Left`], by its place among all.
const LEFT: u8 = 2;

/// The rank of [`Event::Left`].
fn left(now: Picoseconds, firsts: &[(u64, u32)], told: Foretold) -> Rank {
    let (chunk, step) = firsts.get(told.connection as usize).copied().unwrap_or_default();
    (now, LEFT, chunk, step)
}

/// Events between two words about progress.
const PROGRESS_EVERY: u64 = 1 << 16;

impl<'a, 'v> Machine<'a, 'v> {
    pub(super) fn new(scene: &'a Scene<'a, 'v>) -> Self {
        let nodes = (0..).zip(scene.shapes).map(|(node, shape)| {
            let locals = (scene.view)(node).layout.local(node).len();
            let locals = u32::try_from(locals).unwrap_or(u32::MAX);
            let chunks = scene.chunks.min(shape.chunks);
            Node::new(shape.steps, chunks, scene.depth, (locals, scene.network.slowdown(node)))
        });
        Self {
            scene,
            now: 0,
            nodes: nodes.collect(),
            flows: Flows::default(),
            wires: BTreeMap::new(),
            connections: BTreeMap::new(),
            firsts: Vec::new(),
            messages: Vec::new(),
            free: Vec::new(),
            open: BTreeMap::new(),
            events: BinaryHeap::new(),
            serial: 0,
            shared_at: Picoseconds::MAX,
            ready: Vec::new(),
            startable: Vec::new(),
            sent: 0,
        }
    }

    /// Runs until nothing is left to do.
    pub(super) fn run(mut self, progress: &mut dyn FnMut(Progress)) -> Result<Found, Failure> {
        for node in 0..self.nodes.len() {
            for slot in 0..self.scene.depth {
                self.ready.push((u32::try_from(node).unwrap_or(0), slot));
            }
        }
        self.ready.reverse();
        self.advance()?;
        self.settle();
        let mut last = 0;
        while let Some(&Reverse((time, ..))) = self.events.peek() {
            self.now = time;
            while let Some(Reverse((.., event))) = self.next_at(time) {
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
                progress(Progress { chunk: self.nodes[0].finished, chunks: self.scene.chunks, work });
            }
        }
        self.finish()
    }

    fn next_at(&mut self, time: Picoseconds) -> Option<Reverse<(Picoseconds, Rank, u64, Event)>> {
        let due = self.events.peek().is_some_and(|Reverse((at, ..))| *at == time);
        if due { self.events.pop() } else { None }
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
        Ok(Found { time: self.now, events: self.serial, messages: self.sent, busiest })
    }

    fn push(&mut self, at: Picoseconds, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at, self.rank(&event), self.serial, event)));
    }

    fn rank(&self, event: &Event) -> Rank {
        let of = |kind: u8, message: u32| {
            let it = &self.messages[message as usize];
            (self.now, kind, it.name.2, it.sender.map_or(0, |(.., step)| step))
        };
        match *event {
            Event::Posted(message) => of(0, message),
            Event::Granted(message) => of(1, message),
            Event::Left(told) => left(self.now, &self.firsts, told),
            Event::Arrived(message) => of(LEFT + 1, message),
            Event::Received(message) => of(LEFT + 2, message),
            Event::Worked((node, slot, step)) => {
                (self.now, LEFT + 3, self.nodes[node as usize].slots[slot as usize].chunk, step)
            }
            Event::Shared => (self.now, LEFT + 4, 0, 0),
        }
    }

    fn settle(&mut self) {
        let (now, serial, events, firsts) = (self.now, &mut self.serial, &mut self.events, &self.firsts);
        let due = self.flows.settle(self.now, |told| {
            *serial += 1;
            events.push(Reverse((told.at, left(now, firsts, told), *serial, Event::Left(told))));
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
            Event::Left(told) => {
                let Some((message, next)) = self.flows.leave(told) else { return };
                if let Some(next) = next {
                    self.push(next.at, Event::Left(next));
                }
                let it = &self.messages[message as usize];
                let (sender, latency) = (it.sender, self.flows.latency(it.connection));
                self.push(self.now.saturating_add(latency), Event::Arrived(message));
                if let Some(at) = sender {
                    self.done(at);
                }
            }
            Event::Arrived(message) => {
                self.messages[message as usize].has_arrived = true;
                self.take_in(message);
            }
            Event::Received(message) => self.received(message),
            Event::Worked(at) => self.done(at),
            Event::Shared => self.shared_at = Picoseconds::MAX,
        }
    }

    fn done(&mut self, (node, slot, step): At) {
        self.nodes[node as usize].slots[slot as usize].complete(step);
        self.ready.push((node, slot));
    }

    /// Begins every step that can begin.
    fn advance(&mut self) -> Result<(), Failure> {
        while let Some((node, slot)) = self.ready.pop() {
            let it = &mut self.nodes[node as usize];
            let steps = it.steps;
            let held = &mut it.slots[slot as usize];
            if !held.live {
                continue;
            }
            let (view, chunk) = ((self.scene.view)(node), held.chunk);
            let mut startable = core::mem::take(&mut self.startable);
            held.startable(steps, |index| self.scene.plan.step(&view, chunk, index), &mut startable);
            if held.is_finished(steps) {
                it.turn_over(slot, self.scene.chunks.min(self.scene.shapes[node as usize].chunks));
                self.ready.push((node, slot));
            }
            for (step, action) in startable.drain(..) {
                self.begin((node, slot, step), chunk, action)?;
            }
            self.startable = startable;
        }
        Ok(())
    }

    fn begin(&mut self, at: At, chunk: u64, action: Action) -> Result<(), Failure> {
        let (now, costs) = (self.now, self.scene.network.costs);
        let group = self.scene.group;
        let node = &mut self.nodes[at.0 as usize];
        match action {
            Action::Send { peer, tag, from } => {
                let posted = node.handle(now, &costs);
                let connection = self.connection((at.0, peer), (chunk, at.2))?;
                let name = (group.class(peer), group.seen_from(peer, at.0), chunk, tag);
                let message = self.message(name);
                let it = &mut self.messages[message as usize];
                (it.bytes, it.connection, it.sender) = (from.length, connection, Some(at));
                self.sent += 1;
                if posted > now {
                    self.push(posted, Event::Posted(message));
                } else {
                    self.posted(message);
                }
            }
            Action::Receive { peer, tag, .. } => {
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
            local => {
                let end = node.work(now, &local, &costs);
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
        for (wire, _) in &route.wires {
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
