//! The steps that speak to other nodes.
//!
//! A short message is sent at once with its bytes behind the header, as long as the peer has given credits; it waits
//! in the receiver's buffer when it comes before its step. A long one is written where the receiver's grant says. The
//! receiver grants as soon as its step may start, since both ends know the length; in the operations whose counts are
//! not compared (gather_v, scatter_v, all_to_all_v), and when credits have run out, the sender announces the message
//! first and the receiver grants what was announced. So no message ever waits for another's buffer. In calls of few messages
//! over a long way, one that is not much longer is written eagerly (`link::eager_write`).

use ringway_types::Operation;
use ringway_verbs::Device;

use super::run::{ActiveReceive, ActiveSend, Run, Scene};
use crate::link::{Class, Early, EarlyKind, Link, Payload, Purpose, Taken};
use crate::message::{Exchange, Granted, Message, NONSENSE};
use crate::turn::Turn;
use crate::{BufferRef, Failure, RankFailure};

use super::run::{MAX_DEPTH, MAX_EARLY};

impl Run {
    fn exchange(&self, slot: u32, tag: u32) -> Option<Exchange> {
        let chunk = self.chunks.get(slot as usize)?.chunk;
        Some(Exchange { sequence: self.sequence, chunk, tag, signature: self.signature? })
    }

    /// Whether senders announce long messages of this collective.
    pub(super) fn announces(&self) -> bool {
        self.signature.is_some_and(|signature| {
            matches!(signature.operation, Operation::GatherV | Operation::ScatterV | Operation::AllToAllV)
        })
    }

    /// Messages up to so many bytes are sent over a link, or announced, without waiting for a grant.
    fn unasked_max(&self, link: &Link) -> u64 {
        if link.writes_eagerly() { self.eager_max.max(self.eager_write_max) } else { self.eager_max }
    }

    /// Fails when the peer has left and will say nothing more about this collective.
    fn check_present(&self, link: usize, scene: &Scene<'_>) -> Result<(), Failure> {
        let Some(link) = scene.peers.links.get(link) else { return Ok(()) };
        match link.left {
            Some((rank, sequence)) if link.ended || sequence < self.sequence => {
                Err(Failure::Rank { rank, how: RankFailure::Left })
            }
            _ => Ok(()),
        }
    }

    /// Whether it has begun; else it is tried again when there is room.
    pub(crate) fn begin_send<D: Device + ?Sized>(
        &mut self,
        slot: u32,
        step: u32,
        (peer, tag): (u32, u32),
        from: BufferRef,
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<bool, Failure> {
        let (Some(at), Some(exchange)) = (scene.peers.link_to(peer), self.exchange(slot, tag)) else {
            return Ok(true);
        };
        self.check_present(at, scene)?;
        let announces = self.announces();
        let Some(link) = scene.peers.links.get_mut(at) else { return Ok(true) };
        let taken = if from.length <= self.eager_max {
            let credit = link.has_credit(Class::Collective);
            credit.then(|| link.send_data(exchange, from, Purpose::Step { slot, step }, turn))
        } else {
            let eagerly = from.length <= self.eager_write_max && link.can_write_eagerly();
            eagerly.then(|| link.write_eagerly(exchange, from, turn))
        };
        if let Some(taken) = taken {
            match taken {
                Taken::No => self.block(),
                Taken::Posted => self.mark_started(slot, step),
                Taken::Copied => self.complete(slot, step),
            }
            return Ok(taken != Taken::No);
        }
        self.mark_started(slot, step);
        if let Some(early) =
            take_early(&mut link.early, &exchange, |kind| matches!(kind, EarlyKind::Grant { .. }))
        {
            let EarlyKind::Grant { granted } = early.kind else { return Ok(true) };
            check_length(
                self.rank_of(scene),
                scene.peers.links.get(at).map_or(0, |l| l.rank),
                from.length,
                early.length,
            )?;
            if let Some(link) = scene.peers.links.get_mut(at) {
                link.transfer(from, granted, true, Purpose::Step { slot, step }, turn);
            }
            return Ok(true);
        }
        if announces || from.length <= self.unasked_max(link) {
            link.control(Message::Announce { exchange, length: from.length }, turn);
        }
        if let Some(chunk) = self.chunks.get_mut(slot as usize) {
            chunk.sends.push(ActiveSend { step, link: at, tag, from });
        }
        Ok(true)
    }

    fn rank_of(&self, scene: &Scene<'_>) -> u32 {
        scene.rank
    }

    pub(crate) fn begin_receive<D: Device + ?Sized>(
        &mut self,
        slot: u32,
        step: u32,
        (peer, tag): (u32, u32),
        into: BufferRef,
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let (Some(at), Some(exchange)) = (scene.peers.link_to(peer), self.exchange(slot, tag)) else {
            return Ok(());
        };
        let announces = self.announces();
        let Some(link) = scene.peers.links.get_mut(at) else { return Ok(()) };
        let early = take_early(&mut link.early, &exchange, |kind| !matches!(kind, EarlyKind::Grant { .. }));
        let (peer_rank, unasked_max) = (link.rank, self.unasked_max(link));
        if let Some(early) = early {
            check_length(peer_rank, scene.rank, early.length, into.length)?;
        }
        match early.map(|early| early.kind) {
            Some(EarlyKind::Data { payload }) => {
                take_payload(scene, at, payload, into, turn);
                self.complete(slot, step);
                return Ok(());
            }
            None => self.check_present(at, scene)?,
            Some(_) => {}
        }
        self.mark_started(slot, step);
        let grant = early.is_some() || (into.length > unasked_max && !announces);
        if let Some(chunk) = self.chunks.get_mut(slot as usize) {
            chunk.receives.push(ActiveReceive { step, link: at, tag, into, granted: grant });
        }
        if grant {
            self.grant(slot, step, at, &exchange, into, scene, turn);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "where the message goes and what it is for")]
    fn grant<D: Device + ?Sized>(
        &self,
        slot: u32,
        step: u32,
        at: usize,
        exchange: &Exchange,
        into: BufferRef,
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) {
        let Some(link) = scene.peers.links.get_mut(at) else { return };
        let number = exchange.chunk % self.channels;
        let Some(granted) = link.grant(number, into, self.immediate(slot, step), turn) else {
            return;
        };
        link.control(Message::Grant { exchange: *exchange, length: into.length, granted }, turn);
    }

    /// Names a receive of this node in the notice that it was written: bits 28..31 the chunk's slot, 16..28 the
    /// collective, 0..16 the step.
    fn immediate(&self, slot: u32, step: u32) -> u32 {
        let sequence = u32::try_from(self.sequence & 0xfff).unwrap_or(0);
        ((slot % MAX_DEPTH) << 28) | (sequence << 16) | (step & 0xffff)
    }

    /// The slot of the chunk that a message is for, when it is under way here.
    fn slot_of(&self, exchange: &Exchange) -> Option<u32> {
        if self.signature.is_none() || exchange.sequence != self.sequence {
            return None;
        }
        let at = self.chunks.iter().position(|chunk| chunk.live && chunk.chunk == exchange.chunk)?;
        u32::try_from(at).ok()
    }

    fn waiting_receive(&mut self, slot: u32, link: usize, tag: u32) -> Option<&mut ActiveReceive> {
        let receives = &mut self.chunks.get_mut(slot as usize)?.receives;
        receives.iter_mut().find(|receive| receive.link == link && receive.tag == tag && !receive.granted)
    }

    fn drop_receive(&mut self, slot: u32, step: u32) {
        if let Some(chunk) = self.chunks.get_mut(slot as usize)
            && let Some(at) = chunk.receives.iter().position(|receive| receive.step == step)
        {
            chunk.receives.swap_remove(at);
        }
    }

    /// A message has come with its bytes.
    pub(crate) fn on_data<D: Device + ?Sized>(
        &mut self,
        at: usize,
        payload: Payload,
        (exchange, length): (Exchange, u64),
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let found = self
            .slot_of(&exchange)
            .and_then(|slot| self.waiting_receive(slot, at, exchange.tag).map(|receive| (slot, *receive)));
        let Some((slot, receive)) = found else {
            return keep(at, Early { exchange, length, kind: EarlyKind::Data { payload } }, scene);
        };
        let peer_rank = scene.peers.links.get(at).map_or(0, |link| link.rank);
        check_length(peer_rank, scene.rank, length, receive.into.length)?;
        take_payload(scene, at, payload, receive.into, turn);
        self.drop_receive(slot, receive.step);
        self.done(slot, receive.step);
        Ok(())
    }

    /// A sender wants a grant.
    pub(crate) fn on_announce<D: Device + ?Sized>(
        &mut self,
        at: usize,
        (exchange, length): (Exchange, u64),
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let found = self.slot_of(&exchange).and_then(|slot| {
            let receive = self.waiting_receive(slot, at, exchange.tag)?;
            receive.granted = true;
            Some((slot, *receive))
        });
        let Some((slot, receive)) = found else {
            return keep(at, Early { exchange, length, kind: EarlyKind::Announce }, scene);
        };
        let peer_rank = scene.peers.links.get(at).map_or(0, |link| link.rank);
        check_length(peer_rank, scene.rank, length, receive.into.length)?;
        self.grant(slot, receive.step, at, &exchange, receive.into, scene, turn);
        Ok(())
    }

    /// A receiver says where a message may be written.
    pub(crate) fn on_grant<D: Device + ?Sized>(
        &mut self,
        at: usize,
        (exchange, length): (Exchange, u64),
        granted: Granted,
        scene: &mut Scene<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(), Failure> {
        let found = self.slot_of(&exchange).and_then(|slot| {
            let sends = &mut self.chunks.get_mut(slot as usize)?.sends;
            let place = sends.iter().position(|send| send.link == at && send.tag == exchange.tag)?;
            Some((slot, sends.swap_remove(place)))
        });
        let Some((slot, send)) = found else {
            return keep(at, Early { exchange, length, kind: EarlyKind::Grant { granted } }, scene);
        };
        let peer_rank = scene.peers.links.get(at).map_or(0, |link| link.rank);
        check_length(scene.rank, peer_rank, send.from.length, length)?;
        if let Some(link) = scene.peers.links.get_mut(at) {
            link.transfer(send.from, granted, true, Purpose::Step { slot, step: send.step }, turn);
        }
        Ok(())
    }

    /// A granted message was written. `false` when no such grant is outstanding.
    pub(crate) fn on_written(&mut self, at: usize, immediate: u32) -> bool {
        let slot = (immediate >> 28) % MAX_DEPTH;
        let found = self.chunks.get(slot as usize).and_then(|chunk| {
            let wanted = |receive: &&ActiveReceive| {
                receive.link == at && receive.granted && self.immediate(slot, receive.step) == immediate
            };
            chunk.receives.iter().filter(|_| chunk.live && self.signature.is_some()).find(wanted)
        });
        let Some(step) = found.map(|receive| receive.step) else { return false };
        self.drop_receive(slot, step);
        self.done(slot, step);
        true
    }
}

/// Copies a message into place and gives its buffer back.
fn take_payload<D: Device + ?Sized>(
    scene: &mut Scene<'_>,
    at: usize,
    payload: Payload,
    into: BufferRef,
    turn: &mut Turn<'_, D>,
) {
    if let Some(link) = scene.peers.links.get_mut(at) {
        link.take_payload(payload, into, turn);
    }
}

/// Keeps a message for later, within what a correct peer can cause.
fn keep(at: usize, early: Early, scene: &mut Scene<'_>) -> Result<(), Failure> {
    let Some(link) = scene.peers.links.get_mut(at) else { return Ok(()) };
    if link.early.len() >= MAX_EARLY {
        return Err(Failure::Node { node: link.node, rank: link.rank, reason: NONSENSE, rail: None });
    }
    link.early.push(early);
    Ok(())
}

fn take_early(
    early: &mut Vec<Early>,
    exchange: &Exchange,
    wanted: impl Fn(&EarlyKind) -> bool,
) -> Option<Early> {
    let at = early.iter().position(|early| {
        let other = &early.exchange;
        (other.sequence, other.chunk, other.tag) == (exchange.sequence, exchange.chunk, exchange.tag)
            && wanted(&early.kind)
    })?;
    Some(early.swap_remove(at))
}

fn check_length(sender: u32, receiver: u32, sent: u64, expected: u64) -> Result<(), Failure> {
    if sent == expected { Ok(()) } else { Err(Failure::Count { sender, receiver, sent, expected }) }
}
