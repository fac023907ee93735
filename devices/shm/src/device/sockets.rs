//! Sockets: who connects, what peers say there, and who is gone.

use core::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use ringway_verbs::{Status, Time};
use rustix::event::epoll;
use rustix::io::Errno;

use super::{ShmDevice, turn};
use crate::ShmFailure;
use crate::control::{self, Message};
use crate::queue_pair::{Offer, Phase, QueuePair};

/// How often sockets are looked at while nobody is connecting, in nanoseconds: a peer's death is known that late.
const SOCKETS_EVERY_NS: u64 = 5_000_000;
/// Sockets that are looked at in one turn, and peers that may be about to say who they are.
const SOCKETS_PER_TURN: usize = 64;
pub(super) const ARRIVALS_MAX: usize = 64;
/// What an event is about, if not a queue pair's socket.
pub(super) const BELL: u64 = u64::MAX;
pub(super) const LISTENER: u64 = u64::MAX - 1;
const ARRIVAL: u64 = u64::MAX - 2;

impl ShmDevice {
    /// Looks at the sockets: who connects, whose region can be mapped, and who is gone.
    pub(super) fn look_at_sockets(&mut self) {
        self.next_look = Time(self.shared.now.0.saturating_add(SOCKETS_EVERY_NS));
        let mut found = [const { MaybeUninit::uninit() }; SOCKETS_PER_TURN];
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.shared.counters.system_calls += 1;
        let Ok((found, _)) = epoll::wait(&self.events, &mut found, Some(&zero)) else { return };
        for event in found {
            match event.data.u64() {
                BELL => self.quiet_bell(),
                LISTENER => self.accept(),
                ARRIVAL => self.hear_arrivals(),
                number => self.hear(number as u32),
            }
        }
        if self.connecting > 0 {
            self.expire();
        }
    }

    fn accept(&mut self) {
        for _ in 0..SOCKETS_PER_TURN {
            let Some(socket) = control::accept(self.listener.as_fd()) else { break };
            if self.arrivals.len() >= ARRIVALS_MAX {
                // Whoever says nothing makes room for others.
                self.arrivals.pop_front();
            }
            if watch(&self.events, &socket, ARRIVAL).is_ok() {
                self.arrivals.push_back(socket);
            }
        }
        self.hear_arrivals();
    }

    fn hear_arrivals(&mut self) {
        for _ in 0..self.arrivals.len() {
            let Some(socket) = self.arrivals.pop_front() else { return };
            match control::receive(socket.as_fd()) {
                Ok(None) => self.arrivals.push_back(socket),
                Ok(Some(Message::Hello { token, file, doorbell })) => {
                    let wanted = |pair: &&mut Box<QueuePair>| {
                        pair.token == token
                            && !pair.offered
                            && matches!(pair.phase, Phase::Init | Phase::Connecting)
                    };
                    let pair = self.table.iter_mut().find(wanted);
                    // Without a queue pair for it the connection is closed here.
                    if let Some(pair) = pair {
                        // Until it is taken nobody reads it, and a peer that hangs up would wake a sleeper again and again.
                        let _ = epoll::delete(&self.events, &socket);
                        pair.offered = true;
                        pair.offer = Some(Offer { socket, file, doorbell });
                        let number = pair.number.0;
                        self.take_offer(number);
                    }
                }
                // Closed, or no peer of ours.
                _ => {}
            }
        }
    }

    /// Takes the connection that a queue pair was offered, once it wants one.
    pub(super) fn take_offer(&mut self, number: u32) {
        let Self { table, shared, bell, .. } = self;
        let Some(pair) = table.get_mut(number) else { return };
        if pair.phase != Phase::Connecting {
            return;
        }
        let Some(offer) = pair.offer.take() else { return };
        match pair.accept(offer, bell.as_fd()) {
            Ok(()) => {
                (pair.phase, pair.deadline, shared.changed) = (Phase::Ready, None, true);
                self.connected(number);
            }
            Err(failure) => pair.fail(shared, failure, Status::TransportLost),
        }
        self.count_connecting();
    }

    /// A queue pair is connected: its socket is watched and its rings are looked at from now on.
    fn connected(&mut self, number: u32) {
        self.ready.push(self.table.slot(number));
        if let Some(socket) = self.table.get(number).and_then(|pair| pair.socket.as_ref()) {
            // That of the side which opened it is watched already.
            let _ = watch(&self.events, socket, number.into());
        }
    }

    fn hear(&mut self, number: u32) {
        let Some((pair, shared)) = self.split(number) else { return };
        let was = pair.phase;
        let heard_all = pair.listen(shared).unwrap_or_else(|failure| {
            // What it said before it went counts.
            turn(pair, shared, true);
            pair.fail(shared, failure, Status::TransportLost);
            true
        });
        if !heard_all {
            self.next_look = self.shared.now;
        }
        let Some((pair, _)) = self.split(number) else { return };
        if was == Phase::Connecting {
            if pair.phase == Phase::Ready {
                self.connected(number);
            }
            self.count_connecting();
        }
    }

    fn expire(&mut self) {
        let now = self.shared.now;
        for pair in self.table.iter_mut() {
            if pair.deadline.as_mut().is_some_and(|deadline| deadline.is_over(now)) {
                let failure = pair.failure.unwrap_or(ShmFailure::TimedOut);
                pair.fail(&mut self.shared, failure, Status::TransportLost);
            }
        }
        self.count_connecting();
    }

    pub(super) fn count_connecting(&mut self) {
        self.connecting = self.table.iter().filter(|pair| pair.phase == Phase::Connecting).count();
    }

    pub(super) fn quiet_bell(&mut self) {
        self.shared.counters.system_calls += 1;
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

pub(super) fn watch(events: &OwnedFd, file: &OwnedFd, is: u64) -> Result<(), Errno> {
    epoll::add(events, file, epoll::EventData::new_u64(is), epoll::EventFlags::IN)
}
