//! Several daemons, each with a root and a member, the ordered connections between them, and what is asked of their
//! engines. A connection may break at any time, and its two ends notice at different times.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use crate::{
    Answer, Failure, FailureKind, GroupId, Host, JoinRequest, Key, Limits, Member, MemberConfig, MemberEvent,
    NodeRef, Offer, Planning, Root, RootAt, Ticket, ToMember, ToRoot, Width,
};
use ringway_plan::tuner::{Constants, Order};
use ringway_plan::{Algorithm, PlanSettings, Preference, Tuning};
use ringway_verbs::{Endpoint, Time};

/// How long every join waits.
pub(crate) const JOIN_MS: u64 = 5000;

/// What may happen.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Join { node: usize, root: usize, rank: u32, size: u32 },
    Deliver(usize),
    Work(usize),
    Connect(usize),
    Break(usize),
    Cancel(usize),
    FailWork(usize),
    Advance(u64),
}

/// What became of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Formed,
    Failed(FailureKind),
}

/// What an engine was asked for.
#[derive(Debug, Clone)]
enum Work {
    Open { node: usize, group: GroupId, number: u32, nodes: u32, channels: u8 },
    Ready { node: usize, group: GroupId },
}

#[derive(Debug)]
struct Connection {
    from: usize,
    to: usize,
    node: NodeRef,
    up: VecDeque<Vec<u8>>,
    down: VecDeque<Vec<u8>>,
}

/// A broken connection that one end has not noticed.
#[derive(Debug)]
enum Notice {
    Member { from: usize, to: usize },
    Root { to: usize, node: NodeRef },
}

/// The node's number, the roster, the local ranks' tickets, and the channels.
type Opened = (u32, Vec<u32>, Vec<(u32, Ticket)>, u8);

/// What a root gives to all, different from root to root.
fn settings(root: usize) -> PlanSettings {
    let tuning = Tuning { chunk_bytes: 1024 << root, ..Tuning::default() };
    PlanSettings::new(tuning, Preference::default(), Vec::new()).expect("within bounds")
}

#[derive(Debug)]
struct Daemon {
    member: Member,
    root: Root,
    opened: BTreeMap<GroupId, Opened>,
    closed: BTreeSet<GroupId>,
}

/// One roster that a root called: who was told.
#[derive(Debug)]
struct Instance {
    node_of: Vec<u32>,
    device: String,
    width: Width,
    root: usize,
    members: Vec<(usize, GroupId)>,
}

#[derive(Debug)]
pub(crate) struct Network {
    daemons: Vec<Daemon>,
    connections: Vec<Connection>,
    notices: Vec<Notice>,
    work: Vec<Work>,
    now: Time,
    last_node: u64,
    tickets: Vec<(usize, Ticket, u32)>,
    outcomes: BTreeMap<(usize, Ticket), Outcome>,
    formed: BTreeMap<(usize, GroupId), (u32, Vec<u32>)>,
    /// Members that were told to measure.
    measures: BTreeSet<(usize, GroupId)>,
    /// What members were told to choose their plans by.
    settings: BTreeMap<(usize, GroupId), PlanSettings>,
    failed: BTreeSet<(usize, GroupId)>,
    /// Members that failed by something of their own, which may cross the word to go.
    excused: BTreeSet<(usize, GroupId)>,
    instances: Vec<Instance>,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7411))
}

/// The endpoints of a node for another one.
fn endpoints(from: u32, to: u32, channels: u8) -> impl Iterator<Item = Endpoint> {
    (0..channels)
        .map(move |channel| Endpoint::new(format!("{from} to {to} by {channel}").as_bytes()).expect("short"))
}

impl Network {
    pub(crate) fn new(nodes: usize) -> Self {
        // What only some have is not used, whoever likes it best.
        let devices = |node: usize| match node % 3 {
            0 => &["fast", "sim"][..],
            1 => &["sim"],
            _ => &["sim", "fast"],
        };
        // Nodes of different widths: the fewest rails, and so many channels that each rail has as many.
        let width = |node: usize| {
            [(2, 4), (2, 2), (3, 3), (1, 3)].map(|(rails, channels)| Width { rails, channels })[node % 4]
        };
        let config = |node| MemberConfig {
            devices: devices(node)
                .iter()
                .map(|name| Offer { device: (*name).to_owned(), width: width(node) })
                .collect(),
            host: Host { name: format!("host{node}"), ..Host::default() },
            plans: Vec::new(),
            grace: Duration::from_secs(2),
            setup: Limits::default().setup,
        };
        let daemon = |node| {
            let mut root = Root::new(Limits::default());
            root.set_planning(Planning::new(settings(node), Order::Stable).measuring());
            let member = Member::new(config(node));
            Daemon { member, root, opened: BTreeMap::new(), closed: BTreeSet::new() }
        };
        Self {
            daemons: (0..nodes).map(daemon).collect(),
            connections: Vec::new(),
            notices: Vec::new(),
            work: Vec::new(),
            now: Time(0),
            last_node: 0,
            tickets: Vec::new(),
            outcomes: BTreeMap::new(),
            formed: BTreeMap::new(),
            measures: BTreeSet::new(),
            settings: BTreeMap::new(),
            failed: BTreeSet::new(),
            excused: BTreeSet::new(),
            instances: Vec::new(),
        }
    }

    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Join { node, root, rank, size } => {
                self.join(node, root, rank, size);
            }
            Action::Deliver(pick) => self.deliver(pick),
            Action::Work(pick) => self.work(pick, true),
            Action::FailWork(pick) => self.work(pick, false),
            Action::Connect(pick) => self.connect(pick),
            Action::Break(pick) => self.break_one(pick),
            Action::Cancel(pick) => {
                let open: Vec<_> = self.waiting();
                if let Some((node, ticket, rank)) = pick_from(&open, pick) {
                    self.cancel_ticket(node, ticket, rank);
                }
            }
            Action::Advance(ms) => self.advance(ms),
        }
    }

    /// A rank at `node` joins the communicator rooted at `root`.
    pub(crate) fn join(&mut self, node: usize, root: usize, rank: u32, size: u32) -> (usize, Ticket) {
        let at = if node == root { RootAt::Here } else { RootAt::There(address(root)) };
        let key = Key { secret: [root as u8; 16], uid: 1 };
        let timeout = Duration::from_millis(JOIN_MS);
        // Some ask for an algorithm, and all who do for the same.
        let ring = Preference::everywhere(Algorithm::Ring);
        let preference = if rank % 2 == 1 { ring } else { Preference::default() };
        let request = JoinRequest { root: at, key, rank, size, timeout, preference };
        let ticket = self.daemons[node].member.join(request, self.now);
        self.tickets.push((node, ticket, rank));
        self.pump();
        (node, ticket)
    }

    /// The process of a rank dies while it joins.
    pub(crate) fn cancel(&mut self, node: usize, rank: u32) {
        let open = self.waiting();
        let (node, ticket, rank) = *open.iter().find(|(n, _, r)| (*n, *r) == (node, rank)).expect("waiting");
        self.cancel_ticket(node, ticket, rank);
    }

    fn cancel_ticket(&mut self, node: usize, ticket: Ticket, _rank: u32) {
        let opened = self.daemons[node].opened.iter();
        let group =
            opened.filter(|(_, (_, _, local, _))| local.iter().any(|(_, t)| *t == ticket)).map(|(g, _)| *g);
        self.excused.extend(group.map(|g| (node, g)).collect::<Vec<_>>());
        self.outcomes.insert((node, ticket), Outcome::Failed(FailureKind::RankFailed));
        self.daemons[node].member.cancel(ticket);
        self.pump();
    }

    pub(crate) fn outcome(&self, node: usize, ticket: Ticket) -> Option<&Outcome> {
        self.outcomes.get(&(node, ticket))
    }

    fn waiting(&self) -> Vec<(usize, Ticket, u32)> {
        self.tickets.iter().filter(|(n, t, _)| !self.outcomes.contains_key(&(*n, *t))).copied().collect()
    }

    fn is_connected(&self, from: usize, to: usize) -> bool {
        let noticed = !self
            .notices
            .iter()
            .any(|n| matches!(n, Notice::Member { from: f, to: t } if (*f, *t) == (from, to)));
        !noticed || self.connections.iter().any(|c| (c.from, c.to) == (from, to))
    }

    fn connect(&mut self, pick: usize) {
        let pairs: Vec<(usize, usize)> = (0..self.daemons.len())
            .flat_map(|from| (0..self.daemons.len()).map(move |to| (from, to)))
            .filter(|(from, to)| from != to && self.daemons[*from].member.needs(address(*to)))
            .filter(|(from, to)| !self.is_connected(*from, *to))
            .collect();
        let Some((from, to)) = pick_from(&pairs, pick) else { return };
        self.last_node += 1;
        let node = NodeRef(self.last_node);
        self.connections.push(Connection { from, to, node, up: VecDeque::new(), down: VecDeque::new() });
        self.daemons[from].member.root_connected(address(to), self.now);
        self.pump();
    }

    fn break_one(&mut self, pick: usize) {
        if self.connections.is_empty() {
            return;
        }
        let at = pick % self.connections.len();
        let Connection { from, to, node, .. } = self.connections.remove(at);
        self.notices.push(Notice::Member { from, to });
        self.notices.push(Notice::Root { to, node });
        // Groups of this member that the root may already have let go.
        self.excused.extend(self.daemons[from].opened.keys().map(|g| (from, *g)));
    }

    /// Delivers one message, or lets one end notice that its connection is gone.
    fn deliver(&mut self, pick: usize) {
        let up =
            self.connections.iter().enumerate().filter(|(_, c)| !c.up.is_empty()).map(|(i, _)| (i, true));
        let down =
            self.connections.iter().enumerate().filter(|(_, c)| !c.down.is_empty()).map(|(i, _)| (i, false));
        let ready: Vec<(usize, bool)> = up.chain(down).collect();
        let all = ready.len() + self.notices.len();
        if all == 0 {
            return;
        }
        let at = pick % all;
        if let Some((index, up)) = ready.get(at) {
            let connection = &mut self.connections[*index];
            let (from, to, node) = (connection.from, connection.to, connection.node);
            if *up {
                let bytes = connection.up.pop_front().expect("not empty");
                self.daemons[to].root.receive(node, ToRoot::decode(&bytes).expect("ours"), self.now);
            } else {
                let bytes = connection.down.pop_front().expect("not empty");
                let message = ToMember::decode(&bytes).expect("ours");
                self.daemons[from].member.receive(RootAt::There(address(to)), message, self.now);
            }
        } else {
            match self.notices.remove(at - ready.len()) {
                Notice::Member { from, to } => {
                    let failure = Failure::new(FailureKind::RankFailed, "the connection is gone");
                    self.daemons[from].member.root_lost(address(to), &failure);
                }
                Notice::Root { to, node } => self.daemons[to].root.node_lost(node, "it hung up"),
            }
        }
        self.pump();
    }

    fn work(&mut self, pick: usize, succeeds: bool) {
        if self.work.is_empty() {
            return;
        }
        let work = self.work.remove(pick % self.work.len());
        let (Work::Open { node, group, .. } | Work::Ready { node, group }) = work;
        if !succeeds {
            self.excused.insert((node, group));
        }
        let member = &mut self.daemons[node].member;
        match work {
            _ if !succeeds => {
                member.abandon(group, Failure::new(FailureKind::RankFailed, "no queue pair is left"))
            }
            Work::Open { number, nodes, channels, .. } => {
                let others = (0..nodes).filter(|n| *n != number);
                let of = |n| endpoints(number, n, channels).map(move |endpoint| (n, endpoint));
                member.opened(group, others.flat_map(of).collect());
            }
            Work::Ready { .. } => {
                let measured = self.measures.contains(&(node, group));
                member.ready(group, measured.then(Constants::default));
            }
        }
        self.pump();
    }

    fn advance(&mut self, ms: u64) {
        self.now = Time(self.now.0 + ms * 1_000_000);
        for daemon in &mut self.daemons {
            if daemon.root.deadline().is_some_and(|d| d <= self.now) {
                daemon.root.tick(self.now);
            }
            if daemon.member.deadline().is_some_and(|d| d <= self.now) {
                daemon.member.tick(self.now);
            }
        }
        self.pump();
    }

    /// Carries what daemons have to say to the connections, and to themselves.
    fn pump(&mut self) {
        loop {
            let mut moved = false;
            for node in 0..self.daemons.len() {
                while let Some(event) = self.daemons[node].member.next_event() {
                    self.event(node, event);
                    moved = true;
                }
                let mut roster: Option<Instance> = None;
                while let Some((to, message)) = self.daemons[node].root.next_message() {
                    self.note_roster(node, to, &message, &mut roster);
                    if to == NodeRef::HERE {
                        self.daemons[node].member.receive(RootAt::Here, message, self.now);
                    } else if let Some(c) = self.connections.iter_mut().find(|c| c.node == to) {
                        c.down.push_back(message.encode().expect("fits"));
                    }
                    moved = true;
                }
                self.instances.extend(roster);
            }
            if !moved {
                return;
            }
        }
    }

    /// Rosters that a root calls in one go belong to one communicator.
    fn note_roster(&self, root: usize, to: NodeRef, message: &ToMember, roster: &mut Option<Instance>) {
        let Answer::Roster { node_of, device, width, .. } = &message.body else { return };
        let who = match self.connections.iter().find(|c| c.node == to) {
            Some(connection) => connection.from,
            None if to == NodeRef::HERE => root,
            None => return,
        };
        let instance = roster.get_or_insert_with(|| Instance {
            node_of: node_of.clone(),
            device: device.clone(),
            width: *width,
            root,
            members: Vec::new(),
        });
        assert_eq!((&instance.node_of, &instance.device, instance.width), (node_of, device, *width));
        instance.members.push((who, message.group));
    }

    fn event(&mut self, node: usize, event: MemberEvent) {
        match event {
            MemberEvent::Send { root: RootAt::Here, message } => {
                self.daemons[node].root.receive(NodeRef::HERE, message, self.now);
            }
            MemberEvent::Send { root: RootAt::There(root), message } => {
                let bytes = message.encode().expect("fits");
                let to = |c: &&mut Connection| c.from == node && address(c.to) == root;
                if let Some(c) = self.connections.iter_mut().find(to) {
                    c.up.push_back(bytes);
                }
            }
            MemberEvent::Open { group, layout, node: number, width, measure, local, .. } => {
                assert!(width.is_possible());
                if measure {
                    self.measures.insert((node, group));
                }
                let node_of: Vec<u32> = (0..layout.ranks()).map(|r| layout.node_of(r)).collect();
                assert_eq!(local.iter().map(|(r, _)| *r).collect::<Vec<_>>(), layout.local(number));
                let old = self.daemons[node].opened.insert(group, (number, node_of, local, width.channels));
                assert!(old.is_none(), "opened twice");
                let (nodes, channels) = (layout.nodes(), width.channels);
                self.work.push(Work::Open { node, group, number, nodes, channels });
            }
            MemberEvent::Connect { group, endpoints } => {
                let (number, node_of, _, channels) = &self.daemons[node].opened[&group];
                let nodes = node_of.iter().max().expect("a rank") + 1;
                let of = |n| self::endpoints(n, *number, *channels).map(move |endpoint| (n, endpoint));
                let expected: Vec<_> = (0..nodes).filter(|n| n != number).flat_map(of).collect();
                assert_eq!(endpoints, expected);
                self.work.push(Work::Ready { node, group });
            }
            MemberEvent::Formed { group, settings } => {
                self.settings.insert((node, group), *settings);
                let (number, node_of, local, _) = self.close(node, group);
                for (_, ticket) in local {
                    self.answer(node, ticket, Outcome::Formed);
                }
                self.formed.insert((node, group), (number, node_of));
            }
            MemberEvent::Failed { group, tickets, failure } => {
                if let Some(group) = group {
                    self.close(node, group);
                    self.failed.insert((node, group));
                    if failure.text.contains("did not say in time") {
                        self.excused.insert((node, group));
                    }
                }
                for ticket in tickets {
                    self.answer(node, ticket, Outcome::Failed(failure.kind));
                }
            }
        }
    }

    fn close(&mut self, node: usize, group: GroupId) -> Opened {
        assert!(self.daemons[node].closed.insert(group), "closed twice");
        self.work.retain(|w| {
            let (Work::Open { node: n, group: g, .. } | Work::Ready { node: n, group: g }) = w;
            (*n, *g) != (node, group)
        });
        self.daemons[node].opened.remove(&group).expect("opened before")
    }

    fn answer(&mut self, node: usize, ticket: Ticket, outcome: Outcome) {
        assert!(self.outcomes.insert((node, ticket), outcome).is_none(), "each ticket is answered once");
    }

    /// Lets everything happen that needs no time.
    pub(crate) fn settle(&mut self) {
        loop {
            let before = self.last_node;
            self.connect(0);
            let idle = self.notices.is_empty()
                && self.work.is_empty()
                && self.connections.iter().all(|c| c.up.is_empty() && c.down.is_empty());
            if idle && before == self.last_node {
                return;
            }
            self.deliver(0);
            self.work(0, true);
        }
    }

    /// Lets everything happen until nothing more can.
    pub(crate) fn finish(&mut self) {
        for _ in 0..10 {
            self.settle();
            self.advance(JOIN_MS);
        }
        self.settle();
    }

    /// What must hold in the end.
    pub(crate) fn check(&self) {
        assert_eq!(self.waiting(), [], "every ticket is answered");
        for daemon in &self.daemons {
            assert_eq!((daemon.member.forming(), daemon.root.rendezvous()), (0, 0));
            assert_eq!((daemon.member.deadline(), daemon.root.deadline()), (None, None));
            assert!(daemon.opened.is_empty());
        }
        let mut instances_formed = 0;
        for instance in &self.instances {
            let formed: Vec<_> = instance.members.iter().filter_map(|m| self.formed.get(m)).collect();
            instances_formed += formed.len();
            assert!(formed.iter().all(|(_, node_of)| *node_of == instance.node_of));
            let told: Vec<_> = instance.members.iter().filter_map(|m| self.settings.get(m)).collect();
            assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "all choose alike");
            let (several, ranks) = (instance.members.len() > 1, instance.node_of.len());
            let asked =
                if ranks > 1 { Preference::everywhere(Algorithm::Ring) } else { Preference::default() };
            for settings in told {
                let expected = self::settings(instance.root).preferring(asked);
                // These come from what was measured.
                let eager_write_max_bytes = settings.tuning().eager_write_max_bytes;
                assert_eq!((settings.rules().is_empty(), eager_write_max_bytes == 0), (!several, !several));
                let tuning = Tuning { eager_write_max_bytes, ..*expected.tuning() };
                assert_eq!((*settings.tuning(), settings.preference()), (tuning, asked));
            }
            let numbers: BTreeSet<u32> = formed.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers.len(), formed.len(), "each node has its own number");
            if !formed.is_empty() {
                for member in instance.members.iter().filter(|m| !self.formed.contains_key(m)) {
                    assert!(self.excused.contains(member), "{member:?} failed alone in {instance:?}");
                }
            }
        }
        assert_eq!(instances_formed, self.formed.len(), "nobody forms what no root called");
    }
}

fn pick_from<T: Copy>(list: &[T], pick: usize) -> Option<T> {
    list.get(pick.checked_rem(list.len())?).copied()
}
