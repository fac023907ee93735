//! What the device says is done, and what the messages that came mean.

use ringway_verbs::{Completion, CompletionKind, Device, Status};

use crate::collective::run::Scene;
use crate::communicator::{Communicator, State};
use crate::link::{EagerWrite, Id, Payload, is_eager_write, split_id};
use crate::message::{Credits, Exchange, FAILURE, HEADER, Message, NONSENSE, parse_failure};
use crate::point::{POINT_IMMEDIATE, Place};
use crate::turn::Turn;
use crate::{Failure, Signature};

impl Communicator {
    /// Takes note of one completion of one of its links.
    pub(crate) fn complete<D: Device + ?Sized>(
        &mut self,
        at: usize,
        completion: &Completion,
        turn: &mut Turn<'_, D>,
    ) {
        let Id { channel: over, number, .. } = split_id(completion.id);
        let Some(link) = self.peers.links.get_mut(at) else { return };
        let Some(channel) = link.channel_mut(over).filter(|c| c.queue_pair == completion.queue_pair) else {
            return;
        };
        let failed = completion.status != Status::Success;
        if failed {
            channel.broken.get_or_insert(turn.now);
        }
        match completion.kind {
            CompletionKind::Send if failed => {}
            CompletionKind::Send => {
                link.sent((over, number), turn.now, turn.shared);
                self.run.unblock();
                self.drain_events(turn);
            }
            CompletionKind::Receive | CompletionKind::ReceiveWrite if failed => channel.lost(),
            CompletionKind::Receive if over > 0 => {
                // Nothing is said there.
                link.taken(over, turn.now);
                self.note(Err(self.nonsense(at)));
            }
            CompletionKind::Receive => {
                link.taken(over, turn.now);
                let message = link.read(number, completion.length, turn);
                let outcome = self.message(at, number, message, turn);
                self.note(outcome);
            }
            CompletionKind::ReceiveWrite => {
                link.taken(over, turn.now);
                link.repost_notice((over, number), turn);
                // The peer's step waits for the acknowledgement.
                turn.shared.unflushed = true;
                let outcome = self.written(at, completion.immediate.unwrap_or(0), turn);
                self.note(outcome);
            }
        }
    }

    fn note(&mut self, outcome: Result<(), Failure>) {
        if let Err(failure) = outcome {
            self.pending.get_or_insert(failure);
        }
    }

    fn nonsense(&self, at: usize) -> Failure {
        let (node, rank) = self.peers.links.get(at).map_or((0, 0), |link| (link.node, link.rank));
        Failure::Node { node, rank, reason: NONSENSE, rail: None }
    }

    /// While a communicator fails or closes, only what ends it matters.
    fn is_ending(&self) -> bool {
        self.pending.is_some() || !matches!(self.state, State::Running | State::Opened)
    }

    fn message<D: Device + ?Sized>(
        &mut self,
        at: usize,
        bounce: u32,
        message: Option<Message>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let eager = matches!(message, Some(Message::Data { .. } | Message::PointData { .. }));
        let failure = match message {
            Some(Message::Abort) => Some(self.read_failure(at, bounce, turn)),
            _ => None,
        };
        let Some(link) = self.peers.links.get_mut(at) else { return Ok(()) };
        if let Some(failure) = failure {
            link.abort_heard = true;
            link.repost(bounce, turn);
            return Err(failure);
        }
        let Some(message) = message else {
            link.repost(bounce, turn);
            return Err(self.nonsense(at));
        };
        if !eager || self.is_ending() {
            self.peers.links.get_mut(at).into_iter().for_each(|link| link.repost(bounce, turn));
        }
        if self.is_ending() && !matches!(message, Message::Left { .. } | Message::Ping { .. }) {
            return Ok(());
        }
        if let Message::Grant { granted, .. } | Message::PointGrant { granted, .. } = message
            && !self.peers.links.get(at).is_some_and(|link| link.has_channel(granted.channel))
        {
            return Err(self.nonsense(at));
        }
        match message {
            Message::Data { exchange, length, credits } => {
                self.data(at, Payload::Bounce(bounce), (exchange, length, credits), turn)
            }
            Message::Announce { .. } | Message::Grant { .. } => self.collective(at, message, turn),
            // It does not come like this.
            Message::EagerWrite { .. } => Err(self.nonsense(at)),
            Message::PointData { .. } | Message::PointAnnounce { .. } | Message::PointGrant { .. } => {
                self.point_message(at, bounce, message, turn)
            }
            Message::Written { immediate } => self.written(at, immediate, turn),
            other => self.control(at, other, turn),
        }
    }

    fn read_failure<D: ?Sized>(&self, at: usize, bounce: u32, turn: &Turn<'_, D>) -> Failure {
        let mut bytes = [0; FAILURE];
        if let Some(link) = self.peers.links.get(at) {
            debug_assert!(FAILURE + HEADER <= crate::link::SLOT as usize);
            turn.memory.read(link.payload(bounce, FAILURE as u64, turn.shared), &mut bytes);
        }
        match parse_failure(&bytes) {
            // One rail of the connection with that node failed, and it saw that first: to this one, that node is the other.
            Some(Failure::Node { node, reason, rail: rail @ Some(_), .. }) if node == self.node => {
                let (node, rank) = self.peers.links.get(at).map_or((0, 0), |link| (link.node, link.rank));
                Failure::Node { node, rank, reason, rail }
            }
            Some(failure) => failure,
            None => self.nonsense(at),
        }
    }

    fn collective<D: Device + ?Sized>(
        &mut self,
        at: usize,
        message: Message,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let (Message::Announce { exchange, .. } | Message::Grant { exchange, .. }) = message else {
            return Ok(());
        };
        self.check_call(at, &exchange)?;
        let (queue, layout, rank) = (&self.queue, &self.layout, self.rank);
        let mut scene = Scene { queue, layout, rank, peers: &mut self.peers };
        match message {
            Message::Announce { exchange, length } => {
                self.run.on_announce(at, (exchange, length), &mut scene, turn)?;
            }
            Message::Grant { exchange, length, granted } => {
                self.run.on_grant(at, (exchange, length), granted, &mut scene, turn)?;
            }
            _ => {}
        }
        self.drain_events(turn);
        Ok(())
    }

    /// A message was written eagerly.
    fn written_eagerly<D: Device + ?Sized>(
        &mut self,
        at: usize,
        immediate: u32,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let come = self.peers.links.get(at).and_then(|link| link.read_eager_write(immediate, turn));
        let Some(EagerWrite { place, exchange, length, credits }) = come else {
            return Err(self.nonsense(at));
        };
        self.data(at, Payload::Place(place), (exchange, length, credits), turn)
    }

    /// A collective's message has come with its bytes.
    fn data<D: Device + ?Sized>(
        &mut self,
        at: usize,
        payload: Payload,
        (exchange, length, credits): (Exchange, u64, Credits),
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        self.check_call(at, &exchange)?;
        self.peers.links.get_mut(at).into_iter().for_each(|link| link.credit(credits));
        self.run.unblock();
        let (queue, layout, rank) = (&self.queue, &self.layout, self.rank);
        let mut scene = Scene { queue, layout, rank, peers: &mut self.peers };
        self.run.on_data(at, payload, (exchange, length), &mut scene, turn)?;
        self.drain_events(turn);
        Ok(())
    }

    /// Compares what another node called with what was called here, as far as it is known already.
    fn check_call(&self, at: usize, exchange: &Exchange) -> Result<(), Failure> {
        let (sequence, theirs) = (exchange.sequence, &exchange.signature);
        let Some(link) = self.peers.links.get(at) else { return Ok(()) };
        if let Some(ours) = self.queue.signature(sequence) {
            return self.compare(sequence, &ours, link.rank, theirs);
        }
        if sequence < self.queue.head {
            // Nothing of a finished collective can come but for a call that was a different one.
            return match self.queue.past(sequence) {
                Some(ours) if ours != *theirs => self.compare(sequence, &ours, link.rank, theirs),
                _ => Err(self.nonsense(at)),
            };
        }
        Ok(())
    }

    fn point_message<D: Device + ?Sized>(
        &mut self,
        at: usize,
        bounce: u32,
        message: Message,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let mut place = Place { layout: &self.layout, peers: &mut self.peers };
        let sense = match message {
            Message::PointData { envelope, credits } => {
                place.peers.links.get_mut(at).into_iter().for_each(|link| link.credit(credits));
                self.point.on_data(at, bounce, &envelope, &mut place, turn)
            }
            Message::PointAnnounce { envelope, slot } => {
                self.point.on_announce(at, slot, &envelope, &mut place, turn)
            }
            Message::PointGrant { slot, length, last, granted } => {
                self.point.on_grant(at, slot, (length, last), granted, &mut place, turn)
            }
            _ => true,
        };
        self.drain_events(turn);
        if sense { Ok(()) } else { Err(self.nonsense(at)) }
    }

    fn written<D: Device + ?Sized>(
        &mut self,
        at: usize,
        immediate: u32,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        if self.is_ending() {
            return Ok(());
        }
        if is_eager_write(immediate) {
            return self.written_eagerly(at, immediate, turn);
        }
        let known = if immediate & POINT_IMMEDIATE == 0 {
            self.run.on_written(at, immediate)
        } else {
            self.point.on_written(at, immediate, turn.shared)
        };
        if known { Ok(()) } else { Err(self.nonsense(at)) }
    }

    fn control<D: Device + ?Sized>(
        &mut self,
        at: usize,
        message: Message,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let Some(link) = self.peers.links.get_mut(at) else { return Ok(()) };
        match message {
            Message::Credit { credits } => {
                link.credit(credits);
                self.run.unblock();
            }
            Message::Ping { sequence, signature, rank } => {
                let stopped = self.stopped.filter(|_| sequence == self.queue.head).map(|rank| rank.0);
                link.control(Message::Pong { absent: self.queue.absent(sequence, stopped) }, turn);
                if let Some(theirs) = signature.filter(|_| matches!(self.state, State::Running)) {
                    return self.check_ping(at, sequence, rank, &theirs);
                }
            }
            Message::Pong { absent } => link.absent = Some(absent),
            Message::Lent { room } => {
                return if link.on_lent(room) { Ok(()) } else { Err(self.nonsense(at)) };
            }
            Message::Probe { length, channel } => self.on_probe(at, (length, channel), turn),
            Message::Probed { room } => {
                return if self.on_probed(at, room, turn) { Ok(()) } else { Err(self.nonsense(at)) };
            }
            Message::Left { rank, sequence, last } => {
                link.ended |= last;
                if link.left.is_none_or(|(_, before)| sequence < before) {
                    link.left = Some((rank, sequence));
                }
                return self.check_needed(at, rank, sequence, turn);
            }
            _ => {}
        }
        Ok(())
    }

    /// The peer says which collective it waits in, and which of its ranks called it.
    fn check_ping(&self, at: usize, sequence: u64, rank: u32, theirs: &Signature) -> Result<(), Failure> {
        let ours = self.queue.signature(sequence).or_else(|| self.queue.past(sequence));
        let Some(link) = self.peers.links.get(at) else { return Ok(()) };
        // A rank that is not the peer's would blame somebody else.
        let rank = if self.layout.local(link.node).contains(&rank) { rank } else { link.rank };
        ours.map_or(Ok(()), |ours| self.compare(sequence, &ours, rank, theirs))
    }

    /// A rank of another node has left: fails when something that was begun needs it.
    fn check_needed<D: ?Sized>(
        &mut self,
        at: usize,
        rank: u32,
        sequence: u64,
        turn: &Turn<'_, D>,
    ) -> Result<(), Failure> {
        if !self.needs(at, rank, sequence) {
            return Ok(());
        }
        match self.peers.links.get_mut(at) {
            // What it had written over other channels may have come, and not been polled.
            Some(link) if link.ended && link.width() > 1 => {
                link.missed.get_or_insert(turn.now);
                Ok(())
            }
            _ => Err(Failure::Rank { rank, how: crate::RankFailure::Left }),
        }
    }

    /// Whether something that was begun needs a rank of another node that has left after so many collectives.
    pub(crate) fn needs(&self, at: usize, rank: u32, sequence: u64) -> bool {
        let Some(link) = self.peers.links.get(at) else { return false };
        let ended = link.ended;
        let run = self.run.signature.is_some() && (ended || self.run.sequence > sequence);
        let waits = run && self.run.waits_for(|link| link == at).is_some();
        waits || self.point.needs(at, link.node, (!ended).then_some(rank), &self.layout)
    }
}
