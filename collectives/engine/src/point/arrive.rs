//! What comes from other nodes.

use ringway_verbs::Device;

use super::copying::copy_pieces;
use super::matching::{From, Unexpected, received};
use super::{KEY_MASK, Kind, Place, Point, State};
use crate::link::Class;
use crate::message::{Envelope, Granted};
use crate::turn::{Shared, Turn};

impl Point {
    /// The local rank a message is for, when it makes sense that it came on this link.
    fn addressee(&self, envelope: &Envelope, link: usize, place: &Place<'_>) -> Option<u32> {
        let layout = place.layout;
        let known = envelope.destination < layout.ranks() && envelope.source < layout.ranks();
        let here = known && layout.node_of(envelope.destination) == self.node;
        let node = place.peers.links.get(link)?.node;
        (here && layout.node_of(envelope.source) == node).then(|| layout.local_index(envelope.destination))
    }

    /// A short message has come. `false` when it makes no sense.
    pub(crate) fn on_data<D: Device + ?Sized>(
        &mut self,
        at: usize,
        bounce: u32,
        envelope: &Envelope,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> bool {
        let Some(local) = self.addressee(envelope, at, place) else { return false };
        let (source, tag, length) = (envelope.source, envelope.tag, envelope.length);
        let Some((key, op)) = self.take_posted(local, source, tag) else {
            self.keep(local, Unexpected { source, tag, length, from: From::Bounce { link: at, bounce } });
            return place.peers.links.get_mut(at).is_some_and(|link| link.hold());
        };
        if length > 0 && turn.shared.is_on_accelerator(op.buffer.region) {
            // As one that came before its receive.
            if !place.peers.links.get_mut(at).is_some_and(|link| link.hold()) {
                return false;
            }
            let message = Unexpected { source, tag, length, from: From::Bounce { link: at, bounce } };
            self.deliver(message, key, place, turn);
            return true;
        }
        if let Some(link) = place.peers.links.get_mut(at) {
            copy_pieces(link.payload(bounce, length, turn.shared), op.buffer, turn);
            turn.shared.copied += 2 * length;
            link.release(bounce, Class::Point, turn);
        }
        self.finish(key, received(source, length, op.buffer.length), turn.shared);
        true
    }

    /// A message waits for a grant. `false` when it makes no sense.
    pub(crate) fn on_announce<D: Device + ?Sized>(
        &mut self,
        at: usize,
        slot: u32,
        envelope: &Envelope,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> bool {
        let Some(local) = self.addressee(envelope, at, place) else { return false };
        let (source, tag, length) = (envelope.source, envelope.tag, envelope.length);
        let message = Unexpected { source, tag, length, from: From::Announced { link: at, slot } };
        if !place.peers.links.get_mut(at).is_some_and(|link| link.hold()) {
            return false;
        }
        match self.take_posted(local, source, tag) {
            Some((key, _)) => {
                self.deliver(message, key, place, turn);
            }
            None => self.keep(local, message),
        }
        true
    }

    /// A send, or the next part of one, was granted. `false` when none waits for it.
    pub(crate) fn on_grant<D: Device + ?Sized>(
        &mut self,
        at: usize,
        key: u32,
        (length, last): (u64, bool),
        granted: Granted,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> bool {
        let Some(op) = self.op(key).filter(|op| op.kind == Kind::Send) else { return false };
        match op.state {
            State::Announced { link } if link == at => {
                self.set(key, State::Remote { link: at });
                if let Some(link) = place.peers.links.get_mut(at) {
                    link.granted();
                }
            }
            State::Remote { link } if link == at && op.granted > 0 => {}
            _ => return false,
        }
        self.send_part((key, at), (length, last), granted, place, turn)
    }

    /// A granted message, or a part of one, was written. `false` when no receive waits for it.
    pub(crate) fn on_written(&mut self, at: usize, immediate: u32, shared: &mut Shared) -> bool {
        let key = immediate & KEY_MASK;
        let Some(op) = self.op(key).copied() else { return false };
        let State::Landing { link, source, sent } = op.state else { return false };
        if link != at {
            return false;
        }
        if let Some(expected) = self.part_landed(key, shared) {
            return expected;
        }
        self.finish(key, received(source, sent, op.buffer.length), shared);
        true
    }

    /// A send's bytes, or a part of them, have left.
    pub(crate) fn on_sent(&mut self, key: u32, place: &Place<'_>, shared: &mut Shared) {
        let Some(op) = self.op(key).copied().filter(|op| op.kind == Kind::Send) else { return };
        if !self.part_sent(key, shared) {
            return;
        }
        let rank = place.layout.local(self.node).get(op.local as usize).copied().unwrap_or(0);
        self.finish(key, Ok((rank, 0)), shared);
    }

    /// A send was announced. It may wait long for its receive, and has no window meanwhile.
    pub(crate) fn on_announced(&mut self, key: u32, link: usize, shared: &mut Shared) {
        if self.op(key).is_none_or(|op| op.state != (State::Remote { link })) {
            return;
        }
        self.set(key, State::Announced { link });
        if let Some(window) = self.op_mut(key).and_then(|op| op.window.take()) {
            self.give_window(window, shared);
        }
    }
}
