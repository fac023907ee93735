//! The receive buffers of a link and the credits that stand for them.

use ringway_verbs::{Device, LocalSlice, PostError, Time};

use super::eager_write::ALL_PLACES;
use super::{Class, Link, NOTICES, Payload, SEND_DEPTH, SLOT};
use crate::BufferRef;
use crate::message::{Credits, FAILURE, HEADER, Message};
use crate::turn::{Shared, Turn};

impl Link {
    /// Posts every receive. Before connecting, so that nothing can come too early.
    pub(crate) fn post_receives<D: Device + ?Sized>(
        &mut self,
        shared: &mut Shared,
        device: &mut D,
    ) -> Result<(), PostError> {
        while self.first.posted < self.receives {
            let at = self.first.posted;
            self.post_bounce(at, shared, device)?;
        }
        for channel in &mut self.others {
            while channel.posted < NOTICES {
                channel.post_receive(channel.posted, LocalSlice::default(), device)?;
            }
        }
        Ok(())
    }

    fn post_bounce<D: Device + ?Sized>(
        &mut self,
        index: u32,
        shared: &mut Shared,
        device: &mut D,
    ) -> Result<(), PostError> {
        let offset = self.bounce_offset(index);
        let local = LocalSlice { key: shared.workspace.key(), offset, length: self.bounce_bytes };
        self.first.post_receive(index, local, device)
    }

    fn bounce_offset(&self, index: u32) -> u64 {
        self.memory + u64::from(SEND_DEPTH) * SLOT + u64::from(index) * self.bounce_bytes
    }

    /// The payload of an eager message that was received.
    pub(crate) fn payload(&self, bounce: u32, length: u64, shared: &Shared) -> BufferRef {
        shared.workspace.buffer(self.bounce_offset(bounce) + HEADER as u64, length)
    }

    /// The message in a receive buffer, when its bytes make sense.
    pub(crate) fn read<D: ?Sized>(&self, bounce: u32, length: u64, turn: &Turn<'_, D>) -> Option<Message> {
        let mut bytes = [0; HEADER];
        if bounce >= self.receives || length < HEADER as u64 {
            return None;
        }
        turn.memory.read(turn.shared.workspace.buffer(self.bounce_offset(bounce), HEADER as u64), &mut bytes);
        let message = Message::parse(&bytes, self.check)?;
        let payload = length - HEADER as u64;
        let expected = match message {
            Message::Data { length, .. } => length,
            Message::PointData { envelope, .. } => envelope.length,
            Message::Abort => FAILURE as u64,
            _ => 0,
        };
        (payload == expected).then_some(message)
    }

    /// A receive of a channel has completed.
    pub(crate) fn taken(&mut self, channel: usize, now: Time) {
        self.heard = now;
        if let Some(channel) = self.channel_mut(channel) {
            channel.taken();
        }
    }

    /// Nothing more can come.
    pub(crate) fn is_drained(&self) -> bool {
        self.channels().all(|channel| channel.posted == 0)
    }

    /// Posts a receive buffer of the first channel again.
    pub(crate) fn repost<D: Device + ?Sized>(&mut self, bounce: u32, turn: &mut Turn<'_, D>) {
        if self.first.broken.is_none() && self.post_bounce(bounce, turn.shared, turn.device).is_err() {
            self.first.broken = Some(turn.now);
        }
    }

    /// Posts the receive of a channel again that a notice has taken.
    pub(crate) fn repost_notice<D: Device + ?Sized>(
        &mut self,
        (channel, number): (usize, u32),
        turn: &mut Turn<'_, D>,
    ) {
        if channel == 0 {
            return self.repost(number, turn);
        }
        if let Some(channel) = self.channel_mut(channel).filter(|channel| channel.broken.is_none())
            && channel.post_receive(number, LocalSlice::default(), turn.device).is_err()
        {
            channel.broken = Some(turn.now);
        }
    }

    /// Posts the receive buffer of an eager message again and owes the sender a credit.
    pub(crate) fn release<D: Device + ?Sized>(&mut self, bounce: u32, class: Class, turn: &mut Turn<'_, D>) {
        self.repost(bounce, turn);
        let owed = match class {
            Class::Collective => &mut self.owed.collective,
            Class::Point => &mut self.owed.point,
        };
        *owed = owed.saturating_add(1);
        if *owed >= self.credits_each.div_ceil(2) {
            self.return_credits(turn);
        }
    }

    /// Gives the peer back what it is owed.
    pub(super) fn return_credits<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let credits = core::mem::take(&mut self.owed);
        self.control(Message::Credit { credits }, turn);
    }

    /// Copies a collective's message to where it belongs, as long as that is, and gives its buffer back.
    pub(crate) fn take_payload<D: Device + ?Sized>(
        &mut self,
        payload: Payload,
        into: BufferRef,
        turn: &mut Turn<'_, D>,
    ) {
        if into.length > 0 {
            let from = match payload {
                Payload::Bounce(bounce) => self.payload(bounce, into.length, turn.shared),
                Payload::Place(place) => self.written_eagerly(place, into.length, turn.shared),
            };
            turn.memory.copy(from, &[into]);
            turn.shared.copied += 2 * into.length;
        }
        match payload {
            Payload::Bounce(bounce) => self.release(bounce, Class::Collective, turn),
            Payload::Place(place) => self.give_back_place(place, turn),
        }
    }

    /// The peer gives credits back; never more than there are.
    pub(crate) fn credit(&mut self, more: Credits) {
        let add = |have: u16, more: u16| have.saturating_add(more).min(self.credits_each);
        self.credits = Credits {
            collective: add(self.credits.collective, more.collective),
            point: add(self.credits.point, more.point),
            places: self.credits.places | (more.places & ALL_PLACES),
        };
    }
}
