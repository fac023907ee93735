//! Messages between two ranks: matching, buffering and rendezvous.

mod arrive;
mod copying;
mod matching;
mod staging;

use std::collections::VecDeque;

use ringway_plan::Layout;
use ringway_verbs::{Device, Time};

use crate::collective::run::Peers;
use crate::turn::{Shared, Turn};
use crate::windows::Window;
use crate::{BufferRef, CommunicatorId, Failure, PointToPoint, RankFailure, Refused, Token};
use copying::Copying;
use matching::Unexpected;
use staging::{Landing, Part};

/// Bits of a key that are the operation's place in the table; the rest is its generation.
const PLACE_BITS: u32 = 20;
const KEY_MASK: u32 = 0x7fff_ffff;
/// The most places of the table. The last immediates, which none of them has, are those of eager writes.
const PLACES_MAX: usize = (1 << PLACE_BITS) - 16;
/// Operations looked at in one visit.
const BATCH: usize = 32;
/// Bytes touched for them after which the rest waits for the next visit.
const QUANTUM: u64 = 64 << 10;

/// Tells the notice of a written point-to-point message from that of a collective.
pub(crate) const POINT_IMMEDIATE: u32 = 1 << 31;
/// Tells a piece of a point-to-point message that others copy from one of a collective.
pub(crate) const POINT_TICKET: u32 = 1 << 31;

/// Whose turn it is among channels that are equally near: another one's for the receive that has the place of the table next.
fn turn_of(key: u32) -> u64 {
    u64::from(key) + u64::from(key >> PLACE_BITS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Receive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not in use.
    Free,
    /// Taken and not looked at yet.
    New,
    /// A receive without a message, or a local send without a receive.
    Waiting,
    /// A send to another node that has not been posted or announced, or is on its way.
    Remote { link: usize },
    /// A send to another node that waits for a grant.
    Announced { link: usize },
    /// A receive whose message is being written by another node.
    Landing { link: usize, source: u32, sent: u64 },
    /// A local copy is going on.
    Copying,
}

#[derive(Debug, Clone, Copy)]
struct Op {
    key: u32,
    state: State,
    kind: Kind,
    local: u32,
    peer: Option<u32>,
    tag: u64,
    token: Token,
    buffer: BufferRef,
    /// Where its bytes are, when they are an accelerator's and the message a short one for or from another node.
    window: Option<Window>,
    /// Bytes of a send that the peer has granted, whether that is all, and writes of them that are under way.
    granted: u64,
    all_granted: bool,
    unsent: u32,
    /// Over which channel the first part goes; writes over several would not end in order.
    channel: u8,
    since: Time,
}

/// What one local rank has posted and what has come for it.
#[derive(Debug)]
struct Inbox {
    posted: VecDeque<u32>,
    unexpected: VecDeque<Unexpected>,
    buffered: u32,
    outstanding: u32,
    left: bool,
}

impl Inbox {
    /// With room for as much as one sender may have outstanding. More, when many send to a rank that does not receive,
    /// makes it grow once.
    fn new(limit: u32) -> Self {
        let room = limit as usize;
        let (posted, unexpected) = (VecDeque::with_capacity(room), VecDeque::with_capacity(room));
        Self { posted, unexpected, buffered: 0, outstanding: 0, left: false }
    }
}

/// Point-to-point operations of one communicator on this node.
#[derive(Debug)]
pub(crate) struct Point {
    communicator: CommunicatorId,
    node: u32,
    limit: u32,
    ops: Vec<Op>,
    free: Vec<u32>,
    inboxes: Vec<Inbox>,
    incoming: VecDeque<u32>,
    copies: VecDeque<Copying>,
    /// Copies of which others have a piece, by its ticket's number.
    away: Vec<(u32, Copying)>,
    /// Counts pieces that others got.
    serial: u32,
    /// Windows that messages have.
    windows: Vec<Window>,
    /// Parts of sends to other nodes, and short ones, that are staged before they go, in that order.
    parts: VecDeque<Part>,
    /// Windows of parts that are being written, with their sends.
    under_way: VecDeque<(u32, Window)>,
    /// Receives whose parts come.
    landings: Vec<Landing>,
    /// Messages from other nodes that wait for room to be staged.
    unstaged: VecDeque<(Unexpected, u32)>,
    /// Bytes of messages that local ranks have received.
    pub(crate) bytes: u64,
}

/// Where point-to-point operations find the rest of their communicator.
pub(crate) struct Place<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) peers: &'a mut Peers,
}

impl Point {
    pub(crate) fn new(communicator: CommunicatorId, layout: &Layout, node: u32, limit: u32) -> Self {
        let locals = layout.local(node).len();
        let entries = (limit as usize * locals).min(PLACES_MAX);
        let free = Op {
            key: 0,
            state: State::Free,
            kind: Kind::Send,
            local: 0,
            peer: None,
            tag: 0,
            token: Token(0),
            buffer: BufferRef::default(),
            window: None,
            granted: 0,
            all_granted: false,
            channel: 0,
            unsent: 0,
            since: Time(0),
        };
        let places = 0..u32::try_from(entries).unwrap_or(0);
        Self {
            communicator,
            node,
            limit,
            ops: places.clone().map(|key| Op { key, ..free }).collect(),
            free: places.rev().collect(),
            inboxes: (0..locals).map(|_| Inbox::new(limit)).collect(),
            incoming: VecDeque::with_capacity(entries),
            copies: VecDeque::with_capacity(64),
            away: Vec::new(),
            serial: 0,
            windows: Vec::new(),
            parts: VecDeque::new(),
            under_way: VecDeque::new(),
            landings: Vec::new(),
            unstaged: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Operations that have not finished.
    pub(crate) fn outstanding(&self) -> u64 {
        (self.ops.len() - self.free.len()) as u64
    }

    /// Takes a local rank's request.
    pub(crate) fn submit(
        &mut self,
        layout: &Layout,
        local: u32,
        token: Token,
        request: &PointToPoint,
        now: Time,
    ) -> Result<(), Refused> {
        let (kind, peer, tag, buffer) = match *request {
            PointToPoint::Send { peer, tag, buffer } => (Kind::Send, Some(peer), tag, buffer),
            PointToPoint::Receive { peer, tag, buffer } => (Kind::Receive, peer, tag, buffer),
        };
        if let Some(rank) = peer.filter(|rank| *rank >= layout.ranks()) {
            return Err(Refused::Rank { rank, size: layout.ranks() });
        }
        let inbox = self.inboxes.get_mut(local as usize).ok_or(Refused::Unknown)?;
        if inbox.outstanding >= self.limit {
            return Err(Refused::Full);
        }
        let place = self.free.pop().ok_or(Refused::Full)?;
        let Some(op) = self.ops.get_mut(place as usize) else { return Err(Refused::Full) };
        inbox.outstanding += 1;
        let key = op.key;
        let fresh = Op { key, state: State::New, kind, local, peer, tag, token, buffer, ..*op };
        *op = Op { window: None, granted: 0, all_granted: false, unsent: 0, since: now, ..fresh };
        self.incoming.push_back(key);
        Ok(())
    }

    fn op(&self, key: u32) -> Option<&Op> {
        let op = self.ops.get((key & ((1 << PLACE_BITS) - 1)) as usize)?;
        (op.key == key && op.state != State::Free).then_some(op)
    }

    fn op_mut(&mut self, key: u32) -> Option<&mut Op> {
        let op = self.ops.get_mut((key & ((1 << PLACE_BITS) - 1)) as usize)?;
        (op.key == key && op.state != State::Free).then_some(op)
    }

    fn set(&mut self, key: u32, state: State) {
        if let Some(op) = self.op_mut(key) {
            op.state = state;
        }
    }

    fn finish(&mut self, key: u32, outcome: Result<(u32, u64), Failure>, shared: &mut Shared) {
        let Some(op) = self.op(key).copied() else { return };
        let place = key & ((1 << PLACE_BITS) - 1);
        if let Some(slot) = self.ops.get_mut(place as usize) {
            slot.state = State::Free;
            slot.key = key.wrapping_add(1 << PLACE_BITS) & KEY_MASK;
        }
        self.free.push(place);
        if let Some(window) = op.window {
            self.give_window(window, shared);
        }
        if let Some(inbox) = self.inboxes.get_mut(op.local as usize) {
            inbox.outstanding -= 1;
        }
        if let Ok((_, bytes)) = outcome {
            self.bytes += bytes;
        }
        shared.finish(self.communicator, op.local, op.token, outcome);
    }

    /// Looks at new operations and goes on with copies: returns bytes touched and whether there is more to do.
    pub(crate) fn visit<D: Device + ?Sized>(
        &mut self,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<(u64, bool), Failure> {
        let mut bytes = 0;
        for _ in 0..BATCH {
            if bytes >= QUANTUM {
                break;
            }
            let Some(key) = self.incoming.pop_front() else { break };
            bytes += 64 + self.begin(key, place, turn)?;
        }
        if let Some(copying) = self.copies.pop_front() {
            bytes += self.copy_piece(copying, turn);
        }
        self.stage(place, turn);
        Ok((bytes, !self.incoming.is_empty() || !self.copies.is_empty()))
    }

    fn begin<D: Device + ?Sized>(
        &mut self,
        key: u32,
        place: &mut Place<'_>,
        turn: &mut Turn<'_, D>,
    ) -> Result<u64, Failure> {
        let Some(op) = self.op(key).copied() else { return Ok(0) };
        match (op.kind, op.peer) {
            (Kind::Receive, peer) => {
                if let Some(unexpected) = self.take_unexpected(op.local, peer, op.tag) {
                    return Ok(self.deliver(unexpected, key, place, turn));
                }
                if let Some(rank) = peer.filter(|rank| self.is_gone(*rank, place)) {
                    return Err(Failure::Rank { rank, how: RankFailure::Left });
                }
                self.set(key, State::Waiting);
                if let Some(inbox) = self.inboxes.get_mut(op.local as usize) {
                    inbox.posted.push_back(key);
                }
                Ok(0)
            }
            (Kind::Send, Some(peer)) if self.is_gone(peer, place) => {
                Err(Failure::Rank { rank: peer, how: RankFailure::Left })
            }
            (Kind::Send, Some(peer)) => match place.peers.link_to(place.layout.node_of(peer)) {
                Some(link) => {
                    self.send_remote(key, &op, (peer, link), place, turn);
                    Ok(0)
                }
                None => Ok(self.send_local(key, &op, place.layout, turn)),
            },
            (Kind::Send, None) => Ok(0),
        }
    }

    /// Whether a rank has left.
    fn is_gone(&self, rank: u32, place: &Place<'_>) -> bool {
        let node = place.layout.node_of(rank);
        if node == self.node {
            let local = place.layout.local_index(rank) as usize;
            return self.inboxes.get(local).is_some_and(|inbox| inbox.left);
        }
        let link = place.peers.link_to(node).and_then(|at| place.peers.links.get(at));
        link.is_some_and(|link| link.ended || link.left.is_some_and(|(left, _)| left == rank))
    }

    /// A local rank leaves. `false` when operations need it that have not finished.
    pub(crate) fn leave(&mut self, rank: u32, local: u32) -> bool {
        let needed = self.ops.iter().any(|op| {
            op.state != State::Free
                && (op.local == local || op.peer == Some(rank))
                && !matches!(op.state, State::Copying)
        });
        if let Some(inbox) = self.inboxes.get_mut(local as usize) {
            inbox.left = true;
        }
        !needed
    }

    /// Whether an operation cannot finish without the node at the other end of the link, or the one rank there that
    /// has left.
    pub(crate) fn needs(&self, link: usize, node: u32, rank: Option<u32>, layout: &Layout) -> bool {
        self.ops.iter().any(|op| match op.state {
            State::Free | State::New | State::Copying => false,
            State::Remote { link: other } | State::Announced { link: other } => {
                other == link && rank.is_none_or(|rank| op.peer == Some(rank))
            }
            State::Landing { link: other, source, .. } => {
                other == link && rank.is_none_or(|rank| source == rank)
            }
            State::Waiting => op
                .peer
                .is_some_and(|peer| layout.node_of(peer) == node && rank.is_none_or(|rank| rank == peer)),
        })
    }

    /// Ends everything with a failure.
    pub(crate) fn fail(&mut self, failure: &Failure, shared: &mut Shared) {
        for inbox in &mut self.inboxes {
            inbox.posted.clear();
            for unexpected in inbox.unexpected.drain(..) {
                unexpected.give_back(shared);
            }
            inbox.buffered = 0;
        }
        self.incoming.clear();
        for copying in self.copies.drain(..) {
            copying.end.give_back(shared);
        }
        self.parts.clear();
        self.under_way.clear();
        self.landings.clear();
        for (message, _) in self.unstaged.drain(..) {
            message.give_back(shared);
        }
        // What is in windows may still come and go.
        self.ops.iter_mut().for_each(|op| op.window = None);
        for place in 0..self.ops.len() {
            if let Some(key) = self.ops.get(place).filter(|op| op.state != State::Free).map(|op| op.key) {
                self.finish(key, Err(failure.clone()), shared);
            }
        }
    }

    /// Whether an operation uses the region.
    pub(crate) fn uses(&self, region: crate::RegionId) -> bool {
        self.ops.iter().any(|op| op.state != State::Free && op.buffer.region == region)
    }

    /// The operation that has waited longest: since when, whose, for whom, whether it sends, and
    /// how many bytes.
    pub(crate) fn oldest(&self) -> Option<(Time, u32, Option<u32>, bool, u64)> {
        let ops = if self.outstanding() > 0 { self.ops.as_slice() } else { &[] };
        ops.iter()
            .filter(|op| op.state != State::Free)
            .map(|op| (op.since, op.local, op.peer, op.kind == Kind::Send, op.buffer.length))
            .min()
    }
}
