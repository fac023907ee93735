//! What io_uring is passed over for while the caller spins: then nobody is to be woken, and a `send` and a `recv` on the
//! socket are all that a message takes, as of bare sockets.
//!
//! A receive that waits in the kernel costs either side something for each message: the sender runs the wake-up, and the
//! receiver enters the ring to have the bytes taken and once more to wait again. A receive that waits here is tried by every
//! poll instead. That is for few connections, and for no longer than something comes now and then: the others wait in the
//! kernel, where a poll that finds nothing costs no system call.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::buffers::{ReceivePlan, SendBatch};
use crate::driver::{Awaited, Event};
use crate::vectors;

/// A caller that has polled so often without asking to be woken spins.
const POLLS_OF_SPINNING: u32 = 32;
/// Receives that wait here at most: each costs every poll a system call.
const RECEIVES_MAX: usize = 2;
/// Polls in which nothing comes until a receive waits in the kernel: about a millisecond.
const TRIES_MAX: u32 = 4096;

/// Where so much of a message is still to come, only each so many polls try to receive: to look at a socket takes its lock, for
/// which those wait who put the bytes there.
const LONG: u64 = 128 << 10;
const LONG_POLLS: u32 = 16;

/// A receive that polls try.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) number: u32,
    pub(crate) plan: Box<ReceivePlan>,
    tries: u32,
}

/// Receives that wait here, and what ended without the ring.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// Polls since the caller last asked to be woken.
    polls: u32,
    receives: Vec<Receive>,
    finished: VecDeque<Event>,
}

impl Direct {
    /// Makes room for so many events that were not taken.
    pub(crate) fn reserve(&mut self, events: usize) {
        self.finished.reserve(events.saturating_sub(self.finished.len()));
        self.receives.reserve(RECEIVES_MAX.saturating_sub(self.receives.len()));
    }

    pub(crate) const fn is_spinning(&self) -> bool {
        self.polls >= POLLS_OF_SPINNING
    }

    /// Has a receive wait here, if something is to come, the caller spins and there is room.
    pub(crate) fn receive(
        &mut self,
        socket: &Arc<OwnedFd>,
        number: u32,
        plan: Box<ReceivePlan>,
        awaited: Awaited,
    ) -> Result<(), Box<ReceivePlan>> {
        if awaited == Awaited::Hardly || !self.is_spinning() || self.receives.len() >= RECEIVES_MAX {
            return Err(plan);
        }
        self.receives.push(Receive { socket: Arc::clone(socket), number, plan, tries: 0 });
        Ok(())
    }

    /// Sends what the socket takes at once; gives the batch back if that is nothing.
    pub(crate) fn send(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        mut batch: Box<SendBatch>,
    ) -> Result<(), Box<SendBatch>> {
        let result = vectors::send(socket.as_fd(), &mut batch);
        if result == -libc::EAGAIN {
            return Err(batch);
        }
        batch.advance(u64::try_from(result).unwrap_or(0));
        self.finished.push_back(Event::Sent { number, batch, result, lent: None });
        Ok(())
    }

    /// Counts a poll and tries every receive once; gives one that is to wait in the kernel. `calls` counts system calls.
    pub(crate) fn look(&mut self, calls: &mut u64) -> Option<Receive> {
        self.polls = self.polls.saturating_add(1);
        let mut at = 0;
        while let Some(receive) = self.receives.get_mut(at) {
            if receive.tries % LONG_POLLS != 0 && receive.plan.expects() >= LONG {
                receive.tries += 1;
                at += 1;
                continue;
            }
            *calls += 1;
            let (result, more) = vectors::receive(receive.socket.as_fd(), &mut receive.plan);
            if result != -libc::EAGAIN {
                let Receive { number, plan, .. } = self.receives.swap_remove(at);
                self.finished.push_back(Event::Received { number, plan, result, more });
                continue;
            }
            receive.tries += 1;
            if receive.tries >= TRIES_MAX {
                return Some(self.receives.swap_remove(at));
            }
            at += 1;
        }
        None
    }

    /// The caller wants to be woken: receives are to wait in the kernel, one after the other.
    pub(crate) fn rest(&mut self) -> Option<Receive> {
        self.polls = 0;
        self.receives.pop()
    }

    /// A receive ended without a system call.
    pub(crate) fn give_back(&mut self, number: u32, plan: Box<ReceivePlan>, errno: i32) {
        self.finished.push_back(Event::Received { number, plan, result: -errno, more: false });
    }

    /// Gives up what waits of a connection.
    pub(crate) fn cancel(&mut self, number: u32) {
        if let Some(at) = self.receives.iter().position(|receive| receive.number == number) {
            let receive = self.receives.swap_remove(at);
            self.give_back(number, receive.plan, libc::ECANCELED);
        }
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        self.finished.pop_front()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.finished.is_empty()
    }
}
