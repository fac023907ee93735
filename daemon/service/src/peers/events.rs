//! What the sockets and the clock bring.

use std::{net::SocketAddr, time::Instant};

use ringway_group::{Failure, FailureKind, NodeRef, ToMember, ToRoot};

use super::{
    ACCEPT_PAUSE, ACCEPTS_PER_TURN, Incoming, LISTENER_TOKEN, Link, LinkEnd, Peer, PeerEvent, Peers,
    UNPROVEN_MAX, WARNING_PAUSE,
    channel::{self, Channel, ChannelError},
    incoming::Sort,
    socket,
};
use crate::poller::{Interest, MEMBERSHIP_TOKENS};

impl Peers {
    /// A descriptor is ready.
    pub(crate) fn handle_event(&mut self, token: u64, now: Instant) {
        let id = token & !MEMBERSHIP_TOKENS;
        if token == LISTENER_TOKEN {
            self.accept(now);
        } else if self.incoming.contains_key(&id) {
            self.sort(id, now);
        } else {
            self.work(id, now);
        }
        self.resume_accepting(now);
    }

    /// Lets time pass. `is_busy` tells whether a join is in progress with a peer.
    pub(crate) fn tick(&mut self, now: Instant, is_busy: &dyn Fn(Peer, NodeRef) -> bool) {
        self.incoming.retain(|_, i| i.deadline > now);
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            self.tend(id, now, is_busy);
        }
        let due: Vec<_> = self
            .dials
            .iter()
            .filter(|(_, d)| d.link.is_none() && d.retry_at.is_none_or(|at| at <= now))
            .map(|(root, _)| *root)
            .collect();
        for root in due {
            if is_busy(Peer::Root(root), NodeRef::HERE) {
                self.dial(root, now);
            } else {
                self.dials.remove(&root);
            }
        }
        self.resume_accepting(now);
    }

    fn tend(&mut self, id: u64, now: Instant, is_busy: &dyn Fn(Peer, NodeRef) -> bool) {
        let times = self.times;
        let Some(link) = self.links.get_mut(&id) else { return };
        if let Some(deadline) = link.setup_deadline {
            if deadline <= now {
                // What it sent may still wait to be read, if it is this daemon that was held up.
                self.work(id, now);
                self.give_up(id, now);
            }
            return;
        }
        if is_busy(link.peer, NodeRef(id)) {
            link.busy_since.get_or_insert(now);
        } else {
            link.busy_since = None;
        }
        if link.is_silent(now, &times) {
            self.work(id, now);
            if self.links.get(&id).is_some_and(|l| l.is_silent(now, &times)) {
                let text = format!("it has been silent for {} s", times.silence.as_secs_f64());
                self.lose(id, &text, now);
            }
            return;
        }
        let keep_alive = link.busy_since.is_some() && link.last_sent + times.keep_alive <= now;
        if keep_alive {
            if let Err(end) = link.send(&[], now, &self.poller) {
                self.end(id, end, now);
            }
        } else if link.busy_since.is_none() && link.idle_until(&times) <= now {
            self.lose(id, "it was not used any more", now);
        }
    }

    fn accept(&mut self, now: Instant) {
        let mut at = 0;
        for _ in 0..ACCEPTS_PER_TURN {
            if self.unproven() >= UNPROVEN_MAX {
                return self.pause_accepting(None);
            }
            let Some(listener) = self.listeners.get(at) else { return };
            match socket::accept(listener) {
                Ok(Some((stream, from))) => {
                    let id = self.next_id();
                    if self.poller.add(&stream, MEMBERSHIP_TOKENS | id, Interest::Read).is_ok() {
                        self.incoming.insert(id, Incoming::new(stream, from, now + self.times.identify));
                        self.sort(id, now);
                    }
                }
                Ok(None) => at += 1,
                Err(reason) => {
                    self.warn(
                        &format!("cannot accept a connection from another daemon ({reason}); trying again"),
                        now,
                    );
                    return self.pause_accepting(Some(now + ACCEPT_PAUSE));
                }
            }
        }
    }

    fn pause_accepting(&mut self, until: Option<Instant>) {
        for listener in &self.listeners {
            self.poller.remove(listener);
            self.accept_paused = Some(until);
        }
    }

    fn resume_accepting(&mut self, now: Instant) {
        let Some(until) = self.accept_paused else { return };
        if until.is_some_and(|at| at > now) {
            return;
        }
        self.accept_paused = if self.unproven() >= UNPROVEN_MAX {
            // Whatever takes up the room has a deadline of its own.
            Some(None)
        } else if self.listen_again() {
            None
        } else {
            Some(Some(now + ACCEPT_PAUSE))
        };
    }

    /// Watches the listeners again: all of them, or none.
    fn listen_again(&self) -> bool {
        let watch = |listener| self.poller.add(listener, LISTENER_TOKEN, Interest::Read).is_ok();
        let watched = self.listeners.iter().all(watch);
        if !watched {
            self.listeners.iter().for_each(|listener| self.poller.remove(listener));
        }
        watched
    }

    /// Finds out what an accepted connection is.
    fn sort(&mut self, id: u64, now: Instant) {
        let magic = self.door.as_ref().map(|d| d.magic());
        let Some(incoming) = self.incoming.get_mut(&id) else { return };
        let sort = incoming.sort(magic);
        if matches!(sort, Sort::Unknown) {
            return;
        }
        let Some(incoming) = self.incoming.remove(&id) else { return };
        self.poller.remove(&incoming.stream);
        match sort {
            Sort::Control(head) => self.welcome(id, incoming, &head, now),
            Sort::Data(preface) => {
                if let Some(door) = &mut self.door {
                    door.take(&preface, incoming.stream.into());
                }
            }
            Sort::Stray | Sort::Unknown => {
                tracing::debug!(from = %incoming.from, "closed a connection that is not from a Ringway daemon");
            }
        }
    }

    /// An accepted connection is a control connection.
    fn welcome(&mut self, id: u64, incoming: Incoming, head: &[u8], now: Instant) {
        let Some(key) = self.key.clone() else { return };
        let peer = (Peer::Member, incoming.from);
        let token = MEMBERSHIP_TOKENS | id;
        let setup = incoming.deadline.saturating_duration_since(now);
        let mut link = Link::new(incoming.stream, peer, Channel::accept(key), token, now, setup);
        let fed = link.feed(head, now, &mut Vec::new());
        if fed.is_ok() && link.register(&self.poller).is_ok() {
            self.links.insert(id, link);
            self.work(id, now);
        }
    }

    fn work(&mut self, id: u64, now: Instant) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (messages, result) = link.work(now, &self.poller);
        let peer = link.peer;
        if link.setup_deadline.is_some() && link.channel.is_open() {
            link.setup_deadline = None;
            if let Peer::Root(root) = peer {
                if let Some(dial) = self.dials.get_mut(&root) {
                    dial.pause = self.times.retry_min;
                }
                self.events.push_back(PeerEvent::RootConnected(root));
            }
        }
        if messages.iter().any(|m| !m.is_empty())
            && let Some(link) = self.links.get_mut(&id)
        {
            link.busy_since.get_or_insert(now);
        }
        let understood = messages.iter().filter(|m| !m.is_empty()).all(|m| self.pass_on(id, peer, m));
        if let Err(end) = result {
            self.end(id, end, now);
        } else if !understood {
            self.end(id, LinkEnd::Channel(ChannelError::Corrupt), now);
        }
    }

    fn pass_on(&mut self, id: u64, peer: Peer, message: &[u8]) -> bool {
        let event = match peer {
            Peer::Root(root) => ToMember::decode(message).map(|m| PeerEvent::FromRoot(root, m)),
            Peer::Member => ToRoot::decode(message).map(|m| PeerEvent::FromMember(NodeRef(id), m)),
        };
        event.map(|event| self.events.push_back(event)).is_ok()
    }

    /// A connection did not prove in time who is at the other end.
    fn give_up(&mut self, id: u64, now: Instant) {
        let Some(link) = self.links.get(&id).filter(|l| l.setup_deadline.is_some()) else { return };
        let after_s = self.times.connect.as_secs_f64();
        let reason = if link.connected {
            format!("it took the connection but did not answer like a Ringway daemon within {after_s} s")
        } else {
            format!("it did not answer within {after_s} s")
        };
        self.lose(id, &reason, now);
    }

    /// A link ended.
    pub(super) fn end(&mut self, id: u64, end: LinkEnd, now: Instant) {
        let Some(link) = self.links.get(&id) else { return };
        let (peer, address, was_open) = (link.peer, link.address, link.setup_deadline.is_none());
        let reason = match end {
            LinkEnd::Io(e) => e.to_string(),
            LinkEnd::Closed if was_open => "it closed the connection".into(),
            LinkEnd::Closed => "it closed the connection before it had said who it is".into(),
            LinkEnd::Channel(error) if was_open => match error {
                ChannelError::Backlog => "it does not read what it is sent".into(),
                _ => "it sent what no Ringway daemon sends".into(),
            },
            LinkEnd::Channel(error) => return self.refuse(id, (peer, address), error, now),
        };
        self.lose(id, &reason, now);
    }

    /// The other side is not a daemon of this cluster: there is no point in trying again.
    fn refuse(&mut self, id: u64, (peer, address): (Peer, SocketAddr), error: ChannelError, now: Instant) {
        self.drop_link(id);
        let (kind, text) = match error {
            ChannelError::OtherKey => (
                FailureKind::Key,
                format!(
                    "the peer at {address} has another cluster key: give all daemons of the cluster the same \
                     `cluster_key_file`"
                ),
            ),
            ChannelError::OtherVersion(theirs) => (
                FailureKind::Incompatible,
                format!(
                    "the peer at {address} speaks version {theirs} of the protocol between daemons, this one \
                     version {}: install the same version of Ringway on every node",
                    channel::VERSION
                ),
            ),
            ChannelError::NotRingway | ChannelError::Corrupt | ChannelError::Backlog => (
                FailureKind::Incompatible,
                format!(
                    "the peer at {address} is not a Ringway daemon: check the address, and that nothing else uses \
                     the port there"
                ),
            ),
        };
        match peer {
            Peer::Root(root) => {
                self.dials.remove(&root);
                self.events.push_back(PeerEvent::RootLost(root, Failure::new(kind, text)));
            }
            Peer::Member if kind == FailureKind::Incompatible && error == ChannelError::NotRingway => {
                tracing::debug!(from = %address, "closed a connection that is not from a Ringway daemon");
            }
            Peer::Member => self.warn(&text, now),
        }
    }

    /// Says what is wrong with a daemon that connected, but not so often that it could fill the log.
    fn warn(&mut self, text: &str, now: Instant) {
        if self.last_warning.is_none_or(|at| at + WARNING_PAUSE <= now) {
            self.last_warning = Some(now);
            tracing::warn!("{text}");
        } else {
            tracing::debug!("{text}");
        }
    }

    /// A link is gone for a reason that may pass.
    fn lose(&mut self, id: u64, reason: &str, now: Instant) {
        let Some(link) = self.drop_link(id) else { return };
        let was_open = link.setup_deadline.is_none();
        match link.peer {
            Peer::Root(root) if was_open => {
                self.dials.remove(&root);
                let text = format!("the connection to the root daemon at {root} was lost: {reason}");
                let failure = Failure::new(FailureKind::RankFailed, text);
                self.events.push_back(PeerEvent::RootLost(root, failure));
            }
            Peer::Root(root) => self.unreachable(root, reason.to_owned(), now),
            Peer::Member if was_open => {
                let text = format!("{} ({reason})", link.address);
                self.events.push_back(PeerEvent::MemberLost(NodeRef(id), text));
            }
            Peer::Member => {
                tracing::debug!(from = %link.address, reason, "a daemon did not finish its handshake");
            }
        }
    }

    fn drop_link(&mut self, id: u64) -> Option<Link> {
        let link = self.links.remove(&id)?;
        self.poller.remove(&link.stream);
        Some(link)
    }
}
