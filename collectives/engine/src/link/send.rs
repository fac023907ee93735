//! What is sent over a link, and in which order: control messages first, then point-to-point messages, then pieces of
//! long messages in turn, when `network` gives them leave.

use ringway_verbs::{Device, LocalSlice, Operation, RemoteSlice, Time};

use super::{
    ANNOUNCEMENTS, Channel, Class, Event, INLINE, Link, Purpose, Queued, SEND_DEPTH, SLOT, Taken, Transfer,
};
use crate::measure::WRITE_BYTES;
use crate::message::{Credits, Exchange, FAILURE, Granted, HEADER, Message, emit_failure};
use crate::network::Room;
use crate::turn::{Shared, Turn};
use crate::{BufferRef, Failure};

impl Link {
    /// Whether an eager message of the class has a receive buffer waiting for it.
    pub(crate) fn has_credit(&self, class: Class) -> bool {
        match class {
            Class::Collective => self.credits.collective > 0,
            Class::Point => self.credits.point > 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.outbox.is_empty() && self.first.has_room()
    }

    /// Sends an eager message of a collective; the caller has seen a credit.
    pub(crate) fn send_data<D: Device + ?Sized>(
        &mut self,
        exchange: Exchange,
        from: BufferRef,
        purpose: Purpose,
        turn: &mut Turn<'_, D>,
    ) -> Taken {
        if !self.has_room() {
            return Taken::No;
        }
        let message = Message::Data { exchange, length: from.length, credits: self.owed };
        let taken = self.send_eager(&message, from, (Class::Collective, purpose), turn);
        if taken != Taken::No {
            self.owed = Credits::default();
            self.credits.collective -= 1;
        }
        taken
    }

    fn send_eager<D: Device + ?Sized>(
        &mut self,
        message: &Message,
        from: BufferRef,
        (class, purpose): (Class, Purpose),
        turn: &mut Turn<'_, D>,
    ) -> Taken {
        let slot = self.slot();
        let mut header = self.write_header(slot, message, turn);
        if from.length <= INLINE {
            if from.length > 0 {
                let into = turn.shared.workspace.buffer(slot + HEADER as u64, from.length);
                turn.memory.copy(from, &[into]);
                header.length += from.length;
            }
            let posted =
                self.first.post(send(), [header, LocalSlice::default()], Purpose::Control, false, turn);
            return if posted { Taken::Copied } else { Taken::No };
        }
        if from.length <= class.copied_max() {
            let into = turn.shared.workspace.buffer(self.place(class), from.length);
            turn.memory.copy(from, &[into]);
            turn.shared.copied += 2 * from.length;
            let key = turn.shared.workspace.key();
            let payload = LocalSlice { key, offset: into.offset, length: into.length };
            if !self.first.post(send(), [header, payload], Purpose::Control, false, turn) {
                return Taken::No;
            }
            self.use_place(class);
            return Taken::Copied;
        }
        let Some(key) = turn.shared.local_key(from.region) else { return Taken::No };
        let payload = LocalSlice { key, offset: from.offset, length: from.length };
        if self.first.post(send(), [header, payload], purpose, true, turn) {
            Taken::Posted
        } else {
            Taken::No
        }
    }

    /// Where the next payload of the class is copied to. What was there before is with the peer: as many messages were sent
    /// since as there are credits, so that one of them, or a later one, was given back, and messages arrive in order.
    fn place(&self, class: Class) -> u64 {
        let (own, behind) = match class {
            Class::Collective => {
                (self.places.collective, u64::from(self.credits_each) * Class::Point.copied_max())
            }
            Class::Point => (self.places.point, 0),
        };
        let left = u64::from(self.credits_each) - u64::from(own);
        self.memory + self.memory_length - behind - left * class.copied_max()
    }

    fn use_place(&mut self, class: Class) {
        let place = match class {
            Class::Collective => &mut self.places.collective,
            Class::Point => &mut self.places.point,
        };
        *place = (*place + 1) % self.credits_each.max(1);
    }

    /// Sends a message without payload, now or as soon as there is room.
    pub(crate) fn control<D: Device + ?Sized>(&mut self, message: Message, turn: &mut Turn<'_, D>) {
        if self.outbox.is_empty() && self.post_control(&message, turn) {
            return;
        }
        // One sign of life is enough, the latest, however often a peer asks for it.
        let is_answer = |message: &Message| matches!(message, Message::Pong { .. });
        match self.outbox.iter_mut().find(|waiting| is_answer(&message) && is_answer(waiting)) {
            Some(waiting) => *waiting = message,
            None => self.outbox.push_back(message),
        }
    }

    fn post_control<D: Device + ?Sized>(&mut self, message: &Message, turn: &mut Turn<'_, D>) -> bool {
        if self.first.is_full() {
            return false;
        }
        let header = self.write_header(self.slot(), message, turn);
        self.first.post(send(), [header, LocalSlice::default()], Purpose::Control, false, turn)
    }

    /// Tells the peer of a failure. What waited to be sent is dropped. `false` when there is no room yet.
    pub(crate) fn abort<D: Device + ?Sized>(&mut self, failure: &Failure, turn: &mut Turn<'_, D>) -> bool {
        self.outbox.clear();
        self.queue.clear();
        self.channels_mut().for_each(|channel| channel.transfers.clear());
        if self.first.is_full() {
            return false;
        }
        let slot = self.slot();
        let mut header = self.write_header(slot, &Message::Abort, turn);
        let into = turn.shared.workspace.buffer(slot + HEADER as u64, FAILURE as u64);
        turn.memory.write(into, &emit_failure(failure));
        header.length += FAILURE as u64;
        self.first.post(send(), [header, LocalSlice::default()], Purpose::Control, true, turn)
    }

    /// Where the peer may write a message, over the channel that is nearest to the memory; the number says whose turn it is among
    /// several. `None` when the device has no name for the memory that a peer could use: then the link is broken, as it would
    /// be if the peer used a wrong one.
    pub(crate) fn grant<D: Device + ?Sized>(
        &mut self,
        number: u64,
        into: BufferRef,
        immediate: u32,
        turn: &Turn<'_, D>,
    ) -> Option<Granted> {
        let region = turn.shared.regions.get(&into.region);
        let channel = self.nearest(number, region.and_then(|region| region.numa_node));
        let target = self.target(usize::from(channel), into, turn)?;
        Some(Granted { target, immediate, channel })
    }

    /// Memory as the peer names it over a channel.
    pub(super) fn target<D: Device + ?Sized>(
        &mut self,
        channel: usize,
        into: BufferRef,
        turn: &Turn<'_, D>,
    ) -> Option<RemoteSlice> {
        // Of an empty message nothing is written, and its region need not be known.
        if into.length == 0 {
            return Some(RemoteSlice { offset: into.offset, ..RemoteSlice::default() });
        }
        let channel = self.channel_mut(channel)?;
        let local = turn.shared.local_key(into.region);
        let key = local.and_then(|local| turn.device.remote_key(channel.queue_pair, local));
        if key.is_none() {
            channel.broken.get_or_insert(turn.now);
        }
        key.map(|key| RemoteSlice { key, offset: into.offset })
    }

    /// Writes a long message, or a part of one, where the peer has granted it, over the channel that it named. `tells`: the
    /// peer gets notice.
    pub(crate) fn transfer<D: Device + ?Sized>(
        &mut self,
        from: BufferRef,
        granted: Granted,
        tells: bool,
        purpose: Purpose,
        turn: &mut Turn<'_, D>,
    ) {
        let Granted { target, immediate, channel } = granted;
        if from.length == 0 {
            self.control(Message::Written { immediate }, turn);
            self.events.push_back(Event::Sent(purpose));
            return;
        }
        let key = turn.shared.local_key(from.region);
        let Some(channel) = self.channel_mut(usize::from(channel)) else { return };
        if let Some(key) = key {
            let immediate = tells.then_some(immediate);
            channel.transfers.push_back(Transfer { from, key, target, immediate, purpose });
            self.pump(turn);
        } else {
            channel.broken = Some(turn.now);
        }
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn pump<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        while let Some(message) = self.outbox.front().copied() {
            if !self.post_control(&message, turn) {
                return;
            }
            self.outbox.pop_front();
        }
        while self.has_room() && self.pump_queued(turn) {}
        if self.wants_to_post() {
            turn.shared.network.wake(self.communicator());
        }
    }

    /// Whether a piece of a long message could be posted. Over the first channel not before what is to be said.
    pub(crate) fn wants_to_post(&self) -> bool {
        (self.outbox.is_empty() && self.first.wants_to_post())
            || self.others.iter().any(Channel::wants_to_post)
    }

    /// Posts pieces of long messages; returns their bytes.
    pub(crate) fn post_transfers<D: Device + ?Sized>(&mut self, room: Room, turn: &mut Turn<'_, D>) -> u64 {
        let mut posted = 0;
        while posted < room.bytes && self.wants_to_post() {
            // The channels take turns, as only all of them together are as fast as the cards that they go over.
            let number = self.turn;
            self.turn = (number + 1) % self.width();
            let waits = number == 0 && !self.outbox.is_empty();
            if let Some(channel) = self.channel_mut(number).filter(|c| !waits && c.wants_to_post()) {
                match channel.post_transfer(room.segment, turn) {
                    0 => break,
                    bytes => posted += bytes,
                }
            }
        }
        posted
    }

    fn pump_queued<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) -> bool {
        let Some(Queued { key, envelope, buffer }) = self.queue.front().copied() else { return false };
        if envelope.length <= self.eager_max && self.credits.point > 0 {
            let message = Message::PointData { envelope, credits: self.owed };
            match self.send_eager(&message, buffer, (Class::Point, Purpose::Point { key }), turn) {
                Taken::No => return false,
                Taken::Posted => {}
                Taken::Copied => self.events.push_back(Event::Sent(Purpose::Point { key })),
            }
            self.owed = Credits::default();
            self.credits.point -= 1;
        } else if self.announced < ANNOUNCEMENTS {
            self.announced += 1;
            self.control(Message::PointAnnounce { envelope, slot: key }, turn);
            self.events.push_back(Event::Announced { key });
        } else {
            return false;
        }
        self.queue.pop_front();
        true
    }

    /// A point-to-point message of the peer has to wait. `false` when there are more than a correct peer can send.
    pub(crate) fn hold(&mut self) -> bool {
        self.held += 1;
        self.held <= ANNOUNCEMENTS + u32::from(self.credits_each)
    }

    /// An announced point-to-point message was granted.
    pub(crate) fn granted(&mut self) {
        self.announced = self.announced.saturating_sub(1);
    }

    /// Room for the peer to write into over a channel while it measures the link, the same whenever it asks. `None` where there is
    /// none, or no such channel.
    pub(crate) fn lend<D: Device + ?Sized>(
        &mut self,
        channel: u8,
        turn: &mut Turn<'_, D>,
    ) -> Option<RemoteSlice> {
        let [lent, _] = &mut self.measured_with;
        let into = block(lent, turn)?;
        self.target(channel.into(), into, turn)
    }

    /// What is written to the peer while the link is measured. `None` where there is no room for it.
    pub(crate) fn written_from<D: ?Sized>(&mut self, turn: &mut Turn<'_, D>) -> Option<BufferRef> {
        let [_, from] = &mut self.measured_with;
        block(from, turn)
    }

    /// Writes into a peer's rooms, one for each channel, by turns, telling nobody. Returns the bytes that were posted.
    pub(crate) fn write<D: Device + ?Sized>(
        &mut self,
        from: BufferRef,
        rooms: &[RemoteSlice],
        count: u32,
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        if !self.outbox.is_empty() {
            return 0;
        }
        let by_turns = rooms.iter().enumerate().cycle().take(count as usize);
        by_turns.map(|(at, room)| self.channel_mut(at).map_or(0, |to| to.write(from, *room, turn))).sum()
    }

    /// Whether what was written over the further channels has arrived.
    pub(crate) fn others_are_quiet(&self) -> bool {
        self.others.iter().all(Channel::is_quiet)
    }

    /// Asks the devices of the further channels for a sign of life; over the first the peer itself is asked.
    pub(crate) fn ask_others<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        self.others.iter_mut().for_each(|channel| channel.ask(turn));
    }

    fn slot(&self) -> u64 {
        self.memory + u64::from(self.first.next % SEND_DEPTH) * SLOT
    }

    pub(super) fn write_header<D: ?Sized>(
        &self,
        slot: u64,
        message: &Message,
        turn: &mut Turn<'_, D>,
    ) -> LocalSlice {
        let workspace = &turn.shared.workspace;
        turn.memory.write(workspace.buffer(slot, HEADER as u64), &message.emit(self.check));
        LocalSlice { key: workspace.key(), offset: slot, length: HEADER as u64 }
    }

    /// A send-queue request of a channel and all before it are done.
    pub(crate) fn sent(&mut self, (channel, number): (usize, u32), now: Time, shared: &mut Shared) {
        match channel.checked_sub(1) {
            // That the peer's device lives says nothing of the peer, which is asked over this one.
            None => self.first.sent(number, &mut self.events, now, shared),
            Some(at) => {
                if let Some(channel) = self.others.get_mut(at) {
                    channel.asked = None;
                    channel.sent(number, &mut self.events, now, shared);
                }
            }
        }
    }

    /// Whether what was said has reached the peer.
    pub(crate) fn has_said_all(&self) -> bool {
        self.outbox.is_empty() && self.first.is_quiet()
    }

    /// Whether everything that was signalled is done, so that only requests nobody waits for remain.
    pub(crate) fn is_quiet(&self) -> bool {
        self.outbox.is_empty() && self.channels().all(Channel::is_quiet)
    }
}

/// A block of the workspace to measure with, taken when it is wanted first.
fn block<D: ?Sized>(of: &mut Option<u64>, turn: &mut Turn<'_, D>) -> Option<BufferRef> {
    if of.is_none() {
        *of = turn.shared.workspace.take_long(WRITE_BYTES);
    }
    of.map(|start| turn.shared.workspace.buffer(start, WRITE_BYTES))
}

const fn send() -> Operation {
    Operation::Send { immediate: None }
}
