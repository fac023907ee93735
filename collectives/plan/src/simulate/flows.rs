//! Messages as flows: what is under way shares the links of its way max-min fairly, connection by connection. The messages
//! of one connection, which is a pair of nodes, go one behind the other.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::network::{Picoseconds, Route};

/// What differs by less is the same.
const EPSILON: f64 = 1e-9;
/// Rates that would change by a smaller share stay.
const CLOSE: f64 = 1e-3;
/// While a message passes, links that are shared are divided anew so many times at most. Who begins meanwhile waits, who ends
/// leaves its part unused: for a hundredth of a message's time on average.
const DIVISIONS: f64 = 64.0;

/// A link and who uses it now.
#[derive(Debug)]
struct Shared {
    /// Bytes per picosecond.
    capacity: f64,
    /// Connections with something under way.
    users: Vec<u32>,
    /// What these would send this way if nobody hindered them.
    demand: f64,
    /// Bytes that it has been given in all, each message's gap counted as bytes.
    carried: f64,
    /// The last allotment that has seen it; what it has left to give, and to how much of whom.
    seen: u32,
    left: f64,
    weight: f64,
    open: u32,
}

/// What a connection asks of its links and is given: what an allotment looks at, close together.
#[derive(Debug, Clone, Copy)]
struct Ask {
    /// Its wires among all, and the share of its bytes that each of them carries.
    first: u32,
    count: u32,
    share: f64,
    /// Its rate while nobody hinders it, and the one that it has.
    most: f64,
    rate: f64,
    /// The last allotment that has seen it, and what it was given there.
    seen: u32,
    fixed: bool,
    granted: f64,
}

/// A pair of nodes that have sent something.
#[derive(Debug)]
struct Connection {
    latency: Picoseconds,
    gap: Picoseconds,
    /// Messages and their bytes, the first of them under way.
    queue: VecDeque<(u32, f64)>,
    remaining: f64,
    since: Picoseconds,
    /// When the message under way will have left, as things are; and the first time for which that was foretold and has not
    /// come. What is put off is foretold anew when that comes, which is far less often than it is put off.
    end: Picoseconds,
    told: Picoseconds,
}

/// All links and connections.
#[derive(Debug, Default)]
pub(super) struct Flows {
    links: Vec<Shared>,
    connections: Vec<Connection>,
    asks: Vec<Ask>,
    /// The links of all connections, one's behind the other.
    wires: Vec<u32>,
    /// Links whose allotment must be looked at again, connections that have none yet, and of these who waits for one, as
    /// others hinder it.
    dirty: Vec<u32>,
    fresh: Vec<u32>,
    waiting: Vec<u32>,
    /// Who waits is to be looked at again: links were divided, or one has more than all who use it ask for, which had less.
    relieved: bool,
    /// When the dirty ones are to be looked at, and when that was last done.
    due: Picoseconds,
    last: Picoseconds,
    /// How many times they were; no more than there are events, of which a simulation has far fewer than this can say.
    allotment: u32,
    members: Vec<u32>,
    reached: Vec<u32>,
    order: Vec<u32>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// Looks at links and connections, which is what takes long.
    pub(super) work: u64,
}

/// When the message under way on a connection will have left, unless that has changed by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Foretold {
    pub(super) at: Picoseconds,
    pub(super) connection: u32,
}

/// What comes of what was foretold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing any more.
    Void,
    /// It takes longer.
    Later(Foretold),
    /// A message has left, and this is foretold of the next one.
    Message(u32, Option<Foretold>),
}

impl Shared {
    /// Whether its users hinder each other.
    fn is_tight(&self) -> bool {
        self.demand > self.capacity * (1.0 + EPSILON)
    }

    /// What each of those can have that have nothing yet. Never negative, so that its bits are ordered as it is.
    fn share(&self) -> f64 {
        if self.open == 0 { f64::INFINITY } else { (self.left / self.weight).max(0.0) }
    }
}

impl Flows {
    /// One more link of so many bytes per picosecond; its number.
    pub(super) fn link(&mut self, capacity: f64) -> u32 {
        self.links.push(Shared {
            capacity,
            users: Vec::new(),
            demand: 0.0,
            carried: 0.0,
            seen: 0,
            left: 0.0,
            weight: 0.0,
            open: 0,
        });
        index(self.links.len() - 1)
    }

    /// One more connection, over links in the order of the route's wires; its number.
    pub(super) fn connect(&mut self, route: &Route, links: impl Iterator<Item = u32>) -> u32 {
        let first = self.wires.len();
        self.wires.extend(links);
        let (wires, share) = (&self.wires[first..], route.share);
        let most = wires
            .iter()
            .map(|link| self.links[*link as usize].capacity / share)
            .fold(f64::INFINITY, f64::min);
        let (first, count) = (index(first), index(wires.len()));
        self.asks.push(Ask { first, count, share, most, rate: 0.0, seen: 0, fixed: false, granted: 0.0 });
        self.connections.push(Connection {
            latency: route.latency,
            gap: route.gap,
            queue: VecDeque::new(),
            remaining: 0.0,
            since: 0,
            end: Picoseconds::MAX,
            told: Picoseconds::MAX,
        });
        index(self.connections.len() - 1)
    }

    pub(super) fn latency(&self, connection: u32) -> Picoseconds {
        self.connections[connection as usize].latency
    }

    /// The share of its capacity that each link has given over this time.
    pub(super) fn uses(&self, time: Picoseconds) -> impl Iterator<Item = f64> {
        let time = (time as f64).max(1.0);
        self.links.iter().map(move |link| link.carried / link.capacity / time)
    }

    /// A message stands in its connection's line.
    pub(super) fn send(&mut self, connection: u32, message: u32, bytes: f64, now: Picoseconds) {
        let (it, ask) = (&mut self.connections[connection as usize], &mut self.asks[connection as usize]);
        let bytes = bytes + it.gap as f64 * ask.most;
        it.queue.push_back((message, bytes));
        let is_first = it.queue.len() == 1;
        for link in wires(&self.wires, ask) {
            let shared = &mut self.links[*link as usize];
            shared.carried += bytes * ask.share;
            if is_first {
                shared.users.push(connection);
                shared.demand += ask.share * ask.most;
            }
        }
        if !is_first {
            return;
        }
        (it.remaining, ask.rate) = (bytes, 0.0);
        self.fresh.push(connection);
        self.changed(connection, bytes, now);
    }

    /// What was foretold of a connection has come.
    pub(super) fn leave(&mut self, connection: u32, now: Picoseconds) -> Left {
        let it = &mut self.connections[connection as usize];
        if it.told != now {
            return Left::Void;
        }
        it.told = Picoseconds::MAX;
        if it.end > now {
            return foretell(it, connection).map_or(Left::Void, Left::Later);
        }
        let Some((message, bytes)) = it.queue.pop_front() else { return Left::Void };
        if let Some(&(_, bytes)) = it.queue.front() {
            (it.remaining, it.since) = (bytes, now);
            it.end = now.saturating_add(time_of(it.remaining, self.asks[connection as usize].rate));
            return Left::Message(message, foretell(it, connection));
        }
        it.end = Picoseconds::MAX;
        self.changed(connection, bytes, now);
        let ask = &mut self.asks[connection as usize];
        ask.rate = 0.0;
        for link in wires(&self.wires, ask) {
            let shared = &mut self.links[*link as usize];
            let was_tight = shared.is_tight();
            shared.demand -= ask.share * ask.most;
            if let Some(at) = shared.users.iter().position(|user| *user == connection) {
                shared.users.swap_remove(at);
            }
            if shared.users.is_empty() {
                shared.demand = 0.0;
            }
            self.relieved |= was_tight && !shared.is_tight();
        }
        Left::Message(message, None)
    }

    /// Those links of a connection whose users hinder each other are to be divided anew. How soon depends on what a message of
    /// so many bytes takes there.
    fn changed(&mut self, connection: u32, bytes: f64, now: Picoseconds) {
        let ask = &self.asks[connection as usize];
        let mut hindrance = 0.0_f64;
        for link in wires(&self.wires, ask) {
            let shared = &self.links[*link as usize];
            if shared.is_tight() {
                self.dirty.push(*link);
                hindrance = hindrance.max(shared.demand / shared.capacity);
            }
        }
        if hindrance > 0.0 {
            let apart = time_of(bytes * rounded(hindrance) / DIVISIONS, ask.most);
            self.due = self.due.min(self.last.saturating_add(apart).max(now));
        }
    }

    /// Divides links anew after what began and ended until now, if it is time; what is foretold of connections whose rate has
    /// changed, and when there is more to divide.
    pub(super) fn settle(&mut self, now: Picoseconds, mut tell: impl FnMut(Foretold)) -> Option<Picoseconds> {
        if !self.dirty.is_empty() && self.due <= now {
            (self.due, self.last) = (Picoseconds::MAX, now);
            self.reach();
            self.fill();
            for &connection in &self.members {
                let (it, ask) =
                    (&mut self.connections[connection as usize], &mut self.asks[connection as usize]);
                let granted = ask.granted;
                if let Some(told) = set_rate((it, ask), connection, granted, now) {
                    tell(told);
                }
            }
            self.relieved = true;
        }
        // Who waits goes on to wait, unless links were divided or one need not be any more.
        if core::mem::take(&mut self.relieved) {
            self.waiting.append(&mut self.fresh);
            core::mem::swap(&mut self.waiting, &mut self.fresh);
        }
        for connection in self.fresh.drain(..) {
            let ask = &mut self.asks[connection as usize];
            // One that shares a link has its rate already, or waits for it.
            if ask.rate != 0.0 {
                continue;
            }
            if wires(&self.wires, ask).iter().any(|link| self.links[*link as usize].is_tight()) {
                self.waiting.push(connection);
                continue;
            }
            let (it, most) = (&mut self.connections[connection as usize], ask.most);
            if let Some(told) = set_rate((it, ask), connection, most, now) {
                tell(told);
            }
        }
        (!self.dirty.is_empty()).then_some(self.due)
    }

    /// Finds whose rates depend on the links that are dirty: who uses them, who uses other links of theirs that are asked for
    /// more than they have, and so on.
    fn reach(&mut self) {
        self.allotment += 1;
        self.members.clear();
        self.reached.clear();
        let seen = self.allotment;
        let mut next = core::mem::take(&mut self.dirty);
        while let Some(link) = next.pop() {
            let shared = &mut self.links[link as usize];
            if shared.seen == seen {
                continue;
            }
            shared.seen = seen;
            self.reached.push(link);
            self.work += shared.users.len() as u64;
            let before = self.members.len();
            let mut weight = 0.0;
            for &user in &shared.users {
                let it = &mut self.asks[user as usize];
                weight += it.share;
                if it.seen != seen {
                    (it.seen, it.fixed) = (seen, false);
                    self.members.push(user);
                }
            }
            (shared.left, shared.weight, shared.open) = (shared.capacity, weight, index(shared.users.len()));
            for user in &self.members[before..] {
                let others = wires(&self.wires, &self.asks[*user as usize]).iter().copied();
                next.extend(others.filter(|other| {
                    let other = &self.links[*other as usize];
                    other.seen != seen && other.is_tight()
                }));
            }
        }
        self.dirty = next;
    }

    /// Water-filling: again and again whoever can have least is given that, and what is left is divided among the others.
    fn fill(&mut self) {
        self.order.clone_from(&self.members);
        let alone = |connection: &u32| self.asks[*connection as usize].most;
        self.order.sort_unstable_by(|a, b| alone(a).total_cmp(&alone(b)));
        let mut next = 0;
        self.heap.clear();
        let reached = self.reached.iter();
        self.heap.extend(reached.map(|link| Reverse((self.links[*link as usize].share().to_bits(), *link))));
        while let Some(Reverse((bits, link))) = self.heap.pop() {
            let share = f64::from_bits(bits);
            // Those that their own ways hold back more than any shared link does.
            while let Some(&connection) = self.order.get(next) {
                let most = self.asks[connection as usize].most;
                if most > share {
                    break;
                }
                self.grant(connection, most);
                next += 1;
            }
            let shared = &self.links[link as usize];
            let now = shared.share();
            if shared.open == 0 {
                continue;
            }
            // Others' grants have left more of it for each since.
            if now > share * (1.0 + EPSILON) {
                self.heap.push(Reverse((now.to_bits(), link)));
                continue;
            }
            for at in 0..shared.users.len() {
                self.grant(self.links[link as usize].users[at], rounded(share));
            }
        }
    }

    fn grant(&mut self, connection: u32, rate: f64) {
        let it = &mut self.asks[connection as usize];
        if it.fixed {
            return;
        }
        (it.fixed, it.granted) = (true, rate);
        for link in wires(&self.wires, it) {
            let shared = &mut self.links[*link as usize];
            shared.left = (shared.left - it.share * rate).max(0.0);
            shared.weight -= it.share;
            shared.open = shared.open.saturating_sub(1);
        }
    }
}

/// A connection's wires, of those of all.
fn wires<'a>(all: &'a [u32], ask: &Ask) -> &'a [u32] {
    &all[ask.first as usize..][..ask.count as usize]
}

/// A number without its last bits, which are left to the order in which others were added up: so that connections that are alike
/// have equal rates.
const fn rounded(number: f64) -> f64 {
    const LAST: u64 = 1 << 12;
    f64::from_bits((number.to_bits() + LAST / 2) & !(LAST - 1))
}

/// Gives a connection a rate; what is foretold of it if that is another than before.
fn set_rate(
    (it, ask): (&mut Connection, &mut Ask),
    number: u32,
    rate: f64,
    now: Picoseconds,
) -> Option<Foretold> {
    if (ask.rate - rate).abs() <= CLOSE * rate {
        return None;
    }
    it.remaining = (it.remaining - ask.rate * now.saturating_sub(it.since) as f64).max(0.0);
    (ask.rate, it.since) = (rate, now);
    it.end = now.saturating_add(time_of(it.remaining, rate));
    foretell(it, number)
}

/// When what is under way will have left, unless as much or less was foretold.
fn foretell(it: &mut Connection, connection: u32) -> Option<Foretold> {
    if it.end >= it.told {
        return None;
    }
    it.told = it.end;
    Some(Foretold { at: it.end, connection })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, rounded")]
fn time_of(bytes: f64, rate: f64) -> Picoseconds {
    (bytes / rate).round() as Picoseconds
}

fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
