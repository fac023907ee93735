//! What a daemon can be told: settings as text, checked into a [`Config`] that holds only what makes sense.
//!
//! The same names serve in the file, on the command line and in messages. Flags win over the file, the file over
//! the defaults.

mod key;
mod plans;
mod resolve;
mod settings;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ringway_ibverbs::{IbverbsConfig, Selector};
use ringway_plan::{Preference, file::Listed, tuner::Order};
use ringway_tcp::{Congestion, ZeroCopy};
use ringway_wrap::FaultSpec;
use thiserror::Error;

pub use key::ClusterKey;
pub use resolve::{check_device, own_address, protocols};
pub use settings::{QuotaSettings, Settings};

/// Why a daemon does not start with these settings.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file `{path}` cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's reason.
        reason: String,
    },
    /// The file is not TOML, or has a setting that does not exist, or one of the wrong type.
    #[error("the configuration file `{path}` is wrong:\n{message}")]
    Syntax {
        /// The file.
        path: String,
        /// Where and why.
        message: String,
    },
    /// A value is not allowed.
    #[error("setting `{setting}` is `{value}`: {allowed}")]
    Invalid {
        /// The setting's name.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What is allowed, and what to do.
        allowed: String,
    },
    /// One setting needs another.
    #[error("setting `{setting}` needs `{needs}` as well: {why}")]
    Missing {
        /// What was given.
        setting: &'static str,
        /// What was not.
        needs: &'static str,
        /// Why.
        why: &'static str,
    },
}

/// How the daemon waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollingMode {
    /// Never sleeps: the lowest latency, one core for itself.
    Spin,
    /// Spins while work is expected, else sleeps.
    Adaptive,
    /// Sleeps whenever there is nothing to do.
    Block,
}

impl PollingMode {
    /// The name in settings and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Adaptive => "adaptive",
            Self::Block => "block",
        }
    }
}

/// Whose processes are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Everybody's on this host.
    All,
    /// The daemon's own user's, and root's.
    Own,
}

/// What ranks of one node may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Ranks that trust each other share a cell and do their collectives themselves.
    Cell,
    /// Nothing: the daemon does all of it.
    Strict,
}

/// A kind of device that moves data between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// Memory shared with daemons of this host.
    Shm,
    /// RDMA hardware: RoCEv2 or InfiniBand in the network card.
    Verbs,
    /// RoCEv2 in user space over AF_XDP, past the kernel.
    RoceXdp,
    /// RoCEv2 in user space over UDP sockets.
    RoceUdp,
    /// Kernel TCP over io_uring.
    Tcp,
    /// Kernel TCP over ordinary sockets and epoll.
    TcpEpoll,
}

impl DeviceKind {
    /// Every kind, those that go past more of the kernel first.
    pub const ALL: [Self; 6] =
        [Self::Shm, Self::Verbs, Self::RoceXdp, Self::RoceUdp, Self::Tcp, Self::TcpEpoll];

    /// The name in settings and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::RoceXdp => "roce-xdp",
            Self::RoceUdp => "roce-udp",
            Self::Tcp => "tcp",
            Self::TcpEpoll => "tcp-epoll",
        }
    }

    /// What it speaks with other nodes: kinds that speak the same understand each other; of [`DeviceKind::Shm`] only within
    /// one place. `None` where that depends on the port that is used.
    #[must_use]
    pub const fn protocol(self) -> Option<&'static str> {
        match self {
            Self::Shm => Some("shm"),
            Self::Verbs => None,
            Self::RoceXdp | Self::RoceUdp => Some("roce"),
            Self::Tcp | Self::TcpEpoll => Some("tcp"),
        }
    }

    /// Whether it handles packets itself, so that they can be captured, or lost on purpose.
    #[must_use]
    pub const fn has_packets(self) -> bool {
        match self {
            Self::RoceXdp | Self::RoceUdp => true,
            Self::Shm | Self::Verbs | Self::Tcp | Self::TcpEpoll => false,
        }
    }
}

/// Which devices move data between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best that works here.
    Auto,
    /// These kinds, the best first, as far as they work here.
    Listed(Vec<DeviceKind>),
}

/// What the setting `device` may be; it may also be several of the kinds, with commas between them, and `verbs` may be followed
/// by which device, port and address.
pub const DEVICE_NAMES: [&str; 1 + DeviceKind::ALL.len()] = {
    let mut names = ["auto"; 1 + DeviceKind::ALL.len()];
    let mut at = 0;
    while at < DeviceKind::ALL.len() {
        names[at + 1] = DeviceKind::ALL[at].name();
        at += 1;
    }
    names
};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What a daemon needs in order to work with daemons on other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Where other daemons connect.
    pub listen: SocketAddr,
    /// The same as others reach it.
    pub advertise: SocketAddr,
    /// The addresses of the network cards that data goes over, the first for small messages as well: rail 0 of one node reaches
    /// rail 0 of others, and so on. Empty for one card, that of `listen`.
    pub rails: Vec<IpAddr>,
    /// Queue pairs to each other node on each rail.
    pub channels_per_rail: u8,
    /// Proves that daemons belong together.
    pub cluster_key: ClusterKey,
    /// Where RoCE packets go, at all nodes.
    pub roce_port: u16,
    /// The interface that RoCE packets must leave and come in by; the one that has the address if `None`.
    pub roce_interface: Option<String>,
    /// How long a peer may be silent before it counts as lost.
    pub peer_timeout: Duration,
}

impl NetworkConfig {
    /// The same for each rail, as if it were the only one: with its address, where there are several.
    pub(crate) fn of_rails(&self) -> Vec<Self> {
        if self.rails.is_empty() {
            return vec![self.clone()];
        }
        let of = |rail: &IpAddr| {
            let address = SocketAddr::new(*rail, self.listen.port());
            Self { listen: address, advertise: address, rails: Vec::new(), ..self.clone() }
        };
        self.rails.iter().map(of).collect()
    }
}

/// What one user may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Connections.
    pub sessions: u32,
    /// Ranks in communicators, those being formed included.
    pub communicators: u32,
    /// Regions.
    pub regions: u32,
    /// Bytes of regions.
    pub region_bytes: u64,
}

/// Everything a daemon is told, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The control socket.
    pub socket: PathBuf,
    /// Whose processes are served.
    pub users: Users,
    /// What ranks of one node may share.
    pub isolation: Isolation,
    /// How the daemon waits for work.
    pub polling: PollingMode,
    /// How long it spins after the last work; `None` for as long as a wake-up takes on this host.
    pub spin: Option<Duration>,
    /// The CPU the engine thread is pinned to, if any.
    pub engine_cpu: Option<usize>,
    /// Work with other nodes; `None` to serve this node only.
    pub network: Option<NetworkConfig>,
    /// Which devices move data between nodes.
    pub device: DeviceChoice,
    /// Which RDMA device, port and address [`DeviceKind::Verbs`] uses.
    pub verbs: IbverbsConfig,
    /// What was named after `verbs:`: nothing, one for all rails, or one for each.
    pub verbs_ports: Vec<Selector>,
    /// The algorithms that are asked for, in communicators that are rooted here.
    pub algorithm: Preference,
    /// Which algorithms may be chosen for them.
    pub order: Order,
    /// Consecutive nodes that are a group in communicators that are rooted here; 0 for as many as make fewest messages.
    pub group_nodes: u32,
    /// Constants of links, and rules, that go before what is measured.
    pub tuning_file: Option<PathBuf>,
    /// Where what is measured of links is kept; `None`: it is measured again by the next daemon.
    pub link_cache: Option<PathBuf>,
    /// Whether links are measured of which nothing is known.
    pub measures_links: bool,
    /// Microseconds for which reading a TCP socket polls the network card itself.
    pub tcp_busy_poll_us: u32,
    /// Whether the tcp device sends payload without a copy.
    pub tcp_zero_copy: ZeroCopy,
    /// TCP connections of each queue pair that this node connects.
    pub tcp_connections: u32,
    /// The congestion control of the tcp devices' connections.
    pub tcp_congestion: Congestion,
    /// What happens on purpose to packets that come in from other nodes.
    pub fault: Option<FaultSpec>,
    /// By how much all that arrives from other nodes is delayed on purpose.
    pub delay: Duration,
    /// A file that gets all packets to and from other nodes.
    pub pcap: Option<PathBuf>,
    /// Plans from files, for what they are for; the last one first.
    pub plans: Vec<Arc<Listed>>,
    /// Memory for data on its way.
    pub workspace_bytes: u64,
    /// When a rank that others wait for is named in the log.
    pub late_after: Duration,
    /// Leave when there was no client for this long.
    pub idle_exit: Option<Duration>,
    /// The least important log lines that are written: error, warn, info, debug or trace.
    pub log_level: &'static str,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The most submissions a client's ring may hold.
    pub ring_submissions_max: u32,
    /// Words for lists of counts in each ring.
    pub ring_argument_words: u32,
    /// What one user may hold.
    pub quotas: Quotas,
}
