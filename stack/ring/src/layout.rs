//! Where everything lies in the two memory files of one communicator.
//!
//! C is written by the client, D by the daemon; words that are written independently lie 128 bytes apart (two lines:
//! processors prefetch the neighbour line).
//!
//! | C | | D | |
//! |---|---|---|---|
//! | 0 | completions consumed | 0 | submissions consumed |
//! | 8 | the CPU that the client waits on | | |
//! | 128 | the client's flag: it waits | 128 | the daemon's flag: it needs a wake-up |
//! | | | 136 | the CPU that the daemon runs on |
//! | 256 | submissions, 64 bytes each | 256 | the sequence a client sleeps on (a 32-bit futex) |
//! | after | argument slab | 384 | completions, 32 bytes each |

use thiserror::Error;

/// Words of a submission entry.
pub const SUBMISSION_WORDS: usize = 8;
/// Words of a completion entry.
pub const COMPLETION_WORDS: usize = 4;
/// Bytes between words that are written independently.
pub const SEPARATION: usize = 128;

/// In C: how many completions the client consumed.
pub const COMPLETIONS_CONSUMED: usize = 0;
/// In C: one more than the CPU on which the client last waited; zero while it is not known. Beside what it writes
/// anyway, as the daemon looks at it seldom.
pub const CLIENT_CPU: usize = COMPLETIONS_CONSUMED + size_of::<u64>();
/// In C: the client's flag word.
pub const CLIENT_FLAG: usize = SEPARATION;
/// In C: the submission entries.
pub const SUBMISSIONS: usize = 2 * SEPARATION;

/// In D: how many submissions the daemon consumed.
pub const SUBMISSIONS_CONSUMED: usize = 0;
/// In D: the daemon's flag word.
pub const DAEMON_FLAG: usize = SEPARATION;
/// In D: one more than the CPU on which the daemon runs; zero while it sleeps. Beside what a client reads anyway when it has
/// submitted something.
pub const DAEMON_CPU: usize = DAEMON_FLAG + size_of::<u64>();
/// In D: the sequence word.
pub const SEQUENCE: usize = 2 * SEPARATION;
/// In D: the completion entries.
pub const COMPLETIONS: usize = 3 * SEPARATION;

/// The most entries a ring may have.
pub const MAX_ENTRIES: u32 = 1 << 16;
/// The most words an argument slab may have.
pub const MAX_SLAB_WORDS: u32 = 1 << 20;

/// Both files are whole pages of this many bytes.
const PAGE: usize = 4096;

/// How large a communicator's rings and slab are. Checked once, when made; kept in private memory by both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    submissions: u32,
    completions: u32,
    slab_words: u32,
}

/// Why a geometry is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// A ring's capacity is not a power of two in range.
    #[error("a ring of {0} entries is not possible: choose a power of two from 1 to {MAX_ENTRIES}")]
    Entries(u32),
    /// The slab is too large.
    #[error("an argument slab of {0} words is not possible: choose at most {MAX_SLAB_WORDS}")]
    Slab(u32),
}

impl Geometry {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`GeometryError`] when a capacity is no power of two from 1 to [`MAX_ENTRIES`], or the slab has more than
    /// [`MAX_SLAB_WORDS`] words.
    pub const fn new(submissions: u32, completions: u32, slab_words: u32) -> Result<Self, GeometryError> {
        if !submissions.is_power_of_two() || submissions > MAX_ENTRIES {
            return Err(GeometryError::Entries(submissions));
        }
        if !completions.is_power_of_two() || completions > MAX_ENTRIES {
            return Err(GeometryError::Entries(completions));
        }
        if slab_words > MAX_SLAB_WORDS {
            return Err(GeometryError::Slab(slab_words));
        }
        Ok(Self { submissions, completions, slab_words })
    }

    /// Entries of the submission ring.
    #[must_use]
    pub const fn submissions(&self) -> u32 {
        self.submissions
    }

    /// Entries of the completion ring.
    #[must_use]
    pub const fn completions(&self) -> u32 {
        self.completions
    }

    /// Words of the argument slab.
    #[must_use]
    pub const fn slab_words(&self) -> u32 {
        self.slab_words
    }

    /// Where the slab begins in C, in bytes.
    #[must_use]
    pub const fn slab_offset(&self) -> usize {
        SUBMISSIONS + self.submissions as usize * SUBMISSION_WORDS * size_of::<u64>()
    }

    /// Bytes of the file the client writes, C.
    #[must_use]
    pub const fn client_bytes(&self) -> usize {
        (self.slab_offset() + self.slab_words as usize * size_of::<u64>()).next_multiple_of(PAGE)
    }

    /// Bytes of the file the daemon writes, D.
    #[must_use]
    pub const fn daemon_bytes(&self) -> usize {
        (COMPLETIONS + self.completions as usize * COMPLETION_WORDS * size_of::<u64>()).next_multiple_of(PAGE)
    }
}
