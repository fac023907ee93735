//! Settings as they are written, before they are checked.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ConfigError;

macro_rules! merge {
    ($over:expr, $under:expr, { $($own:ident: $value:expr),* }, $($field:ident),*) => {
        Self { $($own: $value,)* $($field: $over.$field.or($under.$field),)* }
    };
}

/// Settings as text and numbers; what is absent has its default. README and `ringwayd --help` describe each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The control socket's path.
    pub socket: Option<String>,
    /// `all` or `own`.
    pub users: Option<String>,
    /// `cell` or `strict`.
    pub isolation: Option<String>,
    /// `spin`, `adaptive` or `block`.
    pub polling: Option<String>,
    /// Microseconds to spin after the last work; 0 measures what a wake-up costs.
    pub spin_us: Option<i64>,
    /// The CPU to pin the engine thread to.
    pub engine_cpu: Option<i64>,
    /// Address, or address:port, for daemons of other nodes.
    pub listen: Option<String>,
    /// The same as others reach it.
    pub advertise: Option<String>,
    /// The addresses of the network cards that data goes over, in the same order on every node: the first of one node reaches the
    /// first of others, the second the second. A daemon's own part in forming communicators stays at `listen`. Absent for one
    /// card, that of `listen`. Nodes with different numbers of them use the fewest.
    pub rails: Option<Vec<String>>,
    /// Queue pairs to each other node of a communicator, over the rails by turns; long messages are spread over as many of them as
    /// it takes to carry what all can. As many as there are rails, or twice or three times as many, and 8 at most. Absent for one
    /// on each.
    pub channels: Option<i64>,
    /// The file that holds the cluster's key.
    pub cluster_key_file: Option<String>,
    /// One or several of `shm`, `verbs`, `roce-xdp`, `roce-udp`, `tcp` and `tcp-epoll`, with commas, the best first; or `auto`:
    /// all of them, in this order, but for `verbs` where the RDMA device is software or, on Ethernet, has another address
    /// than the node, `roce-xdp` where frames are copied and `roce-udp` where packets are small. `shm` serves communicators whose nodes are all on this host
    /// and in this network namespace. `verbs:NAME`, `verbs:NAME:PORT` and `verbs:NAME:PORT:GID` say which RDMA device, port
    /// and address in its table. With several `rails` each has the port at its address; `verbs:NAME` stands once for all of them,
    /// or once for each in their order.
    pub device: Option<String>,
    /// The algorithm for what communicators over several nodes do, where it can be used: a name, one for an operation
    /// (`allreduce=ring`), several of these with commas, or `auto`. That of the node where a communicator is rooted holds for
    /// all of its nodes, and programs can ask for others.
    pub algorithm: Option<String>,
    /// Which algorithms may be chosen: `stable`, those that give the same bits in every run with the same layout and constants;
    /// `strict`, those that combine ranks ascending within a node, then nodes ascending; `any`, as `stable`, with links measured
    /// anew for every communicator. That of the node where a communicator is rooted holds.
    pub order: Option<String>,
    /// Consecutive nodes of a communicator that are a group, such as those on one leaf switch or in one rack, for algorithms that
    /// do one thing within groups and another between them. 0, if absent, for as many as make fewest messages. Such algorithms are
    /// not used where nodes cannot be cut into two or more groups of so many. That of the node where a communicator is rooted holds.
    pub group_nodes: Option<i64>,
    /// A file with constants of links, and rules of which algorithm is used up to how many bytes.
    pub tuning_file: Option<String>,
    /// The file in which what is measured of links is kept: beside the socket if absent; `off` for none. Without it a daemon that
    /// starts anew measures again, and may choose other algorithms: the bits are those of the last run only with it.
    pub link_cache: Option<String>,
    /// What links are taken for of which neither the tuning file nor the cache knows anything: `measured`, what measuring them
    /// gives when the first communicator over them is formed; `usual`, what kernel TCP usually takes between nodes that are on
    /// one host, so that daemons that start anew choose the same, and give the same bits, although they keep nothing; with `order = "any"`
    /// as well. That of the node where a communicator is rooted holds.
    pub link_constants: Option<String>,
    /// The UDP port of RoCE packets, the same on all nodes; other RoCE devices know 4791 alone.
    pub roce_port: Option<i64>,
    /// The interface that the `roce` devices use, which must have the node's address; absent for the one that has it.
    pub roce_interface: Option<String>,
    /// The verbs device, and the roce devices toward it, repeat what is not answered after 4.096 microseconds times two to this power, or up to four times that:
    /// 16, which is 268 ms, if absent.
    pub verbs_timeout: Option<i64>,
    /// How often, before the connection counts as broken: 6 if absent. With both, for how long a link may be down.
    pub verbs_retries: Option<i64>,
    /// The traffic class of the verbs device's packets: on RoCE the type-of-service byte, which switches tell lossless traffic by.
    pub verbs_traffic_class: Option<i64>,
    /// InfiniBand's service level, or on RoCE the priority.
    pub verbs_service_level: Option<i64>,
    /// Whether the PCIe bus may reorder what RDMA hardware writes to memory: `auto`, where it can be had, if absent; `on`, where memory
    /// that is refused with it is an error; or `off`.
    pub verbs_relaxed_ordering: Option<String>,
    /// Microseconds for which reading a TCP socket polls the network card itself; 0 leaves that to interrupts.
    pub tcp_busy_poll_us: Option<i64>,
    /// Whether the tcp device sends long payloads without a copy: `auto`, where the kernel says that it need not copy them after
    /// all, or `never`.
    pub tcp_zero_copy: Option<String>,
    /// TCP connections to each peer that this node connects to, in each communicator: long messages are divided among them.
    pub tcp_connections: Option<i64>,
    /// TCP's congestion control: `auto`, the system's unless that is BBR, which paces; `system`, or a name.
    pub tcp_congestion: Option<String>,
    /// What shall happen to packets that come in, for tests: `loss=0.01,seed=7`.
    pub fault: Option<String>,
    /// Microseconds by which all that arrives from other nodes is delayed, for tests; 0 for none.
    pub delay_us: Option<i64>,
    /// The file to capture packets into.
    pub pcap: Option<String>,
    /// Milliseconds of silence after which a peer is lost.
    pub peer_timeout_ms: Option<i64>,
    /// Files with plans of collectives, as `ringway plan export` writes them: each is used for its operation between its
    /// number of nodes, the last one first. The same on all nodes.
    pub plans: Option<Vec<String>>,
    /// MiB for data on its way.
    pub workspace_mib: Option<i64>,
    /// Seconds after which a late rank is named in the log.
    pub late_after_s: Option<i64>,
    /// Leave after so many seconds without clients; 0 never.
    pub idle_exit_s: Option<i64>,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: Option<String>,
    /// `text` or `json`.
    pub log_format: Option<String>,
    /// The most submissions a ring may hold; a power of two.
    pub ring_submissions_max: Option<i64>,
    /// 64-bit words for lists of counts in each ring.
    pub ring_argument_words: Option<i64>,
    /// What one user may hold.
    pub quotas: QuotaSettings,
}

/// What one user may hold, before it is checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaSettings {
    /// Connections.
    pub sessions: Option<i64>,
    /// Ranks in communicators.
    pub communicators: Option<i64>,
    /// Regions.
    pub regions: Option<i64>,
    /// MiB of regions; absent for half of the host's memory.
    pub region_mib: Option<i64>,
}

impl Settings {
    /// Reads a TOML file. A setting that does not exist is an error.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`], or [`ConfigError::Syntax`] with line and reason.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::Unreadable { path: name.clone(), reason: e.to_string() })?;
        toml::from_str(&text)
            .map_err(|e| ConfigError::Syntax { path: name, message: e.to_string().trim_end().to_owned() })
    }

    /// These settings, and those of `under` where there are none here.
    #[must_use]
    pub fn over(self, under: Self) -> Self {
        let quotas = self.quotas.over(under.quotas);
        merge!(
            self, under, { quotas: quotas },
            socket, users, isolation, polling, spin_us, engine_cpu, listen, advertise, rails, channels, cluster_key_file, device,
            algorithm, order, group_nodes, tuning_file, link_cache, link_constants, roce_port, roce_interface, verbs_timeout, verbs_retries, verbs_traffic_class, verbs_service_level,
            verbs_relaxed_ordering, tcp_busy_poll_us, tcp_zero_copy, tcp_connections, tcp_congestion, fault, delay_us, pcap,
            peer_timeout_ms, plans, workspace_mib, late_after_s, idle_exit_s, log_level, log_format, ring_submissions_max,
            ring_argument_words
        )
    }

    /// The settings as a TOML file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}

impl QuotaSettings {
    fn over(self, under: Self) -> Self {
        merge!(self, under, {}, sessions, communicators, regions, region_mib)
    }
}
