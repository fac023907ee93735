//! A member's side: the communicators that ranks of this node are joining.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use ringway_plan::{Layout, PlanSettings, Preference, tuner::Constants};
use ringway_verbs::{Endpoint, Time};

use crate::{
    Answer, Failure, FailureKind, GroupId, Host, Key, ListedPlan, Offer, PeerEndpoint, Request, RootAt,
    Ticket, ToMember, ToRoot, Width,
    names::{after, list_ranks},
    rendezvous::parts,
};

/// What a member is told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberConfig {
    /// The devices this node can use between nodes, the best first: one to [`DEVICES_MAX`](crate::DEVICES_MAX). A
    /// communicator uses one that all its nodes have.
    pub devices: Vec<Offer>,
    /// Where this node runs.
    pub host: Host,
    /// The plans this node was given as files, at most [`PLANS_MAX`](crate::PLANS_MAX), in order: of those for one thing it
    /// uses the last. The nodes of a communicator must use the same.
    pub plans: Vec<ListedPlan>,
    /// How long after its own deadline a member still waits for the root to say who was missing.
    pub grace: Duration,
    /// As [`crate::Limits::setup`] at the root.
    pub setup: Duration,
}

/// A local rank's wish to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinRequest {
    /// Where the root is.
    pub root: RootAt,
    /// Which communicator.
    pub key: Key,
    /// As which rank.
    pub rank: u32,
    /// How many ranks it has.
    pub size: u32,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// The algorithms it asks for: the same as others do, or none.
    pub preference: Preference,
}

/// What a member asks for or reports.
#[derive(Debug, Clone, PartialEq)]
pub enum MemberEvent {
    /// Send this to the root.
    Send {
        /// Where it is. [`RootAt::There`] only while [`Member::root_connected`] was the last that was said of it.
        root: RootAt,
        /// What to send.
        message: ToRoot,
    },
    /// All ranks are there: open the queue pairs for each other node and call [`Member::opened`].
    Open {
        /// This member's name for the communicator.
        group: GroupId,
        /// Who is where.
        layout: Layout,
        /// This node's number.
        node: u32,
        /// The device to use: one of [`MemberConfig::devices`].
        device: String,
        /// How many queue pairs to open for each node.
        width: Width,
        /// Whether to measure the links before [`Member::ready`].
        measure: bool,
        /// The local ranks, ascending, with their tickets.
        local: Vec<(u32, Ticket)>,
    },
    /// Connect the queue pairs to these endpoints, named by their nodes, and call [`Member::ready`].
    Connect {
        /// Which communicator.
        group: GroupId,
        /// One for each channel to each other node: by node, and then by channel.
        endpoints: Vec<(u32, Endpoint)>,
    },
    /// All nodes are ready: the communicator is formed, and forgotten here.
    Formed {
        /// Which communicator.
        group: GroupId,
        /// What its plans are chosen by: the same on all nodes.
        settings: Box<PlanSettings>,
    },
    /// These ranks have not joined.
    Failed {
        /// The communicator, when it was opened before: close what was opened for it.
        group: Option<GroupId>,
        /// Whose wish it was. Empty when all of them were cancelled.
        tickets: Vec<Ticket>,
        /// Why.
        failure: Failure,
    },
}

/// Joins communicators for the ranks of this node. Tell it what they want, what roots say and what becomes of the
/// connections to them; do what [`Member::next_event`] asks for.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    /// Devices that are not offered any more.
    withdrawn: BTreeSet<String>,
    groups: BTreeMap<GroupId, Group>,
    by_key: BTreeMap<(RootAt, Key), GroupId>,
    connected: BTreeSet<SocketAddr>,
    trouble: BTreeMap<SocketAddr, String>,
    last_group: u64,
    last_ticket: u64,
    events: VecDeque<MemberEvent>,
}

/// A communicator being formed.
#[derive(Debug)]
struct Group {
    root: RootAt,
    key: Key,
    seats: BTreeMap<u32, Seat>,
    /// Something was said to the root.
    announced: bool,
    setup_deadline: Option<Time>,
    phase: Phase,
    roster: Option<Roster>,
    /// The other nodes' endpoints, by node and channel.
    received: BTreeMap<(u32, u8), Endpoint>,
}

#[derive(Debug)]
struct Seat {
    ticket: Ticket,
    size: u32,
    deadline: Time,
    preference: Preference,
    announced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waiting for the roster.
    Gathering,
    /// Waiting for [`Member::opened`].
    Opening,
    /// Waiting for the other nodes' endpoints.
    Exchanging,
    /// Waiting for [`Member::ready`].
    Connecting,
    /// Waiting for the others.
    Ready,
}

/// What the root said about who is where.
#[derive(Debug)]
struct Roster {
    layout: Layout,
    node: u32,
    width: Width,
}

impl Roster {
    fn others(&self) -> impl Iterator<Item = u32> {
        (0..self.layout.nodes()).filter(|n| *n != self.node)
    }

    /// Every channel of every other node.
    fn channels(&self) -> impl Iterator<Item = (u32, u8)> {
        self.others().flat_map(|node| (0..self.width.channels).map(move |channel| (node, channel)))
    }
}

impl Member {
    /// A member that joins nothing yet.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        Self {
            config,
            withdrawn: BTreeSet::new(),
            groups: BTreeMap::new(),
            by_key: BTreeMap::new(),
            connected: BTreeSet::new(),
            trouble: BTreeMap::new(),
            last_group: 0,
            last_ticket: 0,
            events: VecDeque::new(),
        }
    }

    /// Does not offer a device any more, which is broken or gone: further communicators use another one. Where it is the only one
    /// it is still offered, as nodes without any cannot join, and says itself what is wrong.
    pub fn withdraw(&mut self, device: &str) {
        self.withdrawn.insert(device.to_owned());
    }

    /// What is offered: the devices that were not withdrawn, or all where none is left.
    fn offers(&self) -> Vec<Offer> {
        let (all, is_left) = (&self.config.devices, |offer: &&Offer| !self.withdrawn.contains(&offer.device));
        let left: Vec<Offer> = all.iter().filter(is_left).cloned().collect();
        if left.is_empty() { all.clone() } else { left }
    }

    /// A local rank wants to join. What becomes of it is an event with this ticket, also when it is refused at once.
    pub fn join(&mut self, request: JoinRequest, now: Time) -> Ticket {
        let JoinRequest { root, key, rank, size, timeout, preference } = request;
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let id = self.group_for(root, key);
        let Some(group) = self.groups.get_mut(&id) else { return ticket };
        if let Some(failure) = objection(group, rank, size) {
            self.events.push_back(MemberEvent::Failed { group: None, tickets: vec![ticket], failure });
        } else {
            let deadline = after(now, timeout);
            let seat = Seat { ticket, size, deadline, preference, announced: false };
            group.seats.insert(rank, seat);
            self.announce(id, now);
        }
        ticket
    }

    /// A local rank is gone or gave up: the whole communicator fails, unless it is formed already.
    pub fn cancel(&mut self, ticket: Ticket) {
        let mut all = self.groups.iter();
        let found =
            all.find_map(|(id, g)| g.seats.iter().find(|(_, s)| s.ticket == ticket).map(|(r, _)| (*id, *r)));
        let Some((id, rank)) = found else { return };
        if let Some(group) = self.groups.get_mut(&id) {
            group.seats.remove(&rank);
        }
        let text = format!("rank {rank} was lost while the communicator was being formed");
        self.fail_and_tell(id, Failure::new(FailureKind::RankFailed, text));
    }

    /// The queue pairs that [`MemberEvent::Open`] asked for are there: one endpoint for each channel to each other node, those
    /// to one node in the order of the channels.
    pub fn opened(&mut self, id: GroupId, endpoints: Vec<(u32, Endpoint)>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (Phase::Opening, Some(roster)) = (group.phase, &group.roster) else { return };
        let mut list: Vec<PeerEndpoint> = Vec::with_capacity(endpoints.len());
        for (node, endpoint) in endpoints {
            let before = list.iter().rev().take_while(|other| other.node == node).count();
            list.push(PeerEndpoint { node, channel: u8::try_from(before).unwrap_or(u8::MAX), endpoint });
        }
        list.sort_unstable_by_key(|one| (one.node, one.channel));
        if !list.iter().map(|one| (one.node, one.channel)).eq(roster.channels()) {
            let text = "the daemon did not open exactly the queue pairs that there are to each other node";
            return self.fail_and_tell(id, Failure::new(FailureKind::RankFailed, text));
        }
        group.phase = Phase::Exchanging;
        for part in parts(&list) {
            self.say(id, Request::Endpoints(part.to_vec()));
        }
    }

    /// The queue pairs could not be opened or connected, or the communicator is not wanted any more: it fails on
    /// every node. Nothing happens to one that is formed.
    pub fn abandon(&mut self, id: GroupId, failure: Failure) {
        self.fail_and_tell(id, failure);
    }

    /// The queue pairs are connected as [`MemberEvent::Connect`] asked, and the links measured if that was wanted and could be
    /// done.
    pub fn ready(&mut self, id: GroupId, measured: Option<Constants>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.phase != Phase::Connecting {
            return;
        }
        group.phase = Phase::Ready;
        self.say(id, Request::Ready { measured });
    }

    /// A connection to a root is there.
    pub fn root_connected(&mut self, root: SocketAddr, now: Time) {
        self.connected.insert(root);
        self.trouble.remove(&root);
        for id in self.groups_of(root) {
            self.announce(id, now);
        }
    }

    /// An attempt to connect to a root failed for a reason that may pass. It is what ranks are told when their time
    /// is up.
    pub fn root_unreachable(&mut self, root: SocketAddr, reason: &str) {
        if !self.groups_of(root).is_empty() {
            self.trouble.insert(root, reason.into());
        }
    }

    /// The connection to a root is gone, or cannot be made for a reason that will not pass: what waits for this root
    /// fails.
    pub fn root_lost(&mut self, root: SocketAddr, failure: &Failure) {
        self.connected.remove(&root);
        self.trouble.remove(&root);
        for id in self.groups_of(root) {
            self.fail(id, failure.clone());
        }
    }

    /// A root said something.
    pub fn receive(&mut self, root: RootAt, message: ToMember, now: Time) {
        let id = message.group;
        let Some(group) = self.groups.get_mut(&id).filter(|g| g.root == root) else { return };
        let outcome = match message.body {
            Answer::Refuse { rank, failure } => {
                let seat = group.seats.remove(&rank).map(|s| s.ticket);
                if group.seats.is_empty() {
                    self.forget(id);
                }
                if let Some(ticket) = seat {
                    self.events.push_back(MemberEvent::Failed {
                        group: None,
                        tickets: vec![ticket],
                        failure,
                    });
                }
                Some(())
            }
            Answer::Roster { node, node_of, device, width, measure } => {
                self.roster(id, (node, &node_of), (device, width, measure), now)
            }
            Answer::Endpoints(list) => self.endpoints(id, &list),
            Answer::Go { settings } => self.go(id, settings),
            Answer::Fail(failure) => {
                // A join that crossed this failure must not wait at the root for a rank that has given up.
                self.say(id, Request::Leave);
                self.fail(id, failure);
                Some(())
            }
        };
        if outcome.is_none() {
            let text = "the root daemon broke the protocol; do all nodes run the same version of Ringway?";
            self.fail_and_tell(id, Failure::new(FailureKind::Incompatible, text));
        }
    }
    /// Lets time pass.
    pub fn tick(&mut self, now: Time) {
        let late: Vec<GroupId> =
            self.groups.iter().filter(|(_, g)| self.expiry(g) <= now).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(group) = self.groups.get(&id) {
                let failure = self.lateness(group);
                self.fail_and_tell(id, failure);
            }
        }
    }

    /// Fails everything that is being formed, because the daemon ends.
    pub fn shut_down(&mut self, reason: &str) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.fail_and_tell(id, Failure::new(FailureKind::ShuttingDown, reason));
        }
    }

    /// When [`Member::tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.groups.values().map(|g| self.expiry(g)).min()
    }

    /// What to do next, in order.
    pub fn next_event(&mut self) -> Option<MemberEvent> {
        self.events.pop_front()
    }

    /// Whether something is being formed whose root is there.
    #[must_use]
    pub fn needs(&self, root: SocketAddr) -> bool {
        self.groups.values().any(|g| g.root == RootAt::There(root))
    }

    /// Communicators being formed.
    #[must_use]
    pub fn forming(&self) -> usize {
        self.groups.len()
    }

    fn group_for(&mut self, root: RootAt, key: Key) -> GroupId {
        if let Some(id) = self.by_key.get(&(root, key)) {
            return *id;
        }
        self.last_group += 1;
        let id = GroupId(self.last_group);
        let group = Group {
            root,
            key,
            seats: BTreeMap::new(),
            announced: false,
            setup_deadline: None,
            phase: Phase::Gathering,
            roster: None,
            received: BTreeMap::new(),
        };
        self.groups.insert(id, group);
        self.by_key.insert((root, key), id);
        id
    }

    fn groups_of(&self, root: SocketAddr) -> Vec<GroupId> {
        self.groups.iter().filter(|(_, g)| g.root == RootAt::There(root)).map(|(id, _)| *id).collect()
    }

    fn is_connected(&self, root: RootAt) -> bool {
        match root {
            RootAt::Here => true,
            RootAt::There(address) => self.connected.contains(&address),
        }
    }

    /// Tells the root of local ranks that it does not know of, once it is there.
    fn announce(&mut self, id: GroupId, now: Time) {
        let Some(root) = self.groups.get(&id).map(|g| g.root) else { return };
        if !self.is_connected(root) {
            return;
        }
        let devices = self.offers();
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.announced = true;
        for (rank, seat) in group.seats.iter_mut().filter(|(_, s)| !s.announced) {
            seat.announced = true;
            let left_ms = seat.deadline.0.saturating_sub(now.0) / 1_000_000;
            let body = Request::Join {
                rank: *rank,
                size: seat.size,
                timeout_ms: u32::try_from(left_ms).unwrap_or(u32::MAX),
                devices: devices.clone(),
                preference: seat.preference,
                host: self.config.host.clone(),
                plans: self.config.plans.clone(),
            };
            let message = ToRoot { key: group.key, group: id, body };
            self.events.push_back(MemberEvent::Send { root, message });
        }
    }

    fn say(&mut self, id: GroupId, body: Request) {
        let Some(group) = self.groups.get(&id) else { return };
        if group.announced && self.is_connected(group.root) {
            let message = ToRoot { key: group.key, group: id, body };
            self.events.push_back(MemberEvent::Send { root: group.root, message });
        }
    }

    /// `None` when the root's roster makes no sense.
    fn roster(
        &mut self,
        id: GroupId,
        (node, node_of): (u32, &[u32]),
        (device, width, measure): (String, Width, bool),
        now: Time,
    ) -> Option<()> {
        let group = self.groups.get_mut(&id)?;
        let layout = Layout::new(node_of)?;
        let numbered = node_of.iter().zip(0..).all(|(n, rank)| layout.node_of(rank) == *n);
        let size = layout.ranks();
        let mine = layout.local(node);
        let can = |offer: &Offer| offer.device == device && offer.width.allows(width);
        let offered = self.config.devices.iter().any(can);
        if group.phase != Phase::Gathering || !numbered || mine.is_empty() || !offered {
            return None;
        }
        // A seat of a rank that is elsewhere is about to be refused; every rank that is here must have its seat.
        let local: Option<Vec<(u32, Ticket)>> = mine
            .iter()
            .map(|r| group.seats.get(r).filter(|s| s.size == size && s.announced).map(|s| (*r, s.ticket)))
            .collect();
        let local = local?;
        let first = group.seats.values().map(|s| s.deadline).min();
        group.setup_deadline = Some(after(now, self.config.setup)).max(first);
        group.phase = Phase::Opening;
        group.roster = Some(Roster { layout: layout.clone(), node, width });
        self.events.push_back(MemberEvent::Open { group: id, layout, node, device, width, measure, local });
        Some(())
    }

    fn endpoints(&mut self, id: GroupId, list: &[PeerEndpoint]) -> Option<()> {
        let group = self.groups.get_mut(&id)?;
        let roster = group.roster.as_ref().filter(|_| group.phase == Phase::Exchanging)?;
        for peer in list {
            let known = peer.node < roster.layout.nodes() && peer.node != roster.node;
            let known = known && peer.channel < roster.width.channels;
            if !known || group.received.insert((peer.node, peer.channel), peer.endpoint).is_some() {
                return None;
            }
        }
        if group.received.len() < roster.channels().count() {
            return Some(());
        }
        let received = core::mem::take(&mut group.received).into_iter();
        let endpoints = received.map(|((node, _), endpoint)| (node, endpoint)).collect();
        group.phase = Phase::Connecting;
        self.events.push_back(MemberEvent::Connect { group: id, endpoints });
        Some(())
    }

    fn go(&mut self, id: GroupId, settings: PlanSettings) -> Option<()> {
        let group = self.groups.get_mut(&id)?;
        let roster = group.roster.as_ref().filter(|_| group.phase == Phase::Ready)?;
        let size = roster.layout.ranks();
        let mine = roster.layout.local(roster.node);
        let refused: Vec<(u32, Ticket)> =
            group.seats.iter().filter(|(r, _)| !mine.contains(r)).map(|(r, s)| (*r, s.ticket)).collect();
        for (rank, ticket) in refused {
            // The root refuses these before it says go; this only makes sure that nobody waits for ever.
            let failure = occupied(rank, size);
            self.events.push_back(MemberEvent::Failed { group: None, tickets: vec![ticket], failure });
        }
        self.forget(id);
        self.events.push_back(MemberEvent::Formed { group: id, settings: Box::new(settings) });
        Some(())
    }

    fn forget(&mut self, id: GroupId) -> Option<Group> {
        let group = self.groups.remove(&id)?;
        self.by_key.remove(&(group.root, group.key));
        if let RootAt::There(root) = group.root
            && !self.needs(root)
        {
            self.trouble.remove(&root);
        }
        Some(group)
    }

    fn fail_and_tell(&mut self, id: GroupId, failure: Failure) {
        self.say(id, Request::Fail(failure.clone()));
        self.fail(id, failure);
    }

    fn fail(&mut self, id: GroupId, failure: Failure) {
        let Some(group) = self.forget(id) else { return };
        let tickets = group.seats.values().map(|s| s.ticket).collect();
        let opened = group.roster.is_some().then_some(id);
        self.events.push_back(MemberEvent::Failed { group: opened, tickets, failure });
    }

    /// When a group fails here, whatever the root does.
    fn expiry(&self, group: &Group) -> Time {
        let first = group.seats.values().map(|s| s.deadline).min().unwrap_or(Time(0));
        let deadline = group.setup_deadline.unwrap_or(first);
        if self.is_connected(group.root) { after(deadline, self.config.grace) } else { deadline }
    }

    fn lateness(&self, group: &Group) -> Failure {
        match group.root {
            RootAt::There(root) if !self.is_connected(group.root) => {
                let reason = self.trouble.get(&root).map_or("it did not answer", String::as_str);
                let text = format!(
                    "the root daemon at {root} cannot be reached: {reason}. Is a Ringway daemon running there that \
                     listens on this address?"
                );
                Failure::new(FailureKind::Unreachable, text)
            }
            root => {
                let root = match root {
                    RootAt::Here => "this daemon".to_owned(),
                    RootAt::There(address) => format!("the root daemon at {address}"),
                };
                let ranks = list_ranks(group.seats.keys().copied());
                let text = format!("{root} did not say in time what became of {ranks}");
                Failure::new(FailureKind::JoinTimeout, text)
            }
        }
    }
}

/// What is wrong with a join that this node can tell by itself.
fn objection(group: &Group, rank: u32, size: u32) -> Option<Failure> {
    if group.seats.contains_key(&rank) {
        let text =
            format!("another process on this node has already joined as rank {rank}: every rank joins once");
        return Some(Failure::new(FailureKind::DuplicateRank, text));
    }
    let known = group.roster.as_ref()?.layout.ranks();
    if size != known {
        let text = format!(
            "rank {rank} was started with {size} ranks but the others with {known}: every rank must give the same \
             number"
        );
        return Some(Failure::new(FailureKind::SizeMismatch, text));
    }
    Some(occupied(rank, size))
}

fn occupied(rank: u32, size: u32) -> Failure {
    if rank >= size {
        let text = format!("rank {rank} of {size} ranks: ranks are numbered from 0");
        return Failure::new(FailureKind::Invalid, text);
    }
    let text = format!("another process has already joined as rank {rank}: every rank joins once");
    Failure::new(FailureKind::DuplicateRank, text)
}
