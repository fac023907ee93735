//! How communicators come to be: what clients of this daemon join, what other daemons say about it, and what the
//! engine must open and connect for it.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use ringway_abi::{UniqueId, control::RefusalKind};
use ringway_group::{
    Failure, FailureKind, GroupId, HOST_BYTES_MAX, Host, JoinRequest, Key, Limits, ListedPlan, Member,
    MemberConfig, MemberEvent, NodeRef, Offer, Planning, Root, RootAt, Ticket, Width,
};
use ringway_plan::{
    Layout, PlanSettings, Preference,
    tuner::{Constants, Saved},
};
use ringway_verbs::{Endpoint, Time};

use crate::{
    ClusterKey,
    peers::{DataDoor, Peer, PeerEvent, Peers, PeersError, Times, is_local},
    poller::Poller,
};

/// One wish to join.
pub(crate) type JoinTicket = Ticket;
/// This daemon's name for a communicator while it is being formed; never used twice.
pub(crate) type GroupKey = GroupId;

/// What the membership module is told at start.
#[derive(Debug)]
pub(crate) struct PeersConfig {
    /// Where other daemons connect; port 0 for any. Together with `key`, or not at all: then only communicators of
    /// this node are formed.
    pub(crate) listen: Option<SocketAddr>,
    /// The same as others reach it, when it differs.
    pub(crate) advertised: Option<SocketAddr>,
    /// Addresses of this node at which data connections come as well.
    pub(crate) rails: Vec<IpAddr>,
    /// Proves that daemons belong together.
    pub(crate) key: Option<ClusterKey>,
    /// Tells the processors of the engine thread from others, and how many they are: as in [`Host`].
    pub(crate) processors: (u64, u32),
    /// What the devices between nodes speak, the best first. A communicator uses what all its nodes have.
    pub(crate) devices: Vec<Offer>,
    /// What the plans of communicators that are rooted here are chosen by.
    pub(crate) planning: Planning,
    /// The plans this node was given as files, in order.
    pub(crate) plans: Vec<ListedPlan>,
    /// How patient to be with others.
    pub(crate) times: Times,
}

/// A client's wish to join.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalJoin {
    /// Which communicator.
    pub(crate) id: UniqueId,
    /// As which rank.
    pub(crate) rank: u32,
    /// How many ranks it has.
    pub(crate) size: u32,
    /// Whose process it is.
    pub(crate) uid: u32,
    /// The client's session, for the log.
    pub(crate) session: u64,
    /// How long to wait for the others.
    pub(crate) timeout: Duration,
    /// The algorithms it asks for.
    pub(crate) preference: Preference,
}

/// What to do, or what came of a join.
#[derive(Debug)]
pub(crate) enum MembershipEvent {
    /// All ranks are there: open the queue pairs for each other node and call [`Membership::opened`].
    Open {
        /// Which communicator.
        group: GroupKey,
        /// Who is where.
        layout: Layout,
        /// This node's number.
        node: u32,
        /// What the device speaks that is used: one of [`PeersConfig::devices`].
        device: String,
        /// How many queue pairs for each node, over how many rails.
        width: Width,
        /// Whether to measure the links before [`Membership::ready`].
        measure: bool,
        /// The ranks on this node, ascending, with their tickets.
        local: Vec<(u32, JoinTicket)>,
    },
    /// Connect to these endpoints, named by their nodes, and call [`Membership::ready`].
    Connect {
        /// Which communicator.
        group: GroupKey,
        /// One for each channel to each other node: by node, and then by channel.
        endpoints: Vec<(u32, Endpoint)>,
    },
    /// All nodes are ready: the communicator is formed.
    Joined {
        /// Which communicator.
        group: GroupKey,
        /// What its plans are chosen by.
        settings: Box<PlanSettings>,
    },
    /// These joins came to nothing.
    Failed {
        /// The communicator, when it was opened before: close what was opened.
        group: Option<GroupKey>,
        /// Which joins; cancelled ones are not named.
        tickets: Vec<JoinTicket>,
        /// What kind of reason.
        kind: RefusalKind,
        /// What was wrong, what was expected and what to do.
        message: String,
    },
}

/// Forms communicators for the clients of this daemon. Lives on the control thread, works inside its methods only
/// and never blocks. Call [`Membership::next_event`] until there is none after every other call.
#[derive(Debug)]
pub(crate) struct Membership {
    listen: Option<SocketAddr>,
    advertised: Option<SocketAddr>,
    member: Member,
    root: Root,
    peers: Peers,
    /// What the group state machines count time from.
    start: Instant,
    /// The latest time that was told.
    now: Instant,
    events: VecDeque<MembershipEvent>,
}

impl Membership {
    /// Starts to listen if it is configured. `door` takes the data connections that arrive at the port.
    pub(crate) fn new(
        config: PeersConfig,
        door: Option<Box<dyn DataDoor>>,
        poller: Poller,
    ) -> Result<Self, PeersError> {
        let PeersConfig { listen, advertised, rails, key, processors, devices, planning, plans, times } =
            config;
        let peers = Peers::new((listen, &rails), key.as_ref(), times, door, poller)?;
        let limits = Limits { ranks: ringway_abi::MAX_RANKS, ..Limits::default() };
        let mut name = advertised.or(listen).map_or_else(String::new, |at| at.ip().to_string());
        name.truncate(HOST_BYTES_MAX);
        let host = Host { name, processors: processors.0, processor_count: processors.1 };
        let grace = Duration::from_secs(2);
        let member = Member::new(MemberConfig { devices, host, plans, grace, setup: limits.setup });
        let mut root = Root::new(limits);
        root.set_planning(planning);
        let now = Instant::now();
        Ok(Self {
            listen: peers.listening_on(),
            advertised,
            member,
            root,
            peers,
            start: now,
            now,
            events: VecDeque::new(),
        })
    }

    /// The address to put into ids of communicators that are rooted here; `None` when this daemon serves one node.
    pub(crate) fn advertised(&self) -> Option<SocketAddr> {
        self.advertised.or(self.listen).filter(|_| self.listen.is_some())
    }

    /// A client wants to join. What becomes of it is an event that names the ticket, also when it is refused at once.
    pub(crate) fn join(&mut self, join: LocalJoin, now: Instant) -> JoinTicket {
        self.observe(now);
        let LocalJoin { id, rank, size, uid, session, timeout, preference } = join;
        let root = self.place(id.root);
        let key = Key { secret: id.secret, uid };
        tracing::debug!(session, rank, size, uid, ?root, "a client joins a communicator");
        let request = JoinRequest { root, key, rank, size, timeout, preference };
        let ticket = self.member.join(request, self.time());
        if let RootAt::There(address) = root {
            if self.listen.is_some() {
                self.peers.seek(address, now);
            } else {
                let text = format!(
                    "the communicator's root is the daemon at {address}, but this daemon serves its own node only: \
                     set `listen` and `cluster_key_file`, with the same key on every node, and start it again"
                );
                self.member.root_lost(address, &Failure::new(FailureKind::Unreachable, text));
            }
        }
        self.pump();
        ticket
    }

    /// A client died or gave up: the communicator it was joining fails on every node.
    pub(crate) fn cancel(&mut self, ticket: JoinTicket) {
        self.member.cancel(ticket);
        self.pump();
    }

    /// What [`MembershipEvent::Open`] asked for is done: one endpoint for each channel to each other node.
    pub(crate) fn opened(&mut self, group: GroupKey, endpoints: Vec<(u32, Endpoint)>) {
        self.member.opened(group, endpoints);
        self.pump();
    }

    /// What [`MembershipEvent::Open`] or [`MembershipEvent::Connect`] asked for cannot be done: the communicator
    /// fails on every node.
    pub(crate) fn open_failed(&mut self, group: GroupKey, message: String) {
        self.member.abandon(group, Failure::new(FailureKind::RankFailed, message));
        self.pump();
    }

    /// What [`MembershipEvent::Connect`] asked for is done, with what was measured.
    pub(crate) fn ready(&mut self, group: GroupKey, measured: Option<Constants>) {
        self.member.ready(group, measured);
        self.pump();
    }

    /// What was learnt of links, if that has changed since it was asked for last.
    pub(crate) fn take_learned(&mut self) -> Option<&Saved> {
        self.root.take_learned()
    }

    /// What was asked for or given although the order does not allow it, if that has changed since it was asked for last.
    pub(crate) fn take_refused(&mut self) -> Option<String> {
        self.root.take_refused()
    }

    /// No further communicator is to use the devices that speak this protocol.
    pub(crate) fn withdraw(&mut self, protocol: &str) {
        self.member.withdraw(protocol);
    }

    /// The communicator was closed here. One that is still being formed fails on every node.
    pub(crate) fn closed(&mut self, group: GroupKey) {
        let text = "a node closed the communicator while it was being formed";
        self.member.abandon(group, Failure::new(FailureKind::RankFailed, text));
        self.pump();
    }

    /// The daemon ends: everything that is being formed fails.
    pub(crate) fn shut_down(&mut self) {
        let text = "a daemon that takes part in the communicator is shutting down";
        self.member.shut_down(text);
        self.root.shut_down(text);
        self.pump();
    }

    /// One of the descriptors that this module registered is ready.
    pub(crate) fn handle_event(&mut self, token: u64, now: Instant) {
        self.observe(now);
        self.peers.handle_event(token, now);
        self.pump();
    }

    /// When [`Membership::tick`] must be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let forming = [self.member.deadline(), self.root.deadline()].into_iter().flatten().min();
        let forming = forming.and_then(|t| self.start.checked_add(Duration::from_nanos(t.0)));
        forming.into_iter().chain(self.peers.deadline()).min()
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.observe(now);
        let Self { member, root, peers, .. } = self;
        peers.tick(now, &|peer, node| match peer {
            Peer::Root(address) => member.needs(address),
            Peer::Member => root.involves(node),
        });
        // What arrived counts before what is late.
        self.pump();
        self.root.tick(self.time());
        self.pump();
        self.member.tick(self.time());
        self.pump();
    }

    /// What to do next, in order.
    pub(crate) fn next_event(&mut self) -> Option<MembershipEvent> {
        self.events.pop_front()
    }

    /// Communicators being formed: by ranks here, and rooted here.
    pub(crate) fn forming(&self) -> (usize, usize) {
        (self.member.forming(), self.root.rendezvous())
    }

    /// Connections with other daemons, proved or not.
    pub(crate) fn connections(&self) -> usize {
        self.peers.connections()
    }

    fn observe(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn time(&self) -> Time {
        let passed = self.now.saturating_duration_since(self.start);
        Time(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    fn place(&self, root: Option<SocketAddr>) -> RootAt {
        match root {
            Some(address) if !is_here(address, self.listen, self.advertised) => RootAt::There(address),
            _ => RootAt::Here,
        }
    }

    /// Carries messages between members, roots and connections until nothing is left to carry.
    fn pump(&mut self) {
        loop {
            if let Some(event) = self.peers.next_event() {
                self.peer_event(event);
            } else if let Some(event) = self.member.next_event() {
                self.member_event(event);
            } else if let Some((node, message)) = self.root.next_message() {
                if node == NodeRef::HERE {
                    self.member.receive(RootAt::Here, message, self.time());
                } else {
                    self.peers.send_to_member(node, &message, self.now);
                }
            } else {
                return;
            }
        }
    }

    fn peer_event(&mut self, event: PeerEvent) {
        let time = self.time();
        match event {
            PeerEvent::RootConnected(root) => self.member.root_connected(root, time),
            PeerEvent::RootUnreachable(root, reason) => self.member.root_unreachable(root, &reason),
            PeerEvent::RootLost(root, failure) => self.member.root_lost(root, &failure),
            PeerEvent::FromRoot(root, message) => self.member.receive(RootAt::There(root), message, time),
            PeerEvent::FromMember(node, message) => self.root.receive(node, message, time),
            PeerEvent::MemberLost(node, reason) => self.root.node_lost(node, &reason),
        }
    }

    fn member_event(&mut self, event: MemberEvent) {
        let event = match event {
            MemberEvent::Send { root: RootAt::Here, message } => {
                return self.root.receive(NodeRef::HERE, message, self.time());
            }
            MemberEvent::Send { root: RootAt::There(root), message } => {
                return self.peers.send_to_root(root, &message, self.now);
            }
            MemberEvent::Open { group, layout, node, device, width, measure, local } => {
                MembershipEvent::Open { group, layout, node, device, width, measure, local }
            }
            MemberEvent::Connect { group, endpoints } => MembershipEvent::Connect { group, endpoints },
            MemberEvent::Formed { group, settings } => MembershipEvent::Joined { group, settings },
            MemberEvent::Failed { group, tickets, failure } => {
                MembershipEvent::Failed { group, tickets, kind: refusal(failure.kind), message: failure.text }
            }
        };
        self.events.push_back(event);
    }
}

/// Whether a root's address is this daemon's own.
fn is_here(root: SocketAddr, listen: Option<SocketAddr>, advertised: Option<SocketAddr>) -> bool {
    let Some(listen) = listen else {
        // This daemon serves one node. Ranks that were told an address of their own host meet here.
        return is_local(root.ip());
    };
    if root == listen || advertised == Some(root) {
        return true;
    }
    if root.port() != listen.port() {
        return false;
    }
    // Several daemons on one host are told apart by their loopback addresses.
    match listen.ip() {
        ip if ip.is_unspecified() => is_local(root.ip()),
        ip => is_loopback(root.ip()) && !is_loopback(ip),
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn refusal(kind: FailureKind) -> RefusalKind {
    match kind {
        FailureKind::Invalid => RefusalKind::Invalid,
        FailureKind::Quota => RefusalKind::Quota,
        FailureKind::DuplicateRank => RefusalKind::DuplicateRank,
        FailureKind::SizeMismatch => RefusalKind::SizeMismatch,
        FailureKind::JoinTimeout => RefusalKind::JoinTimeout,
        FailureKind::Unreachable => RefusalKind::Unreachable,
        FailureKind::Key => RefusalKind::Key,
        FailureKind::Incompatible => RefusalKind::Incompatible,
        FailureKind::RankFailed => RefusalKind::RankFailed,
        FailureKind::ShuttingDown => RefusalKind::ShuttingDown,
    }
}

#[cfg(test)]
#[path = "membership/tests.rs"]
mod tests;
