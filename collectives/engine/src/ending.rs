//! How a communicator ends: by a failure, or because its ranks have left.
//!
//! After a failure the peers are told, and the queue pairs are destroyed before any operation is reported, so that
//! the device touches no buffer that is given back. A link is held open until the peer has said that it knows (so that
//! the reason is not lost with the connection), it broke, or the time to say farewell has passed. Pieces of local work
//! that others have are taken back. Who takes longer than the time to drain (a rank that was stopped with a piece, a peer
//! that is slow to hear) keeps the report from no one, but then [`crate::Engine::is_settled`] says that buffers are not
//! safe yet.

use ringway_verbs::{Cause, Device, Time};

use crate::communicator::{Communicator, State};
use crate::link::{Channel, Link};
use crate::message::{DEVICE_LOST, Message, QUEUE_PAIR_FATAL, REASONS};
use crate::turn::{Shared, Turn, elapsed_ms};
use crate::{Failure, RankFailure};

/// How long the last messages of a broken link may take to be polled.
const BROKEN_MS: u64 = 20;

impl Communicator {
    pub(crate) fn begin_failing<D: Device + ?Sized>(&mut self, failure: Failure, turn: &mut Turn<'_, D>) {
        self.pending = None;
        self.told.fill(false);
        self.state = State::Failing { failure, since: turn.now };
        self.quiesce(turn);
    }

    /// Lets go of the operations' memory, and then ends every operation; without the former when it takes too long.
    pub(crate) fn quiesce<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let settled = self.let_go(turn);
        let State::Failing { failure, since } = &self.state else { return };
        if !settled && elapsed_ms(*since, turn.now) < turn.shared.config.drain_ms {
            return;
        }
        let (failure, since) = (failure.clone(), *since);
        for (local, call) in self.queue.pending() {
            turn.shared.finish(self.id, local, call.token, Err(failure.clone()));
        }
        self.queue.clear();
        self.point.fail(&failure, turn.shared);
        self.state = State::Failed { failure, unsettled: (!settled).then_some(since) };
    }

    /// Lets go of what was still in use when the operations were reported.
    pub(crate) fn settle<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        if self.let_go(turn)
            && let State::Failed { unsettled, .. } = &mut self.state
        {
            *unsettled = None;
        }
    }

    /// Tells the peers why, destroys the queue pairs of those that know, and takes back what others work on. Whether
    /// nobody touches the operations' memory any more.
    fn let_go<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) -> bool {
        let (State::Failing { failure, since } | State::Failed { failure, unsettled: Some(since) }) =
            &self.state
        else {
            return true;
        };
        let expired = elapsed_ms(*since, turn.now) >= turn.shared.config.farewell_ms;
        let mut settled = self.run.withdraw(turn.memory) & self.point.withdraw(turn.memory, turn.shared);
        for (link, told) in self.peers.links.iter_mut().zip(&mut self.told) {
            let silent = link.first.broken.is_some();
            if !*told && !silent {
                *told = link.abort(failure, turn);
            }
            let knows = *told && link.has_said_all() && link.abort_heard;
            settled &= (knows || expired || silent) && link.destroy(turn.device);
        }
        if settled {
            self.free_links(turn.shared);
            self.run.stop(turn.shared);
            self.point.release_windows(turn.shared);
        } else {
            turn.shared.soon = true;
        }
        settled
    }

    /// Whether the memory of operations that were reported may still be touched.
    pub(crate) const fn is_unsettled(&self) -> bool {
        matches!(self.state, State::Failed { unsettled: Some(_), .. })
    }

    fn free_links(&mut self, shared: &mut Shared) {
        self.peers.links.iter_mut().for_each(|link| link.free(shared));
    }

    /// Begins to close; whether it is gone already.
    pub(crate) fn close(&mut self, now: Time) -> bool {
        match self.state {
            State::Failed { .. } | State::Closed => return !self.is_unsettled(),
            State::Failing { .. } | State::Closing { .. } => {}
            State::Running if self.outstanding() > 0 => {
                let how = RankFailure::Left;
                self.pending.get_or_insert(Failure::Rank { rank: self.rank, how });
            }
            State::Running if self.peers.links.is_empty() => {
                self.state = State::Closed;
                return true;
            }
            State::Running | State::Opened => {
                if self.state == State::Opened {
                    let channels = self.peers.links.iter_mut().flat_map(Link::channels_mut);
                    channels.for_each(|channel| channel.broken = Some(now));
                }
                self.told.fill(false);
                self.state = State::Closing { since: now };
            }
        }
        false
    }

    /// Says good-bye and waits for the peers to do the same, so that nothing on its way is lost.
    pub(crate) fn close_links<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let State::Closing { since } = self.state else { return };
        let expired = elapsed_ms(since, turn.now) >= turn.shared.config.peer_timeout_ms;
        let (rank, sequence) = (self.rank, self.queue.started());
        let mut ended = true;
        for (link, told) in self.peers.links.iter_mut().zip(&mut self.told) {
            if !*told {
                *told = true;
                link.control(Message::Left { rank, sequence, last: true }, turn);
            }
            link.pump(turn);
            let knows = link.ended && link.is_quiet();
            let lost = link.broken().is_some() || link.abort_heard;
            ended &= (knows || expired || lost) && link.destroy(turn.device);
        }
        if ended {
            self.free_links(turn.shared);
            self.state = State::Closed;
        } else {
            turn.shared.soon = true;
        }
    }

    /// Fails when a link broke whose peer had not left, or one is missed that had.
    pub(crate) fn check_links<D: Device + ?Sized>(&self, turn: &mut Turn<'_, D>) -> Result<(), Failure> {
        for (at, link) in self.peers.links.iter().enumerate() {
            if link.ended {
                self.check_missed(at, link, turn)?;
                continue;
            }
            let Some((channel, since)) = link.broken() else { continue };
            // The peer's own reason may still be among what has not been polled. This node's own is known, and the peer should
            // hear it before it has waited for as long.
            let is_own = is_own(turn.device.failure(channel.queue_pair));
            if is_own || link.is_drained() || elapsed_ms(since, turn.now) >= BROKEN_MS {
                // A peer that is gone breaks all at once; one that has seen this breaks the others later.
                let rail = link.rail(|channel| {
                    channel.broken.is_some_and(|other| elapsed_ms(since, other) < BROKEN_MS / 2)
                });
                return Err(self.loss(link, channel, rail, turn.device));
            }
            turn.shared.soon = true;
        }
        Ok(())
    }

    /// Fails when a node that has left still owes something after all that it had written must have been polled.
    fn check_missed<D: ?Sized>(&self, at: usize, link: &Link, turn: &mut Turn<'_, D>) -> Result<(), Failure> {
        let (Some(since), Some((rank, sequence))) = (link.missed, link.left) else { return Ok(()) };
        if self.needs(at, rank, sequence) {
            if elapsed_ms(since, turn.now) >= BROKEN_MS {
                return Err(Failure::Rank { rank, how: RankFailure::Left });
            }
            turn.shared.soon = true;
        }
        Ok(())
    }
}

impl Communicator {
    /// What a broken channel of a link is to all nodes: the loss of the peer, in the words of the device if it has some, or of this
    /// node, where it was its own device that ended the connection.
    pub(crate) fn loss<D: Device + ?Sized>(
        &self,
        link: &Link,
        channel: &Channel,
        rail: Option<u32>,
        device: &D,
    ) -> Failure {
        let reason = match device.failure(channel.queue_pair) {
            None => return lost(link, REASONS[1], rail),
            Some(Cause::Peer(reason)) => return lost(link, reason, rail),
            Some(Cause::DeviceLost) => DEVICE_LOST,
            Some(Cause::QueuePairFatal) => QUEUE_PAIR_FATAL,
        };
        Failure::Node { node: self.node, rank: self.rank, reason, rail }
    }
}

/// Whether it was this node's own device that ended a connection.
const fn is_own(cause: Option<Cause>) -> bool {
    matches!(cause, Some(Cause::DeviceLost | Cause::QueuePairFatal))
}

/// The failure of a node.
pub(crate) fn lost(link: &Link, reason: &'static str, rail: Option<u32>) -> Failure {
    Failure::Node { node: link.node, rank: link.rank, reason, rail }
}
