//! The daemon: sessions with clients, the poll loop, the control socket, peers on other nodes, configuration.
#![forbid(unsafe_code)]

mod config;
#[allow(dead_code, reason = "the control thread uses it")]
mod membership;
#[allow(dead_code, unused_imports, reason = "the control thread uses it")]
mod peers;
#[allow(dead_code, reason = "the control thread uses it")]
mod poller;
#[allow(dead_code, unused_imports, reason = "the engine thread uses it")]
mod polling;

pub use config::{
    ClusterKey, Config, ConfigError, DeviceChoice, LogFormat, NetworkConfig, PollingMode, QuotaSettings,
    Quotas, Settings, Users,
};
