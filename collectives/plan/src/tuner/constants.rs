//! What links and processors take.

use thiserror::Error;

use crate::PlanSettings;

/// What a communicator's links and processors take, in nanoseconds: measured between its daemons, or saved before. A plan is
/// priced by them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// A message of no bytes from one node to another (`a`).
    pub latency_ns: f64,
    /// What a node's engine thread spends on a message that it sends or receives, for however many bytes.
    pub message_ns: f64,
    /// A byte over a link, all channels together, copies by the kernel included (`b`).
    pub byte_ns: f64,
    /// The same over one channel alone: no less than `byte_ns`, and more where one cannot carry what all can. 0 where that is not
    /// known.
    pub channel_byte_ns: f64,
    /// A byte of one more operand, combined (`g`).
    pub reduce_ns: f64,
    /// A byte copied from one buffer into another.
    pub copy_ns: f64,
    /// How many engine threads share one processor: 1 where each has its own, N / P where N nodes share P processors.
    pub sharing: f64,
    /// Channels that a link had where this was measured; 0 where that is not known.
    pub channels: f64,
}

/// Which constant makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("the constant {name} is {value}; it must be a number from {least} to {most}")]
pub struct WrongConstant {
    /// Its name.
    pub name: &'static str,
    /// What was given.
    pub value: f64,
    /// The least it can be.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Default for Constants {
    /// An engine thread on a processor of its own, kernel TCP on a virtual network of one host.
    fn default() -> Self {
        Self {
            latency_ns: 20_000.0,
            message_ns: 2_000.0,
            byte_ns: 0.5,
            channel_byte_ns: 0.0,
            reduce_ns: 0.1,
            copy_ns: 0.1,
            sharing: 1.0,
            channels: 0.0,
        }
    }
}

/// How many times as long as a message that comes with others one takes at most that comes alone, for which two processors wake up.
const WORK_MESSAGES: f64 = 8.0;

/// What a message takes at least of a processor that several nodes share when it comes alone: two threads have to get it, the one that
/// receives and the one it works for. (Four nodes on two processors took 20 to 40 us of one for each further message of a short call.)
const LONE_MESSAGE_NS: f64 = 15_000.0;

/// For how long each of the nodes that share a processor has it before another one gets it back. (A run of 96 choices between three and
/// four nodes on two processors from which these two were not taken: 12 to 14 were wrong without them, whatever the other constants, and
/// 4 to 9 with them.)
const TURN_NS: f64 = 20_000.0;

/// What a message takes at least of a processor that nodes share, but for those that come in less than four times as long: measuring
/// finds next to nothing now and then, as it waits for others' turns with and without more messages. (Three nodes on two processors,
/// broadcast of 512 KiB: in three of fifteen runs 0.1 to 1.3 us were found, and chunks of 64 KiB took 1.4 to 1.9 times as long as others.)
const SHARED_MESSAGE_NS: f64 = 2_000.0;

/// The most that anything can take: a second for a message.
const MOST_NS: f64 = 1e9;

impl Constants {
    /// Every constant with its name, as files and messages have them.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, f64); 8] {
        [
            ("latency_ns", self.latency_ns),
            ("message_ns", self.message_ns),
            ("byte_ns", self.byte_ns),
            ("reduce_ns", self.reduce_ns),
            ("copy_ns", self.copy_ns),
            ("sharing", self.sharing),
            ("channel_byte_ns", self.channel_byte_ns),
            ("channels", self.channels),
        ]
    }

    /// The constants of these values, in the order of [`Constants::named`].
    #[must_use]
    pub const fn of(values: [f64; 8]) -> Self {
        let [latency_ns, message_ns, byte_ns, reduce_ns, copy_ns, sharing, channel_byte_ns, channels] =
            values;
        Self { latency_ns, message_ns, byte_ns, channel_byte_ns, reduce_ns, copy_ns, sharing, channels }
    }

    /// Constants of which another node or a file says that they are so.
    ///
    /// # Errors
    /// Names the first that is no number or out of range.
    pub fn checked(self) -> Result<Self, WrongConstant> {
        for (name, value) in self.named() {
            let (least, most) = match name {
                "sharing" => (1.0, MOST_NS),
                "channels" => (0.0, PlanSettings::CHANNELS_MAX.into()),
                _ => (0.0, MOST_NS),
            };
            if !(least..=most).contains(&value) {
                return Err(WrongConstant { name, value, least, most });
            }
        }
        Ok(self)
    }

    /// What was measured while so many nodes for each processor did the same, as it would be if each had one of its own. Bytes
    /// and messages are processor time then; the latency is that of the message that waited least.
    #[must_use]
    pub fn unshared(self, sharing: f64) -> Self {
        let sharing = sharing.max(1.0);
        let byte_ns = self.byte_ns / sharing;
        let least_ns = if sharing > 1.0 { SHARED_MESSAGE_NS.min(self.latency_ns / 4.0) } else { 0.0 };
        Self {
            message_ns: (self.message_ns / sharing).max(least_ns),
            byte_ns,
            // What one channel takes beyond all of them is no processor's time.
            channel_byte_ns: (self.channel_byte_ns - self.byte_ns + byte_ns).max(0.0),
            sharing,
            ..self
        }
    }

    /// What a message takes of a processor that comes alone. Where nodes do not share processors those wait for it, and waking up is
    /// part of the latency.
    pub(super) fn lone_message_ns(&self) -> f64 {
        self.message_ns.max(self.if_shared(LONE_MESSAGE_NS))
    }

    /// How long a round takes beside the work of processors that nodes share: until the node that goes on with it has its own back,
    /// and while its message is on its way and nobody needs one. (Eight nodes on two processors, 8 KiB, 100 us of delay: recursive
    /// doubling with 24 messages in 3 rounds takes 1.09 ms, a tree with 14 in 6 rounds 1.45, which is 190 us for each round.)
    pub(super) fn turn_ns(&self) -> f64 {
        if self.sharing <= 1.0 {
            return 0.0;
        }
        let way_ns = (self.latency_ns - WORK_MESSAGES * self.message_ns).max(0.0);
        self.sharing * self.if_shared(TURN_NS) + way_ns
    }

    /// So much where nodes share processors; less where messages are found to take next to nothing of one.
    fn if_shared(&self, processor_ns: f64) -> f64 {
        if self.sharing > 1.0 { processor_ns.min(WORK_MESSAGES * self.message_ns) } else { 0.0 }
    }

    /// What is slower of either, as a collective waits for the slowest.
    #[must_use]
    pub const fn slower(self, other: Self) -> Self {
        Self {
            latency_ns: self.latency_ns.max(other.latency_ns),
            message_ns: self.message_ns.max(other.message_ns),
            byte_ns: self.byte_ns.max(other.byte_ns),
            reduce_ns: self.reduce_ns.max(other.reduce_ns),
            copy_ns: self.copy_ns.max(other.copy_ns),
            sharing: self.sharing.max(other.sharing),
            channel_byte_ns: self.channel_byte_ns.max(other.channel_byte_ns),
            channels: self.channels.max(other.channels),
        }
    }

    /// How many channels there were; `None` where that is not known.
    #[must_use]
    pub fn known_channels(&self) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 8, as is checked")]
        let channels = self.channels as u32;
        (channels > 0).then_some(channels)
    }

    /// How many channels chunks may be given to: the powers of two, and as many as there are; `None` where that is no choice, or
    /// nothing is known of a channel alone.
    pub(super) fn channel_counts(&self) -> impl Iterator<Item = Option<u32>> {
        let all = self.known_channels().filter(|_| self.channel_byte_ns > 0.0).unwrap_or(0);
        let fewer =
            (0..PlanSettings::CHANNELS_MAX.ilog2()).map(|log2| 1 << log2).filter(move |few| *few < all);
        let several = all > 1;
        fewer.map(Some).filter(move |_| several).chain([several.then_some(all)])
    }
}
