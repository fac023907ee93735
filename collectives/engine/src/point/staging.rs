//! Messages between nodes from and to an accelerator's memory, which no device reaches: their bytes go through windows of
//! the workspace, part by part, several parts of a message at a time.
//!
//! The receiver grants as many parts as it has windows for; the sender writes them in that order. A sender whose peer has
//! granted all at once cuts it into parts, and tells of the last one only. Short messages have a window for as long as
//! they wait to be sent, and keep their place in line meanwhile.

use std::collections::VecDeque;

use ringway_verbs::Device;

use super::copying::{Copying, End, cut, take_bounced};
use super::matching::{From, Unexpected, received};
use super::{KEY_MASK, Op, POINT_IMMEDIATE, Place, Point, State, turn_of};
use crate::BufferRef;
use crate::link::{Purpose, Queued};
use crate::message::{Envelope, Granted, Message};
use crate::turn::{Shared, Turn};
use crate::windows::{WINDOW, Way, Window};

/// Parts of one message that its receiver has granted and that have not come.
const PARTS_MAX: usize = 4;
/// Parts of one message that have been granted one by one and have not left: as many as there are windows for, and more than
/// that makes no sense.
const UNSENT_MAX: u32 = 64;

/// A part of a send, or a short one before it is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    key: u32,
    link: usize,
    from: BufferRef,
    window: Option<Window>,
    /// It is in its window.
    filled: bool,
    what: What,
    serial: u32,
}

/// What happens to it.
#[derive(Debug, Clone, Copy)]
enum What {
    /// It is sent to this rank, as the whole message.
    Queue { destination: u32 },
    /// It is written where the peer has granted it; the peer is told of a grant's last part.
    Write { granted: Granted, tells: bool },
}

/// A receive whose parts come.
#[derive(Debug)]
pub(super) struct Landing {
    key: u32,
    link: usize,
    /// The sender's name for it.
    slot: u32,
    source: u32,
    sent: u64,
    /// Bytes that it gets.
    total: u64,
    granted: u64,
    landed: u64,
    copied: u64,
    /// What is granted and has not come, in that order.
    expected: VecDeque<(Window, u64)>,
}

impl Point {
    /// A window, which is given back when the communicator has failed.
    fn take_window(&mut self, way: Way, shared: &mut Shared) -> Option<Window> {
        let mine = self.windows.iter().filter(|window| window.is(way)).count();
        let window = if mine < shared.windows.share() { shared.windows.take(way) } else { None }?;
        self.windows.push(window);
        Some(window)
    }

    pub(super) fn give_window(&mut self, window: Window, shared: &mut Shared) {
        if let Some(at) = self.windows.iter().position(|other| *other == window) {
            self.windows.swap_remove(at);
            shared.windows.give(window);
        }
    }

    /// Nobody touches the windows of failed messages any more.
    pub(crate) fn release_windows(&mut self, shared: &mut Shared) {
        self.windows.drain(..).for_each(|window| shared.windows.give(window));
    }

    pub(super) fn send_remote<D: Device + ?Sized>(
        &mut self,
        key: u32,
        op: &Op,
        (destination, link): (u32, usize),
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) {
        self.set(key, State::Remote { link });
        let from = op.buffer;
        let is_short = from.length <= u64::from(turn.shared.config.eager_max_bytes);
        let accelerated = from.length > 0 && is_short && turn.shared.is_on_accelerator(from.region);
        let waits = |part: &Part| matches!(part.what, What::Queue { .. });
        if accelerated || self.parts.iter().any(waits) {
            let what = What::Queue { destination };
            self.add_part(Part { key, link, from, window: None, filled: !accelerated, what, serial: 0 });
            return;
        }
        self.queue_remote(key, op, (destination, link), from, place, turn);
    }

    fn add_part(&mut self, part: Part) {
        self.serial = self.serial.wrapping_add(1);
        self.parts.push_back(Part { serial: self.serial, ..part });
    }

    fn queue_remote<D: Device + ?Sized>(
        &self,
        key: u32,
        op: &Op,
        (destination, link): (u32, usize),
        buffer: BufferRef,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) {
        let source = place.layout.local(self.node).get(op.local as usize).copied().unwrap_or(0);
        let envelope = Envelope { source, destination, tag: op.tag, length: buffer.length };
        if let Some(link) = place.peers.links.get_mut(link) {
            link.queue.push_back(Queued { key, envelope, buffer });
            link.pump(turn);
        }
    }

    /// A send's bytes, or their next part, were granted. `false` when that makes no sense.
    pub(super) fn send_part<D: Device + ?Sized>(
        &mut self,
        (key, at): (u32, usize),
        (length, last): (u64, bool),
        granted: Granted,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> bool {
        let Some(op) = self.op_mut(key) else { return false };
        let (start, whole) = (op.granted, op.buffer.length);
        let is_beyond = start.checked_add(length).is_none_or(|end| end > whole);
        let is_other = start > 0 && op.channel != granted.channel;
        if is_beyond || is_other || (length == 0 && !last) || op.all_granted || op.unsent >= UNSENT_MAX {
            return false;
        }
        (op.granted, op.all_granted, op.channel) = (start + length, last, granted.channel);
        let op = *op;
        let bytes = BufferRef { offset: op.buffer.offset + start, length, ..op.buffer };
        if length == 0 || !turn.shared.is_on_accelerator(bytes.region) {
            self.note_unsent(key);
            if let Some(link) = place.peers.links.get_mut(at) {
                link.transfer(bytes, granted, true, Purpose::Point { key }, turn);
            }
            return true;
        }
        let mut done = 0;
        while done < length {
            let part = (length - done).min(WINDOW);
            let mut there = granted;
            there.target.offset = there.target.offset.saturating_add(done);
            let what = What::Write { granted: there, tells: done + part == length };
            let from = BufferRef { offset: bytes.offset + done, length: part, ..bytes };
            self.note_unsent(key);
            self.add_part(Part { key, link: at, from, window: None, filled: false, what, serial: 0 });
            done += part;
        }
        true
    }

    fn note_unsent(&mut self, key: u32) {
        if let Some(op) = self.op_mut(key) {
            op.unsent += 1;
        }
    }

    /// A part of a send has left. Whether that was the last.
    pub(super) fn part_sent(&mut self, key: u32, shared: &mut Shared) -> bool {
        if let Some(at) = self.under_way.iter().position(|(other, _)| *other == key)
            && let Some((_, window)) = self.under_way.remove(at)
        {
            self.give_window(window, shared);
        }
        let Some(op) = self.op_mut(key) else { return false };
        op.unsent = op.unsent.saturating_sub(1);
        op.unsent == 0 && (op.all_granted || op.granted == 0)
    }

    /// Goes on with what is staged.
    pub(super) fn stage<D: Device + ?Sized>(&mut self, place: &mut Place<'_>, turn: &mut Turn<'_, D>) {
        for _ in 0..self.unstaged.len() {
            let Some((message, key)) = self.unstaged.pop_front() else { break };
            self.deliver(message, key, place, turn);
        }
        for at in 0..self.landings.len() {
            self.grant_parts(at, place, turn);
        }
        for at in 0..self.parts.len() {
            let Some(part) = self.parts.get(at).copied() else { break };
            if part.filled || part.window.is_some() {
                continue;
            }
            let Some(window) = self.take_window(Way::Out, turn.shared) else { break };
            if let Some(part) = self.parts.get_mut(at) {
                part.window = Some(window);
            }
            let into = turn.shared.window(window, part.from.length);
            let end = End::Filled { serial: part.serial };
            self.copy_piece(Copying { from: part.from, into, end }, turn);
        }
        while let Some(part) = self.parts.pop_front_if(|part| part.filled) {
            self.put_part(&part, place, turn);
        }
        if self.wants_room() {
            turn.shared.soon = true;
        }
    }

    fn put_part<D: Device + ?Sized>(&mut self, part: &Part, place: &mut Place<'_>, turn: &mut Turn<'_, D>) {
        let Some(op) = self.op(part.key).copied() else { return };
        let bytes = part.window.map_or(part.from, |window| turn.shared.window(window, part.from.length));
        match part.what {
            What::Queue { destination } => {
                if let Some(op) = self.op_mut(part.key) {
                    op.window = part.window;
                }
                self.queue_remote(part.key, &op, (destination, part.link), bytes, place, turn);
            }
            What::Write { granted, tells } => {
                self.under_way.extend(part.window.map(|window| (part.key, window)));
                if let Some(link) = place.peers.links.get_mut(part.link) {
                    link.transfer(bytes, granted, tells, Purpose::Point { key: part.key }, turn);
                }
            }
        }
    }

    /// Whether a message waits for room that only others can make.
    pub(crate) fn wants_room(&self) -> bool {
        let starved = |landing: &Landing| landing.granted < landing.total && landing.expected.is_empty();
        let waits = |part: &Part| !part.filled && part.window.is_none();
        !self.unstaged.is_empty() || self.landings.iter().any(starved) || self.parts.iter().any(waits)
    }

    /// A part is in its window.
    pub(super) fn filled(&mut self, serial: u32) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.serial == serial) {
            part.filled = true;
        }
    }

    /// An announced message for an accelerator's memory: it comes part by part.
    pub(super) fn land<D: Device + ?Sized>(
        &mut self,
        message: Unexpected,
        key: u32,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) {
        let (Some(op), From::Announced { link, slot }) = (self.op(key).copied(), message.from) else {
            return;
        };
        let Unexpected { source, length: sent, .. } = message;
        self.set(key, State::Landing { link, source, sent });
        let total = sent.min(op.buffer.length);
        let expected = VecDeque::with_capacity(PARTS_MAX);
        let (granted, landed, copied) = (0, 0, 0);
        self.landings.push(Landing {
            key,
            link,
            slot,
            source,
            sent,
            total,
            granted,
            landed,
            copied,
            expected,
        });
        self.grant_parts(self.landings.len() - 1, place, turn);
    }

    fn grant_parts<D: Device + ?Sized>(&mut self, at: usize, place: &mut Place<'_>, turn: &mut Turn<'_, D>) {
        loop {
            let Some(landing) = self.landings.get(at) else { return };
            let &Landing { key, link, slot, total, granted, .. } = landing;
            if granted >= total || landing.expected.len() >= PARTS_MAX {
                return;
            }
            let Some(window) = self.take_window(Way::In, turn.shared) else { return };
            let length = (total - granted).min(WINDOW);
            let into = turn.shared.window(window, length);
            let immediate = POINT_IMMEDIATE | (key & KEY_MASK);
            let Some(link) = place.peers.links.get_mut(link) else { return };
            let Some(place) = link.grant(turn_of(key), into, immediate, turn) else { return };
            let last = granted + length == total;
            link.control(Message::PointGrant { slot, length, last, granted: place }, turn);
            if let Some(landing) = self.landings.get_mut(at) {
                landing.granted += length;
                landing.expected.push_back((window, length));
            }
        }
    }

    /// A part of a message was written: the next visit copies it on. `None` when the message does not come in parts, `false`
    /// when none was granted.
    pub(super) fn part_landed(&mut self, key: u32, shared: &Shared) -> Option<bool> {
        let into = self.op(key)?.buffer;
        let landing = self.landings.iter_mut().find(|landing| landing.key == key)?;
        let Some((window, length)) = landing.expected.pop_front() else { return Some(false) };
        let offset = landing.landed;
        landing.landed += length;
        let all_here = landing.landed == landing.total;
        let into = BufferRef { offset: into.offset + offset, length, ..into };
        let end = End::Landed { receive: key, window, length };
        self.copies.push_back(Copying { from: shared.window(window, length), into, end });
        if all_here {
            // Nothing more is needed from the sender, which may leave.
            self.set(key, State::Copying);
        }
        Some(true)
    }

    /// A part is where it belongs.
    pub(super) fn part_copied(&mut self, key: u32, (window, length): (Window, u64), shared: &mut Shared) {
        self.give_window(window, shared);
        let Some(at) = self.landings.iter().position(|landing| landing.key == key) else { return };
        let Some(landing) = self.landings.get_mut(at) else { return };
        landing.copied += length;
        if landing.copied >= landing.total {
            let Landing { source, sent, .. } = self.landings.swap_remove(at);
            let room = self.op(key).map_or(0, |op| op.buffer.length);
            self.finish(key, received(source, sent, room), shared);
        }
    }

    /// A short message from another node to an accelerator's memory: out of the receive buffer first, which others need.
    pub(super) fn deliver_short<D: Device + ?Sized>(
        &mut self,
        message: Unexpected,
        key: u32,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> u64 {
        let (Some(op), From::Bounce { link: at, bounce }) = (self.op(key).copied(), message.from) else {
            return 0;
        };
        let moved = message.length.min(op.buffer.length);
        let Some(window) = self.take_window(Way::In, turn.shared) else {
            // It is here as a whole: its sender may leave.
            self.set(key, State::Copying);
            self.unstaged.push_back((message, key));
            return 0;
        };
        if let Some(op) = self.op_mut(key) {
            op.window = Some(window);
        }
        let kept = turn.shared.window(window, moved);
        take_bounced((at, bounce), kept, place, turn);
        let (source, sent) = (message.source, message.length);
        self.set(key, State::Copying);
        let end = End::Delivered { receive: key, source, sent, pool: None };
        self.copy_piece(Copying { from: kept, into: cut(op.buffer, moved), end }, turn)
    }
}
