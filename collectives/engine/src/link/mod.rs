//! One queue pair to a peer node: its buffers, its credits and what waits to be sent.

mod receive;
mod send;

use std::collections::VecDeque;

use ringway_verbs::{Device, LocalKey, QueuePairConfig, QueuePairError, QueuePairNumber, RemoteSlice, Time};

use crate::measure::WRITE_BYTES;
use crate::message::{Absent, Credits, Envelope, Exchange, HEADER, Message};
use crate::turn::Shared;
use crate::{BufferRef, EngineConfig};

/// Bytes of a send slot: a header and a payload short enough to be copied beside it.
pub(crate) const SLOT: u64 = 256;
/// The longest payload that is copied beside its header, there being room in the send slot.
const INLINE: u64 = SLOT - HEADER as u64;
/// The longest payload that is copied at all, so that its source is free at once: nothing waits for the peer's
/// acknowledgement then, which takes longer than the copy. Each credit has such a place.
const COPIED: u64 = 2048;
/// The same for collectives: all ranks of the node wait for them.
const COPIED_OF_COLLECTIVES: u64 = 8192;
/// Send-queue requests that may be outstanding.
const SEND_DEPTH: u32 = 128;
/// Data leaves this many places for control messages.
const RESERVED: usize = 16;
/// Receives beyond those that eager messages may hold. Control messages and the notices of WRITE_WITH_IMM use them
/// and give them back at once; with none left the device holds the sender back.
const CONTROL_RECEIVES: u32 = 16;
/// Bytes of long messages that may be posted at once.
const WINDOW: u64 = 4 << 20;
/// Point-to-point messages that may be announced and not granted.
const ANNOUNCEMENTS: u32 = 256;

/// What a send-queue request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Nothing waits for it.
    Control,
    /// A step of the plan that runs.
    Step { slot: u32, step: u32 },
    /// A point-to-point operation.
    Point { key: u32 },
}

/// What happened on a link that a part above it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The bytes have left.
    Sent(Purpose),
    /// The point-to-point message was announced.
    Announced { key: u32 },
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    purpose: Purpose,
    /// Of a long message, and the epoch of `network` in which they were posted.
    bytes: u64,
    epoch: u32,
}

/// A long message that is being written.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    from: BufferRef,
    key: LocalKey,
    target: RemoteSlice,
    immediate: u32,
    purpose: Purpose,
}

/// A point-to-point message that is not on its way yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) key: u32,
    pub(crate) envelope: Envelope,
    pub(crate) buffer: BufferRef,
}

/// A collective's message that came before the step it is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) exchange: Exchange,
    pub(crate) length: u64,
    pub(crate) kind: EarlyKind,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum EarlyKind {
    Data { bounce: u32 },
    Announce,
    Grant { target: RemoteSlice, immediate: u32 },
}

/// Which credits a buffer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Collective,
    Point,
}

impl Class {
    /// The longest payload that is copied.
    const fn copied_max(self) -> u64 {
        match self {
            Self::Collective => COPIED_OF_COLLECTIVES,
            Self::Point => COPIED,
        }
    }
}

/// How a message was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Not at all: try again after completions.
    No,
    /// The source is in use until the purpose's event.
    Posted,
    /// The source is free.
    Copied,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: u32,
    /// The lowest rank on the node.
    pub(crate) rank: u32,
    pub(crate) queue_pair: QueuePairNumber,
    id: u64,
    check: u32,
    memory: u64,
    memory_length: u64,
    bounce_bytes: u64,
    receives: u32,
    posted: u32,
    credits_each: u16,
    eager_max: u64,
    max_message: u64,
    sent: VecDeque<Sent>,
    next: u32,
    unsignalled: u32,
    in_flight: u64,
    outbox: VecDeque<Message>,
    pub(crate) queue: VecDeque<Queued>,
    transfers: VecDeque<Transfer>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) early: Vec<Early>,
    credits: Credits,
    owed: Credits,
    /// The places that payloads are copied to next.
    places: Credits,
    announced: u32,
    /// Point-to-point messages of the peer that wait for a receive.
    pub(crate) held: u32,
    /// When a sign of life was asked for that has not come.
    pub(crate) asked: Option<Time>,
    pub(crate) heard: Time,
    /// When it was asked last, and whether it is to be asked now.
    pub(crate) pinged: Time,
    pub(crate) ping_due: bool,
    /// What the node said last about ranks that have not come.
    pub(crate) absent: Option<Absent>,
    /// A rank of the node that has left, and after how many collectives.
    pub(crate) left: Option<(u32, u64)>,
    /// The node's last rank has left.
    pub(crate) ended: bool,
    /// The queue pair failed.
    pub(crate) broken: Option<Time>,
    pub(crate) abort_heard: bool,
    /// Probes that the peer has not answered.
    pub(crate) probes: u32,
    /// Blocks of the workspace that the link was measured with: written by the peer, and written to it. They stay as long as
    /// the link, since what is sent again may still read or write them.
    measured_with: [Option<u64>; 2],
    destroyed: bool,
}

/// Where a link stands in a communicator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkPlace {
    pub(crate) communicator: u32,
    pub(crate) link: u32,
    pub(crate) node: u32,
    pub(crate) rank: u32,
    pub(crate) check: u32,
}

/// Splits a work request's id into communicator index, link index, whether it is a receive, and number.
pub(crate) const fn split_id(id: u64) -> (usize, usize, u32) {
    ((id >> 48) as usize, ((id >> 32) & 0xffff) as usize, (id & 0x7fff_ffff) as u32)
}

impl Link {
    pub(crate) fn queue_pair_config(config: &EngineConfig) -> QueuePairConfig {
        QueuePairConfig { send_depth: SEND_DEPTH, receive_depth: receives(config) }
    }

    pub(crate) fn new<D: Device + ?Sized>(
        place: LinkPlace,
        queue_pair: QueuePairNumber,
        shared: &mut Shared,
        device: &D,
    ) -> Option<Self> {
        let config = &shared.config;
        let (receives, bounce_bytes) = (receives(config), config.bounce_bytes());
        let memory_length = link_bytes(config);
        let memory = shared.workspace.take_long(memory_length)?;
        let each = Credits { collective: config.credits, point: config.credits };
        Some(Self {
            node: place.node,
            rank: place.rank,
            queue_pair,
            id: (u64::from(place.communicator) << 48) | (u64::from(place.link) << 32),
            check: place.check,
            memory,
            memory_length,
            bounce_bytes,
            receives,
            posted: 0,
            credits_each: config.credits,
            eager_max: u64::from(config.eager_max_bytes),
            max_message: device.capabilities().max_message.max(1),
            sent: VecDeque::with_capacity(SEND_DEPTH as usize),
            next: 0,
            unsignalled: 0,
            in_flight: 0,
            outbox: VecDeque::with_capacity(64),
            queue: VecDeque::with_capacity(64),
            transfers: VecDeque::with_capacity(64),
            events: VecDeque::with_capacity(2 * SEND_DEPTH as usize),
            early: Vec::with_capacity(64),
            credits: each,
            owed: Credits::default(),
            places: Credits::default(),
            announced: 0,
            held: 0,
            asked: None,
            heard: Time(0),
            pinged: Time(0),
            ping_due: false,
            absent: None,
            left: None,
            ended: false,
            broken: None,
            abort_heard: false,
            probes: 0,
            measured_with: [None; 2],
            destroyed: false,
        })
    }

    /// Destroys the queue pair. `false`: not yet, try again.
    pub(crate) fn destroy<D: Device + ?Sized>(&mut self, device: &mut D) -> bool {
        if self.destroyed {
            return true;
        }
        match device.destroy_queue_pair(self.queue_pair) {
            Ok(()) | Err(QueuePairError::Unknown) => {
                self.destroyed = true;
                self.events.clear();
                self.early.clear();
            }
            Err(_) => device.fail_queue_pair(self.queue_pair),
        }
        self.destroyed
    }

    /// The communicator's index.
    const fn communicator(&self) -> u32 {
        (self.id >> 48) as u32
    }

    /// Gives the buffers back; the queue pair is destroyed.
    pub(crate) fn free(&mut self, shared: &mut Shared) {
        let (communicator, now) = (self.communicator(), shared.network.progress());
        for sent in self.sent.drain(..) {
            shared.network.sent(communicator, sent.bytes, sent.epoch, now);
        }
        if self.memory_length > 0 {
            shared.workspace.give(self.memory, self.memory_length);
            self.memory_length = 0;
        }
        for block in self.measured_with.iter_mut().filter_map(Option::take) {
            shared.workspace.give(block, WRITE_BYTES);
        }
    }
}

/// Receives of one queue pair: eager messages of both classes, and control messages.
fn receives(config: &EngineConfig) -> u32 {
    2 * u32::from(config.credits) + CONTROL_RECEIVES
}

/// Bytes of a link's send slots, receive buffers and places for payloads.
pub(crate) fn link_bytes(config: &EngineConfig) -> u64 {
    u64::from(SEND_DEPTH) * SLOT
        + u64::from(receives(config)) * config.bounce_bytes()
        + u64::from(config.credits) * (Class::Collective.copied_max() + Class::Point.copied_max())
}
