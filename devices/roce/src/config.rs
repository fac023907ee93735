//! What a device is told when it is made.

use core::net::IpAddr;

use ringway_rc::MAX_SELECTIVE_WINDOW;
use ringway_wire::{DEFAULT_PARTITION, Ecn, PathMtu, Psn, RnrTimer};
use thiserror::Error;

use crate::link::line_rate;

/// The most queue pairs and regions.
const TABLE_MAX: u32 = 1 << 15;

/// What a device needs to know. The attributes of reliable connections are those of verbs; each queue pair gets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoceConfig {
    /// What the device is called: the kind of link.
    pub name: &'static str,
    /// The most queue pairs, up to 32,768.
    pub max_queue_pairs: u32,
    /// The most registered regions, up to 65,535.
    pub max_regions: u32,
    /// The largest path MTU to offer; the link's may be smaller.
    pub mtu_max: PathMtu,
    /// Packets of a queue pair that may be outstanding, up to 512; for selective acknowledgement a power of two.
    pub window: u32,
    /// Offer selective acknowledgement and a congestion window to other Ringway ends.
    pub selective: bool,
    /// How long to wait for an acknowledgement: 4.096 us * 2^timeout. Where acknowledgement is selective losses are
    /// found sooner by other means, and [`RoceConfig::patience_ns`] says when to give up.
    pub timeout: u8,
    /// How often to send again without an answer.
    pub retry_count: u8,
    /// How often to send again to a peer that has no receive posted; 7 for ever.
    pub rnr_retry_count: u8,
    /// How long a peer shall wait that finds no receive posted.
    pub min_rnr_timer: RnrTimer,
    /// The PSN of every queue pair's first request; random if `None`.
    pub first_psn: Option<Psn>,
    /// READs and atomics outstanding at most, if the peer answers as many.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer answered at once.
    pub max_dest_rd_atomic: u8,
    /// The partition key.
    pub partition: u16,
    /// DSCP and ECN of packets.
    pub traffic_class: u8,
    /// Mark packets that complete a receive, for peers that sleep until such a one comes.
    pub solicited: bool,
    /// How much longer than the shortest round trip one between Ringway ends may take without counting as congestion, in
    /// nanoseconds: packets wait in the ends themselves, which look after many things in turn.
    pub delay_slack_ns: u64,
    /// What to begin with when a plain peer says that its packets meet congestion, in bytes per second; a hundredth of it is left
    /// however often it says so. [`RoceConfig::at`] takes what the interface carries.
    pub line_rate: u64,
    /// How long connecting to a Ringway end may take, in nanoseconds.
    pub connect_timeout_ns: u64,
    /// After how long without a packet of a Ringway end it is asked for a sign of life, in nanoseconds.
    pub keep_alive_ns: u64,
    /// After how long without one it is lost, in nanoseconds.
    pub patience_ns: u64,
    /// After how long without one it is lost when its host has said that nobody takes packets there, in nanoseconds.
    pub refused_patience_ns: u64,
}

impl RoceConfig {
    /// The defaults: 4096 queue pairs, perftest's timers, and as much as the link carries.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            max_queue_pairs: 4096,
            max_regions: 4096,
            mtu_max: PathMtu::Mtu4096,
            window: 256,
            selective: true,
            timeout: 14,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: RnrTimer::at_least(640),
            first_psn: None,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            partition: DEFAULT_PARTITION,
            traffic_class: Ecn::Capable0 as u8,
            solicited: false,
            delay_slack_ns: 500_000,
            line_rate: 12_500_000_000,
            connect_timeout_ns: 5_000_000_000,
            keep_alive_ns: 1_000_000_000,
            patience_ns: 10_000_000_000,
            refused_patience_ns: 100_000_000,
        }
    }

    /// The same for a link at an address of this host, whose interface may say what it carries.
    #[must_use]
    pub fn at(name: &'static str, address: IpAddr) -> Self {
        let usual = Self::new(name);
        Self { line_rate: line_rate(address).unwrap_or(usual.line_rate), ..usual }
    }

    pub(crate) fn check(&self) -> Result<(), RoceError> {
        let limits: [(&'static str, u64, u64, u64); 10] = [
            ("max_queue_pairs", self.max_queue_pairs.into(), 1, TABLE_MAX.into()),
            ("max_regions", self.max_regions.into(), 1, u16::MAX.into()),
            ("window", self.window.into(), 1, MAX_SELECTIVE_WINDOW.into()),
            ("timeout", self.timeout.into(), 0, 31),
            ("retry_count", self.retry_count.into(), 0, 7),
            ("rnr_retry_count", self.rnr_retry_count.into(), 0, 7),
            ("keep_alive_ns", self.keep_alive_ns, 1_000_000, 3_600_000_000_000),
            ("patience_ns", self.patience_ns, self.keep_alive_ns, u64::MAX / 2),
            ("refused_patience_ns", self.refused_patience_ns, 1_000_000, u64::MAX / 2),
            ("connect_timeout_ns", self.connect_timeout_ns, 1_000_000, u64::MAX / 2),
        ];
        for (name, value, least, most) in limits {
            if value < least || value > most {
                return Err(RoceError::Limit { name, value, least, most });
            }
        }
        if self.selective && !self.window.is_power_of_two() {
            return Err(RoceError::Window(self.window));
        }
        Ok(())
    }

    /// The exponent of the ACK timeout with which a Ringway end is given up after about the patience.
    pub(crate) fn patient_timeout(&self) -> u8 {
        let tries = u64::from(self.retry_count) + 1;
        let enough = |exponent: &u8| (4_096_u64 << exponent).saturating_mul(tries) >= self.patience_ns;
        (self.timeout.clamp(1, 31)..32).find(enough).unwrap_or(31)
    }
}

/// Why a device could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RoceError {
    /// A number is out of range.
    #[error("{name} is {value}; it must be between {least} and {most}")]
    Limit {
        /// Which.
        name: &'static str,
        /// What it is.
        value: u64,
        /// The least it may be.
        least: u64,
        /// The most it may be.
        most: u64,
    },
    /// A window that selective acknowledgement cannot have.
    #[error("the window is {0}; selective acknowledgement needs a power of two")]
    Window(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked_and_named() {
        let usual = RoceConfig::new("test");
        assert_eq!(usual.check(), Ok(()));
        assert_eq!(RoceConfig { window: 100, selective: false, ..usual }.check(), Ok(()));
        assert_eq!(RoceConfig { window: 100, ..usual }.check(), Err(RoceError::Window(100)));
        for (wrong, name) in [
            (RoceConfig { max_queue_pairs: 0, ..usual }, "max_queue_pairs"),
            (RoceConfig { max_regions: 1 << 16, ..usual }, "max_regions"),
            (RoceConfig { window: 1024, ..usual }, "window"),
            (RoceConfig { timeout: 32, ..usual }, "timeout"),
            (RoceConfig { patience_ns: 5, ..usual }, "patience_ns"),
        ] {
            let error = wrong.check().expect_err(name);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn patience_decides_how_long_a_ringway_end_is_waited_for() {
        let config = RoceConfig { patience_ns: 10_000_000_000, ..RoceConfig::new("test") };
        let total = 8 * (4_096_u64 << config.patient_timeout());
        assert!((10_000_000_000..20_000_000_000).contains(&total), "{total}");
    }
}
