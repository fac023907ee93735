//! Eager writes: messages longer than those that travel behind their header, written into memory that the receiver has lent
//! for good, so that nobody asks where they go. It is what MVAPICH calls its RDMA channel (Liu, Wu and Panda, "High
//! Performance RDMA-Based MPI Implementation over InfiniBand", 2004).
//!
//! What is written is a header and the bytes; the immediate tells in which place they are. One message on the wire, for which the
//! receiver wakes up once. Both ends copy, the sender so that its source is free at once, the receiver to where the message
//! belongs. That is worth it where two copies take less than the two ways that they spare, the grant's and the
//! acknowledgement's (`ringway_plan::tuner::eager_write_max_bytes`), and where a call has only few such messages:
//! grants of many are said ahead.
//!
//! Each end says what it lends before the communicator's first collective, also when that is nothing. So both know whether a message
//! comes eagerly over a link, which it does only if both have lent: else the receiver says ahead where it goes, as it does with
//! longer ones. Where the sender finds both places taken it has to announce the message.

use ringway_verbs::{Device, LocalSlice, Operation, RemoteSlice};

use super::{Link, Purpose, Taken};
use crate::BufferRef;
use crate::message::{Credits, Exchange, HEADER, Message};
use crate::turn::{Shared, Turn};

/// Places that each end lends the other.
const PLACES: u32 = 2;
/// The longest message.
const LONGEST: u64 = ringway_plan::EAGER_WRITE_BYTES as u64;
/// Bytes of a place: a header, and a message behind it.
const PLACE_BYTES: u64 = HEADER as u64 + LONGEST;
/// All of them, a bit each.
pub(super) const ALL_PLACES: u16 = (1 << PLACES) - 1;
/// The immediates of eager writes, from the one of the first place: those of point-to-point messages never get so far.
const WRITTEN: u32 = u32::MAX - PLACES + 1;

/// What eager writes of a link need.
#[derive(Debug, Default)]
pub(super) struct EagerWrites {
    /// In the workspace: the places that are lent, then as many in which what is written to the peer waits.
    memory: Option<u64>,
    /// The places that the peer has lent, if it has any to lend; `None` until it says.
    room: Option<Option<RemoteSlice>>,
}

/// A message that was written eagerly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EagerWrite {
    pub(crate) place: u32,
    pub(crate) exchange: Exchange,
    pub(crate) length: u64,
    pub(crate) credits: Credits,
}

impl Link {
    /// Lends the peer memory, for good, if any can be spared.
    pub(crate) fn lend_for_eager_writes<D: Device + ?Sized>(&mut self, turn: &mut Turn<'_, D>) {
        let is_fit = self.first.max_message >= PLACE_BYTES;
        let take = || turn.shared.workspace.take_spare(2 * u64::from(PLACES) * PLACE_BYTES);
        let memory = is_fit.then(take).flatten();
        self.eager_writes.memory = memory;
        let lent = memory.map(|start| turn.shared.workspace.buffer(start, u64::from(PLACES) * PLACE_BYTES));
        let room = lent.and_then(|lent| self.target(0, lent, turn));
        self.control(Message::Lent { room }, turn);
    }

    /// The peer has said what it lends. `false`: it had before.
    pub(crate) fn on_lent(&mut self, room: Option<RemoteSlice>) -> bool {
        self.credits.places = ALL_PLACES;
        self.eager_writes.room.replace(room).is_none()
    }

    /// Whether the peer has said what it lends.
    pub(crate) const fn has_been_lent(&self) -> bool {
        self.eager_writes.room.is_some()
    }

    /// Whether short messages are written eagerly over this link, in either direction.
    pub(crate) const fn writes_eagerly(&self) -> bool {
        self.eager_writes.memory.is_some() && matches!(self.eager_writes.room, Some(Some(_)))
    }

    /// Whether a message of a collective can be written eagerly now.
    pub(crate) const fn can_write_eagerly(&self) -> bool {
        self.writes_eagerly() && self.credits.places != 0
    }

    /// Writes a message of a collective eagerly; the caller has seen that it can be.
    pub(crate) fn write_eagerly<D: Device + ?Sized>(
        &mut self,
        exchange: Exchange,
        from: BufferRef,
        turn: &mut Turn<'_, D>,
    ) -> Taken {
        let (Some(memory), Some(Some(room))) = (self.eager_writes.memory, self.eager_writes.room) else {
            return Taken::No;
        };
        if !self.has_room() || from.length > LONGEST {
            return Taken::No;
        }
        let place = self.credits.places.trailing_zeros();
        // What waited here before is with the peer, which has given the place back.
        let waits = memory + u64::from(PLACES + place) * PLACE_BYTES;
        let message = Message::EagerWrite { exchange, length: from.length, credits: self.owed };
        let header = self.write_header(waits, &message, turn);
        let payload = turn.shared.workspace.buffer(waits + HEADER as u64, from.length);
        turn.memory.copy(from, &[payload]);
        turn.shared.copied += 2 * from.length;
        let whole = LocalSlice { length: header.length + from.length, ..header };
        let offset = room.offset.saturating_add(u64::from(place) * PLACE_BYTES);
        let remote = RemoteSlice { offset, ..room };
        let operation = Operation::WriteWithImmediate { remote, immediate: WRITTEN + place };
        // Nobody waits for it, nor wakes up when it is acknowledged.
        if !self.first.post(operation, [whole, LocalSlice::default()], Purpose::Control, false, turn) {
            return Taken::No;
        }
        self.owed = Credits::default();
        self.credits.places &= !(1 << place);
        Taken::Copied
    }

    /// What was written eagerly, by its immediate. `None` when it makes no sense.
    pub(crate) fn read_eager_write<D: ?Sized>(
        &self,
        immediate: u32,
        turn: &Turn<'_, D>,
    ) -> Option<EagerWrite> {
        let place = immediate.checked_sub(WRITTEN)?;
        let start = self.eager_writes.memory? + u64::from(place) * PLACE_BYTES;
        let mut bytes = [0; HEADER];
        turn.memory.read(turn.shared.workspace.buffer(start, HEADER as u64), &mut bytes);
        match Message::parse(&bytes, self.check)? {
            Message::EagerWrite { exchange, length, credits } if length <= LONGEST => {
                Some(EagerWrite { place, exchange, length, credits })
            }
            _ => None,
        }
    }

    /// The bytes of a message that was written eagerly.
    pub(super) fn written_eagerly(&self, place: u32, length: u64, shared: &Shared) -> BufferRef {
        let start = self.eager_writes.memory.unwrap_or(0);
        shared.workspace.buffer(start + u64::from(place) * PLACE_BYTES + HEADER as u64, length)
    }

    /// Owes the sender a place: it is told with the next message, and when it has no other.
    pub(super) fn give_back_place<D: Device + ?Sized>(&mut self, place: u32, turn: &mut Turn<'_, D>) {
        self.owed.places |= 1 << place;
        if self.owed.places == ALL_PLACES {
            self.return_credits(turn);
        }
    }

    /// Gives the memory back.
    pub(super) fn free_eager_writes(&mut self, shared: &mut Shared) {
        if let Some(memory) = self.eager_writes.memory.take() {
            shared.workspace.give(memory, 2 * u64::from(PLACES) * PLACE_BYTES);
        }
    }
}

/// Whether a notice is an eager write's.
pub(crate) const fn is_eager_write(immediate: u32) -> bool {
    immediate >= WRITTEN
}
