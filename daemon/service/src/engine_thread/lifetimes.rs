//! How ranks, sessions and communicators end: step by step, while the loop goes on.

use ringway_engine::{Failure, Measured, RankFailure, Readiness};
use ringway_plan::tuner::Constants;
use ringway_verbs::Time;

use super::{
    EngineThread, Event, Reason, SHUTDOWN_BOUND_NS, TURNS_PER_LOOK, inspection::late_text, ring::Life,
};
use crate::{membership::GroupKey, session::SessionKey};

impl EngineThread {
    /// A session ends: every rank of it is lost. What it holds goes when nothing uses it any more.
    pub(super) fn end_session(&mut self, session: SessionKey, how: RankFailure) {
        if self.clients.contains_key(&session) {
            self.end_client(session, how);
            self.ending.push(session);
        } else {
            self.tell(Event::SessionGone { session });
        }
    }

    /// Reads nothing more of a client, and fails its ranks.
    pub(super) fn end_client(&mut self, session: SessionKey, how: RankFailure) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        client.ended = Some(how);
        let rings = client.rings.clone();
        for index in rings {
            self.lose(index, how);
        }
    }

    /// A rank is lost, and everybody's operations on its communicator with it; unless it has left in order.
    pub(super) fn lose(&mut self, index: usize, how: RankFailure) {
        let Some((_, ring)) = self.rings.get_mut(index) else { return };
        if ring.life == Life::Serving {
            let (group, rank) = (ring.group, ring.rank);
            let (id, local) = (ring.id, ring.local);
            ring.leave(None);
            self.rings.leaving.push(index);
            if let Some(board) = self.memory.boards.get_mut(id) {
                board.unseat(local);
            }
            if let Some(cell) = self.cells.get_mut(group) {
                cell.lose(rank);
            }
            self.fail_group(group, Failure::Rank { rank, how });
        }
    }

    /// A rank leaves in order.
    pub(super) fn leave(&mut self, index: usize, number: Option<u32>) {
        let Some((_, ring)) = self.rings.get_mut(index) else { return };
        if ring.life == Life::Serving {
            self.engine.leave(ring.id, ring.local);
            if let Some(board) = self.memory.boards.get_mut(ring.id) {
                board.unseat(ring.local);
            }
            ring.leave(number);
            let (group, rank) = (ring.group, ring.rank);
            self.rings.leaving.push(index);
            self.release_stand_in(index);
            if let Some(cell) = self.cells.get_mut(group) {
                cell.leave(rank);
            }
        }
    }

    /// Whether something is on its way to its end, or to its beginning.
    pub(super) fn is_tending(&self) -> bool {
        !self.rings.leaving.is_empty()
            || !self.ending.is_empty()
            || !self.retired.is_empty()
            || !self.outbox.is_empty()
            || self.shutdown.is_some()
            || self.groups.values().any(|group| group.connecting || group.closing)
    }

    /// Moves everything on that begins or ends.
    pub(super) fn tend(&mut self, now: Time) {
        self.flush_outbox();
        if self.counters.turns.is_multiple_of(TURNS_PER_LOOK) {
            self.report_lost();
        }
        if self.polling_late() {
            self.report_late();
        }
        if !self.is_tending() {
            return;
        }
        self.reap_rings();
        self.reap_sessions();
        self.tend_groups();
        self.release_scratch();
        if let Some(since) = self.shutdown
            && now.0.saturating_sub(since.0) < SHUTDOWN_BOUND_NS
        {
            self.groups.values_mut().filter(|g| g.attached == 0).for_each(|g| g.closing = true);
        }
    }

    /// Tells which devices have broken, or were removed.
    pub(super) fn report_lost(&mut self) {
        while let Some(protocol) = self.device.take_lost().map(str::to_owned) {
            self.tell(Event::DeviceLost { protocol });
        }
    }

    fn polling_late(&self) -> bool {
        self.engine.has_work()
    }

    fn report_late(&mut self) {
        while let Some(late) = self.engine.next_late() {
            let Some(group) = self.group_of.get(&late.communicator).copied() else { continue };
            let text = late_text(&late.call, (late.sequence, late.stopped), &late.missing, late.waited_ms);
            self.tell(Event::Late { group, text });
        }
    }

    /// Rings whose last operation has finished are gone.
    fn reap_rings(&mut self) {
        let mut at = 0;
        while let Some(index) = self.rings.leaving.get(at).copied() {
            if self.rings.get_mut(index).is_some_and(|(_, ring)| ring.in_flight() > 0) {
                at = at.saturating_add(1);
                continue;
            }
            self.rings.leaving.swap_remove(at);
            self.release_stand_in(index);
            let Some((session, ring)) = self.rings.remove(index) else { continue };
            if let Some(client) = self.clients.get_mut(&session) {
                client.rings.retain(|i| *i != index);
            }
            if let Some(group) = self.groups.get_mut(&ring.group) {
                group.attached = group.attached.saturating_sub(1);
                group.closing |= group.attached == 0 && group.expected == 0;
            }
            if let Life::Leaving(Some(number)) = ring.life {
                self.tell(Event::Left { session, number, communicator: ring.communicator });
            }
        }
    }

    /// Sessions whose rings and regions are gone are gone.
    fn reap_sessions(&mut self) {
        let mut at = 0;
        while let Some(session) = self.ending.get(at).copied() {
            if !self.is_empty(session) {
                at = at.saturating_add(1);
                continue;
            }
            self.ending.swap_remove(at);
            if let Some(client) = self.clients.remove(&session) {
                self.poller.remove(&*client.doorbell);
            }
            self.tell(Event::SessionGone { session });
        }
    }

    fn is_empty(&mut self, session: SessionKey) -> bool {
        let Some(client) = self.clients.get_mut(&session) else { return true };
        if !client.rings.is_empty() {
            return false;
        }
        let mut regions = std::mem::take(&mut client.regions);
        regions.retain(|handle| !self.release(*handle));
        let empty = regions.is_empty();
        if let Some(client) = self.clients.get_mut(&session) {
            client.regions = regions;
        }
        empty
    }

    fn tend_groups(&mut self) {
        let keys: Vec<GroupKey> =
            self.groups.iter().filter(|(_, g)| g.connecting || g.closing).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(group) = self.groups.get_mut(&key) else { continue };
            if group.connecting {
                let result = match self.engine.readiness(group.id, &self.device) {
                    Readiness::Connecting => None,
                    Readiness::Ready if core::mem::take(&mut group.measure) => {
                        self.engine.measure(group.id);
                        None
                    }
                    Readiness::Ready => match self.engine.take_measured(group.id) {
                        None if self.engine.is_measuring(group.id) => None,
                        measured => Some(Ok(measured.map(|links| constants(&links, self.arithmetic)))),
                    },
                    Readiness::Failed(failure) => Some(Err(failure.to_string())),
                };
                if let Some(result) = result {
                    group.connecting = false;
                    self.tell(Event::Connected { group: key, result });
                }
            } else if group.closing && self.engine.close(group.id) {
                let id = group.id;
                self.groups.remove(&key);
                self.group_of.remove(&id);
                self.cells.remove(key);
                self.retired.extend(self.memory.boards.remove(id));
                self.tell(Event::GroupClosed { group: key });
            }
        }
    }

    /// Fails everything; the thread ends when all of it has ended.
    pub(super) fn begin_shutdown(&mut self, now: Time) {
        self.shutdown = Some(now);
        for group in self.groups.values() {
            let rank = group.layout.local(group.node).first().copied().unwrap_or(0);
            let failure =
                Failure::Node { node: group.node, rank, reason: "its daemon shut down", rail: None };
            self.engine.fail(group.id, failure);
        }
        let keys: Vec<GroupKey> = self.groups.keys().copied().collect();
        keys.into_iter().for_each(|key| self.fail_cell(key, Reason::ShuttingDown));
        for group in self.groups.values_mut() {
            group.closing |= group.attached == 0;
        }
    }

    /// Whether a shutdown is over: every client was told and every peer knows, or time is up.
    pub(super) fn is_done(&self, now: Time) -> bool {
        let Some(since) = self.shutdown else { return false };
        let idle = !self.engine.has_work() && self.rings.iter().all(|(_, ring)| ring.in_flight() == 0);
        let late = now.0.saturating_sub(since.0) >= SHUTDOWN_BOUND_NS;
        late || (idle && self.rings.untold.is_empty())
    }
}

/// What plans are priced by: what was measured of links, and what arithmetic costs here. All nodes measure at once, so that
/// what they share is in it already.
fn constants(links: &Measured, (reduce_ns, copy_ns): (f64, f64)) -> Constants {
    let usual = Constants::default();
    let byte_ns = links.byte_ns.unwrap_or(usual.byte_ns);
    let Measured { latency_ns, message_ns, .. } = *links;
    let (channel_byte_ns, channels) = (links.channel_byte_ns.unwrap_or(0.0), f64::from(links.channels));
    Constants { latency_ns, message_ns, byte_ns, channel_byte_ns, reduce_ns, copy_ns, sharing: 1.0, channels }
}
