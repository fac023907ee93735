//! Rules that can be broken on purpose, so that the checkers of the simulation can be seen to find it.
#![cfg_attr(not(feature = "mutations"), expect(unreachable_pub, reason = "only a build for tests shows it"))]

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// The responder executes requests that it has executed before.
    ExecuteDuplicates,
    /// The responder takes what comes, whether or not something before it is missing.
    IgnoreGaps,
    /// The responder executes a duplicate atomic once more, and answers as the first time.
    RepeatAtomics,
    /// The completer takes an acknowledgement for the response of a READ or atomic.
    CompleteWithoutResponse,
    /// Flushing begins with the newest request.
    FlushBackwards,
    /// A report acknowledges the packet that is missing.
    AcknowledgeMissing,
    /// The requester takes packets that the peer only keeps for executed.
    CompleteReceived,
    /// The requester begins requests although its send queue is to be drained.
    BeginWhileDrained,
}

/// The rule that is broken, if one is. Without the feature there never is, and asking costs nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mutated {
    #[cfg(feature = "mutations")]
    rule: Option<Mutation>,
}

impl Mutated {
    #[cfg(feature = "mutations")]
    pub(crate) const fn by(mutation: Mutation) -> Self {
        Self { rule: Some(mutation) }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.rule == Some(mutation)
    }

    #[cfg(not(feature = "mutations"))]
    #[expect(clippy::unused_self, reason = "as with mutations")]
    pub(crate) const fn is(self, _: Mutation) -> bool {
        false
    }
}
