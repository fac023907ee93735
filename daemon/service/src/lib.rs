//! The daemon: sessions with clients, the poll loop, the control socket, peers on other nodes, configuration.
//!
//! Two threads. The control thread (`control`) waits for whatever is rare: clients that come and go and what they ask
//! on their sockets, other daemons (`membership`, `peers`), signals. The engine thread (`engine_thread`) does what is
//! frequent: it takes operations out of the clients' rings, runs them and puts completions back. They talk by two bounded
//! queues and share nothing else.
#![forbid(unsafe_code)]

mod config;
mod control;
mod daemon;
mod devices;
mod door;
mod engine_thread;
mod error;
mod gpu_thread;
mod membership;
mod peers;
mod poller;
mod polling;
mod session;
pub mod status;
mod stop;
mod tuning_file;

pub use config::{
    ClusterKey, Config, ConfigError, DEVICE_NAMES, DeviceChoice, DeviceKind, Isolation, LogFormat,
    NetworkConfig, PollingMode, QuotaSettings, Quotas, Settings, Users, check_device, own_address, protocols,
};
pub use daemon::run;
pub use devices::{place::place, udp_is_worth_it, verbs::verbs_is_worth_it};
pub use error::ServiceError;
/// What daemons choose plans by, for whoever explains their choice.
pub use ringway_group::{Place, Planning};
pub use stop::{Stop, StopHandle, stop_pair};
pub use tuning_file::{TuningFileError, read_tuning, write_tuning};
