//! Why a communicator could not be formed.

use core::fmt;

use serde::{Deserialize, Serialize};

/// What kind of reason it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// The request makes no sense.
    Invalid,
    /// A limit would be exceeded.
    Quota,
    /// Another process already is this rank.
    DuplicateRank,
    /// Ranks disagree about the number of ranks.
    SizeMismatch,
    /// Not every rank came, or not every node got ready, in time.
    JoinTimeout,
    /// The root cannot be reached.
    Unreachable,
    /// The other daemon has another cluster key.
    Key,
    /// The other side is not a Ringway daemon, is one of another version or uses another device.
    Incompatible,
    /// A rank or a node was lost, or could not open its connections.
    RankFailed,
    /// A daemon is shutting down.
    ShuttingDown,
}

/// A reason, with a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of reason.
    pub kind: FailureKind,
    /// What was wrong, what was expected and what to do.
    pub text: String,
}

/// Characters kept of a text that came from a peer.
const TEXT_CHARACTERS_MAX: usize = 1000;

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// The same with a text that is safe to log and to hand on: bounded, without control characters.
    pub(crate) fn cleaned(self) -> Self {
        let text = self.text.chars().filter(|c| !c.is_control()).take(TEXT_CHARACTERS_MAX).collect();
        Self { kind: self.kind, text }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
