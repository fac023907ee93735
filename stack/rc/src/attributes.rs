//! What a queue pair is made with, its states, and what each step between them needs (IBA volume 1, 10.3.1 and table
//! 91). What the specification demands at a step is a field of that step, so that nothing can be left out; what
//! remains to be checked is ranges.

use ringway_verbs::{Access, QueuePairNumber};
use ringway_wire::{self as wire, PathMtu, Psn, RnrTimer};
use thiserror::Error;

use crate::selective::WINDOW_MAX;

/// Where a queue pair is in its life. There is no SQE: only unreliable queue pairs have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Made, or reset: takes nothing.
    Reset,
    /// Receives may be posted; nothing is sent or received.
    Initialized,
    /// Requests of the peer are executed.
    ReadyToReceive,
    /// Both directions work.
    ReadyToSend,
    /// As [`State::ReadyToSend`], but no request begins that had not begun before: those that had end, others wait. It is
    /// drained when they have ([`QueuePair::is_drained`](crate::QueuePair::is_drained)).
    SendQueueDrain,
    /// Failed: everything posted is flushed.
    Error,
}

impl State {
    /// Whether requests of this side are under way.
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::SendQueueDrain)
    }

    /// Whether requests of the peer are executed.
    pub(crate) const fn receives(self) -> bool {
        matches!(self, Self::ReadyToReceive) || self.sends()
    }
}

/// What a queue pair has room for. Everything is allocated when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// Its number, which peers address; 24 bits.
    pub number: QueuePairNumber,
    /// Send-queue requests that may be outstanding.
    pub send_depth: u32,
    /// Receives that may be posted.
    pub receive_depth: u32,
    /// The most READs and atomics of the peer that can be answered at once.
    pub responder_resources: u8,
    /// Room for selective acknowledgement, in packets of `path_mtu_max`: how far a packet may be ahead of one that is
    /// missing. A power of two; zero for queue pairs that will not use it.
    pub selective_window: u32,
    /// The largest path MTU it will have.
    pub path_mtu_max: PathMtu,
}

/// What the step to [`State::Initialized`] needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initialization {
    /// The partition; its lower 15 bits must be the peer's.
    pub partition: u16,
    /// What the peer may do through this queue pair, where the region permits it as well.
    pub access: Access,
}

/// What the step to [`State::ReadyToReceive`] needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveAttributes {
    /// The most payload of a packet.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub destination: wire::QueuePair,
    /// The PSN of the peer's first request.
    pub receive_psn: Psn,
    /// READs and atomics of the peer that are answered at once.
    pub max_dest_rd_atomic: u8,
    /// How long the peer shall wait when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// Both ends have agreed on selective acknowledgement and a congestion window. Without it lost packets are sent again
    /// with all that follows them, as the specification says, and congestion notifications slow down.
    pub selective: bool,
}

/// What the step to [`State::ReadyToSend`] needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendAttributes {
    /// How long to wait for an acknowledgement: 4.096 us * 2^timeout; 0 for ever.
    pub timeout: u8,
    /// How often to send again after a timeout or sequence error, without any progress.
    pub retries: Retries,
    /// How often to send again after an RNR NAK, without any progress.
    pub rnr_retries: Retries,
    /// The PSN of the first request.
    pub send_psn: Psn,
    /// READs and atomics outstanding at once: no more than the peer answers.
    pub max_rd_atomic: u8,
    /// Packets that may be outstanding.
    pub window: u32,
    /// Set the solicited-event bit on messages that complete a receive, which wakes a peer that sleeps.
    pub solicited: bool,
    /// How much longer than the shortest round trip one may take without counting as congestion, where acknowledgement is
    /// selective: as long as packets may wait in the two ends themselves, in nanoseconds.
    pub delay_slack_ns: u64,
    /// The rate to begin with, and to return to after a slowdown, in bytes per second. Nothing is held back until the
    /// peer sends a congestion notification.
    pub line_rate: u64,
}

/// What may change while it works, and when it goes on after it was drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adjustment {
    /// As [`Initialization::access`].
    pub access: Access,
    /// As [`ReceiveAttributes::min_rnr_timer`].
    pub min_rnr_timer: RnrTimer,
}

/// How often to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    /// So often.
    Times(u8),
    /// Until it works.
    Forever,
}

impl Retries {
    /// The meaning of verbs' 3-bit RNR retry count, in which 7 is for ever.
    #[must_use]
    pub const fn from_rnr_count(count: u8) -> Self {
        if count >= 7 { Self::Forever } else { Self::Times(count) }
    }
}

/// A step from one state to another, or a change within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// RESET to INIT.
    Initialize(Initialization),
    /// INIT to RTR.
    ReadyToReceive(ReceiveAttributes),
    /// RTR to RTS.
    ReadyToSend(SendAttributes),
    /// What may change while it works (RTS to RTS).
    Adjust(Adjustment),
    /// RTS to SQD: nothing new begins.
    Drain,
    /// SQD to RTS, drained or not: what was posted meanwhile begins. The same may change as while it works.
    Resume(Option<Adjustment>),
    /// Any state to ERR: flushes.
    Error,
    /// Any state to RESET: forgets everything, completions included.
    Reset,
}

/// Why a step was refused. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AttributeError {
    /// The step does not start in this state.
    #[error("a queue pair in {from:?} cannot take this step, which starts in {expected:?}")]
    WrongState {
        /// Where it is.
        from: State,
        /// Where it must be.
        expected: State,
    },
    /// A number is too large.
    #[error("{attribute} is {value}, and at most {limit} is possible")]
    TooLarge {
        /// Which.
        attribute: &'static str,
        /// What was given.
        value: u32,
        /// The most.
        limit: u32,
    },
    /// A number is too small.
    #[error("{attribute} is {value}, and at least {limit} is needed")]
    TooSmall {
        /// Which.
        attribute: &'static str,
        /// What was given.
        value: u32,
        /// The least.
        limit: u32,
    },
}

/// The largest number of a queue pair; the one above it means all of a multicast group.
const MAX_NUMBER: u32 = wire::QueuePair::MAX - 1;
/// Packets outstanding must be fewer than half of all PSNs, with room for one READ of the longest message.
const MAX_WINDOW: u32 = 1 << 20;
/// The most sends, or receives, for which memory is set aside.
const MAX_DEPTH: u32 = 1 << 16;

fn at_most(attribute: &'static str, value: u32, limit: u32) -> Result<(), AttributeError> {
    if value <= limit { Ok(()) } else { Err(AttributeError::TooLarge { attribute, value, limit }) }
}

fn at_least(attribute: &'static str, value: u32, limit: u32) -> Result<(), AttributeError> {
    if value >= limit { Ok(()) } else { Err(AttributeError::TooSmall { attribute, value, limit }) }
}

impl Configuration {
    pub(crate) fn check(&self) -> Result<(), AttributeError> {
        at_least("the queue pair's number", self.number.0, 2)?;
        at_most("the queue pair's number", self.number.0, MAX_NUMBER)?;
        at_least("the send depth", self.send_depth, 1)?;
        at_most("the send depth", self.send_depth, MAX_DEPTH)?;
        at_most("the receive depth", self.receive_depth, MAX_DEPTH)?;
        at_most("the selective window", self.selective_window, WINDOW_MAX)?;
        match self.selective_window.checked_next_power_of_two() {
            Some(limit) if self.selective_window > 0 => {
                at_least("the selective window, a power of two,", self.selective_window, limit)
            }
            _ => Ok(()),
        }
    }
}

impl ReceiveAttributes {
    pub(crate) fn check(&self, configuration: &Configuration) -> Result<(), AttributeError> {
        let resources = u32::from(configuration.responder_resources);
        at_most("max_dest_rd_atomic", self.max_dest_rd_atomic.into(), resources)?;
        let code = |mtu: PathMtu| u32::from(mtu.code());
        at_most("the code of the path MTU", code(self.path_mtu), code(configuration.path_mtu_max))?;
        at_least("the selective window", configuration.selective_window, self.selective.into())
    }
}

impl SendAttributes {
    pub(crate) fn check(&self) -> Result<(), AttributeError> {
        at_most("timeout", self.timeout.into(), 31)?;
        at_least("the window", self.window, 1)?;
        at_most("the window", self.window, MAX_WINDOW)
    }
}
