//! The queue pairs to a peer node: their buffers, credits and what waits to be sent.
//!
//! A link has one to [`MAX_CHANNELS`] *channels*, queue pairs that may go over different network cards. All that nodes say to
//! each other goes over the first one. Over the others long messages are written and nothing else, so they need no buffers, and
//! nothing that is said is to be put in order between channels:
//!
//! - The grant, over the first channel, comes before the write that answers it.
//! - All pieces of a message, and the notice that it was written, go over one channel.
//! - A notice names the step that waits for it, so notices may come in any order.
//! - The word that a node has left may overtake notices of other channels, see `ending`.

mod channel;
mod eager_write;
mod receive;
mod send;

use std::collections::VecDeque;
use std::iter;

use ringway_plan::PlanSettings;
use ringway_verbs::{Device, LocalKey, QueuePairConfig, QueuePairNumber, RemoteSlice, Time};

pub(crate) use channel::Channel;
pub(crate) use eager_write::{EagerWrite, is_eager_write};

use eager_write::EagerWrites;

use crate::measure::WRITE_BYTES;
use crate::message::{Absent, Credits, Envelope, Exchange, Granted, HEADER, Message};
use crate::turn::Shared;
use crate::{BufferRef, EngineConfig};

/// The most channels of a link; a channel's number has three bits in ids.
pub const MAX_CHANNELS: u32 = PlanSettings::CHANNELS_MAX;
/// Receives of channels that only notices come over. With none left the device holds the sender back.
const NOTICES: u32 = 32;
/// In an id: it is a receive's.
const RECEIVE: u64 = 1 << 31;
/// In an id: where the channel's number begins.
const CHANNEL_SHIFT: u32 = 28;

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
    /// The notice for the peer, when it is written; none of a part that another one follows.
    immediate: Option<u32>,
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
    Data { payload: Payload },
    Announce,
    Grant { granted: Granted },
}

/// Where a message lies that came with its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Payload {
    /// Behind its header, in this receive buffer.
    Bounce(u32),
    /// In this place of those that the peer writes to eagerly.
    Place(u32),
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
    /// The channel over which everything is said.
    pub(crate) first: Channel,
    /// Further channels, for long messages.
    pub(crate) others: Vec<Channel>,
    id: u64,
    check: u32,
    memory: u64,
    memory_length: u64,
    bounce_bytes: u64,
    receives: u32,
    credits_each: u16,
    eager_max: u64,
    outbox: VecDeque<Message>,
    pub(crate) queue: VecDeque<Queued>,
    /// The channel that posts a piece of a long message next.
    turn: usize,
    pub(crate) events: VecDeque<Event>,
    pub(crate) early: Vec<Early>,
    credits: Credits,
    owed: Credits,
    /// The places that payloads are copied to next.
    places: Credits,
    announced: u32,
    /// Point-to-point messages of the peer that wait for a receive.
    pub(crate) held: u32,
    pub(crate) heard: Time,
    /// When a sign of life was asked for last, and whether it is to be asked now.
    pub(crate) pinged: Time,
    pub(crate) ping_due: bool,
    /// What the node said last about ranks that have not come.
    pub(crate) absent: Option<Absent>,
    /// A rank of the node that has left, and after how many collectives.
    pub(crate) left: Option<(u32, u64)>,
    /// The node's last rank has left.
    pub(crate) ended: bool,
    /// Since when something waits for a node whose last rank has left.
    pub(crate) missed: Option<Time>,
    pub(crate) abort_heard: bool,
    /// Probes that the peer has not answered.
    pub(crate) probes: u32,
    /// Probes of the peer's that asked for no room, since this node measured last.
    pub(crate) probes_heard: u32,
    /// Blocks of the workspace that the link was measured with: written by the peer, and written to it. They stay as long as
    /// the link, since what is sent again may still read or write them.
    measured_with: [Option<u64>; 2],
    eager_writes: EagerWrites,
}

/// A queue pair that was made for a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChannelPlace {
    pub(crate) queue_pair: QueuePairNumber,
    /// The rail it goes over, where the node has several.
    pub(crate) rail: Option<u32>,
    /// The NUMA node of the rail's network card, where it is known and matters.
    pub(crate) numa_node: Option<u32>,
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

/// A work request's id, split: whose it is, and its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Id {
    pub(crate) communicator: usize,
    pub(crate) link: usize,
    pub(crate) channel: usize,
    /// Of a receive: which one it is.
    pub(crate) number: u32,
}

/// Splits a work request's id.
pub(crate) const fn split_id(id: u64) -> Id {
    Id {
        communicator: (id >> 48) as usize,
        link: ((id >> 32) & 0xffff) as usize,
        channel: ((id >> CHANNEL_SHIFT) & 7) as usize,
        number: (id as u32) & channel::NUMBER,
    }
}

impl Link {
    pub(crate) fn queue_pair_config(config: &EngineConfig) -> QueuePairConfig {
        QueuePairConfig { send_depth: SEND_DEPTH, receive_depth: receives(config).max(NOTICES) }
    }

    /// A link over these queue pairs, one at least. `None` when the workspace has no room for its buffers.
    pub(crate) fn new<D: Device + ?Sized>(
        place: LinkPlace,
        channels: &[ChannelPlace],
        shared: &mut Shared,
        device: &D,
    ) -> Option<Self> {
        let config = &shared.config;
        let id = (u64::from(place.communicator) << 48) | (u64::from(place.link) << 32);
        let max_message = device.capabilities().max_message.max(1);
        let mut channels = (0_u64..)
            .zip(channels)
            .map(|(number, channel)| Channel::new(*channel, id | (number << CHANNEL_SHIFT), max_message));
        let first = channels.next()?;
        let (receives, bounce_bytes) = (receives(config), config.bounce_bytes());
        let memory_length = link_bytes(config);
        let memory = shared.workspace.take_long(memory_length)?;
        let each = Credits { collective: config.credits, point: config.credits, places: 0 };
        Some(Self {
            node: place.node,
            rank: place.rank,
            first,
            others: channels.collect(),
            id,
            check: place.check,
            memory,
            memory_length,
            bounce_bytes,
            receives,
            credits_each: config.credits,
            eager_max: u64::from(config.eager_max_bytes),
            outbox: VecDeque::with_capacity(64),
            queue: VecDeque::with_capacity(64),
            turn: 0,
            events: VecDeque::with_capacity(2 * SEND_DEPTH as usize),
            early: Vec::with_capacity(64),
            credits: each,
            owed: Credits::default(),
            places: Credits::default(),
            announced: 0,
            held: 0,
            heard: Time(0),
            pinged: Time(0),
            ping_due: false,
            absent: None,
            left: None,
            ended: false,
            missed: None,
            abort_heard: false,
            probes: 0,
            probes_heard: 0,
            measured_with: [None; 2],
            eager_writes: EagerWrites::default(),
        })
    }

    /// All channels.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &Channel> {
        iter::once(&self.first).chain(&self.others)
    }

    /// The same.
    pub(crate) fn channels_mut(&mut self) -> impl Iterator<Item = &mut Channel> {
        iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The channel that something long is to come over, into memory on this NUMA node: those whose network card is on the same
    /// one take turns by the number; all do where there is none, or nobody knows.
    pub(crate) fn nearest(&self, number: u64, numa_node: Option<u32>) -> u8 {
        let is_near = |channel: &Channel| numa_node.is_some() && channel.numa_node == numa_node;
        let near = self.channels().filter(|channel| is_near(channel)).count();
        let turns = if near == 0 { self.width() } else { near };
        let mut able = (0..).zip(self.channels()).filter(|(_, channel)| near == 0 || is_near(channel));
        let turn = usize::try_from(number % turns as u64).unwrap_or(0);
        able.nth(turn).map_or(0, |(at, _)| at)
    }

    /// How many channels there are.
    pub(crate) fn width(&self) -> usize {
        1 + self.others.len()
    }

    /// Whether there is one of this number.
    pub(crate) fn has_channel(&self, number: u8) -> bool {
        usize::from(number) < self.width()
    }

    /// One of them.
    pub(crate) fn channel_mut(&mut self, number: usize) -> Option<&mut Channel> {
        number.checked_sub(1).map_or(Some(&mut self.first), |at| self.others.get_mut(at))
    }

    /// The channel that failed first, and when: one is enough for the peer to be lost.
    pub(crate) fn broken(&self) -> Option<(&Channel, Time)> {
        let broken = self.channels().filter_map(|channel| Some((channel, channel.broken?)));
        broken.min_by_key(|(_, since)| *since)
    }

    /// The rail of the channels of which that holds, where others do not have it as well.
    pub(crate) fn rail(&self, is_bad: impl Fn(&Channel) -> bool) -> Option<u32> {
        let mut bad = self.channels().filter(|channel| is_bad(channel));
        let rail = bad.next()?.rail?;
        self.channels().any(|channel| channel.rail != Some(rail) && !is_bad(channel)).then_some(rail)
    }

    /// Destroys the queue pairs. `false`: not yet, try again.
    pub(crate) fn destroy<D: Device + ?Sized>(&mut self, device: &mut D) -> bool {
        // Each is tried, also when one is not ready for it.
        let destroyed = self.channels_mut().fold(true, |all, channel| channel.destroy(device) & all);
        if destroyed {
            self.events.clear();
            self.early.clear();
        }
        destroyed
    }

    /// The communicator's index.
    const fn communicator(&self) -> u32 {
        channel::communicator(self.id)
    }

    /// Gives the buffers back; the queue pairs are destroyed.
    pub(crate) fn free(&mut self, shared: &mut Shared) {
        self.channels_mut().for_each(|channel| channel.forget(shared));
        if self.memory_length > 0 {
            shared.workspace.give(self.memory, self.memory_length);
            self.memory_length = 0;
        }
        self.free_eager_writes(shared);
        for block in self.measured_with.iter_mut().filter_map(Option::take) {
            shared.workspace.give(block, WRITE_BYTES);
        }
    }
}

/// Receives of the first channel: eager messages of both classes, and control messages.
fn receives(config: &EngineConfig) -> u32 {
    2 * u32::from(config.credits) + CONTROL_RECEIVES
}

/// Bytes of a link's send slots, receive buffers and places for payloads.
pub(crate) fn link_bytes(config: &EngineConfig) -> u64 {
    u64::from(SEND_DEPTH) * SLOT
        + u64::from(receives(config)) * config.bounce_bytes()
        + u64::from(config.credits) * (Class::Collective.copied_max() + Class::Point.copied_max())
}
