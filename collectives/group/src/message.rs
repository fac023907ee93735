//! What members and the root say to each other, in postcard encoding. Every message fits into
//! [`MESSAGE_BYTES_MAX`]; endpoints are sent in as many messages as they need.

use core::fmt;

use ringway_plan::tuner::Constants;
use ringway_plan::{PlanSettings, Preference};
use ringway_verbs::Endpoint;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _};

use crate::{Failure, GroupId, Host, Key, ListedPlan, plans::are_plans, wire};

/// The most bytes of one message.
pub const MESSAGE_BYTES_MAX: usize = 48 * 1024;

/// The most endpoints in one message.
pub const ENDPOINTS_MAX: usize = 256;

/// The most devices of one node.
pub const DEVICES_MAX: usize = 4;

/// The most channels between two nodes, and the most rails that they go over.
#[expect(clippy::cast_possible_truncation, reason = "8")]
pub const CHANNELS_MAX: u8 = PlanSettings::CHANNELS_MAX as u8;

/// How many queue pairs there are between two nodes, and over how many network cards of each they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Width {
    /// Network cards: channel `c` goes over rail `c % rails` of either node. 1 to `channels`, of which it is a divisor.
    pub rails: u8,
    /// Queue pairs, 1 to [`CHANNELS_MAX`].
    pub channels: u8,
}

impl Width {
    /// One queue pair over one network card.
    pub const ONE: Self = Self { rails: 1, channels: 1 };

    /// Whether there can be as many.
    #[must_use]
    pub const fn is_possible(self) -> bool {
        let Self { rails, channels } = self;
        1 <= rails && rails <= channels && channels <= CHANNELS_MAX && channels.is_multiple_of(rails)
    }

    /// The most that nodes of these widths have in common, with as many channels on each rail; `None` of no nodes.
    #[must_use]
    pub fn common(widths: impl Iterator<Item = Self>) -> Option<Self> {
        let least = widths
            .reduce(|a, b| Self { rails: a.rails.min(b.rails), channels: a.channels.min(b.channels) })?;
        let rails = least.rails.max(1);
        Some(Self { rails, channels: (least.channels - least.channels % rails).max(rails) })
    }

    /// Whether a node of this width can do with the other.
    #[must_use]
    pub const fn allows(self, other: Self) -> bool {
        other.is_possible() && other.rails <= self.rails && other.channels <= self.channels
    }
}

/// A device that a node can use between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// What it speaks: at most 32 printable characters.
    pub device: String,
    /// The most that connections can be.
    pub width: Width,
}

impl Offer {
    /// A device with one queue pair to each node.
    #[must_use]
    pub fn narrow(device: &str) -> Self {
        Self { device: device.to_owned(), width: Width::ONE }
    }
}

/// From a member to the root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToRoot {
    /// Which communicator.
    pub key: Key,
    /// The member's name for it.
    pub group: GroupId,
    /// What is said.
    pub body: Request,
}

/// What a member says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// A rank of mine joins.
    Join {
        /// Which.
        rank: u32,
        /// How many ranks it expects.
        size: u32,
        /// How long it goes on waiting, in milliseconds.
        timeout_ms: u32,
        /// The devices this node can use between nodes, the best first.
        devices: Vec<Offer>,
        /// The algorithms it asks for.
        #[serde(with = "wire::preference")]
        preference: Preference,
        /// Where this node runs.
        host: Host,
        /// The plans this node was given as files, in order.
        plans: Vec<ListedPlan>,
    },
    /// Some of my endpoints, one for each channel to each other node, named by the node they are for.
    Endpoints(Vec<PeerEndpoint>),
    /// My queue pairs are connected.
    Ready {
        /// What was measured, if that was asked for.
        #[serde(with = "wire::constants")]
        measured: Option<Constants>,
    },
    /// I cannot take part: fail it everywhere.
    Fail(Failure),
    /// Forget what I said under this name; sent when it failed already and a join may have crossed the failure.
    Leave,
}

/// From the root to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToMember {
    /// The member's name for the communicator.
    pub group: GroupId,
    /// What is said.
    pub body: Answer,
}

/// What the root says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// This rank of yours cannot join; the others are not affected.
    Refuse {
        /// Which.
        rank: u32,
        /// Why.
        failure: Failure,
    },
    /// All ranks are here: open your queue pairs.
    Roster {
        /// Your node's number.
        node: u32,
        /// For each rank its node; nodes are numbered by their lowest rank.
        node_of: Vec<u32>,
        /// The device that is used: all nodes have it.
        device: String,
        /// How many queue pairs there are to each node.
        width: Width,
        /// Measure the links before you are ready.
        measure: bool,
    },
    /// Some of the endpoints meant for you, named by the node they come from.
    Endpoints(Vec<PeerEndpoint>),
    /// Every node is ready: the communicator is formed.
    Go {
        /// What all nodes choose their plans by.
        #[serde(with = "wire::settings")]
        settings: PlanSettings,
    },
    /// It failed.
    Fail(Failure),
}

/// A queue pair's endpoint and the node at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerEndpoint {
    /// The node.
    pub node: u32,
    /// Which of the channels between the two nodes.
    pub channel: u8,
    /// What its device needs to connect.
    #[serde(serialize_with = "write_endpoint", deserialize_with = "read_endpoint")]
    pub endpoint: Endpoint,
}

fn write_endpoint<S: Serializer>(endpoint: &Endpoint, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(endpoint.as_bytes())
}

fn read_endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Endpoint, D::Error> {
    let bytes = <&'de [u8]>::deserialize(deserializer)?;
    Endpoint::new(bytes).ok_or_else(|| D::Error::custom("endpoint too long"))
}

/// Why a message could not be written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedMessage;

impl fmt::Display for MalformedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a membership message cannot be read; do all nodes run the same version of Ringway?")
    }
}

impl core::error::Error for MalformedMessage {}

impl ToRoot {
    /// The bytes of this message.
    ///
    /// # Errors
    /// When it would be longer than [`MESSAGE_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, MalformedMessage> {
        encode(self)
    }

    /// Reads a message; every byte must belong to it.
    ///
    /// # Errors
    /// When the bytes are not exactly one message within the limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut message: Self = decode(bytes)?;
        message.body = match message.body {
            Request::Fail(failure) => Request::Fail(failure.cleaned()),
            Request::Endpoints(list) if list.len() > ENDPOINTS_MAX => return Err(MalformedMessage),
            Request::Join { ref devices, ref host, ref plans, .. }
                if !are_devices(devices) || !host.is_sound() || !are_plans(plans) =>
            {
                return Err(MalformedMessage);
            }
            other => other,
        };
        Ok(message)
    }
}

impl ToMember {
    /// The bytes of this message.
    ///
    /// # Errors
    /// When it would be longer than [`MESSAGE_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, MalformedMessage> {
        encode(self)
    }

    /// Reads a message; every byte must belong to it.
    ///
    /// # Errors
    /// When the bytes are not exactly one message within the limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut message: Self = decode(bytes)?;
        message.body = match message.body {
            Answer::Fail(failure) => Answer::Fail(failure.cleaned()),
            Answer::Refuse { rank, failure } => Answer::Refuse { rank, failure: failure.cleaned() },
            Answer::Endpoints(list) if list.len() > ENDPOINTS_MAX => return Err(MalformedMessage),
            Answer::Roster { ref device, width, .. } if !is_device_name(device) || !width.is_possible() => {
                return Err(MalformedMessage);
            }
            other => other,
        };
        Ok(message)
    }
}

fn are_devices(offers: &[Offer]) -> bool {
    let is_sound = |offer: &Offer| is_device_name(&offer.device) && offer.width.is_possible();
    (1..=DEVICES_MAX).contains(&offers.len()) && offers.iter().all(is_sound)
}

fn is_device_name(name: &str) -> bool {
    (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, MalformedMessage> {
    let bytes = postcard::to_allocvec(message).map_err(|_| MalformedMessage)?;
    if bytes.len() > MESSAGE_BYTES_MAX { Err(MalformedMessage) } else { Ok(bytes) }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MalformedMessage> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MalformedMessage);
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(MalformedMessage),
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
