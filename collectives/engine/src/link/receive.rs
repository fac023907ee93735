//! The receive buffers of a link and the credits that stand for them.

use ringway_verbs::{Device, LocalSlice, PostError, ReceiveRequest, Time};

use super::{Class, Link, SEND_DEPTH, SLOT};
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
        while self.posted < self.receives {
            let at = self.posted;
            self.post_receive(at, shared, device)?;
        }
        Ok(())
    }

    fn post_receive<D: Device + ?Sized>(
        &mut self,
        index: u32,
        shared: &mut Shared,
        device: &mut D,
    ) -> Result<(), PostError> {
        let local = LocalSlice {
            key: shared.workspace.key(),
            offset: self.bounce_offset(index),
            length: self.bounce_bytes,
        };
        let request = ReceiveRequest { id: self.id | (1 << 31) | u64::from(index), local };
        device.post_receive(self.queue_pair, &request)?;
        self.posted += 1;
        Ok(())
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

    /// A receive has completed.
    pub(crate) fn taken(&mut self, now: Time) {
        self.posted = self.posted.saturating_sub(1);
        self.heard = now;
        self.asked = None;
    }

    /// A receive has failed.
    pub(crate) fn lost(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Nothing more can come.
    pub(crate) fn is_drained(&self) -> bool {
        self.posted == 0
    }

    /// Posts a receive buffer again.
    pub(crate) fn repost<D: Device + ?Sized>(&mut self, bounce: u32, turn: &mut Turn<'_, D>) {
        if self.broken.is_none() && self.post_receive(bounce, turn.shared, turn.device).is_err() {
            self.broken = Some(turn.now);
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
            let credits = core::mem::take(&mut self.owed);
            self.control(Message::Credit { credits }, turn);
        }
    }

    /// The peer gives credits back; never more than there are.
    pub(crate) fn credit(&mut self, more: Credits) {
        let add = |have: u16, more: u16| have.saturating_add(more).min(self.credits_each);
        self.credits = Credits {
            collective: add(self.credits.collective, more.collective),
            point: add(self.credits.point, more.point),
        };
    }
}
