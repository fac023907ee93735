//! How an operation ended, as a code in its completion.

macro_rules! statuses {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $text:literal;)*) => {
        /// How an operation ended. The daemon keeps a full sentence for each failure, which
        /// [`crate::control::Request::Explain`] fetches; this is what a program acts on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Status { $($(#[$meta])* $variant = $code,)* }

        impl Status {
            /// The code in a completion.
            #[must_use]
            pub const fn code(self) -> u16 { self as u16 }

            /// The status with this code, if there is one.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// One line for people.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

statuses! {
    /// Done.
    Success = 0, "success";
    /// The operation code means nothing.
    BadOperation = 1, "unknown operation code";
    /// The datatype code means nothing.
    BadDatatype = 2, "unknown datatype code";
    /// The reduction code means nothing, or is missing or superfluous.
    BadReduction = 3, "unknown, missing or superfluous reduction";
    /// The reduction is not defined for the type.
    UnsupportedPair = 4, "the reduction is not defined for this type";
    /// The peer or root is not in the communicator.
    BadRank = 5, "peer or root is not a rank of the communicator";
    /// The region handle is unknown.
    BadRegion = 6, "unknown region handle";
    /// The buffer is not inside its region.
    BadRange = 7, "buffer outside its region";
    /// Input and output overlap other than in the operation's in-place form.
    Overlap = 8, "input and output overlap other than in the in-place form";
    /// The list of counts is malformed.
    BadCounts = 9, "malformed list of counts";
    /// Flags that mean nothing are set.
    BadFlags = 10, "unknown flags";
    /// Sizes overflow.
    TooLarge = 11, "sizes overflow";
    /// A call in the communicator's cell that the daemon cannot take over.
    BadCall = 12, "no such call in the communicator's cell";
    /// The ranks called different things.
    Mismatch = 32, "ranks called different operations";
    /// Ranks disagree about the length of a block.
    Count = 33, "ranks disagree about a block's length";
    /// A message did not fit its receive buffer.
    Truncated = 34, "message longer than the receive buffer";
    /// A rank was lost.
    RankFailed = 35, "a rank failed";
    /// A node was lost.
    NodeLost = 36, "a node was lost";
    /// The communicator's timeout expired.
    TimedOut = 37, "operation timed out";
    /// A rank aborted the communicator.
    Aborted = 38, "the communicator was aborted";
    /// The daemon is shutting down.
    ShuttingDown = 39, "the daemon is shutting down";
}

impl Status {
    /// Whether only the request itself failed: the communicator can be used on.
    #[must_use]
    pub const fn is_recoverable(self) -> bool {
        self.code() < Self::Mismatch.code() || matches!(self, Self::Truncated)
    }
}
