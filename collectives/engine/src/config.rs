//! What the engine is made with.

use std::sync::Arc;

use ringway_plan::file::Listed;
use ringway_verbs::LocalKey;
use thiserror::Error;

use crate::RegionId;
use crate::link::{SLOT, link_bytes};

/// Daemon-private memory, registered with the device: send and receive buffers, the message pool and the scratch
/// memory of plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceConfig {
    /// Its name in [`crate::LocalMemory`].
    pub region: RegionId,
    /// Its name on the device; peers may write it.
    pub key: LocalKey,
    /// Bytes.
    pub length: u64,
}

/// How the engine works.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Memory of its own.
    pub workspace: WorkspaceConfig,
    /// Plans that are used for what they are for, the last one first. The same on every node, for each operation and
    /// number of nodes.
    pub plans: Vec<Arc<Listed>>,
    /// Messages up to this many bytes are sent without asking the receiver. The same on every node.
    pub eager_max_bytes: u32,
    /// Collectives, and besides them messages, that one rank may have outstanding in a communicator.
    pub operations_per_rank: u32,
    /// Local messages that are buffered when no receive is posted, over all communicators.
    pub message_pool: u32,
    /// The most of them for one receiving rank.
    pub buffered_per_rank: u32,
    /// Eager messages of collectives that may be on their way to a peer, and as many of point-to-point. The same on
    /// every node.
    pub credits: u16,
    /// A peer that is waited for and from which nothing is heard for this long is lost.
    pub peer_timeout_ms: u64,
    /// A peer that is waited for is asked for a sign of life this often.
    pub heartbeat_ms: u64,
    /// An operation that has waited this long for ranks is reported once.
    pub late_after_ms: u64,
    /// How long the operations of a failing communicator wait for its peers to hear of it, so that buffers can be given
    /// back with the failure.
    pub drain_ms: u64,
    /// For how long peers are told of it.
    pub farewell_ms: u64,
}

/// Why a configuration cannot work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The workspace is too small.
    #[error("the workspace has {length} bytes; it needs at least {needed}")]
    Workspace {
        /// Its bytes.
        length: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The eager limit is out of range.
    #[error("eager_max_bytes is {given}; it must be 64 to 65536")]
    EagerMax {
        /// What was given.
        given: u32,
    },
    /// The number of operations is out of range.
    #[error("operations_per_rank is {given}; it must be 1 to 4096")]
    Operations {
        /// What was given.
        given: u32,
    },
    /// The number of credits is out of range.
    #[error("credits is {given}; it must be 2 to 1024")]
    Credits {
        /// What was given.
        given: u16,
    },
    /// Peers would be declared lost before they can answer.
    #[error(
        "peer_timeout_ms is {timeout_ms}; it must be more than twice heartbeat_ms, which is {heartbeat_ms}"
    )]
    Heartbeat {
        /// The timeout given.
        timeout_ms: u64,
        /// The heartbeat given.
        heartbeat_ms: u64,
    },
}

impl EngineConfig {
    /// The usual values.
    #[must_use]
    pub const fn new(workspace: WorkspaceConfig) -> Self {
        Self {
            workspace,
            plans: Vec::new(),
            eager_max_bytes: ringway_plan::EAGER_BYTES,
            operations_per_rank: 256,
            message_pool: 128,
            buffered_per_rank: 32,
            credits: 16,
            peer_timeout_ms: 1_000,
            heartbeat_ms: 250,
            late_after_ms: 5_000,
            drain_ms: 50,
            farewell_ms: 1_000,
        }
    }

    /// Bytes of the workspace that each peer node of each communicator takes for its send slots and receive buffers.
    /// The rest is scratch memory, of which a collective takes up to a quarter, or one chunk's at least (see
    /// `ringway_plan::Plan::shape`).
    #[must_use]
    pub fn link_bytes(&self) -> u64 {
        link_bytes(self)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !(64..=65536).contains(&self.eager_max_bytes) {
            return Err(ConfigError::EagerMax { given: self.eager_max_bytes });
        }
        if !(1..=4096).contains(&self.operations_per_rank) {
            return Err(ConfigError::Operations { given: self.operations_per_rank });
        }
        if !(2..=1024).contains(&self.credits) {
            return Err(ConfigError::Credits { given: self.credits });
        }
        if self.heartbeat_ms == 0 || self.peer_timeout_ms <= self.heartbeat_ms.saturating_mul(2) {
            return Err(ConfigError::Heartbeat {
                timeout_ms: self.peer_timeout_ms,
                heartbeat_ms: self.heartbeat_ms,
            });
        }
        let needed = self.pool_bytes() + (256 << 10);
        if self.workspace.length < needed {
            return Err(ConfigError::Workspace { length: self.workspace.length, needed });
        }
        Ok(())
    }

    pub(crate) fn pool_bytes(&self) -> u64 {
        u64::from(self.message_pool) * u64::from(self.eager_max_bytes)
    }

    /// Bytes of one receive buffer: a header and an eager message.
    pub(crate) fn bounce_bytes(&self) -> u64 {
        (SLOT + u64::from(self.eager_max_bytes)).next_multiple_of(64)
    }
}
