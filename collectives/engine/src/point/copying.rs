//! Copies of messages, piece by piece.

use ringway_verbs::Device;

use super::matching::received;
use super::{Kind, POINT_TICKET, Place, Point, State};
use crate::link::Class;
use crate::turn::{Shared, Turn};
use crate::windows::Window;
use crate::{BufferRef, Handed, LocalMemory, Piece, Ticket};

/// The most bytes copied at once.
const PIECE: u64 = 64 << 10;
/// The same where an accelerator copies.
const ACCELERATOR_PIECE: u64 = 64 << 20;
/// What a piece costs that somebody else copies, in bytes of the turn's budget.
const HANDED: u64 = 1 << 10;

/// A copy that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copying {
    pub(super) from: BufferRef,
    pub(super) into: BufferRef,
    pub(super) end: End,
}

/// What a copy is the end of.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// A message of one local rank to another.
    Local { send: u32, receive: u32, source: u32, sent: u64 },
    /// A message that was kept, in a slot of the pool or where its receive is staged.
    Delivered { receive: u32, source: u32, sent: u64, pool: Option<u32> },
    /// The staging of a part of a send.
    Filled { serial: u32 },
    /// A part of a message that has come into a window.
    Landed { receive: u32, window: Window, length: u64 },
}

impl End {
    /// The copy will not go on.
    pub(super) fn give_back(&self, shared: &mut Shared) {
        if let Self::Delivered { pool: Some(slot), .. } = self {
            shared.pool.give(*slot);
        }
    }
}

pub(super) fn cut(buffer: BufferRef, length: u64) -> BufferRef {
    BufferRef { length: buffer.length.min(length), ..buffer }
}

impl Point {
    pub(super) fn copy_local<D: ?Sized>(
        &mut self,
        (send, receive): (u32, u32),
        source: u32,
        (from, into): (BufferRef, BufferRef),
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        debug_assert!(self.op(send).is_none_or(|op| op.kind == Kind::Send));
        self.set(send, State::Copying);
        self.set(receive, State::Copying);
        let sent = from.length;
        let copying = Copying { from, into, end: End::Local { send, receive, source, sent } };
        // A short message does not wait for the long ones that are being copied.
        if from.length <= PIECE {
            return self.copy_piece(copying, turn);
        }
        self.copies.push_back(copying);
        0
    }

    /// Copies the next piece, or has it copied; returns what it costs.
    pub(super) fn copy_piece<D: ?Sized>(&mut self, copying: Copying, turn: &mut Turn<'_, D>) -> u64 {
        let Copying { mut from, mut into, end } = copying;
        let accelerated = [from, into].iter().any(|buffer| turn.shared.is_on_accelerator(buffer.region));
        let most = if accelerated { ACCELERATOR_PIECE } else { PIECE };
        let length = from.length.min(into.length).min(most);
        let (source, destination) = (cut(from, length), cut(into, length));
        (from.offset, from.length) = (from.offset + length, from.length - length);
        (into.offset, into.length) = (into.offset + length, into.length - length);
        let rest = Copying { from, into, end };
        if length > 0 && accelerated {
            self.serial = self.serial.wrapping_add(1);
            let number = POINT_TICKET | self.serial;
            let ticket = Ticket { communicator: self.communicator, number };
            let piece = Piece::Copy { source, destinations: &[destination] };
            if turn.memory.hand(ticket, &piece, true) == Handed::Later {
                self.away.push((number, rest));
                return HANDED;
            }
        } else if length > 0 {
            turn.memory.copy(source, &[destination]);
        }
        self.go_on(rest, turn.shared);
        2 * length
    }

    /// A piece that somebody else copied is done.
    pub(crate) fn collected(&mut self, number: u32, shared: &mut Shared) {
        if let Some(at) = self.away.iter().position(|(other, _)| *other == number) {
            let (_, rest) = self.away.swap_remove(at);
            self.go_on(rest, shared);
        }
    }

    /// What comes after a piece.
    fn go_on(&mut self, rest: Copying, shared: &mut Shared) {
        if rest.from.length > 0 && rest.into.length > 0 {
            self.copies.push_back(rest);
            return;
        }
        match rest.end {
            End::Local { send, receive, source, sent } => {
                let room = self.op(receive).map_or(0, |op| op.buffer.length);
                self.finish(send, Ok((source, 0)), shared);
                self.finish(receive, received(source, sent, room), shared);
            }
            End::Delivered { receive, source, sent, pool } => {
                if let Some(slot) = pool {
                    shared.pool.give(slot);
                }
                let room = self.op(receive).map_or(0, |op| op.buffer.length);
                self.finish(receive, received(source, sent, room), shared);
            }
            End::Filled { serial } => self.filled(serial),
            End::Landed { receive, window, length } => self.part_copied(receive, (window, length), shared),
        }
    }

    /// Takes back what others have not begun to copy. Whether nobody touches the messages' memory any more.
    pub(crate) fn withdraw(&mut self, memory: &mut dyn LocalMemory, shared: &mut Shared) -> bool {
        let communicator = self.communicator;
        self.away.retain(|(number, rest)| {
            let withdrawn = memory.withdraw(Ticket { communicator, number: *number });
            if withdrawn {
                rest.end.give_back(shared);
            }
            !withdrawn
        });
        self.away.is_empty()
    }
}

/// Copies a short message out of the receive buffer in which it came, and gives that back.
pub(super) fn take_bounced<D: Device + ?Sized>(
    (at, bounce): (usize, u32),
    into: BufferRef,
    place: &mut Place<'_>,
    turn: &mut Turn<'_, D>,
) {
    let Some(link) = place.peers.links.get_mut(at) else { return };
    copy_pieces(link.payload(bounce, into.length, turn.shared), into, turn);
    link.held = link.held.saturating_sub(1);
    link.release(bounce, Class::Point, turn);
}

/// Copies a short message.
pub(super) fn copy_pieces<D: ?Sized>(from: BufferRef, into: BufferRef, turn: &mut Turn<'_, D>) {
    let length = from.length.min(into.length);
    if length > 0 {
        turn.memory.copy(cut(from, length), &[cut(into, length)]);
    }
}
