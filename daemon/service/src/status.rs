//! The daemon's state as `ringway status` shows it: the shape of the JSON text that a status request returns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The daemon's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Its socket.
    pub socket: String,
    /// `spin`, `adaptive` or `block`.
    pub polling: String,
    /// Microseconds it spins after the last work.
    pub spin_us: f64,
    /// The device between nodes, or `none`.
    pub device: String,
    /// The devices that are open, the best first, then those that were tried and are not used.
    pub devices: Vec<DeviceStatus>,
    /// Where other daemons reach it; empty when it serves one node only.
    pub address: String,
    /// Its clients.
    pub sessions: Vec<SessionStatus>,
    /// Communicators with ranks on this node.
    pub communicators: Vec<CommunicatorStatus>,
    /// Communicators that wait for ranks.
    pub joining: Vec<JoiningStatus>,
    /// Communicators being formed with ranks of this node.
    pub forming_here: u32,
    /// Communicators being formed whose root is this daemon.
    pub forming_rooted: u32,
    /// Control connections with other daemons.
    pub peers: u32,
    /// System calls that its threads have made since it started, those of its devices included; not those of starting and of
    /// memory that is mapped.
    pub system_calls: u64,
    /// What happened since it started.
    pub counters: Counters,
}

/// A device between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its kind.
    pub name: String,
    /// The address of the network card that it goes over, where the node was given several (`rails`); empty otherwise.
    #[serde(default)]
    pub rail: String,
    /// Why it is not used; empty when it is open.
    pub refused: String,
    /// What it has counted since the daemon started, by name; empty when it counts nothing.
    pub counters: BTreeMap<String, u64>,
}

/// One client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The daemon's number for it.
    pub session: u64,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Regions registered.
    pub regions: u32,
    /// Their bytes.
    pub region_bytes: u64,
    /// Communicators it is in.
    pub communicators: u32,
}

/// A rank that waits for others to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoiningStatus {
    /// The client.
    pub session: u64,
    /// As which rank.
    pub rank: u32,
    /// Of how many.
    pub size: u32,
    /// Seconds it waits.
    pub waiting_s: u64,
}

/// One communicator, as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommunicatorStatus {
    /// The daemon's number for it.
    pub group: u64,
    /// Ranks in all.
    pub ranks: u32,
    /// Nodes in all.
    pub nodes: u32,
    /// Ranks on this node.
    pub local: Vec<RankStatus>,
    /// The device between its nodes; empty with one node.
    pub device: String,
    /// Queue pairs to each of its other nodes; 0 with one node.
    #[serde(default)]
    pub channels: u32,
    /// Network cards of this node that they go over; 0 with one node.
    #[serde(default)]
    pub rails: u32,
    /// Better devices of this node that are not used for it, and why.
    pub passed_over: Vec<DeviceStatus>,
    /// Collectives finished.
    pub sequence: u64,
    /// Operations outstanding on this node.
    pub outstanding: u64,
    /// The collective that is going on or waited for, if any.
    pub current: String,
    /// For how many milliseconds.
    pub waited_ms: u64,
    /// Ranks that have not called it, as far as this node knows.
    pub late_ranks: Vec<u32>,
    /// The algorithm of the last collective.
    pub algorithm: String,
    /// Bytes of the buffers of finished operations of this node's ranks.
    pub bytes: u64,
    /// Why it failed; empty when it did not.
    pub failure: String,
    /// Who does its collectives: `cell`, its ranks themselves in memory they share, or `engine`, the daemon.
    pub path: String,
    /// Bytes of memory that its ranks on this node have read and written for the daemon while they waited.
    pub rank_bytes: u64,
}

/// One rank on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    /// The rank.
    pub rank: u32,
    /// Its client.
    pub session: u64,
    /// Operations it has outstanding.
    pub outstanding: u32,
    /// Operations it finished.
    pub finished: u64,
}

/// What happened since the daemon started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Operations accepted.
    pub submitted: u64,
    /// Operations finished, failed ones included.
    pub finished: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations that the engine could not take at once.
    pub held_back: u64,
    /// Turns of the engine's loop.
    pub turns: u64,
    /// Turns that did something.
    pub busy_turns: u64,
    /// Times the engine slept.
    pub sleeps: u64,
    /// Clients woken.
    pub wake_ups: u64,
    /// Clients disconnected for breaking the protocol.
    pub faults: u64,
    /// Times the engine worked in a cell for ranks that do not wait.
    pub help_turns: u64,
    /// Bytes of memory it read and wrote there.
    pub help_bytes: u64,
    /// Pieces of its own local work that waiting ranks did, in operations over several nodes.
    pub rank_pieces: u64,
    /// Bytes of memory they read and wrote there.
    pub rank_bytes: u64,
    /// Sessions served.
    pub sessions: u64,
    /// Connections refused.
    pub refused: u64,
}

/// The part of the state that the engine thread knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct EngineStatus {
    pub(crate) communicators: Vec<CommunicatorStatus>,
    pub(crate) counters: Counters,
    pub(crate) device: &'static str,
    pub(crate) devices: Vec<DeviceStatus>,
    pub(crate) spin_us: f64,
}
