//! Daemons without clients and engines: real sockets, a pretended engine that opens and connects at once, or not at
//! all for a daemon that is held at some phase.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use ringway_abi::{UniqueId, control::RefusalKind};
use ringway_group::{Offer, Planning};
use ringway_plan::{PlanSettings, Preference, tuner::Order};
use ringway_verbs::Endpoint;

use super::super::{GroupKey, JoinTicket, LocalJoin, Membership, MembershipEvent, PeersConfig};
use crate::{
    ClusterKey,
    peers::{DataDoor, Times},
    poller::{Poller, Ready},
};

/// Nothing in these tests takes this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Joined { rank: u32, node: u32, node_of: Vec<u32> },
    Refused { kind: RefusalKind, message: String },
}

/// The message of a refusal of this kind.
pub(crate) fn refused(outcome: Outcome, expected: RefusalKind) -> String {
    match outcome {
        Outcome::Refused { kind, message } => {
            assert_eq!(kind, expected, "{message}");
            message
        }
        other @ Outcome::Joined { .. } => panic!("{other:?} instead of {expected:?}"),
    }
}

pub(crate) fn id(root: Option<SocketAddr>, secret: u8) -> UniqueId {
    UniqueId { root, secret: [secret; 16] }
}

/// Which step a daemon does not do, so that a test can act while it is in that phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Nothing,
    Open,
    Connect,
}

#[derive(Debug)]
struct Forming {
    node: u32,
    node_of: Vec<u32>,
    local: Vec<(u32, JoinTicket)>,
}

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) membership: Membership,
    poller: Poller,
    ready: Ready,
    pub(crate) hold: Hold,
    /// Groups that reached the phase at which this daemon is held.
    pub(crate) held: Vec<GroupKey>,
    /// The devices of the groups that were opened.
    pub(crate) devices: Vec<String>,
    /// What the plans of the groups that were opened are chosen by.
    pub(crate) settings: Vec<PlanSettings>,
    forming: BTreeMap<GroupKey, Forming>,
    waiting: Vec<JoinTicket>,
    outcomes: BTreeMap<JoinTicket, Outcome>,
}

impl Daemon {
    pub(crate) fn new(listen: Option<SocketAddr>, key: u8, device: &str, times: Times) -> Self {
        Self::with_door(listen, key, device, times, None)
    }

    pub(crate) fn with_door(
        listen: Option<SocketAddr>,
        key: u8,
        device: &str,
        times: Times,
        door: Option<Box<dyn DataDoor>>,
    ) -> Self {
        let config = PeersConfig {
            listen,
            advertised: None,
            rails: Vec::new(),
            key: listen.map(|_| ClusterKey::new([key; 32])),
            processors: (0, 0),
            devices: device.split(',').map(Offer::narrow).collect(),
            planning: Planning::default(),
            plans: Vec::new(),
            times,
        };
        Self::configured(config, door)
    }

    fn configured(config: PeersConfig, door: Option<Box<dyn DataDoor>>) -> Self {
        let poller = Poller::new().expect("epoll");
        Self {
            membership: Membership::new(config, door, poller.clone()).expect("membership"),
            poller,
            ready: Ready::new(64),
            hold: Hold::Nothing,
            held: Vec::new(),
            devices: Vec::new(),
            settings: Vec::new(),
            forming: BTreeMap::new(),
            waiting: Vec::new(),
            outcomes: BTreeMap::new(),
        }
    }

    /// One turn of a control thread: what is ready, what is late, what is to be done.
    pub(crate) fn turn(&mut self, wait: Duration) {
        self.poller.wait(&mut self.ready, Some(wait)).expect("wait");
        let now = Instant::now();
        for token in self.ready.tokens() {
            self.membership.handle_event(*token, now);
        }
        if self.membership.deadline().is_some_and(|at| at <= now) {
            self.membership.tick(now);
        }
        self.act();
    }

    pub(crate) fn act(&mut self) {
        while let Some(event) = self.membership.next_event() {
            match event {
                MembershipEvent::Open { group, layout, node, device, local, .. } => {
                    self.devices.push(device);
                    let node_of = (0..layout.ranks()).map(|r| layout.node_of(r)).collect();
                    self.forming.insert(group, Forming { node, node_of, local });
                    if self.hold == Hold::Open {
                        self.held.push(group);
                        continue;
                    }
                    let endpoint =
                        |n| (n, Endpoint::new(format!("{node} to {n}").as_bytes()).expect("short"));
                    let others = (0..layout.nodes()).filter(|n| *n != node);
                    self.membership.opened(group, others.map(endpoint).collect());
                }
                MembershipEvent::Connect { group, endpoints } => {
                    let me = self.forming[&group].node;
                    for (node, endpoint) in &endpoints {
                        assert_eq!(endpoint.as_bytes(), format!("{node} to {me}").as_bytes());
                    }
                    if self.hold == Hold::Connect {
                        self.held.push(group);
                    } else {
                        self.membership.ready(group, None);
                    }
                }
                MembershipEvent::Joined { group, settings } => {
                    self.settings.push(*settings);
                    let Forming { node, node_of, local } = self.forming.remove(&group).expect("opened");
                    for (rank, ticket) in local {
                        self.settle(ticket, Outcome::Joined { rank, node, node_of: node_of.clone() });
                    }
                }
                MembershipEvent::Failed { group, tickets, kind, message } => {
                    if let Some(group) = group {
                        self.forming.remove(&group).expect("opened before");
                    }
                    for ticket in tickets {
                        self.settle(ticket, Outcome::Refused { kind, message: message.clone() });
                    }
                }
            }
        }
    }

    fn settle(&mut self, ticket: JoinTicket, outcome: Outcome) {
        self.waiting.retain(|t| *t != ticket);
        assert!(self.outcomes.insert(ticket, outcome).is_none(), "each ticket is answered once");
    }
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) daemons: Vec<Option<Daemon>>,
}

/// Any port on loopback.
pub(crate) fn any_port() -> Option<SocketAddr> {
    Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

impl Cluster {
    /// One daemon without a network.
    pub(crate) fn alone() -> Self {
        Self { daemons: vec![Some(Daemon::new(None, 0, "test", Times::default()))] }
    }

    /// Daemons at ports of their own on loopback, with one key.
    pub(crate) fn of(nodes: usize) -> Self {
        Self::with(nodes, Times::default())
    }

    pub(crate) fn with(nodes: usize, times: Times) -> Self {
        Self { daemons: (0..nodes).map(|_| Some(Daemon::new(any_port(), 5, "test", times))).collect() }
    }

    /// As [`Cluster::of`], each with settings of its own.
    pub(crate) fn with_settings(settings: Vec<PlanSettings>) -> Self {
        let daemon = |settings| {
            let config = PeersConfig {
                listen: any_port(),
                advertised: None,
                rails: Vec::new(),
                key: Some(ClusterKey::new([5; 32])),
                processors: (0, 0),
                devices: vec![Offer::narrow("test")],
                planning: Planning::new(settings, Order::Stable),
                plans: Vec::new(),
                times: Times::default(),
            };
            Some(Daemon::configured(config, None))
        };
        Self { daemons: settings.into_iter().map(daemon).collect() }
    }

    pub(crate) fn daemon(&mut self, node: usize) -> &mut Daemon {
        self.daemons[node].as_mut().expect("alive")
    }

    pub(crate) fn address(&mut self, node: usize) -> SocketAddr {
        self.daemon(node).membership.advertised().expect("listens")
    }

    pub(crate) fn join(&mut self, node: usize, id: UniqueId, rank: u32, size: u32) -> JoinTicket {
        self.join_as(node, id, (rank, size), 1000, PATIENCE)
    }

    pub(crate) fn join_as(
        &mut self,
        node: usize,
        id: UniqueId,
        (rank, size): (u32, u32),
        uid: u32,
        timeout: Duration,
    ) -> JoinTicket {
        let preference = Preference::default();
        self.join_with(node, LocalJoin { id, rank, size, uid, session: 1, timeout, preference })
    }

    pub(crate) fn join_with(&mut self, node: usize, join: LocalJoin) -> JoinTicket {
        let daemon = self.daemon(node);
        let ticket = daemon.membership.join(join, Instant::now());
        daemon.waiting.push(ticket);
        daemon.act();
        ticket
    }

    pub(crate) fn turn(&mut self) {
        for daemon in self.daemons.iter_mut().flatten() {
            daemon.turn(Duration::from_millis(1));
        }
    }

    /// Lets all daemons work until something holds.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "nothing more happens: {:?}", self.waiting());
            self.turn();
        }
    }

    pub(crate) fn run_until_settled(&mut self) {
        self.run_until(|c| c.waiting().is_empty());
    }

    /// Runs until this ticket is answered.
    pub(crate) fn settle(&mut self, node: usize, ticket: JoinTicket) -> Outcome {
        self.run_until(|c| !c.is_waiting(node, ticket));
        self.outcome(node, ticket)
    }

    pub(crate) fn outcome(&mut self, node: usize, ticket: JoinTicket) -> Outcome {
        self.daemon(node).outcomes[&ticket].clone()
    }

    pub(crate) fn is_waiting(&mut self, node: usize, ticket: JoinTicket) -> bool {
        self.daemon(node).waiting.contains(&ticket)
    }

    fn waiting(&self) -> Vec<JoinTicket> {
        self.daemons.iter().flatten().flat_map(|d| d.waiting.iter().copied()).collect()
    }

    /// No daemon remembers anything once all joins are answered.
    pub(crate) fn assert_nothing_left(&mut self) {
        self.run_until(|c| c.daemons.iter().flatten().all(|d| d.membership.forming() == (0, 0)));
        for daemon in self.daemons.iter().flatten() {
            assert!(daemon.forming.is_empty());
        }
    }
}
