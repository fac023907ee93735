//! What the engine tells about itself.

use ringway_plan::Source;

use crate::{CommunicatorId, Failure, Signature};

/// A collective that waits for ranks that are alive, as far as is known, but have not come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    /// The communicator.
    pub communicator: CommunicatorId,
    /// Which collective, counted from 1.
    pub sequence: u64,
    /// What was called.
    pub call: Signature,
    /// The ranks that are waited for, ascending.
    pub missing: Vec<u32>,
    /// For how long.
    pub waited_ms: u64,
    /// The rank has called it, and has stopped while it did a piece of its local work.
    pub stopped: bool,
}

/// Whether a communicator can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Its connections are being made.
    Connecting,
    /// It can.
    Ready,
    /// It has failed.
    Failed(Failure),
}

/// A communicator at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommunicatorStatus {
    /// Collectives that have finished.
    pub sequence: u64,
    /// Operations of this node's ranks that have not finished, messages included.
    pub outstanding: u64,
    /// The oldest collective that has not finished.
    pub call: Option<Signature>,
    /// The ranks it waits for, ascending, as far as this node knows.
    pub missing: Vec<u32>,
    /// For how long.
    pub waited_ms: u64,
    /// The algorithm that ran last, or the listed plan.
    pub algorithm: Option<Source>,
    /// Bytes of the buffers of finished operations.
    pub bytes: u64,
    /// Why it has failed.
    pub failure: Option<Failure>,
}
