//! How a communicator ends: by a failure, or because its ranks have left.
//!
//! After a failure the peers are told, and the queue pairs are destroyed before any operation is reported, so that
//! the device touches no buffer that is given back. Pieces of local work that others have are taken back; who does not
//! let go of one within the time to drain (a rank that was stopped) keeps the report from no one, but then
//! [`crate::Engine::is_settled`] says that buffers are not safe yet. A link is held open until the peer has said that it knows (so that
//! the reason is not lost with the connection), it broke, or the time to drain has passed.

use ringway_verbs::{Device, Time};

use crate::communicator::{Communicator, State};
use crate::link::Link;
use crate::message::{Message, REASONS};
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

    /// Tells the peers, destroys the queue pairs, and then ends every operation.
    pub(crate) fn quiesce<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let State::Failing { failure, since } = &self.state else { return };
        let expired = elapsed_ms(*since, turn.now) >= turn.shared.config.drain_ms;
        let mut ended = true;
        for (link, told) in self.peers.links.iter_mut().zip(&mut self.told) {
            if !*told && link.broken.is_none() {
                *told = link.abort(failure, turn);
            }
            let knows = *told && link.is_quiet() && link.abort_heard;
            ended &= (knows || expired || link.broken.is_some()) && link.destroy(turn.device);
        }
        let settled = self.run.withdraw(turn.memory);
        if !ended || !(settled || expired) {
            turn.shared.soon = true;
            return;
        }
        let failure = failure.clone();
        self.free_links(turn.shared);
        if settled {
            self.run.stop(turn.shared);
        }
        for (local, call) in self.queue.pending() {
            turn.shared.finish(self.id, local, call.token, Err(failure.clone()));
        }
        self.queue.clear();
        self.point.fail(&failure, turn.shared);
        self.state = State::Failed(failure);
    }

    /// Takes back what others still had when the operations were reported.
    pub(crate) fn settle<D: ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        if !self.run.is_away() {
            return;
        }
        if self.run.withdraw(turn.memory) {
            self.run.stop(turn.shared);
        } else {
            turn.shared.soon = true;
        }
    }

    fn free_links(&mut self, shared: &mut Shared) {
        self.peers.links.iter_mut().for_each(|link| link.free(shared));
    }

    /// Begins to close; whether it is gone already.
    pub(crate) fn close(&mut self, now: Time) -> bool {
        match self.state {
            State::Failed(_) | State::Closed => return !self.run.is_away(),
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
                    self.peers.links.iter_mut().for_each(|link| link.broken = Some(now));
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
            let lost = link.broken.is_some() || link.abort_heard;
            ended &= (knows || expired || lost) && link.destroy(turn.device);
        }
        if ended {
            self.free_links(turn.shared);
            self.state = State::Closed;
        } else {
            turn.shared.soon = true;
        }
    }

    /// Fails when a link broke whose peer had not left.
    pub(crate) fn check_links(&self, turn_now: Time, shared: &mut Shared) -> Result<(), Failure> {
        for link in self.peers.links.iter().filter(|link| !link.ended) {
            let Some(since) = link.broken else { continue };
            // The peer's own reason may still be among what has not been polled.
            if link.is_drained() || elapsed_ms(since, turn_now) >= BROKEN_MS {
                return Err(lost(link, REASONS[1]));
            }
            shared.soon = true;
        }
        Ok(())
    }
}

/// The failure of a node.
pub(crate) fn lost(link: &Link, reason: &'static str) -> Failure {
    Failure::Node { node: link.node, rank: link.rank, reason }
}
