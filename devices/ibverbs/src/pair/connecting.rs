//! Finding the peer, and noticing that it is no more: reliable connections say nothing unless they are asked to.

use std::sync::Arc;

use ringway_verbs::{Deadline, Status, Time};
use ringway_wire::Psn;
use rustix::io::Errno;

use super::{Entry, Pair, Phase};
use crate::{
    Choice, IbverbsFailure,
    address::Address,
    connector::{Job, Refusal},
    endpoint::{End, place},
    hardware::{ReceiveAttributes, SendAttributes, Unposted},
    shared::Shared,
};

const fn after(time: Time, ns: u64) -> Time {
    Time(time.0.saturating_add(ns))
}

impl Pair {
    /// Begins to connect.
    pub(crate) fn connect(&mut self, peer: End, shared: &mut Shared) {
        (self.phase, self.peer) = (Phase::Connecting, Some(peer));
        self.connected_by = Deadline::After(shared.config.connect_timeout_ns);
        shared.changed = true;
        self.set_up(peer.psn, shared);
    }

    /// Has the queue pair taken from INIT to RTS; then [`Pair::is_set_up`] is called. `expected` is the peer's next PSN.
    fn set_up(&mut self, expected: Psn, shared: &mut Shared) {
        let Some(peer) = self.peer else { return };
        let config = &shared.config;
        let Choice { port, gid } = &shared.choice;
        let own = place(port.link_layer, port.lid, gid);
        let receive = ReceiveAttributes {
            port: port.number,
            address: Address::of(peer.place, own, gid.index, shared.port.wants_route),
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            mtu: shared.port.mtu.min(peer.mtu),
            queue_pair: peer.queue_pair.number(),
            psn: expected,
            rd_atomic: shared.rd_atomic_answered(),
            min_rnr_timer: config.min_rnr_timer,
        };
        let send = SendAttributes {
            psn: self.first_psn,
            timeout: config.timeout,
            retries: config.retries,
            rnr_retries: 7,
            rd_atomic: config.rd_atomic.min(shared.limits.rd_atomic_asked).min(peer.rd_atomic).max(1),
        };
        let (number, hardware) = (self.number, Arc::clone(&self.hardware));
        self.setting_up = shared.connector.begin(Job { number, hardware, receive, send });
        if !self.setting_up {
            let what = "a queue pair's way to RTR: its thread has ended";
            self.fail(IbverbsFailure::System { what, errno: Errno::SRCH.raw_os_error() }, shared);
        }
    }

    /// The queue pair is in RTS, or could not be brought there: the connection is tried.
    pub(crate) fn is_set_up(&mut self, result: Result<(), Refusal>, shared: &mut Shared) {
        self.setting_up = false;
        match result {
            _ if self.phase != Phase::Connecting => {}
            Ok(()) => self.probe(shared),
            // Nobody has the peer's address at the moment.
            Err((_, Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH)) => {
                self.fail(IbverbsFailure::NoAnswer, shared);
            }
            Err((what, errno)) => {
                self.fail(IbverbsFailure::System { what, errno: errno.raw_os_error() }, shared);
            }
        }
    }

    /// Puts a probe before everything that waits: it is handed over at once.
    pub(super) fn probe(&mut self, shared: &mut Shared) {
        self.probing = true;
        // It tells of all before it.
        self.unsignalled = 0;
        shared.counters.probes += 1;
        self.sends.push_next(Entry::Probe);
        shared.counters.doorbells += 1;
        shared.counters.system_calls += u64::from(shared.choice.port.is_software);
        let next = self.sends.waiting().take(1);
        let probe = next.map(|(place, entry)| entry.outgoing(self.id(place), true, &shared.regions));
        match self.hardware.post_sends(probe) {
            Ok(count) => self.sends.handed(count),
            Err(Unposted { errno, .. }) => {
                let what = "a sign of life";
                self.fail(IbverbsFailure::System { what, errno: errno.raw_os_error() }, shared);
            }
        }
    }

    /// What a probe came to.
    pub(super) fn probed(&mut self, status: Status, shared: &mut Shared) {
        self.probing = false;
        match (status, self.phase) {
            (Status::Success, Phase::Connecting) => {
                self.phase = Phase::Ready;
                shared.changed = true;
            }
            (Status::Success, _) => {}
            (Status::TransportLost, Phase::Connecting) => self.try_again(shared),
            (_, Phase::Connecting) => self.fail(IbverbsFailure::RefusedPeer, shared),
            (Status::Flushed, _) => {}
            (status, _) => self.first_status = status,
        }
    }

    /// The peer did not answer in as many retries as the device makes: it may not have come so far yet. It may come so far just
    /// now, and be answered by the device although its answer is not awaited any more: so the next PSN of its own is asked for,
    /// which the queue pair forgets. Ours may be the old ones: what comes twice is answered and not done again.
    fn try_again(&mut self, shared: &mut Shared) {
        if self.connected_by.is_over(shared.now) {
            return self.fail(IbverbsFailure::NoAnswer, shared);
        }
        shared.counters.reconnects += 1;
        let port = shared.choice.port.number;
        let begun = self.hardware.expected_psn().and_then(|expected| {
            self.hardware.reset()?;
            self.hardware.initialize(port, shared.limits.atomics)?;
            Ok(expected)
        });
        match begun {
            Ok(expected) => {
                self.sends.take_back();
                self.receives.take_back();
                self.hand_over(false, shared);
                if self.phase == Phase::Connecting {
                    self.set_up(expected, shared);
                }
            }
            Err(errno) => {
                let what = "a queue pair's way back to INIT";
                self.fail(IbverbsFailure::System { what, errno: errno.raw_os_error() }, shared);
            }
        }
    }

    /// When [`Pair::look_after`] has something to do.
    pub(crate) fn due(&self, shared: &Shared) -> Option<Time> {
        match self.phase {
            Phase::Init => None,
            Phase::Connecting => Some(self.connected_by.look_at()),
            // The device itself repeats what is not answered, and says when it gives up.
            Phase::Ready if self.sends.is_posted() && !self.is_untold() => None,
            Phase::Ready => Some(after(self.heard, shared.config.keep_alive_ns)),
            Phase::Failed if self.sends.is_posted() || self.receives.is_posted() => {
                Some(self.flush_by.look_at())
            }
            Phase::Failed => None,
        }
    }

    /// Does what is due. Somebody may wait to hear that memory is free.
    pub(crate) fn look_after(&mut self, shared: &mut Shared) {
        let is_due = self.due(shared).is_some_and(|due| due <= shared.now);
        let is_wanted = shared.memory_wanted.get() && self.is_untold();
        if !is_due && !is_wanted {
            return;
        }
        match self.phase {
            Phase::Connecting if self.connected_by.is_over(shared.now) => {
                self.fail(IbverbsFailure::NoAnswer, shared);
            }
            Phase::Ready => self.probe(shared),
            Phase::Failed if self.flush_by.is_over(shared.now) => self.give_up_flushing(shared),
            Phase::Init | Phase::Connecting | Phase::Failed => {}
        }
    }
}
