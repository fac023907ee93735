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
    /// Connections with something under way, and the share of their bytes that they send this way.
    users: Vec<(u32, f64)>,
    /// What these would send this way if nobody hindered them.
    demand: f64,
    /// Bytes that it has been given in all, each message's gap counted as bytes.
    carried: f64,
    /// Whether the present allotment has seen it, what it has left to give, and to how much of whom.
    seen: u64,
    left: f64,
    weight: f64,
    open: u32,
}

/// A pair of nodes that have sent something.
#[derive(Debug)]
struct Connection {
    wires: Vec<(u32, f64)>,
    latency: Picoseconds,
    gap: Picoseconds,
    /// Its rate while nobody hinders it.
    most: f64,
    /// Messages and their bytes, the first of them under way.
    queue: VecDeque<(u32, f64)>,
    remaining: f64,
    rate: f64,
    since: Picoseconds,
    /// Counts what was foretold of it: all but the last is void.
    version: u32,
    /// Of the present allotment.
    seen: u64,
    fixed: bool,
    granted: f64,
}

/// All links and connections.
#[derive(Debug, Default)]
pub(super) struct Flows {
    links: Vec<Shared>,
    connections: Vec<Connection>,
    /// Links whose allotment must be looked at again, and connections that have none yet.
    dirty: Vec<u32>,
    fresh: Vec<u32>,
    /// When the dirty ones are to be looked at, and when that was last done.
    due: Picoseconds,
    last: Picoseconds,
    allotment: u64,
    members: Vec<u32>,
    reached: Vec<u32>,
    order: Vec<u32>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// Looks at links and connections, which is what takes long.
    pub(super) work: u64,
}

/// When the message under way on a connection will have left, unless this is void by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Foretold {
    pub(super) at: Picoseconds,
    pub(super) connection: u32,
    pub(super) version: u32,
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
        let wires: Vec<(u32, f64)> = links.zip(route.wires.iter().map(|(_, share)| *share)).collect();
        let alone = |(link, share): &(u32, f64)| self.links[*link as usize].capacity / share;
        let most = wires.iter().map(alone).fold(f64::INFINITY, f64::min);
        self.connections.push(Connection {
            wires,
            latency: route.latency,
            gap: route.gap,
            most,
            queue: VecDeque::new(),
            remaining: 0.0,
            rate: 0.0,
            since: 0,
            version: 0,
            seen: 0,
            fixed: false,
            granted: 0.0,
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
        let it = &mut self.connections[connection as usize];
        let bytes = bytes + it.gap as f64 * it.most;
        it.queue.push_back((message, bytes));
        for (link, share) in &it.wires {
            self.links[*link as usize].carried += bytes * share;
        }
        if it.queue.len() > 1 {
            return;
        }
        (it.remaining, it.rate) = (bytes, 0.0);
        for (link, share) in &it.wires {
            let shared = &mut self.links[*link as usize];
            shared.users.push((connection, *share));
            shared.demand += share * it.most;
        }
        self.fresh.push(connection);
        self.changed(connection, bytes, now);
    }

    /// What was foretold has come: the message that has left, and what the connection's next one is foretold. `None` if it
    /// was void.
    pub(super) fn leave(&mut self, told: Foretold) -> Option<(u32, Option<Foretold>)> {
        let it = &mut self.connections[told.connection as usize];
        if it.version != told.version {
            return None;
        }
        let (message, bytes) = it.queue.pop_front()?;
        if let Some(&(_, bytes)) = it.queue.front() {
            (it.remaining, it.since) = (bytes, told.at);
            return Some((message, Some(foretell(it, told.connection))));
        }
        it.rate = 0.0;
        self.changed(told.connection, bytes, told.at);
        let it = &self.connections[told.connection as usize];
        for (link, share) in &it.wires {
            let shared = &mut self.links[*link as usize];
            shared.demand -= share * it.most;
            if let Some(at) = shared.users.iter().position(|(user, _)| *user == told.connection) {
                shared.users.swap_remove(at);
            }
            if shared.users.is_empty() {
                shared.demand = 0.0;
            }
        }
        Some((message, None))
    }

    /// Those links of a connection whose users hinder each other are to be divided anew. How soon depends on what a message of
    /// so many bytes takes there.
    fn changed(&mut self, connection: u32, bytes: f64, now: Picoseconds) {
        let it = &self.connections[connection as usize];
        let mut hindrance = 0.0_f64;
        for (link, _) in &it.wires {
            let shared = &self.links[*link as usize];
            if shared.is_tight() {
                self.dirty.push(*link);
                hindrance = hindrance.max(shared.demand / shared.capacity);
            }
        }
        if hindrance > 0.0 {
            let apart = time_of(bytes * rounded(hindrance) / DIVISIONS, it.most);
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
                let it = &mut self.connections[connection as usize];
                if let Some(told) = set_rate(it, connection, it.granted, now) {
                    tell(told);
                }
            }
        }
        let (links, connections) = (&self.links, &mut self.connections);
        self.fresh.retain(|&connection| {
            let it = &mut connections[connection as usize];
            // One that shares a link has its rate already, or waits for it.
            let waits = it.rate == 0.0;
            if waits && it.wires.iter().any(|(link, _)| links[*link as usize].is_tight()) {
                return true;
            }
            if waits && let Some(told) = set_rate(it, connection, it.most, now) {
                tell(told);
            }
            false
        });
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
            (shared.left, shared.weight, shared.open) = (shared.capacity, 0.0, 0);
            self.reached.push(link);
            self.work += shared.users.len() as u64;
            for &(user, share) in &shared.users {
                shared.weight += share;
                shared.open += 1;
                let it = &mut self.connections[user as usize];
                if it.seen != seen {
                    (it.seen, it.fixed) = (seen, false);
                    self.members.push(user);
                }
            }
            let shared = &self.links[link as usize];
            for &(user, _) in &shared.users {
                let others = self.connections[user as usize].wires.iter().map(|(other, _)| *other);
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
        let alone = |connection: &u32| self.connections[*connection as usize].most;
        self.order.sort_unstable_by(|a, b| alone(a).total_cmp(&alone(b)));
        let mut next = 0;
        self.heap.clear();
        let reached = self.reached.iter();
        self.heap.extend(reached.map(|link| Reverse((self.links[*link as usize].share().to_bits(), *link))));
        while let Some(Reverse((bits, link))) = self.heap.pop() {
            let share = f64::from_bits(bits);
            // Those that their own ways hold back more than any shared link does.
            while let Some(&connection) = self.order.get(next) {
                let most = self.connections[connection as usize].most;
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
                self.grant(self.links[link as usize].users[at].0, rounded(share));
            }
        }
    }

    fn grant(&mut self, connection: u32, rate: f64) {
        let it = &mut self.connections[connection as usize];
        if it.fixed {
            return;
        }
        (it.fixed, it.granted) = (true, rate);
        for (link, share) in &it.wires {
            let shared = &mut self.links[*link as usize];
            shared.left = (shared.left - share * rate).max(0.0);
            shared.weight -= share;
            shared.open = shared.open.saturating_sub(1);
        }
    }
}

/// A number without its last bits, which are left to the order in which others were added up: so that connections that are alike
/// have equal rates.
const fn rounded(number: f64) -> f64 {
    const LAST: u64 = 1 << 12;
    f64::from_bits((number.to_bits() + LAST / 2) & !(LAST - 1))
}

/// Gives a connection a rate; what is foretold of it if that is another than before.
fn set_rate(it: &mut Connection, number: u32, rate: f64, now: Picoseconds) -> Option<Foretold> {
    if (it.rate - rate).abs() <= CLOSE * rate {
        return None;
    }
    it.remaining = (it.remaining - it.rate * now.saturating_sub(it.since) as f64).max(0.0);
    (it.rate, it.since) = (rate, now);
    Some(foretell(it, number))
}

/// When what remains will have left.
fn foretell(it: &mut Connection, connection: u32) -> Foretold {
    let time = time_of(it.remaining, it.rate);
    it.version += 1;
    Foretold { at: it.since.saturating_add(time), connection, version: it.version }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, rounded")]
fn time_of(bytes: f64, rate: f64) -> Picoseconds {
    (bytes / rate).round() as Picoseconds
}

fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
