//! What happens because time passes: signs of life, timeouts, and word of late ranks.

use ringway_types::{DataType, Operation};
use ringway_verbs::{Device, Time};

use crate::collective::queue::rank_of;
use crate::communicator::{Communicator, State};
use crate::ending::lost;
use crate::link::Channel;
use crate::message::{Message, REASONS};
use crate::status::Late;
use crate::turn::{Shared, Turn, elapsed_ms};
use crate::{Failure, LocalMemory, Signature};

impl Communicator {
    /// Looks at the clock; returns whether there is something to do. `stalled`: this engine itself had no turn for a
    /// while, so that silence says nothing about the peers.
    pub(crate) fn tick(
        &mut self,
        now: Time,
        stalled: bool,
        memory: &dyn LocalMemory,
        shared: &mut Shared,
    ) -> bool {
        match self.state {
            State::Failing { .. } | State::Closing { .. } => return true,
            State::Running => {}
            State::Failed { .. } => return self.is_unsettled(),
            _ => return self.pending.is_some(),
        }
        self.look_for_holder(memory);
        self.report_late(now, shared);
        if let Some(failure) = self.timed_out(now) {
            self.pending.get_or_insert(failure);
        }
        let asked = self.heartbeat(now, stalled, shared);
        asked
            || self.pending.is_some()
            || self.run.wants_room()
            || self.point.wants_room()
            || self.peers.links.iter().any(|link| link.broken().is_some() || link.missed.is_some())
    }

    /// Finds the rank that has stopped with a piece of the running collective in hand: it has had the same one since the
    /// last tick, thousands of times what it takes to do one.
    fn look_for_holder(&mut self, memory: &dyn LocalMemory) {
        let found = self.run.holder(memory);
        self.stopped = found.filter(|_| found == self.held).map(|(_, rank)| rank);
        self.held = found;
    }

    /// Since when the oldest operation waits.
    fn waits_since(&self) -> Option<Time> {
        let slot = self.queue.slot(self.queue.head).filter(|slot| slot.signature.is_some());
        let collective = slot.map(|slot| slot.since);
        let point = self.point.oldest().map(|(since, ..)| since);
        collective.into_iter().chain(point).min()
    }

    fn heartbeat(&mut self, now: Time, stalled: bool, shared: &Shared) -> bool {
        let config = &shared.config;
        let waits = self.waits_since().is_some_and(|since| elapsed_ms(since, now) >= config.heartbeat_ms);
        let limit_ms = config.peer_timeout_ms - config.heartbeat_ms;
        let is_silent =
            |channel: &Channel| channel.asked.is_some_and(|since| elapsed_ms(since, now) >= limit_ms);
        let mut asked = false;
        for link in self.peers.links.iter_mut().filter(|link| !link.ended && link.broken().is_none()) {
            if !waits {
                link.channels_mut().for_each(|channel| channel.asked = None);
                continue;
            }
            if stalled {
                link.channels_mut().for_each(|channel| channel.asked = channel.asked.map(|_| now));
            }
            if link.channels().any(is_silent) {
                let rail = link.rail(|channel| channel.asked.is_some());
                self.pending.get_or_insert(lost(link, REASONS[2], rail));
            } else if elapsed_ms(link.pinged, now) >= config.heartbeat_ms {
                link.ping_due = true;
                link.pinged = now;
                link.channels_mut().for_each(|channel| channel.asked = channel.asked.or(Some(now)));
                asked = true;
            }
        }
        asked
    }

    /// Asks the peers that are to be asked for a sign of life.
    pub(crate) fn ping<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let (sequence, signature) = (self.queue.head, self.queue.signature(self.queue.head));
        let rank = self.caller(sequence);
        for link in self.peers.links.iter_mut().filter(|link| link.ping_due) {
            link.ping_due = false;
            link.control(Message::Ping { sequence, signature, rank }, turn);
            link.ask_others(turn);
        }
    }

    /// Ranks that the oldest collective waits for, as far as this node knows.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let mut missing: Vec<u32> =
            self.queue.missing().map(|local| rank_of(&self.layout, self.node, local)).collect();
        if let Some(stopped) = self.stopped.filter(|_| missing.is_empty()) {
            return vec![rank_of(&self.layout, self.node, stopped.0)];
        }
        if missing.is_empty() {
            for (at, link) in self.peers.links.iter().enumerate() {
                if self.run.waits_for(|other| other == at).is_none() {
                    continue;
                }
                // What the node said about this collective; until it has, none of its ranks is known to have come.
                let told = link.absent.filter(|absent| absent.sequence == self.queue.head);
                let ranks = self.layout.local(link.node).iter().enumerate();
                let absent = ranks.filter(|(local, _)| told.is_none_or(|told| told.has(*local)));
                missing.extend(absent.map(|(_, rank)| *rank));
            }
            missing.sort_unstable();
        }
        missing
    }

    /// A rank of a node that something is still expected from.
    fn waited_for(&self) -> u32 {
        let mut links = self.peers.links.iter().enumerate();
        let link = links.find(|(at, _)| self.run.waits_for(|other| other == *at).is_some());
        link.map_or(self.rank, |(_, link)| link.rank)
    }

    fn report_late(&mut self, now: Time, shared: &mut Shared) {
        let sequence = self.queue.head;
        let Some(slot) = self.queue.slot_mut(sequence) else { return };
        let waited_ms = elapsed_ms(slot.since, now);
        let Some(call) = slot.signature.filter(|_| !slot.reported) else { return };
        if waited_ms < shared.config.late_after_ms {
            return;
        }
        slot.reported = true;
        let (missing, stopped) = (self.missing(), self.stopped.is_some());
        if !missing.is_empty() {
            shared.late.push_back(Late {
                communicator: self.id,
                sequence,
                call,
                missing,
                waited_ms,
                stopped,
            });
        }
    }

    fn timed_out(&self, now: Time) -> Option<Failure> {
        let timeout_ms = self.timeout_ms?;
        let slot = self.queue.slot(self.queue.head)?;
        if let Some(call) = slot.signature {
            let waited_ms = elapsed_ms(slot.since, now);
            if waited_ms >= timeout_ms {
                let missing = self.missing();
                let (rank, mut others) = name(&missing, self.waited_for());
                if self.stopped.is_some() {
                    ", or it has stopped while it worked on it".clone_into(&mut others);
                }
                return Some(Failure::TimedOut { call, rank, waited_ms, others });
            }
        }
        let (since, local, peer, sends, bytes) = self.point.oldest()?;
        let waited_ms = elapsed_ms(since, now);
        (waited_ms >= timeout_ms).then(|| Failure::TimedOut {
            call: Signature {
                operation: if sends { Operation::Send } else { Operation::Receive },
                datatype: DataType::U8,
                reduction: None,
                root: 0,
                count: bytes,
            },
            rank: peer.unwrap_or_else(|| rank_of(&self.layout, self.node, local)),
            waited_ms,
            others: String::new(),
        })
    }
}

/// The first of the ranks, and the others as text.
fn name(missing: &[u32], fallback: u32) -> (u32, String) {
    const NAMED: usize = 8;
    let Some((first, rest)) = missing.split_first() else { return (fallback, String::new()) };
    if rest.is_empty() {
        return (*first, String::new());
    }
    let mut others = String::from(", nor have");
    for (place, rank) in rest.iter().take(NAMED).enumerate() {
        others.push_str(if place == 0 { " " } else { ", " });
        others.push_str(&rank.to_string());
    }
    if rest.len() > NAMED {
        others.push_str(&format!(" and {} more", rest.len() - NAMED));
    }
    (*first, others)
}
