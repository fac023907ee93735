//! The root's side: all rendezvous of the communicators whose id names this daemon.

use std::{collections::BTreeMap, time::Duration};

use ringway_plan::tuner::Saved;
use ringway_verbs::Time;

use crate::{
    Answer, Failure, FailureKind, GroupId, Key, NodeRef, Planning, Request, ToMember, ToRoot,
    rendezvous::{JoinOffer, Outbox, Rendezvous, Terms, Verdict},
};

/// What a root allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most ranks of a communicator.
    pub ranks: u32,
    /// The most communicators being formed at once.
    pub rendezvous: usize,
    /// How long opening and connecting may take at least, however little was left of the joins' own time.
    pub setup: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { ranks: 8192, rendezvous: 1024, setup: Duration::from_secs(10) }
    }
}

/// Forms communicators. Give it what members say and what becomes of their connections; take what to tell them from
/// [`Root::next_message`].
#[derive(Debug, Default)]
pub struct Root {
    limits: Limits,
    planning: Planning,
    forming: BTreeMap<Key, Rendezvous>,
    out: Outbox,
}

impl Root {
    /// A root without any rendezvous.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// What the plans of communicators are chosen by that are formed from now on; until then the usual.
    pub fn set_planning(&mut self, planning: Planning) {
        self.planning = planning;
    }

    /// What was learnt of links, if that has changed since it was asked for last.
    pub fn take_learned(&mut self) -> Option<&Saved> {
        self.planning.take_learned()
    }

    /// What was asked for or given although the order does not allow it, if that has changed since it was asked for last.
    pub fn take_refused(&mut self) -> Option<String> {
        self.planning.take_refused()
    }

    /// A member said something.
    pub fn receive(&mut self, from: NodeRef, message: ToRoot, now: Time) {
        let ToRoot { key, group, body } = message;
        if let Request::Join { rank, size, timeout_ms, devices, preference, host, plans } = body {
            let timeout = Duration::from_millis(u64::from(timeout_ms));
            let offer = JoinOffer { rank, size, timeout, devices, preference, host, plans };
            return self.join(from, key, group, offer, now);
        }
        // Anything else about a rendezvous that is over, or from a member that is not part of it, crossed its end.
        let Some(rendezvous) = self.forming.get_mut(&key).filter(|r| r.group_of(from) == Some(group)) else {
            return;
        };
        let verdict = match body {
            Request::Endpoints(list) => rendezvous.endpoints(from, &list, &mut self.out),
            Request::Ready { measured } => {
                rendezvous.ready(from, measured, &mut self.planning, &mut self.out)
            }
            Request::Fail(failure) => Verdict::Failed(failure),
            Request::Leave | Request::Join { .. } => rendezvous.leave(from),
        };
        self.settle(key, verdict);
    }

    /// A member's connection is gone: whatever it took part in fails.
    pub fn node_lost(&mut self, node: NodeRef, reason: &str) {
        let keys: Vec<Key> =
            self.forming.iter().filter(|(_, r)| r.group_of(node).is_some()).map(|(k, _)| *k).collect();
        for key in keys {
            if let Some(rendezvous) = self.forming.get_mut(&key) {
                let verdict = rendezvous.node_lost(node, reason);
                self.settle(key, verdict);
            }
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Time) {
        let late: Vec<Key> =
            self.forming.iter().filter(|(_, r)| r.deadline() <= now).map(|(k, _)| *k).collect();
        for key in late {
            if let Some(rendezvous) = self.forming.get(&key) {
                let verdict = Verdict::Failed(rendezvous.timeout());
                self.settle(key, verdict);
            }
        }
    }

    /// Fails everything that is being formed, because the daemon ends.
    pub fn shut_down(&mut self, reason: &str) {
        for key in self.forming.keys().copied().collect::<Vec<_>>() {
            self.settle(key, Verdict::Failed(Failure::new(FailureKind::ShuttingDown, reason)));
        }
    }

    /// When [`Root::tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.forming.values().map(Rendezvous::deadline).min()
    }

    /// The next message for a member, in order.
    pub fn next_message(&mut self) -> Option<(NodeRef, ToMember)> {
        self.out.pop_front()
    }

    /// Whether this member takes part in something that is being formed.
    #[must_use]
    pub fn involves(&self, node: NodeRef) -> bool {
        self.forming.values().any(|r| r.group_of(node).is_some())
    }

    /// Communicators being formed.
    #[must_use]
    pub fn rendezvous(&self) -> usize {
        self.forming.len()
    }

    /// Ranks that have joined something that is being formed.
    #[must_use]
    pub fn ranks_joined(&self) -> usize {
        self.forming.values().map(Rendezvous::ranks_joined).sum()
    }

    fn join(&mut self, from: NodeRef, key: Key, group: GroupId, offer: JoinOffer, now: Time) {
        if let Some(failure) = self.objection(key, &offer) {
            let body = Answer::Refuse { rank: offer.rank, failure };
            self.out.push_back((from, ToMember { group, body }));
            return;
        }
        let rendezvous = self.forming.entry(key).or_insert_with(|| Rendezvous::new(&offer));
        if rendezvous.group_of(from).is_some_and(|old| old != group) {
            // The member started over and its word that it left was lost with something else: forget the old part.
            let verdict = rendezvous.leave(from);
            self.settle(key, verdict);
        }
        let terms = Terms { setup: self.limits.setup, planning: &self.planning };
        let rendezvous = self.forming.entry(key).or_insert_with(|| Rendezvous::new(&offer));
        let verdict = rendezvous.join(from, group, offer, now, &terms, &mut self.out);
        self.settle(key, verdict);
    }

    /// What is wrong with a join whatever else there is.
    fn objection(&self, key: Key, offer: &JoinOffer) -> Option<Failure> {
        let JoinOffer { rank, size, .. } = *offer;
        if size == 0 {
            return Some(Failure::new(FailureKind::Invalid, "a communicator has at least one rank, not 0"));
        }
        if rank >= size {
            let text = format!("rank {rank} of {size} ranks: ranks are numbered from 0 to {}", size - 1);
            return Some(Failure::new(FailureKind::Invalid, text));
        }
        if size > self.limits.ranks {
            let text =
                format!("{size} ranks are more than the {} a communicator may have", self.limits.ranks);
            return Some(Failure::new(FailureKind::Quota, text));
        }
        if !self.forming.contains_key(&key) && self.forming.len() >= self.limits.rendezvous {
            let text = format!(
                "the root daemon is already forming {} communicators, as many as it may; try again later",
                self.forming.len()
            );
            return Some(Failure::new(FailureKind::Quota, text));
        }
        None
    }

    fn settle(&mut self, key: Key, verdict: Verdict) {
        match verdict {
            Verdict::Waiting => {}
            Verdict::Over => {
                self.forming.remove(&key);
            }
            Verdict::Failed(failure) => {
                if let Some(rendezvous) = self.forming.remove(&key) {
                    rendezvous.tell_all(|_| Answer::Fail(failure.clone()), &mut self.out);
                }
            }
        }
    }
}
