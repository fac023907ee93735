//! One communicator being formed, as its root sees it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use ringway_plan::{Layout, Preference, tuner::Constants};
use ringway_verbs::{Endpoint, Time};

use crate::{
    Answer, ENDPOINTS_MAX, Failure, FailureKind, GroupId, Host, ListedPlan, NodeRef, Offer, PeerEndpoint,
    ToMember, Width, host,
    names::{after, list_ranks},
    planning::{Place, Planning},
    plans,
};

/// Nodes whose devices are named when they have none in common.
const OFFERS_SHOWN: usize = 4;

/// Messages to members.
pub(crate) type Outbox = VecDeque<(NodeRef, ToMember)>;

/// A rank's wish to join.
#[derive(Debug)]
pub(crate) struct JoinOffer {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) timeout: Duration,
    pub(crate) devices: Vec<Offer>,
    pub(crate) preference: Preference,
    pub(crate) host: Host,
    pub(crate) plans: Vec<ListedPlan>,
}

/// What the root gives to every communicator.
#[derive(Debug)]
pub(crate) struct Terms<'a> {
    /// The time for opening and connecting.
    pub(crate) setup: Duration,
    pub(crate) planning: &'a Planning,
}

/// What became of a rendezvous.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It goes on.
    Waiting,
    /// It is formed, or nobody is left: nothing more to say.
    Over,
    /// It failed: every node must be told.
    Failed(Failure),
}

#[derive(Debug)]
pub(crate) struct Rendezvous {
    size: u32,
    /// The rank that brought `size`.
    first: u32,
    /// What is left of the time for opening and connecting, once all ranks are there.
    setup_deadline: Option<Time>,
    ranks: BTreeMap<u32, Seat>,
    nodes: BTreeMap<NodeRef, Node>,
    phase: Phase,
    /// Once all ranks are there.
    place: Option<Place>,
    /// The same; the widest before.
    width: Width,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Gathering,
    Opening,
    Connecting,
}

/// A rank that has joined.
#[derive(Debug, Clone, Copy)]
struct Seat {
    node: NodeRef,
    deadline: Time,
    timeout: Duration,
    preference: Preference,
}

/// What is known of one node.
#[derive(Debug)]
struct Node {
    group: GroupId,
    /// What it can use between nodes, the best first.
    devices: Vec<Offer>,
    /// What it was given as files.
    plans: Vec<ListedPlan>,
    number: u32,
    /// Its endpoints, by the node and the channel that they are for.
    endpoints: BTreeMap<(u32, u8), Endpoint>,
    /// All of them came.
    open: bool,
    ready: bool,
    host: Host,
    /// What it found its links to be.
    measured: Option<Constants>,
}

impl Rendezvous {
    /// For a first join, which [`Rendezvous::join`] must be told as well.
    pub(crate) fn new(offer: &JoinOffer) -> Self {
        Self {
            size: offer.size,
            first: offer.rank,
            setup_deadline: None,
            ranks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            phase: Phase::Gathering,
            place: None,
            width: Width::ONE,
        }
    }

    /// This node's own name for the communicator, if it takes part.
    pub(crate) fn group_of(&self, node: NodeRef) -> Option<GroupId> {
        self.nodes.get(&node).map(|n| n.group)
    }

    pub(crate) fn ranks_joined(&self) -> usize {
        self.ranks.len()
    }

    /// When it fails if nothing happens.
    pub(crate) fn deadline(&self) -> Time {
        let first = self.ranks.values().map(|s| s.deadline).min();
        self.setup_deadline.max(first).unwrap_or(Time(u64::MAX))
    }

    pub(crate) fn join(
        &mut self,
        from: NodeRef,
        group: GroupId,
        offer: JoinOffer,
        now: Time,
        terms: &Terms<'_>,
        out: &mut Outbox,
    ) -> Verdict {
        let JoinOffer { rank, size, timeout, devices, preference, host, plans } = offer;
        let mut refuse = |kind, text: String| {
            let body = Answer::Refuse { rank, failure: Failure::new(kind, text) };
            out.push_back((from, ToMember { group, body }));
            Verdict::Waiting
        };
        let (known, first) = (self.size, self.first);
        let sizes = || {
            format!(
                "rank {rank} was started with {size} ranks but rank {first} with {known}: every rank must give \
                 the same number"
            )
        };
        if self.phase != Phase::Gathering && size != self.size {
            return refuse(FailureKind::SizeMismatch, sizes());
        }
        if size == self.size && self.ranks.contains_key(&rank) {
            let text = format!("another process has already joined as rank {rank}: every rank joins once");
            return refuse(FailureKind::DuplicateRank, text);
        }
        let size_mismatch = (size != self.size).then(sizes);
        let device_mismatch = self.no_device(&devices, rank);
        let asked_otherwise = self.asked_otherwise(preference, rank);
        self.nodes.entry(from).or_insert(Node {
            group,
            devices,
            plans,
            number: 0,
            endpoints: BTreeMap::new(),
            open: false,
            ready: false,
            host,
            measured: None,
        });
        if let Some(text) = size_mismatch {
            return Verdict::Failed(Failure::new(FailureKind::SizeMismatch, text));
        }
        if let Some(text) = device_mismatch {
            return Verdict::Failed(Failure::new(FailureKind::Incompatible, text));
        }
        if let Some(text) = asked_otherwise {
            return Verdict::Failed(Failure::new(FailureKind::Invalid, text));
        }
        let deadline = after(now, timeout);
        self.ranks.insert(rank, Seat { node: from, deadline, timeout, preference });
        if self.ranks.len() == self.size as usize {
            self.setup_deadline = Some(after(now, terms.setup));
            return self.call_roster(terms.planning, out);
        }
        Verdict::Waiting
    }

    /// Why the nodes that are there and one with these devices cannot work together; `None` when they can.
    fn no_device(&self, devices: &[Offer], rank: u32) -> Option<String> {
        let has = |node: &Node, device: &str| node.devices.iter().any(|offer| offer.device == device);
        if devices.iter().any(|offer| self.nodes.values().all(|node| has(node, &offer.device))) {
            return None;
        }
        let names = |offers: &'_ [Offer]| offers.iter().map(|offer| offer.device.clone()).collect::<Vec<_>>();
        let seats =
            self.ranks.iter().filter_map(|(r, seat)| Some((*r, names(&self.nodes.get(&seat.node)?.devices))));
        let mut said: Vec<(u32, Vec<String>)> = Vec::new();
        for (rank, devices) in seats.chain([(rank, names(devices))]) {
            if said.len() < OFFERS_SHOWN && said.iter().all(|(_, other)| *other != devices) {
                said.push((rank, devices));
            }
        }
        let said = said.iter().map(|(rank, devices)| format!("rank {rank}'s has `{}`", devices.join("`, `")));
        let said = said.collect::<Vec<_>>().join(", ");
        let places =
            if said.contains(':') { "; one with a `:` works only in the place named after it" } else { "" };
        Some(format!(
            "the nodes have no device in common: {said}; configure one that works on every node (`ringway status` says \
             there why another does not{places})"
        ))
    }

    /// Why ranks that ask for these algorithms cannot work together; `None` when they can. Who asks for nothing takes what
    /// others ask for.
    fn asked_otherwise(&self, preference: Preference, rank: u32) -> Option<String> {
        let (other, asked) = self.preference()?;
        (!preference.is_auto() && preference != asked).then(|| {
            format!(
                "rank {rank} asks for the algorithm `{preference}` but rank {other} for `{asked}`: the ranks of a \
                 communicator must ask for the same, or for none"
            )
        })
    }

    /// What ranks ask for, and the first that does.
    fn preference(&self) -> Option<(u32, Preference)> {
        let mut seats = self.ranks.iter().map(|(rank, seat)| (*rank, seat.preference));
        seats.find(|(_, preference)| !preference.is_auto())
    }

    /// How wide connections of this device can be at all nodes; `None` where one lacks it.
    fn width_of(&self, device: &str) -> Option<Width> {
        let offers = self.nodes.values().map(|node| node.devices.iter().find(|offer| offer.device == device));
        let widths: Option<Vec<Width>> = offers.map(|offer| offer.map(|offer| offer.width)).collect();
        Width::common(widths?.into_iter())
    }

    /// The best device that all nodes have, in the order of the lowest rank's node.
    fn best_device(&self) -> Option<(String, Width)> {
        let (_, seat) = self.ranks.first_key_value()?;
        let mut devices = self.nodes.get(&seat.node)?.devices.iter();
        devices.find_map(|offer| Some((offer.device.clone(), self.width_of(&offer.device)?)))
    }

    /// Why the nodes cannot work together although all are there: they were given different plans.
    fn different_plans(&self, nodes: u32) -> Option<String> {
        let mut others = self.nodes.iter();
        let (first, node) = others.next()?;
        others.find_map(|(other, its)| {
            let (ranks, others) = (self.ranks_on(*first), self.ranks_on(*other));
            plans::difference(nodes, (&node.plans, &ranks), (&its.plans, &others))
        })
    }

    fn call_roster(&mut self, planning: &Planning, out: &mut Outbox) -> Verdict {
        let places: BTreeMap<NodeRef, u32> = self.nodes.keys().copied().zip(0..).collect();
        let labels: Vec<u32> = self.ranks.values().filter_map(|s| places.get(&s.node).copied()).collect();
        let (Some(layout), Some((device, width))) = (Layout::new(&labels), self.best_device()) else {
            return Verdict::Over;
        };
        if let Some(text) = self.different_plans(layout.nodes()) {
            return Verdict::Failed(Failure::new(FailureKind::Incompatible, text));
        }
        let node_of: Vec<u32> = (0..layout.ranks()).map(|r| layout.node_of(r)).collect();
        for (rank, seat) in &self.ranks {
            if let Some(node) = self.nodes.get_mut(&seat.node) {
                node.number = layout.node_of(*rank);
            }
        }
        self.phase = Phase::Opening;
        let mut hosts: Vec<String> = self.nodes.values().map(|node| node.host.name.clone()).collect();
        hosts.sort_unstable();
        let sharing = host::sharing(self.nodes.values().map(|node| &node.host));
        let channels = width.channels.into();
        let place = Place { layout: Arc::new(layout), device, hosts: Some(hosts), sharing, channels };
        let place = self.place.insert(place);
        let (measure, device) = (planning.wants_measured(place), place.device.clone());
        self.width = width;
        let roster = |node| {
            let (node_of, device) = (node_of.clone(), device.clone());
            Answer::Roster { node, node_of, device, width, measure }
        };
        self.tell_all(roster, out);
        Verdict::Waiting
    }

    /// A node sent some of its endpoints.
    pub(crate) fn endpoints(&mut self, from: NodeRef, list: &[PeerEndpoint], out: &mut Outbox) -> Verdict {
        let (nodes, channels) = (self.nodes.len(), self.width.channels);
        let opening = self.phase == Phase::Opening;
        let ranks = self.ranks_on(from);
        let Some(node) = self.nodes.get_mut(&from) else { return Verdict::Waiting };
        let sound = list.iter().all(|e| {
            opening
                && (e.node as usize) < nodes
                && e.node != node.number
                && e.channel < channels
                && node.endpoints.insert((e.node, e.channel), e.endpoint).is_none()
        });
        if !sound {
            let text = format!("the daemon of {ranks} sent endpoints that nobody asked for");
            return Verdict::Failed(Failure::new(FailureKind::Incompatible, text));
        }
        node.open = node.endpoints.len() >= (nodes - 1) * usize::from(channels);
        if self.nodes.values().any(|n| !n.open) {
            return Verdict::Waiting;
        }
        self.phase = Phase::Connecting;
        let mut for_node: BTreeMap<u32, Vec<PeerEndpoint>> = BTreeMap::new();
        for sender in self.nodes.values_mut() {
            for ((receiver, channel), endpoint) in core::mem::take(&mut sender.endpoints) {
                let endpoint = PeerEndpoint { node: sender.number, channel, endpoint };
                for_node.entry(receiver).or_default().push(endpoint);
            }
        }
        for (node_ref, node) in &self.nodes {
            let list = for_node.remove(&node.number).unwrap_or_default();
            for part in parts(&list) {
                let body = Answer::Endpoints(part.to_vec());
                out.push_back((*node_ref, ToMember { group: node.group, body }));
            }
        }
        Verdict::Waiting
    }

    /// A node is connected to all others.
    pub(crate) fn ready(
        &mut self,
        from: NodeRef,
        measured: Option<Constants>,
        planning: &mut Planning,
        out: &mut Outbox,
    ) -> Verdict {
        if self.phase != Phase::Connecting {
            let text = format!("the daemon of {} was ready before it could be", self.ranks_on(from));
            return Verdict::Failed(Failure::new(FailureKind::Incompatible, text));
        }
        if let Some(node) = self.nodes.get_mut(&from) {
            node.ready = true;
            node.measured = measured;
        }
        let Some(place) = self.place.as_ref().filter(|_| self.nodes.values().all(|n| n.ready)) else {
            return Verdict::Waiting;
        };
        // A collective waits for the slowest. What one node could not find out is not known.
        let measured = self.nodes.values().map(|node| node.measured).reduce(|a, b| Some(a?.slower(b?)));
        let preference = self.preference().map(|(_, preference)| preference).unwrap_or_default();
        let settings = planning.settings(place, preference, measured.flatten());
        self.tell_all(|_| Answer::Go { settings: settings.clone() }, out);
        Verdict::Over
    }

    /// A node takes back its joins. Only while ranks gather can the others go on without it.
    pub(crate) fn leave(&mut self, node: NodeRef) -> Verdict {
        if self.phase != Phase::Gathering {
            let text = format!("the daemon of {} gave up", self.ranks_on(node));
            return Verdict::Failed(Failure::new(FailureKind::RankFailed, text));
        }
        self.nodes.remove(&node);
        self.ranks.retain(|_, s| s.node != node);
        match self.ranks.first_key_value() {
            None => Verdict::Over,
            Some((rank, _)) => {
                self.first = *rank;
                Verdict::Waiting
            }
        }
    }

    pub(crate) fn node_lost(&self, node: NodeRef, reason: &str) -> Verdict {
        let text = format!(
            "the daemon of {} was lost while the communicator was being formed: {reason}",
            self.ranks_on(node)
        );
        Verdict::Failed(Failure::new(FailureKind::RankFailed, text))
    }

    /// Says who is late.
    pub(crate) fn timeout(&self) -> Failure {
        let text = match self.phase {
            Phase::Gathering => {
                let timeout =
                    self.ranks.values().min_by_key(|s| s.deadline).map_or(Duration::ZERO, |s| s.timeout);
                let missing = (0..self.size).filter(|r| !self.ranks.contains_key(r));
                format!(
                    "{} of {} never came within {} s: are they running, with the same communicator id and as the \
                     same user?",
                    list_ranks(missing),
                    self.size,
                    timeout.as_secs_f64()
                )
            }
            Phase::Opening => {
                format!("the daemon of {} did not open its queue pairs in time", self.late(|n| n.open))
            }
            Phase::Connecting => format!(
                "the daemon of {} could not connect to the other nodes in time; can all nodes reach each other's \
                 port?",
                self.late(|n| n.ready)
            ),
        };
        Failure::new(FailureKind::JoinTimeout, text)
    }

    /// The ranks of the nodes that have not done something yet.
    fn late(&self, done: impl Fn(&Node) -> bool) -> String {
        let is_late = |node: &NodeRef| self.nodes.get(node).is_some_and(|n| !done(n));
        list_ranks(self.ranks.iter().filter(|(_, s)| is_late(&s.node)).map(|(r, _)| *r))
    }

    fn ranks_on(&self, node: NodeRef) -> String {
        list_ranks(self.ranks.iter().filter(|(_, s)| s.node == node).map(|(r, _)| *r))
    }

    /// Tells every node what `answer` makes of its number.
    pub(crate) fn tell_all(&self, answer: impl Fn(u32) -> Answer, out: &mut Outbox) {
        for (node_ref, node) in &self.nodes {
            out.push_back((*node_ref, ToMember { group: node.group, body: answer(node.number) }));
        }
    }
}

/// Cuts a list of endpoints into what fits into messages: at least one, which may be empty.
pub(crate) fn parts(list: &[PeerEndpoint]) -> impl Iterator<Item = &[PeerEndpoint]> {
    let empty = list.is_empty().then_some(list);
    empty.into_iter().chain(list.chunks(ENDPOINTS_MAX))
}
