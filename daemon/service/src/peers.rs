//! The control connections between daemons: one port for each node, a Noise channel on each connection, and only
//! star traffic. A daemon connects to the roots of the communicators its clients join and accepts the daemons that
//! join what is rooted here. Data connections arrive at the same port and are handed on.
//!
//! Nothing here blocks: the control thread's epoll instance says what is ready.

mod channel;
mod events;
mod incoming;
mod link;
mod socket;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use ringway_group::{Failure, NodeRef, ToMember, ToRoot};
use thiserror::Error;

use self::{
    channel::{Channel, PresharedKey},
    incoming::Incoming,
    link::{Link, LinkEnd},
};
pub(crate) use self::{
    incoming::{DATA_PREFACE_BYTES, DataDoor},
    link::Peer,
    socket::is_local,
};
use crate::{
    ClusterKey,
    poller::{Interest, MEMBERSHIP_TOKENS, Poller},
};

/// Connections that have not proved who they are. With so many, further ones wait to be accepted.
const UNPROVEN_MAX: usize = 128;
/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long nothing is accepted after the system had no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a daemon that is turned away gets into the log.
const WARNING_PAUSE: Duration = Duration::from_secs(1);
const LISTENER_TOKEN: u64 = MEMBERSHIP_TOKENS;

/// How patient a daemon is with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// An accepted connection must have proved who it is by then.
    pub(crate) identify: Duration,
    /// An attempt to connect, the handshake included, must have succeeded by then.
    pub(crate) connect: Duration,
    /// The first pause between attempts; it doubles up to `retry_max`.
    pub(crate) retry_min: Duration,
    /// The longest pause between attempts.
    pub(crate) retry_max: Duration,
    /// How often a connection shows life while a join is in progress on it.
    pub(crate) keep_alive: Duration,
    /// How long a peer may be silent then before it counts as lost.
    pub(crate) silence: Duration,
    /// An unused connection is closed after this time.
    pub(crate) idle: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            identify: Duration::from_secs(2),
            connect: Duration::from_secs(5),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(1),
            keep_alive: Duration::from_millis(250),
            silence: Duration::from_secs(5),
            idle: Duration::from_secs(60),
        }
    }
}

/// Why a daemon cannot work with others.
#[derive(Debug, Error)]
pub(crate) enum PeersError {
    /// The port cannot be used.
    #[error(
        "cannot listen for other daemons on {address}: {reason}; set `listen`, and `rails` if there are some, to free addresses \
         of this host"
    )]
    Listen {
        /// What was configured.
        address: SocketAddr,
        /// The system's reason.
        reason: io::Error,
    },
    /// Only one of the two is there.
    #[error("`listen` and `cluster_key_file` go together: set both to work with other nodes, or neither")]
    Half,
    /// The cryptographic library lacks BLAKE2s.
    #[error("this build has no BLAKE2s, which the channel between daemons needs")]
    Cryptography,
}

/// What happened on the connections.
#[derive(Debug)]
pub(crate) enum PeerEvent {
    /// A root can be spoken to.
    RootConnected(SocketAddr),
    /// An attempt to reach a root failed; another follows while somebody waits for it.
    RootUnreachable(SocketAddr, String),
    /// The connection to a root is gone, or there is no point in trying.
    RootLost(SocketAddr, Failure),
    /// A root said something.
    FromRoot(SocketAddr, ToMember),
    /// A member said something.
    FromMember(NodeRef, ToRoot),
    /// A member's connection is gone.
    MemberLost(NodeRef, String),
}

/// A root that somebody waits for.
#[derive(Debug)]
struct Dial {
    link: Option<u64>,
    /// When to try again.
    retry_at: Option<Instant>,
    pause: Duration,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Peers {
    times: Times,
    poller: Poller,
    key: Option<PresharedKey>,
    /// The daemons' port first, then those of rails that it does not listen at.
    listeners: Vec<TcpListener>,
    /// Nothing is accepted until then, or until there is room again.
    accept_paused: Option<Option<Instant>>,
    door: Option<Box<dyn DataDoor>>,
    incoming: BTreeMap<u64, Incoming>,
    links: BTreeMap<u64, Link>,
    dials: BTreeMap<SocketAddr, Dial>,
    last_id: u64,
    last_warning: Option<Instant>,
    events: VecDeque<PeerEvent>,
}

impl Peers {
    /// Starts to listen if there is an address, and at those of rails; without a key there are no connections at all.
    pub(crate) fn new(
        (listen, rails): (Option<SocketAddr>, &[IpAddr]),
        key: Option<&ClusterKey>,
        times: Times,
        door: Option<Box<dyn DataDoor>>,
        poller: Poller,
    ) -> Result<Self, PeersError> {
        if listen.is_some() != key.is_some() {
            return Err(PeersError::Half);
        }
        let key = key.map(|k| PresharedKey::new(k).ok_or(PeersError::Cryptography)).transpose()?;
        let start = |address| {
            let listener = socket::listen(address)?;
            if let Some(door) = &door {
                door.prepare(listener.as_fd())?;
            }
            poller.add(&listener, LISTENER_TOKEN, Interest::Read)?;
            Ok(listener)
        };
        let mut listeners: Vec<TcpListener> = Vec::new();
        for address in listen.into_iter().flat_map(|listen| addresses(listen, rails)) {
            listeners.push(start(address).map_err(|reason| PeersError::Listen { address, reason })?);
        }
        Ok(Self {
            times,
            poller,
            key,
            listeners,
            accept_paused: None,
            door,
            incoming: BTreeMap::new(),
            links: BTreeMap::new(),
            dials: BTreeMap::new(),
            last_id: 0,
            last_warning: None,
            events: VecDeque::new(),
        })
    }

    /// Where other daemons can connect, as the system tells; the port is known even if any was asked for.
    pub(crate) fn listening_on(&self) -> Option<SocketAddr> {
        self.listeners.first()?.local_addr().ok()
    }

    /// The next event, in order.
    pub(crate) fn next_event(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }

    /// Control connections, those being made included.
    pub(crate) fn connections(&self) -> usize {
        self.links.len()
    }

    /// Somebody waits for this root: connects to it unless that is done or under way.
    pub(crate) fn seek(&mut self, root: SocketAddr, now: Instant) {
        let pause = self.times.retry_min;
        let dial = self.dials.entry(root).or_insert(Dial { link: None, retry_at: Some(now), pause });
        let due = dial.link.is_none() && dial.retry_at.is_none_or(|at| at <= now);
        if due {
            self.dial(root, now);
        }
    }

    /// Sends to a root; nothing happens when it is not connected.
    pub(crate) fn send_to_root(&mut self, root: SocketAddr, message: &ToRoot, now: Instant) {
        let link = self.dials.get(&root).and_then(|d| d.link);
        if let (Some(id), Ok(bytes)) = (link, message.encode()) {
            self.send(id, &bytes, now);
        }
    }

    /// Sends to a member; nothing happens when it is gone.
    pub(crate) fn send_to_member(&mut self, node: NodeRef, message: &ToMember, now: Instant) {
        if let Ok(bytes) = message.encode() {
            self.send(node.0, &bytes, now);
        }
    }

    /// When [`Peers::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let links = self.links.values().map(|l| l.deadline(&self.times));
        let incoming = self.incoming.values().map(|i| i.deadline);
        let retries = self.dials.values().filter(|d| d.link.is_none()).filter_map(|d| d.retry_at);
        links.chain(incoming).chain(retries).chain(self.accept_paused.flatten()).min()
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn unproven(&self) -> usize {
        let links = self.links.values().filter(|l| l.peer == Peer::Member && l.setup_deadline.is_some());
        self.incoming.len() + links.count()
    }

    fn send(&mut self, id: u64, message: &[u8], now: Instant) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if !link.channel.is_open() {
            return;
        }
        link.busy_since.get_or_insert(now);
        if let Err(end) = link.send(message, now, &self.poller) {
            self.end(id, end, now);
        }
    }

    /// Starts an attempt to connect.
    fn dial(&mut self, root: SocketAddr, now: Instant) {
        let Some(key) = self.key.clone() else { return };
        let id = self.next_id();
        let token = MEMBERSHIP_TOKENS | id;
        let opened = socket::connect(root).and_then(|stream| {
            let peer = (Peer::Root(root), root);
            let mut link = Link::new(stream, peer, Channel::dial(key), token, now, self.times.connect);
            link.register(&self.poller)?;
            Ok(link)
        });
        match opened {
            Ok(link) => {
                self.links.insert(id, link);
                if let Some(dial) = self.dials.get_mut(&root) {
                    dial.link = Some(id);
                    dial.retry_at = None;
                }
            }
            Err(e) => self.unreachable(root, e.to_string(), now),
        }
    }

    fn unreachable(&mut self, root: SocketAddr, reason: String, now: Instant) {
        if let Some(dial) = self.dials.get_mut(&root) {
            dial.link = None;
            dial.retry_at = Some(now + dial.pause);
            dial.pause = (dial.pause * 2).min(self.times.retry_max);
        }
        self.events.push_back(PeerEvent::RootUnreachable(root, reason));
    }
}

/// Where to listen: at the daemons' port, and at rails' addresses that this does not cover.
fn addresses(listen: SocketAddr, rails: &[IpAddr]) -> impl Iterator<Item = SocketAddr> {
    let covered = move |rail: &&IpAddr| listen.ip().is_unspecified() || listen.ip() == **rail;
    let further = rails.iter().filter(move |rail| !covered(rail));
    std::iter::once(listen).chain(further.map(move |rail| SocketAddr::new(*rail, listen.port())))
}
